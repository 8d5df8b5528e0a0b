//! Deliveries to one session.

use std::num::NonZeroU32;

use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::QoS::{self, AtLeastOnce, AtMostOnce, ExactlyOnce};
use braid_proto::session::{RetainHandling, Subscription};
use braid_proto::stream::{Priority, StreamKey};
use braid_router::{
    Match, Matches, Overlap, Readiness, Router, replay, replays_at_subscribe, route, route_shared,
};
use bytes::Bytes;

use crate::generator::{parse_filter, parse_name, subscription};

const ALL: [QoS; 3] = [AtMostOnce, AtLeastOnce, ExactlyOnce];
const SESSION: u8 = 1;

fn published(qos: QoS, retain: bool) -> SharedMessage {
    SharedMessage::new(Message::new(parse_name("t"), Bytes::from_static(b"payload"), qos, retain))
}

fn routed_from(
    publisher: Option<u8>,
    message: &SharedMessage,
    subscriptions: &[Subscription],
    overlap: Overlap,
) -> Vec<Delivery> {
    let matches: Vec<_> = subscriptions
        .iter()
        .map(|subscription| Match { key: SESSION, subscription: *subscription })
        .collect();
    // Deliveries to other sessions stand before and are not changed.
    let mut out = vec![replay(&published(AtMostOnce, false), &subscription(99))];
    route(message, publisher, &matches, overlap, &mut out);
    assert_eq!((out[0].qos, ids(&out[0])), (AtMostOnce, vec![99]));
    out.remove(0);
    assert!(out.iter().all(|delivery| SharedMessage::ptr_eq(&delivery.message, message)));
    out
}

fn routed(message: &SharedMessage, subscriptions: &[Subscription], overlap: Overlap) -> Vec<Delivery> {
    routed_from(None, message, subscriptions, overlap)
}

fn ids(delivery: &Delivery) -> Vec<u32> {
    delivery.subscription_ids.as_slice().iter().copied().map(NonZeroU32::get).collect()
}

/// [MQTT-3.8.4-8] [MQTT-4.8.2-3] The lower of published and granted QoS.
#[test]
fn effective_qos_is_the_minimum() {
    for have in ALL {
        for granted in ALL {
            let subscription = Subscription { qos: granted, ..Subscription::default() };
            for overlap in [Overlap::Merge, Overlap::Separate] {
                assert_eq!(
                    routed(&published(have, false), &[subscription], overlap)[0].qos,
                    have.min(granted)
                );
            }
            assert_eq!(replay(&published(have, false), &subscription).qos, have.min(granted));
        }
    }
}

/// [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT3-3.3.1-9] live; [MQTT3-3.3.1-8] at SUBSCRIBE.
#[test]
fn retain_flag() {
    for (retain, retain_as_published) in [(false, false), (false, true), (true, false), (true, true)] {
        let message = published(AtMostOnce, retain);
        let subscription = Subscription { retain_as_published, ..Subscription::default() };
        for overlap in [Overlap::Merge, Overlap::Separate] {
            let live = routed(&message, &[subscription], overlap);
            assert_eq!(live[0].retain, retain && retain_as_published);
        }
        assert!(replay(&message, &subscription).retain);
    }
}

/// [MQTT-3.8.3-3]
#[test]
fn no_local_drops_only_own_messages() {
    let local = subscription(1);
    let no_local = Subscription { no_local: true, ..subscription(2) };
    let message = published(AtMostOnce, false);
    for overlap in [Overlap::Merge, Overlap::Separate] {
        for (publisher, want) in [(None, 1), (Some(SESSION + 1), 1), (Some(SESSION), 0)] {
            assert_eq!(routed_from(publisher, &message, &[no_local], overlap).len(), want);
        }
        let deliveries = routed_from(Some(SESSION), &message, &[no_local, local, no_local], overlap);
        assert_eq!(deliveries.iter().map(ids).collect::<Vec<_>>(), [[1]]);
    }
}

/// [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4] One copy with the highest QoS and all identifiers.
#[test]
fn overlapping_subscriptions_merge_for_mqtt_5() {
    let subscriptions = [
        Subscription { qos: AtMostOnce, ..subscription(7) },
        Subscription { qos: ExactlyOnce, priority: Some(Priority::new(9)), ..subscription(0) },
        Subscription { qos: AtLeastOnce, retain_as_published: true, ..subscription(3) },
        Subscription { qos: AtMostOnce, priority: Some(Priority::HIGHEST), ..subscription(7) },
        subscription(8),
    ];
    let message = published(ExactlyOnce, true);
    let deliveries = routed(&message, &subscriptions, Overlap::Merge);
    assert_eq!(deliveries.len(), 1);
    assert_eq!(deliveries[0].qos, ExactlyOnce);
    assert_eq!(ids(&deliveries[0]), [7, 3, 7, 8]);
    assert!(deliveries[0].retain);
    assert_eq!(deliveries[0].priority, Priority::HIGHEST);
    assert!(routed(&message, &[subscription(0)], Overlap::Merge)[0].subscription_ids.as_slice().is_empty());
}

/// [BQ-52] Several subscriptions of one stream have the highest of their priorities. One without a priority has the
/// default, which is above a low one.
#[test]
fn the_highest_priority_wins_within_a_stream() {
    let (low, high) = (Some(Priority::new(9)), Some(Priority::new(40_000)));
    let cases = [
        (vec![None], Priority::DEFAULT),
        (vec![low], Priority::new(9)),
        (vec![low, None, low], Priority::DEFAULT),
        (vec![None, high, low], Priority::new(40_000)),
    ];
    let message = published(AtMostOnce, false);
    for (asked, want) in cases {
        let subscriptions: Vec<_> =
            asked.iter().map(|priority| Subscription { priority: *priority, ..subscription(1) }).collect();
        assert_eq!(routed(&message, &subscriptions, Overlap::Merge)[0].priority, want, "{asked:?}");
        let separate = routed(&message, &subscriptions, Overlap::Separate);
        let own: Vec<_> = asked.iter().map(|priority| priority.unwrap_or_default()).collect();
        assert_eq!(separate.iter().map(|d| d.priority).collect::<Vec<_>>(), own);
        assert_eq!(replay(&message, &subscriptions[0]).priority, own[0]);
    }
}

/// Deliveries of a message on `t` by a router with these subscriptions of one session.
fn copies(subscriptions: &[(&str, Subscription)], publisher: Option<u8>, overlap: Overlap) -> Vec<Delivery> {
    let (mut router, mut matches, mut out) = (Router::new(), Matches::default(), Vec::new());
    for (filter, subscription) in subscriptions {
        router.subscribe(SESSION, &parse_filter(filter), *subscription);
        router.subscribe(SESSION + 1, &parse_filter(filter), *subscription);
    }
    let message = published(ExactlyOnce, false);
    router.matches(&message.topic, &mut matches);
    let sessions: Vec<_> = matches.sessions().collect();
    assert_eq!(sessions.len(), 2, "the matches of a session are neighbours");
    route(&message, publisher, sessions[0], overlap, &mut out);
    out
}

/// [BQ-15] [BQ-16] A session that subscribed on two streams receives on both, each with its own options; on one
/// stream it receives one copy.
#[test]
fn each_stream_has_its_copy() {
    let on = |stream, qos, id| Subscription { stream: StreamKey::bidi(stream), qos, ..subscription(id) };
    let subscriptions = [
        ("t", on(4, AtMostOnce, 1)),
        ("t", on(0, AtLeastOnce, 2)),
        ("#", Subscription { priority: Some(Priority::HIGHEST), ..on(4, AtLeastOnce, 3) }),
        ("+", on(0, AtMostOnce, 4)),
        ("#", Subscription { no_local: true, ..on(9, ExactlyOnce, 5) }),
    ];
    let seen = |publisher, overlap| -> Vec<_> {
        let copies = copies(&subscriptions, publisher, overlap);
        copies.iter().map(|d| (d.stream.index(), d.qos, ids(d), d.priority == Priority::HIGHEST)).collect()
    };
    let merged = [
        (0, AtLeastOnce, vec![2, 4], false),
        (4, AtLeastOnce, vec![1, 3], true),
        (9, ExactlyOnce, vec![5], false),
    ];
    assert_eq!(seen(None, Overlap::Merge), merged);
    assert_eq!(seen(Some(SESSION), Overlap::Merge), merged[..2], "[MQTT-3.8.3-3] on that stream alone");
    let separate = [(0, 2), (0, 4), (4, 1), (4, 3), (9, 5)];
    let streams: Vec<_> =
        seen(None, Overlap::Separate).into_iter().map(|(stream, _, ids, _)| (stream, ids[0])).collect();
    assert_eq!(streams, separate);
}

/// [BQ-15] Retained messages come on the stream that subscribed.
#[test]
fn a_replay_goes_to_the_stream_that_subscribed() {
    let subscription = Subscription { stream: StreamKey::bidi(4), ..subscription(1) };
    assert_eq!(replay(&published(AtMostOnce, true), &subscription).stream, StreamKey::bidi(4));
}

/// [MQTT-3.3.4-5] [MQTT3-3.3.5-1] Each with the QoS of its subscription, the highest among them.
#[test]
fn overlapping_subscriptions_stay_apart_for_mqtt_3() {
    let subscriptions = [AtMostOnce, ExactlyOnce, AtLeastOnce]
        .map(|qos| Subscription { qos, ..subscription(1 + u32::from(qos.bits())) });
    let deliveries = routed(&published(AtLeastOnce, false), &subscriptions, Overlap::Separate);
    let seen: Vec<_> = deliveries.iter().map(|d| (d.qos, ids(d))).collect();
    assert_eq!(seen, [(AtMostOnce, vec![1]), (AtLeastOnce, vec![3]), (AtLeastOnce, vec![2])]);
}

/// [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]
#[test]
fn retain_handling_decides_about_the_replay() {
    use RetainHandling::{DoNotSend, SendAlways, SendIfNew};
    let cases = [(SendAlways, true, true), (SendIfNew, true, false), (DoNotSend, false, false)];
    for (retain_handling, new, replaced) in cases {
        let subscription = Subscription { retain_handling, ..Subscription::default() };
        assert_eq!(replays_at_subscribe(&parse_filter("a/#"), &subscription, false), new);
        assert_eq!(replays_at_subscribe(&parse_filter("a/#"), &subscription, true), replaced);
        assert!(!replays_at_subscribe(&parse_filter("$share/x/a/#"), &subscription, false));
    }
}

/// [MQTT-4.8.2-3] The options of the selected member, and the group in the delivery.
#[test]
fn a_member_receives_what_its_own_subscription_grants() {
    let filter = parse_filter("$share/x/t");
    let mut router = Router::new();
    for (key, qos) in [(1, AtMostOnce), (2, ExactlyOnce)] {
        router.subscribe(key, &filter, Subscription { qos, ..subscription(key) });
    }
    let group = router.group(&filter).expect("a group");
    let message = published(AtLeastOnce, true);
    for (key, qos) in [(1, AtMostOnce), (2, AtLeastOnce)] {
        let member = group.select(|_, _| Readiness::Ready).expect("a member");
        let delivery = route_shared(&message, group, member);
        assert_eq!((delivery.qos, delivery.retain, ids(&delivery)), (qos, false, vec![key]));
        assert_eq!(delivery.shared.as_deref(), Some(&filter));
    }
    let direct = routed(&message, &[subscription(1)], Overlap::Merge);
    assert!(direct[0].shared.is_none());
}
