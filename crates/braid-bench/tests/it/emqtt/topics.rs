use std::time::Duration;

use braid_bench::emqtt::{Encoding, TimestampUnit, TopicSpec, TopicsFile};
use braid_proto::packet::QoS;

pub(crate) const SINGLE_STREAM: &str = include_str!("seed_single_stream.json");
pub(crate) const MULTI_STREAM: &str = include_str!("seed_multi_stream.json");

fn error(content: &str) -> String {
    TopicsFile::parse("topics.json", content).unwrap_err().to_string()
}

fn topic(fields: &str) -> Result<TopicSpec, String> {
    let content = format!(
        "{{\"topics\": [\n{{\"name\": \"a\", \"interval_ms\": \"100\", \"payload\": {{\"D\": \"x\"}},\n{fields}}}]}}"
    );
    let file = TopicsFile::parse("topics.json", &content).map_err(|error| error.to_string())?;
    Ok(file.topics[0].clone())
}

#[test]
fn reads_the_published_files_with_their_trailing_commas() {
    for (content, streams) in [(SINGLE_STREAM, [0, 0]), (MULTI_STREAM, [1, 2])] {
        let file = TopicsFile::parse("topic_spec.json", content).unwrap();
        let [small, large] = file.topics.as_slice() else { panic!("{} topics", file.topics.len()) };
        assert_eq!((small.name.as_str(), large.name.as_str()), ("Topic1", "Topic2"));
        assert_eq!((small.interval, large.interval), (Duration::from_millis(100), Duration::from_secs(5)));
        assert_eq!([small.timestamp, large.timestamp], [Some(TimestampUnit::Milliseconds); 2]);
        assert_eq!((small.qos, large.qos), (QoS::AtLeastOnce, QoS::AtLeastOnce));
        assert_eq!((small.encoding, large.encoding), (Encoding::Eterm, Encoding::Eterm));
        assert_eq!((small.stream_priority, large.stream_priority), (Some(200), Some(8)));
        assert_eq!([small.stream, large.stream], streams);
        assert_eq!((small.render.as_deref(), large.render.as_deref()), (None, Some("Data")));
        assert_eq!(file.wants_streams(), streams != [0, 0]);
        assert!(file.ignored.is_empty());
    }
}

#[test]
fn omitted_fields_have_defaults() {
    let topic = topic("").unwrap();
    assert_eq!(
        (topic.qos, topic.retain, topic.stream, topic.stream_priority),
        (QoS::AtMostOnce, false, 0, None)
    );
    assert_eq!((topic.timestamp, topic.encoding, topic.render), (None, Encoding::Json, None));
}

#[test]
fn takes_every_spelling_of_a_field() {
    for (written, unit) in [
        ("true", Some(TimestampUnit::Milliseconds)),
        ("false", None),
        ("\"s\"", Some(TimestampUnit::Seconds)),
        ("\"ms\"", Some(TimestampUnit::Milliseconds)),
        ("\"us\"", Some(TimestampUnit::Microseconds)),
        ("\"ns\"", Some(TimestampUnit::Nanoseconds)),
    ] {
        assert_eq!(topic(&format!("\"inject_timestamp\": {written}")).unwrap().timestamp, unit);
    }
    assert_eq!(topic("\"interval_ms\": 7").unwrap().interval, Duration::from_millis(7));
    assert!(topic("\"retain\": true").unwrap().retain);
    assert_eq!(topic("\"stream_priority\": 65535").unwrap().stream_priority, Some(65535));
}

#[test]
fn comments_and_a_byte_order_mark_are_no_content() {
    let content = format!("\u{feff}// two topics\n/* of the article */{MULTI_STREAM}");
    assert_eq!(TopicsFile::parse("t", &content).unwrap().topics.len(), 2);
}

#[test]
fn a_later_topic_replaces_an_earlier_one_of_its_name() {
    let content = r#"{"topics": [
        {"name": "a", "interval_ms": "1", "payload": {}},
        {"name": "b", "interval_ms": "2", "payload": {}},
        {"name": "a", "interval_ms": "3", "payload": {}}]}"#;
    let file = TopicsFile::parse("t", content).unwrap();
    let names: Vec<_> = file.topics.iter().map(|topic| (topic.name.as_str(), topic.interval)).collect();
    assert_eq!(names, [("a", Duration::from_millis(3)), ("b", Duration::from_millis(2))]);
}

#[test]
fn unknown_fields_are_told() {
    let content = r#"{"comment": [1], "topics": [
        {"name": "a", "interval_ms": "1", "payload": {}, "qos": {"deep": [2]}}]}"#;
    assert_eq!(TopicsFile::parse("t", content).unwrap().ignored, ["comment", "a: qos"]);
}

#[test]
fn errors_have_file_line_field_and_what_is_right() {
    for (fields, expected) in [
        (
            "\"interval_ms\": \"fast\"",
            "topics.json:3: interval_ms is \"fast\": write milliseconds from 0 to 4294967295 as a text, such as \"100\"",
        ),
        (
            "\"inject_timestamp\": \"m\"",
            "topics.json:3: inject_timestamp is \"m\": write true, false, \"s\", \"ms\", \"us\" or \"ns\"",
        ),
        ("\n\"QoS\": 3", "topics.json:4: QoS is 3: write 0, 1 or 2"),
        ("\"retain\": 1", "topics.json:3: retain is 1: write true or false"),
        (
            "\"payload_encoding\": \"xml\"",
            "topics.json:3: payload_encoding is \"xml\": write \"json\" or \"eterm\"",
        ),
        ("\"payload\": []", "topics.json:3: payload is a list: write an object, such as {\"a\": \"b\"}"),
        (
            "\"stream\": -1",
            "topics.json:3: stream is -1: write 0 for the control stream, or the number of a stream from 1",
        ),
        (
            "\"stream_priority\": 65536",
            "topics.json:3: stream_priority is 65536: write a number from 0 to 65535, higher is sooner",
        ),
        (
            "\"name\": \"a/#\"",
            "topics.json:3: name \"a/#\" is not a Topic Name: write one or more characters, none of them + or #",
        ),
        (
            "\"render\": \"Dta\"",
            "topics.json:2: render names \"Dta\", which the payload does not have: its fields are D",
        ),
    ] {
        assert_eq!(topic(fields).unwrap_err(), expected);
    }
    assert_eq!(
        error("{\"topics\": [{\"name\": \"a\", \"interval_ms\": \"1\"}]}"),
        "topics.json:1: a topic without payload: write \"payload\": {\"a\": \"b\"}"
    );
    assert_eq!(error("{\n}"), "topics.json:1: the list \"topics\" is missing");
    assert_eq!(error("{\n\"topics\": [\n{\"name\" \"a\"}]}"), "topics.json:3: expected colon");
    assert!(
        error("[]").starts_with("topics.json:1: invalid type: sequence, expected an object with the list")
    );
}

#[test]
fn pages_are_counted() {
    let rendered = |text: &str| {
        let content = format!(
            r#"{{"topics": [{{"name": "a", "interval_ms": "1", "render": "D", "payload": {{"D": "{text}"}}}}]}}"#
        );
        TopicsFile::parse("t", &content).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(rendered("%p65535"), Ok(()));
    assert_eq!(rendered("VIN-%i"), Ok(()));
    for text in ["%p65536", "%p", "%px", "%p-1", "%p1x"] {
        assert_eq!(
            rendered(text).unwrap_err(),
            format!("t:1: D {text:?} is not %p and a number of pages: write %p1 to %p65535")
        );
    }
}

#[test]
fn values_nested_without_end_are_refused() {
    for open in ["[", "{\"a\":"] {
        let content =
            format!("{{\"topics\": [{{\"name\": \"a\", \"payload\": {{\"x\": {}", open.repeat(100_000));
        assert_eq!(error(&content), "topics.json:1: lists and objects nested deeper than 32: flatten them");
    }
}
