use std::time::Duration;

use braid_bench::emqtt::{ClientIds, CounterOrder, CounterTrack, Identity, PayloadHeaders, TopicTemplate};
use braid_bench::summary::Role;

const ME: Identity<'_> =
    Identity { number: 18, client_id: "localhost_bench_pub_1888229295_18", username: Some("user1") };

#[test]
fn levels_are_filled() {
    let topic = TopicTemplate::parse("topic/%s/%i/%c/%u/%rand_1000", true).unwrap();
    let filled = topic.fill(ME, 183, |most| {
        assert_eq!(most, 1000);
        961
    });
    assert_eq!(filled, "topic/183/18/localhost_bench_pub_1888229295_18/user1/961");
    assert!(topic.changes_per_message());
}

#[test]
fn only_a_whole_level_is_a_placeholder() {
    for text in ["a-%i/%ix", "", "/", "//a/", "%", "%rand", "+/%I/#"] {
        let topic = TopicTemplate::parse(text, false).unwrap();
        assert_eq!(topic.fill(ME, 1, |_| 1), text);
        assert!(!topic.changes_per_message());
    }
}

#[test]
fn unknown_placeholders_are_refused() {
    for level in ["%rand_", "%rand_0", "%rand_-1", "%rand_x"] {
        let error = TopicTemplate::parse(&format!("a/{level}"), true).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("topic \"a/{level}\": {level} needs a number from 1, such as %rand_1000")
        );
    }
    let error = TopicTemplate::parse("a/%u", false).unwrap_err();
    assert_eq!(error.to_string(), "topic \"a/%u\" has %u, which is the user name: give one with -u");
}

#[test]
fn client_identifiers_have_the_known_forms() {
    let id = |prefix: Option<&str>, short| {
        let prefix = prefix.map(str::to_owned);
        ClientIds { role: Role::Sub, prefix, short, host: "box".to_owned() }.client_id(9, 1234)
    };
    assert_eq!(id(None, false), "box_bench_sub_1234_9");
    assert_eq!(id(Some(""), false), "box_bench_sub_1234_9");
    assert_eq!(id(Some("AA"), false), "AA_bench_sub_9");
    assert_eq!(id(Some("AA"), true), "AA9");
    assert_eq!(id(None, true), "9");
    assert_eq!([Role::Pub, Role::Conn].map(|role| role.to_string()), ["pub", "conn"]);
}

#[test]
fn headers_are_eight_bytes_each_in_the_order_given() {
    let now = Duration::from_nanos(0x0102_0304_0506_0000);
    let millis = 0x0102_0304_0506_0000_u64 / 1_000_000;
    let written = |list: &str| {
        let headers: PayloadHeaders = list.parse().unwrap();
        let mut out = Vec::new();
        headers.put(&mut out, 3, now);
        assert_eq!(out.len(), headers.len());
        out
    };
    assert_eq!(written("cnt64,ts"), [3_u64.to_be_bytes(), millis.to_be_bytes()].concat());
    assert_eq!(written("ts,cnt64"), [millis.to_be_bytes(), 3_u64.to_be_bytes()].concat());
    assert_eq!(written("cnt64"), 3_u64.to_be_bytes());
    assert!(written("").is_empty());
}

#[test]
fn wrong_headers_are_told() {
    let error = "cnt64,time".parse::<PayloadHeaders>().unwrap_err();
    assert_eq!(
        error,
        "unknown payload header \"time\": the headers are cnt64 and ts, such as --payload-hdrs cnt64,ts"
    );
    let headers: PayloadHeaders = "cnt64,ts".parse().unwrap();
    assert_eq!(
        headers.read(&[0; 15]).unwrap_err().to_string(),
        "a payload of 15 bytes cannot begin with 16 bytes of headers: give the publisher the same --payload-hdrs"
    );
    assert!(headers.read(&[0; 16]).unwrap().body.is_empty());
}

#[test]
fn counters_tell_losses() {
    let mut track = CounterTrack::default();
    let orders = [5, 6, 9, 7, 10, 10, 11].map(|counter| track.observe(counter));
    assert_eq!(
        orders,
        [
            CounterOrder::First,
            CounterOrder::Next,
            CounterOrder::Skipped(2),
            CounterOrder::NotAbove,
            CounterOrder::Next,
            CounterOrder::NotAbove,
            CounterOrder::Next,
        ]
    );
}

#[test]
fn a_template_shows_as_it_was_written() {
    for text in ["a/%i/%c/%u/%s/%rand_7/+/#", "", "/", "a-%i"] {
        assert_eq!(TopicTemplate::parse(text, true).unwrap().to_string(), text);
    }
}

#[test]
fn headers_show_as_they_were_written() {
    for text in ["", "ts", "cnt64,ts", "ts,cnt64"] {
        assert_eq!(text.parse::<PayloadHeaders>().unwrap().to_string(), text);
    }
}
