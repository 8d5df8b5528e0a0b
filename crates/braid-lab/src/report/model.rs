//! Data model of `report.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use braid_emulator::PathCounters;

/// Value of [`Report::schema`]. Incompatible changes increase the number.
pub const SCHEMA: &str = "braidmq-lab/1";

/// Execution of a scenario: all runs, the machine, and the checks of the bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Name of the scenario.
    pub scenario: String,
    /// Title, one line.
    pub title: String,
    /// Question and method, a few sentences.
    pub about: String,
    /// Command that reproduces this report.
    pub command: String,
    /// Start time, RFC 3339.
    pub started: String,
    /// Times at which it was resumed, RFC 3339.
    #[serde(default)]
    pub resumed: Vec<String>,
    /// Version of braidmq.
    pub version: String,
    /// Hash of the file of braidmq, to tell builds apart; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// Inputs of the programs, with placeholders: command lines (`program NAME`), files (`file NAME`), and the settings
    /// of variants and profiles (`variant NAME`, `profile NAME`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// Planned duration of the workload of each run, seconds; 0 if unknown.
    #[serde(default)]
    pub duration: f64,
    /// Whether it was the short form of the scenario.
    #[serde(default)]
    pub quick: bool,
    /// Command lines of replaced programs, by [`ProgramRun::name`].
    #[serde(default)]
    pub replaced: BTreeMap<String, String>,
    /// Machine on which it ran.
    pub machine: Machine,
    /// Selftest before the runs, if made.
    pub selftest: Option<SelftestResult>,
    /// Columns of the table, in order.
    pub columns: Vec<Column>,
    /// Metrics that are latencies: in a usable run without the metric, the messages in question never arrived, so
    /// that its latency is infinite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<String>,
    /// Rows of the table: the compared variants.
    pub variants: Vec<Variant>,
    /// Networks on which they were compared.
    pub profiles: Vec<Profile>,
    /// Published figures.
    #[serde(default)]
    pub published: Published,
    /// Reference figures beside those measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
    /// All runs in the order of execution.
    pub runs: Vec<Run>,
    /// Checks of the scenario's bounds.
    pub checks: Vec<Check>,
}

/// Machine and its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -sr`.
    pub kernel: String,
    /// Name of the processor.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: u64,
    /// Main memory, bytes.
    pub memory: u64,
    /// Load averages of 1, 5 and 15 minutes before the first run.
    pub load: [f64; 3],
    /// Default congestion control of TCP.
    pub tcp_congestion_control: String,
    /// Available congestion controls of TCP.
    pub tcp_available: Vec<String>,
    /// `root`, or `user namespace`.
    pub privileges: String,
    /// Devices of the emulated links: `tun` or `packet`.
    pub wire: String,
    /// Offloads that are enabled on any device of the testbed; must be empty.
    pub offloads: Vec<String>,
}

/// Result of the selftest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelftestResult {
    /// Reasons not to trust this machine now; empty if it passed.
    pub refused: Vec<String>,
    /// Whether a reason is a busy machine, so that a repetition may pass.
    #[serde(default)]
    pub busy: bool,
    /// Figures by name; the last word of a name is the unit: `delay_error_p99_us`.
    pub figures: BTreeMap<String, f64>,
}

/// Metric as a column of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Key in [`Run::metrics`].
    pub metric: String,
    /// Title for readers.
    pub title: String,
    /// Unit: `ms`, `KB/s`, `%`, or empty.
    #[serde(default)]
    pub unit: String,
    /// Digits after the point.
    #[serde(default)]
    pub digits: u8,
}

/// Compared variant: a transport, a setting, a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Name in options and files.
    pub name: String,
    /// Title for readers.
    pub title: String,
}

/// Published figures by [`Profile::name`], [`Variant::name`] and metric.
pub type Published = BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>;

/// Row of figures that were not measured here: a physical limit, or a result from elsewhere. The title names the
/// source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Title for readers, with the source.
    pub title: String,
    /// Profiles to which they belong, by [`Profile::name`].
    pub profiles: Vec<String>,
    /// Figures by [`Column::metric`].
    pub values: BTreeMap<String, f64>,
}

/// Network on which variants are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Name in options and files.
    pub name: String,
    /// Title for readers.
    pub title: String,
    /// Parameters of each link by name, as link strings.
    pub links: BTreeMap<String, String>,
}

/// Run of a variant on a profile with a seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`Variant::name`].
    pub variant: String,
    /// [`Profile::name`].
    pub profile: String,
    /// Seed of every link.
    pub seed: u64,
    /// Repetition, from 1.
    pub repetition: u64,
    /// Number of earlier attempts, which a busy machine invalidated or an interruption cut off.
    #[serde(default)]
    pub attempt: u64,
    /// Duration of its workload, seconds.
    pub seconds: f64,
    /// Load average of one minute before it and at its end.
    #[serde(default)]
    pub load: [f64; 2],
    /// Reasons not to use its numbers: the emulator was late, a packet exceeded the MTU, a program died. Empty if
    /// valid.
    pub refused: Vec<String>,
    /// Metrics by name. The latency of messages that never arrived is absent.
    pub metrics: BTreeMap<String, f64>,
    /// Time series.
    pub series: Vec<Series>,
    /// Path models of the gates of QUIC connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateRun>,
    /// Latency distributions.
    pub cdfs: Vec<Cdf>,
    /// Emulated links.
    pub links: Vec<LinkRun>,
    /// Programs.
    pub programs: Vec<ProgramRun>,
    /// Events in the order of time.
    pub events: Vec<Event>,
}

/// Subject of a series, which selects its chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// Messages per second of one topic.
    Rate,
    /// Bytes per second of one stream.
    Stream,
    /// Packets per second that a link passed or dropped, by fate.
    Link,
    /// Other quantity, in its own unit.
    Other,
}

/// Values at equal intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Chart.
    pub kind: SeriesKind,
    /// Name of the line: `Topic1`, `stream 2`, `up policed`.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// Start of the first interval, seconds since the start of the run; negative if its program began earlier.
    pub start: f64,
    /// Length of an interval in seconds.
    pub step: f64,
    /// One value per interval.
    pub values: Vec<f64>,
}

/// Path model of the gate of one QUIC connection over time; each list has one entry per sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GateRun {
    /// Sending program, as [`ProgramRun::name`].
    pub program: String,
    /// Address of the peer.
    pub peer: String,
    /// Link and direction between them, as in the names of series: `bad up`. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Times of the samples, seconds since the start of the run.
    pub at: Vec<f64>,
    /// Class of the path.
    pub class: Vec<PathClass>,
    /// Estimated rate in packets per second.
    pub packets_per_second: Vec<Option<f64>>,
    /// Estimated rate in bytes of UDP payload per second.
    pub bytes_per_second: Vec<Option<f64>>,
    /// Modelled token level of a policer in packets; negative if overdrawn.
    pub tokens: Vec<Option<f64>>,
    /// Tokens that bulk traffic leaves to urgent packets.
    pub reserve_tokens: Vec<Option<f64>>,
    /// Modelled queueing delay, milliseconds.
    pub wait_ms: Vec<Option<f64>>,
    /// Target queueing delay of bulk traffic, milliseconds.
    pub aim_ms: Vec<Option<f64>>,
    /// Packets sent since the path began, without those sent while its class was `open`.
    pub packets: Vec<u64>,
}

/// Class of a path, as decided by a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathClass {
    /// Unknown so far.
    Start,
    /// Left to the congestion controller.
    Open,
    /// Fast or varying queue, or random loss: the window follows the delivery rate. Reports of older versions name it
    /// `search`.
    #[serde(alias = "search")]
    Window,
    /// Policer: drops packets above a rate.
    Policed,
    /// Queue.
    Queued,
}

/// Latency distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cdf {
    /// Name of the line: `Topic1`.
    pub name: String,
    /// Latency in milliseconds, and the share (0 to 1) of all due messages with at most that latency. Ends below 1 if
    /// messages never arrived.
    pub points: Vec<(f64, f64)>,
}

/// Results of an emulated link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRun {
    /// Name in the scenario.
    pub name: String,
    /// Direction from left to right, that of the data in most experiments.
    pub up: PathRun,
    /// Direction from right to left.
    pub down: PathRun,
}

/// Results of one direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathRun {
    /// Packets and bytes by fate.
    pub counters: PathCounters,
    /// Lateness of packets in microseconds: p50, p99, maximum.
    pub lateness_us: [f64; 3],
    /// Processor time of its thread per packet, microseconds.
    pub cpu_us_per_packet: f64,
    /// Whether its thread had real-time priority (`SCHED_FIFO`).
    #[serde(default)]
    pub realtime: bool,
    /// Source of the time that packets waited to be read, which is part of lateness: `timestamps`, `run queue`, or
    /// empty.
    #[serde(default)]
    pub reading: String,
}

/// Results of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramRun {
    /// Name in the scenario.
    pub name: String,
    /// Command line.
    pub command: String,
    /// End: `stopped`, `exit code 1`, `signal 9`.
    pub end: String,
    /// User and system time, seconds.
    pub cpu_seconds: f64,
    /// Peak resident memory, bytes, if known.
    pub peak_memory: Option<u64>,
    /// Last lines of its output.
    pub tail: Vec<String>,
}

/// Event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the start of the run.
    pub at: f64,
    /// Program or link.
    pub source: String,
    /// Description.
    pub what: String,
}

/// Check of a bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Text: `quic-multi on lan: delivered_share 99.7 (bound: at least 95)`.
    pub bound: String,
    /// Median over seeds and repetitions; `None` without a usable run that has the metric, and if it is infinite.
    pub measured: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}
