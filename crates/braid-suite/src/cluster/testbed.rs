//! Three servers of NATS and three brokers, which are one cluster, in processes on loopback.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::processes::Processes;
use super::progress::Progress;
use crate::load::session::connect;

/// Number of nodes, each of a server of NATS and a broker.
pub(super) const NODES: usize = 3;
/// Stream of ordinary messages of the cluster `braidmq`.
pub(super) const MESSAGES: &str = "braidmq-m-0";
/// Time limit for servers and brokers to serve.
const START: Duration = Duration::from_secs(60);
/// Time between two looks at them.
const LOOK: Duration = Duration::from_millis(50);
/// Time limit of a question to a monitoring port.
const ANSWER: Duration = Duration::from_secs(2);

/// Programs under test.
#[derive(Clone, Copy)]
pub(super) struct Programs<'a> {
    pub(super) broker: &'a Path,
    pub(super) server: &'a Path,
}

/// A running cluster. Dropping it ends its processes and removes their files.
pub(super) struct Testbed<'a> {
    programs: Programs<'a>,
    processes: &'a Processes,
    nodes: Vec<Node>,
    home: TempDir,
}

/// Addresses of a node.
struct Node {
    client: SocketAddr,
    routes: SocketAddr,
    monitor: SocketAddr,
    mqtt: SocketAddr,
}

impl<'a> Testbed<'a> {
    /// Starts a cluster with its files below `parent`, and waits until it serves.
    ///
    /// # Errors
    /// A process ends, or does not serve in time.
    pub(super) fn start(
        programs: Programs<'a>,
        processes: &'a Processes,
        parent: &Path,
    ) -> Result<Self, String> {
        let home = TempDir::with_prefix_in("braidmq-bench-", parent)
            .map_err(|error| format!("cannot make a directory in {}: {error}", parent.display()))?;
        processes.own_directory(home.path());
        let ports = free_addresses(4 * NODES)?;
        let nodes = ports.chunks_exact(4).map(|ports| Node {
            client: ports[0],
            routes: ports[1],
            monitor: ports[2],
            mqtt: ports[3],
        });
        let testbed = Self { programs, processes, nodes: nodes.collect(), home };
        let mut progress = Progress::new("start of three servers and three brokers");
        for node in 0..NODES {
            testbed.write(&server_name(node), "conf", &testbed.server_text(node))?;
            testbed.write(&broker_name(node), "toml", &testbed.broker_text(node))?;
            testbed.start_server(node)?;
        }
        testbed.wait_for_servers(&mut progress)?;
        for node in 0..NODES {
            testbed.start_broker(node)?;
        }
        for node in 0..NODES {
            testbed.wait_for_broker(node, &mut progress)?;
        }
        Ok(testbed)
    }

    /// MQTT address of a broker.
    pub(super) fn mqtt(&self, node: usize) -> SocketAddr {
        self.nodes[node % NODES].mqtt
    }

    /// MQTT addresses of all brokers, that of `first` first.
    pub(super) fn all_mqtt(&self, first: usize) -> [SocketAddr; NODES] {
        std::array::from_fn(|offset| self.mqtt(first + offset))
    }

    /// URL of a server of NATS.
    pub(super) fn nats(&self, node: usize) -> String {
        format!("nats://{}", self.nodes[node % NODES].client)
    }

    /// Process IDs of all brokers.
    ///
    /// # Errors
    /// One does not run.
    pub(super) fn broker_ids(&self) -> Result<Vec<u32>, String> {
        (0..NODES).map(|node| self.processes.id(&broker_name(node))).collect()
    }

    /// Process IDs of all servers of NATS.
    ///
    /// # Errors
    /// One does not run.
    pub(super) fn server_ids(&self) -> Result<Vec<u32>, String> {
        (0..NODES).map(|node| self.processes.id(&server_name(node))).collect()
    }

    /// `reason` with the end of the log of each broker.
    pub(super) fn explain(&self, reason: &str) -> String {
        if let Err(end) = self.processes.check() {
            return format!("{reason} ({end})");
        }
        let words = (0..NODES).map(|node| self.processes.last_lines(&broker_name(node)));
        let words: Vec<_> = words.filter(|words| !words.is_empty()).collect();
        if words.is_empty() { reason.to_owned() } else { format!("{reason} (logs: {})", words.join(" || ")) }
    }

    /// Kills a broker by SIGKILL.
    pub(super) fn kill_broker(&self, node: usize) {
        self.processes.kill(&broker_name(node));
    }

    /// Kills a server of NATS by SIGKILL.
    pub(super) fn kill_server(&self, node: usize) {
        self.processes.kill(&server_name(node));
    }

    /// Starts a broker that was killed, and waits until it serves.
    ///
    /// # Errors
    /// The broker ends, or does not serve in time.
    pub(super) fn restart_broker(&self, node: usize) -> Result<(), String> {
        self.start_broker(node)?;
        self.wait_for_broker(node, &mut Progress::new("start of a broker"))
    }

    /// Starts a server of NATS that was killed, and waits until its replicas have caught up.
    ///
    /// # Errors
    /// The server ends, or does not catch up in time.
    pub(super) fn restart_server(&self, node: usize) -> Result<(), String> {
        self.start_server(node)?;
        self.wait_for_servers(&mut Progress::new("start of a server of NATS"))
    }

    /// Node whose server leads a stream; `None` while there is no leader.
    pub(super) fn leader(&self, stream: &str) -> Option<usize> {
        self.nodes
            .iter()
            .find_map(|node| leader(&ask(node.monitor, "/jsz?accounts=1&streams=1").ok()?, stream))
    }

    // -- Processes ---------------------------------------------------------------------------------

    fn start_server(&self, node: usize) -> Result<(), String> {
        let name = server_name(node);
        let mut command = Command::new(self.programs.server);
        command.arg("-c").arg(self.file(&name, "conf"));
        self.processes.start(&name, &mut command, &self.file(&name, "log"))
    }

    fn start_broker(&self, node: usize) -> Result<(), String> {
        let name = broker_name(node);
        let mut command = Command::new(self.programs.broker);
        command.arg("serve").arg("--config").arg(self.file(&name, "toml"));
        self.processes.start(&name, &mut command, &self.file(&name, "log"))
    }

    fn wait_for_servers(&self, progress: &mut Progress) -> Result<(), String> {
        let is_well =
            |node: &Node| ask(node.monitor, "/healthz").is_ok_and(|answer| answer.contains("\"ok\""));
        self.wait(
            || "the servers of NATS are not healthy".to_owned(),
            progress,
            || self.nodes.iter().all(is_well),
        )
    }

    fn wait_for_broker(&self, node: usize, progress: &mut Progress) -> Result<(), String> {
        let name = broker_name(node);
        let problem = || format!("{name} accepts no client; its log: {}", self.processes.last_lines(&name));
        self.wait(problem, progress, || connect(self.mqtt(node), "bench-ready").is_ok())
    }

    fn wait(
        &self,
        problem: impl Fn() -> String,
        progress: &mut Progress,
        done: impl Fn() -> bool,
    ) -> Result<(), String> {
        let give_up = Instant::now() + START;
        while !done() {
            self.processes.check()?;
            if Instant::now() > give_up {
                return Err(format!("after {START:?} {}", problem()));
            }
            progress.show(&problem);
            thread::sleep(LOOK);
        }
        Ok(())
    }

    // -- Configuration -----------------------------------------------------------------------------

    fn file(&self, name: &str, extension: &str) -> PathBuf {
        self.home.path().join(format!("{name}.{extension}"))
    }

    fn write(&self, name: &str, extension: &str, text: &str) -> Result<(), String> {
        let file = self.file(name, extension);
        fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }

    fn server_text(&self, node: usize) -> String {
        let Node { client, routes, monitor, .. } = &self.nodes[node];
        let all: Vec<_> = self.nodes.iter().map(|node| format!("\"nats://{}\"", node.routes)).collect();
        format!(
            "server_name: {}\nlisten: \"{client}\"\nhttp: \"{monitor}\"\nmax_payload: 8MB\n\
             jetstream {{ store_dir: {:?}, sync_interval: always, max_mem: 64MB, max_file: 64GB }}\n\
             cluster {{ name: bench, listen: \"{routes}\", routes: [{}] }}\n",
            server_name(node),
            self.file(&server_name(node), "store"),
            all.join(", ")
        )
    }

    /// Configuration of a broker, whose connections are to the server of its node until that ends. Queues drop nothing.
    fn broker_text(&self, node: usize) -> String {
        let monitors: Vec<_> = self.nodes.iter().map(|node| format!("\"http://{}\"", node.monitor)).collect();
        format!(
            "data_dir = {:?}\nallow_anonymous = true\n\n[listeners]\ntcp = [\"{}\"]\ntls = []\nws = []\nwss = []\nquic = []\n\n[limits]\nqueued_messages = 10000000\n\
             queued_bytes = 2000000000\n\n[cluster]\nnats = [\"{}\"]\nmonitor = [{}]\nnode = \"{}\"\nlog_bytes = {}\n",
            self.file(&broker_name(node), "data"),
            self.nodes[node].mqtt,
            self.nats(node),
            monitors.join(", "),
            broker_name(node),
            2_u64 << 30,
        )
    }
}

impl Drop for Testbed<'_> {
    fn drop(&mut self) {
        self.processes.kill_all();
    }
}

/// Name of a server of NATS, which its monitoring port tells.
pub(super) fn server_name(node: usize) -> String {
    format!("nats-{node}")
}

fn broker_name(node: usize) -> String {
    format!("broker-{node}")
}

/// Addresses that were free a moment ago, held until all are known.
///
/// # Errors
/// There are not as many free ports.
pub(super) fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, String> {
    let held =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<io::Result<Vec<_>>>();
    let addresses = held.and_then(|held| held.iter().map(TcpListener::local_addr).collect());
    addresses.map_err(|error| format!("no free TCP port on loopback: {error}"))
}

/// Answer to a GET, head included.
fn ask(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Node of the leader of a stream in an answer of `/jsz`.
fn leader(answer: &str, stream: &str) -> Option<usize> {
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let body: Value = serde_json::from_str(body).ok()?;
    let accounts = body["account_details"].as_array()?;
    let mut streams = accounts.iter().filter_map(|account| account["stream_detail"].as_array()).flatten();
    let found = streams.find(|found| found["name"] == stream)?;
    (0..NODES).find(|&node| found["cluster"]["leader"] == *server_name(node))
}

#[cfg(test)]
mod tests {
    use super::leader;

    #[test]
    fn leader_of_a_stream_is_found_by_the_name_of_its_server() {
        let answer = "HTTP/1.0 200 OK\r\n\r\n{\"account_details\":[{\"name\":\"$G\",\"stream_detail\":[\
                      {\"name\":\"x\",\"cluster\":{\"leader\":\"nats-2\"}},{\"name\":\"y\",\"cluster\":{}}]}]}";
        assert_eq!([leader(answer, "x"), leader(answer, "y"), leader(answer, "z")], [Some(2), None, None]);
        assert_eq!(leader("", "x"), None);
    }
}
