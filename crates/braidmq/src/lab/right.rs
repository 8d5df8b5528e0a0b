//! The command at the right end of a link: it starts first, and what it writes is passed on.

use std::ffi::OsString;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use braid_lab::house::{HouseError, Launch, Namespace, Program, Stream};
use braid_lab::scenario::Ready;
use thiserror::Error;

/// How often it is asked whether it is ready.
const AGAIN: Duration = Duration::from_millis(50);
/// It has so long to become so.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why the command did not become ready.
#[derive(Debug, Error)]
pub(super) enum NotReady {
    #[error(transparent)]
    House(#[from] HouseError),
    #[error("`{command}` does not accept connections at port {port} after {} s", PATIENCE.as_secs())]
    Port { command: String, port: u16 },
    #[error("`{command}` has not written {text:?} after {} s", PATIENCE.as_secs())]
    Line { command: String, text: String },
}

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

    /// Waits until it is ready. `false`: `is_stopped` became true before that.
    ///
    /// # Errors
    /// It has ended, or has had its time.
    pub(super) fn wait_for(
        &mut self,
        ready: &Ready,
        is_stopped: impl Fn() -> bool,
    ) -> Result<bool, NotReady> {
        let begin = Instant::now();
        while !is_stopped() {
            // The lines of a program are there when its end is.
            let ended = self.program.wait(AGAIN);
            let is_ready = match ready {
                Ready::Line(text) => self.pass_on(Some(text)),
                Ready::Port(port) => {
                    self.pass_on(None);
                    self.accepts(*port)?
                }
            };
            if is_ready {
                return Ok(true);
            }
            if let Some(end) = ended {
                return Err(self.program.ended(end).into());
            }
            if begin.elapsed() >= PATIENCE {
                let command = self.program.command().to_owned();
                return Err(match ready.clone() {
                    Ready::Port(port) => NotReady::Port { command, port },
                    Ready::Line(text) => NotReady::Line { command, text },
                });
            }
        }
        Ok(false)
    }

    /// Whether it accepts connections at `port`, on any address or on that of its end.
    fn accepts(&self, port: u16) -> Result<bool, HouseError> {
        let connects =
            |ip: Ipv4Addr| TcpStream::connect_timeout(&SocketAddr::from((ip, port)), AGAIN).is_ok();
        self.end.run(|| connects(self.address) || connects(Ipv4Addr::LOCALHOST))
    }

    /// Passes on what it has written, and tells of its death once.
    pub(super) fn look(&mut self) {
        let ended = self.program.try_end();
        self.pass_on(None);
        if let Some(end) = ended.filter(|_| !self.is_death_told) {
            self.is_death_told = true;
            let _ = writeln!(std::io::stderr(), "braidmq: {}", self.program.ended(end));
        }
    }

    /// Passes its new lines on. Whether `wanted` is in one of them.
    fn pass_on(&mut self, wanted: Option<&str>) -> bool {
        let mut is_there = false;
        for line in self.program.lines(self.next) {
            self.next = line.number + 1;
            is_there |= wanted.is_some_and(|text| line.text.contains(text));
            // Nobody may be reading, and the command goes on.
            let _ = match line.stream {
                Stream::Out => writeln!(std::io::stdout(), "{}", line.text),
                Stream::Err => writeln!(std::io::stderr(), "{}", line.text),
            };
        }
        is_there
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
