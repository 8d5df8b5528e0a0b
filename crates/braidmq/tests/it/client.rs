//! `braidmq pub` and `braidmq sub`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Output, Stdio};

use super::broker::{Broker, braidmq};

/// Runs to the end with this on standard input.
fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = braidmq(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who does not read its input closes it.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// A subscriber, once it is subscribed.
fn subscriber(broker: &Broker, arguments: &[&str]) -> Child {
    let mut all = vec!["sub", "-L", &broker.url, "-d"];
    all.extend(arguments);
    let mut child = braidmq(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("received SUBACK")));
    std::thread::spawn(move || log.for_each(drop));
    child
}

fn output(mut child: Child) -> (Option<i32>, Vec<u8>) {
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    (child.wait().unwrap().code(), out)
}

fn code(arguments: &[&str]) -> Option<i32> {
    run(arguments, b"").status.code()
}

#[test]
fn bytes_arrive_as_bytes() {
    let broker = Broker::start();
    let payload: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for qos in ["0", "1", "2"] {
        let subscriber = subscriber(&broker, &["-t", "bytes", "-q", qos, "-C", "1", "-N"]);
        let published = run(&["pub", "-L", &broker.url, "-t", "bytes", "-q", qos, "-s"], &payload);
        assert_eq!(published.status.code(), Some(0), "{published:?}");
        let (code, received) = output(subscriber);
        assert_eq!(code, Some(0));
        assert!(received == payload, "QoS {qos} changed the payload");
    }
}

#[test]
fn each_line_is_a_message_and_the_last_needs_no_line_feed() {
    let broker = Broker::start();
    let subscriber = subscriber(&broker, &["-t", "lines/#", "-v", "-q", "1", "-C", "4"]);
    let lines = run(&["pub", "-L", &format!("{}/lines/1", broker.url), "-l", "-q", "1"], b"a\n\nb\r\n\xFF");
    assert_eq!(lines.status.code(), Some(0), "{lines:?}");
    let (code, received) = output(subscriber);
    assert_eq!(code, Some(0));
    assert_eq!(received, b"lines/1 a\nlines/1 (null)\nlines/1 b\r\nlines/1 \xFF\n");
}

#[test]
fn properties_and_formats() {
    let broker = Broker::start();
    let format = ["-F", "%t %p %q %C %P %S", "-V", "5", "-q", "2", "-C", "1"];
    let id = ["-D", "subscribe", "subscription-identifier", "7", "-t", "p"];
    let subscriber = subscriber(&broker, &[&format[..], &id].concat());
    let properties = ["-D", "publish", "content-type", "text", "-D", "publish", "user-property", "a", "b"];
    let published =
        run(&[&["pub", "-L", &broker.url, "-t", "p", "-m", "-1", "-q", "2"], &properties[..]].concat(), b"");
    assert_eq!(published.status.code(), Some(0), "{published:?}");
    assert_eq!(output(subscriber), (Some(0), b"p -1 2 text a:b 7\n".to_vec()));
}

#[test]
fn a_kept_session_gets_what_was_published_meanwhile() {
    let broker = Broker::start();
    let keep = ["sub", "-L", &broker.url, "-t", "kept", "-i", "logger", "-c", "-q", "1"];
    assert_eq!(code(&[&keep[..], &["-E"]].concat()), Some(0));
    assert_eq!(code(&["pub", "-L", &broker.url, "-t", "kept", "-m", "meanwhile", "-q", "1"]), Some(0));
    let received = run(&[&keep[..], &["-C", "1"]].concat(), b"");
    assert_eq!(received.stdout, b"meanwhile\n");
}

#[test]
fn retained_messages_are_told_apart() {
    let broker = Broker::start();
    let url = &broker.url;
    assert_eq!(code(&["pub", "-L", url, "-t", "r/1", "-m", "kept", "-r", "-q", "1"]), Some(0));
    assert_eq!(run(&["sub", "-L", url, "-t", "r/1", "-C", "1", "-F", "%p %r"], b"").stdout, b"kept 1\n");
    let without = run(&["sub", "-L", url, "-t", "r/1", "-R", "-W", "1"], b"");
    assert_eq!((without.status.code(), without.stdout.len()), (Some(27), 0));
    let filtered = run(&["sub", "-L", url, "-t", "r/#", "-T", "r/+", "-W", "1"], b"");
    assert_eq!((filtered.status.code(), filtered.stdout.len()), (Some(27), 0));
}

#[test]
fn exit_codes_are_those_of_mosquitto() {
    let broker = Broker::start();
    let url = &broker.url;
    assert_eq!(code(&["sub", "-L", url, "-t", "t", "-E"]), Some(0));
    assert_eq!(code(&["sub", "-L", url, "-t", "t", "-W", "1"]), Some(27));
    assert_eq!(code(&["pub", "-p", "1", "-t", "t", "-m", "m"]), Some(1), "nothing listens there");
    assert_eq!(code(&["pub", "-L", url, "-t", "t/#", "-m", "m"]), Some(1), "no topic name");
    assert_eq!(code(&["sub", "-L", url]), Some(1), "no filter");
    assert_eq!(code(&["pub", "-L", url, "-t", "t", "-f", "/does/not/exist"]), Some(1));
    assert_eq!(code(&["pub", "-L", url, "-t", "t", "-m", "m", "-D", "publish", "colour", "red"]), Some(1));
}

#[test]
fn errors_are_one_line_and_quiet_is_none() {
    let arguments = ["pub", "-p", "1", "-t", "t", "-m", "m"];
    let error = String::from_utf8(run(&arguments, b"").stderr).unwrap();
    assert!(error.starts_with("Error: cannot connect to localhost:1: nothing listens on"), "{error}");
    assert_eq!(error.lines().count(), 1);
    assert!(run(&[&arguments[..], &["--quiet"]].concat(), b"").stderr.is_empty());
}
