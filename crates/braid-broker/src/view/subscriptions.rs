//! Subscriptions of all sessions.

use std::sync::Arc;

use braid_proto::session::{Subscription, Subscriptions};
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};
use tokio::task::yield_now;

use super::answer::ask;
use super::connection::ClientName;
use super::inquiry::{Inquiry, ViewError};
use super::{ENTRIES_IN_PIECE, Page};
use crate::registry::{Registry, SessionEntry, SessionKey, SessionOwner};

/// Subscriptions that a session gives at once.
const FILTERS_IN_PIECE: usize = 256;

/// Conditions on subscriptions; all of them must hold.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionQuery {
    /// Client of the subscription.
    pub client: Option<ClientName>,
    /// Topic Filter, equal in every character.
    pub filter: Option<TopicFilter>,
    /// Topic Name that the filter matches.
    pub topic: Option<TopicName>,
    /// Share Name.
    pub share_name: Option<String>,
}

/// Subscription of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// Client.
    pub client: ClientName,
    /// Topic Filter, with the mountpoint of the client in front.
    pub filter: TopicFilter,
    /// Options, stream and priority.
    pub subscription: Subscription,
}

/// Position in the list of subscriptions: behind one, in the order of sessions and filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionCursor {
    /// Number of the session.
    pub session: u64,
    /// Filter and stream of the subscription.
    pub filter: TopicFilter,
    /// See `filter`.
    pub stream: StreamKey,
}

impl SubscriptionQuery {
    fn matches(&self, filter: &TopicFilter) -> bool {
        self.filter.as_ref().is_none_or(|wanted| wanted == filter)
            && self.topic.as_ref().is_none_or(|topic| filter.matches(topic))
            && (self.share_name.is_none() || self.share_name.as_deref() == filter.share_name())
    }
}

/// Copies of the subscriptions behind one, at most [`FILTERS_IN_PIECE`].
pub(crate) fn copy_piece(
    subscriptions: &Subscriptions,
    after: Option<(TopicFilter, StreamKey)>,
) -> Vec<(TopicFilter, Subscription)> {
    let behind = subscriptions.behind(after).take(FILTERS_IN_PIECE);
    behind.map(|(filter, subscription)| (filter.clone(), *subscription)).collect()
}

/// First subscriptions of a session behind one.
///
/// # Errors
/// Its connection does not answer.
pub(super) async fn piece_of(
    entry: &Arc<SessionEntry>,
    after: Option<(TopicFilter, StreamKey)>,
) -> Result<Vec<(TopicFilter, Subscription)>, ViewError> {
    match &*entry.owner() {
        SessionOwner::Parked(parked) => return Ok(copy_piece(&parked.session.subscriptions, after)),
        SessionOwner::Ended => return Ok(Vec::new()),
        SessionOwner::Connection(..) => {}
    }
    ask(entry, |answer| Inquiry::Subscriptions(after, answer)).await
}

/// Page of the subscriptions that match a query. Those of a connection that does not answer are passed over.
pub(super) async fn list(
    registry: &Registry,
    query: &SubscriptionQuery,
    cursor: Option<SubscriptionCursor>,
    limit: usize,
) -> Page<SubscriptionRow, SubscriptionCursor> {
    let mut rows = Vec::new();
    let limit = Page::<SubscriptionRow, SubscriptionCursor>::rows_of(limit);
    let (mut after, mut within) = match cursor {
        // The session of the cursor is visited again, behind its last filter.
        Some(SubscriptionCursor { session, filter, stream }) => {
            (session.checked_sub(1).map(SessionKey), Some((session, (filter, stream))))
        }
        None => (None, None),
    };
    let one = query.client.as_ref().map(|client| registry.find(client.session_id()));
    loop {
        let piece = match &one {
            Some(found) => found.iter().filter(|entry| Some(entry.key) > after).cloned().collect(),
            None => registry.piece(after, ENTRIES_IN_PIECE),
        };
        let is_last = one.is_some() || piece.len() < ENTRIES_IN_PIECE;
        for entry in piece {
            after = Some(entry.key);
            let mut last = within.take().filter(|(session, _)| *session == entry.key.0).map(|(_, last)| last);
            while entry.counts().0 > 0
                && let Ok(some) = piece_of(&entry, last.take()).await
            {
                let is_all = some.len() < FILTERS_IN_PIECE;
                for (filter, subscription) in some {
                    last = Some((filter.clone(), subscription.stream));
                    if query.matches(&filter) {
                        let client = ClientName::from(&entry.client_id);
                        let stream = subscription.stream;
                        rows.push(SubscriptionRow { client, filter: filter.clone(), subscription });
                        if rows.len() == limit {
                            let next = SubscriptionCursor { session: entry.key.0, filter, stream };
                            return Page { rows, next: Some(next) };
                        }
                    }
                }
                if is_all {
                    break;
                }
            }
        }
        if is_last {
            return Page { rows, next: None };
        }
        yield_now().await;
    }
}
