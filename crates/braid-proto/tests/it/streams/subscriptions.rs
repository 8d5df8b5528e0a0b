//! Subscriptions of a session by stream, as a driver keeps them.

use braid_proto::packet::QoS;
use braid_proto::session::{Subscription, Subscriptions};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

fn on(stream: StreamKey, qos: QoS) -> Subscription {
    Subscription { stream, qos, bound: true, ..Subscription::default() }
}

const A: StreamKey = StreamKey::bidi(1);
const B: StreamKey = StreamKey::bidi(2);

/// `f` on two streams and on the control stream.
fn three() -> Subscriptions {
    [StreamKey::CONTROL, A, B].map(|stream| (filter("f"), on(stream, QoS::AtMostOnce))).into_iter().collect()
}

// [BQ-16]
#[test]
fn a_filter_is_one_subscription_for_each_stream() {
    let mut all = three();
    assert_eq!(all.len(), 3);
    assert!(all.replaces(&filter("f"), A) && !all.replaces(&filter("f"), StreamKey::bidi(3)));
    assert_eq!(all.insert(filter("f"), on(A, QoS::AtLeastOnce)), Some(on(A, QoS::AtMostOnce)));
    let qos: Vec<_> = all.iter().map(|(_, subscription)| subscription.qos).collect();
    assert_eq!(qos, [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::AtMostOnce]);
}

// [BQ-17]
#[test]
fn a_filter_is_removed_from_every_stream_or_from_one() {
    let mut all = three();
    assert_eq!(all.remove_on(&filter("f"), B), Some(on(B, QoS::AtMostOnce)));
    assert_eq!(all.remove_on(&filter("f"), B), None);
    assert_eq!(all.remove(&filter("f")).len(), 2);
    assert!(all.is_empty() && all.remove(&filter("f")).is_empty());
}

// [BQ-42], [BQ-43]
#[test]
fn unbound_subscriptions_are_bound_by_the_first_stream_that_subscribes() {
    let mut all: Subscriptions =
        [A, B].map(|stream| (filter("f"), on(stream, QoS::AtLeastOnce))).into_iter().collect();
    let moved = all.unbind(A);
    assert_eq!((moved.len(), moved[0].from.stream), (1, A));
    assert!(moved[0].to.stream.is_control() && !moved[0].to.bound && !moved[0].is_merged);
    // The control stream has the filter already: one copy there.
    let moved = all.unbind(B);
    assert_eq!((moved.len(), moved[0].is_merged, all.len()), (1, true, 1));
    let c = StreamKey::bidi(3);
    assert!(all.insert(filter("f"), on(c, QoS::AtMostOnce)).is_some_and(|before| !before.bound));
    assert_eq!(all.iter().map(|(_, subscription)| subscription.stream).collect::<Vec<_>>(), [c]);
    assert_eq!(all.insert(filter("f"), on(StreamKey::CONTROL, QoS::AtMostOnce)), None);
    assert_eq!(all.len(), 2, "one that is bound is not replaced");
}

// [BQ-42], [BQ-43]
#[test]
fn the_next_connection_finds_everything_on_the_control_stream() {
    let mut all = three();
    all.insert(filter("g"), on(A, QoS::AtLeastOnce));
    all.unbind_all();
    let found: Vec<_> = all.iter().map(|(filter, one)| (filter.as_str(), one.stream, one.bound)).collect();
    assert_eq!(found, [("f", StreamKey::CONTROL, false), ("g", StreamKey::CONTROL, false)]);
    // The control stream itself may bind it.
    assert!(all.insert(filter("f"), on(StreamKey::CONTROL, QoS::AtMostOnce)).is_some());
    assert_eq!(all.insert(filter("f"), on(A, QoS::AtMostOnce)), None);
    assert_eq!(all.len(), 3);
}
