//! Invalid command lines: refused before the run begins, in one line.

use std::fs;
use std::net::TcpListener;

use super::rig::run;

/// Exit code and the only line of a run that is refused.
fn refusal(arguments: &[&str]) -> (i32, String) {
    let end = run(arguments);
    let said = &end.errors;
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(end.lines.is_empty(), "it must not look as if it had begun: {}", end.lines);
    (end.code.unwrap(), said.trim_end().to_owned())
}

#[test]
fn options_are_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none/out.json");
    let none = none.to_str().unwrap();
    for (arguments, start) in [
        (&["pub"][..], "Error: nothing to publish: give -t TOPIC, or --topics-payload FILE"),
        (&["pub", "-t", "a/%rand_x"], "Error: topic \"a/%rand_x\": %rand_x needs a number from 1"),
        (&["pub", "-t", "%u"], "Error: topic \"%u\" has %u, which is the user name: give one with -u"),
        (&["sub", "-t", "a", "--stream", "1"], "Error: --stream needs QUIC"),
        (&["sub", "-t", "a/#/b"], "Error: topic \"a/#/b\": "),
        (&["pub", "-t", "a", "--topics-payload", none], "Error: cannot read "),
        (&["pub", "-t", "a", "-m", "template://none"], "Error: cannot read none: "),
        (&["conn", "--json", none], "Error: cannot write --json "),
        (&["conn", "-S", "--cacertfile", none], "Error: "),
        (&["conn", "--tcp-cc", "nonsense"], "Error: "),
        (&["conn", "--quic", "--qlog-dir", "/dev/null/x"], "Error: cannot make the directory /dev/null/x: "),
        (&["conn", "--quic", "--gate-log", none], "Error: cannot write --gate-log "),
    ] {
        let (code, said) = refusal(arguments);
        assert_eq!(code, 2, "{said}");
        assert!(said.starts_with(start), "{arguments:?}: {said}");
    }
}

#[test]
fn a_wrong_file_of_topics_is_named_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("topics.json");
    let path = path.to_str().unwrap();
    for (content, line) in
        [("{\"topics\": [\n  {\"name\": \"a\",, }\n]}", 2), ("{\n\n\"topics\": 1}", 3), ("", 1)]
    {
        fs::write(path, content).unwrap();
        let (code, said) = refusal(&["pub", "--topics-payload", path]);
        assert!(said.starts_with(&format!("Error: {path}:{line}: ")), "{said}");
        assert_eq!(code, 2);
    }
}

#[test]
fn a_port_for_metrics_that_is_taken_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = refusal(&["conn", "-h", "127.0.0.1", "--prometheus", &address]);
    assert!(said.starts_with(&format!("Error: cannot serve metrics at {address}: ")), "{said}");
    assert_eq!(code, 2);
}

#[test]
fn an_unknown_host_is_told() {
    let (code, said) = refusal(&["conn", "-h", "no-such-host.invalid"]);
    assert!(said.starts_with("Error: cannot find the server \"no-such-host.invalid\": "), "{said}");
    assert_eq!(code, 2);
}
