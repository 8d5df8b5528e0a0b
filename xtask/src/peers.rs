//! Third-party clients against a real broker process or cluster: mosquitto-clients, paho-mqtt, MQTT.js, aioquic,
//! msquic, curl, a generated client of the API, the parser of Prometheus, Chromium; and our load generator beside
//! h2load, on nginx.
//!
//! The cases themselves are scripts in `peers/`. This module installs what they need, starts the broker with its
//! defaults and with other settings, runs one suite after the other with the ports in its environment, and sums up.

use std::path::{Path, PathBuf};
use std::time::Duration;

mod broker;
mod certificate;
mod cluster;
mod http_load;
mod install;
mod ports;
mod process;
mod suite;
mod tally;

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
    /// The braidmq binary; without it, the one that was built beside this program.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Run only cases whose name holds this text.
    #[arg(long, value_name = "SUBSTRING", default_value = "")]
    only: String,
    /// Install nothing; a missing client is still a failure.
    #[arg(long)]
    no_install: bool,
}

/// Every suite.
const SUITES: &[Suite] = &[
    Suite { script: "run_mosquitto_clients.py", limit: Duration::from_secs(600), brokers: ALL },
    Suite { script: "run_raw.py", limit: Duration::from_secs(600), brokers: ALL },
    Suite { script: "run_paho.py", limit: Duration::from_secs(1200), brokers: ALL },
    Suite { script: "run_mqttjs.mjs", limit: Duration::from_secs(600), brokers: ALL },
    Suite { script: "run_quic.py", limit: Duration::from_secs(300), brokers: WITH_QUIC },
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
        None => std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("braidmq"),
    };
    let mut brokers = Vec::new();
    for variant in [&broker::STANDARD].into_iter().chain(others) {
        brokers.push(Broker::start(args.broker, variant, &binary, &home)?);
    }
    let mut tally = Tally::default();
    for suite in SUITES {
        if !suite.brokers.contains(&args.broker) {
            println!("# {}: not for {}", suite.script, args.broker.name());
            continue;
        }
        suite.run(&Places { root, home: &home, binary: &binary }, &brokers, &args.only, &mut tally);
        for broker in &mut brokers {
            if let Some(end) = broker.ended() {
                tally.fail(&broker.case("stays-up"), &end);
                return Ok(tally);
            }
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
