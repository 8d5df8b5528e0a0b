//! Description of the machine for the report.

use std::fs;

use crate::report::Machine;

/// This machine, now. What the kernel does not tell stays empty.
pub fn machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let field = |file: &str, name: &str| {
        let line = file.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    };
    let kib = field(&read("/proc/meminfo"), "MemTotal");
    Machine {
        kernel: format!("{} {}", read("/proc/sys/kernel/ostype"), read("/proc/sys/kernel/osrelease")),
        processor: field(&read("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u64),
        memory: kib.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024,
        load: loads(),
        tcp_congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
        tcp_available: read("/proc/sys/net/ipv4/tcp_available_congestion_control")
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        privileges: String::new(),
        wire: String::new(),
        offloads: Vec::new(),
    }
}

/// The load average of the last minute.
pub(super) fn load() -> f64 {
    let [minute, ..] = loads();
    minute
}

/// Those of 1, 5 and 15 minutes; 0 where the kernel does not tell.
fn loads() -> [f64; 3] {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap_or(0.0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0.0))
}
