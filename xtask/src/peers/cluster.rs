//! Cluster under test: three servers of NATS, a node of braidmq at each, and a balancer in front.
//!
//! The balancer has the ports that the scripts know. Nodes and servers have the same port numbers at loopback addresses
//! of their own.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::certificate::certificate;
use super::ports::Ports;
use super::process::Process;
use super::tally::Tally;

/// Time limit until the servers have a leader, and until a node has joined.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Time limit of one answer of a server.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Addresses of the nodes, and of the servers.
const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 4)),
];

/// Processes of a cluster, in the order in which they are stopped.
pub(super) struct Cluster {
    balancer: Process,
    nodes: Vec<Process>,
    servers: Vec<Process>,
}

impl Cluster {
    /// Starts all processes, each with a directory of its own in `data_dir`, and returns when the nodes have joined.
    ///
    /// # Errors
    /// One line: a program is missing, a process ended, or is not ready in time.
    pub(super) fn start(ports: &Ports, data_dir: &Path, binary: &Path, home: &Path) -> Result<Self, String> {
        let mut servers = servers(ports, data_dir, home)?;
        for (server, address) in servers.iter_mut().zip(ADDRESSES) {
            let monitor = SocketAddr::new(address, ports.nats().monitor);
            server.wait_until("JetStream is not ready", START_LIMIT, || is_healthy(monitor))?;
        }
        certificate(data_dir, home)?;
        let mut nodes = Vec::new();
        for (name, address) in (1..).map(|number| format!("b{number}")).zip(ADDRESSES) {
            let directory = data_dir.join(&name);
            for file in ["cert.pem", "key.pem"] {
                share(&data_dir.join(file), &directory.join(file))?;
            }
            let log = data_dir.join(format!("{name}.log"));
            nodes.push(Process::start(node(binary, &name, address, ports, &directory), log)?);
        }
        for (node, address) in nodes.iter_mut().zip(ADDRESSES) {
            let has_port = |port| accepts(SocketAddr::new(address, port));
            node.wait_until("not all listeners", START_LIMIT, || {
                ports.stream_ports().into_iter().all(has_port)
            })?;
        }
        let balancer = Process::start(balancer(binary, ports), data_dir.join("balancer.log"))?;
        Ok(Self { balancer, nodes, servers })
    }

    /// The process that has the ports.
    pub(super) fn balancer(&mut self) -> &mut Process {
        &mut self.balancer
    }

    /// All processes.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        std::iter::once(&mut self.balancer).chain(&mut self.nodes).chain(&mut self.servers)
    }

    /// Stops the balancer, then the nodes, each with its verdicts; the servers are killed at last.
    pub(super) fn stop(self, case: impl Fn(&str) -> String, tally: &mut Tally) {
        let Self { balancer, nodes, servers } = self;
        balancer.stop(|label| case(&format!("balancer/{label}")), tally);
        for (number, node) in (1..).zip(nodes) {
            node.stop(|label| case(&format!("b{number}/{label}")), tally);
        }
        drop(servers);
    }
}

// === Command lines ===

fn servers(ports: &Ports, data_dir: &Path, home: &Path) -> Result<Vec<Process>, String> {
    let program = home.join("bin/nats-server");
    if !program.is_file() {
        return Err(format!("{} is not there: run `make nats-server`", program.display()));
    }
    let nats = ports.nats();
    let routes = ADDRESSES.map(|address| format!("\"nats://{address}:{}\"", nats.routes)).join(", ");
    let mut servers = Vec::new();
    for (name, address) in (1..).map(|number| format!("n{number}")).zip(ADDRESSES) {
        let store = data_dir.join(&name);
        let config = format!(
            "server_name: {name}\nlisten: \"{address}:{}\"\nhttp: \"{address}:{}\"\nmax_payload: 8MB\n\
             jetstream {{ store_dir: {store:?}, sync_interval: always, max_mem: 64MB, max_file: 64GB }}\n\
             cluster {{ name: peers, listen: \"{address}:{}\", routes: [{routes}] }}\n",
            nats.clients, nats.monitor, nats.routes
        );
        let file = data_dir.join(format!("{name}.conf"));
        fs::write(&file, config).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(&program);
        command.arg("-c").arg(file);
        servers.push(Process::start(command, data_dir.join(format!("{name}.log")))?);
    }
    Ok(servers)
}

fn node(binary: &Path, name: &str, address: IpAddr, ports: &Ports, data_dir: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("serve");
    for (listener, port) in listeners(ports) {
        command.arg(format!("--{listener}")).arg(format!("{address}:{port}"));
    }
    let urls = |scheme: &str, port: u16| {
        let urls = ADDRESSES.map(|address| format!("\"{scheme}://{address}:{port}\""));
        format!("[{}]", urls.join(", "))
    };
    let settings = [
        format!("cluster.nats={}", urls("nats", ports.nats().clients)),
        format!("cluster.monitor={}", urls("http", ports.nats().monitor)),
        format!("cluster.node=\"{name}\""),
        format!("quic.lb={{ server_id = \"{}\" }}", server_id(address)),
    ];
    for setting in settings {
        command.args(["--set", &setting]);
    }
    command.arg("--data-dir").arg(data_dir);
    command
}

fn balancer(binary: &Path, ports: &Ports) -> Command {
    let mut command = Command::new(binary);
    command.args(["cluster", "balance"]);
    for (listener, port) in listeners(ports) {
        let is_quic = listener == "quic";
        let nodes = ADDRESSES.map(|address| match is_quic {
            true => format!("{address}:{port}/{}", server_id(address)),
            false => format!("{address}:{port}"),
        });
        let option = if is_quic { "--quic" } else { "--tcp" };
        command.args([option, &format!("127.0.0.1:{port}={}", nodes.join(","))]);
    }
    command
}

/// Name of a node in connection IDs: the end of its address.
fn server_id(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return String::new() };
    format!("{:04x}", address.octets()[3])
}

/// Listeners of MQTT: flags of `braidmq serve`, and ports.
fn listeners(ports: &Ports) -> impl Iterator<Item = (String, u16)> {
    ports
        .listeners()
        .filter(|(name, _)| *name != "HTTP")
        .map(|(name, port)| (name.to_ascii_lowercase(), port))
}

/// Copies a file for its owner only, into a new directory if need be.
fn share(from: &Path, to: &Path) -> Result<(), String> {
    to.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::copy(from, to))
        .and_then(|_| fs::set_permissions(to, Permissions::from_mode(0o600)))
        .map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, ANSWER_LIMIT).is_ok()
}

/// Asks a server whether its JetStream is up to date.
fn is_healthy(monitor: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&monitor, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    ask().is_ok_and(|answer| answer.lines().next().is_some_and(|line| line.contains(" 200 ")))
}
