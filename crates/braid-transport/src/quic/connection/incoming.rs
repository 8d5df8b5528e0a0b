//! What comes from a connection as a whole: new streams, its end, and news of a panic.

use std::pin::Pin;

use futures_util::stream::{Stream, unfold};
use noq::{Connection, ConnectionError, RecvStream, SendStream};

use crate::quic::runtime::Failures;

pub(super) enum IncomingEvent {
    Bidi(SendStream, RecvStream),
    Uni(RecvStream),
    /// The library panicked in some connection of this endpoint.
    Failure,
    /// The last arrival.
    Lost(ConnectionError),
}

/// One allocation for the life of the link; a task would cost more.
pub(super) type IncomingEvents = Pin<Box<dyn Stream<Item = IncomingEvent> + Send>>;

pub(super) fn incoming(connection: Connection, failures: Failures) -> IncomingEvents {
    Box::pin(unfold((Some(connection), Some(failures)), |(connection, mut failures)| async move {
        let connection = connection?;
        let event = loop {
            tokio::select! {
                biased;
                stream = connection.accept_bi() => break match stream {
                    Ok((send, recv)) => IncomingEvent::Bidi(send, recv),
                    Err(error) => IncomingEvent::Lost(error),
                },
                stream = connection.accept_uni() => break match stream {
                    Ok(recv) => IncomingEvent::Uni(recv),
                    Err(error) => IncomingEvent::Lost(error),
                },
                more = next_failure(&mut failures) => {
                    if more {
                        break IncomingEvent::Failure;
                    }
                    // The endpoint is gone: nothing can fail in it any more.
                    failures = None;
                }
            }
        };
        let next = if matches!(event, IncomingEvent::Lost(_)) { None } else { Some(connection) };
        Some((event, (next, failures)))
    }))
}

async fn next_failure(failures: &mut Option<Failures>) -> bool {
    match failures {
        Some(failures) => failures.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}
