//! `bench streams`: what MQTT over QUIC costs the broker beside TCP and TLS, by number of streams, and idle.
//!
//! The load is `braid-bench`'s (it speaks QUIC); broker and load are processes of their own, and what the broker
//! uses is read here.

mod loader;
mod report;

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::brokers::{self, Broker};
use super::compare::raise_limits;
use super::idle::settled;
use super::machine::Machine;
use super::{StreamsArgs, Tuning, wants};
use loader::{Flowed, Loader, Reached};

/// How the bytes travel, and over how many streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Way {
    scheme: &'static str,
    /// Of each connection.
    streams: u16,
}

/// In the order of the table; the first is the reference of the ratios.
const WAYS: [Way; 5] = [
    Way { scheme: "mqtt", streams: 1 },
    Way { scheme: "mqtts", streams: 1 },
    Way { scheme: "quic", streams: 1 },
    Way { scheme: "quic", streams: 8 },
    Way { scheme: "quic", streams: 64 },
];

/// A load.
#[derive(Clone, Copy, Debug, Serialize)]
struct Case {
    name: &'static str,
    qos: u8,
    /// Messages per second over all pairs; `None` is saturated.
    rate: Option<u32>,
}

const CASES: [Case; 4] = [
    Case { name: "saturated-qos0", qos: 0, rate: None },
    Case { name: "saturated-qos1", qos: 1, rate: None },
    Case { name: "paced-qos0", qos: 0, rate: Some(8_000) },
    Case { name: "paced-qos1", qos: 1, rate: Some(4_000) },
];

#[derive(Serialize)]
struct FlowRow {
    case: Case,
    way: Way,
    rounds: Vec<Flowed>,
}

#[derive(Serialize)]
struct IdleRow {
    scheme: &'static str,
    connections: u32,
    /// Growth of the broker's resident set, bytes per connection.
    rss_per_connection: f64,
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    seconds: f64,
    flows: Vec<FlowRow>,
    idle: Vec<IdleRow>,
}

/// Measures and prints.
///
/// # Errors
/// A broker or load that cannot be started, or that fails.
pub(super) fn run(args: &StreamsArgs) -> Result<ExitCode, String> {
    raise_limits(args.idle_connections)?;
    let loader = args.load.clone().map_or_else(Loader::build, |program| Ok(Loader { program }))?;
    let house = House::build(&args.broker)?;
    let mut report =
        Report { machine: Machine::here(), seconds: args.seconds, flows: Vec::new(), idle: Vec::new() };
    for case in CASES.into_iter().filter(|case| args.cases.is_empty() || wants(&args.cases, case.name)) {
        let mut rows = WAYS.map(|way| FlowRow { case, way, rounds: Vec::new() });
        for _ in 0..args.rounds {
            for row in &mut rows {
                let flow = house.flow(&loader, row.way, case, args.seconds);
                row.rounds.push(flow.map_err(|reason| format!("{} {:?}: {reason}", case.name, row.way))?);
            }
        }
        print!("{}", report::flows(&rows));
        report.flows.extend(rows);
    }
    if args.cases.is_empty() || wants(&args.cases, "idle") {
        for scheme in ["mqtt", "quic"] {
            report.idle.push(house.idle(&loader, scheme, args.idle_connections)?);
        }
        print!("{}", report::idle(&report.idle));
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n";
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The broker under test and where it listens.
struct House {
    broker: Broker,
    tls: u16,
    quic: u16,
}

impl House {
    fn build(name: &str) -> Result<Self, String> {
        let (tls, quic) = (free_tcp_port()?, free_udp_port()?);
        let listeners = ["--tls".to_owned(), local(tls), "--quic".to_owned(), local(quic)];
        let tuning = Tuning { braidmq_arg: listeners.into(), ..Tuning::default() };
        let broker = brokers::select(&[name.to_owned()], &tuning)?.pop();
        let broker = broker.filter(Broker::is_braidmq).ok_or("only braidmq speaks MQTT over QUIC here")?;
        Ok(Self { broker, tls, quic })
    }

    fn flow(&self, loader: &Loader, way: Way, case: Case, seconds: f64) -> Result<Flowed, String> {
        let running = self.broker.start()?;
        let reached = self.reached(way.scheme, running.address.port(), &running.data_dir());
        loader.pairs(&reached, way.streams, case.qos, case.rate, seconds, running.pid())
    }

    fn idle(&self, loader: &Loader, scheme: &'static str, connections: u32) -> Result<IdleRow, String> {
        let running = self.broker.start()?;
        let reached = self.reached(scheme, running.address.port(), &running.data_dir());
        let before = settled(running.pid())?;
        let open = loader.idle(&reached, connections)?;
        let after = settled(running.pid())?;
        open.close()?;
        let grown = after.rss.saturating_sub(before.rss) as f64;
        Ok(IdleRow { scheme, connections, rss_per_connection: grown / f64::from(connections) })
    }

    fn reached(&self, scheme: &'static str, tcp: u16, data_dir: &Path) -> Reached {
        let port = match scheme {
            "mqtts" => self.tls,
            "quic" => self.quic,
            _ => tcp,
        };
        Reached { scheme, port, ca: data_dir.join("cert.pem") }
    }
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn free_tcp_port() -> Result<u16, String> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    bound.map(|address| address.port()).map_err(|error| format!("no free TCP port: {error}"))
}

fn free_udp_port() -> Result<u16, String> {
    let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    bound.map(|address| address.port()).map_err(|error| format!("no free UDP port: {error}"))
}
