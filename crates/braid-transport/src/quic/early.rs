//! Early data (0-RTT), and its confirmation.

use std::future::pending;
use std::io;
use std::time::Duration;

use noq::{Connection, ReadError, WriteError, ZeroRttAccepted};
use tokio::time::timeout;

use super::codes::{self, code};
use super::connection::Confirmed;
use super::panic_guard::{Broken, PanicGuard};

/// A server's: resolves when the client has finished the handshake, and drops `held` then. Never if
/// the connection is lost before; its streams tell.
pub(super) fn confirmed_by_client(connection: Connection, held: impl Send + 'static) -> Confirmed {
    guarded(async move {
        let outcome = connection.handshake_confirmed().await;
        drop(held);
        outcome.is_ok()
    })
}

/// A client's: resolves when the server has taken the early data. Never if it does not, of which
/// the streams tell; nor within `limit`, after which the connection is closed.
///
/// `silence` is called at the end if the server has never said a word.
pub(super) fn taken_by_server(
    accepted: ZeroRttAccepted,
    connection: Connection,
    limit: Duration,
    silence: impl FnOnce() + Send + 'static,
) -> Confirmed {
    let end = End { connection: connection.clone(), silence: Some(silence) };
    guarded(async move {
        let _end = end;
        timeout(limit, accepted).await.unwrap_or_else(|_elapsed| {
            connection.close(code(codes::CLOSE_ABNORMAL), b"no answer");
            false
        })
    })
}

/// Calls `silence` at the end of the wait for the server.
struct End<F: FnOnce()> {
    connection: Connection,
    silence: Option<F>,
}

impl<F: FnOnce()> Drop for End<F> {
    fn drop(&mut self) {
        if let Some(silence) = self.silence.take()
            && self.connection.stats().udp_rx.datagrams == 0
        {
            silence();
        }
    }
}

fn guarded(confirmed: impl Future<Output = bool> + Send + 'static) -> Confirmed {
    let confirmed = PanicGuard::new(confirmed);
    Box::pin(async move {
        match confirmed.await {
            Ok(true) => {}
            Ok(false) | Err(Broken) => pending().await,
        }
    })
}

/// Whether a link that was made with [`QuicOptions::zero_rtt`](super::QuicOptions::zero_rtt) ended
/// because the server did not take its early data. Nothing that was written on it has reached the
/// server: connect again at once, without that option. [BQ-62]
#[must_use]
pub fn is_early_data_rejected(error: &io::Error) -> bool {
    let Some(cause) = error.get_ref() else { return false };
    matches!(cause.downcast_ref(), Some(WriteError::ZeroRttRejected))
        || matches!(cause.downcast_ref(), Some(ReadError::ZeroRttRejected))
}
