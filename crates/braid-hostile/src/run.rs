//! One row: a broker, well-behaved clients, and the attack between two quiet phases.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use braid_measure::process::wait_for_quiet;
use braid_torture::Broker;
use braid_transport::Transport;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use crate::attacker::Counters;
use crate::http;
use crate::row::Row;
use crate::target::Target;
use crate::usage::{Sample, Sampler, reading, shares_since};
use crate::verdict::{Finding, Latency, PairFinding, UsageFinding};
use crate::well_behaved::{Pair, serve_fresh_client};

/// Settings of every broker: an HTTP front with a directory and an upstream.
const SETTINGS: [&str; 2] = [
    "http.tls=true",
    "http.route=[{path='/files', directory='{home}'}, {path='/app', upstream='http://{upstream}'}]",
];
/// Time in which connections, caches and allocator of a new broker come to rest.
const WARM_UP: Duration = Duration::from_secs(2);
/// Time between the end of the attack and the second quiet phase.
const SETTLE: Duration = Duration::from_secs(2);
/// Time in which the last messages of a phase arrive.
const LAST_ARRIVALS: Duration = Duration::from_millis(500);
/// Periods of each quiet phase: odd, so that one that other programs disturb does not move the median.
const PERIODS: u32 = 3;
/// Time limit for the end of the attacker's process after the end of the attack.
const ATTACKER_END: Duration = Duration::from_secs(10);

/// User whose password is guessed.
pub(crate) const USER: &str = "victim";

/// A row to run.
pub(crate) struct RowRun<'a> {
    pub(crate) binary: &'a Path,
    /// Program with the attacks: this one.
    pub(crate) program: &'a Path,
    pub(crate) row: &'static Row,
    /// Duration of the attack.
    pub(crate) seconds: Duration,
    /// Most time to wait until other processes leave the machine alone.
    pub(crate) patience: Duration,
}

impl RowRun<'_> {
    /// Runs the row. Faults of the broker are in the finding.
    ///
    /// # Errors
    /// The broker does not start, or the attacker cannot be started.
    pub(crate) fn execute(&self) -> Result<Finding, String> {
        wait_for_quiet(std::time::Instant::now() + self.patience).map_err(|error| error.to_string())?;
        let home = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        let data_dir = home.path().join("data");
        let target = Target::free(&data_dir)?;
        let users = home.path().join("users");
        let (home_text, upstream) = (home.path().display().to_string(), target.upstream().to_string());
        let setting = |setting: &&str| setting.replace("{home}", &home_text).replace("{upstream}", &upstream);
        let settings: Vec<_> = SETTINGS.iter().chain(self.row.settings).map(setting).collect();
        if self.row.settings.iter().any(|setting| setting.contains("{home}/users")) {
            add_user(self.binary, &users)?;
        }
        let log = home.path().join("broker.log");
        let mut broker = Broker::new(self.binary, &data_dir, &log, target.listeners(), settings);
        broker.start()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("no runtime: {error}"))?;
        let mut finding = Finding::new(self.row);
        let measured = LocalSet::new().block_on(&runtime, self.measure(&mut finding, &target, broker.id()));
        drop(runtime);
        finding.decide();
        finding.wrong.extend(measured.err());
        finding.wrong.extend(end(&mut broker).err());
        Ok(finding)
    }

    /// Measures into `finding`.
    ///
    /// # Errors
    /// The broker has ended or does not serve.
    async fn measure(&self, finding: &mut Finding, target: &Target, broker: u32) -> Result<(), String> {
        let (begin, mut pairs) = (Instant::now(), Vec::new());
        for kind in self.row.pairs {
            pairs.push(Pair::start(target, *kind).await?);
        }
        sleep(WARM_UP).await;
        let quiet = self.seconds / 2;
        let mut usage = UsageFinding::default();
        let started = reading(broker)?;
        let before = Instant::now();
        sleep(quiet).await;
        usage.before = Sample::of(broker)?;
        let (shares, started) = shares_since(&started, broker)?;
        usage.quiet_cores = shares.broker;

        let sampler = Sampler::start(broker);
        let attack = Instant::now();
        let attacker = Attacker::start(self, target)?;
        sleep(self.seconds).await;
        let attacked = Instant::now();
        let shares = shares_since(&started, broker);
        finding.attack = attacker.end().await?;
        sleep(SETTLE).await;

        let after = Instant::now();
        sleep(quiet + LAST_ARRIVALS).await;
        usage.peak = sampler.peak();
        finding.usage = usage;
        for pair in &pairs {
            let median = |start| {
                let of = |(from, to)| Latency::of(&pair.latencies(from, to));
                Latency::median(&periods(start, quiet).map(of).collect::<Vec<_>>())
            };
            let all = pair.latencies(begin, after + quiet);
            finding.pairs.push(PairFinding {
                name: pair.kind.name(),
                quiet: median(before),
                attack: Latency::of(&pair.latencies(attack, attacked)),
                after: median(after),
                missing: all.due() - all.arrived(),
                faults: pair.faults(),
            });
        }
        let (shares, _) = shares?;
        (finding.usage.cores, finding.usage.other_cores) = (shares.broker, shares.others);
        finding.usage.after = Sample::of(broker)?;
        for transport in [Transport::Tcp, Transport::Quic] {
            let took = serve_fresh_client(target, transport).await?;
            finding.fresh_client_ms = finding.fresh_client_ms.max(took.as_secs_f64() * 1e3);
        }
        for version in [http::HTTP1, http::HTTP3] {
            let took = http::serve_fresh_request(target, version).await?;
            finding.fresh_client_ms = finding.fresh_client_ms.max(took.as_secs_f64() * 1e3);
        }
        Ok(())
    }
}

/// Makes a password file with [`USER`].
///
/// # Errors
/// `braidmq passwd` fails.
fn add_user(binary: &Path, users: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("braidmq passwd: {error}");
    let mut command = Command::new(binary);
    command.args(["passwd", "add", "--stdin"]).arg(users).arg(USER);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(b"a password that is not guessed").map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(format!("braidmq passwd ended with {status}")) }
}

/// Equal periods of a quiet phase.
fn periods(start: Instant, phase: Duration) -> impl Iterator<Item = (Instant, Instant)> {
    let period = phase / PERIODS;
    (0..PERIODS).map(move |at| (start + period * at, start + period * (at + 1)))
}

/// Ends the broker with SIGTERM.
///
/// # Errors
/// The broker has ended before, fails to end, or a thread of it has panicked.
fn end(broker: &mut Broker) -> Result<(), String> {
    if let Some(status) = broker.wait_for(Duration::ZERO)? {
        return Err(format!("the broker ended with {status} during the row"));
    }
    let status = broker.terminate()?;
    broker.check_panics()?;
    if status.success() { Ok(()) } else { Err(format!("the broker ended with {status} after SIGTERM")) }
}

/// Process of an attack, killed when it is dropped.
struct Attacker(Child);

impl Attacker {
    fn start(run: &RowRun<'_>, target: &Target) -> Result<Self, String> {
        let target = serde_json::to_string(target).map_err(|error| error.to_string())?;
        let mut command = Command::new(run.program);
        command.args(["--row", run.row.name, "--attack", &target, "--seconds"]);
        command.arg(run.seconds.as_secs().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map(Self).map_err(|error| format!("cannot start the attacker: {error}"))
    }

    /// Waits for the end of the process, and returns its counters.
    ///
    /// # Errors
    /// The process does not end, or reports an error.
    async fn end(mut self) -> Result<Counters, String> {
        let deadline = Instant::now() + ATTACKER_END;
        let status = loop {
            match self.0.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if Instant::now() > deadline => return Err("the attacker does not end".to_owned()),
                None => sleep(Duration::from_millis(20)).await,
            }
        };
        let mut said = String::new();
        if let Some(output) = &mut self.0.stdout {
            output.read_to_string(&mut said).map_err(|error| error.to_string())?;
        }
        serde_json::from_str(&said).map_err(|error| format!("the attacker ended with {status}: {error}"))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
