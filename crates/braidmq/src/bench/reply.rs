//! `braidmq bench reply`: answers the requests of `braidmq bench request`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use braid_bench::exchange::{ALPN, Responder, Service, TimerService};
use braid_bench::summary::RunSummary;
use braid_transport::quic::{Congestion, QuicOptions};
use braid_transport::{
    CertificateFiles, ClientAuth, ListenOptions, Listener, ListenerKind, ServerTls, TcpOptions, self_signed,
};
use clap::ValueEnum;
use tokio::time::sleep;

use super::failure::Failure;
use super::options::{OptionsError, duration, time};
use super::output::JsonFile;
use crate::client::{parse_congestion, stopped};

/// Streams that a QUIC client may have open; `bench request` takes no more.
pub(super) const STREAMS: u32 = 1000;

const EXAMPLES: &str = "\
Examples:
  braidmq bench reply --listen 0.0.0.0:8080
  braidmq bench reply --listen 0.0.0.0:8080 --transport quic --service 6.2ms --serial --json reply.json";

/// Answer requests with objects of the size they ask for, like a web server.
///
/// Prints \"listening on TRANSPORT ADDRESS\" when it is ready. Ends with SIGINT, SIGTERM or after --duration.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The address to listen on; port 0 is any free one.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Transport protocol.
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Service time of each request before its response, such as 6.2ms.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    service: Duration,
    /// Serve one request at a time, of all connections together, in the order in which they come.
    #[arg(long)]
    serial: bool,
    /// The server's certificate (PEM). By default a self-signed one that is forgotten at the end.
    #[arg(long, visible_alias = "certfile", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of the certificate (PEM, not encrypted).
    #[arg(long, visible_alias = "keyfile", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Congestion control of TCP, by the system's name: cubic, bbr, reno. Most bytes are responses, so that
    /// it matters here more than at the client.
    #[arg(long, value_name = "NAME")]
    tcp_cc: Option<String>,
    /// Congestion control of QUIC: bbr3, cubic or newreno. bbr3 by default.
    #[arg(long, value_name = "NAME", value_parser = parse_congestion)]
    quic_cc: Option<Congestion>,
    /// End after this time.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Write what was counted to this file at the end.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Transport of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Transport {
    Tcp,
    Tls,
    Quic,
}

/// Runs `braidmq bench reply`.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (kind, options) = (args.kind()?, args.listen_options());
    let json = args.json.clone().map(JsonFile::prepare).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let timers = TimerService::exact()?;
    let (summary, outcome) = runtime.block_on(async {
        let listener = Listener::bind(kind, args.listen, &options)?;
        let service = Service { time: args.service, serial: args.serial };
        let responder = Responder::new(service, timers);
        announce(&listener);
        let time = async {
            match args.duration {
                Some(duration) => sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            outcome = responder.serve(listener) => outcome.map(|never| match never {}).map_err(Failure::Listener),
            () = time => Ok(()),
            () = stopped() => Ok(()),
        };
        Ok::<_, Failure>((responder.summary(), outcome))
    })?;
    runtime.shutdown_background();
    tell(&summary);
    if let Some(json) = json {
        json.write(&summary)?;
    }
    outcome
}

impl Args {
    fn kind(&self) -> Result<ListenerKind, Failure> {
        let encrypted: fn(ServerTls) -> ListenerKind = match self.transport {
            Transport::Tcp if self.cert.is_some() => {
                return Err(OptionsError::new("--cert is for TLS: add --transport tls or quic").into());
            }
            Transport::Tcp => return Ok(ListenerKind::Tcp),
            Transport::Tls => ListenerKind::Tls,
            Transport::Quic => ListenerKind::Quic,
        };
        let tls = match self.cert.clone().zip(self.key.clone()) {
            Some((certificate, key)) => {
                ServerTls::load(CertificateFiles { certificate, key }, ClientAuth::None)?
            }
            None => {
                let directory = tempfile::tempdir()?;
                let names = ["localhost".to_owned(), self.listen.ip().to_string()];
                ServerTls::load(self_signed(directory.path(), &names)?, ClientAuth::None)?
            }
        };
        Ok(encrypted(tls))
    }

    fn listen_options(&self) -> ListenOptions {
        let congestion = self.quic_cc.unwrap_or_default();
        let quic = QuicOptions { alpn: ALPN, bidi_streams: STREAMS + 1, congestion, ..QuicOptions::server() };
        let tcp = TcpOptions { congestion: self.tcp_cc.as_deref().map(Box::from) };
        ListenOptions { quic, tcp, ..ListenOptions::default() }
    }
}

/// Prints that requests are answered from now on.
fn announce(listener: &Listener) {
    let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let mut out = io::stdout().lock();
    // Standard output may be closed.
    let _ = writeln!(out, "listening on {} {address}", listener.transport());
    let _ = out.flush();
}

fn tell(summary: &RunSummary) {
    let count = |name| summary.counters.get(name).copied().unwrap_or_default();
    let (responses, connections, failed) = (count("responses"), count("connections"), count("failed"));
    let _ = writeln!(io::stdout(), "{responses} responses over {connections} connections, {failed} failed");
    for event in &summary.events {
        let _ = writeln!(io::stderr(), "at {:.1} s: {}", event.at, event.what);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Result<Args, String> {
        let words = ["reply"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn wrong_options_say_what_to_change() {
        let error = |line: &str| args(line).err().unwrap();
        assert!(error("--listen localhost").contains("--listen"));
        assert!(error("--listen 127.0.0.1:0 --service fast").contains("such as 6.2ms"));
        assert!(error("--listen 127.0.0.1:0 --quic-cc bbr2").contains("use bbr3, cubic or newreno"));
        assert!(error("--listen 127.0.0.1:0 --cert a").contains("--key"));
        assert!(error("--listen 127.0.0.1:0 --transport http").contains("tcp, tls, quic"));
        let plain = args("--listen 127.0.0.1:0 --cert a --key b").unwrap().kind();
        assert_eq!(plain.unwrap_err().to_string(), "--cert is for TLS: add --transport tls or quic");
    }

    #[test]
    fn a_certificate_is_made_where_none_is_given() {
        for name in ["tls", "quic"] {
            let kind = args(&format!("--listen 127.0.0.1:0 --transport {name}")).unwrap().kind().unwrap();
            assert_eq!(kind.transport().to_string(), name);
        }
    }
}
