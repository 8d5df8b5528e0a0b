//! Clients and their sessions, connected or not.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::session::{SessionExpiry, Subscription};
use braid_proto::topic::TopicFilter;
use braid_transport::Transport;
use ipnet::IpNet;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::answer::ask;
use super::connection::{ClientName, ConnectionSummary, PendingDetail};
use super::inquiry::{ANSWER_TIMEOUT, Inquiry, ViewError};
use super::{ENTRIES_IN_PAGE, ENTRIES_IN_PIECE, Page, subscriptions};
use crate::core::Core;
use crate::registry::{Presence, Registry, SessionEntry, SessionKey, SessionOwner};

/// Pause before a view asks the next owner of a session whose connection ends. Where threads are busy, the end takes
/// longer than some turns of a task.
const HANDOVER_PAUSE: Duration = Duration::from_millis(2);

/// Row of the list of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRow {
    /// Name of the client.
    pub name: ClientName,
    /// User name; `None` for an anonymous client.
    pub user: Option<Box<str>>,
    /// Connection; `None` while the client is disconnected.
    pub connection: Option<Arc<ConnectionSummary>>,
    /// Monotonic time at which the last connection ended; `None` while connected, and if that was before the broker
    /// began.
    pub disconnected_since: Option<Instant>,
    /// Session Expiry Interval.
    pub expiry: SessionExpiry,
    /// Number of subscriptions.
    pub subscriptions: u32,
    /// Messages that wait for the client, without those in the outboxes of its streams.
    pub queued_messages: usize,
    /// Bytes of these messages, as `limits.queued_bytes` counts them.
    pub queued_bytes: usize,
    /// Messages of QoS 1 and 2 to the client that are not completely acknowledged.
    pub inflight: u32,
    /// Messages that were dropped instead of being sent, since the session began or the broker started.
    pub dropped: u64,
}

/// Conditions on clients; all of them must hold.
#[derive(Clone, Debug, Default)]
pub struct ClientQuery {
    /// User name.
    pub user: Option<String>,
    /// Beginning of the Client Identifier, as the client knows it.
    pub client_id_prefix: Option<String>,
    /// Addresses of connected clients.
    pub addresses: Option<IpNet>,
    /// Transport of connected clients.
    pub transport: Option<Transport>,
    /// Whether the client is connected.
    pub is_connected: Option<bool>,
}

/// Position in the list of clients: behind a session, in the order in which sessions began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientCursor(u64);

impl ClientCursor {
    /// Position with this number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Number of the position.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// All that is known of one client, beside its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientDetail {
    /// Row of the list.
    pub row: ClientRow,
    /// Incomplete exchanges.
    pub pending: PendingDetail,
    /// The first 256 subscriptions, ordered by filter; [`subscriptions`](crate::Handle::subscriptions) has all.
    pub subscriptions: Vec<(TopicFilter, Subscription)>,
}

impl ClientQuery {
    /// Row of a session, if it matches. Locks the queue of the session for two additions.
    fn row(&self, entry: &SessionEntry) -> Option<ClientRow> {
        let name = ClientName::from(&entry.client_id);
        let is_prefix = |prefix: &String| name.client_id().starts_with(prefix.as_str());
        if !self.client_id_prefix.as_ref().is_none_or(is_prefix) {
            return None;
        }
        let (connection, disconnected_since) = match entry.presence() {
            Presence::Connected(connection) => (Some(connection), None),
            Presence::Disconnected(since) => (None, since),
        };
        let address = connection.as_ref().and_then(|connection| connection.address);
        let is_in = |net: &IpNet| address.is_some_and(|address| net.contains(&address.ip()));
        let is_connected = connection.is_some();
        if self.is_connected.is_some_and(|wanted| wanted != is_connected)
            || !self.addresses.as_ref().is_none_or(is_in)
            || (self.transport.is_some()
                && self.transport != connection.as_ref().map(|connection| connection.transport))
        {
            return None;
        }
        let identity = entry.identity();
        let user = identity.as_ref().and_then(|identity| identity.user());
        if self.user.is_some() && self.user.as_deref() != user {
            return None;
        }
        let (queued, (subscriptions, inflight)) = (entry.queue.usage(), entry.counts());
        Some(ClientRow {
            user: user.map(Into::into),
            connection,
            disconnected_since,
            expiry: entry.expiry(),
            subscriptions,
            queued_messages: queued.messages(),
            queued_bytes: queued.bytes(),
            inflight,
            dropped: entry.dropped(),
            name,
        })
    }
}

/// Page of the clients that match a query.
pub(super) async fn list(
    registry: &Registry,
    query: &ClientQuery,
    cursor: Option<ClientCursor>,
    limit: usize,
) -> Page<ClientRow, ClientCursor> {
    let limit = Page::<ClientRow, ClientCursor>::rows_of(limit);
    let (mut rows, mut after) = (Vec::new(), cursor.map(|ClientCursor(key)| SessionKey(key)));
    let mut visited = 0;
    loop {
        let piece = registry.piece(after, ENTRIES_IN_PIECE);
        let is_last = piece.len() < ENTRIES_IN_PIECE;
        for entry in &piece {
            after = Some(entry.key);
            visited += 1;
            rows.extend(query.row(entry));
            if rows.len() == limit {
                return Page { rows, next: Some(ClientCursor(entry.key.0)), visited };
            }
        }
        if is_last {
            return Page { rows, next: None, visited };
        }
        if visited >= ENTRIES_IN_PAGE {
            return Page { rows, next: after.map(|SessionKey(key)| ClientCursor(key)), visited };
        }
        yield_now().await;
    }
}

/// Row with its place in an order.
struct Ranked {
    /// Bytes and messages that wait, and messages that were dropped; of equals the older session is first.
    rank: (usize, u32, u64, Reverse<SessionKey>),
    row: ClientRow,
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank)
    }
}

/// Clients for which most bytes are queued, the most first, of all that match a query: one page without another.
pub(super) async fn most_queued(
    registry: &Registry,
    query: &ClientQuery,
    limit: usize,
) -> Page<ClientRow, ClientCursor> {
    let limit = Page::<ClientRow, ClientCursor>::rows_of(limit);
    // The last one of the order is on top.
    let mut most = BinaryHeap::with_capacity(limit + 1);
    let (mut after, mut visited) = (None, 0);
    loop {
        let piece = registry.piece(after, ENTRIES_IN_PIECE);
        for entry in &piece {
            after = Some(entry.key);
            let Some(row) = query.row(entry) else { continue };
            let rank = (row.queued_bytes, row.inflight, row.dropped, Reverse(entry.key));
            most.push(Reverse(Ranked { rank, row }));
            if most.len() > limit {
                most.pop();
            }
        }
        visited += piece.len();
        if piece.len() < ENTRIES_IN_PIECE {
            break;
        }
        yield_now().await;
    }
    // `Reverse` sorts the most first.
    let rows = most.into_sorted_vec().into_iter().map(|Reverse(ranked)| ranked.row).collect();
    Page { rows, next: None, visited }
}

/// Details of one client.
///
/// # Errors
/// The client has no session, or its connection does not answer.
pub(super) async fn detail(core: &Core, name: &ClientName) -> Result<ClientDetail, ViewError> {
    let ask_owners = async {
        loop {
            match detail_of_owner(core, name).await {
                // The session is handed over, parked or ended.
                Err(ViewError::Vanished | ViewError::NotConnected) => sleep(HANDOVER_PAUSE).await,
                answer => return answer,
            }
        }
    };
    timeout(ANSWER_TIMEOUT, ask_owners).await.unwrap_or(Err(ViewError::NoAnswer))
}

async fn detail_of_owner(core: &Core, name: &ClientName) -> Result<ClientDetail, ViewError> {
    let entry = core.sessions.registry.find(name.session_id()).ok_or(ViewError::NotFound)?;
    let pending = pending(&entry).await?;
    let subscriptions = subscriptions::piece_of(&entry, None).await?;
    let row = ClientQuery::default().row(&entry).ok_or(ViewError::NotFound)?;
    Ok(ClientDetail { row, pending, subscriptions })
}

async fn pending(entry: &Arc<SessionEntry>) -> Result<PendingDetail, ViewError> {
    if let SessionOwner::Parked(parked) = &*entry.owner() {
        let (will, retained) = (parked.will.as_ref(), parked.pending_retained.len());
        return Ok(PendingDetail::new(&parked.session, will, retained, false));
    }
    ask(entry, Inquiry::Pending).await
}
