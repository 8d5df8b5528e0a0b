use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use braid_proto::message::{Delivery, Message, SharedMessage, SubscriptionIds};
use braid_proto::packet::{MessageProperties, QoS, Will};
use braid_proto::session::{RetainHandling, SessionExpiry, Subscription};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{Lsn, Now, SessionId, SessionRecord, StoredDelivery, StoredMessage, StoredSubscription};
use bytes::Bytes;

const DAY: Duration = Duration::from_secs(86_400);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn now() -> Now {
    Now { instant: Instant::now() + DAY, system: SystemTime::UNIX_EPOCH + 20_000 * DAY }
}

fn later(now: Now, by: Duration) -> Now {
    Now { instant: now.instant + by, system: now.system + by }
}

fn message(expiry: Option<u32>, now: Now) -> SharedMessage {
    let topic = TopicName::parse("a/b").expect("a topic name");
    let properties = MessageProperties { message_expiry: expiry, ..MessageProperties::default() };
    let message = Message::new(topic, Bytes::from_static(b"x"), QoS::ExactlyOnce, true);
    SharedMessage::new(message.with_properties(Some(Box::new(properties)), now.instant))
}

#[test]
fn a_stored_message_keeps_its_fields() {
    let now = now();
    let live = message(None, now);
    let stored = StoredMessage::of(SharedMessage::clone(&live), now);
    assert_eq!(stored.expires_at(), None);
    assert_eq!((stored.topic().as_str(), stored.payload().as_ref()), ("a/b", b"x".as_slice()));
    assert_eq!((stored.qos(), stored.retain()), (QoS::ExactlyOnce, true));
    assert_eq!(stored.properties(), live.properties.as_deref());
    assert!(SharedMessage::ptr_eq(&stored.live(now), &live));
    let parts = StoredMessage::from_parts(
        live.topic.clone(),
        live.payload.clone(),
        live.qos,
        live.retain,
        live.properties.clone(),
        None,
    );
    assert_eq!(parts, stored);
}

// [MQTT-3.3.2-5]
#[test]
fn a_message_expires_while_the_broker_is_down() {
    let start = now();
    let stored = StoredMessage::of(message(Some(60), start), later(start, seconds(10)));
    assert_eq!(stored.expires_at(), Some(start.system + seconds(60)));
    // Another process, whose monotonic clock has another origin.
    let restart = |down: u64| Now { instant: Instant::now(), system: start.system + seconds(down) };
    let at = restart(25);
    let live = stored.live(at);
    assert_eq!(live.expires_at, Some(at.instant + seconds(35)));
    assert_eq!(live.properties, message(Some(60), start).properties);
    assert!(!live.is_expired(at.instant));
    for down in [60, 61, 100_000] {
        assert!(stored.live(restart(down)).is_expired(restart(0).instant + seconds(0)), "{down}");
    }
}

#[test]
fn a_clock_that_was_set_back_gives_no_more_than_the_interval() {
    let start = now();
    let stored = StoredMessage::of(message(Some(60), start), start);
    let back = Now { instant: start.instant, system: start.system - DAY };
    assert_eq!(stored.live(back).expires_at, Some(back.instant + seconds(60)));

    let record = record(300, Some(start.system));
    assert_eq!(record.expires_in(back.system), Some(seconds(300)));
    assert_eq!(record.will_due_in(&will(10), back.system), seconds(10));
}

#[test]
fn a_message_that_had_expired_stays_so() {
    let start = now();
    let late = later(start, seconds(61));
    let stored = StoredMessage::of(message(Some(60), start), late);
    assert!(stored.live(late).is_expired(late.instant));
}

/// [BQ-42] The stream ended with its connection.
#[test]
fn a_delivery_is_restored_on_the_control_stream() {
    let message = message(None, now());
    let delivery = Delivery {
        message: SharedMessage::clone(&message),
        qos: QoS::AtLeastOnce,
        retain: true,
        subscription_ids: SubscriptionIds::One(NonZeroU32::MIN),
        stream: StreamKey::bidi(5),
        priority: Priority::new(6),
        shared: Some(Arc::new(TopicFilter::parse("$share/g/a/b").unwrap())),
        queue_lsn: None,
        enqueued_at: None,
        offline_charge: None,
    };
    let stored = StoredDelivery::of(&delivery, Lsn::new(3), Some(now().system));
    assert_eq!((stored.message, stored.enqueued_at), (Lsn::new(3), Some(now().system)));
    let live = stored.live(message);
    assert!(SharedMessage::ptr_eq(&live.message, &delivery.message));
    assert_eq!((live.qos, live.retain, live.stream), (delivery.qos, delivery.retain, StreamKey::CONTROL));
    assert_eq!((live.subscription_ids, live.priority), (delivery.subscription_ids, delivery.priority));
    assert_eq!(live.shared, delivery.shared);
}

#[test]
fn a_delivery_ages_while_the_broker_is_down() {
    let start = now().system;
    let known =
        |enqueued_at| StoredDelivery { enqueued_at, ..StoredDelivery::new(Lsn::new(3), QoS::AtLeastOnce) };
    for waited in [Duration::ZERO, Duration::from_millis(59_999), DAY] {
        assert_eq!(known(Some(start)).waited(start + waited), waited);
    }
    assert_eq!(known(Some(start)).waited(start - DAY), Duration::ZERO, "the clock was set back");
    assert_eq!(known(None).waited(start), Duration::ZERO);
}

/// [BQ-42] [BQ-43] The options are restored, the stream of the request is not.
#[test]
fn a_subscription_is_restored_unbound_on_the_control_stream() {
    let asked = Subscription {
        qos: QoS::ExactlyOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::SendIfNew,
        id: Some(NonZeroU32::MIN),
        stream: StreamKey::bidi(7),
        priority: Some(Priority::new(9)),
        bound: true,
    };
    let live = StoredSubscription::of(&asked).live();
    assert_eq!(live, Subscription { stream: StreamKey::CONTROL, bound: false, ..asked });
    assert_eq!(StoredSubscription::of(&live), StoredSubscription::of(&asked));
    let unasked = Subscription { bound: true, ..Subscription::default() };
    assert_eq!(StoredSubscription::of(&unasked).live(), Subscription::default());
}

fn record(expiry: u32, parked_at: Option<SystemTime>) -> SessionRecord {
    let expiry = SessionExpiry::from_secs(expiry);
    SessionRecord { id: SessionId::new(1), client_id: "a".into(), identity: None, expiry, parked_at }
}

fn will(delay: u32) -> Will {
    let topic = TopicName::parse("will").expect("a topic name");
    Will { topic, payload: Bytes::new(), qos: QoS::AtMostOnce, retain: false, delay, properties: None }
}

#[test]
fn a_session_expires_while_the_broker_is_down() {
    let start = now().system;
    let parked = record(300, Some(start));
    for (down, left) in [(0, 300), (299, 1), (300, 0), (301, 0)] {
        assert_eq!(parked.expires_in(start + seconds(down)), Some(seconds(left)), "{down}");
    }
    assert_eq!(record(300, None).expires_in(start), Some(seconds(300)), "connected until the broker ended");
    assert_eq!(record(u32::MAX, Some(start)).expires_in(start + DAY), None);
}

// [MQTT-3.1.3-9]
#[test]
fn a_will_waits_for_its_delay_or_the_end_of_the_session() {
    let start = now().system;
    let due =
        |expiry, delay, down| record(expiry, Some(start)).will_due_in(&will(delay), start + seconds(down));
    assert_eq!(due(300, 20, 5), seconds(15));
    assert_eq!(due(300, 20, 20), seconds(0));
    assert_eq!(due(10, 20, 4), seconds(6), "the session ends first");
    assert_eq!(due(u32::MAX, 20, 25), seconds(0));
    assert_eq!(record(300, None).will_due_in(&will(20), start), seconds(20));
}
