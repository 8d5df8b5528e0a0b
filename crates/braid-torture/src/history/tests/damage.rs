//! Files that are cut off, malformed or damaged at random.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::super::check;
use super::model::{Model, texts, write};

const CONNECT: &str = r#"{"t":5,"kind":"connect","client":"a","conn":"c","node":"n","clean":true}"#;
const CONNACK: &str =
    r#"{"t":6,"kind":"connack","client":"a","conn":"c","node":"n","present":false,"reason":0}"#;
const PUBLISH: &str = r#"{"t":7,"kind":"publish","client":"a","conn":"c","topic":"x","qos":1,"id":"a:5","pid":1,"dup":false,"retain":false}"#;
const END: &str = r#"{"t":9,"kind":"end"}"#;

/// Checks one file, `a.jsonl`.
fn check_text(text: impl AsRef<[u8]>) -> Result<super::Report, String> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &BTreeMap::from([("a".to_owned(), text)]));
    check(dir.path()).map_err(|error| error.replace(&dir.path().display().to_string(), ""))
}

#[test]
fn a_cut_off_last_line_is_ignored_at_each_byte() {
    let whole = format!("{CONNECT}\n{CONNACK}\n");
    let other = r#"{"t":7,"kind":"disconnect","client":"ä","conn":"c"}"#;
    let dir = tempfile::tempdir().unwrap();
    for length in 1..other.len() {
        let cut = [whole.as_bytes(), &other.as_bytes()[..length]].concat();
        let end = format!("{END}\n").into_bytes();
        write(dir.path(), &BTreeMap::from([("a".to_owned(), cut), ("faults".to_owned(), end)]));
        let report = check(dir.path()).unwrap();
        assert_eq!((report.counts.events, report.counts.incomplete_files), (3, 1), "{length} bytes");
    }
    // A whole object without its newline counts.
    let report = check_text(format!("{CONNECT}\n{END}")).unwrap();
    assert_eq!((report.counts.events, report.counts.incomplete_files), (2, 0));
}

#[test]
fn malformed_lines_are_refused_with_file_and_line() {
    let acked = r#"{"t":8,"kind":"acked","client":"a","conn":"c","id":"a:6","reason":0}"#;
    let done = r#"{"t":8,"kind":"delivery_done","client":"a","conn":"c","id":"a:5"}"#;
    let delivered = r#"{"t":8,"kind":"delivered","client":"a","conn":"c","topic":"x","qos":0,"id":"a:5","pid":null,"dup":false,"retain":false}"#;
    let suback = r#"{"t":8,"kind":"subscribed","client":"a","conn":"c","filter":"x","reason":1}"#;
    let lower = PUBLISH.replace("a:5", "a:4");
    let rows: &[(&str, &[&str], &str)] = &[
        ("no JSON", &["{\"t\":1,"], "/history/a.jsonl:1: EOF while parsing"),
        ("an empty line", &[CONNECT, ""], "/history/a.jsonl:2: EOF while parsing"),
        ("no time", &[r#"{"kind":"end"}"#], "a.jsonl:1: missing field `t`"),
        ("a negative time", &[r#"{"t":-1,"kind":"end"}"#], "a.jsonl:1: invalid value: integer `-1`"),
        ("time goes back", &[CONNACK, CONNECT], "a.jsonl:1: no CONNECT of the connection c before"),
        ("time goes back", &[CONNECT, PUBLISH, CONNACK], "a.jsonl:3: t goes back from 7 to 6"),
        ("an unknown kind", &[r#"{"t":1,"kind":"ping"}"#], "a.jsonl:1: unknown variant `ping`"),
        (
            "a field is missing",
            &[&CONNECT.replace(r#","clean":true"#, "")],
            "a.jsonl:1: missing field `clean`",
        ),
        (
            "QoS 3",
            &[CONNECT, &PUBLISH.replace(r#""qos":1"#, r#""qos":3"#)],
            "a.jsonl:2: QoS 3: use 0, 1 or 2",
        ),
        ("a second CONNECT", &[CONNECT, CONNECT], "a.jsonl:2: a second CONNECT of the connection c"),
        ("a second CONNACK", &[CONNECT, CONNACK, CONNACK], "a.jsonl:3: a second CONNACK"),
        (
            "another client",
            &[CONNECT, &CONNACK.replace("\"a\"", "\"b\"")],
            "a.jsonl:2: the connection c is one of a",
        ),
        ("an id without number", &[CONNECT, &PUBLISH.replace("a:5", "a")], "a.jsonl:2: id \"a\": write"),
        ("a wildcard in a topic", &[CONNECT, &PUBLISH.replace("\"x\"", "\"#\"")], "a.jsonl:2: topic \"#\""),
        ("a number goes back", &[CONNECT, PUBLISH, &lower], "a.jsonl:3: a number below"),
        (
            "another topic",
            &[CONNECT, PUBLISH, &PUBLISH.replace("\"x\"", "\"y\"")],
            "a.jsonl:3: a second message",
        ),
        (
            "an acknowledgement of nothing",
            &[CONNECT, PUBLISH, acked],
            "a.jsonl:3: an acknowledgement of a message",
        ),
        (
            "a delivery before CONNACK",
            &[CONNECT, PUBLISH, delivered],
            "a.jsonl:3: a delivery on a connection",
        ),
        ("the end of no delivery", &[CONNECT, PUBLISH, done], "a.jsonl:3: the end of a delivery"),
        ("a SUBACK for nothing", &[CONNECT, suback], "a.jsonl:2: a SUBACK for x without SUBSCRIBE"),
        ("a filter that is none", &[CONNECT, &suback.replace("\"x\"", "\"#x\"")], "a.jsonl:2: filter \"#x\""),
        (
            "a fault ends twice",
            &[r#"{"t":1,"kind":"fault","name":"kill","on":"n","phase":"end"}"#],
            "a.jsonl:1: the fault kill on n ends without a beginning",
        ),
        ("an event after the end", &[END, END], "a.jsonl:2: an event after `end`"),
        ("no end", &[CONNECT], ": no file has the event `end`"),
    ];
    for (name, lines, expected) in rows {
        let error = check_text(lines.join("\n") + "\n").unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
        assert!(!error.contains('\n'), "{name}: {error}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(check(empty.path()).unwrap_err().starts_with("cannot read "));
    std::fs::create_dir(empty.path().join("history")).unwrap();
    assert!(check(empty.path()).unwrap_err().starts_with("no history: "));
}

#[test]
fn random_damage_never_panics() {
    let files = texts(&Model::run(1, 60));
    let mut outcomes = [0, 0];
    let mut rng = Rng::with_seed(7);
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..600 {
        let mut damaged: BTreeMap<String, Vec<u8>> =
            files.iter().map(|(name, text)| (name.clone(), text.clone().into_bytes())).collect();
        for _ in 0..rng.usize(1..4) {
            let name = rng.choice(damaged.keys().cloned().collect::<Vec<_>>()).unwrap();
            if let Some(bytes) = damaged.get_mut(&name).filter(|bytes| !bytes.is_empty()) {
                damage(&mut rng, bytes);
            }
        }
        write(dir.path(), &damaged);
        match check(dir.path()) {
            Ok(report) => {
                assert!(!report.to_string().is_empty());
                outcomes[0] += 1;
            }
            Err(error) => {
                assert!(error.contains(".jsonl:") || error.contains("`end`"), "{error}");
                outcomes[1] += 1;
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 40), "read and refused: {outcomes:?}");
}

/// Damages a byte, a number, a word or a line.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.usize(..bytes.len());
    let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let line = rng.usize(..lines.len());
    match rng.u32(..7) {
        0 => bytes[at] = rng.u8(..),
        1 => bytes.truncate(at),
        2 => {
            for byte in bytes[at..].iter_mut().filter(|byte| byte.is_ascii_digit()).take(2) {
                *byte = rng.u8(b'0'..=b'9');
            }
        }
        3 => {
            let other = rng.usize(..lines.len());
            lines.swap(line, other);
            *bytes = lines.concat();
        }
        4 => {
            lines.remove(line);
            *bytes = lines.concat();
        }
        5 => {
            lines.insert(line, lines[line].clone());
            *bytes = lines.concat();
        }
        _ => {
            let text = String::from_utf8_lossy(&lines[line]).into_owned();
            let words = [
                ("false", "true"),
                ("true", "false"),
                ("\"qos\":2", "\"qos\":1"),
                ("null", "7"),
                ("c1", "c2"),
            ];
            let (from, to) = words[rng.usize(..words.len())];
            lines[line] = text.replacen(from, to, 1).into_bytes();
            *bytes = lines.concat();
        }
    }
}
