//! `braidmq cluster balance`: balancer in front of the nodes of a cluster.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use braid_balancer::{Balancer, BalancerOptions, QuicBackend, QuicFront, TcpFront};
use braid_transport::quic::{QuicLbError, ServerId};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{QuicLbConfig, nonce_bytes};
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
    /// Listen for QUIC here: with the server IDs of `quic.lb.server_id` a client that changes its address stays at its
    /// node, without them its connection ends
    #[arg(long, value_name = "LISTEN=NODE[/SERVER_ID],...")]
    quic: Option<QuicFrontArg>,
    /// First line: the key of `quic.lb.key_file` of the nodes
    #[arg(long, value_name = "FILE", requires = "quic")]
    quic_lb_key: Option<PathBuf>,
    /// `quic.lb.config_id` of the nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "quic")]
    quic_lb_config: u8,
    /// `quic.lb.nonce_bytes` of the nodes
    #[arg(long, value_name = "BYTES", default_value_t = nonce_bytes(), requires = "quic")]
    quic_lb_nonce: usize,
}

const HELP: &str = "\
Examples:
  braidmq cluster balance --tcp 0.0.0.0:1883=10.0.0.1:1883,10.0.0.2:1883,10.0.0.3:1883
  braidmq cluster balance --tcp [::]:8883=10.0.0.1:8883,10.0.0.2:8883 \
    --quic [::]:14567=10.0.0.1:14567/0001,10.0.0.2:14567/0002 --quic-lb-key quic-lb.key

Exit codes:
  0  ended by SIGINT or SIGTERM
  2  the addresses or server IDs contradict each other, a port cannot be opened, or the key cannot be read";

/// Port of the balancer with the nodes behind it.
#[derive(Clone, Debug)]
struct Front<N = SocketAddr> {
    listen: SocketAddr,
    nodes: Vec<N>,
}

type QuicFrontArg = Front<QuicNode>;

/// Node behind the QUIC port, with its server ID if connection IDs have it.
#[derive(Clone, Debug)]
struct QuicNode {
    address: SocketAddr,
    server_id: Option<ServerId>,
}

impl<N> Front<N> {
    /// Reads a port and its nodes, each of them with `node`.
    fn read(text: &str, node: impl Fn(&str) -> Result<N, String>) -> Result<Self, String> {
        let (listen, nodes) = text.split_once('=').ok_or(
            "there is no `=`: write LISTEN=NODE,..., such as 0.0.0.0:1883=10.0.0.1:1883,10.0.0.2:1883",
        )?;
        Ok(Self { listen: address(listen)?, nodes: nodes.split(',').map(node).collect::<Result<_, _>>()? })
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let problem =
        |_| format!("{text:?} is no address: write an IP address and a port, such as 10.0.0.1:1883");
    text.parse().map_err(problem)
}

impl FromStr for Front {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text, address)
    }
}

impl FromStr for QuicFrontArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text, QuicNode::read)
    }
}

impl QuicNode {
    fn read(text: &str) -> Result<Self, String> {
        let Some((of, server_id)) = text.split_once('/') else {
            return Ok(Self { address: address(text)?, server_id: None });
        };
        let server_id = server_id.parse().map_err(|error: QuicLbError| format!("{server_id:?}: {error}"))?;
        Ok(Self { address: address(of)?, server_id: Some(server_id) })
    }
}

impl BalanceArgs {
    fn options(&self) -> Result<BalancerOptions, String> {
        let tcp = self.tcp.iter().cloned();
        let tcp = tcp.map(|Front { listen, nodes }| TcpFront { listen, backends: nodes }).collect();
        let quic = self.quic.as_ref().map(|front| self.quic_front(front)).transpose()?;
        Ok(BalancerOptions { tcp, quic, ..BalancerOptions::default() })
    }

    fn quic_front(&self, front: &QuicFrontArg) -> Result<QuicFront, String> {
        let named = front.nodes.iter().filter(|node| node.server_id.is_some()).count();
        if named > 0 && named < front.nodes.len() {
            return Err("--quic: give all nodes a server ID, or none".to_owned());
        }
        // Without them: IDs that no connection ID has.
        let numbered = (1_u64..).map(|number| ServerId::new(&number.to_be_bytes()));
        let backends: Result<Vec<_>, QuicLbError> = std::iter::zip(&front.nodes, numbered)
            .map(|(node, numbered)| {
                let server_id = node.server_id.map_or(numbered, Ok)?;
                Ok(QuicBackend { address: node.address, server_id })
            })
            .collect();
        let backends = backends.map_err(|error| error.to_string())?;
        let first = backends.first().ok_or("--quic: name the nodes")?;
        let lb = QuicLbConfig {
            server_id: first.server_id,
            config_id: self.quic_lb_config,
            nonce_bytes: self.quic_lb_nonce,
            key_file: self.quic_lb_key.clone(),
        };
        let formats = vec![lb.read().map_err(|error| error.to_string())?.format().clone()];
        Ok(QuicFront { listen: front.listen, formats, backends })
    }
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
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: BalanceArgs,
    }

    fn options(arguments: &str) -> Result<BalancerOptions, String> {
        let command = Command::try_parse_from([""].into_iter().chain(arguments.split_whitespace()));
        command.map_err(|error| error.to_string())?.args.options()
    }

    #[test]
    fn ports_and_nodes_are_read() {
        let tcp = "--tcp 127.0.0.1:1=10.0.0.1:2,[::1]:3 --tcp [::]:4=10.0.0.1:5";
        let options_of = |quic: &str| options(&format!("{tcp} --quic 127.0.0.1:6={quic}")).unwrap();
        let read = options_of("10.0.0.1:7,10.0.0.2:7");
        let tcp: Vec<_> = read.tcp.iter().map(|tcp| (tcp.listen.port(), tcp.backends.len())).collect();
        assert_eq!(tcp, [(1, 2), (4, 1)]);
        assert_eq!(read.tcp[0].backends[1], "[::1]:3".parse().unwrap());
        let quic = read.quic.unwrap();
        assert_eq!(quic.backends[1].address, "10.0.0.2:7".parse().unwrap());
        assert_ne!(quic.backends[0].server_id, quic.backends[1].server_id);
        let quic =
            options_of("10.0.0.1:7/00a1,10.0.0.2:7/00a2 --quic-lb-nonce 5 --quic-lb-config 3").quic.unwrap();
        let of_node =
            QuicLbConfig { server_id: "00a1".parse().unwrap(), config_id: 3, nonce_bytes: 5, key_file: None };
        assert_eq!(quic.formats, [of_node.read().unwrap().format().clone()]);
        assert_eq!(quic.backends[0].server_id, of_node.server_id);
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
            let error = options(&format!("--tcp {text}")).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
        for (arguments, problem) in [
            ("10.0.0.1:7/00,10.0.0.2:7", "give all nodes a server ID, or none"),
            ("10.0.0.1:7/x", "\"x\": "),
            ("10.0.0.1:7/00 --quic-lb-nonce 99", "nonce"),
            ("10.0.0.1:7/00 --quic-lb-key /none", "quic.lb.key_file: /none: "),
        ] {
            let error = options(&format!("--quic 127.0.0.1:6={arguments}")).unwrap_err();
            assert!(error.contains(problem), "{arguments}: {error}");
        }
    }
}
