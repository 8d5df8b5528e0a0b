//! Messages of the log, as the broker has them.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use async_nats::HeaderMap;
use braid_auth::publisher::Publisher;
use braid_broker::cluster::ArrivedMessage;
use braid_proto::message::Message;
use braid_proto::packet::ClientId;
use braid_proto::topic::TopicName;
use braid_store::{Lsn, Now, StoredMessage};
use bytes::Bytes;

use crate::layout::Layout;
use crate::message::LoggedMessage;
use crate::subject::parse_topic;

/// Subjects of [`Topics`], and the bytes of the longest one.
const TOPICS: usize = 256;
const SUBJECT_KEPT: usize = 256;

/// Message of the log.
pub(crate) struct Logged {
    pub(crate) lsn: Lsn,
    pub(crate) message: StoredMessage,
    pub(crate) publisher: Option<ClientId>,
    pub(crate) identity: Option<Arc<str>>,
    /// Subscribers do not get it.
    pub(crate) is_withheld: bool,
}

/// Topic of a message and whether it has RETAIN, by its subject.
pub(crate) type Named = (bool, TopicName);

/// Topic and RETAIN of a subject of the log; `None`: it is of no message.
pub(crate) fn named(layout: &Layout, subject: &str) -> Option<Named> {
    let (retain, tokens) = layout.parse_message(subject)?;
    Some((retain, parse_topic(tokens)?))
}

/// Topics of the last subjects. Messages of one topic share its allocation, by which the broker knows their route
/// again.
#[derive(Default)]
pub(crate) struct Topics(HashMap<Box<str>, Named>);

impl Topics {
    /// Topic and RETAIN of a subject, as [`named`] finds them.
    pub(crate) fn named(&mut self, layout: &Layout, subject: &str) -> Option<Named> {
        if let Some(known) = self.0.get(subject) {
            return Some(known.clone());
        }
        let new = named(layout, subject)?;
        if self.0.len() == TOPICS {
            self.0.clear();
        }
        if subject.len() <= SUBJECT_KEPT {
            self.0.insert(subject.into(), new.clone());
        }
        Some(new)
    }
}

/// Reads a message of a shard. `None`: it is of no client, or cannot be read, which is logged.
pub(crate) fn read(
    layout: &Layout,
    index: usize,
    sequence: u64,
    named: Option<Named>,
    headers: Option<&HeaderMap>,
    payload: Bytes,
) -> Option<Logged> {
    let (retain, topic) = named?;
    let logged = LoggedMessage::read(headers, payload)
        .inspect_err(|error| tracing::error!(%topic, sequence, %error, "skipped"))
        .ok()?;
    let LoggedMessage { qos, publisher, identity, is_withheld, expires_at, properties, payload } = logged;
    let message = StoredMessage::from_parts(topic, payload, qos, retain, properties, expires_at)
        .with_publisher(identity.clone().map(Arc::from));
    let publisher = Some(publisher).filter(|client| !client.is_empty());
    let publisher = publisher.map(|client| ClientId::from(&*client));
    let identity = identity.map(Arc::from);
    Some(Logged { lsn: layout.lsn(index, sequence), message, publisher, identity, is_withheld })
}

impl Logged {
    /// The message for the broker at `now`.
    pub(crate) fn arrived(self, now: Now) -> Option<ArrivedMessage> {
        let retained_by = self.identity.map(Publisher::decode).transpose();
        let retained_by = retained_by
            .inspect_err(|error| tracing::error!(%error, "the publisher of a message cannot be read"))
            .ok()?;
        let message = live(&self.message, now);
        if let Some(lsn) = NonZeroU64::new(self.lsn.value()) {
            message.set_lsn(lsn);
        }
        let (publisher, retained_by) = (self.publisher, retained_by.map(Arc::new));
        Some(ArrivedMessage { message, publisher, retained_by, is_withheld: self.is_withheld })
    }
}

fn live(stored: &StoredMessage, now: Now) -> Message {
    let (topic, payload) = (stored.topic().clone(), stored.payload().clone());
    let mut message = Message::new(topic, payload, stored.qos(), stored.retain());
    message.properties = stored.properties().cloned().map(Box::new);
    message.expires_at = stored.time_left(now).and_then(|left| now.instant.checked_add(left));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Dimensions;

    #[test]
    fn topics_share_an_allocation_and_are_bounded() {
        let layout =
            Layout::new("test".parse().unwrap(), Dimensions { shards: 1, replicas: 3, log_bytes: 1 << 30 });
        let mut topics = Topics::default();
        let (retain, first) = topics.named(&layout, "test.m.0.r.t.a.b.~").unwrap();
        assert!(retain && first.as_str() == "a/b");
        let (retain, other) = topics.named(&layout, "test.m.0.n.t.a.b.~").unwrap();
        assert!(!retain && other == first && !other.same_allocation(&first));
        assert!(topics.named(&layout, "test.m.0.r.t.a.b.~").unwrap().1.same_allocation(&first));
        for foreign in ["other.m.0.r.t.a.~", "test.q.0.client", "test.m.0.r.t.%4.~"] {
            assert_eq!(topics.named(&layout, foreign), None);
        }
        for number in 0..10_000 {
            let subject = format!("test.m.0.n.t.{number}.{}.~", "x".repeat(1 + number % 300));
            assert!(topics.named(&layout, &subject).is_some());
            assert!(topics.0.len() <= TOPICS && topics.0.keys().all(|key| key.len() <= SUBJECT_KEPT));
        }
    }
}
