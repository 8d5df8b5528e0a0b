//! Views of a running broker for operators: sessions, streams, subscriptions, retained messages, listeners, metrics,
//! events and published messages.
//!
//! A view that is not asked for costs nothing. Lists walk the registry in pieces, as the search for expired messages
//! does: a lock of the message path is held for one piece or one queue. What only a connection's task knows is asked
//! for by an `Inquiry`, which the task answers at the start of its next turn.
//!
//! The views never change anything; commands are in `command.rs`.

mod answer;
mod clients;
mod connection;
mod events;
mod handle;
mod inquiry;
mod listeners;
mod messages;
mod metrics;
mod retained;
mod streams;
mod subscriptions;

pub use clients::{ClientCursor, ClientDetail, ClientQuery, ClientRow};
pub use connection::{ClientName, ConnectionSummary, PendingDetail, WillSummary};
pub use events::BrokerEvent;
pub use inquiry::ViewError;
pub use listeners::ListenerStatus;
pub use messages::{MessageTap, PublishedMessage, TappedMessages};
pub use metrics::{Metric, MetricKind, MetricUnit};
pub use retained::{RetainedQuery, RetainedRow};
pub use streams::{ConnectionReport, Held, LaneView, StreamView};
pub use subscriptions::{SubscriptionCursor, SubscriptionQuery, SubscriptionRow};

pub(crate) use events::Events;
pub(crate) use inquiry::Inquiry;
pub(crate) use listeners::ListenerState;
pub(crate) use messages::MessageTaps;
pub(crate) use subscriptions::copy_piece;

/// Entries that are visited before other tasks get their turn, and under one lock of the registry.
const ENTRIES_IN_PIECE: usize = 256;

/// Upper bound of the rows of a page.
const MAX_ROWS: usize = 1000;

/// Entries that are visited for a page, up to the end of a piece: a query that nothing matches costs no more.
const ENTRIES_IN_PAGE: usize = 4096;

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C> {
    /// Rows that match the query, at most as many as asked for, and at most 1,000.
    pub rows: Vec<T>,
    /// Position for the next page; `None` at the end. A page may have fewer rows than asked for, or none, and be
    /// followed by others: the entries that are visited for one are limited.
    pub next: Option<C>,
    /// Entries that were visited, whether they match or not.
    pub visited: usize,
}

impl<T, C> Page<T, C> {
    /// Rows of a page for which a caller asks for `limit`.
    fn rows_of(limit: usize) -> usize {
        limit.clamp(1, MAX_ROWS)
    }
}
