//! `braidmq cluster balance`: balancer in front of the nodes of a cluster.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::str::FromStr;

use braid_balancer::{Balancer, BalancerOptions, QuicBackend, QuicFront, TcpFront};
use braid_transport::quic::{QuicLbFormat, ServerId};
use tokio::signal::unix::{SignalKind, signal};

use crate::output;

/// Pass the connections of clients on to the nodes of a cluster
///
/// For trials and tests, where there is no balancer. Each TCP connection goes to the next node in turn; one that does
/// not accept is left out for a while. TLS and WebSocket are passed on as they are: all nodes need one certificate.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct BalanceArgs {
    /// Listen for TCP here, and pass connections on to these nodes; repeatable, for MQTT, TLS and WebSocket
    #[arg(long, value_name = "LISTEN=NODE,...", required_unless_present = "quic")]
    tcp: Vec<Front>,
    /// Listen for QUIC here: connections of one client address stay at one node, those of a client that changes its
    /// address end
    #[arg(long, value_name = "LISTEN=NODE,...")]
    quic: Option<Front>,
}

const HELP: &str = "\
Examples:
  braidmq cluster balance --tcp 0.0.0.0:1883=10.0.0.1:1883,10.0.0.2:1883,10.0.0.3:1883
  braidmq cluster balance --tcp [::]:8883=10.0.0.1:8883,10.0.0.2:8883 --quic [::]:14567=10.0.0.1:14567,10.0.0.2:14567

Exit codes:
  0  ended by SIGINT or SIGTERM
  2  the addresses contradict each other, or a port cannot be opened";

/// Port of the balancer with the nodes behind it.
#[derive(Clone, Debug)]
struct Front {
    listen: SocketAddr,
    nodes: Vec<SocketAddr>,
}

impl FromStr for Front {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (listen, nodes) = text.split_once('=').ok_or(
            "there is no `=`: write LISTEN=NODE,..., such as 0.0.0.0:1883=10.0.0.1:1883,10.0.0.2:1883",
        )?;
        let address = |text: &str| {
            let problem =
                |_| format!("{text:?} is no address: write an IP address and a port, such as 10.0.0.1:1883");
            text.parse::<SocketAddr>().map_err(problem)
        };
        Ok(Self { listen: address(listen)?, nodes: nodes.split(',').map(address).collect::<Result<_, _>>()? })
    }
}

impl BalanceArgs {
    fn options(&self) -> Result<BalancerOptions, String> {
        let tcp = self.tcp.iter().cloned();
        let tcp = tcp.map(|Front { listen, nodes }| TcpFront { listen, backends: nodes }).collect();
        let quic = self.quic.as_ref().map(quic_front).transpose()?;
        Ok(BalancerOptions { tcp, quic, ..BalancerOptions::default() })
    }
}

/// Nodes with server IDs that no connection ID has: so far nodes do not name themselves there.
fn quic_front(front: &Front) -> Result<QuicFront, String> {
    let ids = (1_u64..).map(|number| ServerId::new(&number.to_be_bytes()).map_err(|error| error.to_string()));
    let backends = front.nodes.iter().zip(ids);
    let backends = backends.map(|(address, id)| Ok(QuicBackend { address: *address, server_id: id? }));
    let format = QuicLbFormat::new(0, size_of::<u64>(), 4, None).map_err(|error| error.to_string())?;
    Ok(QuicFront {
        listen: front.listen,
        formats: vec![format],
        backends: backends.collect::<Result<_, String>>()?,
    })
}

/// Balances until a signal comes.
pub(super) fn run(args: &BalanceArgs) -> Result<ExitCode, String> {
    let options = args.options()?;
    // Fails only for a second call in the process.
    let _ = tracing_subscriber::fmt().with_writer(io::stderr).try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the system refuses an event queue: {error}"))?;
    runtime.block_on(balance(options))?;
    Ok(ExitCode::SUCCESS)
}

async fn balance(options: BalancerOptions) -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error| format!("the system refuses signal handlers: {error}"));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let balancer = Balancer::start(options).await.map_err(|error| error.to_string())?;
    let tcp = balancer.tcp_addresses().iter().map(|address| format!("TCP {address}"));
    let quic = balancer.quic_address().map(|address| format!("QUIC {address}"));
    let ports: Vec<_> = tcp.chain(quic).collect();
    // Without a reader of its output it balances as well.
    let _ = output::print(&format!("The balancer listens on {}.\n", ports.join(", ")));
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    balancer.stop().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(text: &str) -> Result<Front, String> {
        text.parse()
    }

    #[test]
    fn ports_and_nodes_are_read() {
        let args = BalanceArgs {
            tcp: vec![front("127.0.0.1:1=10.0.0.1:2,[::1]:3").unwrap(), front("[::]:4=10.0.0.1:5").unwrap()],
            quic: Some(front("127.0.0.1:6=10.0.0.1:7,10.0.0.2:7").unwrap()),
        };
        let options = args.options().unwrap();
        let tcp: Vec<_> = options.tcp.iter().map(|tcp| (tcp.listen.port(), tcp.backends.len())).collect();
        assert_eq!(tcp, [(1, 2), (4, 1)]);
        assert_eq!(options.tcp[0].backends[1], "[::1]:3".parse().unwrap());
        let quic = options.quic.unwrap();
        assert_eq!(quic.backends[1].address, "10.0.0.2:7".parse().unwrap());
        assert_ne!(quic.backends[0].server_id, quic.backends[1].server_id);
    }

    #[test]
    fn wrong_addresses_are_told() {
        for (text, problem) in [
            ("1883", "there is no `=`"),
            ("=10.0.0.1:1", "\"\" is no address"),
            ("127.0.0.1:1=", "\"\" is no address"),
            ("127.0.0.1:1=10.0.0.1:2,", "\"\" is no address"),
            ("127.0.0.1:1=node:2", "\"node:2\" is no address"),
            ("127.0.0.1=10.0.0.1:2", "\"127.0.0.1\" is no address"),
        ] {
            let error = front(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
