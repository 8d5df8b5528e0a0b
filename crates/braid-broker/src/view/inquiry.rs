//! Questions that the task of a connection answers.

use std::time::Duration;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;
use thiserror::Error;
use tokio::sync::oneshot;

use super::connection::PendingDetail;
use super::streams::ConnectionReport;

/// Time that a view waits for the task of a connection. It answers within microseconds, unless it is waiting for an
/// authenticator.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Question to the task of a connection, with the channel for its answer.
#[derive(Debug)]
pub(crate) enum Inquiry {
    /// Parts of the session that only its owner knows.
    Pending(oneshot::Sender<PendingDetail>),
    /// Streams and path.
    Streams(oneshot::Sender<Box<ConnectionReport>>),
    /// Subscriptions behind a filter and stream, as many as a piece has.
    Subscriptions(Option<(TopicFilter, StreamKey)>, oneshot::Sender<Vec<(TopicFilter, Subscription)>>),
}

/// Reason why there is no answer about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ViewError {
    /// The client has no session.
    #[error("the client has no session")]
    NotFound,
    /// The client is not connected.
    #[error("the client is not connected")]
    NotConnected,
    /// The connection ended before it answered.
    #[error("the connection of the client ended before it answered")]
    Vanished,
    /// The task of the connection is busy, as with a slow authenticator.
    #[error("the connection of the client did not answer within {} s; ask again", ANSWER_TIMEOUT.as_secs())]
    NoAnswer,
    /// Too many questions to this connection are open.
    #[error("too many questions about the client are open; ask again")]
    Busy,
}
