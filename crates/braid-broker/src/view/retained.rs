//! Retained messages.

use std::ops::ControlFlow;
use std::time::Instant;

use braid_proto::packet::{Payload, QoS};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::Walked;
use tokio::task::yield_now;

use super::{ClientName, ENTRIES_IN_PAGE, ENTRIES_IN_PIECE, Page};
use crate::retained::{RetainedMessage, RetainedMessages};

/// Conditions on retained messages, and what is wanted of them.
#[derive(Clone, Debug)]
pub struct RetainedQuery {
    /// Filter of their topics.
    pub filter: TopicFilter,
    /// Whether rows have payloads.
    pub with_payload: bool,
}

/// Retained message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedRow {
    /// Topic, with the mountpoint of its publisher in front.
    pub topic: TopicName,
    /// Length of the payload in bytes.
    pub payload_len: usize,
    /// QoS.
    pub qos: QoS,
    /// Monotonic time at which it was retained; `None` if that was before the start of the broker.
    pub since: Option<Instant>,
    /// End of its Message Expiry Interval. Until it is removed, it may have passed.
    pub expires_at: Option<Instant>,
    /// Client that published it; `None` where the broker does not keep it: where everything is permitted.
    pub publisher: Option<ClientName>,
    /// Payload, if it was asked for.
    pub payload: Option<Payload>,
}

impl RetainedRow {
    fn new(retained: &RetainedMessage, with_payload: bool) -> Self {
        let message = &retained.message;
        Self {
            topic: message.topic.clone(),
            payload_len: message.payload_len(),
            qos: message.qos,
            since: retained.since(),
            expires_at: message.expires_at,
            publisher: retained.publisher().map(|publisher| ClientName::from(publisher.client_id())),
            payload: with_payload.then(|| message.payload.clone()),
        }
    }
}

/// Page of the retained messages that match a query, behind a topic, in the order of their levels.
pub(super) async fn list(
    retained: &RetainedMessages,
    query: &RetainedQuery,
    mut after: Option<TopicName>,
    limit: usize,
) -> Page<RetainedRow, TopicName> {
    let limit = Page::<RetainedRow, TopicName>::rows_of(limit);
    let (mut rows, mut visited) = (Vec::new(), 0);
    loop {
        let before = rows.len();
        let walked = retained.walk(&query.filter, after.as_ref(), ENTRIES_IN_PIECE, |message| {
            rows.push(RetainedRow::new(message, query.with_payload));
            if rows.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        // The walk does not tell of how many topics it ended early.
        let is_whole = matches!(walked, Walked::Unfinished(_)) && rows.len() < limit;
        visited += if is_whole { ENTRIES_IN_PIECE } else { (rows.len() - before).max(1) };
        match walked {
            Walked::Finished => return Page { rows, next: None, visited },
            Walked::Unfinished(at) if rows.len() == limit || visited >= ENTRIES_IN_PAGE => {
                return Page { rows, next: Some(at), visited };
            }
            Walked::Unfinished(at) => after = Some(at),
        }
        yield_now().await;
    }
}
