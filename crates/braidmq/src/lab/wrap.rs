//! `braidmq lab run --link "..." -- COMMAND`: any program behind an emulated link.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use braid_emulator::LinkSpec;
use braid_lab::experiment::{PATIENCE, wait_until_ready};
use braid_lab::report::PathRun;
use braid_lab::scenario::Ready;
use braid_lab::testbed::{End, Launch, LinkPlan, Namespace, Program, Stream, TestbedError, Topology};
use braid_lab::{selftest, wire};

use super::options::Args;
use super::signals::Signal;
use super::{Refusal, STOPPED, at, at_path, own, signals};

const LEFT: &str = "left";
const RIGHT: &str = "right";
/// MTU of the link, bytes.
const MTU: u16 = 1500;
/// Time between SIGINT and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Interval of checks of the commands.
const TICK: Duration = Duration::from_millis(50);
/// Time after Ctrl-C at which the user is told that the command continues.
const HINT_AFTER: Duration = Duration::from_secs(1);

/// Commands of both ends.
struct Commands {
    left: Vec<OsString>,
    right: Option<Vec<OsString>>,
}

pub(super) fn run(args: &Args, link: &LinkSpec) -> Result<ExitCode, Refusal> {
    let commands = commands(args)?;
    match signals::enter() {
        Ok(()) => run_inside(args, link, commands),
        Err(code) => Ok(code),
    }
}

fn commands(args: &Args) -> Result<Commands, Refusal> {
    let left = match &args.command[..] {
        [] => vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())],
        words => words.to_vec(),
    };
    let split = |command: &String| {
        let words = shlex::split(command).filter(|words| !words.is_empty());
        let problem = "a quote is not closed, or there is no command";
        let words = words.ok_or_else(|| format!("--right {command:?}: {problem}"))?;
        own(words.into_iter().map(OsString::from).collect())
    };
    let right = args.right.as_ref().map(split).transpose()?;
    Ok(Commands { left: own(left)?, right })
}

fn run_inside(args: &Args, link: &LinkSpec, commands: Commands) -> Result<ExitCode, Refusal> {
    let (sender, signals_seen) = mpsc::channel();
    // The receiver lives until this process ends.
    signals::listen(move |signal| {
        let _ = sender.send(signal);
    })?;
    let topology = build(args, link)?;
    let env = environment(&topology);
    let mut right = match commands.right {
        None => None,
        Some(argv) => {
            let address = topology.address(RIGHT, LEFT).ok_or_else(|| missing(RIGHT))?;
            Some(Right::start(end(&topology, RIGHT)?, address, argv, env.clone())?)
        }
    };
    if let (Some(right), Some(ready)) = (&mut right, &args.ready)
        && !right.wait_for(ready, || signals_seen.try_recv().is_ok())?
    {
        return Ok(ExitCode::from(STOPPED));
    }
    let left = Launch {
        name: "the command".into(),
        argv: commands.left,
        env,
        dir: PathBuf::from("."),
        log: PathBuf::new(),
        echo: true,
    };
    let left = Program::start(end(&topology, LEFT)?, left)?;
    let ended = wait(left, right.as_mut(), &signals_seen);
    if let Some(right) = right {
        right.stop(GRACE);
    }
    for offload in topology.offloads() {
        eprintln!("braidmq: do not trust this run: an offload is on: {offload}");
    }
    let bound = args.lateness.map_or_else(|| selftest::lateness_of(link), |span| span.0);
    for link in topology.stop() {
        print_path("left to right", &link.stopped.up.path_run());
        print_path("right to left", &link.stopped.down.path_run());
        for doubt in selftest::validity(&link.stopped, bound) {
            eprintln!("braidmq: do not trust this run: {doubt}");
        }
    }
    Ok(ExitCode::from(u8::try_from(ended.code()).unwrap_or(1)))
}

fn build(args: &Args, link: &LinkSpec) -> Result<Topology, Refusal> {
    let mut options = wire::Options { realtime: true, ..wire::Options::default() };
    if args.logs || args.logs_dir.is_some() {
        let dir = args.logs_dir.clone().unwrap_or_else(|| PathBuf::from("."));
        std::fs::create_dir_all(&dir).map_err(|error| at_path(&dir, &error))?;
        options.verdicts = Some(dir.join("link.verdicts"));
        options.pcap = Some(dir.join("link.pcapng"));
    }
    let plan = LinkPlan {
        name: "link".into(),
        left: LEFT.into(),
        right: RIGHT.into(),
        shape: Some(link.clone()),
        seed: link.seed.unwrap_or(args.seed),
        options,
        rule: None,
        tcp: None,
        mtu: MTU,
        keep_offloads: false,
    };
    Ok(Topology::build(&[LEFT.into(), RIGHT.into()], vec![plan], args.wire.into())?)
}

fn end<'a>(topology: &'a Topology, name: &str) -> Result<&'a Namespace, TestbedError> {
    topology.end(name).ok_or_else(|| missing(name))
}

fn missing(end: &str) -> TestbedError {
    TestbedError::Other(format!("there is no end {end}"))
}

/// Waits for the end of the left command; a signal ends it.
fn wait(left: Program, mut right: Option<&mut Right<'_>>, signals_seen: &Receiver<Signal>) -> End {
    let mut interrupted = None;
    loop {
        let ended = left.wait(TICK);
        if let Some(right) = &mut right {
            right.look();
        }
        if let Some(end) = ended {
            return end;
        }
        match signals_seen.try_recv() {
            Ok(signal) if is_of_command(signal, is_at_terminal()) => interrupted = Some(Instant::now()),
            Ok(_) => return left.stop(GRACE),
            Err(_) => {}
        }
        if interrupted.is_some_and(|at| at.elapsed() >= HINT_AFTER) {
            interrupted = None;
            let _ = writeln!(
                std::io::stderr(),
                "braidmq: the command continues; Ctrl-C once more ends everything"
            );
        }
    }
}

/// Whether the left command received the signal as well: a terminal sends SIGINT to its whole foreground process group.
fn is_of_command(signal: Signal, is_at_terminal: bool) -> bool {
    signal == Signal::Interrupt && is_at_terminal
}

fn is_at_terminal() -> bool {
    std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal()
}

/// Environment variables with the addresses and namespaces of both ends.
fn environment(topology: &Topology) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    for (name, other) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
        let variable = |what: &str| OsString::from(at::variable(name, what));
        if let Some(address) = topology.address(name, other) {
            env.push((variable(""), address.to_string().into()));
        }
        if let Some(end) = topology.end(name) {
            env.push((variable("_NS"), at::path(end.as_fd()).into()));
        }
    }
    env
}

fn print_path(way: &str, path: &PathRun) {
    let PathRun { counters, lateness_us: [_, p99, _], .. } = path;
    let dropped = counters.drops().into_iter().filter(|(_, tally)| tally.packets > 0);
    let dropped: Vec<String> = dropped.map(|(cause, tally)| format!(", {cause} {}", tally.packets)).collect();
    eprintln!(
        "link, {way}: {} packets came, {} left ({} bytes){}; 99 % left at most {:.2} ms late",
        counters.offered.packets,
        counters.sent.packets,
        counters.sent.bytes,
        dropped.concat(),
        p99 / 1000.0
    );
}

// === The command at the right end ===

/// Running command. It has its own process group, so that a terminal interrupts only the left command.
struct Right<'a> {
    end: &'a Namespace,
    /// Address of this end.
    address: Ipv4Addr,
    program: Program,
    /// Number of the first line that was not forwarded.
    next: u64,
    is_end_reported: bool,
}

impl<'a> Right<'a> {
    fn start(
        end: &'a Namespace,
        address: Ipv4Addr,
        argv: Vec<OsString>,
        env: Vec<(OsString, OsString)>,
    ) -> Result<Self, TestbedError> {
        let launch = Launch {
            name: "the command at the right end".into(),
            argv,
            env,
            dir: PathBuf::from("."),
            log: PathBuf::from("/dev/null"),
            echo: false,
        };
        let program = Program::start(end, launch)?;
        Ok(Self { end, address, program, next: 0, is_end_reported: false })
    }

    /// Waits until the command is ready, and forwards its output meanwhile. `false`: `is_stopped` returned true first.
    ///
    /// # Errors
    /// The command ended, or was not ready in time.
    fn wait_for(&mut self, ready: &Ready, is_stopped: impl Fn() -> bool) -> Result<bool, TestbedError> {
        let Self { end, address, program, next, .. } = self;
        let mut look = || {
            forward(program, next);
            is_stopped()
        };
        let waited = wait_until_ready(program, end, Some(*address), ready, PATIENCE, &mut look);
        forward(program, next);
        waited
    }

    /// Forwards its output, and reports an early end once.
    fn look(&mut self) {
        let ended = self.program.try_end();
        forward(&self.program, &mut self.next);
        if let Some(end) = ended.filter(|_| !self.is_end_reported) {
            self.is_end_reported = true;
            let _ = writeln!(std::io::stderr(), "braidmq: {}", self.program.ended(end));
        }
    }

    /// Ends the command: SIGINT, then SIGKILL after `grace`.
    fn stop(mut self, grace: Duration) {
        self.look();
        self.is_end_reported = true;
        self.program.interrupt();
        self.program.wait(grace);
        self.look();
    }
}

/// Forwards the lines of a program from number `next` on, and advances it.
fn forward(program: &Program, next: &mut u64) {
    for line in program.lines(*next) {
        *next = line.number + 1;
        // A closed output must not end the command.
        let _ = match line.stream {
            Stream::Out => writeln!(std::io::stdout(), "{}", line.text),
            Stream::Err => writeln!(std::io::stderr(), "{}", line.text),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interrupt_of_the_terminal_is_left_to_the_command() {
        assert!(is_of_command(Signal::Interrupt, true));
        assert!(!is_of_command(Signal::Interrupt, false));
        assert!(!is_of_command(Signal::Terminate, true));
    }
}
