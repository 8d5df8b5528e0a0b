//! The command at the right end of a link: it starts first, and what it writes is passed on.

use std::ffi::OsString;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use braid_lab::experiment::{NotReady, PATIENCE, wait_until_ready};
use braid_lab::house::{HouseError, Launch, Namespace, Program, Stream};
use braid_lab::scenario::Ready;

/// The command under way. It has a process group of its own: a terminal interrupts the left command alone.
pub(super) struct Right<'a> {
    end: &'a Namespace,
    /// Of this end.
    address: Ipv4Addr,
    program: Program,
    /// The number of the first line that was not passed on.
    next: u64,
    is_death_told: bool,
}

impl<'a> Right<'a> {
    pub(super) fn start(
        end: &'a Namespace,
        address: Ipv4Addr,
        argv: Vec<OsString>,
        env: Vec<(OsString, OsString)>,
    ) -> Result<Self, HouseError> {
        let launch = Launch {
            name: "the command at the right end".into(),
            argv,
            env,
            dir: PathBuf::from("."),
            log: PathBuf::from("/dev/null"),
            echo: false,
        };
        let program = Program::start(end, launch)?;
        Ok(Self { end, address, program, next: 0, is_death_told: false })
    }

    /// Waits until it is ready, and passes on what it writes until then. `false`: `is_stopped` became true before that.
    ///
    /// # Errors
    /// It has ended, or has had its time.
    pub(super) fn wait_for(
        &mut self,
        ready: &Ready,
        is_stopped: impl Fn() -> bool,
    ) -> Result<bool, NotReady> {
        let Self { end, address, program, next, .. } = self;
        let mut look = || {
            pass_on(program, next);
            is_stopped()
        };
        let waited = wait_until_ready(program, end, Some(*address), ready, PATIENCE, &mut look);
        pass_on(program, next);
        match waited {
            Ok(()) => Ok(true),
            Err(NotReady::Stopped) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Passes on what it has written, and tells of its death once.
    pub(super) fn look(&mut self) {
        let ended = self.program.try_end();
        pass_on(&self.program, &mut self.next);
        if let Some(end) = ended.filter(|_| !self.is_death_told) {
            self.is_death_told = true;
            let _ = writeln!(std::io::stderr(), "braidmq: {}", self.program.ended(end));
        }
    }

    /// Ends it, after `grace` by force.
    pub(super) fn stop(mut self, grace: Duration) {
        self.look();
        self.is_death_told = true;
        self.program.interrupt();
        self.program.wait(grace);
        self.look();
    }
}

/// Passes the lines of a program from number `next` on, which becomes the number of the one after them.
fn pass_on(program: &Program, next: &mut u64) {
    for line in program.lines(*next) {
        *next = line.number + 1;
        // Nobody may be reading, and the command goes on.
        let _ = match line.stream {
            Stream::Out => writeln!(std::io::stdout(), "{}", line.text),
            Stream::Err => writeln!(std::io::stderr(), "{}", line.text),
        };
    }
}
