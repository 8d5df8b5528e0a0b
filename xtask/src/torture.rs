//! `cargo xtask torture`: a real `braidmq serve` is killed, stopped or starved under load, and an oracle in a process of
//! its own says whether anything that was acknowledged is lost.
//!
//! The oracle is `braid-bench`'s example `torture`, because it speaks QUIC. This process only decides what happens to
//! the broker, and when.

mod broker;
mod fault;
mod oracle;
mod report;

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use broker::Broker;
use oracle::Oracle;
use report::{Progress, Summary};

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

/// What happens to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// SIGKILL, now and then a second one while it starts.
    Kill,
    /// SIGSTOP for some seconds, and SIGCONT or SIGKILL.
    Stop,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What happens to the broker in each round.
    #[arg(long, value_enum, default_value = "kill")]
    fault: Fault,
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
    let (binary, oracle) = programs(args)?;
    let home = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut stage = Stage::set(args, &binary, &oracle, home.path(), seed)?;
    println!("torture: {:?}, {} rounds, seed {seed}, {}", args.fault, args.rounds, binary.display());
    let outcome = stage.play(args).and_then(|()| stage.end());
    let is_good = match &outcome {
        Ok(()) => stage.summary.is_good(),
        Err(reason) => {
            stage.summary.wrong(reason);
            false
        }
    };
    println!("{}", stage.summary);
    if let Some(file) = &args.json {
        stage.summary.write(file)?;
    }
    if !is_good {
        let log = stage.broker.log().to_owned();
        drop(stage);
        let kept = home.keep();
        println!("torture: what is left of it is in {}, its log is {}", kept.display(), log.display());
    }
    Ok(is_good)
}

/// The broker and the oracle.
fn programs(args: &Args) -> Result<(PathBuf, PathBuf), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "braid-bench", "--example", "torture"]);
    if args.binary.is_none() {
        command.args(["--package", "braidmq", "--bin", "braidmq"]);
    }
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    if !command.status().map_err(|error| format!("cannot start cargo: {error}"))?.success() {
        return Err("what is needed cannot be built".to_owned());
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let beside = own.parent().unwrap_or(Path::new("."));
    let binary = args.binary.clone().unwrap_or_else(|| beside.join("braidmq"));
    Ok((binary, beside.join("examples/torture")))
}

/// The broker, who uses it, and what was seen.
struct Stage {
    broker: Broker,
    oracle: Oracle,
    random: fastrand::Rng,
    summary: Summary,
}

impl Stage {
    fn set(args: &Args, binary: &Path, oracle: &Path, home: &Path, seed: u64) -> Result<Self, String> {
        let all = [Transport::Mqtt, Transport::Mqtts, Transport::Quic];
        let transports: Vec<_> =
            all.into_iter().filter(|one| args.transport.is_empty() || args.transport.contains(one)).collect();
        let ports = transports.iter().map(|one| one.free_port().map(|port| (*one, port)));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        let mut broker = Broker::new(binary, &home.join("data"), ports.clone());
        broker.start()?;
        let certificate = broker.data_dir().join("cert.pem");
        let oracle = Oracle::start(oracle, &ports, &certificate, seed)?;
        let summary = Summary::new(args.fault, transports, seed, binary);
        Ok(Self { broker, oracle, random: fastrand::Rng::with_seed(seed), summary })
    }

    fn play(&mut self, args: &Args) -> Result<(), String> {
        let mut progress = Progress::default();
        self.oracle.tell("up")?;
        for round in 1..=args.rounds {
            if let Some(program) = &args.before_round {
                let status = Command::new(program).status();
                status.map_err(|error| format!("cannot start {}: {error}", program.display()))?;
            }
            let began = Instant::now();
            self.round(args.fault)?;
            let report = self.oracle.check(round == args.rounds)?;
            self.summary.note(round, report, began.elapsed());
            progress.print(&self.summary, args.rounds);
            if !self.summary.is_good() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// SIGTERM, and a look at what is left.
    fn end(&mut self) -> Result<(), String> {
        let status = self.broker.terminate()?;
        if !status.success() {
            return Err(format!("the broker ended with {status} after SIGTERM"));
        }
        self.broker.check_store()
    }

    /// Some time below this.
    fn pause(&mut self, end: Duration) {
        std::thread::sleep(end.mul_f64(self.random.f64()));
    }
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
