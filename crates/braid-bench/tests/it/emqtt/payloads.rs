use std::time::Duration;

use braid_bench::emqtt::{
    Encoding, Identity, MessageTemplate, Pages, PayloadHeaders, PayloadTemplate, Randomness, TopicsFile,
};
use bytes::Bytes;

use crate::emqtt::topics::MULTI_STREAM;

const NOW: Duration = Duration::from_millis(1_731_000_000_123);
const PAGES: usize = 102_400_000;
const ME: Identity<'_> = Identity { number: 7, client_id: "c7", username: None };

fn template(content: &str, at: usize, pages: &mut Pages) -> PayloadTemplate {
    TopicsFile::parse("t", content).unwrap().topics[at].payload(ME, pages)
}

fn topic(fields: &str) -> PayloadTemplate {
    let content = format!("{{\"topics\": [{{\"name\": \"a\", \"interval_ms\": \"1\", {fields}}}]}}");
    template(&content, 0, &mut Pages::default())
}

fn whole(template: &PayloadTemplate, headers: &[u8], now: Duration) -> Vec<u8> {
    template.segments(headers, now).as_slice().concat()
}

fn unhex(hex: &str) -> Vec<u8> {
    let nibble = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(nibble).collect()
}

// The vectors were written by a program of its own from the External Term Format chapter, and read back by another.

#[test]
fn the_small_topic_is_the_erlang_map() {
    let small = template(MULTI_STREAM, 0, &mut Pages::default());
    let vector = "8374000000036d00000004446174616d0000000231306d00000004666f6f316d00000004626172316d0000000974696d65\
                  7374616d706e06007bdea3079301";
    assert_eq!(whole(&small, &[], NOW), unhex(vector));
}

#[test]
fn every_kind_of_value_has_its_erlang_form() {
    let fields = r#""payload_encoding": "eterm", "payload": {"j": 18446744073709551615, "i": 255,
        "h": -9223372036854775808, "g": {"z": 2147483648, "y": 2147483647, "x": -1}, "f": 1.5, "e": [1, 256],
        "d": [1, 2, 255], "c": [], "b": true, "a": null}"#;
    let vector = "83740000000a6d000000016177046e756c6c6d00000001627704747275656d00000001636a6d00000001646b00030102ff\
                  6d00000001656c00000002610162000001006a6d0000000166463ff80000000000006d000000016774000000036d000000\
                  017862ffffffff6d0000000179627fffffff6d000000017a6e0400000000806d00000001686e080100000000000000806d\
                  000000016961ff6d000000016a6e0800ffffffffffffffff";
    assert_eq!(whole(&topic(fields), &[], NOW), unhex(vector));
}

#[test]
fn the_large_topic_has_102_400_000_bytes_of_pages_and_shares_them() {
    let mut pages = Pages::default();
    let large = template(MULTI_STREAM, 1, &mut pages);
    let again = template(MULTI_STREAM, 1, &mut pages);
    let first = large.segments(&[], NOW);
    let [head, middle, tail] = first.as_slice() else { panic!("{} segments", first.as_slice().len()) };
    assert_eq!(middle.len(), PAGES);
    assert_eq!(middle[..16], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(middle[PAGES - 8..], (PAGES as u64 / 8).to_be_bytes());
    assert_eq!(**head, *b"\x83t\0\0\0\x04m\0\0\0\x04Datam\x06\x1a\x80\0");
    assert_eq!(
        **tail,
        *b"m\0\0\0\x03VINm\0\0\0\x03VINm\0\0\0\x04foo2m\0\0\0\x04bar2m\0\0\0\x09timestampn\x06\0\x7b\xde\xa3\x07\x93\x01"
    );
    // The pages of every message of every client are the same bytes in memory.
    for other in [&large, &again] {
        let later = other.segments(&[], NOW + Duration::from_millis(1));
        assert_eq!(later.as_slice()[1].as_ptr(), middle.as_ptr());
        assert_ne!(later.as_slice()[2], *tail);
    }
}

#[test]
fn headers_stand_before_the_payload() {
    let headers: PayloadHeaders = "cnt64,ts".parse().unwrap();
    let mut written = Vec::new();
    headers.put(&mut written, 5, NOW);
    let small = template(MULTI_STREAM, 0, &mut Pages::default());
    assert!(small.takes_headers());
    let payload = whole(&small, &written, NOW);
    let read = headers.read(&payload).unwrap();
    assert_eq!((read.counter, read.sent), (Some(5), Some(NOW)));
    assert_eq!(read.body, whole(&small, &[], NOW));
}

#[test]
fn json_has_the_timestamp_as_a_number() {
    let fields = r#""inject_timestamp": "s", "render": "VIN",
        "payload": {"foo2": "b\"r", "timestamp": "0", "VIN": "VIN-%i-%c-%i", "n": [1.5, null]}"#;
    let template = topic(fields);
    assert!(!template.takes_headers());
    assert_eq!(
        String::from_utf8(whole(&template, &[], NOW)).unwrap(),
        r#"{"VIN":"VIN-7-c7-7","foo2":"b\"r","n":[1.5,null],"timestamp":1731000000}"#
    );
}

#[test]
fn a_timestamp_is_added_where_there_is_none() {
    for (unit, count) in [("ms", "1731000000123"), ("us", "1731000000123000"), ("ns", "1731000000123000000")]
    {
        let template = topic(&format!("\"inject_timestamp\": \"{unit}\", \"payload\": {{}}"));
        assert_eq!(
            String::from_utf8(whole(&template, &[], NOW)).unwrap(),
            format!("{{\"timestamp\":{count}}}")
        );
    }
}

#[test]
fn pages_in_json_are_text() {
    let template = topic(r#""render": "D", "payload": {"D": "%p2"}"#);
    let text = String::from_utf8(whole(&template, &[], NOW)).unwrap();
    assert_eq!(text.len(), "{\"D\":\"\"}".len() + 2 * 4096);
    assert!(text.starts_with("{\"D\":\"00000000000000010000000000000002"));
    assert!(text.ends_with("0000000000000200\"}"));
}

#[test]
fn placeholders_are_filled_in_the_rendered_field_alone() {
    let text = |render: &str| {
        let template = topic(&format!("{render} \"payload\": {{\"a\": \"%i\", \"b\": \"%p1\"}}"));
        String::from_utf8(whole(&template, &[], NOW)).unwrap()
    };
    assert_eq!(text(""), r#"{"a":"%i","b":"%p1"}"#);
    assert_eq!(text("\"render\": \"a\","), r#"{"a":"7","b":"%p1"}"#);
}

#[test]
fn a_small_payload_is_one_part_with_the_time_of_its_message() {
    let small = template(MULTI_STREAM, 0, &mut Pages::default());
    let first = small.segments(&[], NOW);
    let second = small.segments(&[], NOW + Duration::from_secs(1));
    assert_eq!(first.as_slice().concat(), whole(&small, &[], NOW));
    assert_eq!((first.as_slice().len(), second.as_slice().len()), (1, 1));
    assert_ne!(first, second);
}

#[test]
fn a_large_payload_shares_its_pages_and_has_the_time_of_its_message() {
    let fields = r#""payload_encoding": "eterm", "inject_timestamp": "ms", "render": "D",
        "payload": {"D": "%p64", "z": 1}"#;
    let large = topic(fields);
    let pages = |at: Duration| {
        let parts = large.segments(&[], at);
        parts.into_iter().max_by_key(Bytes::len).expect("it has pages")
    };
    let later = NOW + Duration::from_secs(1);
    assert_eq!(pages(NOW).len(), 64 * 4096);
    assert_eq!(pages(NOW).as_ptr(), pages(later).as_ptr());
    let [first, second] = [NOW, later].map(|at| whole(&large, &[], at));
    assert!(first.len() == second.len() && first != second);
    // A timestamp of another length moves what follows.
    let early = whole(&large, &[], Duration::ZERO);
    assert!(early.len() < first.len() && early.ends_with(&first[first.len() - 8..]));
}

#[test]
fn a_large_payload_without_a_time_is_never_copied() {
    let constant = PayloadTemplate::constant(Bytes::from(vec![b'a'; 128 * 1024]));
    let [first, second] = [NOW, NOW].map(|at| constant.segments(&[], at));
    assert!(first.len() == 1 && !constant.has_timestamp());
    assert_eq!(first[0].as_ptr(), second[0].as_ptr());
    assert!(PayloadTemplate::constant(Bytes::new()).segments(&[], NOW).is_empty());
}

#[test]
fn pages_are_bounded() {
    assert_eq!(Pages::default().of(u32::MAX, Encoding::Eterm).len(), 65_535 * 4096);
    assert!(Pages::default().of(0, Encoding::Eterm).is_empty());
}

struct Fixed(u64);

impl Randomness for Fixed {
    fn unique(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    fn append(&mut self, out: &mut Vec<u8>, len: usize) {
        out.resize(out.len() + len, b'?');
    }
}

#[test]
fn a_message_template_is_filled() {
    let text =
        "%TIMESTAMP% %TIMESTAMPMS% %TIMESTAMPUS% %TIMESTAMPNS% %UNIQUE%%UNIQUE% [%RANDOM%] %TIMESTAMPX% %";
    let template = MessageTemplate::file(Bytes::from_static(text.as_bytes()));
    assert_eq!(
        template.fill(NOW, 3, &mut Fixed(10)),
        "1731000000123 1731000000123 1731000000123000 1731000000123000000 1112 [???] %TIMESTAMPX% %"
    );
    assert_eq!(MessageTemplate::of_size(4).fill(NOW, 4, &mut Fixed(0)), "aaaa");
    assert_eq!(MessageTemplate::literal(Bytes::from_static(b"%UNIQUE%")).constant().unwrap(), "%UNIQUE%");
}
