//! `--timestamp-field`: read back what a topics file has put in.

use std::time::Duration;

use braid_bench::emqtt::{Eterm, Identity, Pages, Term, TopicsFile};
use braid_bench::generator::TimestampField;
use proptest::prelude::*;

const NOW: Duration = Duration::new(1_790_000_000, 123_456_789);

fn field(text: &str) -> TimestampField {
    text.parse().expect("a field and a unit")
}

fn payload(encoding: &str, unit: &str, more: &str) -> Vec<u8> {
    let file = format!(
        r#"{{"topics": [{{"name": "a", "interval_ms": "1", "payload_encoding": "{encoding}", "inject_timestamp": "{unit}",
            "payload": {{"Data": "%p1", "nested": {{"timestamp": 5, "list": [1, [2.5, null, true], -70000, 99999999999]}},
            "strange \" name": "back\\slash \" and }}", "zz": [] {more}}}, "render": "Data"}}]}}"#
    );
    let file = TopicsFile::parse("topics.json", &file).expect("a topics file");
    let identity = Identity { number: 1, client_id: "c", username: None };
    let template = file.topics[0].payload(identity, &mut Pages::default());
    template.segments(&[], NOW).concat()
}

#[test]
fn timestamps_of_a_topics_file_are_read_back_in_both_encodings_and_all_units() {
    for encoding in ["eterm", "json"] {
        for (unit, step) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)] {
            let payload = payload(encoding, unit, "");
            let found = field(&format!("timestamp={unit}")).read(&payload);
            let wanted = Duration::from_nanos_u128(NOW.as_nanos() / step * step);
            assert_eq!(found, Some(wanted), "{encoding} in {unit}");
        }
    }
}

#[test]
fn a_field_elsewhere_or_of_another_kind_is_none() {
    for encoding in ["eterm", "json"] {
        let payload = payload(encoding, "us", r#", "x": -5, "y": 1.5, "text": "17", "word": "17a""#);
        let read = |name: &str| field(&format!("{name}=s")).read(&payload);
        for name in ["list", "missing", "nested", "zz", "x", "y", "word", "Data"] {
            assert_eq!(read(name), None, "{name} in {encoding}");
        }
        assert_eq!(read("text"), Some(Duration::from_secs(17)), "{encoding}");
        for len in 0..payload.len() {
            // Whatever is cut off, nothing but the number itself is ever found.
            let found = field("timestamp=us").read(&payload[..len]);
            assert!(
                found.is_none() || found == field("timestamp=us").read(&payload),
                "{encoding}, {len} bytes"
            );
        }
    }
}

#[test]
fn other_forms_of_the_term_format_are_read_too() {
    let read = |term: &[u8]| field("t=s").read(term).map(|time| time.as_secs());
    // An atom as the key, a large tuple and a float before it.
    let mut term =
        vec![Eterm::VERSION, 116, 0, 0, 0, 2, 119, 1, b'a', 104, 2, 70, 0, 0, 0, 0, 0, 0, 0, 0, 106];
    term.extend_from_slice(&[119, 1, b't', 98, 0, 0, 1, 0]);
    assert_eq!(read(&term), Some(256));
    for value in [0, 255, 256, i128::from(i32::MAX), i128::from(u64::MAX) / 2] {
        let mut term = vec![Eterm::VERSION];
        Eterm::put(&mut term, &Term::Object([("t".to_owned(), Term::Integer(value))].into()));
        assert_eq!(read(&term).map(i128::from), Some(value));
    }
    assert_eq!(read(&[Eterm::VERSION, 116, 255, 255, 255, 255]), None, "a map that is not there");
    assert_eq!(read(&[Eterm::VERSION, 109, 0, 0, 0, 0]), None, "no map");
}

#[test]
fn an_option_that_names_no_field_and_unit_is_refused_with_an_example() {
    for text in ["", "timestamp", "=us", "timestamp=", "timestamp=min", "us"] {
        let error = text.parse::<TimestampField>().expect_err(text).to_string();
        assert!(error.contains("timestamp=us") && error.contains(&format!("{text:?}")), "{error}");
    }
    assert_eq!(field("a=b=ms").read(br#"{"a=b": 7}"#), Some(Duration::from_millis(7)));
}

proptest! {
    #[test]
    fn any_bytes_are_no_trouble(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), json in any::<bool>()) {
        let field = field("t=us");
        let _ = field.read(&bytes);
        bytes.splice(0..0, if json { br#"{"a":"#.to_vec() } else { vec![Eterm::VERSION, 116, 0, 0, 0, 9] });
        let _ = field.read(&bytes);
    }

    #[test]
    fn any_json_like_text_is_no_trouble(text in r#"\{("[at\\]{0,3}":?[\[\]{}:, 0-9.e"\\]{0,9},?){0,6}"#) {
        let _ = field("t=us").read(text.as_bytes());
    }
}
