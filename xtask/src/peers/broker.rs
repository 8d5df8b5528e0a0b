//! The broker: one process on free ports, or a cluster behind a balancer.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Kind;
use super::certificate::certificate;
use super::cluster::Cluster;
use super::ports::Ports;
use super::process::Process;
use super::tally::Tally;

/// Time limit until the broker listens everywhere.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Settings of a broker under test beside its listeners.
pub(super) struct Variant {
    /// Name in the scripts; in capitals and with an underscore, part of the names of environment variables.
    name: &'static str,
    /// `KEY=VALUE` each, with `{sources}` for `peers/`, `{data}` for the data directory and `{upstream}` for the port
    /// of the server behind proxy routes.
    settings: &'static [&'static str],
    /// Files of `peers/` that are copied into the data directory, readable by their owner only.
    files: &'static [&'static str],
}

/// The defaults, for most cases. HTTP is plain, and clients on this machine are operators.
pub(super) const STANDARD: Variant = Variant { name: "", settings: &[], files: &[] };

/// Settings for behaviour that the defaults do not show, or not soon; `peers/cases/streams` refers to their names and
/// values.
pub(super) const OTHERS: &[Variant] = &[
    Variant {
        name: "strict",
        settings: &[
            "quic.strict_streams=true",
            "quic.early_publish=accept",
            "mqtt.receive_maximum=10",
            "limits.connect_timeout_secs=1",
            r#"priority=[{ filter = "+/urgent", priority = 200 }]"#,
        ],
        files: &[],
    },
    Variant {
        name: "small",
        settings: &[
            "quic.early_publish=reject",
            "mqtt.maximum_packet_size=200000",
            "limits.connections=2",
            "limits.partial_bytes=100000",
            "limits.stalled_packet_secs=1",
            "limits.streams_per_second=50",
        ],
        files: &[],
    },
    // The users' passwords are in `peers/cases/http/web.py`.
    Variant {
        name: "web",
        settings: &[
            "http.tls=true",
            "http.autoquic.mode=always",
            r#"http.operators=["olga"]"#,
            r#"http.viewers=["vera"]"#,
            r#"http.route=[
                { path = "/files", directory = "{sources}/http/files" },
                { path = "/app", upstream = "http://127.0.0.1:{upstream}" },
                { path = "/dead", upstream = "http://127.0.0.1:1" },
            ]"#,
            r#"authenticator=[{ kind = "password", file = "{data}/users" }]"#,
            "acl.permit_all=true",
        ],
        files: &["http/users"],
    },
    // Bulk waits at the broker, as on a slow link: for the dashboard.
    Variant {
        name: "paced",
        settings: &["quic.link_rate=400000", r#"priority=[{ filter = "plant/+/alarms/#", priority = 200 }]"#],
        files: &[],
    },
];

impl Variant {
    /// Name of its files: `braidmq` for the standard variant, `braidmq-strict` for another.
    fn of(&self, kind: Kind) -> String {
        if self.name.is_empty() { kind.name().to_owned() } else { format!("{}-{}", kind.name(), self.name) }
    }
}

/// A running broker, or cluster of brokers. Dropped without [`Broker::stop`], it is killed.
pub(super) struct Broker {
    kind: Kind,
    variant: &'static Variant,
    ports: Ports,
    data_dir: PathBuf,
    processes: Processes,
}

enum Processes {
    One(Process),
    Cluster(Cluster),
}

impl Broker {
    /// Starts the broker in a fresh directory under `home` and returns when every TCP port accepts.
    ///
    /// # Errors
    /// One line that says what to change: the binary is missing, it ended, or it does not listen in time.
    pub(super) fn start(
        kind: Kind,
        variant: &'static Variant,
        binary: &Path,
        home: &Path,
    ) -> Result<Self, String> {
        if kind != Kind::Mosquitto && !binary.is_file() {
            return Err(format!(
                "{} is not there: run `cargo build -p braidmq`, or name --binary",
                binary.display()
            ));
        }
        let ports = Ports::free()?;
        let name = variant.of(kind);
        let data_dir = home.join(&name);
        if data_dir.exists() {
            fs::remove_dir_all(&data_dir).map_err(|error| format!("{}: {error}", data_dir.display()))?;
        }
        fs::create_dir_all(&data_dir).map_err(|error| format!("{}: {error}", data_dir.display()))?;
        let sources = home.with_file_name("peers");
        copy(variant.files, &sources, &data_dir)?;
        let log = home.join(format!("{name}.log"));
        let processes = match kind {
            Kind::Braidmq => {
                Processes::One(Process::start(braidmq(binary, variant, &ports, &data_dir, &sources), log)?)
            }
            Kind::Mosquitto => Processes::One(Process::start(mosquitto(&ports, &data_dir, home)?, log)?),
            Kind::Cluster => Processes::Cluster(Cluster::start(&ports, &data_dir, binary, home)?),
        };
        let mut broker = Self { kind, variant, ports, data_dir, processes };
        let tcp_ports: Vec<u16> = broker.tcp_ports().collect();
        let has_all = || tcp_ports.iter().copied().all(accepts);
        let process = broker.processes.front();
        process.wait_until(&format!("not all listeners on {tcp_ports:?}"), START_LIMIT, has_all)?;
        println!("# {name} is up, process {}, log {}", process.id(), process.log().display());
        Ok(broker)
    }

    fn tcp_ports(&self) -> impl Iterator<Item = u16> + use<> {
        let http = self.kind.listens("HTTP").then_some(self.ports.http());
        self.ports.stream_ports().into_iter().chain(http)
    }

    /// Exit status and log of a process that has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.processes.all().find_map(|process| {
            process.ended().map(|end| format!("{end}; its log is {}", process.log().display()))
        })
    }

    /// Name of a verdict on the processes themselves.
    pub(super) fn case(&self, label: &str) -> String {
        case(self.variant, label)
    }

    /// Stops the processes, with verdicts on their exit codes and logs.
    pub(super) fn stop(self, tally: &mut Tally) {
        let case = |label: &str| case(self.variant, label);
        match self.processes {
            Processes::One(process) => process.stop(case, tally),
            Processes::Cluster(cluster) => cluster.stop(case, tally),
        }
    }

    /// Environment of the scripts that describes the broker.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let mut variables = vec![
            ("BROKER", self.kind.name().to_owned()),
            ("CA", self.data_dir.join("cert.pem").display().to_string()),
            ("UPSTREAM_FD", self.ports.upstream_fd().to_string()),
        ];
        let listeners = self.ports.listeners().filter(|(name, _)| self.kind.listens(name));
        variables.extend(listeners.map(|(name, port)| (name, port.to_string())));
        let variant = match self.variant.name {
            "" => String::new(),
            name => format!("{}_", name.to_ascii_uppercase()),
        };
        variables.into_iter().map(|(name, value)| (format!("PEERS_{variant}{name}"), value)).collect()
    }
}

impl Processes {
    /// The process that has the ports.
    fn front(&mut self) -> &mut Process {
        match self {
            Self::One(process) => process,
            Self::Cluster(cluster) => cluster.balancer(),
        }
    }

    fn all(&mut self) -> Box<dyn Iterator<Item = &mut Process> + '_> {
        match self {
            Self::One(process) => Box::new(std::iter::once(process)),
            Self::Cluster(cluster) => Box::new(cluster.all()),
        }
    }
}

fn case(variant: &Variant, label: &str) -> String {
    if variant.name.is_empty() {
        format!("broker/{label}")
    } else {
        format!("broker/{}/{label}", variant.name)
    }
}

fn copy(files: &[&str], sources: &Path, data_dir: &Path) -> Result<(), String> {
    for file in files {
        let source = sources.join(file);
        let target = data_dir.join(source.file_name().unwrap_or_default());
        fs::copy(&source, &target)
            .and_then(|_| fs::set_permissions(&target, Permissions::from_mode(0o600)))
            .map_err(|error| format!("{} to {}: {error}", source.display(), target.display()))?;
    }
    Ok(())
}

// === Command lines ===

fn braidmq(binary: &Path, variant: &Variant, ports: &Ports, data_dir: &Path, sources: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("serve");
    for (name, port) in ports.listeners() {
        command.arg(format!("--{}", name.to_ascii_lowercase())).arg(format!("127.0.0.1:{port}"));
    }
    for setting in variant.settings {
        let setting = setting
            .replace("{sources}", &sources.display().to_string())
            .replace("{data}", &data_dir.display().to_string())
            .replace("{upstream}", &ports.upstream().to_string());
        command.args(["--set", &setting]);
    }
    command.arg("--data-dir").arg(data_dir);
    command
}

fn mosquitto(ports: &Ports, data_dir: &Path, home: &Path) -> Result<Command, String> {
    certificate(data_dir, home)?;
    let directory = data_dir.display();
    let secure = format!("certfile {directory}/cert.pem\nkeyfile {directory}/key.pem\n");
    let [tcp, tls, ws, wss] = ports.stream_ports();
    // As root, mosquitto would turn itself into a user who cannot read the key.
    let config = format!(
        "allow_anonymous true\npersistence false\nsys_interval 1\nuser root\n\
         listener {tcp} 127.0.0.1\n\
         listener {tls} 127.0.0.1\n{secure}\
         listener {ws} 127.0.0.1\nprotocol websockets\n\
         listener {wss} 127.0.0.1\nprotocol websockets\n{secure}"
    );
    let path = data_dir.join("mosquitto.conf");
    fs::write(&path, config).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut command = Command::new("mosquitto");
    // Debian installs the daemon where an ordinary user's PATH does not look.
    command.env("PATH", super::install::search_path()).arg("-c").arg(path);
    Ok(command)
}

fn accepts(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}
