//! What is done to the broker in a round. Each leaves it serving.

use std::time::Duration;

use super::{Fault, Stage};
use crate::signal;

/// A kill comes within this time of the first acknowledgement.
const SOON: Duration = Duration::from_millis(150);
/// How long a process is stopped, at most.
const STOPPED: Duration = Duration::from_secs(4);

impl Stage {
    pub(super) fn round(&mut self, fault: Fault) -> Result<(), String> {
        self.oracle.load()?;
        self.pause(SOON);
        match fault {
            Fault::Kill => self.kill_and_start(),
            Fault::Stop => self.stop(),
        }
    }

    fn kill_and_start(&mut self) -> Result<(), String> {
        self.kill()?;
        // In half of the rounds nothing new hides what is lost.
        let is_quiet = self.random.bool();
        if is_quiet {
            self.oracle.tell("rest")?;
        }
        if self.random.u32(..4) == 0 {
            self.kill_while_it_starts()?;
        }
        self.start()?;
        if !is_quiet {
            self.pause(SOON);
        }
        Ok(())
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

    pub(super) fn start(&mut self) -> Result<(), String> {
        let took = self.broker.start()?;
        self.summary.starts.push(took);
        self.oracle.tell("up")
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
}
