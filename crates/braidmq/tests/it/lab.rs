//! `braidmq lab` on the command line: namespaces leave nothing behind, and errors are one line.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeWriter, Write, pipe};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use crate::broker::braidmq;

fn lab(arguments: &[&str]) -> Output {
    braidmq(&[&["lab"], arguments].concat()).output().unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = lab(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    said
}

/// Argument of `sleep` that is unique on this machine.
fn mark(of: &str) -> String {
    format!("86400.{}{of}", std::process::id())
}

/// Whether a process sleeps for `mark`.
fn is_there(mark: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.starts_with(b"sleep\0") && String::from_utf8_lossy(&line).contains(mark))
}

/// Signals one process, as `kill` does.
fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

/// Standard output of which nothing is read any more.
fn closed_pipe() -> PipeWriter {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn lists_end_in_order_when_their_reader_has_gone() {
    for arguments in [&["lab", "list"][..], &["lab", "list", "hol"]] {
        let output = braidmq(arguments).stdout(closed_pipe()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

/// Scenario of one program behind a plain link.
fn scenario(folder: &Path, command: &str) -> String {
    let text = format!(
        r#"
name = "one"
title = "one program"
about = "one program"
duration = "400ms"
quick = "400ms"
ends = ["a", "b"]
[[link]]
name = "wire"
between = ["a", "b"]
[[profile]]
name = "plain"
title = "plain"
links = {{ wire = "delay=1ms" }}
[[program]]
name = "program"
at = "a"
run = {command:?}
[[variant]]
name = "it"
title = "it"
[[metric]]
name = "packets"
title = "packets"
value = "link:wire:up:packets"
[[metric]]
name = "dropped_share"
title = "dropped"
unit = "%"
digits = 1
value = "link:wire:up:dropped_share"
times = 100
[[bound]]
metric = "packets"
at_most = 0.0
"#
    );
    let path = folder.join("one.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn each_scenario_is_listed_on_a_line() {
    let output = lab(&["list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for name in [
        "hol ",
        "hol-down ",
        "hol-shaper ",
        "hol-4g ",
        "hol-sat ",
        "one-or-ten ",
        "adaptive ",
        "h1-or-h3 ",
        "autoquic ",
        "connect-latency ",
        "zero-rtt ",
        "storm ",
        "migrate ",
        "weak-network ",
        "interop-cells ",
    ] {
        assert_eq!(text.lines().filter(|line| line.starts_with(name)).count(), 1, "{name} in {text}");
    }
    let toml = lab(&["list", "hol"]);
    assert!(String::from_utf8(toml.stdout).unwrap().contains("policer=xt:29pps/5"));
    let file = refusal(&["list", "./x.toml"]);
    assert!(file.contains("braidmq lab run ./x.toml") && !file.contains("././x.toml.toml"), "{file}");
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), "true");
    assert!(refusal(&["run", "--link", "delay=50m", "--", "true"]).contains("write 50ms or 50s"));
    assert!(refusal(&["run", "hlo"]).contains("did you mean hol?"));
    assert!(refusal(&["run", "./nothing.toml"]).contains("nothing.toml: No such file"));
    assert!(refusal(&["run", &path, "--variant", "that"]).contains("no variant \"that\"; it has it"));
    assert!(refusal(&["run", &path, "--replace", "program"]).contains("write PROGRAM=COMMAND"));
    assert!(refusal(&["run", &path, "--replace", "client=true"]).contains("no program \"client\""));
    assert!(refusal(&["compare", &path, &path]).contains("one.toml"));
    assert!(refusal(&["run", &path, "--duration", "0s"]).contains("longer than 0"));
    assert!(refusal(&["run", &path, "--repetitions", "1001"]).contains("1..=1000"));
    for of_links in
        [["--logs-dir", "."], ["--seed", "3"], ["--right", "true"], ["--ready", "port:9"], ["--", "ls"]]
    {
        let said = refusal(&[&["run", &path][..], &of_links].concat());
        assert!(said.contains("'[SCENARIO]' cannot be used with"), "{said}");
    }
    assert!(
        refusal(&["run", "--link", "", "--right", "true", "--ready", "1883", "--", "true"])
            .contains("port:NUMBER")
    );
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("quick =", "speed = 1\nquick =")).unwrap();
    assert!(refusal(&["run", &path]).contains("one.toml:6: unknown field `speed`"));
}

#[test]
fn a_command_behind_a_link_reaches_both_ends_and_its_exit_code_is_ours() {
    let binary = env!("CARGO_BIN_EXE_braidmq");
    let script = format!(
        "ip -br addr show lq0l && {binary} lab at right -- ip -br addr show lq0r && echo $LAB_LEFT $LAB_RIGHT && exit 7"
    );
    let output = lab(&["run", "--link", "delay=1ms", "--", "sh", "-c", &script]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("192.168.200.2/24") && said.contains("192.168.200.1/24"), "{said}");
    assert_eq!(said.lines().last(), Some("192.168.200.2 192.168.200.1"));
    let elsewhere = braidmq(&["lab", "at", "left", "--", "true"]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(2));
    let nowhere =
        lab(&["run", "--link", "delay=1ms", "--", "braidmq", "lab", "at", "right", "--", "braidmq", "-V"]);
    assert!(
        nowhere.stdout.starts_with(b"braidmq "),
        "`braidmq` is this program, whatever PATH is: {nowhere:?}"
    );
}

/// Runs `script` as root of a user namespace in one of whose mounts of /proc a file is hidden, as in a container: no
/// other /proc may be mounted there.
fn in_container(script: &str) -> Output {
    let hide = r#"mount --bind /dev/null /proc/uptime && exec unshare -Urm sh -c "$0""#;
    Command::new("unshare").args(["-Urm", "sh", "-c", hide, script]).output().unwrap()
}

#[test]
fn the_other_end_is_found_if_no_proc_can_be_mounted() {
    let refused = in_container("unshare -p --fork mount -t proc proc /proc");
    assert!(!refused.status.success(), "it shows what happens without /proc only if that is so");
    let binary = env!("CARGO_BIN_EXE_braidmq");
    let output =
        in_container(&format!("{binary} lab run --link '' -- braidmq lab at right -- ip -br addr show lq0r"));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("192.168.200.1/24"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_packet_crosses_the_link_and_its_answer_too_and_both_are_counted_and_logged() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    // No program listens: the answer, "port unreachable", ends the wait.
    let script = "exec 3<>/dev/udp/192.168.200.1/9; echo hi >&3; read -r -u 3 || true";
    let output = lab(&[
        "run",
        "--link",
        "delay=1ms",
        "--lateness",
        "10s",
        "--logs-dir",
        logs.to_str().unwrap(),
        "--",
        "bash",
        "-c",
        script,
    ]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    // Two headers and "hi\n", and that again behind two headers.
    assert!(said.contains("link, left to right: 1 packets came, 1 left (31 bytes)"), "{said}");
    assert!(said.contains("link, right to left: 1 packets came, 1 left (59 bytes)"), "{said}");
    assert!(logs.join("link.pcapng").is_file());
    let replay = |path: &Path| {
        let output = lab(&["replay", path.to_str().unwrap()]);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let log = logs.join("link.verdicts");
    assert_eq!(replay(&log), (Some(0), "2 packets, 0 decided otherwise\n".to_owned()));
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, text.replace("delay=1ms", "delay=1ms loss=100%")).unwrap();
    let (code, said) = replay(&log);
    assert!(code == Some(1) && said.ends_with("2 packets, 2 decided otherwise\n"), "{said}");
    fs::write(&log, "something else\n").unwrap();
    let (code, said) = replay(&log);
    assert!(code == Some(2) && said.contains("link.verdicts: line 1: "), "{said}");
}

#[test]
fn the_command_starts_once_the_port_at_the_right_end_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().display();
    let serve = format!("braidmq serve --tcp 0.0.0.0:1883 --allow-anonymous --data-dir {data}");
    let output = braidmq(&["lab", "run", "--link", "up: policer=29pps/5", "--right", &serve])
        .args(["--ready", "port:1883", "--lateness", "10s", "--"])
        .args(["braidmq", "pub", "-h", "192.168.200.1", "-t", "test", "-m", "hello", "-q", "1"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(":1883"), "the broker's banner is forwarded");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn the_command_waits_for_a_line_of_the_right_one_unless_that_ends() {
    let right = "sh -c 'echo now on $LAB_RIGHT; exec sleep 1000'";
    let ready = "line:on 192.168.200.1";
    let output = lab(&["run", "--link", "", "--right", right, "--ready", ready, "--", "echo", "then"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "now on 192.168.200.1\nthen\n");
    for ready in ["line:never", "port:1883"] {
        let right = "sh -c 'echo no disk >&2; exit 3'";
        let output = lab(&["run", "--link", "", "--right", right, "--ready", ready, "--", "echo", "then"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
        assert!(said.contains("ended with exit code 3") && said.contains("no disk"), "{said}");
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_the_right_command() {
    let arguments = ["lab", "run", "--link", "", "--right", "sh -c 'echo up; exec sleep 1000'"];
    let mut child = braidmq(&[&arguments[..], &["--ready", "port:9", "--", "echo", "then"]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(lines.next().is_none());
}

#[test]
fn the_end_of_the_right_command_is_reported_and_the_left_one_continues() {
    let right = "sh -c 'echo out of memory; exit 3'";
    let mut child = braidmq(&["lab", "run", "--link", "", "--right", right, "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let death = said.next().unwrap().unwrap();
    assert!(
        death.contains("right end ended with exit code 3") && death.ends_with("out of memory"),
        "{death}"
    );
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"still here\n").unwrap();
    drop(stdin);
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).collect();
    assert_eq!(lines, ["out of memory", "still here"]);
    assert!(said.all(|line| line.unwrap().starts_with("link, ")), "the end is reported once");
    assert!(child.wait().unwrap().success());
}

/// Terminal: the controlling side, and that of the program.
fn terminal() -> (File, File) {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&keyboard).unwrap();
    unlockpt(&keyboard).unwrap();
    let name = ptsname(&keyboard, Vec::new()).unwrap();
    let of_program =
        rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    (keyboard.into(), of_program.into())
}

#[test]
fn the_first_interrupt_of_a_terminal_belongs_to_the_command() {
    // A shell that is signalled just before it waits for a line runs its trap after that line, hence the time-outs.
    let line = "until read -r -t 0.2 line; do :; done";
    let script = format!("trap 'echo interrupted' INT; echo up; {line}; {line}; echo got $line; exit 7");
    let (mut typed, of_command) = terminal();
    let mut command = Command::new("setsid");
    command.args(["--ctty", env!("CARGO_BIN_EXE_braidmq"), "lab", "run", "--link", "", "--"]);
    command.args(["bash", "-c", &script]);
    command.stdin(of_command.try_clone().unwrap()).stdout(of_command.try_clone().unwrap()).stderr(of_command);
    let mut child = command.spawn().unwrap();
    // The command holds its side of the terminal, which must not stay open here.
    drop(command);
    // A terminal whose last user is gone says so with EIO.
    let mut lines = BufReader::new(typed.try_clone().unwrap()).lines().map_while(Result::ok);
    let mut seen = Vec::new();
    let mut until = |wanted: &str| {
        for line in lines.by_ref() {
            let is_it = line.contains(wanted);
            seen.push(line);
            if is_it {
                return;
            }
        }
        panic!("no {wanted:?} in {seen:?}");
    };
    until("up");
    typed.write_all(b"\x03").unwrap();
    until("interrupted");
    // The handler has run by now.
    until("once more");
    typed.write_all(b"one\ntwo\n").unwrap();
    until("got two");
    assert_eq!(seen.iter().filter(|line| line.contains("interrupted")).count(), 1, "{seen:?}");
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn an_early_end_of_a_program_refuses_the_run_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), "sh -c 'echo the disk is full >&2; exit 3'");
    let out = folder.path().join("out");
    let output = lab(&["run", &path, "--no-selftest", "--out", out.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    let report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    let reason = report["runs"][0]["refused"][0].as_str().unwrap().to_owned();
    assert!(reason.contains("exit code 3") && reason.ends_with(": the disk is full"), "{reason}");
    assert!(said.contains("the disk is full"), "{said}");
}

/// Attempt and reasons of refusal of each run of the report in a directory.
fn attempts(out: &Path) -> Vec<(u64, Vec<String>)> {
    let report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let reasons = |run: &Value| serde_json::from_value(run["refused"].clone()).unwrap();
    runs.iter().map(|run| (run["attempt"].as_u64().unwrap(), reasons(run))).collect()
}

#[test]
fn a_run_that_a_busy_machine_invalidated_is_repeated_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = |command: &str| {
        let path = scenario(folder.path(), command);
        // No packet leaves at the moment when it is due.
        let arguments = ["run", &path, "--no-selftest", "--lateness", "0s", "--again", "1", "--out"];
        let output = lab(&[&arguments[..], &[out.to_str().unwrap()]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        (attempts(&out), said)
    };
    let (runs, said) = run("bash -c 'echo hi > /dev/udp/{b}/9; exec sleep 5'");
    assert_eq!(runs.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [0, 1], "{runs:?}");
    for (_, reasons) in &runs {
        assert!(reasons.iter().all(|reason| reason.ends_with("the machine is too busy")), "{reasons:?}");
        assert!(!reasons.is_empty());
    }
    assert!(said.contains("[1/1] it on plain, seed 1, again (1): "), "{said}");
    assert!(out.join("runs/it-plain-1-1").is_dir() && out.join("runs/it-plain-1-1-again1").is_dir());

    fs::remove_dir_all(&out).unwrap();
    let (runs, said) = run("bash -c 'exec 3<>/dev/udp/{b}/9; echo hi >&3; read -r -u 3; exit 3'");
    assert_eq!(runs.len(), 1, "another attempt would end in the same way: {said}");
    assert!(runs[0].1.len() > 1 && runs[0].1[0].contains("exit code 3"), "{runs:?}");
}

#[test]
fn a_report_is_resumed_where_runs_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let path = scenario(folder.path(), "bash -c 'echo hi > /dev/udp/{b}/9; exec sleep 5'");
    let run = |more: &[&str]| {
        let arguments = ["run", &path, "--no-selftest", "--again", "0", "--out", out.to_str().unwrap()];
        let output = lab(&[&arguments[..], more].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["--lateness", "0s"]);
    assert_eq!(code, Some(3), "{said}");
    // The first time a run is missing, the second time none.
    for _ in 0..2 {
        let (code, said) = run(&["--lateness", "10s", "--resume"]);
        assert_eq!(code, Some(0), "{said}");
        let attempts: Vec<(u64, bool)> =
            attempts(&out).into_iter().map(|(attempt, reasons)| (attempt, reasons.is_empty())).collect();
        assert_eq!(attempts, [(0, false), (1, true)], "{said}");
    }
    let report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    assert!(!report["command"].as_str().unwrap().contains("--resume"), "{}", report["command"]);
    assert_eq!(report["resumed"].as_array().unwrap().len(), 2);
    let (code, said) = run(&["--resume", "--duration", "1s"]);
    assert!(code == Some(2) && said.contains("another duration"), "{said}");
    let (code, said) = run(&["--resume", "--check", "--variant", "none"]);
    assert_eq!(code, Some(2), "{said}");
    fs::remove_dir_all(&out).unwrap();
    let (code, said) = run(&["--resume"]);
    assert!(code == Some(2) && said.contains("report.json"), "{said}");
}

#[test]
fn a_run_with_offloads_on_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), "sleep 5");
    let text = fs::read_to_string(&path).unwrap();
    let control = "[[profile]]\nname = \"on\"\ntitle = \"on\"\ncontrol = true\noffloads = true\n[[program]]";
    fs::write(&path, text.replace("[[program]]", control)).unwrap();
    let out = folder.path().join("out");
    let arguments = ["run", &path, "--no-selftest", "--profile", "on", "--out", out.to_str().unwrap()];
    let output = lab(&arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    let [(_, reasons)] = attempts(&out).try_into().unwrap();
    assert!(reasons.contains(&"an offload is on: lq0l tx-udp-segmentation".to_owned()), "{reasons:?}");
    assert!(reasons.iter().all(|reason| reason.starts_with("an offload is on: ")), "{reasons:?}");
    let report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    assert!(report["machine"]["offloads"].as_array().unwrap().contains(&"lq0l tx-udp-segmentation".into()));
}

#[test]
fn bounds_decide_the_exit_code_with_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), "sleep 5");
    let run = |path: &str, out: &str| {
        let out = folder.path().join(out);
        // The load of the machine must not decide this test.
        let arguments =
            ["run", path, "--no-selftest", "--lateness", "10s", "--check", "--out", out.to_str().unwrap()];
        let output = lab(&arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&path, "first");
    assert_eq!(code, Some(0), "{said}");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("at_most = 0.0", "at_least = 1.0")).unwrap();
    let (code, said) = run(&path, "second");
    assert_eq!(code, Some(1), "{said}");
}

#[test]
fn a_report_names_its_command_and_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), "bash -c 'echo hi > /dev/udp/{b}/9; sleep 5'");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("delay=1ms", "up: loss=100%")).unwrap();
    let out = folder.path().join(OsStr::from_bytes(b"here\xff"));
    let run = || {
        let mut command =
            braidmq(&["lab", "run", "--logs", &path, "--no-selftest", "--lateness", "10s", "--out"]);
        let output = command.arg(&out).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("packets 0, dropped 100.0 %"), "as the report shows it: {said}");
    let report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    assert!(report["command"].as_str().unwrap().contains("here\u{fffd}"), "{}", report["command"]);
    assert!(out.join("runs/it-plain-1-1/wire.verdicts").is_file());
    let (code, said) = run();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("give another --out"), "{said}");
}

#[test]
fn a_refused_experiment_leaves_no_empty_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), "true");
    let out = folder.path().join("some/where");
    let tried = |options: &[&str]| {
        let output = braidmq(&["lab", "run", &path, "--out"]).arg(&out).args(options).output().unwrap();
        assert!(!folder.path().join("some").exists(), "{options:?}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = tried(&["--lateness", "0s", "--wire", "packet", "--again", "1"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("the selftest refused this machine"), "{said}");
    assert_eq!(
        said.matches("repeating the selftest (1 of 1), the machine was too busy").count(),
        1,
        "{said}"
    );
    let (code, said) = tried(&["--no-selftest", "--replace", "program=echo '"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("a quote is not closed"), "{said}");
}

#[test]
fn the_second_interrupt_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mark = mark("2");
    let path = scenario(folder.path(), &format!("sh -c 'trap \"\" INT; sleep {mark}'"));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("ends =", "grace = \"10s\"\nends =")).unwrap();
    let out = folder.path().join("out");
    let arguments =
        ["lab", "run", &path, "--no-selftest", "--duration", "1000s", "--out", out.to_str().unwrap()];
    let mut child = braidmq(&arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    while !is_there(&mark) {
        std::thread::yield_now();
    }
    // Signals right after the first are copies of it.
    while child.try_wait().unwrap().is_none() {
        interrupt(&child);
    }
    let said: Vec<String> =
        BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said:?}");
    assert!(said.last().unwrap().contains("ended at once"), "{said:?}");
    assert!(!is_there(&mark));
}

#[test]
fn an_interrupted_run_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mark = mark("1");
    let path = scenario(folder.path(), &format!("sleep {mark}"));
    let out = folder.path().join("out");
    let arguments =
        ["lab", "run", &path, "--no-selftest", "--duration", "1000s", "--out", out.to_str().unwrap()];
    let mut child = braidmq(&arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("[1/1] it on plain"));
    while !is_there(&mark) {
        std::thread::yield_now();
    }
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!is_there(&mark));
}
