//! Programs at the ends of a network.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use braid_lab::testbed::{End, Launch, Line, Namespace, Program, Stream, Termination, TestbedError};
use tempfile::TempDir;

use crate::testbed_rig::{PATIENCE, User, inside, is_inside, namespace, open, run_test, users, wait_for_end};

/// Namespace and directory for programs.
struct Place {
    end: Namespace,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { end: Namespace::create("end").unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn launch(&self, argv: &[&str]) -> Launch {
        Launch {
            name: "server".into(),
            argv: argv.iter().map(Into::into).collect(),
            env: Vec::new(),
            dir: self.folder.path().into(),
            log: self.log(),
            echo: false,
        }
    }

    fn start(&self, launch: Launch) -> Result<Program, TestbedError> {
        Program::start(&self.end, launch)
    }

    fn shell(&self, script: &str) -> Program {
        self.start(self.launch(&["sh", "-c", script])).unwrap()
    }
}

fn end(program: &Program) -> End {
    program.wait(PATIENCE).unwrap()
}

fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

#[test]
fn a_program_runs_in_its_namespace_with_its_environment() {
    if inside("testbed_program::a_program_runs_in_its_namespace_with_its_environment") {
        let place = Place::new();
        let script =
            "readlink /proc/self/ns/net; pwd; echo $WORD; ip -o link | wc -l; readlink /proc/self/fd/0";
        let mut launch = place.launch(&["sh", "-c", script]);
        launch.env.push(("WORD".into(), "of its own".into()));
        let program = place.start(launch).unwrap();
        assert_eq!(end(&program).termination, Termination::Exit(0));
        let net = place.end.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap();
        assert_ne!(namespace(std::process::id(), "net").as_deref(), net.to_str());
        let folder = place.folder.path().canonicalize().unwrap();
        let expected = [net.to_str().unwrap(), folder.to_str().unwrap(), "of its own", "1", "/dev/null"];
        assert_eq!(texts(&program.lines(0)), expected);
    }
}

#[test]
fn lines_are_kept_with_their_times_and_logged() {
    if inside("testbed_program::lines_are_kept_with_their_times_and_logged") {
        let place = Place::new();
        let program = place.shell("echo one; read x < gate; echo two >&2; printf three; exit 3");
        // Without a gate the shell prints an error and continues.
        let end = end(&program);
        assert_eq!((end.termination, end.code()), (Termination::Exit(3), 3));
        let lines = program.lines(0);
        let of = |stream| {
            lines
                .iter()
                .filter(|line| line.stream == stream)
                .map(|line| line.text.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Stream::Out), ["one", "three"]);
        assert_eq!(of(Stream::Err).last(), Some(&"two"));
        assert!(
            lines.windows(2).all(|pair| pair[0].number + 1 == pair[1].number && pair[0].at <= pair[1].at)
        );
        assert!(lines.iter().all(|line| line.at.as_secs_f64() <= end.seconds));
        let log = fs::read_to_string(place.log()).unwrap();
        let logged: Vec<&str> =
            log.lines().map(|line| line.trim_start().split_once(' ').unwrap().1).collect();
        let expected: Vec<String> =
            lines.iter().map(|line| format!("{} {}", line.stream, line.text)).collect();
        assert_eq!(logged, expected);
    }
}

#[test]
fn a_wait_ends_with_the_line_the_end_or_the_deadline() {
    if inside("testbed_program::a_wait_ends_with_the_line_the_end_or_the_deadline") {
        let place = Place::new();
        let script = "echo up and listening; read word < /dev/stdin; exec sleep 1000";
        let program = place.shell(script);
        assert_eq!(program.wait_for("listening", PATIENCE).unwrap().text, "up and listening");
        // A later wait finds the line too.
        assert_eq!(program.wait_for("up", Duration::ZERO).unwrap().number, 0);
        let error = program.wait_for("ready", Duration::from_millis(20)).unwrap_err().to_string();
        let expected =
            format!("server has not written \"ready\" within 20ms: `sh -c '{script}'`: up and listening");
        assert_eq!(error, expected);

        let program = place.shell("echo 'address in use' >&2; exit 98");
        let error = program.wait_for("listening", PATIENCE).unwrap_err();
        assert!(matches!(error, TestbedError::Ended(_)));
        let expected = "server ended with exit code 98: `sh -c 'echo '\\''address in use'\\'' >&2; exit 98'`: address in use";
        assert_eq!(error.to_string(), expected);
        assert_eq!(program.ended(end(&program)).to_string(), expected);
    }
}

#[test]
fn stopping_interrupts_first() {
    if inside("testbed_program::stopping_interrupts_first") {
        let place = Place::new();
        let program =
            place.shell("trap 'echo bye; exit 4' INT; echo ready; while :; do sleep 1000 & wait $!; done");
        program.wait_for("ready", PATIENCE).unwrap();
        assert!(program.try_end().is_none());
        program.interrupt();
        assert_eq!(program.wait_for("bye", PATIENCE).unwrap().text, "bye");
        assert_eq!(program.stop(PATIENCE).termination, Termination::Exit(4));
        let program = place.start(place.launch(&["sleep", "1000"])).unwrap();
        assert_eq!(program.stop(PATIENCE).termination, Termination::Signal(2));
    }
}

#[test]
fn a_program_started_where_interrupts_are_ignored_can_be_interrupted() {
    const NAME: &str = "testbed_program::a_program_started_where_interrupts_are_ignored_can_be_interrupted";
    if is_inside(NAME) {
        let place = Place::new();
        let program = place.start(place.launch(&["sleep", "1000"])).unwrap();
        assert_eq!(program.stop(PATIENCE).termination, Termination::Signal(2));
        return;
    }
    run_test(User::Same, NAME, "set -- env --ignore-signal=INT \"$@\";");
}

#[test]
fn a_program_that_ignores_sigint_is_killed_with_its_group() {
    if inside("testbed_program::a_program_that_ignores_sigint_is_killed_with_its_group") {
        let place = Place::new();
        let ignoring = "trap '' INT; sleep 1000 & echo child $!; wait";
        for drop_it in [false, true] {
            let program = place.shell(ignoring);
            let child = program.wait_for("child ", PATIENCE).unwrap().text;
            let child = open(child.trim_start_matches("child ").parse().unwrap());
            let own = open(program.id());
            if drop_it {
                drop(program);
            } else {
                assert_eq!(program.stop(Duration::from_millis(1)).termination, Termination::Signal(9));
            }
            wait_for_end(&[own, child]);
        }
    }
}

#[test]
fn the_process_group_ends_with_the_program() {
    if inside("testbed_program::the_process_group_ends_with_the_program") {
        let place = Place::new();
        let script = "trap 'exit 0' INT; sleep 1000 & echo child $!; setsid sleep 2000 & wait";
        let program = place.shell(script);
        let child = program.wait_for("child ", PATIENCE).unwrap().text;
        // Background jobs of a shell ignore SIGINT.
        let child = open(child.trim_start_matches("child ").parse().unwrap());
        program.interrupt();
        wait_for_end(&[child]);
        // A process that left the group and holds the pipes open does not delay the end.
        assert_eq!(end(&program).termination, Termination::Exit(0));
    }
}

#[test]
fn time_and_memory_of_a_program_are_counted() {
    if inside("testbed_program::time_and_memory_of_a_program_are_counted") {
        let place = Place::new();
        // The memory of the parent does not count.
        let ours = std::hint::black_box(vec![1_u8; 64 << 20]);
        let run = |script: &str| {
            let program = place.shell(&format!("trap 'exit 0' INT; {script}; echo up; sleep 1000 & wait"));
            program.wait_for("up", PATIENCE).unwrap();
            program.interrupt();
            end(&program)
        };
        let small = run(":");
        let large = run("x=$(head -c 50000000 /dev/zero | tr '\\0' x)");
        drop(ours);
        assert_eq!(large.termination, Termination::Exit(0));
        assert!(large.peak_memory.is_some_and(|bytes| bytes > 50_000_000), "{large:?}");
        assert!(small.peak_memory.is_some_and(|bytes| 0 < bytes && bytes < 20_000_000), "{small:?}");
        assert!(large.cpu > small.cpu && large.cpu.as_secs_f64() < large.seconds * 16.0, "{large:?}");
    }
}

#[test]
fn memory_for_lines_is_bounded() {
    if inside("testbed_program::memory_for_lines_is_bounded") {
        let place = Place::new();
        let program = place.shell("seq 1 100000");
        assert_eq!(end(&program).termination, Termination::Exit(0));
        let lines = program.lines(0);
        assert_eq!(lines.len(), 4096);
        assert!(lines.iter().all(|line| line.text == (line.number + 1).to_string()));
        assert_eq!(lines.last().map(|line| line.number), Some(99_999));
        assert_eq!(texts(&program.lines(99_998)), ["99999", "100000"]);
        assert_eq!(fs::read_to_string(place.log()).unwrap().lines().count(), 100_000);
    }
}

#[test]
fn a_failed_start_is_one_line() {
    if inside("testbed_program::a_failed_start_is_one_line") {
        let place = Place::new();
        let said = |launch| place.start(launch).unwrap_err().to_string();
        let absent = said(place.launch(&["/no/such program", "-v"]));
        assert_eq!(
            absent,
            "server: cannot start `'/no/such program' -v`: no such program: install it or give its path"
        );
        assert!(said(place.launch(&["no-such-program"])).contains("no such program"));
        assert!(said(place.launch(&["/etc/passwd"])).contains("chmod +x"));
        assert!(said(place.launch(&[])).contains("the command is empty"));
        let nowhere = Launch { dir: "/no/folder".into(), ..place.launch(&["true"]) };
        assert!(said(nowhere).contains("directory /no/folder does not exist"));
        let unlogged = Launch { log: "/no/folder/log".into(), ..place.launch(&["true"]) };
        assert!(said(unlogged).contains("cannot write /no/folder/log"));
    }
}

#[test]
fn a_command_of_the_user_inherits_input_and_output() {
    const NAME: &str = "testbed_program::a_command_of_the_user_inherits_input_and_output";
    if is_inside(NAME) {
        let place = Place::new();
        let script = "echo to the user; ps -o pgid= -p $$ > /dev/null; exit 5";
        let launch = Launch { echo: true, ..place.launch(&["sh", "-c", script]) };
        let program = place.start(launch).unwrap();
        let end = end(&program);
        assert_eq!(
            (end.termination, program.lines(0).len(), place.log().exists()),
            (Termination::Exit(5), 0, false)
        );
        return;
    }
    for who in users() {
        assert!(run_test(who, NAME, "").contains("to the user\n"));
    }
}
