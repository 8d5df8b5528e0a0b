//! The load of `cargo xtask bench streams`: this process puts load on a broker, the chore measures that broker.
//!
//! What it prints is for the chore: `begin` and `end` around the measured time, then one line of JSON; with `idle`,
//! `open` once all connections are there, which are kept until standard input ends.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use braid_bench::Connection;
use braid_bench::pairs::{Drive, Load, Measured, Pair, Window};
use braid_measure::Percentiles;
use braid_proto::packet::{Connect, ProtocolVersion, QoS};
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions, Target, Transport, connect};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Where the broker is.
#[derive(Args, Clone)]
struct BrokerArgs {
    /// `mqtt`, `mqtts` or `quic`.
    #[arg(long, global = true, default_value = "mqtt")]
    scheme: String,
    /// On 127.0.0.1.
    #[arg(long, global = true, default_value_t = 1883)]
    port: u16,
    /// The certificate to believe.
    #[arg(long, global = true)]
    ca: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Publishers and subscribers in pairs.
    Pairs(PairsArgs),
    /// Connections that do nothing after CONNECT.
    Idle {
        #[arg(long, default_value_t = 2000)]
        connections: u32,
    },
}

#[derive(Args)]
struct PairsArgs {
    #[arg(long, default_value_t = 10)]
    pairs: u32,
    #[arg(long, default_value_t = 1)]
    streams: u16,
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    qos: u8,
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Messages per second over all pairs; without it saturated.
    #[arg(long)]
    rate: Option<f64>,
    /// Messages of a pair on their way, when saturated.
    #[arg(long, default_value_t = 200)]
    window: u32,
    /// Seconds.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

#[derive(Serialize)]
struct Report {
    delivered: u64,
    latency_ms: Percentiles,
    lateness_ms: Percentiles,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let cli = Cli::parse();
    let dialer = Dialer::new(&cli.broker)?;
    match &cli.command {
        Command::Pairs(args) => pairs(&dialer, args).await,
        Command::Idle { connections } => idle(&dialer, *connections).await,
    }
}

async fn pairs(dialer: &Dialer, args: &PairsArgs) -> Outcome<()> {
    let drive = match args.rate {
        Some(rate) => Drive::Paced(rate / f64::from(args.pairs)),
        None => Drive::Saturated(args.window),
    };
    let qos = if args.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
    let load = Load { streams: args.streams, qos, size: args.size, drive };
    let mut ready = Vec::new();
    for number in 0..args.pairs {
        let publisher = dialer.connect(&format!("bench-publisher-{number}")).await?;
        let subscriber = dialer.connect(&format!("bench-subscriber-{number}")).await?;
        ready.push(Pair::set_up(publisher, subscriber, number, load).await?);
    }
    let window =
        Window::from_now(Duration::from_secs_f64(args.warm_up), Duration::from_secs_f64(args.seconds));
    let mut running = JoinSet::new();
    ready.into_iter().for_each(|pair| drop(running.spawn(pair.run(window))));
    sleep_until(window.from).await;
    println!("begin");
    sleep_until(window.to).await;
    println!("end");
    let mut all = Measured::default();
    while let Some(measured) = running.join_next().await {
        all.add(&measured??);
    }
    let (latency_ms, lateness_ms) = (all.latencies.percentiles(), all.lateness.percentiles());
    let report = Report { delivered: all.delivered, latency_ms, lateness_ms };
    println!("{}", serde_json::to_string(&report)?);
    // What is still on its way is nobody's concern.
    std::process::exit(0);
}

async fn idle(dialer: &Dialer, connections: u32) -> Outcome<()> {
    let mut open = Vec::new();
    for number in 0..connections {
        open.push(dialer.connect(&format!("bench-idle-{number}")).await?);
    }
    println!("open");
    let mut rest = Vec::new();
    tokio::io::stdin().read_to_end(&mut rest).await?;
    std::process::exit(0);
}

struct Dialer {
    target: Target,
    tls: ClientTls,
}

impl Dialer {
    fn new(broker: &BrokerArgs) -> Outcome<Self> {
        let transport = Transport::from_scheme(&broker.scheme).ok_or("no such scheme")?;
        let target =
            Target { transport, host: "localhost".to_owned(), port: broker.port, path: String::new() };
        let ca_files = broker.ca.iter().cloned().collect();
        let tls = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
        Ok(Self { target, tls })
    }

    async fn connect(&self, client_id: &str) -> Outcome<Connection> {
        let link = connect(&self.target, &self.tls, &ConnectOptions::default()).await?;
        let mut connect = Connect::new(ProtocolVersion::V5, client_id);
        connect.keep_alive = u16::MAX; // No PINGREQ within a run.
        Ok(Connection::establish(link, connect).await?)
    }
}
