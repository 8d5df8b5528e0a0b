//! Early data (0-RTT), and its confirmation.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::CloseReason;

/// Early data that is not confirmed.
#[derive(Debug)]
pub(super) enum Early {
    /// A server's: confirmed when the client has finished the handshake.
    Received,
    /// A client's: confirmed when the server has taken it.
    Sent(Wait),
}

impl Early {
    /// End of the wait for the confirmation, if it has one.
    pub(super) fn until(&self) -> Option<Instant> {
        match self {
            Self::Received => None,
            Self::Sent(wait) => Some(wait.until),
        }
    }
}

/// Wait of a client for the answer to its early data.
pub(super) struct Wait {
    /// End of the wait, at which the connection is closed.
    until: Instant,
    silence: Box<dyn FnOnce() + Send + Sync>,
}

impl Wait {
    /// `silence` is called at the end if the server has never said a word.
    pub(super) fn new(limit: Duration, silence: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { until: Instant::now() + limit, silence: Box::new(silence) }
    }

    /// Ends the wait. `received`: datagrams of the server.
    pub(super) fn end(self, received: u64) {
        if received == 0 {
            (self.silence)();
        }
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("until", &self.until).finish_non_exhaustive()
    }
}

/// Whether a link that was made with [`QuicOptions::zero_rtt`](super::QuicOptions::zero_rtt) ended
/// because the server did not take its early data. Nothing that was written on it has reached the
/// server: connect again at once, without that option. [BQ-62]
#[must_use]
pub fn is_early_data_rejected(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(CloseReason::EarlyDataRejected))
}
