//! Third-party clients against a real broker process or cluster: mosquitto-clients, paho-mqtt, MQTT.js, aioquic,
//! msquic, curl, a generated client of the API, the parser of Prometheus, Chromium; and our load generator beside
//! h2load, on nginx.
//!
//! The cases themselves are scripts in `peers/`. This module installs what they need, starts the broker with its
//! defaults and with other settings, runs the suites with the ports in their environment, and sums up.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{slice, thread};

mod broker;
mod certificate;
mod cluster;
mod http_load;
mod install;
mod ports;
mod process;
mod suite;
mod tally;

use super::launch::build;
use broker::Broker;
use suite::{Places, Suite};
use tally::Tally;

/// Broker under test.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// `braidmq serve`, with every listener.
    Braidmq,
    /// mosquitto from Debian, without QUIC: a reference for the cases themselves.
    Mosquitto,
    /// Three nodes of `braidmq serve` on NATS, behind a balancer that sends each TCP connection to the next node.
    Cluster,
}

impl Kind {
    fn listens(self, listener: &str) -> bool {
        match self {
            Self::Braidmq => true,
            Self::Mosquitto => !matches!(listener, "QUIC" | "HTTP"),
            Self::Cluster => listener != "HTTP",
        }
    }

    /// Name in the scripts and of the directories.
    fn name(self) -> &'static str {
        match self {
            Self::Braidmq => "braidmq",
            Self::Mosquitto => "mosquitto",
            Self::Cluster => "cluster",
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The broker under test.
    #[arg(long, value_enum, default_value = "braidmq")]
    broker: Kind,
    /// The braidmq binary; without it, one is built.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Run only cases whose name holds this text.
    #[arg(long, value_name = "SUBSTRING", default_value = "")]
    only: String,
    /// Install nothing; a missing client is still a failure.
    #[arg(long)]
    no_install: bool,
}

/// Suites that run two at a time: most of their time they wait for a timer of the broker.
const BESIDE: &[Suite] = &[
    Suite { script: "run_paho.py", limit: Duration::from_secs(1200), brokers: ALL },
    Suite { script: "run_mosquitto_clients.py", limit: Duration::from_secs(600), brokers: ALL },
    Suite { script: "run_raw.py", limit: Duration::from_secs(600), brokers: ALL },
    Suite { script: "run_mqttjs.mjs", limit: Duration::from_secs(600), brokers: ALL },
    Suite { script: "run_quic.py", limit: Duration::from_secs(300), brokers: WITH_QUIC },
];

/// Suites that run alone: they measure times, or look at all connections of a broker.
const ALONE: &[Suite] = &[
    // 0-RTT and migration need a balancer that finds the node in a connection ID, and nodes put no name there.
    Suite { script: "run_streams.py", limit: Duration::from_secs(600), brokers: ONE_NODE },
    // The API tells what a connection is to the broker, and nodes of the cluster under test have no API.
    Suite { script: "run_msquic.py", limit: Duration::from_secs(900), brokers: ONE_NODE },
    Suite { script: "run_http.py", limit: Duration::from_secs(600), brokers: ONE_NODE },
    Suite { script: "run_http3.mjs", limit: Duration::from_secs(300), brokers: ONE_NODE },
    Suite { script: "run_dashboard.mjs", limit: Duration::from_secs(900), brokers: ONE_NODE },
];

const ALL: &[Kind] = &[Kind::Braidmq, Kind::Mosquitto, Kind::Cluster];
const WITH_QUIC: &[Kind] = &[Kind::Braidmq, Kind::Cluster];
const ONE_NODE: &[Kind] = &[Kind::Braidmq];

/// Runs every suite. False when a case failed.
///
/// # Errors
/// A client or a broker is not available, or no case was selected.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    let tally = peers(args)?;
    println!("{tally}");
    Ok(tally.failed == 0)
}

fn peers(args: &Args) -> Result<Tally, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the workspace root is not there")?;
    let home = root.join(".peers");
    if !args.no_install {
        install::install(&root.join("peers"), &home, args.broker)?;
    }
    let others = if args.broker == Kind::Braidmq { broker::OTHERS } else { &[] };
    let binary = match &args.binary {
        Some(binary) => root.join(binary),
        None => build(&["braidmq"], false)?.join("braidmq"),
    };
    let mut brokers = Vec::new();
    for variant in [&broker::STANDARD].into_iter().chain(others) {
        brokers.push(Broker::start(args.broker, variant, &binary, &home)?);
    }
    let places = Places { root, home: &home, binary: &binary };
    let mut tally = Tally::default();
    for (suites, at_once) in [(BESIDE, 2), (ALONE, 1)] {
        let (suites, others): (Vec<_>, Vec<_>) =
            suites.iter().partition(|suite| suite.brokers.contains(&args.broker));
        for suite in others {
            println!("# {}: not for {}", suite.script, args.broker.name());
        }
        if !run_all(&suites, at_once, &places, &args.only, &mut brokers, &mut tally) {
            return Ok(tally);
        }
    }
    if args.broker == Kind::Braidmq {
        http_load::run(&binary, &home, &args.only, &mut tally);
    }
    if tally.is_empty() {
        return Err(format!("no case has {:?} in its name", args.only));
    }
    for broker in brokers {
        broker.stop(&mut tally);
    }
    Ok(tally)
}

/// Runs suites, up to `at_once` of them at a time. False when a broker has ended.
fn run_all(
    suites: &[&Suite],
    at_once: usize,
    places: &Places<'_>,
    only: &str,
    brokers: &mut [Broker],
    tally: &mut Tally,
) -> bool {
    let environment: Vec<_> = brokers.iter().flat_map(Broker::environment).collect();
    let row = Mutex::new(Row { rest: suites.iter(), brokers, tally, is_broken: false });
    // A thread that panics ends the scope with a panic.
    let row_of = || row.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || row_of().next();
    let run = || {
        while let Some(suite) = next() {
            let tally = suite.run(places, &environment, only);
            row_of().add(tally);
        }
    };
    thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(run))));
    !row_of().is_broken
}

/// Suites that run on the same brokers.
struct Row<'a> {
    rest: slice::Iter<'a, &'a Suite>,
    brokers: &'a mut [Broker],
    tally: &'a mut Tally,
    /// A broker has ended.
    is_broken: bool,
}

impl<'a> Row<'a> {
    fn next(&mut self) -> Option<&'a Suite> {
        if self.is_broken { None } else { self.rest.next().copied() }
    }

    /// Adds the counts of a suite, and looks at the brokers.
    fn add(&mut self, tally: Tally) {
        *self.tally += tally;
        if self.is_broken {
            return;
        }
        for broker in &mut *self.brokers {
            if let Some(end) = broker.ended() {
                self.tally.fail(&broker.case("stays-up"), &end);
                self.is_broken = true;
            }
        }
    }
}
