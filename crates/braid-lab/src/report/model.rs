//! What `report.json` holds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::emulator::PathCounters;

/// The value of [`Report::schema`]. A change that readers have to know of changes the number.
pub const SCHEMA: &str = "braidmq-lab/1";

/// One execution of a scenario: every run of it, where it ran, and which bounds held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The scenario's name.
    pub scenario: String,
    /// Its title, one line.
    pub title: String,
    /// What it asks and how, a few sentences.
    pub about: String,
    /// The command that makes this report again.
    pub command: String,
    /// When it was made, RFC 3339.
    pub started: String,
    /// When it was gone on with after it had ended.
    #[serde(default)]
    pub resumed: Vec<String>,
    /// The version of braidmq.
    pub version: String,
    /// How long the workload of each run was to last, seconds; 0: not known.
    #[serde(default)]
    pub duration: f64,
    /// Whether it was the short form of the scenario.
    #[serde(default)]
    pub quick: bool,
    /// Programs of the scenario, by [`ProgramRun::name`], in whose place others ran: their command lines.
    #[serde(default)]
    pub replaced: BTreeMap<String, String>,
    /// Where it ran.
    pub machine: Machine,
    /// Whether the machine can be trusted.
    pub selftest: Option<SelftestResult>,
    /// The columns of the table, in order.
    pub columns: Vec<Column>,
    /// The rows of the table: what is compared.
    pub variants: Vec<Variant>,
    /// The networks it was compared on.
    pub profiles: Vec<Profile>,
    /// What others published of them.
    #[serde(default)]
    pub published: Published,
    /// Figures to stand beside those measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
    /// Every run in the order of execution.
    pub runs: Vec<Run>,
    /// The scenario's bounds.
    pub checks: Vec<Check>,
}

/// The machine and its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -sr`.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: u64,
    /// Main memory, bytes.
    pub memory: u64,
    /// Load averages of 1, 5 and 15 minutes before the first run.
    pub load: [f64; 3],
    /// The kernel's congestion control for TCP, unless a program chose another.
    pub tcp_congestion_control: String,
    /// Those it has.
    pub tcp_available: Vec<String>,
    /// `root`, or `user namespace`.
    pub privileges: String,
    /// What carries the emulated links: `tun` or `packet`.
    pub wire: String,
    /// Offload features that are on at some device of the laboratory; empty as it must be.
    pub offloads: Vec<String>,
}

/// What `lab selftest` said just before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelftestResult {
    /// Why not to trust this machine now; empty: trust it.
    pub refused: Vec<String>,
    /// Whether one of these is that it was too busy: another time it may be trusted.
    #[serde(default)]
    pub busy: bool,
    /// Its figures by name, with the unit as the name's last word: `delay_error_p99_us`.
    pub figures: BTreeMap<String, f64>,
}

/// A metric as a column of the report's table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The key in [`Run::metrics`].
    pub metric: String,
    /// What readers see.
    pub title: String,
    /// `ms`, `KB/s`, `%`, or nothing.
    #[serde(default)]
    pub unit: String,
    /// Digits after the point.
    #[serde(default)]
    pub digits: u8,
}

/// What is compared: a transport, a setting, another program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name in options and files.
    pub name: String,
    /// What readers see.
    pub title: String,
}

/// Figures that somebody else published: by [`Profile::name`], [`Variant::name`] and metric.
pub type Published = BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>;

/// A row of figures that were not measured here: a physical limit, or what somebody else reached. The scenario says where they
/// are from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// What readers see: whose figures, and where they are from.
    pub title: String,
    /// The profiles that they are of, by [`Profile::name`].
    pub profiles: Vec<String>,
    /// By [`Column::metric`].
    pub values: BTreeMap<String, f64>,
}

/// A network on which variants are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Its name in options and files.
    pub name: String,
    /// What readers see.
    pub title: String,
    /// The shape of each link by the link's name, as a link string.
    pub links: BTreeMap<String, String>,
}

/// One run: a variant on a profile with a seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`Variant::name`].
    pub variant: String,
    /// [`Profile::name`].
    pub profile: String,
    /// The seed of every link.
    pub seed: u64,
    /// Counted from 1.
    pub repetition: u64,
    /// How often it was tried before: those runs are refused, because the machine was too busy.
    #[serde(default)]
    pub attempt: u64,
    /// How long its workload ran.
    pub seconds: f64,
    /// The load average of a minute before it and at its end.
    #[serde(default)]
    pub load: [f64; 2],
    /// Why its numbers must not be used: the emulator was late, a packet was larger than the MTU, a program died.
    /// Empty: they may be.
    pub refused: Vec<String>,
    /// Numbers by name. A latency of messages that never arrived is absent.
    pub metrics: BTreeMap<String, f64>,
    /// What changed over time.
    pub series: Vec<Series>,
    /// What the gates of QUIC connections knew of their paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateRun>,
    /// How latencies are distributed.
    pub cdfs: Vec<Cdf>,
    /// The emulated links.
    pub links: Vec<LinkRun>,
    /// The programs.
    pub programs: Vec<ProgramRun>,
    /// What happened, in the order of time.
    pub events: Vec<Event>,
}

/// What a series is about, and so in which plot it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// Messages per second of one topic.
    Rate,
    /// Bytes per second of one stream.
    Stream,
    /// Packets per second that a link passed or dropped, by cause.
    Link,
    /// Anything else, in its own unit.
    Other,
}

/// Values at equal steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The plot.
    pub kind: SeriesKind,
    /// The line: `Topic1`, `stream 2`, `up policed`.
    pub name: String,
    /// The unit of the values.
    pub unit: String,
    /// When the first step began, seconds since the start of the run; below 0: its program began before the workload.
    pub start: f64,
    /// The length of a step in seconds.
    pub step: f64,
    /// One per step.
    pub values: Vec<f64>,
}

/// What the gate of one QUIC connection knew of the path on which it sends, over time: one of each list per sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GateRun {
    /// The program that sends, as [`ProgramRun::name`].
    pub program: String,
    /// The other end's address.
    pub peer: String,
    /// The link and direction between them, as series name them: `bad up`. Absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// When, seconds since the start of the run.
    pub at: Vec<f64>,
    /// What the path was taken for.
    pub class: Vec<PathClass>,
    /// Packets per second that it lets through, as estimated.
    pub packets_per_second: Vec<Option<f64>>,
    /// The same in bytes of UDP payload.
    pub bytes_per_second: Vec<Option<f64>>,
    /// Packets that a policer would let through at once; below 0 are owed.
    pub tokens: Vec<Option<f64>>,
    /// Of them: those that bulk leaves to what is urgent.
    pub reserve_tokens: Vec<Option<f64>>,
    /// How long a packet would wait in a queue, milliseconds.
    pub wait_ms: Vec<Option<f64>>,
    /// How long bulk may wait there, milliseconds.
    pub aim_ms: Vec<Option<f64>>,
    /// Packets that have left since the path began, without those sent while it was `open`.
    pub packets: Vec<u64>,
}

/// What a gate takes a path for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathClass {
    /// Not known yet.
    Start,
    /// Left to the congestion controller.
    Open,
    /// It loses at random; what limits it is looked for.
    Search,
    /// It drops what exceeds a rate.
    Policed,
    /// It queues.
    Queued,
}

/// A distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cdf {
    /// The line: `Topic1`.
    pub name: String,
    /// Milliseconds, and the share (0 to 1) of all messages that were due and took no longer. Ends below 1 when some
    /// never arrived.
    pub points: Vec<(f64, f64)>,
}

/// What one emulated link did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRun {
    /// Its name in the scenario.
    pub name: String,
    /// The direction of the data in most experiments.
    pub up: PathRun,
    /// The other one.
    pub down: PathRun,
}

/// What one direction did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathRun {
    /// Packets and bytes by what became of them.
    pub counters: PathCounters,
    /// How much later than due packets left, microseconds: 50 %, 99 %, all.
    pub lateness_us: [f64; 3],
    /// Processor time of its thread per packet, microseconds.
    pub cpu_us_per_packet: f64,
    /// Whether its thread ran before all ordinary ones (`SCHED_FIFO`).
    #[serde(default)]
    pub realtime: bool,
    /// How it is known how long packets waited to be read, which is part of their lateness: `timestamps`, `run queue`, or
    /// nothing.
    #[serde(default)]
    pub reading: String,
}

/// What one program did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramRun {
    /// Its name in the scenario.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// How it ended: `stopped`, `exit code 1`, `signal 9`.
    pub end: String,
    /// User and system time, seconds.
    pub cpu_seconds: f64,
    /// The most main memory it had, bytes, where that could be seen.
    pub peak_memory: Option<u64>,
    /// Its last lines.
    pub tail: Vec<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the start of the run.
    pub at: f64,
    /// Which program, link or clock.
    pub source: String,
    /// What.
    pub what: String,
}

/// One bound and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The bound in words: `quic-multi on lan: delivered_share 99.7 (bound: at least 95)`.
    pub bound: String,
    /// The median over seeds and repetitions; `None`: no run can be used.
    pub measured: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}
