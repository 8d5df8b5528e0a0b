//! A broker under torture and its oracle, through all rounds of one kind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::broker::Broker;
use super::device::Device;
use super::disk::Disk;
use super::kind::{Kind, Overflow};
use super::oracle::Oracle;
use super::report::{Progress, Summary};
use super::spool::Spool;
use super::{Scene, Transport};

/// What is large is so above 256 KiB, which all else is below: whoever sends it is refused while there is no room, and the
/// others are to go on. It fills a small disk as it can.
const SETTINGS: [&str; 3] = ["limits.queued_bytes=2000000000", "spool.threshold=262144", "spool.keep_free=0"];
/// Readers who are away for long must find everything ...
const MESSAGES: u32 = 10_000_000;
/// ... unless what is tried is that they do not.
const FEW_MESSAGES: u32 = 40;

/// The broker, who uses it, what it stands on, and what was seen.
pub(super) struct Stage {
    pub(super) broker: Broker,
    pub(super) spool: Spool,
    pub(super) oracle: Oracle,
    pub(super) random: fastrand::Rng,
    pub(super) summary: Summary,
    /// Where the broker keeps what it has.
    pub(super) ground: Ground,
}

/// What the broker stands on.
pub(super) enum Ground {
    /// Nothing is wrong with it.
    Firm,
    /// It can become full.
    Small(Disk),
    /// It can fail.
    Weak(Device),
}

impl Ground {
    pub(super) fn disk(&self) -> Result<&Disk, String> {
        let Self::Small(disk) = self else { return Err("there is no disk to fill".to_owned()) };
        Ok(disk)
    }

    pub(super) fn device(&self) -> Result<&Device, String> {
        let Self::Weak(device) = self else { return Err("there is no device to fail".to_owned()) };
        Ok(device)
    }
}

impl Scene<'_> {
    /// All rounds below `home`; what was seen, and where the broker's log is.
    ///
    /// # Errors
    /// It cannot begin.
    pub(super) fn play(&self, home: &Path) -> Result<(Summary, PathBuf), String> {
        std::fs::create_dir_all(home).map_err(|error| format!("{}: {error}", home.display()))?;
        let mut stage = Stage::set(self, home)?;
        if let Err(reason) = stage.play(self).and_then(|()| stage.end(&self.args.transports())) {
            stage.summary.wrong(&reason);
        }
        stage.summary.end();
        if let (Ground::Small(disk), false) = (&stage.ground, stage.summary.is_good()) {
            // What is on it goes with this program, and somebody wants to look at it.
            stage.broker.kill();
            disk.rescue(home)?;
        }
        Ok((stage.summary, stage.broker.log().to_owned()))
    }
}

impl Stage {
    fn set(scene: &Scene<'_>, home: &Path) -> Result<Self, String> {
        let ports = scene.args.transports().into_iter().map(|one| one.free_port().map(|port| (one, port)));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        let (data_dir, ground) = match scene.plan.kind {
            Kind::Kill | Kind::Stop => (home.join("data"), Ground::Firm),
            Kind::Full => {
                let disk = Disk::mount(&home.join("disk"))?;
                (disk.data_dir(), Ground::Small(disk))
            }
            Kind::Dying => (home.join("data"), Ground::Weak(Device::new(home, &home.join("data")))),
        };
        let queue = scene.plan.queue;
        let (log, settings) = (home.join("broker.log"), settings(queue));
        let mut broker = Broker::new(scene.binary, &data_dir, &log, ports.clone(), settings);
        broker.start()?;
        let (certificate, options) = (data_dir.join("cert.pem"), options(queue));
        let oracle = Oracle::start(scene.oracle, &ports, &certificate, scene.seed, &options)?;
        let (spool, summary) = (Spool::new(&data_dir), Summary::new(scene.plan));
        Ok(Self { broker, spool, oracle, random: fastrand::Rng::with_seed(scene.seed), summary, ground })
    }

    fn play(&mut self, scene: &Scene<'_>) -> Result<(), String> {
        let mut progress = Progress::default();
        self.spool.leave_orphan()?;
        self.oracle.tell("up")?;
        for round in 1..=scene.rounds {
            if let Some(program) = &scene.args.before_round {
                let status = Command::new(program).status();
                status.map_err(|error| format!("cannot start {}: {error}", program.display()))?;
            }
            let began = Instant::now();
            self.round(scene.plan)?;
            let report = self.oracle.check(round == scene.rounds)?;
            self.summary.note(round, report, began.elapsed());
            progress.print(&self.summary, scene.rounds);
            if !self.summary.is_good() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// SIGTERM, and a look at what is left.
    fn end(&mut self, transports: &[Transport]) -> Result<(), String> {
        if self.summary.is_good() {
            // Everybody has everything. A large message can be retained for each.
            self.spool.wait_for_room(self.broker.id(), transports.len())?;
        }
        let status = self.broker.terminate()?;
        if !status.success() {
            return Err(format!("the broker ended with {status} after SIGTERM"));
        }
        self.broker.check_store()
    }

    /// Some time below this.
    pub(super) fn pause(&mut self, end: Duration) {
        std::thread::sleep(end.mul_f64(self.random.f64()));
    }
}

/// What the broker is told.
fn settings(queue: Option<Overflow>) -> Vec<String> {
    let mut settings = SETTINGS.map(str::to_owned).to_vec();
    let messages = if queue.is_some() { FEW_MESSAGES } else { MESSAGES };
    settings.push(format!("limits.queued_messages={messages}"));
    settings.extend(queue.map(|overflow| format!("limits.queue_overflow={}", overflow.name())));
    settings
}

/// And the oracle.
fn options(queue: Option<Overflow>) -> Vec<String> {
    let options = |overflow: Overflow| {
        ["--queue-overflow", overflow.name(), "--queued-messages", &FEW_MESSAGES.to_string()]
            .map(str::to_owned)
            .to_vec()
    };
    queue.map(options).unwrap_or_default()
}
