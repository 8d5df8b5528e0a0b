//! Batches of a broker with one client, numbered.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_proto::message::SubscriptionIds;
use braid_proto::packet::{ClientId, MessageProperties, PacketId, QoS, Will};
use braid_proto::session::{RetainHandling, SessionExpiry};
use braid_proto::stream::Priority;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{
    Batch, Change, Lsn, RecoveredState, SessionId, Store, StoreError, StoredDelivery, StoredMessage,
    StoredSubscription,
};
use bytes::Bytes;

pub(crate) const SESSION: SessionId = SessionId::new(1);

pub(crate) fn open_session(store: &impl Store) -> Result<(), StoreError> {
    let client_id = ClientId::from("a");
    let claim = store.claim(&client_id).wait()?;
    let opened =
        Change::Opened { session: SESSION, client_id, identity: None, expiry: SessionExpiry::NEVER, claim };
    store.commit([opened].into_iter().collect()).wait()
}

/// A message for the session.
pub(crate) fn queued(number: u64) -> Batch {
    queued_with(number, Bytes::from(number.to_string()))
}

pub(crate) fn queued_with(number: u64, payload: Bytes) -> Batch {
    let lsn = Lsn::new(number);
    let topic = TopicName::parse("t").expect("a topic name");
    let message = StoredMessage::from_parts(topic, payload, QoS::AtLeastOnce, false, None, None);
    let delivery = StoredDelivery::new(lsn, QoS::AtLeastOnce);
    [Change::Stored { lsn, message }, Change::Queued { session: SESSION, lsn, delivery }]
        .into_iter()
        .collect()
}

/// Reads one message.
pub(crate) fn read(store: &impl Store, number: u64) -> Result<Option<StoredMessage>, StoreError> {
    Ok(store.messages_of(&[Lsn::new(number)]).wait()?.remove(0))
}

/// Completion of the message's delivery, which may be lazy.
pub(crate) fn completed(number: u64) -> Batch {
    let mut batch = Batch::lazy();
    batch.push(Change::Completed { session: SESSION, lsn: Lsn::new(number) });
    batch
}

/// Numbers of the session's queue entries.
pub(crate) fn queue(store: &impl Store) -> Vec<u64> {
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("the store can be recovered");
    let session = image.sessions.get(&SESSION);
    session.into_iter().flat_map(|session| &session.queue).map(|(lsn, _)| lsn.value()).collect()
}

// === a store with every kind of row ===

fn topic(text: &str) -> TopicName {
    TopicName::parse(text).expect("a topic name")
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a topic filter")
}

fn properties() -> Box<MessageProperties> {
    Box::new(MessageProperties {
        payload_format: Some(true),
        message_expiry: Some(60),
        content_type: Some("text/plain".into()),
        response_topic: Some(topic("answer")),
        correlation_data: Some(Bytes::from_static(&[0, 255])),
        user: [("a", "1"), ("", "é")].into(),
    })
}

fn deliver(lsn: u64, message: u64) -> StoredDelivery {
    let priority = Priority::new(u16::try_from(lsn).unwrap_or(7));
    StoredDelivery { priority, ..StoredDelivery::new(Lsn::new(message), QoS::AtLeastOnce) }
}

fn queued_as(session: u64, lsn: u64, delivery: StoredDelivery) -> Change {
    Change::Queued { session: SessionId::new(session), lsn: Lsn::new(lsn), delivery }
}

fn stored(lsn: u64, message: StoredMessage) -> Change {
    Change::Stored { lsn: Lsn::new(lsn), message }
}

fn plain(name: &str, payload: &'static [u8]) -> StoredMessage {
    StoredMessage::from_parts(topic(name), Bytes::from_static(payload), QoS::AtLeastOnce, false, None, None)
}

fn packet(value: u16) -> PacketId {
    PacketId::new(value).expect("not 0")
}

/// Fills an empty store with every kind of row: sessions 1 and 2, messages 1 to 5, and entries in every phase.
pub(crate) fn fill(store: &impl Store) -> Result<(), StoreError> {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    let (a, b) = (store.claim(&"a".into()).wait()?, store.claim(&"é".into()).wait()?);
    let (one, two) = (SessionId::new(1), SessionId::new(2));
    let expiry = SessionExpiry::NEVER;
    let full = StoredSubscription {
        qos: QoS::ExactlyOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::DoNotSend,
        id: NonZeroU32::new(268_435_455),
        priority: Some(Priority::HIGHEST),
    };
    let bare = StoredSubscription { id: None, priority: None, qos: QoS::AtMostOnce, ..full };
    let will = Will {
        topic: topic("will"),
        payload: Bytes::from_static(&[255, 0]),
        qos: QoS::ExactlyOnce,
        retain: true,
        delay: 17,
        properties: Some(properties()),
    };
    let rich = StoredMessage::from_parts(
        topic("$a//é"),
        Bytes::from_static(&[0, 255, 10]),
        QoS::ExactlyOnce,
        true,
        Some(properties()),
        Some(at(1_900_000_000)),
    );
    let mut several = SubscriptionIds::One(NonZeroU32::MIN);
    several.push(NonZeroU32::new(268_435_455).expect("not 0"));
    let shared = Some(Arc::new(filter("$share/g/t/+")));
    let enqueued_at = Some(at(1_700_000_000));
    let changes = [
        Change::Opened { session: one, client_id: "a".into(), identity: None, expiry, claim: a },
        Change::Opened { session: two, client_id: "é".into(), identity: Some("u".into()), expiry, claim: b },
        Change::Parked {
            session: two,
            at: at(1_800_000_000),
            expiry: SessionExpiry::from_secs(300),
            claim: b,
        },
        Change::WillSet { session: two, will: Arc::new(will) },
        Change::Subscribed { session: one, filter: filter("t/#"), subscription: full, since: None },
        Change::Subscribed { session: one, filter: filter("$share/g/+"), subscription: bare, since: None },
        Change::Subscribed { session: two, filter: filter("+"), subscription: bare, since: None },
        Change::Received { session: one, packet_id: packet(9), exchanges: NonZeroU16::MIN.saturating_add(1) },
        stored(1, rich),
        queued_as(1, 1, StoredDelivery { subscription_ids: several, shared, enqueued_at, ..deliver(1, 1) }),
        queued_as(2, 1, StoredDelivery { retain: true, qos: QoS::ExactlyOnce, ..deliver(1, 1) }),
        stored(2, plain("t", b"two")),
        queued_as(1, 2, StoredDelivery { priority: Priority::DEFAULT, ..deliver(2, 2) }),
        queued_as(1, 6, deliver(6, 2)),
        stored(3, plain("t/u", b"u")),
        Change::Retained { message: Lsn::new(3) },
        stored(4, plain("t", b"four")),
        Change::Retained { message: Lsn::new(4) },
        queued_as(2, 4, deliver(4, 4)),
        stored(5, plain("t", b"five")),
        queued_as(2, 5, deliver(5, 5)),
        Change::Sent { session: two, lsn: Lsn::new(4), packet_id: packet(3) },
        Change::Sent { session: one, lsn: Lsn::new(6), packet_id: packet(2) },
        Change::Sent { session: one, lsn: Lsn::new(2), packet_id: packet(1) },
        Change::Released { session: two, lsn: Lsn::new(5), packet_id: packet(4) },
    ];
    store.commit(changes.into_iter().collect()).wait()
}

/// Content of a store without its claims.
pub(crate) fn contents(store: &impl Store) -> (RecoveredState, Vec<Option<StoredMessage>>) {
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("the store can be recovered");
    for session in image.sessions.values_mut() {
        session.claim = braid_store::Claim::new(0);
    }
    let lsns: Vec<_> = (1..=6).map(Lsn::new).collect();
    (image, store.messages_of(&lsns).wait().expect("they can be read"))
}
