//! Messages of the log, as the broker has them.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_nats::HeaderMap;
use braid_auth::publisher::Publisher;
use braid_broker::cluster::ArrivedMessage;
use braid_proto::message::Message;
use braid_proto::packet::ClientId;
use braid_store::{Lsn, Now, StoredMessage};
use bytes::Bytes;

use crate::layout::Layout;
use crate::message::LoggedMessage;
use crate::subject::parse_topic;

/// Message of the log.
pub(crate) struct Logged {
    pub(crate) lsn: Lsn,
    pub(crate) message: StoredMessage,
    pub(crate) publisher: Option<ClientId>,
    pub(crate) identity: Option<Arc<str>>,
    /// Subscribers do not get it.
    pub(crate) is_withheld: bool,
}

/// Reads a message of a shard. `None`: it is of no client, or cannot be read, which is logged.
pub(crate) fn read(
    layout: &Layout,
    index: usize,
    sequence: u64,
    subject: &str,
    headers: Option<&HeaderMap>,
    payload: Bytes,
) -> Option<Logged> {
    let (retain, tokens) = layout.parse_message(subject)?;
    let topic = parse_topic(tokens)?;
    let logged = LoggedMessage::read(headers, payload)
        .inspect_err(|error| tracing::error!(subject, sequence, %error, "skipped"))
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

/// The present time on both clocks.
pub(crate) fn now() -> Now {
    Now { instant: Instant::now(), system: SystemTime::now() }
}
