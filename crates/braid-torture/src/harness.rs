//! All rounds of one plan: the broker, the oracle and the faults between them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use braid_torture::{Broker, REFUSED, STORE_FAILED, Start};
use rustix::process::Signal;

use super::Args;
use super::device::{Device, Failure};
use super::disk::Disk;
use super::oracle::{Options, Oracle};
use super::plan::{Kind, Overflow, Plan, Transport, name};
use super::report::{Progress, Summary};
use super::spool::Spool;

/// Settings of the broker. Messages above 256 KiB are spooled, all others are smaller: the publisher of a large message
/// is refused while the disk has no room, and the others have to go on. The spool may fill a small disk.
const SETTINGS: [&str; 3] = ["limits.queued_bytes=2000000000", "spool.threshold=262144", "spool.keep_free=0"];
/// Message limit of queues that must not drop anything for long offline subscribers.
const MESSAGES: u32 = 10_000_000;
/// Message limit of bounded queues.
const FEW_MESSAGES: u32 = 40;
/// Latest time of a kill after the first acknowledgement.
const SOON: Duration = Duration::from_millis(150);
/// Longest time for which a process is stopped.
const STOPPED: Duration = Duration::from_secs(4);
/// Most bytes that are left on a full disk.
const ROOM: u64 = 1 << 20;
/// Time between two loads while the disk fails.
const LOAD_PERIOD: Duration = Duration::from_millis(500);
/// Time limit for the end of a broker whose disk fails.
const LIMIT: Duration = Duration::from_secs(60);
/// Time for which a broker with bounded queues is watched, which may need no more of its disk.
const SHORT: Duration = Duration::from_secs(3);
/// Errors of a full disk.
const FULL: [&str; 2] = ["No space left on device", "no space is left on the device"];
/// Errors of a failing device.
const DYING: [&str; 1] = ["Input/output error"];

/// Runs all rounds of one plan.
pub(crate) struct PlanRun<'a> {
    pub(crate) args: &'a Args,
    pub(crate) binary: &'a Path,
    pub(crate) plan: Plan,
    pub(crate) rounds: u32,
    pub(crate) seed: u64,
}

/// The broker, its clients, its disk, and the findings.
struct Harness {
    broker: Broker,
    spool: Spool,
    oracle: Oracle,
    random: fastrand::Rng,
    summary: Summary,
    storage: Storage,
}

/// Storage under the broker's data directory.
enum Storage {
    /// Works.
    Reliable,
    /// Can become full.
    Small(Disk),
    /// Can fail.
    Failing(Device),
}

impl PlanRun<'_> {
    /// Runs all rounds below `home`; returns the findings and the broker's log.
    ///
    /// # Errors
    /// The broker or the oracle does not start.
    pub(crate) fn execute(&self, home: &Path) -> Result<(Summary, PathBuf), String> {
        std::fs::create_dir_all(home).map_err(|error| format!("{}: {error}", home.display()))?;
        let mut harness = Harness::start(self, home)?;
        if let Err(reason) = harness.run_rounds(self).and_then(|()| harness.end(&self.args.transports())) {
            harness.summary.wrong(&reason);
        }
        if let Err(reason) = harness.broker.check_panics() {
            harness.summary.wrong(&reason);
        }
        harness.summary.end();
        if let (Storage::Small(disk), false) = (&harness.storage, harness.summary.is_good()) {
            // The disk in memory goes with this process, and the store on it is evidence.
            harness.broker.kill();
            disk.rescue(home)?;
        }
        Ok((harness.summary, harness.broker.log.clone()))
    }
}

impl Harness {
    fn start(run: &PlanRun<'_>, home: &Path) -> Result<Self, String> {
        let ports = Transport::free_ports(&run.args.transports())?;
        let (data_dir, storage) = match run.plan.kind {
            Kind::Kill | Kind::Stop => (home.join("data"), Storage::Reliable),
            Kind::Full => {
                let disk = Disk::mount(&home.join("disk"))?;
                (disk.data_dir(), Storage::Small(disk))
            }
            Kind::FailingDevice => {
                (home.join("data"), Storage::Failing(Device::new(home, &home.join("data"))))
            }
        };
        let queue = run.plan.queue;
        let log = home.join("broker.log");
        let mut broker =
            Broker::new(run.binary, &data_dir, &log, Transport::listeners(&ports), settings(queue));
        broker.start()?;
        let options = Options {
            seed: run.seed,
            pace: Duration::ZERO,
            most_offline: u64::MAX,
            crowd: false,
            bounded: queue.map(|overflow| (overflow, FEW_MESSAGES.into())),
        };
        let oracle = Oracle::start(&ports, &data_dir.join("cert.pem"), options)?;
        let (spool, summary) = (Spool::new(&data_dir), Summary::new(run.plan));
        Ok(Self { broker, spool, oracle, random: fastrand::Rng::with_seed(run.seed), summary, storage })
    }

    fn run_rounds(&mut self, run: &PlanRun<'_>) -> Result<(), String> {
        let mut progress = Progress::default();
        self.spool.leave_orphan()?;
        self.oracle.up()?;
        for round in 1..=run.rounds {
            if let Some(program) = &run.args.before_round {
                let status = Command::new(program).status();
                status.map_err(|error| format!("cannot start {}: {error}", program.display()))?;
            }
            let began = Instant::now();
            self.round(run.plan)?;
            let report = self.oracle.check(round == run.rounds, &mut self.broker)?;
            self.summary.note(round, report, began.elapsed());
            progress.print(&self.summary, run.rounds);
            if !self.summary.is_good() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Ends the broker with SIGTERM and checks its spool and store.
    fn end(&mut self, transports: &[Transport]) -> Result<(), String> {
        if self.summary.is_good() {
            // Every delivery was made. Each transport has one topic with a large retained message.
            self.spool.wait_for_room(self.broker.id(), transports.len())?;
        }
        let status = self.broker.terminate()?;
        if !status.success() {
            return Err(format!("the broker ended with {status} after SIGTERM"));
        }
        self.broker.check_store()
    }

    /// Sleeps for a random time below `end`.
    fn pause(&mut self, end: Duration) {
        std::thread::sleep(end.mul_f64(self.random.f64()));
    }

    // === Faults: each leaves the broker serving ===

    fn round(&mut self, plan: Plan) -> Result<(), String> {
        self.oracle.load(&mut self.broker)?;
        self.pause(SOON);
        // A fault would hide an end by itself.
        self.broker.check_running()?;
        match plan.kind {
            Kind::Kill => self.kill_and_restart(),
            Kind::Stop => self.stop(),
            Kind::Full if plan.queue.is_some() => self.fill_and_restart(SHORT),
            Kind::Full => self.fill_and_restart(LIMIT),
            Kind::FailingDevice => self.fail_and_restart(),
        }
    }

    fn kill_and_restart(&mut self) -> Result<(), String> {
        self.kill()?;
        let is_quiet = self.rest_perhaps()?;
        if self.random.u32(..4) == 0 {
            self.kill_while_it_starts()?;
        }
        self.restart(is_quiet)
    }

    /// Ends the load in half of the rounds, so that no new message hides a lost one.
    fn rest_perhaps(&mut self) -> Result<bool, String> {
        let is_quiet = self.random.bool();
        if is_quiet {
            self.oracle.rest()?;
        }
        Ok(is_quiet)
    }

    fn kill(&mut self) -> Result<(), String> {
        self.broker.kill();
        self.summary.kills += 1;
        self.oracle.down()
    }

    fn kill_while_it_starts(&mut self) -> Result<(), String> {
        // Up to half as long again as a start takes, so that clients of TCP may be connected.
        let usual = self.summary.usual_start();
        let _output = self.broker.spawn()?;
        self.pause(usual.mul_f64(1.5));
        self.broker.kill();
        self.summary.kills += 1;
        Ok(())
    }

    fn restart(&mut self, is_quiet: bool) -> Result<(), String> {
        self.spool.leave_orphan()?;
        let took = self.broker.start()?;
        self.spool.check(self.broker.id())?;
        self.summary.starts.push(took);
        self.oracle.up()?;
        if !is_quiet {
            self.pause(SOON);
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        self.broker.signal(Signal::STOP);
        self.summary.stops += 1;
        self.pause(STOPPED);
        if self.random.u32(..4) == 0 {
            return self.kill_and_restart();
        }
        self.broker.signal(Signal::CONT);
        self.pause(SOON);
        Ok(())
    }

    /// Fills the disk and watches the broker for `wait`; bounded queues may find enough room in the store for ever.
    fn fill_and_restart(&mut self, wait: Duration) -> Result<(), String> {
        // No byte is left in half of the rounds.
        let left = if self.random.bool() { 0 } else { self.random.u64(..ROOM) };
        self.disk()?.fill(left)?;
        let status = self.load_until_end(wait)?;
        if status.is_none() && wait == LIMIT {
            return Err(format!("the broker has not ended within {LIMIT:?}, though its disk is full"));
        }
        let Some(status) = status else {
            self.disk()?.clear()?;
            return self.kill_and_restart();
        };
        self.broker.check_end(status, STORE_FAILED, &FULL)?;
        let is_quiet = self.rest_perhaps()?;
        if self.random.u32(..4) == 0 {
            self.start_on_full_disk()?;
        }
        self.disk()?.clear()?;
        self.restart(is_quiet)
    }

    fn disk(&self) -> Result<&Disk, String> {
        let Storage::Small(disk) = &self.storage else { return Err("the plan has no small disk".to_owned()) };
        Ok(disk)
    }

    /// Starts on a full disk: the broker refuses, fails, or finds enough room for now.
    fn start_on_full_disk(&mut self) -> Result<(), String> {
        match self.broker.try_start(None)? {
            Start::Ended(status) if status.code() == Some(STORE_FAILED) => {
                self.broker.check_end(status, STORE_FAILED, &FULL)
            }
            Start::Ended(status) => {
                self.summary.refusals += 1;
                self.broker.check_end(status, REFUSED, &FULL)
            }
            Start::Serves(_) => {
                self.pause(SOON);
                self.broker.kill();
                Ok(())
            }
        }
    }

    fn fail_and_restart(&mut self) -> Result<(), String> {
        self.kill()?;
        let failure = Failure::draw(&mut self.random);
        let Storage::Failing(device) = &self.storage else {
            return Err("the plan has no failing device".to_owned());
        };
        let command = device.prepare(failure)?;
        let start = self.broker.try_start(Some(command));
        let process_id = self.broker.last_id;
        let (status, code) = match start? {
            Start::Ended(status) => {
                self.summary.refusals += 1;
                (status, REFUSED)
            }
            Start::Serves(_) => {
                self.oracle.up()?;
                let status = self.load_until_end(LIMIT)?;
                let status =
                    status.ok_or_else(|| format!("the broker runs on without a device after {LIMIT:?}"))?;
                (status, STORE_FAILED)
            }
        };
        self.broker.check_end(status, code, &DYING).map_err(|wrong| format!("{failure:?}: {wrong}"))?;
        if let Storage::Failing(device) = &self.storage {
            self.summary.lost_blocks += device.lose_unsynced(process_id, &mut self.random)?;
        }
        let is_quiet = self.rest_perhaps()?;
        self.restart(is_quiet)
    }

    /// Loads the broker until it ends by itself; `None` if it runs on after `wait`.
    fn load_until_end(&mut self, wait: Duration) -> Result<Option<ExitStatus>, String> {
        let began = Instant::now();
        while began.elapsed() < wait {
            if let Some(status) = self.broker.wait_for(LOAD_PERIOD)? {
                self.summary.failures += 1;
                self.oracle.down()?;
                return Ok(Some(status));
            }
            self.oracle.begin_load()?;
        }
        Ok(None)
    }
}

/// Settings of the broker for queues with this overflow policy, or for unbounded ones.
fn settings(queue: Option<Overflow>) -> Vec<String> {
    let mut settings = SETTINGS.map(str::to_owned).to_vec();
    let messages = if queue.is_some() { FEW_MESSAGES } else { MESSAGES };
    settings.push(format!("limits.queued_messages={messages}"));
    settings.extend(queue.map(|overflow| format!("limits.queue_overflow={}", name(&overflow))));
    settings
}
