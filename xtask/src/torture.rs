//! `cargo xtask torture`: a real `braidmq serve` is killed, stopped or starved under load, and an oracle in a process of
//! its own says whether anything that was acknowledged is lost.
//!
//! The oracle is `braid-bench`'s example `torture`, because it speaks QUIC. This process only decides what happens to
//! the broker, and when.

mod broker;
mod device;
mod disk;
mod fault;
mod kind;
mod oracle;
mod report;
pub(crate) mod soak;
mod spool;
mod stage;

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use kind::{Kind, Plan};
use report::Record;

/// How clients reach the broker.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    /// TCP.
    Mqtt,
    /// TLS.
    Mqtts,
    /// QUIC, several streams for each connection.
    Quic,
}

impl Transport {
    /// As the oracle calls it.
    fn scheme(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Mqtts => "mqtts",
            Self::Quic => "quic",
        }
    }

    /// The option of `braidmq serve`.
    fn listener(self) -> &'static str {
        match self {
            Self::Mqtt => "--tcp",
            Self::Mqtts => "--tls",
            Self::Quic => "--quic",
        }
    }

    /// A port that was free a moment ago.
    fn free_port(self) -> Result<u16, String> {
        let local = (Ipv4Addr::LOCALHOST, 0);
        let address = match self {
            Self::Quic => UdpSocket::bind(local).and_then(|socket| socket.local_addr()),
            _ => TcpListener::bind(local).and_then(|socket| socket.local_addr()),
        };
        address.map(|address| address.port()).map_err(|error| format!("no free port on loopback: {error}"))
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What happens to the broker, and how often; several one after the other, each with its own broker and oracle, for
    /// example kill:20,full:3. `kill`: SIGKILL, now and then a second one while it starts. `stop`: SIGSTOP for up to 4 s,
    /// and SIGCONT or SIGKILL. `full`: its disk becomes full (a small one in memory; needs `unshare` and `mount`).
    /// `dying`: its device fails to write, or to sync (needs `strace`). With +drop-oldest, +drop-newest or +disconnect
    /// queues hold little and do that when they are full, for example kill+drop-oldest:20.
    #[arg(long, value_delimiter = ',', value_name = "KIND[+QUEUE][:ROUNDS]", default_value = "kill")]
    kind: Vec<Plan>,
    /// How often, where a kind does not say it.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How clients reach it; default all, at the same time.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCHEME")]
    transport: Vec<Transport>,
    /// For everything that is drawn; what the machine does meanwhile differs all the same. Default: the time.
    #[arg(long)]
    seed: Option<u64>,
    /// The braidmq binary; without it, it is built as this program was.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Run this program before each round, and begin the round when it has ended: for a machine that others measure on.
    #[arg(long, value_name = "PROGRAM")]
    before_round: Option<PathBuf>,
    /// Also write what was found as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// It has a mount namespace of its own: it gives itself one where a kind needs it.
    #[arg(long, hide = true)]
    inside: bool,
}

impl Args {
    /// All transports that are wanted, in their order.
    fn transports(&self) -> Vec<Transport> {
        let all = [Transport::Mqtt, Transport::Mqtts, Transport::Quic];
        let is_wanted = |one: &Transport| self.transport.is_empty() || self.transport.contains(one);
        all.into_iter().filter(is_wanted).collect()
    }

    fn has(&self, kind: Kind) -> bool {
        self.kind.iter().any(|plan| plan.kind == kind)
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match torture(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("torture: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing is wrong.
fn torture(args: &Args) -> Result<bool, String> {
    if args.has(Kind::Dying) {
        device::check()?;
    }
    if args.has(Kind::Full) && !args.inside {
        return Err(disk::enter_house());
    }
    let (binary, oracle) = programs(args.binary.as_deref(), Profile::OWN)?;
    let home = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut record = Record::begin(args.transports(), seed, &binary);
    for plan in &args.kind {
        let rounds = plan.rounds.unwrap_or(args.rounds);
        println!("torture: {}, {rounds} rounds, seed {seed}, {}", plan.name(), binary.display());
        let scene = Scene { args, binary: &binary, oracle: &oracle, plan: *plan, rounds, seed };
        let (summary, log) = scene.play(&home.path().join(plan.name()))?;
        println!("{summary}");
        record.runs.push(summary);
        if !record.is_good() {
            println!(
                "torture: what is left of it is in {}, its log is {}",
                home.keep().display(),
                log.display()
            );
            break;
        }
    }
    if let Some(file) = &args.json {
        record.write(file)?;
    }
    Ok(record.is_good())
}

/// All rounds of one kind.
struct Scene<'a> {
    args: &'a Args,
    binary: &'a Path,
    oracle: &'a Path,
    plan: Plan,
    rounds: u32,
    seed: u64,
}

/// How something is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile {
    Debug,
    Release,
}

impl Profile {
    /// That of this program.
    const OWN: Self = if cfg!(debug_assertions) { Self::Debug } else { Self::Release };

    /// Where cargo puts it, beside the others.
    fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// The broker, unless it is there, and the oracle.
fn programs(broker: Option<&Path>, profile: Profile) -> Result<(PathBuf, PathBuf), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "braid-bench", "--example", "torture"]);
    if broker.is_none() {
        command.args(["--package", "braidmq", "--bin", "braidmq"]);
    }
    if profile == Profile::Release {
        command.arg("--release");
    }
    if !command.status().map_err(|error| format!("cannot start cargo: {error}"))?.success() {
        return Err("what is needed cannot be built".to_owned());
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    // target/debug/xtask
    let target = own.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    let folder = target.join(profile.folder());
    let binary = broker.map_or_else(|| folder.join("braidmq"), Path::to_owned);
    Ok((binary, folder.join("examples/torture")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_has_its_listener() {
        let words =
            [Transport::Mqtt, Transport::Mqtts, Transport::Quic].map(|one| (one.scheme(), one.listener()));
        assert_eq!(words, [("mqtt", "--tcp"), ("mqtts", "--tls"), ("quic", "--quic")]);
    }
}
