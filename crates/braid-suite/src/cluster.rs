//! `bench cluster`: cost of a cluster of three nodes, beside NATS itself on the same servers in the same run.

mod clients;
mod durable;
mod fail_over;
mod fan_out;
mod live;
mod nats;
mod one_way;
mod processes;
mod progress;
mod report;
mod resume;
mod single;
mod testbed;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use braid_measure::machine::load_average;
use braid_measure::{Machine, RaisedPriority};

use self::processes::Processes;
use self::report::{BrokenPart, ClusterReport, Row};
use self::testbed::{Programs, Testbed};
use crate::brokers::{self, Broker};
use crate::case::Flow;
use crate::load::{self, FlowResult, Target};
use crate::system::{disk_directory, raise_open_files};
use crate::{Tuning, wants};

/// Arguments of `bench cluster`.
#[derive(clap::Args)]
pub(crate) struct ClusterArgs {
    /// The broker of each node, braidmq or braidmq=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// nats-server; by default that of `make nats-server`.
    #[arg(long, value_name = "PROGRAM")]
    nats_server: Option<PathBuf>,
    /// Parts to measure: durable, live, fan-out, fail-over, sessions, single; default all.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// braidmq of before, for the part `single`, which is left out without it.
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Rounds of each row; faults have at most three, sessions one.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds measured per run.
    #[arg(long, default_value_t = 3, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// One round with short runs and few clients: a test, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Accept a debug build: a test, not a measurement.
    #[arg(long)]
    pub(super) debug: bool,
    /// On a busy machine, as root: run brokers, servers and generator alike at nice -10, the session too.
    #[arg(long)]
    go_first: bool,
    /// Directory on a disk for the files of the run; by default beside this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the report into this directory, as cluster.md and cluster.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Programs and extent of a run.
struct Setup<'a> {
    programs: Programs<'a>,
    before: Option<&'a Path>,
    processes: &'a Processes,
    directory: PathBuf,
    rounds: u32,
    seconds: u32,
    is_quick: bool,
    /// CONNECTs that were refused and repeated.
    refused: Cell<u32>,
}

/// Repetitions of a run whose CONNECT is refused.
const REPEATS: u32 = 10;

/// Measures a part and adds its rows.
type Measure = fn(&Setup<'_>, &mut Vec<Row>) -> Result<(), String>;

const PARTS: [(&str, Measure); 6] = [
    (durable::PART, durable::run),
    (live::PART, live::run),
    (fan_out::PART, fan_out::run),
    (fail_over::PART, fail_over::run),
    (resume::PART, resume::run),
    (single::PART, single::run),
];

/// Measures and prints; fails if a bar is missed or a part broke off.
///
/// # Errors
/// An unknown part, a missing program, or a limit of the system.
pub(crate) fn run(args: &ClusterArgs) -> Result<ExitCode, String> {
    check_parts(args)?;
    // Sessions are connected at the generator and at a broker.
    raise_open_files(resume::sessions(args.quick) + 1000)?;
    let broker = brokers::select(std::slice::from_ref(&args.broker), &Tuning::default())?.pop();
    let broker = broker.filter(Broker::is_braidmq).ok_or("only braidmq is a cluster here")?;
    let server = nats_server(args.nats_server.as_deref())?;
    let processes = Processes::default();
    processes.end_by_signals()?;
    let setup = Setup {
        programs: Programs { broker: broker.program(), server: &server },
        before: args.before.as_deref(),
        processes: &processes,
        directory: disk_directory(args.dir.as_deref(), "bench-cluster")?,
        rounds: if args.quick { 1 } else { args.rounds },
        seconds: args.seconds,
        is_quick: args.quick,
        refused: Cell::new(0),
    };
    // After the build of the broker, which needs no priority.
    let priority = if args.go_first { Some(RaisedPriority::take()?) } else { None };
    let machine = Machine::here();
    let (mut rows, mut broken) = (Vec::new(), Vec::new());
    for (part, measure) in PARTS.iter().filter(|(part, _)| wants(&args.only, part)) {
        if let Err(reason) = measure(&setup, &mut rows) {
            eprintln!("# {part} broke off: {reason}");
            broken.push(BrokenPart { part, reason });
        }
    }
    drop(priority);
    let mut versions = vec![broker.version.clone(), version(&server)];
    versions.extend(args.before.as_deref().map(|before| format!("before: {}", version(before))));
    let report = ClusterReport {
        machine,
        load_average_at_end: load_average(),
        command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        versions,
        setup: setup.describe(),
        rows,
        broken,
    };
    print!("{}", report.markdown());
    if let Some(directory) = &args.out {
        report.write(directory)?;
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_parts(args: &ClusterArgs) -> Result<(), String> {
    let known = || PARTS.map(|(part, _)| part).join(", ");
    if let Some(unknown) = args.only.iter().find(|name| PARTS.iter().all(|(part, _)| part != name)) {
        return Err(format!("no part is called `{unknown}`; there are {}", known()));
    }
    let before = args.before.as_deref();
    if before.is_none() && args.only.iter().any(|name| name == single::PART) {
        return Err(format!("{} compares with an earlier braidmq: name it with --before", single::PART));
    }
    match before.filter(|before| !before.is_file()) {
        Some(missing) => Err(format!("{} is not there", missing.display())),
        None => Ok(()),
    }
}

/// Path of nats-server: the named one, or that of the workspace.
fn nats_server(named: Option<&Path>) -> Result<PathBuf, String> {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers/bin/nats-server");
    let program = named.map_or(usual, Path::to_owned);
    program.canonicalize().ok().filter(|program| program.is_file()).ok_or_else(|| {
        format!("{} is not there: run `make nats-server`, or name it with --nats-server", program.display())
    })
}

fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("version unknown").trim().to_owned()
}

impl<'a> Setup<'a> {
    /// Starts a new cluster.
    fn start(&self) -> Result<Testbed<'a>, String> {
        Testbed::start(self.programs, self.processes, &self.directory)
    }

    fn warm_up(&self) -> Duration {
        Duration::from_millis(if self.is_quick { 300 } else { 1000 })
    }

    fn measured(&self) -> Duration {
        if self.is_quick { Duration::from_millis(700) } else { Duration::from_secs(self.seconds.into()) }
    }

    /// Rounds of faults, each of which takes up to a minute.
    fn faults(&self) -> usize {
        self.rounds.min(3) as usize
    }

    /// Prints what a round has measured.
    fn note(&self, part: &str, round: usize, text: &str) {
        eprintln!("# {part}, round {} of {}: {text}", round + 1, self.rounds);
    }

    /// Prints a row and adds it to the report.
    fn push(&self, rows: &mut Vec<Row>, row: Row) {
        eprintln!("# = {}", row.line());
        rows.push(row);
    }

    /// Runs a flow against the nodes of a cluster. A node may refuse the client of an earlier run that comes to it from
    /// another node: then the flow begins again, and the report says so.
    ///
    /// # Errors
    /// As [`load::run_on`].
    fn flow(&self, part: &str, flow: &Flow, target: Target<'_>) -> Result<FlowResult, String> {
        for _ in 0..REPEATS {
            match load::run_on(flow, target, self.warm_up(), self.measured()) {
                Err(reason) if reason.starts_with("the answer to CONNECT was") => {
                    eprintln!("# {part}: {reason}; once more");
                    self.refused.set(self.refused.get() + 1);
                    thread::sleep(clients::AGAIN);
                }
                result => return result,
            }
        }
        Err(format!("a CONNECT was refused {REPEATS} times"))
    }

    fn describe(&self) -> String {
        let Self { rounds, .. } = self;
        let refused = match self.refused.get() {
            0 => String::new(),
            refused => format!(" {refused} CONNECTs of flows were refused and repeated."),
        };
        let test = if self.is_quick || cfg!(debug_assertions) {
            "**A test of the command, not a measurement.** "
        } else {
            ""
        };
        format!(
            "{test}Three servers of NATS (`sync_interval: always`, files on a disk, streams of three replicas) and three brokers on loopback, \
             started anew for each part; each broker is connected to the server of its node. Payloads of {} bytes. Peers are measured on the \
             same servers: JetStream by async-nats with a stream of three replicas whose leader is that of the brokers' stream, core NATS by \
             async-nats. MQTT 3.1.1 clients are the raw generator of `bench broker`; single messages of QoS 0 are sent by braid-client. {rounds} \
             rounds in alternation, fewer for faults and sessions: medians, with the least and the greatest. Ratios and differences are those of \
             neighbouring runs; their median is compared with the bar, and each reading where there is no peer.{refused}",
            one_way::SIZE
        )
    }
}

/// Readings of the peer and of the cluster. The order changes, so that a machine that becomes slower favours neither.
fn in_turn<T>(
    round: usize,
    peer: impl FnOnce() -> Result<T, String>,
    own: impl FnOnce() -> Result<T, String>,
) -> Result<[T; 2], String> {
    if round.is_multiple_of(2) {
        let peer = peer()?;
        Ok([peer, own()?])
    } else {
        let own = own()?;
        Ok([peer()?, own])
    }
}
