//! Description of the machine for the report.

use braid_measure::machine::{cores, load_averages, memory, processor, sysctl};

use crate::report::Machine;

/// Description of this machine now. Values that the kernel does not tell stay empty.
pub fn machine() -> Machine {
    let sysctl = |name| sysctl(name).unwrap_or_default();
    let available = sysctl("net.ipv4.tcp_available_congestion_control");
    Machine {
        kernel: format!("{} {}", sysctl("kernel.ostype"), sysctl("kernel.osrelease")),
        processor: processor(),
        cores: cores() as u64,
        memory: memory(),
        load: load_averages(),
        tcp_congestion_control: sysctl("net.ipv4.tcp_congestion_control"),
        tcp_available: available.split_whitespace().map(str::to_owned).collect(),
        ..Machine::default()
    }
}
