//! Subscriptions of all sessions.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::session::{Subscription, Subscriptions};
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::answer::ask;
use super::connection::ClientName;
use super::inquiry::{Inquiry, ViewError};
use super::{ENTRIES_IN_PAGE, ENTRIES_IN_PIECE, Page};
use crate::core::Core;
use crate::registry::{Registry, SessionEntry, SessionKey, SessionOwner};

/// Subscriptions that a session gives at once.
const FILTERS_IN_PIECE: usize = 256;

/// Questions for a page, each a turn of a connection.
const QUESTIONS_IN_PAGE: usize = 1024;

/// Time after which a page ends, where connections are slow to answer.
const PAGE_TIME: Duration = Duration::from_secs(1);

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
    /// Filter and stream of the subscription; `None`: behind all of the session.
    pub within: Option<(TopicFilter, StreamKey)>,
}

/// Sessions that a query concerns.
enum Candidates {
    All,
    /// Sorted.
    Some(Vec<SessionKey>),
}

impl Candidates {
    /// Sessions that the router knows as subscribers: a query for a filter or topic asks no others.
    fn of(core: &Core, query: &SubscriptionQuery) -> Self {
        let share_name = query.share_name.as_deref();
        match (&query.client, &query.filter, &query.topic) {
            (Some(client), ..) => {
                let found = core.sessions.registry.find(client.session_id());
                Self::Some(found.iter().map(|entry| entry.key).collect())
            }
            (None, Some(filter), _) => Self::Some(core.routing.subscribers(filter)),
            (None, None, Some(topic)) => Self::Some(core.routing.matching(topic, share_name)),
            (None, None, None) => Self::All,
        }
    }

    /// Sessions behind a key, at most [`ENTRIES_IN_PIECE`], and the key behind which others follow.
    fn piece(
        &self,
        registry: &Registry,
        after: Option<SessionKey>,
    ) -> (Vec<Arc<SessionEntry>>, Option<SessionKey>) {
        match self {
            Self::All => {
                let piece = registry.piece(after, ENTRIES_IN_PIECE);
                let is_last = piece.len() < ENTRIES_IN_PIECE;
                let next = piece.last().filter(|_| !is_last).map(|entry| entry.key);
                (piece, next)
            }
            Self::Some(keys) => {
                let behind = &keys[keys.partition_point(|key| Some(*key) <= after)..];
                let (some, others) = behind.split_at(behind.len().min(ENTRIES_IN_PIECE));
                let entries = registry.entries();
                // An ending session may be gone from the registry before its subscriptions are.
                let piece = some.iter().filter_map(|key| entries.get(key).cloned()).collect();
                (piece, some.last().filter(|_| !others.is_empty()).copied())
            }
        }
    }
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

/// Page that is being made.
struct Progress {
    rows: Vec<SubscriptionRow>,
    limit: usize,
    visited: usize,
    questions: usize,
    end: Instant,
}

impl Progress {
    fn is_enough(&self) -> bool {
        self.visited >= ENTRIES_IN_PAGE || self.questions >= QUESTIONS_IN_PAGE || Instant::now() >= self.end
    }

    fn page(self, next: Option<SubscriptionCursor>) -> Page<SubscriptionRow, SubscriptionCursor> {
        Page { rows: self.rows, next, visited: self.visited + self.questions }
    }

    /// Adds the subscriptions of a session behind one. Returns the one at which the page is full, or has lasted long
    /// enough; `None` at the end of the session.
    async fn add(
        &mut self,
        entry: &Arc<SessionEntry>,
        query: &SubscriptionQuery,
        mut last: Option<(TopicFilter, StreamKey)>,
    ) -> Option<(TopicFilter, StreamKey)> {
        self.visited += 1;
        while entry.counts().0 > 0 {
            self.questions += 1;
            let some = piece_of(entry, last.take()).await.ok()?;
            let is_all = some.len() < FILTERS_IN_PIECE;
            for (filter, subscription) in some {
                let at = (filter, subscription.stream);
                if query.matches(&at.0) {
                    let client = ClientName::from(&entry.client_id);
                    self.rows.push(SubscriptionRow { client, filter: at.0.clone(), subscription });
                    if self.rows.len() == self.limit {
                        return Some(at);
                    }
                }
                last = Some(at);
            }
            if is_all {
                return None;
            }
            if self.is_enough() {
                return last;
            }
        }
        None
    }
}

/// Page of the subscriptions that match a query. Those of a connection that does not answer are passed over.
pub(super) async fn list(
    core: &Core,
    query: &SubscriptionQuery,
    cursor: Option<SubscriptionCursor>,
    limit: usize,
) -> Page<SubscriptionRow, SubscriptionCursor> {
    let registry = &core.sessions.registry;
    let limit = Page::<SubscriptionRow, SubscriptionCursor>::rows_of(limit);
    let mut progress =
        Progress { rows: Vec::new(), limit, visited: 0, questions: 0, end: Instant::now() + PAGE_TIME };
    let (mut after, mut within) = match cursor {
        // The session of the cursor is visited again, behind its last filter.
        Some(SubscriptionCursor { session, within: Some(within) }) => {
            (session.checked_sub(1).map(SessionKey), Some((session, within)))
        }
        Some(SubscriptionCursor { session, within: None }) => (Some(SessionKey(session)), None),
        None => (None, None),
    };
    let candidates = Candidates::of(core, query);
    loop {
        let (piece, next) = candidates.piece(registry, after);
        let count = piece.len();
        for (index, entry) in piece.into_iter().enumerate() {
            let session = entry.key.0;
            let last = within.take().filter(|(of, _)| *of == session).map(|(_, last)| last);
            let stopped = progress.add(&entry, query, last).await;
            let is_end = next.is_none() && index + 1 == count;
            if stopped.is_some() || (progress.is_enough() && !is_end) {
                return progress.page(Some(SubscriptionCursor { session, within: stopped }));
            }
        }
        let Some(next) = next else { return progress.page(None) };
        after = Some(next);
        yield_now().await;
    }
}
