//! The machine a measurement was made on: numbers without it say nothing.

use std::fs;

use serde::Serialize;

/// What the report says about the machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) kernel: String,
    /// 1, 5 and 15 minutes, when the run started.
    pub(crate) load_average: String,
    /// Seconds since 1970, when the run started.
    pub(crate) unix_time: u64,
}

impl Machine {
    /// This machine, now.
    pub(crate) fn here() -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let since_1970 =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: processor(&line("/proc/cpuinfo")),
            kernel: line("/proc/sys/kernel/osrelease"),
            load_average: load_average(),
            unix_time: since_1970.as_secs(),
        }
    }
}

/// The load average of 1, 5 and 15 minutes now.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn processor(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, model)| model.trim()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::processor;

    #[test]
    fn processor_is_the_first_model_name() {
        assert_eq!(processor("processor\t: 0\nmodel name\t: Chip A\nmodel name\t: Chip B\n"), "Chip A");
        assert_eq!(processor(""), "unknown");
    }
}
