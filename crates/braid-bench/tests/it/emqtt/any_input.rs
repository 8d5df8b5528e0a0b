use std::time::Duration;

use braid_bench::emqtt::{
    CounterTrack, Eterm, Identity, Pages, PayloadHeaders, Term, TopicTemplate, TopicsFile, elapsed,
};
use bytes::Bytes;
use proptest::prelude::*;

use crate::emqtt::topics::MULTI_STREAM;

fn terms() -> impl Strategy<Value = Term> {
    let leaf = prop_oneof![
        Just(Term::Null),
        any::<bool>().prop_map(Term::Bool),
        any::<i128>().prop_map(Term::Integer),
        any::<i64>().prop_map(|value| Term::Integer(value.into())),
        (0..300_i128).prop_map(Term::Integer),
        (-1e300..1e300).prop_map(Term::Float),
        ".{0,12}".prop_map(Term::Text),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Term::List),
            prop::collection::btree_map(".{0,4}", inner, 0..6).prop_map(Term::Object),
        ]
    })
}

/// Reads a term by the External Term Format chapter, knowing nothing of the writer. The rest follows the term.
fn read(bytes: &[u8]) -> (Term, &[u8]) {
    fn length(bytes: &[u8]) -> (usize, &[u8]) {
        let (len, rest) = bytes.split_first_chunk().unwrap();
        (u32::from_be_bytes(*len) as usize, rest)
    }
    let (&tag, rest) = bytes.split_first().unwrap();
    match tag {
        97 => (Term::Integer(rest[0].into()), &rest[1..]),
        98 => (Term::Integer(i32::from_be_bytes(rest[..4].try_into().unwrap()).into()), &rest[4..]),
        70 => (Term::Float(f64::from_be_bytes(rest[..8].try_into().unwrap())), &rest[8..]),
        110 => {
            let (digits, after) = rest[2..].split_at(rest[0].into());
            assert_ne!(digits.last(), Some(&0), "a digit too many");
            let magnitude = digits.iter().rev().fold(0_u128, |sum, &digit| sum << 8 | u128::from(digit));
            let value =
                if rest[1] == 1 { 0_i128.wrapping_sub_unsigned(magnitude) } else { magnitude as i128 };
            (Term::Integer(value), after)
        }
        119 => match rest[1..].split_at(rest[0].into()) {
            (b"null", after) => (Term::Null, after),
            (b"true", after) => (Term::Bool(true), after),
            (b"false", after) => (Term::Bool(false), after),
            (other, _) => panic!("atom {other:?}"),
        },
        109 => {
            let (len, rest) = length(rest);
            (Term::Text(String::from_utf8(rest[..len].to_vec()).unwrap()), &rest[len..])
        }
        106 => (Term::List(Vec::new()), rest),
        107 => {
            let len = usize::from(u16::from_be_bytes(rest[..2].try_into().unwrap()));
            let list = rest[2..2 + len].iter().map(|&byte| Term::Integer(byte.into())).collect();
            (Term::List(list), &rest[2 + len..])
        }
        108 => {
            let (len, mut rest) = length(rest);
            let mut list = Vec::new();
            for _ in 0..len {
                let (term, after) = read(rest);
                list.push(term);
                rest = after;
            }
            assert_eq!(rest[0], 106, "a list ends with nil");
            (Term::List(list), &rest[1..])
        }
        116 => {
            let (len, mut rest) = length(rest);
            let mut fields = std::collections::BTreeMap::new();
            for _ in 0..len {
                let (Term::Text(name), after) = read(rest) else { panic!("a key that is no binary") };
                let (value, after) = read(after);
                fields.insert(name, value);
                rest = after;
            }
            (Term::Object(fields), rest)
        }
        other => panic!("tag {other}"),
    }
}

proptest! {
    #[test]
    fn every_term_is_read_back(term in terms()) {
        let mut bytes = Vec::new();
        Eterm::put(&mut bytes, &term);
        let (back, rest) = read(&bytes);
        prop_assert_eq!(back, term);
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn any_text_is_a_file_or_an_error(content in "\\PC{0,200}") {
        let _ = TopicsFile::parse("t", &content);
    }

    #[test]
    fn a_damaged_file_is_a_file_or_an_error(at in 0..1000_usize, len in 0..30_usize, put in "[\\[\\]{}\",:%p0-9a-z \n]{0,6}") {
        let mut content: Vec<char> = MULTI_STREAM.replace("25000", "2").chars().collect();
        let at = at.min(content.len());
        let end = (at + len).min(content.len());
        content.splice(at..end, put.chars());
        let content: String = content.into_iter().collect();
        match TopicsFile::parse("t", &content) {
            Ok(file) => {
                let identity = Identity { number: 1, client_id: "%i%p1", username: None };
                for topic in file.topics.iter().filter(|topic| !format!("{:?}", topic.payload).contains("%p2")) {
                    let payload = topic.payload(identity, &mut Pages::default());
                    let segments = payload.segments(b"head", Duration::MAX);
                    let whole = segments.as_slice().concat();
                    prop_assert_eq!(whole.len(), segments.iter().map(Bytes::len).sum::<usize>());
                    let without = payload.segments(b"", Duration::MAX).concat();
                    prop_assert_eq!(whole, [&b"head"[..], &without].concat());
                }
            }
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.starts_with("t:") && !error.contains('\n'), "{}", error);
            }
        }
    }

    #[test]
    fn any_topic_is_filled_or_refused(topic in "[%a-z_0-9/+#]{0,30}", number: u64, random: u64) {
        let identity = Identity { number, client_id: "c", username: Some("u") };
        if let Ok(template) = TopicTemplate::parse(&topic, true) {
            let filled = template.fill(identity, number, |_| random);
            prop_assert_eq!(filled.split('/').count(), topic.split('/').count());
        }
    }

    #[test]
    fn any_payload_has_headers_or_is_too_short(list in "(cnt64|ts|,){0,5}", payload: Vec<u8>) {
        if let Ok(headers) = list.parse::<PayloadHeaders>() {
            prop_assert_eq!(headers.read(&payload).is_ok(), payload.len() >= headers.len());
        }
    }

    #[test]
    fn any_counters_and_times_are_taken(counters: Vec<u64>, seconds: u64) {
        let mut track = CounterTrack::default();
        for counter in counters {
            track.observe(counter);
        }
        prop_assert!(elapsed(Duration::from_secs(seconds)).is_ascii());
    }
}
