//! Changes with recognizable values.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_proto::message::SubscriptionIds;
use braid_proto::packet::{MessageProperties, PacketId, QoS, Will};
use braid_proto::session::{RetainHandling, SessionExpiry};
use braid_proto::stream::Priority;
use braid_proto::topic::{TopicFilter, TopicName};
use bytes::Bytes;

use crate::change::Change;
use crate::ids::{Claim, Lsn, SessionId};
use crate::message::{StoredDelivery, StoredMessage};
use crate::session::StoredSubscription;

pub(super) fn id(session: u64) -> SessionId {
    SessionId::new(session)
}

pub(super) fn packet(value: u16) -> PacketId {
    PacketId::new(value).expect("packet ids start at 1")
}

pub(super) fn topic(text: &str) -> TopicName {
    TopicName::parse(text).expect("a topic name")
}

pub(super) fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a topic filter")
}

/// A time with nanoseconds, which a store must not round.
pub(super) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_800_000_000 + seconds, 123_456_789)
}

pub(super) fn opened(session: u64, client: &str, claim: Claim) -> Change {
    let (identity, expiry) = (Some(client.into()), SessionExpiry::NEVER);
    Change::Opened { session: id(session), client_id: client.into(), identity, expiry, claim }
}

pub(super) fn resumed(session: u64, claim: Claim) -> Change {
    let (identity, expiry) = (Some("resumed".into()), SessionExpiry::from_secs(60));
    Change::Resumed { session: id(session), identity, expiry, claim }
}

pub(super) fn parked(session: u64, seconds: u64, claim: Claim) -> Change {
    let expiry = SessionExpiry::from_secs(300);
    Change::Parked { session: id(session), at: at(seconds), expiry, claim }
}

pub(super) fn closed(session: u64, claim: Claim) -> Change {
    Change::Closed { session: id(session), claim }
}

pub(super) fn subscribed(session: u64, text: &str, qos: QoS) -> Change {
    let subscription = StoredSubscription { qos, ..full_subscription() };
    Change::Subscribed { session: id(session), filter: filter(text), subscription, since: None }
}

/// All fields differ from their defaults.
pub(super) fn full_subscription() -> StoredSubscription {
    StoredSubscription {
        qos: QoS::ExactlyOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::DoNotSend,
        id: NonZeroU32::new(268_435_455),
        priority: Some(Priority::new(9)),
    }
}

/// A message whose payload is its number.
pub(super) fn stored(lsn: u64) -> Change {
    stored_on(lsn, "t")
}

pub(super) fn stored_on(lsn: u64, topic: &str) -> Change {
    Change::Stored { lsn: Lsn::new(lsn), message: plain_message(lsn, topic) }
}

pub(super) fn plain_message(lsn: u64, name: &str) -> StoredMessage {
    let payload = Bytes::from(lsn.to_string());
    StoredMessage::from_parts(topic(name), payload, QoS::AtLeastOnce, false, None, None)
}

/// All fields differ from their defaults.
pub(super) fn full_message() -> StoredMessage {
    let payload = Bytes::from_static(&[0, 255, 128, 10]);
    let (qos, expires_at) = (QoS::ExactlyOnce, Some(at(30)));
    let properties = Some(full_properties());
    StoredMessage::from_parts(topic("$a//é"), payload, qos, true, properties, expires_at)
        .with_publisher(Some("é\0".into()))
}

pub(super) fn full_properties() -> Box<MessageProperties> {
    Box::new(MessageProperties {
        payload_format: Some(false),
        message_expiry: Some(60),
        content_type: Some("application/x".into()),
        response_topic: Some(topic("answer")),
        correlation_data: Some(Bytes::from_static(&[0, 1, 2])),
        user: [("a", "1"), ("a", ""), ("", "é")].into(),
    })
}

pub(super) fn full_will() -> Arc<Will> {
    Arc::new(Will {
        topic: topic("will"),
        payload: Bytes::from_static(b"gone"),
        qos: QoS::ExactlyOnce,
        retain: true,
        delay: 17,
        properties: Some(full_properties()),
    })
}

pub(super) fn delivery(message: u64) -> StoredDelivery {
    StoredDelivery::new(Lsn::new(message), QoS::AtLeastOnce)
}

/// All fields differ from their defaults.
pub(super) fn full_delivery(message: u64) -> StoredDelivery {
    let mut subscription_ids = SubscriptionIds::One(NonZeroU32::MIN);
    subscription_ids.push(NonZeroU32::new(268_435_455).expect("not 0"));
    StoredDelivery {
        message: Lsn::new(message),
        qos: QoS::ExactlyOnce,
        retain: true,
        subscription_ids,
        priority: Priority::HIGHEST,
        shared: Some(Arc::new(filter("$share/g/t/+"))),
        enqueued_at: Some(at(40)),
    }
}

/// A queue entry with the number of its message.
pub(super) fn queued(session: u64, lsn: u64) -> Change {
    queued_at(session, lsn, lsn)
}

pub(super) fn queued_at(session: u64, lsn: u64, message: u64) -> Change {
    Change::Queued { session: id(session), lsn: Lsn::new(lsn), delivery: delivery(message) }
}

pub(super) fn sent(session: u64, lsn: u64, packet_id: u16) -> Change {
    Change::Sent { session: id(session), lsn: Lsn::new(lsn), packet_id: packet(packet_id) }
}

pub(super) fn released(session: u64, lsn: u64, packet_id: u16) -> Change {
    Change::Released { session: id(session), lsn: Lsn::new(lsn), packet_id: packet(packet_id) }
}

pub(super) fn completed(session: u64, lsn: u64) -> Change {
    Change::Completed { session: id(session), lsn: Lsn::new(lsn) }
}

pub(super) fn received(session: u64, packet_id: u16) -> Change {
    received_more(session, packet_id, 1)
}

/// Several exchanges with one identifier.
pub(super) fn received_more(session: u64, packet_id: u16, exchanges: u16) -> Change {
    let exchanges = NonZeroU16::new(exchanges).unwrap_or(NonZeroU16::MIN);
    Change::Received { session: id(session), packet_id: packet(packet_id), exchanges }
}

pub(super) fn received_released(session: u64, packet_id: u16) -> Change {
    Change::ReceivedReleased { session: id(session), packet_id: packet(packet_id) }
}

pub(super) fn retained(message: u64) -> Change {
    Change::Retained { message: Lsn::new(message) }
}

pub(super) fn retain_cleared(name: &str) -> Change {
    Change::RetainCleared { topic: topic(name) }
}
