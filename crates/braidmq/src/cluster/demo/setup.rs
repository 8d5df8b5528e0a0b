//! Processes of the demo, their configurations and their ports.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use braid_balancer::{Balancer, BalancerError, BalancerOptions, TcpFront};
use braid_cluster::{ClusterOptions, Dimensions, Login, Name, Upkeep};
use tempfile::TempDir;
use tokio::time::sleep;

use super::load::TOPIC;
use super::member::{self, Kind, Member};
use super::ports;
use super::say;
use super::watch::{Asked, is_well};

/// Servers, and brokers.
const COUNT: usize = 3;

/// Name of the cluster.
const CLUSTER: &str = "demo";

/// Largest size of the stream of messages, bytes.
const LOG_BYTES: u64 = 512 << 20;

/// Time for all servers, and then for all brokers, to be ready.
const START: Duration = Duration::from_secs(60);

/// Time between two questions whether they are.
const ASK: Duration = Duration::from_millis(50);

/// Ports that are tried for the balancer: that of MQTT first.
const BALANCER: std::ops::RangeInclusive<u16> = 1883..=1982;

/// Directory of the demo.
pub(super) enum Home {
    /// Removed at the end.
    Temporary(TempDir),
    Given(PathBuf),
}

impl Home {
    /// # Errors
    /// The directory cannot be made, or is not empty.
    pub(super) fn new(given: Option<&Path>) -> Result<Self, String> {
        let Some(given) = given else {
            let dir = tempfile::Builder::new().prefix("braidmq-demo-").tempdir();
            return dir
                .map(Self::Temporary)
                .map_err(|error| format!("cannot make a temporary directory: {error}"));
        };
        let failed = |error: std::io::Error| format!("--dir {}: {error}", given.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(given).map_err(failed)?;
        if fs::read_dir(given).map_err(failed)?.next().is_some() {
            return Err(format!("--dir {}: is not empty: name a new directory", given.display()));
        }
        given.canonicalize().map(Self::Given).map_err(failed)
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Given(path) => path,
        }
    }

    /// Keeps it to look at.
    pub(super) fn keep(self) {
        if let Self::Temporary(dir) = self {
            eprintln!("braidmq: logs and messages are kept in {}", dir.keep().display());
        }
    }
}

/// Ports of 127.0.0.1, in the order of the processes.
struct Ports {
    nats: [u16; COUNT],
    routes: [u16; COUNT],
    monitors: [u16; COUNT],
    mqtt: [u16; COUNT],
    http: [u16; COUNT],
}

impl Ports {
    fn free() -> Result<Self, String> {
        let all: [u16; 5 * COUNT] = ports::free(fastrand::u16(..))?;
        let part = |number: usize| std::array::from_fn(|at| all[number * COUNT + at]);
        Ok(Self { nats: part(0), routes: part(1), monitors: part(2), mqtt: part(3), http: part(4) })
    }

    /// Configuration of a NATS server. Paths are relative to its working directory.
    fn server_text(&self, at: usize) -> String {
        let (number, routes) = (at + 1, urls("nats", &self.routes));
        let [port, monitor, route] = [self.nats[at], self.monitors[at], self.routes[at]];
        format!(
            "server_name: n{number}\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\nmax_payload: 8MB\n\
             jetstream {{ store_dir: \"n{number}\", sync_interval: always, max_mem: 64MB, max_file: 8GB }}\n\
             cluster {{ name: {CLUSTER}, listen: \"127.0.0.1:{route}\", routes: {routes:?} }}\n"
        )
    }

    /// Configuration of a broker.
    fn broker_text(&self, at: usize) -> String {
        let number = at + 1;
        format!(
            "data_dir = \"b{number}\"\n[cluster]\nname = \"{CLUSTER}\"\nnode = \"b{number}\"\nlog_bytes = {LOG_BYTES}\n\
             nats = {:?}\nmonitor = {:?}\n",
            urls("nats", &self.nats),
            urls("http", &self.monitors)
        )
    }
}

fn urls(scheme: &str, ports: &[u16]) -> Vec<String> {
    ports.iter().map(|port| format!("{scheme}://127.0.0.1:{port}")).collect()
}

/// Running processes, and the balancer in front of the brokers.
pub(super) struct Testbed {
    /// Servers, then brokers.
    pub(super) members: Vec<Member>,
    balancer: Balancer,
    ports: Ports,
    dir: PathBuf,
}

impl Testbed {
    /// Starts all processes, and waits until they are ready.
    ///
    /// # Errors
    /// One ends or is not ready in time, or a port is taken.
    pub(super) async fn start(program: &Path, dir: &Path, port: Option<u16>) -> Result<Self, String> {
        let ports = Ports::free()?;
        let balancer = balance(port, &ports.mqtt).await?;
        say(&format!("starting three NATS servers and three brokers in {}\n", dir.display()))?;
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        let mut members = Vec::new();
        for at in 0..COUNT {
            let name = format!("n{}", at + 1);
            let file = format!("{name}.conf");
            write(&file, ports.server_text(at))?;
            members.push(Member::start(Kind::Server, &name, program, &["-c", &file], dir)?);
        }
        ready(&mut members, ports.monitors.map(|port| format!("http://127.0.0.1:{port}/healthz"))).await?;
        let own =
            std::env::current_exe().map_err(|error| format!("cannot find the program braidmq: {error}"))?;
        for at in 0..COUNT {
            let name = format!("b{}", at + 1);
            let file = format!("{name}.toml");
            write(&file, ports.broker_text(at))?;
            let [mqtt, http] = [ports.mqtt[at], ports.http[at]].map(|port| format!("127.0.0.1:{port}"));
            let arguments = ["serve", "--config", &file, "--tcp", &mqtt, "--http", &http];
            members.push(Member::start(Kind::Broker, &name, &own, &arguments, dir)?);
        }
        ready(&mut members, ports.http.map(|port| format!("http://127.0.0.1:{port}/health"))).await?;
        Ok(Self { members, balancer, ports, dir: dir.to_owned() })
    }

    /// Address of the balancer for clients.
    pub(super) fn url(&self) -> String {
        let address = self.balancer.tcp_addresses().first().map(ToString::to_string);
        format!("mqtt://{}", address.unwrap_or_default())
    }

    /// Options to ask for the state of the cluster.
    pub(super) fn options(&self) -> Result<ClusterOptions, String> {
        let name = |text: &str| text.parse::<Name>().map_err(|error| error.to_string());
        Ok(ClusterOptions {
            servers: urls("nats", &self.ports.nats),
            cluster: name(CLUSTER)?,
            node: name(CLUSTER)?,
            instance: String::new(),
            login: Login::None,
            ca_files: Vec::new(),
            certificate: None,
            monitors: urls("http", &self.ports.monitors),
            accepted: Vec::new(),
            dimensions: Dimensions { shards: 1, replicas: COUNT, log_bytes: LOG_BYTES },
            address: String::new(),
            largest_packet: 0,
            upkeep: Upkeep::default(),
        })
    }

    /// Addresses that tell whether a process is well.
    pub(super) fn asked(&self) -> Vec<Asked> {
        let servers =
            self.ports.monitors.map(|port| format!("http://127.0.0.1:{port}/healthz?js-server-only=true"));
        let brokers = self.ports.http.map(|port| format!("http://127.0.0.1:{port}/api/v1/overview"));
        let urls = servers.into_iter().chain(brokers);
        self.members.iter().zip(urls).map(|(member, url)| Asked { name: member.name.clone(), url }).collect()
    }

    /// Lines about the processes and what to do with them.
    pub(super) fn usage(&self, pause: Duration) -> String {
        let (mut text, url) = (String::from("\n"), self.url());
        let ports = self.ports.nats.iter().chain(&self.ports.mqtt);
        for (at, (member, port)) in self.members.iter().zip(ports).enumerate() {
            let (kind, name, pid) = (member.kind.text(), &member.name, member.pid());
            let more = match member.kind {
                Kind::Server => format!("nats://127.0.0.1:{port}"),
                Kind::Broker => {
                    format!(
                        "mqtt://127.0.0.1:{port}, dashboard http://127.0.0.1:{}",
                        self.ports.http[at - COUNT]
                    )
                }
            };
            text += &format!("{kind} {name}: pid {pid}, {more}, log {}\n", member.log().display());
        }
        let port = url.rsplit(':').next().unwrap_or_default();
        text += &format!(
            "balancer: {url}, a publisher and a subscriber of {TOPIC} are behind it; one more: braidmq sub -p {port} -t '{TOPIC}'\n\
             kill -9 any of these: the clients go on, and it starts again after {:.0} s. Ctrl-C ends everything.\n\
             more: braidmq cluster status --config {}/b1.toml\n\n",
            pause.as_secs_f64(),
            self.dir.display()
        );
        text
    }

    /// Ends everything: the brokers before the servers that they need.
    pub(super) async fn end(self, patience: Duration) {
        let Self { members, balancer, .. } = self;
        balancer.stop().await;
        let ended = tokio::task::spawn_blocking(move || {
            let (servers, brokers) = members.into_iter().partition(|member| member.kind == Kind::Server);
            member::end(brokers, patience);
            member::end(servers, patience);
        });
        // The task cannot panic.
        let _ = ended.await;
    }
}

/// Balancer on a port, or on the first of [`BALANCER`] that is free.
async fn balance(port: Option<u16>, nodes: &[u16]) -> Result<Balancer, String> {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let tried = port.map_or(BALANCER, |port| port..=port);
    let mut problem = String::new();
    for listen in tried {
        let front =
            TcpFront { listen: local(listen), backends: nodes.iter().map(|node| local(*node)).collect() };
        let options = BalancerOptions { tcp: vec![front], ..BalancerOptions::default() };
        match Balancer::start(options).await {
            Ok(balancer) => return Ok(balancer),
            Err(error @ BalancerError::Bind { .. }) => problem = error.to_string(),
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(format!("{problem}: name another port by --port"))
}

/// Waits until each URL answers with 200, while all processes run.
async fn ready(members: &mut [Member], urls: [String; COUNT]) -> Result<(), String> {
    let give_up = Instant::now() + START;
    for url in urls {
        while !is_well(&url).await {
            for member in members.iter_mut() {
                if let Some(member::Change::Ended(reason)) = member.tick(Instant::now(), START) {
                    let (kind, name) = (member.kind.text(), &member.name);
                    return Err(format!("{kind} {name} {reason}: {}", member.last_words()));
                }
            }
            if Instant::now() >= give_up {
                let seconds = START.as_secs();
                let words: Vec<_> = members
                    .iter()
                    .map(|member| format!("{}: {}", member.name, member.last_words()))
                    .collect();
                return Err(format!(
                    "{url} is not ready after {seconds} s; last lines: {}",
                    words.join(" | ")
                ));
            }
            sleep(ASK).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_new_or_empty() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("a/b");
        assert_eq!(Home::new(Some(&new)).unwrap().path(), new.canonicalize().unwrap());
        assert!(Home::new(Some(&new)).is_ok(), "it is still empty");
        fs::write(new.join("file"), "").unwrap();
        for path in [new.clone(), new.join("file")] {
            let error = Home::new(Some(&path)).err().unwrap();
            assert!(error.starts_with(&format!("--dir {}: ", path.display())), "{error}");
        }
        let home = Home::new(None).unwrap();
        let path = home.path().to_owned();
        drop(home);
        assert!(!path.exists());
    }

    #[test]
    fn configurations_are_read_and_differ() {
        let ports =
            Ports { nats: [1, 2, 3], routes: [4, 5, 6], monitors: [7, 8, 9], mqtt: [10; 3], http: [11; 3] };
        let text = ports.server_text(1);
        for part in [
            "server_name: n2\nlisten: \"127.0.0.1:2\"\nhttp: \"127.0.0.1:8\"\n",
            "store_dir: \"n2\", sync_interval: always",
            "listen: \"127.0.0.1:5\", routes: [\"nats://127.0.0.1:4\", \"nats://127.0.0.1:5\", \"nats://127.0.0.1:6\"]",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let config: crate::config::Config = toml::from_str(&ports.broker_text(2)).unwrap();
        config.check().unwrap();
        let urls =
            |urls: &[braid_cluster::ServerUrl]| urls.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            urls(&config.cluster.nats),
            ["nats://127.0.0.1:1", "nats://127.0.0.1:2", "nats://127.0.0.1:3"]
        );
        assert_eq!((config.cluster.node.unwrap().as_str(), config.data_dir), ("b3", PathBuf::from("b3")));
    }

    #[tokio::test]
    async fn a_taken_port_is_passed_over_unless_it_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = balance(Some(port), &[1, 2]).await.err().unwrap();
        let expected = format!("the balancer cannot listen on TCP 127.0.0.1:{port}: ");
        assert!(error.starts_with(&expected) && error.ends_with("name another port by --port"), "{error}");
        let any = balance(Some(0), &[1, 2]).await.unwrap();
        assert_ne!(any.tcp_addresses()[0].port(), 0);
        let (first, second) = (balance(None, &[1]).await.unwrap(), balance(None, &[1]).await.unwrap());
        assert_ne!(first.tcp_addresses(), second.tcp_addresses());
    }
}
