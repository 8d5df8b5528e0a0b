//! `braidmq lab run --link "..." -- COMMAND`: any program behind a link.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use braid_lab::experiment::NotReady;
use braid_lab::house::{End, HouseError, Launch, LinkPlan, Namespace, Program, Topology};
use braid_lab::report::PathRun;
use braid_lab::{LinkSpec, selftest, wire};
use thiserror::Error;

use super::house::Signal;
use super::right::Right;
use super::run::Args;
use super::{STOPPED, at, house, own, refuse};

const LEFT: &str = "left";
const RIGHT: &str = "right";
/// Bytes.
const MTU: u16 = 1500;
/// Programs get this long for their last words.
const GRACE: Duration = Duration::from_secs(5);
/// How often the commands are looked at.
const TICK: Duration = Duration::from_millis(50);
/// A command that runs on so long after Ctrl-C may have taken it for something else.
const UNMOVED: Duration = Duration::from_secs(1);

#[derive(Debug, Error)]
enum WrapError {
    #[error(transparent)]
    House(#[from] HouseError),
    #[error(transparent)]
    Right(#[from] NotReady),
    #[error("{path}: {source}", path = .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("--right {0:?}: a quote is not closed, or there is no command")]
    Words(String),
    #[error("this program does not find itself: {0}")]
    Own(std::io::Error),
    #[error("the system refuses to watch for signals: {0}")]
    Signals(std::io::Error),
}

/// What runs at the ends.
struct Commands {
    left: Vec<OsString>,
    right: Option<Vec<OsString>>,
}

pub(super) fn run(args: &Args, link: &LinkSpec) -> ExitCode {
    let commands = match commands(args) {
        Ok(commands) => commands,
        Err(error) => return refuse(&error),
    };
    if let Err(code) = house::enter() {
        return code;
    }
    run_inside(args, link, commands).unwrap_or_else(|error| refuse(&error))
}

fn commands(args: &Args) -> Result<Commands, WrapError> {
    let left = match &args.command[..] {
        [] => vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())],
        words => words.to_vec(),
    };
    let split = |command: &String| {
        let words = shlex::split(command).filter(|words| !words.is_empty());
        let words = words.ok_or_else(|| WrapError::Words(command.clone()))?;
        own(words.into_iter().map(OsString::from).collect()).map_err(WrapError::Own)
    };
    let right = args.right.as_ref().map(split).transpose()?;
    Ok(Commands { left: own(left).map_err(WrapError::Own)?, right })
}

fn run_inside(args: &Args, link: &LinkSpec, commands: Commands) -> Result<ExitCode, WrapError> {
    let (tell, told) = mpsc::channel();
    // Who has stopped listening has ended anyway.
    house::listen(move |signal| {
        let _ = tell.send(signal);
    })
    .map_err(WrapError::Signals)?;
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
        && !right.wait_for(ready, || told.try_recv().is_ok())?
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
    let ended = wait(left, right.as_mut(), &told);
    if let Some(right) = right {
        right.stop(GRACE);
    }
    for offload in topology.offloads() {
        eprintln!("braidmq: do not trust this run: an offload is on: {offload}");
    }
    let bound = args.lateness.map_or_else(|| selftest::lateness_of(link), |span| span.0);
    for link in topology.stop() {
        tell_of("left to right", &link.stopped.up.path_run());
        tell_of("right to left", &link.stopped.down.path_run());
        for doubt in selftest::validity(&link.stopped, bound) {
            eprintln!("braidmq: do not trust this run: {doubt}");
        }
    }
    Ok(ExitCode::from(u8::try_from(ended.code()).unwrap_or(1)))
}

fn build(args: &Args, link: &LinkSpec) -> Result<Topology, WrapError> {
    let mut options = wire::Options { realtime: true, ..wire::Options::default() };
    if args.logs || args.logs_dir.is_some() {
        let dir = args.logs_dir.clone().unwrap_or_else(|| PathBuf::from("."));
        std::fs::create_dir_all(&dir).map_err(|source| WrapError::File { path: dir.clone(), source })?;
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
        mtu: MTU,
        keep_offloads: false,
    };
    Ok(Topology::build(&[LEFT.into(), RIGHT.into()], vec![plan], args.wire.into())?)
}

fn end<'a>(topology: &'a Topology, name: &str) -> Result<&'a Namespace, HouseError> {
    topology.end(name).ok_or_else(|| missing(name))
}

fn missing(end: &str) -> HouseError {
    HouseError::Plan(format!("there is no end {end}"))
}

/// Waits for the end of the left command, which also comes when somebody asks for it.
fn wait(left: Program, mut right: Option<&mut Right<'_>>, told: &Receiver<Signal>) -> End {
    let mut interrupted = None;
    loop {
        let ended = left.wait(TICK);
        if let Some(right) = &mut right {
            right.look();
        }
        if let Some(end) = ended {
            return end;
        }
        match told.try_recv() {
            Ok(signal) if is_of_command(signal, is_at_terminal()) => interrupted = Some(Instant::now()),
            Ok(_) => return left.stop(GRACE),
            Err(_) => {}
        }
        if interrupted.is_some_and(|at| at.elapsed() >= UNMOVED) {
            interrupted = None;
            let _ =
                writeln!(std::io::stderr(), "braidmq: the command goes on; Ctrl-C once more ends everything");
        }
    }
}

/// Whether a signal has reached the left command as well, which knows what to make of it: Ctrl-C goes to all that runs
/// in the foreground of a terminal.
fn is_of_command(signal: Signal, is_at_terminal: bool) -> bool {
    signal == Signal::Interrupt && is_at_terminal
}

fn is_at_terminal() -> bool {
    std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal()
}

/// What a program on the link can know of it.
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

fn tell_of(way: &str, path: &PathRun) {
    let PathRun { counters, lateness_us: [_, p99, _], .. } = path;
    let dropped: Vec<String> = [
        ("policed", counters.policed),
        ("lost", counters.lost),
        ("queue full", counters.queue_full),
        ("forgotten by the NAT", counters.forgotten),
        ("too big", counters.too_big),
    ]
    .into_iter()
    .filter(|(_, tally)| tally.packets > 0)
    .map(|(cause, tally)| format!(", {cause} {}", tally.packets))
    .collect();
    eprintln!(
        "link, {way}: {} packets came, {} left ({} bytes){}; 99 % left no later than {:.2} ms after they were due",
        counters.offered.packets,
        counters.sent.packets,
        counters.sent.bytes,
        dropped.concat(),
        p99 / 1000.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_sends_belongs_to_the_command() {
        assert!(is_of_command(Signal::Interrupt, true));
        assert!(!is_of_command(Signal::Interrupt, false));
        assert!(!is_of_command(Signal::Terminate, true));
    }
}
