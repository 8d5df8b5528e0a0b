//! `braidmq bench request`: requests like those of a web client, over our own transports.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use braid_bench::exchange::{ALPN, Dialer, RequestLoad, Reuse, TimerService, run as measure};
use braid_bench::summary::RunSummary;
use braid_measure::Quantiles;
use braid_transport::quic::{Congestion, QuicOptions};
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions, Target, TcpOptions};
use clap::{ArgAction, ValueEnum};

use super::failure::Failure;
use super::options::{OptionsError, duration};
use super::output::JsonFile;
use super::reply::{STREAMS, Transport};
use crate::client::{parse_congestion, stopped};
use crate::progress::ProgressLine;
use crate::store::thousands;

const EXAMPLES: &str = "\
Examples:
  braidmq bench request -h 192.0.2.1 -p 8080 -c 10 -n 1000
  braidmq bench request -h 192.0.2.1 -p 8080 -c 1 --per-connection 1 --duration 30s --tcp-cc cubic
  braidmq bench request -h 192.0.2.1 -p 8080 --transport quic --streams 10 --size 1000 --duration 30s --json run.json

Exit codes:
  0  there were responses
  1  there was none
  2  wrong options, or a file that cannot be read or written";

/// Request objects from `braidmq bench reply`, and measure the latency.
///
/// A request is sent as soon as a response leaves room for it (closed loop), or at a given rate (--rate). Latency
/// counts from the due time of a request to the last byte of its response; for the first on a connection it includes
/// connecting.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The server's name or address.
    #[arg(short = 'h', long, value_name = "HOST", default_value = "localhost")]
    host: String,
    /// The server's port.
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Transport protocol.
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Connections at a time.
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Requests under way at a time on each connection: on QUIC each on a stream of its own, otherwise in order
    /// (pipelining, as in HTTP/1.1).
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS)))]
    streams: u32,
    /// Bytes of the object to ask for; several, separated by commas, are asked for in turn.
    #[arg(long, value_name = "BYTES", default_value = "80000", value_delimiter = ',')]
    size: Vec<u64>,
    /// Requests per connection: keep for all of them, 1 for a new connection each.
    #[arg(long, value_name = "1|keep", value_enum, default_value_t = PerConnection::Keep)]
    per_connection: PerConnection,
    /// Requests over all connections. 1000 by default, or as many as --duration allows.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Duration of the run, such as 30s; requests without a response are unfinished then.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Requests per second over all connections, whether the server keeps up or not (open loop).
    #[arg(long, value_name = "RATE")]
    rate: Option<f64>,
    /// Time limit of a response, and of a connection.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    timeout: Duration,
    /// Congestion control of TCP, by the system's name: cubic, bbr, reno. Requests are small: the server's choice
    /// matters more.
    #[arg(long, value_name = "NAME")]
    tcp_cc: Option<String>,
    /// Congestion control of QUIC: bbr3, cubic or newreno. bbr3 by default.
    #[arg(long, value_name = "NAME", value_parser = parse_congestion)]
    quic_cc: Option<Congestion>,
    /// QUIC connections after the first send at once, with the keys of a ticket (0-RTT).
    #[arg(long)]
    zero_rtt: bool,
    /// A PEM file with the CAs to trust. Without it the server's certificate is not checked.
    #[arg(long, visible_alias = "cafile", value_name = "FILE")]
    cacertfile: Option<PathBuf>,
    /// Do not check the server's certificate, which is the default here.
    #[arg(long, conflicts_with = "cacertfile")]
    insecure: bool,
    /// Write the results to this file at the end.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print this help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Requests per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PerConnection {
    #[value(name = "1")]
    One,
    Keep,
}

/// Runs `braidmq bench request`.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (load, dialer) = (args.load()?, args.dialer()?);
    let json = args.json.clone().map(JsonFile::prepare).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let timers = TimerService::exact()?;
    let progress = ProgressLine::new(false);
    let report = |responses| progress.show(|| format!("{} responses", thousands(responses)));
    let summary = runtime.block_on(measure(&load, dialer, &timers, stopped(), report))?;
    progress.finish();
    runtime.shutdown_background();
    tell(args.transport, &summary);
    if let Some(json) = json {
        json.write(&summary)?;
    }
    let has_response = summary.topics.iter().any(|topic| topic.acked > 0);
    match summary.events.into_iter().next() {
        _ if has_response => Ok(()),
        Some(event) => Err(Failure::NoResponse(event.what)),
        None => Err(Failure::NoResponse("the time was over before the first came".to_owned())),
    }
}

impl Args {
    fn load(&self) -> Result<RequestLoad, Failure> {
        let default = if self.duration.is_none() { Some(1000) } else { None };
        let load = RequestLoad {
            connections: self.connections as usize,
            streams: self.streams as usize,
            reuse: match self.per_connection {
                PerConnection::One => Reuse::OneRequest,
                PerConnection::Keep => Reuse::Kept,
            },
            sizes: self.size.clone(),
            requests: self.requests.or(default),
            duration: self.duration,
            rate: self.rate,
            patience: self.timeout,
            zero_rtt: self.zero_rtt,
        };
        load.check()?;
        Ok(load)
    }

    fn dialer(&self) -> Result<Dialer, Failure> {
        match self.transport {
            Transport::Quic if self.tcp_cc.is_some() => {
                return Err(
                    OptionsError::new("--tcp-cc is for TCP: use --quic-cc, or another --transport").into()
                );
            }
            Transport::Tcp | Transport::Tls if self.quic_cc.is_some() => {
                return Err(
                    OptionsError::new("--quic-cc is for QUIC: use --tcp-cc, or --transport quic").into()
                );
            }
            Transport::Tcp | Transport::Tls if self.zero_rtt => {
                return Err(OptionsError::new(
                    "--zero-rtt needs QUIC: add --transport quic, or leave it out",
                )
                .into());
            }
            Transport::Tcp if self.cacertfile.is_some() => {
                return Err(OptionsError::new("--cacertfile is for TLS: add --transport tls or quic").into());
            }
            _ => {}
        }
        let (transport, alpn) = match self.transport {
            Transport::Tcp => (braid_transport::Transport::Tcp, None),
            Transport::Tls => (braid_transport::Transport::Tls, None),
            Transport::Quic => (braid_transport::Transport::Quic, Some(ALPN.to_owned())),
        };
        let tls = ClientTls::new(ClientTlsOptions {
            ca_files: self.cacertfile.iter().cloned().collect(),
            insecure: self.cacertfile.is_none(),
            alpn: alpn.into_iter().collect(),
            ..ClientTlsOptions::default()
        });
        let tcp = TcpOptions { congestion: self.tcp_cc.as_deref().map(Box::from) };
        let quic = QuicOptions { congestion: self.quic_cc.unwrap_or_default(), ..QuicOptions::client() };
        let target = Target { transport, host: self.host.clone(), port: self.port, path: String::new() };
        let options = ConnectOptions { quic, tcp, ..ConnectOptions::default() };
        Ok(Dialer::new(vec![target], tls, options, Vec::new())?)
    }
}

fn tell(transport: Transport, summary: &RunSummary) {
    let mut text = Vec::new();
    // A Vec takes everything.
    let _ = describe(&mut text, transport, summary);
    // Standard output may be closed.
    let _ = io::stdout().lock().write_all(&text);
    for event in &summary.events {
        eprintln!("at {:.1} s: {}", event.at, event.what);
    }
}

fn describe(out: &mut impl Write, transport: Transport, summary: &RunSummary) -> io::Result<()> {
    let count = |name| summary.counters.get(name).copied().unwrap_or_default();
    let name = transport.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let (responses, seconds) = (count("responses"), summary.seconds);
    let rate = if seconds > 0.0 { responses as f64 / seconds } else { 0.0 };
    writeln!(out, "{name}: {responses} responses in {seconds:.2} s, {rate:.2}/s")?;
    writeln!(
        out,
        "  {} connections, {} requests failed, {} unfinished",
        count("connections"),
        count("failed"),
        count("unfinished")
    )?;
    if let Some(connect) = &summary.connections.connect_us {
        writeln!(out, "  {:>14}  {}", "connect", quantiles(connect))?;
    }
    for object in &summary.topics {
        if let Some(latency) = &object.latency_us {
            writeln!(out, "  {:>12} B  {}", object.topic, quantiles(latency))?;
        }
    }
    Ok(())
}

fn quantiles(of: &Quantiles) -> String {
    let [mean, p50, p90, p99, max] = [of.mean, of.p50, of.p90, of.p99, of.max].map(|micros| micros / 1000.0);
    format!("mean {mean:.2} ms, p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, max {max:.2}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(disable_help_flag = true)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Result<Args, String> {
        let words = ["request"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
    }

    /// Error for a wrong line.
    fn error(line: &str) -> String {
        let load =
            |args: Args| args.load().and_then(|_| args.dialer()).map_err(|failure| failure.to_string());
        args(line).and_then(load).map(|_| ()).unwrap_err()
    }

    #[test]
    fn options_make_a_load() {
        let load = args("-p 1").unwrap().load().unwrap();
        assert_eq!(load, RequestLoad { requests: Some(1000), ..RequestLoad::default() });
        let line = "-p 1 -c 10 --per-connection 1 --duration 30s --size 0,612 --rate 99.5 --timeout 500ms --zero-rtt";
        let expected = RequestLoad {
            connections: 10,
            reuse: Reuse::OneRequest,
            sizes: vec![0, 612],
            duration: Some(Duration::from_secs(30)),
            rate: Some(99.5),
            patience: Duration::from_millis(500),
            zero_rtt: true,
            ..RequestLoad::default()
        };
        assert_eq!(args(line).unwrap().load().unwrap(), expected);
    }

    #[test]
    fn wrong_options_say_what_to_change() {
        assert!(error("").contains("--port"));
        assert!(error("-p 1 --size big").contains("--size"));
        assert!(error("-p 1 --per-connection 2").contains("1, keep"));
        assert!(error("-p 1 --streams 1001").contains("1..=1000"));
        assert!(error("-p 1 --duration 0s").contains("above 0"));
        assert!(error("-p 1 --rate 0").contains("above 0"));
        assert!(error("-p 1 --per-connection 1 --streams 2").contains("leave the streams at 1"));
        assert!(error("-p 1 --size 9999999999").contains("1073741824"));
        assert!(error("-p 1 --quic-cc cubic").contains("--transport quic"));
        assert!(error("-p 1 --zero-rtt").contains("--transport quic"));
        assert!(error("-p 1 --transport quic --tcp-cc bbr").contains("--quic-cc"));
        assert!(error("-p 1 --cacertfile a.pem").contains("--transport tls or quic"));
        assert!(error("-p 1 --transport tls --cacertfile /nowhere.pem").contains("/nowhere.pem"));
        assert!(error("-p 1 --tcp-cc warp").contains("\"warp\""));
    }
}
