//! Description of the machine of a measurement, from `/proc`.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Machine and time of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// Model name of the first processor.
    pub processor: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Load averages of 1, 5 and 15 minutes at the start of the measurement.
    pub load_average: String,
    /// Start of the measurement, seconds since the Unix epoch.
    pub unix_time: u64,
}

impl Machine {
    /// Reads the description of this machine. Values that the kernel does not tell stay empty.
    #[must_use]
    pub fn here() -> Self {
        Self {
            cores: cores(),
            processor: processor(),
            kernel: sysctl("kernel.osrelease").unwrap_or_default(),
            load_average: load_average(),
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        }
    }
}

/// Processors that this process may use; 0 if unknown.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Model name of the first processor; "unknown" where the kernel does not tell.
#[must_use]
pub fn processor() -> String {
    let model = field(&read("/proc/cpuinfo"), "model name");
    if model.is_empty() { "unknown".to_owned() } else { model }
}

/// Physical memory in bytes; 0 if unknown.
#[must_use]
pub fn memory() -> u64 {
    let kib = field(&read("/proc/meminfo"), "MemTotal");
    kib.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Load averages of the last 1, 5 and 15 minutes; 0 where the kernel does not tell.
#[must_use]
pub fn load_averages() -> [f64; 3] {
    let text = load_average();
    let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap_or(0.0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0.0))
}

/// Load averages of the last 1, 5 and 15 minutes as the kernel writes them.
#[must_use]
pub fn load_average() -> String {
    read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Value of a kernel parameter, named as for sysctl(8): `net.ipv4.tcp_congestion_control`; `None` if it cannot be read.
#[must_use]
pub fn sysctl(name: &str) -> Option<String> {
    let value = fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()?;
    Some(value.trim().to_owned())
}

/// Contents of a file of `/proc` without surrounding white space; empty if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Value of the first line `NAME: VALUE`; empty without one.
fn field(file: &str, name: &str) -> String {
    let line = file.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Machine, field, load_averages, memory, sysctl};

    #[test]
    fn processor_is_the_first_model_name() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Chip A\nmodel name\t: Chip B\n";
        assert_eq!(field(cpuinfo, "model name"), "Chip A");
        assert_eq!(field("", "model name"), "");
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::here();
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && memory() > 0, "{machine:?}");
        assert_eq!((sysctl("kernel.ostype").as_deref(), sysctl("kernel.none")), (Some("Linux"), None));
        assert!(load_averages().iter().all(|load| load.is_finite()));
    }
}
