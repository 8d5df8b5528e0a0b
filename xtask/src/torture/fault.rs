//! What is done to the broker in a round. Each leaves it serving.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::broker::{REFUSED, STORE_FAILED, Start};
use super::device::Failure;
use super::kind::{Kind, Plan};
use super::stage::{Ground, Stage};
use crate::signal;

/// A kill comes within this time of the first acknowledgement.
const SOON: Duration = Duration::from_millis(150);
/// How long a process is stopped, at most.
const STOPPED: Duration = Duration::from_secs(4);
/// Room that is left on a disk that becomes full, at most.
const ROOM: u64 = 1 << 20;
/// Readers change their minds this often as long as a disk holds.
const OFTEN: Duration = Duration::from_millis(500);
/// A broker whose disk does not serve it must have ended by then.
const LIMIT: Duration = Duration::from_secs(60);
/// One that may need no more of its disk is watched for so long.
const SHORT: Duration = Duration::from_secs(3);
/// What a broker says whose disk is full.
const FULL: [&str; 2] = ["No space left on device", "no space is left on the device"];
/// What it says of a device that fails.
const DYING: [&str; 1] = ["Input/output error"];

impl Stage {
    pub(super) fn round(&mut self, plan: Plan) -> Result<(), String> {
        self.oracle.load()?;
        self.pause(SOON);
        match plan.kind {
            Kind::Kill => self.kill_and_start(),
            Kind::Stop => self.stop(),
            Kind::Full if plan.queue.is_some() => self.fill_and_start(SHORT),
            Kind::Full => self.fill_and_start(LIMIT),
            Kind::Dying => self.fail_and_start(),
        }
    }

    fn kill_and_start(&mut self) -> Result<(), String> {
        self.kill()?;
        let is_quiet = self.be_quiet_perhaps()?;
        if self.random.u32(..4) == 0 {
            self.kill_while_it_starts()?;
        }
        self.start(is_quiet)
    }

    /// In half of the rounds nothing new hides what is lost.
    fn be_quiet_perhaps(&mut self) -> Result<bool, String> {
        let is_quiet = self.random.bool();
        if is_quiet {
            self.oracle.tell("rest")?;
        }
        Ok(is_quiet)
    }

    fn kill(&mut self) -> Result<(), String> {
        self.broker.kill();
        self.summary.kills += 1;
        self.oracle.tell("down")
    }

    fn kill_while_it_starts(&mut self) -> Result<(), String> {
        // As long as a start takes, and some more: clients of TCP may be there by then.
        let usual = self.summary.usual_start();
        let _output = self.broker.spawn()?;
        self.pause(usual.mul_f64(1.5));
        self.broker.kill();
        self.summary.kills += 1;
        Ok(())
    }

    fn start(&mut self, is_quiet: bool) -> Result<(), String> {
        self.spool.leave_orphan()?;
        let took = self.broker.start()?;
        self.spool.check(self.broker.id())?;
        self.summary.starts.push(took);
        self.oracle.tell("up")?;
        if !is_quiet {
            self.pause(SOON);
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        let process_id = self.broker.id();
        signal::stop(process_id);
        self.summary.stops += 1;
        self.pause(STOPPED);
        if self.random.u32(..4) == 0 {
            return self.kill_and_start();
        }
        signal::go_on(process_id);
        self.pause(SOON);
        Ok(())
    }

    /// `wait`: how long it may go on; queues that hold little may find room enough in the store for ever.
    fn fill_and_start(&mut self, wait: Duration) -> Result<(), String> {
        // In half of the rounds nothing is left.
        let left = if self.random.bool() { 0 } else { self.random.u64(..ROOM) };
        self.ground.disk()?.fill(left)?;
        let status = self.wear_out(wait)?;
        if status.is_none() && wait == LIMIT {
            return Err(format!("the broker has not ended within {LIMIT:?}, though its disk is full"));
        }
        let Some(status) = status else {
            self.ground.disk()?.clear()?;
            return self.kill_and_start();
        };
        self.broker.check_end(status, STORE_FAILED, &FULL)?;
        let is_quiet = self.be_quiet_perhaps()?;
        if self.random.u32(..4) == 0 {
            self.start_on_full_disk()?;
        }
        self.ground.disk()?.clear()?;
        self.start(is_quiet)
    }

    /// It refuses, or finds enough room for now.
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

    fn fail_and_start(&mut self) -> Result<(), String> {
        self.kill()?;
        let failure = Failure::draw(&mut self.random);
        let command = self.ground.device()?.prepare(failure)?;
        let start = self.broker.try_start(Some(command));
        let process_id = self.broker.last_id();
        let (status, code) = match start? {
            Start::Ended(status) => {
                self.summary.refusals += 1;
                (status, REFUSED)
            }
            Start::Serves(_) => {
                self.oracle.tell("up")?;
                let status = self.wear_out(LIMIT)?;
                (
                    status.ok_or_else(|| format!("the broker goes on without a device after {LIMIT:?}"))?,
                    STORE_FAILED,
                )
            }
        };
        self.broker.check_end(status, code, &DYING).map_err(|wrong| format!("{failure:?}: {wrong}"))?;
        let Ground::Weak(device) = &self.ground else { return Ok(()) };
        self.summary.lost_blocks += device.settle(process_id, &mut self.random)?;
        let is_quiet = self.be_quiet_perhaps()?;
        self.start(is_quiet)
    }

    /// Lets clients go on until the broker ends by itself; `None` if it does not.
    fn wear_out(&mut self, wait: Duration) -> Result<Option<ExitStatus>, String> {
        let began = Instant::now();
        while began.elapsed() < wait {
            if let Some(status) = self.broker.wait_for(OFTEN)? {
                self.summary.failures += 1;
                self.oracle.tell("down")?;
                return Ok(Some(status));
            }
            self.oracle.tell("more")?;
        }
        Ok(None)
    }
}
