//! `braidmq serve --health`: the HTTP answers while the broker starts, serves and ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::broker::braidmq;
use crate::serve::{Running, refusal_of, signal, start_command};

const LISTEN: [&str; 5] = ["serve", "--tcp", "127.0.0.1:0", "--health", "127.0.0.1:0"];

/// Status code and body of the answer to `GET /health`; `None` when the connection is refused.
fn ask(address: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let mut answer = String::new();
    // A process that ends closes the connection before its answer.
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n").ok()?;
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().unwrap(), body.to_owned()))
}

/// `HOST:PORT` in the line of the banner with this scheme.
fn address(banner: &[String], scheme: &str) -> String {
    let line = banner.iter().find(|line| line.contains(scheme)).unwrap();
    let (_, rest) = line.split_once(scheme).unwrap();
    rest.split('/').next().unwrap().to_owned()
}

#[test]
fn a_broker_that_serves_is_healthy_and_says_where_to_ask() {
    let data = tempfile::tempdir().unwrap();
    let (mut broker, banner) = start_command(braidmq(&LISTEN).arg("--data-dir").arg(data.path()));
    let (code, body) = ask(&address(&banner, "http://")).unwrap();
    assert_eq!(code, 200, "{body}");
    for part in ["\"status\":\"ok\"", "\"store\":\"ok\"", "\"memory\":\"ok\"", "\"clients\":0"] {
        assert!(body.contains(part), "{part} is not in {body}");
    }
    signal(&broker, "-TERM");
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

#[test]
fn there_is_no_endpoint_by_default() {
    let data = tempfile::tempdir().unwrap();
    let (_broker, banner) = start_command(braidmq(&LISTEN[..3]).arg("--data-dir").arg(data.path()));
    assert!(!banner.iter().any(|line| line.contains("http://")), "{banner:?}");
}

/// A named pipe blocks the opening process until another one reads it.
#[test]
fn a_broker_that_starts_says_so_and_is_ready_when_it_has() {
    let data = tempfile::tempdir().unwrap();
    let held = data.path().join("held");
    assert!(Command::new("mkfifo").arg(&held).status().unwrap().success());
    let mut command = braidmq(&LISTEN);
    command.arg("--gate-log").arg(&held).arg("--data-dir").arg(data.path().join("data"));
    command.args(["--set", "log.level=off,braid_http=debug"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut broker = Running(child);
    let mut line = String::new();
    BufReader::new(broker.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let (_, port) = line.split_once("127.0.0.1:").unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let address = format!("127.0.0.1:{port}");
    let (code, body) = ask(&address).unwrap();
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("\"status\":\"starting\"") && !body.contains("store"), "{body}");
    drop(fs::File::open(&held).unwrap());
    let mut banner = BufReader::new(broker.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(banner.any(|line| line.starts_with("Stop with")));
    assert_eq!(ask(&address).unwrap().0, 200);
}

/// Connects with MQTT 3.1.1 and expects to be accepted.
fn connect(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&[0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 0]).unwrap();
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).unwrap();
    assert_eq!(connack, [0x20, 2, 0, 0]);
    stream
}

#[test]
fn a_broker_whose_store_has_failed_says_why_until_it_ends() {
    let data = tempfile::tempdir().unwrap();
    let serve = braidmq(&LISTEN);
    // Files above 18 MiB give an I/O error; the journal is smaller.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 36864; exec \"$@\"", "sh"]).arg(serve.get_program());
    command.args(serve.get_args()).arg("--data-dir").arg(data.path());
    let (mut broker, banner) = start_command(&mut command);
    let health = address(&banner, "http://");
    let mqtt = address(&banner, "mqtt://");
    assert_eq!(ask(&health).unwrap().0, 200);
    // The broker waits for clients that stay connected.
    let (stays, mut publisher) = (connect(&mqtt), connect(&mqtt));
    for name in b'a'..=b'z' {
        // 800,000 bytes to be retained.
        let packet = [&[0x31, 0x83, 0xEA, 0x30, 0, 1, name][..], &vec![0; 800_000]].concat();
        if publisher.write_all(&packet).is_err() {
            break;
        }
    }
    let (mut failed, mut stay) = (0, Some((stays, publisher)));
    while let Some((code, body)) = ask(&health) {
        let has_failed = body.contains("\"status\":\"failed\"");
        assert!(has_failed || failed == 0, "{body}");
        assert_eq!(code, if has_failed { 503 } else { 200 }, "{body}");
        assert_eq!(body.contains("\"store\":\"failed: "), has_failed, "{body}");
        failed += usize::from(has_failed);
        if failed == 3 {
            stay.take();
        }
    }
    assert!(failed >= 3, "{failed}");
    assert_eq!(broker.0.wait().unwrap().code(), Some(74));
}

#[test]
fn an_unusable_address_is_one_line_and_exit_code_2() {
    let data = tempfile::tempdir().unwrap();
    let config = data.path().join("braidmq.toml");
    fs::write(&config, "[health]\nbind = [\"localhost\"]\n").unwrap();
    let unknown = data.path().join("unknown.toml");
    fs::write(&unknown, "[health]\n\nbnd = []\n").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let [config, unknown] = [&config, &unknown].map(|path| path.to_str().unwrap().to_owned());
    for (arguments, parts) in [
        (["--health", &taken], ["cannot listen for HTTP", &taken]),
        (["--health", "18083"], ["--health 18083: write it as HOST:PORT", ""]),
        (["--config", &config], [&format!("{config}:2: "), "socket address"]),
        (["--config", &unknown], [&format!("{unknown}:3: unknown key `bnd`; did you mean `bind`?"), ""]),
        (["--set", "health.bind=127.0.0.1:18083"], ["write a list: [\"127.0.0.1:18083\"]", ""]),
    ] {
        let mut command = braidmq(&["serve", "--data-dir"]);
        let (code, said) = refusal_of(command.arg(data.path().join("data")).args(arguments));
        assert_eq!(code, 2, "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{arguments:?} says: {said}");
    }
    assert!(!data.path().join("data").exists(), "nothing is half-started");
}
