//! Servers of NATS in processes of their own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use braid_cluster::{ClusterOptions, Dimensions, Login, Upkeep};
use tempfile::TempDir;

/// Time for three servers to become a cluster.
const START: Duration = Duration::from_secs(60);

/// Servers that are one cluster, until they are dropped.
pub(crate) struct Servers {
    dir: TempDir,
    processes: Vec<Child>,
    ports: Vec<u16>,
    monitors: Vec<u16>,
}

/// Lines of the configuration of each server.
pub(crate) struct Settings<'a> {
    pub(crate) sync_interval: &'a str,
    pub(crate) more: &'a str,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { sync_interval: "always", more: "max_payload: 8MB" }
    }
}

/// Ports and folder of a server.
pub(crate) struct ServerPorts<'a> {
    pub(crate) index: usize,
    pub(crate) port: u16,
    pub(crate) monitor: u16,
    /// Ports between servers, of all.
    pub(crate) routes: &'a [u16],
    pub(crate) store: &'a Path,
}

fn program() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = workspace.join(".peers/bin/nats-server");
    assert!(program.exists(), "there is no {}: run `make nats-server`", program.display());
    program
}

/// Ports that are free, each given once. Below those that the kernel gives to connections: one of them could have a
/// port before its server.
fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let ports = std::iter::repeat_with(|| 10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 20_000);
    ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(count).collect()
}

impl Servers {
    /// Three servers as they should be.
    pub(crate) async fn three() -> Self {
        Self::start(3, &Settings::default()).await
    }

    pub(crate) async fn start(count: usize, settings: &Settings<'_>) -> Self {
        let text = |of: ServerPorts<'_>| {
            let ServerPorts { index, port, monitor, routes, store } = of;
            let route = routes[index];
            let all = routes.iter().map(|port| format!("nats://127.0.0.1:{port}"));
            let cluster = format!(
                "cluster {{ name: test, listen: \"127.0.0.1:{route}\", routes: [{}] }}",
                all.map(|route| format!("{route:?}")).collect::<Vec<_>>().join(", ")
            );
            format!(
                "server_name: n{index}\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
                 jetstream {{ store_dir: {store:?}, sync_interval: {}, max_mem: 64MB, max_file: 1GB }}\n{}\n{}\n",
                settings.sync_interval,
                settings.more,
                if count > 1 { &*cluster } else { "" }
            )
        };
        let servers = Self::run(count, text);
        servers.until_ready().await;
        servers
    }

    /// Starts servers with these configurations.
    pub(crate) fn run(count: usize, mut text: impl FnMut(ServerPorts<'_>) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (ports, monitors, routes) = (free_ports(count), free_ports(count), free_ports(count));
        let mut servers = Self { dir, processes: Vec::new(), ports, monitors };
        for index in 0..count {
            let (port, monitor) = (servers.ports[index], servers.monitors[index]);
            let store = servers.dir.path().join(format!("n{index}"));
            let text = text(ServerPorts { index, port, monitor, routes: &routes, store: &store });
            let file = servers.dir.path().join(format!("n{index}.conf"));
            fs::write(&file, text).unwrap();
            let log = fs::File::create(servers.dir.path().join(format!("n{index}.log"))).unwrap();
            let child =
                Command::new(program()).arg("-c").arg(&file).stdout(Stdio::null()).stderr(log).spawn();
            servers.processes.push(child.unwrap());
        }
        servers
    }

    /// Kills a server.
    pub(crate) fn kill(&mut self, index: usize) {
        self.processes[index].kill().unwrap();
        self.processes[index].wait().unwrap();
    }

    /// Waits until each server has a leader for its JetStream.
    async fn until_ready(&self) {
        let give_up = Instant::now() + START;
        for index in 0..self.monitors.len() {
            while !self.is_ready(index).await {
                assert!(Instant::now() < give_up, "{}", self.log(index));
                tokio::task::yield_now().await;
            }
        }
    }

    async fn is_ready(&self, index: usize) -> bool {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", self.monitors[index])).await else {
            return false;
        };
        let ask = b"GET /healthz HTTP/1.0\r\n\r\n";
        let mut answer = String::new();
        stream.write_all(ask).await.is_ok()
            && stream.read_to_string(&mut answer).await.is_ok()
            && answer.contains("\"ok\"")
    }

    pub(crate) fn log(&self, index: usize) -> String {
        fs::read_to_string(self.dir.path().join(format!("n{index}.log"))).unwrap_or_default()
    }

    pub(crate) fn url(&self, index: usize) -> String {
        format!("nats://127.0.0.1:{}", self.ports[index])
    }

    pub(crate) fn monitor(&self, index: usize) -> String {
        format!("http://127.0.0.1:{}", self.monitors[index])
    }

    /// Options of a node with its name and instance.
    pub(crate) fn options(&self, node: &str, instance: &str) -> ClusterOptions {
        ClusterOptions {
            servers: (0..self.ports.len()).map(|index| self.url(index)).collect(),
            cluster: "test".parse().unwrap(),
            node: node.parse().unwrap(),
            instance: instance.to_owned(),
            login: Login::None,
            ca_files: Vec::new(),
            certificate: None,
            monitors: (0..self.monitors.len()).map(|index| self.monitor(index)).collect(),
            accepted: Vec::new(),
            address: String::new(),
            dimensions: Dimensions { shards: 2, replicas: 3, log_bytes: 100 << 20 },
            largest_packet: 1 << 20,
            upkeep: Upkeep::default(),
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // The process may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
