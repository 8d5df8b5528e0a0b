//! Results of a link in real time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Lateness, Reading};
use crate::report::PathRun;
use braid_emulator::{PacketCount, PathCounters};

/// A link that has stopped.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Stopped {
    /// From left to right.
    pub up: DirectionEnd,
    /// From right to left.
    pub down: DirectionEnd,
    /// Error that left a log incomplete, beyond what `unlogged` counts.
    pub log_error: Option<String>,
}

/// Results of one direction, with its lateness.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DirectionEnd {
    /// `tun` or `packet`.
    pub wire: String,
    /// Duration.
    pub elapsed: Duration,
    /// Decisions of the emulator. `sent` includes `unsent`, which the kernel then refused.
    pub counters: PathCounters,
    /// Lateness of packets at the kernel, with the time that they had waited before they were read. The packets of a
    /// batch count as sent with its last one.
    pub lateness: Lateness,
    /// Source of the second part of it.
    #[serde(default)]
    pub reading: Reading,
    /// Processor time of its thread.
    pub cpu: Duration,
    /// Whether its thread ran before all ordinary ones.
    pub realtime: bool,
    /// Frames without an IP packet, such as ARP. They cross at once and meet no stage.
    pub bypassed: PacketCount,
    /// Packets that the kernel refused, with link headers.
    pub unsent: PacketCount,
    /// Frames that the kernel dropped before they were read.
    pub missed: u64,
    /// The IP packets larger than `mtu`: offloads are on somewhere.
    pub above_mtu: u64,
    /// The MTU of the devices, as the options said.
    pub mtu: u16,
    /// The share of packets that an independent loss should take; `None` if the loss is of another kind, changes with
    /// time, or stands beside duplication.
    pub expected_loss: Option<f64>,
    /// Verdicts that are in no log because the disk was too slow.
    pub unlogged: u64,
    /// The first error of reading or sending.
    pub first_error: Option<String>,
}

impl DirectionEnd {
    /// Microseconds of processor time per packet that came; 0 if none did.
    pub fn cpu_us_per_packet(&self) -> f64 {
        let packets = self.counters.offered.packets;
        if packets == 0 { 0.0 } else { self.cpu.as_secs_f64() * 1e6 / packets as f64 }
    }

    /// Results for reports.
    pub fn path_run(&self) -> PathRun {
        let Lateness { p50_us, p99_us, max_us, .. } = self.lateness;
        PathRun {
            counters: self.counters,
            lateness_us: [p50_us, p99_us, max_us],
            cpu_us_per_packet: self.cpu_us_per_packet(),
            realtime: self.realtime,
            reading: self.reading.name().into(),
        }
    }
}
