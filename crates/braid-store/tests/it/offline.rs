use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use braid_proto::packet::QoS;
use braid_proto::session::SessionExpiry;
use braid_proto::topic::TopicName;
use braid_store::suite::{self, Fixture};
use braid_store::{
    Damage, EmbeddedStore, Existing, Lsn, OfflineStore, OpenError, Options, Progress, RecoveredState,
    SessionId, Stage, Store, StoredMessage, TransferError,
};
use bytes::Bytes;
use redb::{Database, TableDefinition, WriteTransaction};

use crate::disk::Disk;
use crate::embedded::{open, options};
use crate::example::{contents, fill, open_session, queue, queued, queued_with, read};

fn filled() -> Disk {
    let disk = Disk::default();
    fill(&open(&disk)).expect("the disk is well");
    disk
}

pub(crate) fn offline(disk: &Disk) -> OfflineStore {
    OfflineStore::open_on(disk.device(), disk.journal(), options()).expect("the disk is well")
}

pub(crate) fn exported(disk: &Disk) -> String {
    let mut text = Vec::new();
    let records = offline(disk).export(&mut text).expect("memory takes everything");
    let text = String::from_utf8(text).expect("JSON is text");
    assert_eq!(text.lines().count() as u64, records);
    text
}

pub(crate) fn import(disk: &Disk, text: &str) -> Result<u64, TransferError> {
    offline(disk).import(&mut text.as_bytes())
}

#[test]
fn an_imported_export_is_equal() {
    let disk = filled();
    let text = exported(&disk);
    let copy = Disk::default();
    assert_eq!(import(&copy, &text), Ok(text.lines().count() as u64));
    assert_eq!(exported(&copy), text);
    let (original, copy) = (open(&disk), open(&copy));
    let expected = contents(&original);
    assert_eq!(contents(&copy), expected);
    assert_eq!(expected.0.sessions.len(), 2);
    assert!(expected.1[..4].iter().all(Option::is_some));
}

#[test]
fn an_export_has_the_publisher_of_a_retained_message() {
    let disk = Disk::default();
    let lsn = Lsn::new(1);
    let topic = TopicName::parse("t").expect("a topic name");
    let message = StoredMessage::from_parts(topic, "x", QoS::AtLeastOnce, true, None, None)
        .with_publisher(Some("{\"client\":\"é\"}".into()));
    let (stored, retained) = (
        braid_store::Change::Stored { lsn, message: message.clone() },
        braid_store::Change::Retained { message: lsn },
    );
    open(&disk).commit([stored, retained].into_iter().collect()).wait().expect("the disk is well");
    let text = exported(&disk);
    assert!(text.contains(r#""publisher":"{\"client\":\"é\"}""#), "{text}");
    let copy = Disk::default();
    import(&copy, &text).expect("it is valid");
    assert_eq!(read(&open(&copy), 1), Ok(Some(message)));
    assert_eq!(exported(&copy), text);
}

/// Texts that the store keeps for others are checked by the caller's rules.
#[test]
fn texts_that_no_broker_reads_are_found() {
    let disk = Disk::default();
    let store = open(&disk);
    let session = braid_store::Change::Opened {
        session: SessionId::new(1),
        client_id: "client".into(),
        identity: Some("known".into()),
        expiry: SessionExpiry::NEVER,
        claim: store.claim(&"client".into()).wait().expect("the disk is well"),
    };
    let lsn = Lsn::new(1);
    let topic = TopicName::parse("t").expect("a topic name");
    let message = StoredMessage::from_parts(topic, "x", QoS::AtLeastOnce, true, None, None)
        .with_publisher(Some("known".into()));
    let (message, retained) =
        (braid_store::Change::Stored { lsn, message }, braid_store::Change::Retained { message: lsn });
    store.commit([session, message, retained].into_iter().collect()).wait().expect("the disk is well");
    drop(store);
    let text = exported(&disk);
    for refuses_identity in [true, false] {
        let mut strict = options();
        let refuse = |text: &str| Err(format!("{text} is unknown"));
        let which = if refuses_identity { &mut strict.check_identity } else { &mut strict.check_publisher };
        *which = refuse;
        let name = if refuses_identity { "identity" } else { "publisher" };
        let found = OfflineStore::open_on(disk.device(), disk.journal(), strict.clone()).expect("it is well");
        let problems = found.check().expect("the disk is well").problems;
        assert!(problems.len() == 1 && problems[0].description.contains(name), "{problems:?}");
        let copy = Disk::default();
        let into = OfflineStore::open_on(copy.device(), copy.journal(), strict).expect("it is well");
        let error = into.import(&mut text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(&format!("the {name}: known is unknown")), "{error}");
    }
}

/// Fixture that exports, imports and exports the store before each reopening.
#[derive(Default)]
struct Moving(Disk);

impl Fixture for Moving {
    fn open(&mut self) -> Box<dyn Store> {
        self.0 = Disk::default();
        Box::new(open(&self.0))
    }

    fn reopen(&mut self, store: Box<dyn Store>) -> Box<dyn Store> {
        drop(store);
        let (text, copy) = (exported(&self.0), Disk::default());
        import(&copy, &text).expect("what was exported can be imported");
        assert_eq!(exported(&copy), text);
        assert_eq!(offline(&copy).check().expect("the disk is well").problems, []);
        assert_eq!(contents(&open(&copy)), contents(&open(&self.0)));
        Box::new(open(&self.0))
    }
}

#[test]
fn random_stores_are_exported_and_imported() {
    for seed in 100..115 {
        suite::run_random(&mut Moving::default(), seed);
    }
}

#[test]
fn an_empty_store_is_exported_and_imported() {
    let disk = Disk::default();
    drop(open(&disk));
    let text = exported(&disk);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(import(&Disk::default(), &text), Ok(2));
}

#[test]
fn only_an_empty_store_takes_an_import() {
    let (disk, text) = (filled(), exported(&filled()));
    let error = import(&disk, &text).unwrap_err();
    assert!(matches!(error, TransferError::NotEmpty { .. }), "{error}");
    assert_eq!(exported(&disk), text);
}

#[test]
fn an_import_that_ends_too_early_leaves_nothing() {
    let text = exported(&filled());
    let disk = Disk::default();
    let lines: Vec<&str> = text.lines().collect();
    for count in 0..lines.len() {
        let error = import(&disk, &lines[..count].join("\n")).unwrap_err();
        let expected = count as u64 + 1;
        assert!(matches!(error, TransferError::Line { line, .. } if line == expected), "{count}: {error}");
    }
    assert_eq!(import(&disk, &text), Ok(lines.len() as u64), "the store is still empty");
}

#[test]
fn no_line_may_be_missing_or_twice() {
    let text = exported(&filled());
    let lines: Vec<&str> = text.lines().collect();
    for at in 0..lines.len() {
        let mut without = lines.clone();
        without.remove(at);
        let mut twice = lines.clone();
        twice.insert(at, lines[at]);
        for lines in [without, twice] {
            // Lines behind the end are not read.
            if lines.last() == lines.get(lines.len().wrapping_sub(2)) {
                continue;
            }
            let error = import(&Disk::default(), &lines.join("\n")).unwrap_err();
            assert!(matches!(error, TransferError::Line { .. }), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}

#[test]
fn the_error_names_the_invalid_line() {
    let good = r#"{"type":"store","format":1,"next_session":1,"next_lsn":1}"#;
    let session = r#"{"type":"session","session":1,"client_id":"a","expiry":1,"parked_at":null}"#;
    for (lines, line, what) in [
        (vec!["{"], 1, "EOF while parsing an object at column 1"),
        (vec!["\u{1f}\u{8b}"], 1, "no JSON object"),
        (vec![good, ""], 2, "the end is missing"),
        (vec![good, "", ""], 2, "no JSON object"),
        (vec![good, good], 2, "twice"),
        (vec![good, "{\"type\":\"a\u{1b}\"}"], 2, "control character"),
        (vec![&good.replace("\"next_lsn\":1", "\"next_lsn\":4611686018427387904")], 1, "out of range"),
        (vec![r#"{"type":"store","format":0,"next_session":1,"next_lsn":1}"#], 1, "no format 0"),
        (vec![good, "{}"], 2, "type"),
        (vec![session], 1, "first record"),
        (
            vec![good, r#"{"type":"received","session":1,"packet_id":1,"exchanges":1}"#],
            2,
            "session is not there",
        ),
        (
            vec![good, session, r#"{"type":"received","session":1,"packet_id":0,"exchanges":1}"#],
            3,
            "cannot be 0",
        ),
        (vec![good, session, r#"{"type":"received","session":1,"packet_id":1,"exchanges":0}"#], 3, "nonzero"),
        (vec![good, session, session], 3, "twice"),
        (vec![good, r#"{"type":"retained","message":4}"#], 2, "message is not there"),
        (vec![good, session, &released(1), &released(2)], 4, "uses the packet identifier"),
        (
            vec![
                good,
                r##"{"type":"message","lsn":1,"content":{"topic":"#","qos":1,"retain":false,"payload":""}}"##,
            ],
            2,
            "topic name",
        ),
        (
            vec![
                good,
                r#"{"type":"message","lsn":1,"content":{"topic":"t","qos":1,"retain":false,"payload_hex":"f"}}"#,
            ],
            2,
            "pairs",
        ),
    ] {
        let error = import(&Disk::default(), &lines.join("\n")).unwrap_err();
        let TransferError::Line { line: found, reason } = &error else { panic!("{error}") };
        assert!(*found == line && reason.contains(what), "{error}");
    }
    let newer = import(&Disk::default(), &good.replace("\"format\":1", "\"format\":3"));
    assert_eq!(newer, Err(TransferError::Newer { found: 3, known: 2 }));
}

/// A broker assigns no number 0, and the embedded store continues from the highest.
#[test]
fn a_number_0_is_not_imported() {
    let store = r#"{"type":"store","format":1,"next_session":2,"next_lsn":3}"#;
    let session = r#"{"type":"session","session":1,"client_id":"a","expiry":1,"parked_at":null}"#;
    let message = r#"{"type":"message","lsn":1,"content":{"topic":"t","qos":1,"retain":false,"payload":""}}"#;
    let queued = r#"{"type":"queued","session":1,"lsn":1,"message":1,"qos":1,"retain":false,"subscription_ids":[],"priority":1,"shared":null,"sent":{"packet_id":1,"step":1}}"#;
    let released = r#"{"type":"released","session":1,"lsn":2,"step":{"packet_id":2,"step":2}}"#;
    let lines = [store, session, message, queued, released, r#"{"type":"end","records":5}"#];
    assert_eq!(import(&Disk::default(), &lines.join("\n")), Ok(6));
    for (at, number) in [
        (0, "\"next_session\":2"),
        (0, "\"next_lsn\":3"),
        (1, "\"session\":1"),
        (2, "\"lsn\":1"),
        (3, "\"lsn\":1"),
        (3, "\"step\":1"),
        (4, "\"lsn\":2"),
        (4, "\"step\":2"),
    ] {
        let mut lines = lines.map(str::to_owned);
        let (key, _) = number.rsplit_once(':').unwrap();
        lines[at] = lines[at].replace(number, &format!("{key}:0"));
        let error = import(&Disk::default(), &lines.join("\n")).unwrap_err();
        let TransferError::Line { line, reason } = &error else { panic!("{error}") };
        assert!(*line == at as u64 + 1 && reason.contains("begin at 1"), "{number}: {error}");
    }
}

#[test]
fn values_that_no_packet_can_carry_are_not_imported() {
    let message = |topic: &str, payload: &str| {
        format!(
            r#"{{"type":"message","lsn":1,"content":{{"topic":"{topic}","qos":1,"retain":true,{payload}}}}}"#
        )
    };
    let queued = |qos: u8, ids: &str, sent: &str| {
        format!(
            r#"{{"type":"queued","session":1,"lsn":1,"message":1,"qos":{qos},"retain":false,"subscription_ids":[{ids}],"priority":1,"shared":null,"sent":{sent}}}"#
        )
    };
    let subscription = |id: u32| {
        format!(
            r#"{{"type":"subscription","session":1,"filter":"t","qos":1,"no_local":false,"retain_as_published":false,"retain_handling":0,"id":{id},"priority":null}}"#
        )
    };
    let (text, retained) = (r#""payload":"x""#, r#"{"type":"retained","message":1}"#);
    for (what, lines) in [
        ("at most 268435455", vec![subscription(268_435_456)]),
        ("at most 268435455", vec![message("t", text), queued(1, "1,268435456", "null")]),
        ("QoS 0", vec![message("t", text), queued(0, "", "null")]),
        ("QoS 0", vec![message("t", text), queued(0, "", r#"{"packet_id":1,"step":1}"#)]),
        ("without payload", vec![message("t", r#""payload":"""#), retained.into()]),
        ("$SYS/", vec![message("$SYS/broker/uptime", text), retained.into()]),
        ("`expires`", vec![message("t", &format!(r#"{text},"expires":[1900000000,0]"#))]),
        ("`users`", vec![message("t", &format!(r#"{text},"properties":{{"user":[],"users":[]}}"#))]),
        ("`shares`", vec![message("t", text), queued(1, "", r#"null,"shares":null"#)]),
        ("`number`", vec![message("t", text), queued(1, "", r#"{"packet_id":1,"step":1,"number":1}"#)]),
    ] {
        let (refused, line) = (with_session(&lines), lines.len() as u64 + 2);
        let error = import(&Disk::default(), &refused).unwrap_err();
        let TransferError::Line { line: found, reason } = &error else { panic!("{error}") };
        assert!(*found == line && reason.contains(what), "{what}: {error}");
    }
    let sound = [
        vec![subscription(268_435_455)],
        vec![message("t", text), queued(1, "1,268435455", r#"{"packet_id":1,"step":1}"#), retained.into()],
    ];
    for lines in sound {
        let disk = Disk::default();
        import(&disk, &with_session(&lines)).unwrap();
        assert_eq!(offline(&disk).check().unwrap().problems, []);
    }
}

/// A complete export with session 1 and these lines.
fn with_session(lines: &[String]) -> String {
    let all = [
        r#"{"type":"store","format":1,"next_session":2,"next_lsn":2}"#,
        r#"{"type":"session","session":1,"client_id":"a","expiry":1,"parked_at":null}"#,
        &lines.join("\n"),
        &format!(r#"{{"type":"end","records":{}}}"#, lines.len() + 2),
    ];
    all.join("\n")
}

/// An entry that is sent with packet identifier 1.
fn released(lsn: u64) -> String {
    format!(r#"{{"type":"released","session":1,"lsn":{lsn},"step":{{"packet_id":1,"step":{lsn}}}}}"#)
}

/// Endless text.
struct Endless(&'static [u8]);

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        into.fill(self.0[0]);
        Ok(into.len())
    }
}

#[test]
fn input_without_lines_is_not_read_to_its_end() {
    let error = offline(&Disk::default()).import(&mut Endless(b"\0")).unwrap_err();
    assert!(matches!(error, TransferError::Line { line: 1, .. }), "{error}");
}

#[test]
fn a_sound_store_has_no_problems() {
    let disk = filled();
    let check = offline(&disk).check().unwrap();
    assert_eq!((check.problems, check.unlisted), (vec![], 0));
    assert_eq!(check.rows, 2 + 3 + 1 + 1 + 5 + 4 + 2 + 4);
}

#[test]
fn statistics_count_the_content() {
    let disk = filled();
    let stats = offline(&disk).stats().unwrap();
    let counted = (stats.sessions, stats.subscriptions, stats.wills, stats.received);
    assert_eq!(counted, (2, 3, 1, 1));
    assert_eq!((stats.queued, stats.inflight, stats.retained, stats.messages), (5, 4, 2, 4));
    assert_eq!((stats.format, stats.opens), (2, 1));
    assert!(stats.used > 0 && stats.length >= stats.used);
    let queues: Vec<_> =
        stats.queues.iter().map(|queue| (queue.client_id.as_str(), queue.entries, queue.bytes)).collect();
    // "t" and "two" take 6 bytes with flags and length of the topic; message 1 takes 58.
    assert_eq!(queues, [("a", 3, 58 + 6 + 6), ("é", 2, 58 + 7)]);
    assert_eq!(stats.bytes, 58 + 6 + 6 + 7);
    let oldest = stats.oldest.unwrap();
    assert_eq!((oldest.message.value(), oldest.topic.as_str(), oldest.payload), (1, "$a//é", 3));
    assert_eq!((oldest.client_id.as_str(), oldest.parked_at), ("a", None));
    assert!(stats.queues[1].parked_at.is_some());
    let empty = Disk::default();
    drop(open(&empty));
    let stats = offline(&empty).stats().unwrap();
    assert_eq!((stats.oldest, stats.queues), (None, vec![]));
}

/// The list of the longest queues, of many.
#[test]
fn ten_queues_are_listed() {
    let line = |session: u64| {
        format!(
            r#"{{"type":"session","session":{session},"client_id":"{session}","expiry":9,"parked_at":null}}"#
        )
    };
    let entry = |session: u64, lsn: u64| {
        format!(
            r#"{{"type":"queued","session":{session},"lsn":{lsn},"message":1,"qos":1,"retain":false,"subscription_ids":[],"priority":1,"shared":null,"sent":null}}"#
        )
    };
    let mut lines = vec![r#"{"type":"store","format":1,"next_session":1,"next_lsn":1}"#.to_owned()];
    lines.extend((1..=12).map(line));
    lines.push(
        r#"{"type":"message","lsn":1,"content":{"topic":"t","qos":1,"retain":false,"payload":"x"}}"#.into(),
    );
    lines.extend((1..=12).flat_map(|session| (1..=session).map(move |lsn| entry(session, lsn))));
    lines.push(format!(r#"{{"type":"end","records":{}}}"#, lines.len()));
    let disk = Disk::default();
    import(&disk, &lines.join("\n")).unwrap();
    let queues = offline(&disk).stats().unwrap().queues;
    let lengths: Vec<_> = queues.iter().map(|queue| (queue.session.value(), queue.entries)).collect();
    assert_eq!(lengths, (3..=12).rev().map(|session| (session, session)).collect::<Vec<_>>());
}

/// A filled store whose tables another program changed.
fn changed(change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>) -> Disk {
    let disk = filled();
    let database = Database::builder().create_with_backend(disk.device()).expect("the disk is well");
    let transaction = database.begin_write().expect("the only writer");
    change(&transaction).expect("it can be changed");
    transaction.commit().expect("the disk is well");
    disk
}

const SESSIONS: TableDefinition<'_, &[u8; 8], &[u8]> = TableDefinition::new("session");
const MESSAGES: TableDefinition<'_, &[u8; 8], &[u8]> = TableDefinition::new("message");
const SUBSCRIPTIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("subscription");
const QUEUE: TableDefinition<'_, &[u8; 16], &[u8]> = TableDefinition::new("queue");
const INFLIGHT: TableDefinition<'_, &[u8; 16], &[u8; 11]> = TableDefinition::new("inflight");
const RETAINED: TableDefinition<'_, &[u8], &[u8; 8]> = TableDefinition::new("retained");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

type Change = fn(&WriteTransaction) -> Result<(), redb::Error>;

/// Damages with the first problem that the check finds.
const DAMAGES: &[(&str, Damage, Change)] = &[
    ("no session", Damage::NoSession, |change| {
        change.open_table(SESSIONS)?.pop_last()?;
        Ok(())
    }),
    ("no message", Damage::NoMessage, |change| {
        change.open_table(MESSAGES)?.pop_last()?;
        Ok(())
    }),
    ("no queue entry", Damage::Contradiction, |change| {
        change.open_table(QUEUE)?.pop_last()?;
        Ok(())
    }),
    ("a packet identifier twice", Damage::Contradiction, |change| {
        // The identifier of entry 2 of session 1.
        let entry = &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1];
        change.open_table(INFLIGHT)?.insert(entry, b"\x02\0\x01\0\0\0\0\0\0\0\x09")?;
        Ok(())
    }),
    ("an unreferenced message", Damage::Unused, |change| {
        change.open_table(MESSAGES)?.insert(&[0, 0, 0, 0, 0, 0, 1, 0], b"\x00\x01t".as_slice())?;
        Ok(())
    }),
    ("a client twice", Damage::Contradiction, |change| {
        let value = b"\0\0\0\0\0a".as_slice();
        change.open_table(SESSIONS)?.insert(&[0, 0, 0, 0, 0, 0, 0, 9], value)?;
        Ok(())
    }),
    ("a queue entry that is none", Damage::Malformed, |change| {
        change.open_table(QUEUE)?.insert(&[0; 16], b"\xFF".as_slice())?;
        Ok(())
    }),
    ("a step that is none", Damage::Malformed, |change| {
        change.open_table(INFLIGHT)?.insert(&[1; 16], &[9; 11])?;
        Ok(())
    }),
    ("a topic that retains another's message", Damage::Contradiction, |change| {
        change.open_table(RETAINED)?.insert(b"other".as_slice(), &[0, 0, 0, 0, 0, 0, 0, 3])?;
        Ok(())
    }),
    ("a retained message without payload", Damage::Contradiction, |change| {
        change.open_table(MESSAGES)?.insert(&[0, 0, 0, 0, 0, 0, 0, 3], b"\x01\x03t/u".as_slice())?;
        Ok(())
    }),
    ("a retained message of the broker itself", Damage::Contradiction, |change| {
        let (key, message) = ([0, 0, 0, 0, 0, 0, 0, 7], b"\x01\x06$SYS/xx");
        change.open_table(MESSAGES)?.insert(&key, message.as_slice())?;
        change.open_table(RETAINED)?.insert(b"$SYS/x".as_slice(), &key)?;
        Ok(())
    }),
    ("a subscription identifier that is too high", Damage::Malformed, |change| {
        let key = b"\0\0\0\0\0\0\0\x01x".as_slice();
        change.open_table(SUBSCRIPTIONS)?.insert(key, b"\x40\x10\0\0\0".as_slice())?;
        Ok(())
    }),
    ("QoS 0 in a queue", Damage::Malformed, |change| {
        let entry = &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        change.open_table(QUEUE)?.insert(entry, b"\0".as_slice())?;
        Ok(())
    }),
    ("a session 0", Damage::Malformed, |change| {
        change.open_table(SESSIONS)?.insert(&[0; 8], b"\0\0\0\0\0z".as_slice())?;
        Ok(())
    }),
    ("a message 0", Damage::Malformed, |change| {
        change.open_table(MESSAGES)?.insert(&[0; 8], b"\x01\x01tx".as_slice())?;
        change.open_table(RETAINED)?.insert(b"t".as_slice(), &[0; 8])?;
        Ok(())
    }),
    ("an entry 0", Damage::Malformed, |change| {
        let mut queue = change.open_table(QUEUE)?;
        let value = queue.pop_last()?.map(|(_, value)| value.value().to_vec()).expect("something is queued");
        queue.insert(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], value.as_slice())?;
        Ok(())
    }),
    ("a step 0", Damage::Malformed, |change| {
        let entry = &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1];
        change.open_table(INFLIGHT)?.insert(entry, b"\x02\0\x63\0\0\0\0\0\0\0\0")?;
        Ok(())
    }),
    ("numbers beyond all", Damage::Numbers, |change| {
        change.open_table(META)?.insert("next_session", 1 << 62)?;
        Ok(())
    }),
    ("numbers that are not reserved", Damage::Numbers, |change| {
        change.open_table(META)?.insert("next_lsn", 2)?;
        Ok(())
    }),
];

#[test]
fn each_damage_is_found() {
    for (name, damage, change) in DAMAGES {
        let check = offline(&changed(change)).check().unwrap();
        assert_eq!(check.problems.first().map(|problem| problem.damage), Some(*damage), "{name}: {check:?}");
    }
}

fn open_error(disk: &Disk) -> OpenError {
    EmbeddedStore::open_on(disk.device(), disk.journal(), options()).expect_err("it is refused")
}

/// Damages that a store detects when it is opened; the others are detected by the recovery.
const CONTRADICTIONS: [&str; 6] = [
    "no session",
    "no message",
    "no queue entry",
    "an unreferenced message",
    "a client twice",
    "a queue entry that is none",
];

#[test]
fn contradictory_rows_are_refused() {
    for (name, _, change) in DAMAGES.iter().filter(|(name, ..)| CONTRADICTIONS.contains(name)) {
        let error = open_error(&changed(change));
        assert!(matches!(error, OpenError::Damaged { .. }), "{name}: {error}");
    }
}

#[test]
fn rows_without_a_session_fail_the_recovery() {
    for table in ["subscription", "will", "received"] {
        let disk = changed(|change| {
            let unknown = [0, 0, 0, 0, 0, 0, 0, 9];
            match table {
                "subscription" => {
                    let table = TableDefinition::<&[u8], &[u8]>::new(table);
                    change
                        .open_table(table)?
                        .insert([&unknown[..], b"t"].concat().as_slice(), b"\0".as_slice())?;
                }
                "will" => {
                    let table = TableDefinition::<&[u8; 8], &[u8]>::new(table);
                    change.open_table(table)?.insert(&unknown, b"\0\0\0\0\0\x01t".as_slice())?;
                }
                _ => {
                    let table = TableDefinition::<&[u8; 10], &[u8; 2]>::new(table);
                    change.open_table(table)?.insert(&[9; 10], &[0, 1])?;
                }
            }
            Ok(())
        });
        let problems = offline(&disk).check().unwrap().problems;
        assert_eq!(problems.iter().map(|problem| problem.damage).collect::<Vec<_>>(), [Damage::NoSession]);
        let error = open(&disk).recover(&mut RecoveredState::default()).unwrap_err();
        assert!(error.to_string().contains(table), "{error}");
    }
}

#[test]
fn a_thousand_problems_are_listed_and_the_others_counted() {
    let disk = changed(|change| {
        let mut table = change.open_table(MESSAGES)?;
        for number in 1000..2003_u64 {
            table.insert(&number.to_be_bytes(), b"\x00\x01t".as_slice())?;
        }
        Ok(())
    });
    let check = offline(&disk).check().unwrap();
    assert_eq!((check.problems.len(), check.unlisted), (1000, 3));
}

#[test]
fn reading_and_importing_report_progress() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut options = options();
    options.progress = {
        let told = Arc::clone(&told);
        Arc::new(move |progress: Progress| told.lock().unwrap().push(progress))
    };
    let disk = filled();
    let text = exported(&disk);
    let take = |stage| {
        let all = std::mem::take(&mut *told.lock().unwrap());
        all.into_iter()
            .filter(|told: &Progress| told.stage == stage)
            .map(|told| told.done)
            .collect::<Vec<_>>()
    };
    let store = OfflineStore::open_on(disk.device(), disk.journal(), options.clone()).unwrap();
    store.export(&mut io::sink()).unwrap();
    assert_eq!(take(Stage::Reading), [0, 22]);
    store.check().unwrap();
    assert_eq!(take(Stage::Reading), [0, 22]);
    store.stats().unwrap();
    assert_eq!(take(Stage::Reading), [0, 4 + 5]);
    let disk = Disk::default();
    let store = OfflineStore::open_on(disk.device(), disk.journal(), options).unwrap();
    store.import(&mut text.as_bytes()).unwrap();
    assert_eq!(take(Stage::Importing), [0]);
}

/// Writer that takes one line.
struct Full(bool);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.0, true) {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(bytes.len())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_export_that_cannot_be_written_is_refused() {
    for full in [true, false] {
        let disk = Disk::default();
        let store = open(&disk);
        open_session(&store).unwrap();
        store.commit(queued_with(1, Bytes::from(vec![b'x'; 1 << 16]))).wait().unwrap();
        drop(store);
        let error = offline(&disk).export(&mut Full(full)).unwrap_err();
        assert!(matches!(error, TransferError::Stream { .. }), "{error}");
    }
}

#[test]
fn opening_a_missing_store_creates_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nothing");
    let error = OfflineStore::open(&path, Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    assert!(!path.exists());
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let names =
        entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn restore(directory: &Path, existing: Existing, text: &str) -> Result<u64, TransferError> {
    OfflineStore::restore(directory, existing, &mut text.as_bytes(), Options::default())
}

#[test]
fn a_store_is_restored_in_another_directory() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = EmbeddedStore::open(from.path(), Options::default()).unwrap();
    fill(&store).unwrap();
    assert!(matches!(OfflineStore::open(from.path(), Options::default()), Err(OpenError::InUse { .. })));
    drop(store);
    let mut text = Vec::new();
    OfflineStore::open(from.path(), Options::default()).unwrap().export(&mut text).unwrap();
    let deeper = to.path().join("made/for/it");
    restore(&deeper, Existing::Keep, std::str::from_utf8(&text).unwrap()).unwrap();
    assert_eq!(names(&deeper), ["store.redb"]);
    let store = EmbeddedStore::open(&deeper, Options::default()).unwrap();
    check_numbers_continue(&store);
}

#[test]
fn an_existing_store_is_replaced_only_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let text = exported(&filled());
    drop(EmbeddedStore::open(directory.path(), Options::default()).unwrap());
    assert!(restore(directory.path(), Existing::Keep, &text).is_ok(), "there was nothing in it");
    let error = restore(directory.path(), Existing::Keep, &text).unwrap_err();
    assert!(matches!(error, TransferError::NotEmpty { .. }), "{error}");
    check_numbers_continue(&EmbeddedStore::open(directory.path(), Options::default()).unwrap());
    fs::write(directory.path().join("store.redb.new"), "an import that was interrupted").unwrap();
    assert!(restore(directory.path(), Existing::Replace, &text).is_ok());
    fs::write(directory.path().join("store.redb"), "what is left of a store").unwrap();
    assert!(restore(directory.path(), Existing::Replace, &text).is_ok());
    assert_eq!(names(directory.path()), ["store.journal", "store.redb"]);
    check_numbers_continue(&EmbeddedStore::open(directory.path(), Options::default()).unwrap());
}

#[test]
fn a_restore_that_fails_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let text = exported(&filled());
    let half = &text[..text.len() / 2];
    assert!(restore(directory.path(), Existing::Keep, half).is_err());
    assert_eq!(names(directory.path()), Vec::<String>::new());
    restore(directory.path(), Existing::Keep, &text).unwrap();
    let before = fs::read(directory.path().join("store.redb")).unwrap();
    assert!(restore(directory.path(), Existing::Replace, half).is_err());
    assert_eq!(names(directory.path()), ["store.redb"]);
    assert!(fs::read(directory.path().join("store.redb")).unwrap() == before);
}

#[test]
fn an_open_store_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), Options::default()).unwrap();
    for existing in [Existing::Keep, Existing::Replace] {
        let error = restore(directory.path(), existing, &exported(&filled())).unwrap_err();
        assert!(matches!(error, TransferError::Store(OpenError::InUse { .. })), "{error}");
    }
    assert_eq!(names(directory.path()), ["store.journal", "store.redb"]);
    fill(&store).unwrap();
    drop(store);
    check_numbers_continue(&EmbeddedStore::open(directory.path(), Options::default()).unwrap());
}

/// Checks that new numbers are above all imported ones.
fn check_numbers_continue(store: &EmbeddedStore) {
    let next = store.recover(&mut RecoveredState::default()).expect("it can be read");
    assert!(next.lsn.value() > 6 && next.session.value() > 2, "{next:?}");
    assert_eq!(store.commit(queued(next.lsn.value())).wait(), Ok(()));
    assert_eq!(queue(store).last(), Some(&next.lsn.value()));
}
