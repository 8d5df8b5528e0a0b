//! Processes of the testbed: servers of NATS and brokers, each in its namespace.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use braid_torture::{Broker, Process, REFUSED, Start, Starting};
use rustix::process::Signal;

use super::clock::WallClock;
use super::kind::Parts;
use super::network::{Member, NODES, Network};
use super::server::{MONITOR, PORT, Server};
use crate::disk::Disk;

/// Port of the brokers.
const MQTT: u16 = 1883;
/// Time limit for the start of all servers.
const START: Duration = Duration::from_secs(60);
/// Ends of a broker at its start: the servers have no majority, or do not know each other yet.
const NO_SERVERS: [&str; 2] = ["JetStream does not answer", "servers: run three"];
/// Time between two looks at the servers.
const LOOK: Duration = Duration::from_millis(100);

/// Programs under test.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) broker: PathBuf,
    pub(crate) server: PathBuf,
}

/// All nodes with their network.
pub(crate) struct Testbed {
    pub(crate) parts: Parts,
    pub(crate) network: Network,
    servers: Vec<Server>,
    brokers: Vec<Broker>,
    /// Wall clocks of the brokers of a cluster.
    clocks: Vec<WallClock>,
    /// Disk of one server, which can become full.
    pub(crate) disk: Option<(usize, Disk)>,
    /// Members that were killed, or are about to end, and not started again.
    down: Vec<Member>,
}

impl Testbed {
    /// Makes the network and starts everything. `small` is the server with the small disk.
    pub(crate) fn start(
        parts: Parts,
        programs: &Programs,
        home: &Path,
        small: usize,
    ) -> Result<Self, String> {
        let (servers, brokers) = match parts {
            Parts::Cluster => (NODES.len(), NODES.len()),
            Parts::Broker => (0, 1),
            Parts::Servers => (NODES.len(), 0),
        };
        let members = (0..servers).map(Member::Server).chain((0..brokers).map(Member::Broker));
        let members: Vec<_> = members.collect();
        let network = Network::build(members.iter().copied())?;
        let disk = match servers {
            0 => None,
            _ => Some((small, Disk::mount(&home.join("small-disk"))?)),
        };
        let server = |node| {
            let store = match &disk {
                Some((small, disk)) if *small == node => disk.data_dir(),
                _ => home.join(format!("{}.store", Member::Server(node))),
            };
            Server::new(node, &programs.server, home, &store)
        };
        let servers = (0..servers).map(server).collect::<Result<Vec<_>, _>>()?;
        let brokers = (0..brokers).map(|node| broker(node, parts, &programs.broker, home));
        let brokers = brokers.collect::<Result<Vec<_>, _>>()?;
        let mut clocks = Vec::new();
        if parts == Parts::Cluster {
            for node in 0..brokers.len() {
                clocks.push(WallClock::new(home.join(format!("{}.clock", Member::Broker(node))))?);
            }
        }
        let mut testbed = Self { parts, network, servers, brokers, clocks, disk, down: members };
        testbed.restart()?;
        Ok(testbed)
    }

    /// Names and addresses of the brokers.
    pub(crate) fn addresses(&self) -> Vec<(String, SocketAddr)> {
        let address = |node: usize| (Member::Broker(node).address(), MQTT).into();
        (0..self.brokers.len()).map(|node| (NODES[node].to_owned(), address(node))).collect()
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        let servers = (0..self.servers.len()).map(Member::Server);
        servers.chain((0..self.brokers.len()).map(Member::Broker)).collect()
    }

    /// Server that leads the stream of messages, by the word of any server.
    pub(crate) fn leader(&self) -> Option<usize> {
        self.servers.iter().find_map(Server::leader)
    }

    // -- Signals -----------------------------------------------------------------------------------

    /// Sends a signal to the process of a member.
    pub(crate) fn signal(&self, member: Member, signal: Signal) {
        match member {
            Member::Server(node) => self.servers[node].process.signal(signal),
            Member::Broker(node) => self.brokers[node].signal(signal),
            Member::Clients => {}
        }
    }

    /// Kills the process of a member.
    pub(crate) fn kill(&mut self, member: Member) {
        match member {
            Member::Server(node) => self.servers[node].process.kill(),
            Member::Broker(node) => self.brokers[node].kill(),
            Member::Clients => return,
        }
        self.down.push(member);
    }

    /// Ends a broker by SIGTERM.
    ///
    /// # Errors
    /// The broker does not end in time, or not with success.
    pub(crate) fn terminate(&mut self, node: usize) -> Result<(), String> {
        self.down.push(Member::Broker(node));
        let status = self.brokers[node].terminate()?;
        if status.success() {
            return Ok(());
        }
        Err(format!("{} ended with {status} after SIGTERM", Member::Broker(node)))
    }

    /// Sets the wall clock of a broker so many seconds ahead.
    pub(crate) fn set_clock(&self, node: usize, seconds: i64) -> Result<(), String> {
        let clock = self.clocks.get(node).ok_or("no broker has a clock of its own")?;
        if !clock.is_of(self.brokers[node].id()) {
            return Err("the broker has not loaded libfaketime".to_owned());
        }
        clock.set(seconds)
    }

    // -- Starts ------------------------------------------------------------------------------------

    /// Starts everything that is down, and waits until all brokers serve.
    ///
    /// # Errors
    /// A process ends, or does not serve in time.
    pub(crate) fn restart(&mut self) -> Result<(), String> {
        let mut down = std::mem::take(&mut self.down);
        // Servers come first.
        down.sort_unstable();
        let mut starting: BTreeMap<usize, Starting> = BTreeMap::new();
        for member in down {
            match member {
                Member::Server(node) => self.servers[node].start(self.network.entry(member))?,
                // All servers may have been down.
                Member::Broker(node) => {
                    self.wait_for_servers()?;
                    starting.insert(node, self.begin_start(node)?);
                }
                Member::Clients => {}
            }
        }
        for (node, starting) in starting {
            self.finish_start(node, starting)
                .map_err(|reason| format!("{}: {reason}", Member::Broker(node)))?;
        }
        self.wait_for_servers()
    }

    /// Waits until a broker serves; like systemd, starts it again as long as it misses the servers.
    fn finish_start(&mut self, node: usize, mut starting: Starting) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let broker = &mut self.brokers[node];
            let start = broker.finish_start(&starting)?;
            let is_refused = matches!(&start, Start::Ended(status) if status.code() == Some(REFUSED));
            let said = if is_refused { broker.log_of_last_process()? } else { String::new() };
            if began.elapsed() > START || !NO_SERVERS.iter().any(|reason| said.contains(reason)) {
                return broker.served(&start).map(drop);
            }
            std::thread::sleep(LOOK);
            starting = self.begin_start(node)?;
        }
    }

    fn begin_start(&mut self, node: usize) -> Result<Starting, String> {
        let mut entry = self.network.entry(Member::Broker(node));
        if let Some(clock) = self.clocks.get(node) {
            clock.preload(&mut entry);
        }
        self.brokers[node].begin_start(Some(entry))
    }

    fn wait_for_servers(&self) -> Result<(), String> {
        let began = Instant::now();
        while let Some(server) = self.servers.iter().find(|server| !server.is_healthy(false)) {
            if began.elapsed() > START {
                return Err(format!("{} is not healthy after {START:?}", Member::Server(server.node)));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Members that are not as they should be after a fault.
    ///
    /// # Errors
    /// A process has ended by itself.
    pub(crate) fn unhealthy(&mut self) -> Result<Vec<String>, String> {
        for member in self.members().into_iter().filter(|member| !self.down.contains(member)) {
            let status = match member {
                Member::Server(node) => self.servers[node].process.wait_for(Duration::ZERO)?,
                Member::Broker(node) => self.brokers[node].wait_for(Duration::ZERO)?,
                Member::Clients => None,
            };
            if let Some(status) = status {
                return Err(format!("{member} has ended by itself with {status}"));
            }
        }
        let servers = self.servers.iter().filter(|server| !server.is_healthy(true));
        let mut unhealthy: Vec<_> = servers.map(|server| Member::Server(server.node).to_string()).collect();
        if !self.servers.is_empty() && self.leader().is_none() {
            unhealthy.push("the leader of the messages".to_owned());
        }
        Ok(unhealthy)
    }

    /// Ends the brokers with SIGTERM, and everything else.
    ///
    /// # Errors
    /// A broker does not end with success, or one of its processes has panicked.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        for node in 0..self.brokers.len() {
            self.terminate(node)?;
        }
        self.servers.iter_mut().map(|server| &mut server.process).for_each(Process::kill);
        self.brokers.iter().try_for_each(Broker::check_panics)
    }
}

/// Writes the configuration of the broker of a node; the broker does not run.
fn broker(node: usize, parts: Parts, program: &Path, home: &Path) -> Result<Broker, String> {
    let name = Member::Broker(node).to_string();
    let (data_dir, file) = (home.join(format!("{name}.data")), home.join(format!("{name}.toml")));
    fs::write(&file, text(node, parts, &data_dir)).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(Broker::configured(program, &data_dir, &home.join(format!("{name}.log")), &file))
}

/// Configuration of the broker of a node. Queues drop nothing, and no client connects too often.
fn text(node: usize, parts: Parts, data_dir: &Path) -> String {
    let address = Member::Broker(node).address();
    let mut text = format!(
        "data_dir = {data_dir:?}\nallow_anonymous = true\n\n[listeners]\ntcp = [\"{address}:{MQTT}\"]\n\
         tls = []\nws = []\nwss = []\nquic = []\n\n\
         [limits]\nflapping_connects = 0\nqueued_messages = 10000000\nqueued_bytes = 2000000000\n"
    );
    if parts == Parts::Cluster {
        let servers = |scheme: &str, port: u16| {
            let url = |node| format!("\"{scheme}://{}:{port}\"", Member::Server(node).address());
            (0..NODES.len()).map(url).collect::<Vec<_>>().join(", ")
        };
        text += &format!(
            "\n[cluster]\nnats = [{}]\nmonitor = [{}]\nnode = \"{}\"\n",
            servers("nats", PORT),
            servers("http", MONITOR),
            NODES[node]
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_of_a_cluster_knows_all_servers_and_its_name() {
        let alone = text(0, Parts::Broker, Path::new("/x"));
        assert!(alone.contains("tcp = [\"10.99.0.21:1883\"]") && !alone.contains("[cluster]"), "{alone}");
        let text = text(2, Parts::Cluster, Path::new("/x"));
        for line in [
            "data_dir = \"/x\"",
            "nats = [\"nats://10.99.0.11:4222\", \"nats://10.99.0.12:4222\", \"nats://10.99.0.13:4222\"]",
            "monitor = [\"http://10.99.0.11:8222\", \"http://10.99.0.12:8222\", \"http://10.99.0.13:8222\"]",
            "node = \"c\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
