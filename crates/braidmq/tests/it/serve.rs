//! `braidmq serve`: start, refusal to start, reload and stop.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::broker::braidmq;

/// Runs `braidmq serve`, which must refuse to start; returns its exit code and its only line.
fn refusal(arguments: &[&str]) -> (i32, String) {
    refusal_of(&mut serve(arguments))
}

pub(crate) fn refusal_of(command: &mut Command) -> (i32, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
    if !printed.is_empty() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(printed, "", "it must not look as if it had started");
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    (output.status.code().unwrap(), said.trim_end().to_owned())
}

fn serve(arguments: &[&str]) -> Command {
    let mut command = braidmq(&["serve"]);
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A broker process that is killed at the end of its test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the broker; returns its output up to the last line of the banner.
fn start(arguments: &[&str]) -> (Running, Vec<String>) {
    start_command(&mut serve(arguments))
}

pub(crate) fn start_command(command: &mut Command) -> (Running, Vec<String>) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let mut banner = Vec::new();
    for line in BufReader::new(running.0.stdout.take().unwrap()).lines() {
        banner.push(line.unwrap());
        if banner.last().is_some_and(|line| line.starts_with("Stop with")) {
            break;
        }
    }
    (running, banner)
}

/// Sends a signal to a process that this test started.
pub(crate) fn signal(broker: &Running, name: &str) {
    let status = Command::new("kill").args([name, &broker.0.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn the_banner_names_every_listener_and_what_to_type() {
    let data = tempfile::tempdir().unwrap();
    let any = "127.0.0.1:0";
    let dir = data.path().to_str().unwrap();
    let arguments = ["--tcp", any, "--tls", any, "--ws", any, "--wss", any, "--quic", any, "--data-dir", dir];
    let (mut broker, banner) = start(&arguments);
    let banner = banner.join("\n");
    for part in [
        "mqtt://127.0.0.1:",
        "mqtts://",
        "ws://",
        "wss://",
        "quic://",
        "/mqtt",
        "SHA-256",
        "braidmq pub --url",
    ] {
        assert!(banner.contains(part), "{part} is not in\n{banner}");
    }
    signal(&broker, "-TERM");
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_port_in_use_is_one_line_and_exit_code_2() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, said) = refusal(&["--tcp", &address.to_string()]);
    assert_eq!(code, 2);
    assert!(said.contains(&address.port().to_string()) && said.contains("in use"), "{said}");
}

#[test]
fn bad_addresses_certificates_and_settings_are_one_line_and_exit_code_2() {
    let data = tempfile::tempdir().unwrap();
    let garbage = data.path().join("garbage.pem");
    fs::write(&garbage, "no certificate").unwrap();
    let config = data.path().join("braidmq.toml");
    fs::write(&config, "[listeners]\ntcp = [\"127.0.0.1:0\"]\n\n[limit]\nconnections = 1\n").unwrap();
    let [garbage, config] = [&garbage, &config].map(|path| path.to_str().unwrap().to_owned());
    let garbage_certificate = format!("tls.certificate={garbage}");
    let garbage_key = format!("tls.key={garbage}");
    let below_file = format!("{garbage}/qlog");
    let unknown_key = format!("{config}:4: unknown key `limit`; did you mean `limits`?");
    for (arguments, part) in [
        (vec!["--tcp", "1883"], "--tcp 1883: write it as HOST:PORT"),
        (vec!["--tls", "127.0.0.1:0", "--set", &garbage_certificate, "--set", &garbage_key], "garbage.pem"),
        (vec!["--tls", "127.0.0.1:0", "--set", "tls.certificate=a.pem"], "tls.key is missing"),
        (vec!["--config", &config], unknown_key.as_str()),
        (vec!["--config", "/nowhere/braidmq.toml"], "cannot read /nowhere/braidmq.toml"),
        (vec!["--set", "mqtt.receive_maximum=0"], "mqtt.receive_maximum: 0 is out of range"),
        (vec!["--set", "log.level=inof"], "is none of off, error, warn"),
        (vec!["--set", "no value"], "write it as KEY=VALUE"),
        (
            vec!["--accept-cluster-risk", "version"],
            "cluster.accept_risks: has no effect without cluster.nats",
        ),
        (
            vec!["--set", "cluster.nats=[\"tls://a\"]", "--set", "store.durability=memory"],
            "store.durability: [store] has no effect in a cluster",
        ),
        (
            vec!["--set", "quic.congestion=bbr"],
            "unknown variant `bbr`, expected one of `bbr3`, `cubic`, `newreno`",
        ),
        (vec!["--tcp", "127.0.0.1:0", "--qlog-dir", below_file.as_str()], "the directory cannot be made"),
        (vec!["--tcp", "127.0.0.1:0", "--gate-log", below_file.as_str()], "the file cannot be written"),
    ] {
        let (code, said) = refusal(&arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert!(said.contains(part), "{arguments:?} says: {said}");
    }
}

#[test]
fn the_printed_configuration_is_one_that_can_be_read() {
    let rules = r##"priority=[{filter="alarms/#",priority=200},{filter="#",priority=1}]"##;
    let set = ["--set", "limits.connections=7", "--set", rules, "--set", "quic.link_rate=33000"];
    let output = serve(&["--print-config", "--no-gate", "--qlog-dir", "q"]).args(set).output().unwrap();
    assert!(output.status.success());
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("braidmq.toml");
    fs::write(&file, &output.stdout).unwrap();
    let again = serve(&["--print-config", "--config", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(text(&again.stdout), text(&output.stdout));
    for part in [
        "connections = 7",
        "gate = false",
        "link_rate = 33000",
        "qlog_dir = \"q\"",
        "[[priority]]\nfilter = \"alarms/#\"\npriority = 200\n",
    ] {
        assert!(text(&again.stdout).contains(part), "{part} is not in\n{}", text(&again.stdout));
    }
}

#[test]
fn the_packaged_configuration_is_the_default_but_for_its_directory() {
    let packaged = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/braidmq.toml");
    let printed = |arguments: &[&str]| {
        let output = serve(arguments).arg("--print-config").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(printed(&["--config", packaged]), printed(&["--data-dir", "/var/lib/braidmq"]));
}

#[test]
fn secrets_and_events_are_written_where_the_user_says() {
    let data = tempfile::tempdir().unwrap();
    let [keys, events] = ["keys", "events/quic"].map(|name| data.path().join(name));
    let mut command = serve(&["--quic", "127.0.0.1:0", "--data-dir"]);
    command.arg(data.path()).arg("--qlog-dir").arg(&events).env("SSLKEYLOGFILE", &keys);
    let (mut broker, _) = start_command(&mut command);
    assert!(keys.is_file() && events.is_dir());
    signal(&broker, "-TERM");
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

/// Sends SIGHUP; returns the log lines up to its outcome.
fn reload(broker: &Running, log: &mut impl BufRead) -> String {
    signal(broker, "-HUP");
    let mut said = String::new();
    while !said.contains(" reloaded") {
        assert!(log.read_line(&mut said).unwrap() > 0, "the log ends with:\n{said}");
    }
    said
}

#[test]
fn a_hang_up_reloads_certificates_and_log_level_or_leaves_them() {
    let data = tempfile::tempdir().unwrap();
    let config = data.path().join("braidmq.toml");
    let listeners = "[listeners]\ntcp = []\ntls = [\"127.0.0.1:0\"]\nws = []\nwss = []\nquic = []\n";
    let write = |level: &str| fs::write(&config, format!("{listeners}[log]\nlevel = \"{level}\"\n")).unwrap();
    write("info");
    let dir = data.path().to_str().unwrap();
    let (mut broker, _) = start(&["--config", config.to_str().unwrap(), "--data-dir", dir]);
    let mut log = BufReader::new(broker.0.stderr.take().unwrap());
    let said = reload(&broker, &mut log);
    assert!(said.contains("users, rules, bans, certificates and log level reloaded"), "{said}");
    // One file that cannot be used leaves all settings unchanged.
    write("inof");
    let said = reload(&broker, &mut log);
    assert!(said.contains("nothing reloaded") && said.contains("inof"), "{said}");
    write("debug");
    replace(&data.path().join("key.pem"), "no key");
    let said = reload(&broker, &mut log);
    assert!(said.contains("nothing reloaded") && said.contains("key.pem"), "{said}");
    signal(&broker, "-INT");
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

fn replace(path: &Path, text: &str) {
    fs::remove_file(path).unwrap();
    fs::write(path, text).unwrap();
}

/// Modes of a directory and of everything in it.
fn modes(directory: &Path) -> Vec<(String, u32)> {
    use std::os::unix::fs::PermissionsExt;

    let mut modes = Vec::new();
    let mut rest = vec![directory.to_owned()];
    while let Some(path) = rest.pop() {
        let metadata = fs::metadata(&path).unwrap();
        modes.push((
            path.file_name().unwrap().to_str().unwrap().to_owned(),
            metadata.permissions().mode() & 0o777,
        ));
        if metadata.is_dir() {
            rest.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    modes.sort();
    modes
}

/// Also under the usual umask. A wider mode is not changed, but the broker says how to.
#[test]
fn the_data_directory_is_private_and_a_wider_mode_is_told() {
    use std::os::unix::fs::PermissionsExt;

    let outer = tempfile::tempdir().unwrap();
    let data = outer.path().join("data");
    let serve = || {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 022 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_braidmq"), "serve"]);
        command.args(["--tcp", "127.0.0.1:0", "--tls", "127.0.0.1:0", "--data-dir"]).arg(&data);
        command
    };
    let said_at_start = || {
        let (mut running, _) = start_command(&mut serve());
        signal(&running, "-TERM");
        let mut said = String::new();
        running.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    };
    let said = said_at_start();
    assert!(!said.contains("chmod"), "{said}");
    let expected = [
        ("cert.pem", 0o600),
        ("data", 0o700),
        ("key.pem", 0o600),
        ("spool", 0o700),
        ("store.journal", 0o600),
        ("store.redb", 0o600),
    ];
    assert_eq!(modes(&data), expected.map(|(name, mode)| (name.to_owned(), mode)));
    let key = data.join("key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let said = said_at_start();
    let advice =
        format!("other users can reach {key} (mode 644): run `chmod 600 {key}`", key = key.display());
    assert!(said.contains(&advice), "{said}");
    assert_eq!(said.matches("chmod").count(), 1, "{said}");
}
