//! What comes from a connection as a whole: new streams, its end, and news of a panic.

use std::pin::Pin;

use futures_util::stream::{Stream, unfold};
use noq::{Connection, ConnectionError, RecvStream, SendStream};

use crate::quic::shield::Failures;

pub(super) enum Arrival {
    Bidi(SendStream, RecvStream),
    Uni(RecvStream),
    /// The library panicked in some connection of this endpoint.
    Failure,
    /// The last arrival.
    Lost(ConnectionError),
}

/// One allocation for the life of the link; a task would cost more.
pub(super) type Arrivals = Pin<Box<dyn Stream<Item = Arrival> + Send>>;

pub(super) fn arrivals(connection: Connection, failures: Failures) -> Arrivals {
    Box::pin(unfold((Some(connection), Some(failures)), |(connection, mut failures)| async move {
        let connection = connection?;
        let arrival = loop {
            tokio::select! {
                biased;
                stream = connection.accept_bi() => break match stream {
                    Ok((send, recv)) => Arrival::Bidi(send, recv),
                    Err(error) => Arrival::Lost(error),
                },
                stream = connection.accept_uni() => break match stream {
                    Ok(recv) => Arrival::Uni(recv),
                    Err(error) => Arrival::Lost(error),
                },
                more = next_failure(&mut failures) => {
                    if more {
                        break Arrival::Failure;
                    }
                    // The endpoint is gone: nothing can fail in it any more.
                    failures = None;
                }
            }
        };
        let next = if matches!(arrival, Arrival::Lost(_)) { None } else { Some(connection) };
        Some((arrival, (next, failures)))
    }))
}

async fn next_failure(failures: &mut Option<Failures>) -> bool {
    match failures {
        Some(failures) => failures.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}
