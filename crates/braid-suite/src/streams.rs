//! `bench streams`: cost of MQTT over QUIC for the broker beside TCP and TLS, by number of streams, and of idle
//! connections.
//!
//! The load is that of `braid-bench`, in this process; the broker is a process of its own.

use std::future::poll_fn;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::ExitCode;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_bench::pairs::{Drive, Measured, Pair, PairLoad, Window};
use braid_bench::{Connection, Dialer};
use braid_measure::process::CpuReading;
use braid_measure::{Alignment, Machine, Percentiles, Spread, Table};
use braid_proto::packet::{Connect, ProtocolVersion, QoS};
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions, Target, Transport};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, unconstrained};
use tokio::time::sleep_until;

use super::brokers::{self, Broker, Running};
use super::idle::settled;
use super::system::{of_broker, raise_open_files, write_json};
use super::{StreamsArgs, Tuning, wants};

/// Publishers and subscribers in pairs.
const PAIRS: u32 = 10;
/// Payload, bytes.
const SIZE: usize = 64;
/// Unacknowledged messages of a pair, when saturated.
const WINDOW: u32 = 200;
/// Time of load before the measured period.
const WARM_UP: Duration = Duration::from_secs(1);

/// Transport and number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct StreamSetup {
    scheme: &'static str,
    /// Number of streams of each connection.
    streams: u16,
}

/// In the order of the table; the first is the reference of the ratios.
const STREAM_SETUPS: [StreamSetup; 5] = [
    StreamSetup { scheme: "mqtt", streams: 1 },
    StreamSetup { scheme: "mqtts", streams: 1 },
    StreamSetup { scheme: "quic", streams: 1 },
    StreamSetup { scheme: "quic", streams: 8 },
    StreamSetup { scheme: "quic", streams: 64 },
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

/// Names of all cases.
pub(crate) const NAMES: [&str; 5] = ["saturated-qos0", "saturated-qos1", "paced-qos0", "paced-qos1", IDLE];

/// Name of the case without messages.
const IDLE: &str = "idle";

/// Parses the length of the measured period.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "say 0.1 to 3600".to_owned())
}

#[derive(Serialize)]
struct FlowRow {
    case: Case,
    way: StreamSetup,
    rounds: Vec<FlowRound>,
}

/// Measurements of one run.
#[derive(Clone, Debug, Serialize)]
struct FlowRound {
    delivered: u64,
    /// Messages of the measured period that never arrived.
    missing: u64,
    latency_ms: Percentiles,
    /// Delay of the generator itself; empty when it is not paced.
    lateness_ms: Percentiles,
    /// Processor time of the broker per delivery, nanoseconds.
    broker_ns_per_message: f64,
    seconds: f64,
    /// Cores that the load used.
    load_cores: f64,
    /// Cores that other programs used.
    other_cores: f64,
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
/// The broker does not start, or the load fails.
pub(crate) fn run(args: &StreamsArgs) -> Result<ExitCode, String> {
    raise_open_files(args.idle_connections)?;
    let testbed = Testbed::build(&args.broker)?;
    let mut report =
        Report { machine: Machine::here(), seconds: args.seconds, flows: Vec::new(), idle: Vec::new() };
    for case in CASES.into_iter().filter(|case| wants(&args.cases, case.name)) {
        let mut rows = STREAM_SETUPS.map(|way| FlowRow { case, way, rounds: Vec::new() });
        for _ in 0..args.rounds {
            for row in &mut rows {
                let round = testbed.flow(row.way, case, args.seconds);
                row.rounds.push(round.map_err(|reason| format!("{} {:?}: {reason}", case.name, row.way))?);
            }
        }
        print!("{}", flow_table(&rows));
        report.flows.extend(rows);
    }
    if wants(&args.cases, IDLE) {
        for scheme in ["mqtt", "quic"] {
            report.idle.push(testbed.idle(scheme, args.idle_connections)?);
        }
        print!("{}", idle_table(&report.idle));
    }
    write_json(&report, args.json.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// The broker under test and its ports.
struct Testbed {
    runtime: Runtime,
    broker: Broker,
    tls: u16,
    quic: u16,
}

impl Testbed {
    fn build(name: &str) -> Result<Self, String> {
        let local = (Ipv4Addr::LOCALHOST, 0);
        let failed = |error: std::io::Error| format!("no free port: {error}");
        let tls = TcpListener::bind(local).and_then(|socket| socket.local_addr()).map_err(failed)?.port();
        let quic = UdpSocket::bind(local).and_then(|socket| socket.local_addr()).map_err(failed)?.port();
        let listeners = [
            "--tls".to_owned(),
            format!("127.0.0.1:{tls}"),
            "--quic".to_owned(),
            format!("127.0.0.1:{quic}"),
        ];
        let tuning = Tuning { braidmq_arg: listeners.into(), ..Tuning::default() };
        let broker = brokers::select(&[name.to_owned()], &tuning)?.pop();
        let broker = broker.filter(Broker::is_braidmq).ok_or("only braidmq speaks MQTT over QUIC here")?;
        let runtime = Runtime::new().map_err(|error| format!("no runtime: {error}"))?;
        Ok(Self { runtime, broker, tls, quic })
    }

    fn flow(&self, way: StreamSetup, case: Case, seconds: f64) -> Result<FlowRound, String> {
        let running = self.broker.start()?;
        let dialer = self.dialer(way.scheme, &running)?;
        let drive = case
            .rate
            .map_or(Drive::Saturated(WINDOW), |rate| Drive::Paced(f64::from(rate) / f64::from(PAIRS)));
        let qos = if case.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let load = PairLoad { streams: way.streams, qos, size: SIZE, drive };
        self.runtime.block_on(flow(&dialer, load, seconds, running.pid()))
    }

    fn idle(&self, scheme: &'static str, connections: u32) -> Result<IdleRow, String> {
        let running = self.broker.start()?;
        let dialer = self.dialer(scheme, &running)?;
        let before = settled(running.pid())?;
        let mut open = self.runtime.block_on(async {
            let mut open = Vec::new();
            for number in 0..connections {
                open.push(connected(&dialer, &format!("bench-idle-{number}")).await?);
            }
            Ok::<_, String>(open)
        })?;
        let after = settled(running.pid())?;
        // The budget of a task would end after some connections, and the others would look open.
        self.runtime.block_on(unconstrained(poll_fn(|cx| {
            Poll::Ready(open.iter_mut().try_for_each(|connection| still_open(connection, cx)))
        })))?;
        let grown = after.rss.saturating_sub(before.rss) as f64;
        Ok(IdleRow { scheme, connections, rss_per_connection: grown / f64::from(connections) })
    }

    fn dialer(&self, scheme: &str, running: &Running) -> Result<Dialer, String> {
        let port = match scheme {
            "mqtts" => self.tls,
            "quic" => self.quic,
            _ => running.address.port(),
        };
        let transport = Transport::from_scheme(scheme).ok_or("no such scheme")?;
        let target = Target { transport, host: "localhost".to_owned(), port, path: String::new() };
        let ca_files = vec![running.data_dir().join("cert.pem")];
        let tls = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
        let dialer = Dialer::new(vec![target], tls, ConnectOptions::default(), Vec::new());
        dialer.map_err(|error| error.to_string())
    }
}

/// Runs all pairs and reads processor times at both ends of the measured period.
async fn flow(dialer: &Dialer, load: PairLoad, seconds: f64, pid: u32) -> Result<FlowRound, String> {
    let mut ready = Vec::new();
    for number in 0..PAIRS {
        let publisher = connected(dialer, &format!("bench-publisher-{number}")).await?;
        let subscriber = connected(dialer, &format!("bench-subscriber-{number}")).await?;
        let pair = Pair::set_up(publisher, subscriber, number, load).await;
        ready.push(pair.map_err(|error| error.to_string())?);
    }
    let window = Window::from_now(WARM_UP, Duration::from_secs_f64(seconds));
    let mut running = JoinSet::new();
    ready.into_iter().for_each(|pair| drop(running.spawn(pair.run(window))));
    sleep_until(window.from).await;
    let before = of_broker(CpuReading::of(pid))?;
    sleep_until(window.to).await;
    let after = of_broker(CpuReading::of(pid))?;
    let mut all = Measured::default();
    while let Some(measured) = running.join_next().await {
        let measured = measured.map_err(|error| error.to_string())?;
        all.add(&measured.map_err(|error| error.to_string())?);
    }
    let (shares, delivered) = (after.since(&before), all.delivered);
    Ok(FlowRound {
        delivered,
        missing: all.latencies.due() - all.latencies.arrived(),
        latency_ms: all.latencies.percentiles(),
        lateness_ms: all.lateness.percentiles(),
        broker_ns_per_message: shares.broker_nanoseconds() / delivered.max(1) as f64,
        seconds: shares.seconds,
        load_cores: shares.generator,
        other_cores: shares.others,
    })
}

/// Checks that an idle connection is open: a broker that closes them must not look small.
fn still_open(connection: &mut Connection, cx: &mut Context<'_>) -> Result<(), String> {
    match connection.poll_next(cx) {
        Poll::Pending => Ok(()),
        Poll::Ready(Ok(_)) => Err("the broker sent a packet to an idle connection".to_owned()),
        Poll::Ready(Err(reason)) => Err(format!("an idle connection has ended: {reason}")),
    }
}

async fn connected(dialer: &Dialer, client_id: &str) -> Result<Connection, String> {
    let (link, _) = dialer.dial(1).await.map_err(|error| error.to_string())?;
    let mut connect = Connect::new(ProtocolVersion::V5, client_id);
    connect.keep_alive = u16::MAX; // No PINGREQ within a run.
    Connection::establish(link, connect).await.map_err(|error| error.to_string())
}

/// Title, digits behind the point, whether the ratio to the first row is a column too, and the quantity.
type Column = (&'static str, usize, bool, fn(&FlowRound) -> f64);

/// Medians of one case, and ratios to the first row.
fn flow_table(rows: &[FlowRow]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let columns: [Column; 7] = [
        ("CPU ns/msg", 0, true, |round| round.broker_ns_per_message),
        ("msg/s", 0, false, |round| round.delivered as f64 / round.seconds),
        ("p50 us", 0, true, |round| round.latency_ms.p50.unwrap_or(f64::NAN) * 1000.0),
        ("p99 us", 0, true, |round| round.latency_ms.p99.unwrap_or(f64::NAN) * 1000.0),
        ("missing", 0, false, |round| round.missing as f64),
        ("load", 2, false, |round| round.load_cores),
        ("others", 2, false, |round| round.other_cores),
    ];
    let median = |row: &FlowRow, of: fn(&FlowRound) -> f64| {
        Spread::of(row.rounds.iter().map(of)).map_or(f64::NAN, |spread| spread.median)
    };
    let titles = columns.iter().flat_map(|column| [Some(column.0), column.2.then_some("ratio")]).flatten();
    let mut table = Table::new(Alignment::Right, [""].into_iter().chain(titles));
    for row in rows {
        let name = match (row.way.scheme, row.way.streams) {
            ("quic", 1) => "quic, 1 stream".to_owned(),
            ("quic", streams) => format!("quic, {streams} streams"),
            (scheme, _) => scheme.to_owned(),
        };
        let cells = columns.iter().flat_map(|&(_, digits, has_ratio, of)| {
            let value = median(row, of);
            let ratio = has_ratio.then(|| format!("{:.2}", value / median(first, of)));
            [Some(format!("{value:.digits$}")), ratio]
        });
        table.row([name].into_iter().chain(cells.flatten()));
    }
    let Case { name, qos, rate } = first.case;
    let rate = rate.map_or_else(String::new, |rate| format!(", {rate} messages/s"));
    format!("\n{name}: {PAIRS} pairs, QoS {qos}, {SIZE} B{rate}\n{table}")
}

/// Memory of idle connections.
fn idle_table(rows: &[IdleRow]) -> String {
    let mut table =
        Table::new(Alignment::Right, ["", "bytes of the broker per idle connection", "connections"]);
    for row in rows {
        table.row([
            row.scheme.to_owned(),
            format!("{:.0}", row.rss_per_connection),
            row.connections.to_string(),
        ]);
    }
    format!("\n{table}")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::mpsc;
    use std::thread;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: StreamsArgs,
    }

    fn parse(arguments: &[&str]) -> Result<StreamsArgs, clap::Error> {
        Cli::try_parse_from([""].iter().chain(arguments)).map(|cli| cli.args)
    }

    #[test]
    fn an_idle_connection_that_has_ended_is_found() {
        let runtime = Runtime::new().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (end, ended) = mpsc::channel();
        let broker = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            assert!(socket.read(&mut [0; 1000]).unwrap() > 0);
            socket.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
            ended.recv().unwrap();
        });
        let transport = Transport::from_scheme("mqtt").unwrap();
        let target = Target { transport, host: "127.0.0.1".to_owned(), port, path: String::new() };
        let tls = ClientTls::new(ClientTlsOptions::default());
        let dialer = Dialer::new(vec![target], tls, ConnectOptions::default(), Vec::new()).unwrap();
        let reason = runtime.block_on(async {
            let mut connection = connected(&dialer, "idle").await.unwrap();
            assert_eq!(poll_fn(|cx| Poll::Ready(still_open(&mut connection, cx))).await, Ok(()));
            end.send(()).unwrap();
            poll_fn(|cx| still_open(&mut connection, cx).map_or_else(Poll::Ready, |()| Poll::Pending)).await
        });
        broker.join().unwrap();
        assert!(reason.contains("an idle connection has ended"), "{reason}");
    }

    #[test]
    fn a_run_that_would_measure_nothing_is_refused() {
        let names = CASES.iter().map(|case| case.name).chain([IDLE]);
        assert!(names.eq(NAMES));
        assert_eq!(parse(&["--cases", "idle,paced-qos0"]).unwrap().cases, ["idle", "paced-qos0"]);
        assert_eq!(parse(&["--seconds=0.5"]).unwrap().seconds, 0.5);
        for wrong in [
            "--cases=x",
            "--cases=idle,x",
            "--seconds=-1",
            "--seconds=0",
            "--seconds=NaN",
            "--seconds=1e300",
            "--idle-connections=0",
        ] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }
}
