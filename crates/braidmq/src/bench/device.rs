//! `braidmq bench device`: alarms and recordings of one device, over any URL.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use braid_bench::device::{self, DeviceLoad};
use braid_bench::summary::{Event, RunSummary};
use braid_client::{Client, ClientTlsOptions};
use clap::ArgAction;

use super::failure::Failure;
use super::options::{OptionsError, duration, switch};
use super::output::JsonFile;
use crate::client::stopped;
use crate::printable::printable;

/// Session Expiry Interval with recordings.
const SESSION: Duration = Duration::from_secs(600);

const EXAMPLES: &str = "\
Examples:
  braidmq bench device -L auto://broker.example --cafile ca.pem --duration 60s
  braidmq bench device -L auto://192.0.2.1 --insecure --recording 10000000 --state-file state.json
  braidmq bench device -L auto://192.0.2.1 --insecure --change-every 1s --duration 100s

Exit codes:
  0  all alarms were acknowledged
  1  some were not
  2  wrong options, or a file that cannot be read or written";

/// Publish alarms like a device that stays connected, and measure how long each takes to be acknowledged.
///
/// One client, which reconnects, and with auto:// changes its transport: prints each change. Alarms have QoS 1 and
/// priority 200. With --recording, large messages are published at the same time. Ctrl-C ends the run early, with its
/// results.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: {mqtt,mqtts,ws,wss,quic,auto}://[USER[:PASSWORD]@]HOST[:PORT].
    #[arg(short = 'L', long, value_name = "URL", default_value = "auto://localhost")]
    url: String,
    /// Topic of the alarms; recordings have this topic with /recording behind it.
    #[arg(short, long, value_name = "TOPIC", default_value = "alarms")]
    topic: String,
    /// Alarms per second.
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    rate: f64,
    /// Publish messages of so many bytes, one after the other.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=268_435_000))]
    recording: Option<u32>,
    /// End after so many recordings; without it the run lasts for its duration.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), requires = "recording")]
    recordings: Option<u64>,
    /// Go on with a recording on the next connection where the server has its first part; false sends it whole again.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "true", default_missing_value = "true",
        value_parser = switch, action = ArgAction::Set)]
    resume: bool,
    /// Duration of the run.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s")]
    duration: Duration,
    /// Time after it in which the last alarms may be acknowledged.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    patience: Duration,
    /// Change the transport so often, with auto://, to test that.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    change_every: Option<Duration>,
    /// Keep in this file where QUIC works, with auto://.
    #[arg(long, value_name = "FILE")]
    state_file: Option<PathBuf>,
    /// Client Identifier. By default a random one.
    #[arg(short, long, value_name = "ID")]
    id: Option<String>,
    /// CONNECT is early data (0-RTT) of QUIC connections after the first.
    #[arg(long)]
    zero_rtt: bool,
    /// A PEM file with the CAs to trust, in place of the system's.
    #[arg(long, value_name = "FILE")]
    cafile: Vec<PathBuf>,
    /// Do not verify the server's certificate: for tests only.
    #[arg(long, conflicts_with = "cafile")]
    insecure: bool,
    /// Write the results to this file at the end.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the times of single alarms in the file.
    #[arg(long, requires = "json")]
    trace: bool,
    /// Print this help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Runs `braidmq bench device`.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if !(args.rate > 0.0 && args.rate <= 100_000.0) {
        return Err(OptionsError::new("--rate is above 0 and at most 100000").into());
    }
    let json = args.json.clone().map(JsonFile::prepare).transpose()?;
    let mut builder = Client::builder(&args.url)
        .tls(ClientTlsOptions {
            ca_files: args.cafile.clone(),
            insecure: args.insecure,
            ..Default::default()
        })
        .disconnect_timeout(args.patience)
        .resume_large(args.resume);
    if args.recording.is_some() {
        // Recordings outlive connections, and their session does not outlive the run.
        builder = builder.session_expiry(SESSION).end_session(true);
    }
    if args.zero_rtt {
        builder = builder.zero_rtt(true);
    }
    if let Some(id) = &args.id {
        builder = builder.client_id(id);
    }
    if let Some(file) = &args.state_file {
        builder = builder.state_file(file);
    }
    let load = DeviceLoad {
        topic: args.topic.clone(),
        rate: args.rate,
        recording: args.recording.map(|bytes| bytes as usize),
        recordings: args.recordings,
        duration: args.duration,
        patience: args.patience,
        change_every: args.change_every,
        trace: args.trace,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let summary = runtime.block_on(device::run(&load, builder, stopped(), tell_event))?;
    runtime.shutdown_background();
    // Standard output may be closed.
    let _ = tell(&mut io::stdout().lock(), &summary);
    if let Some(json) = json {
        json.write(&summary)?;
    }
    let Some(alarms) = summary.topics.first() else { return Ok(()) };
    let missing = alarms.sent.saturating_sub(alarms.acked);
    if missing > 0 { Err(Failure::Unacknowledged(missing)) } else { Ok(()) }
}

/// Prints an event at once; standard output may be closed.
fn tell_event(event: &Event) {
    let _ = writeln!(io::stdout(), "{:>8.3} s  {}", event.at, printable(&event.what));
}

fn tell(out: &mut impl Write, summary: &RunSummary) -> io::Result<()> {
    let count = |name| summary.counters.get(name).copied().unwrap_or_default();
    for (topic, what) in summary.topics.iter().zip(["alarms", "recordings"]) {
        writeln!(out, "{} of {} {what} acknowledged in {:.1} s", topic.acked, topic.sent, summary.seconds)?;
        if let Some(of) = &topic.latency_us {
            let [p50, p90, p99, max] = [of.p50, of.p90, of.p99, of.max].map(|micros| micros / 1000.0);
            writeln!(out, "  p50 {p50:.1} ms, p90 {p90:.1}, p99 {p99:.1}, slowest {max:.1}")?;
        }
    }
    writeln!(
        out,
        "  {} connections, {} moves, {} disconnects, longest gap {} ms, {} recordings went on",
        count("connected"),
        count("moves"),
        count("disconnects"),
        count("longest_gap_ms"),
        count("continued"),
    )
}
