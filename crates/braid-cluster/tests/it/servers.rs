//! Servers of NATS in processes of their own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use braid_cluster::{ClusterOptions, Dimensions, Login};
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
pub(crate) struct Settings {
    pub(crate) sync_interval: &'static str,
    pub(crate) more: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self { sync_interval: "always", more: "max_payload: 8MB" }
    }
}

fn program() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = workspace.join(".peers/bin/nats-server");
    assert!(program.exists(), "there is no {}: run `make nats-server`", program.display());
    program
}

/// Ports that are free now.
fn free_ports(count: usize) -> Vec<u16> {
    let open: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    open.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Servers {
    /// Three servers as they should be.
    pub(crate) async fn three() -> Self {
        Self::start(3, &Settings::default()).await
    }

    pub(crate) async fn start(count: usize, settings: &Settings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (ports, monitors, routes) = (free_ports(count), free_ports(count), free_ports(count));
        let all: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let mut servers = Self { dir, processes: Vec::new(), ports, monitors };
        for (index, route) in routes.iter().enumerate() {
            let (port, monitor) = (servers.ports[index], servers.monitors[index]);
            let store = servers.dir.path().join(format!("n{index}"));
            let cluster = format!(
                "cluster {{ name: test, listen: \"127.0.0.1:{route}\", routes: [{}] }}",
                all.iter().map(|route| format!("{route:?}")).collect::<Vec<_>>().join(", ")
            );
            let text = format!(
                "server_name: n{index}\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
                 jetstream {{ store_dir: {store:?}, sync_interval: {}, max_mem: 64MB, max_file: 1GB }}\n{}\n{}\n",
                settings.sync_interval,
                settings.more,
                if count > 1 { &*cluster } else { "" }
            );
            let file = servers.dir.path().join(format!("n{index}.conf"));
            fs::write(&file, text).unwrap();
            let log = fs::File::create(servers.dir.path().join(format!("n{index}.log"))).unwrap();
            let child =
                Command::new(program()).arg("-c").arg(&file).stdout(Stdio::null()).stderr(log).spawn();
            servers.processes.push(child.unwrap());
        }
        servers.until_ready().await;
        servers
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
            dimensions: Dimensions { shards: 2, replicas: 3, log_bytes: 100 << 20 },
            largest_packet: 1 << 20,
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
