//! Events of a connection: ready streams, incoming streams, the end, and the peer's change of address.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use futures_util::stream::{Stream, unfold};
use futures_util::task::AtomicWaker;
use noq::{Connection, ConnectionError, Path, PathId, RecvStream, SendStream};
use tokio::time::Instant;

use crate::quic::runtime::Failures;
use crate::transport::canonical;

// === Wakers ===

/// Reason for which the task of a link is woken. A hint: the object has to be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Incoming streams, the end of the handshake, credit for new streams.
    Connection,
    /// Bytes, FIN or RESET_STREAM.
    Readable(StreamKey),
    /// Room for a write that was refused.
    Writable(StreamKey),
    /// STOP_SENDING.
    Stopped(StreamKey),
    /// All bytes are acknowledged. The number identifies the watch.
    Acknowledged(u32),
}

/// Events that the wakers of one link have signalled. The task is woken once for any number of them.
#[derive(Debug, Default)]
pub(super) struct EventWakers {
    pending: Mutex<Vec<Arc<EventWaker>>>,
    task: AtomicWaker,
}

impl EventWakers {
    /// Waker that signals `event`.
    pub(super) fn waker(self: &Arc<Self>, event: Event) -> Waker {
        let wakers = Arc::downgrade(self);
        Waker::from(Arc::new(EventWaker { wakers, event, is_pending: AtomicBool::new(false) }))
    }

    /// Registers the task that is to be woken.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    /// Moves the pending events to the end of `events`, each once.
    pub(super) fn take(&self, events: &mut Vec<Event>) {
        events.extend(self.pending().drain(..).map(|waker| {
            // Before the poll that the event leads to: a wake during that poll counts again.
            waker.is_pending.store(false, Ordering::Release);
            waker.event
        }));
    }

    fn pending(&self) -> MutexGuard<'_, Vec<Arc<EventWaker>>> {
        // Poisoning is harmless: the list is only pushed to and drained.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The library may keep a waker for any time, so it holds no memory of the link.
#[derive(Debug)]
struct EventWaker {
    wakers: Weak<EventWakers>,
    event: Event,
    is_pending: AtomicBool,
}

impl Wake for EventWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_pending.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(wakers) = self.wakers.upgrade() else { return };
        wakers.pending().push(Arc::clone(self));
        wakers.task.wake();
    }
}

// === Events of the connection as a whole ===

pub(super) enum ConnectionEvent {
    Bidi(SendStream, RecvStream),
    Uni(RecvStream),
    /// The library panicked in some connection of this endpoint.
    Failure,
    /// The last event.
    Lost(ConnectionError),
}

/// Resolves when the handshake is confirmed.
pub(in crate::quic) type Confirmed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Source of [`ConnectionEvent`]s.
pub(super) struct ConnectionEvents {
    /// Waker of [`Event::Connection`].
    pub(super) waker: Waker,
    /// [`Event::Connection`] was signalled since the last poll that found nothing.
    pub(super) is_ready: bool,
    confirmed: Option<Confirmed>,
    /// One allocation for the life of the link; a task would cost more.
    incoming: Option<Pin<Box<dyn Stream<Item = ConnectionEvent> + Send>>>,
}

impl ConnectionEvents {
    pub(super) fn new(
        connection: Connection,
        confirmed: Option<Confirmed>,
        failures: Failures,
        waker: Waker,
    ) -> Self {
        let state = (Some(connection), Some(failures));
        let incoming = Box::pin(unfold(state, |(connection, mut failures)| async move {
            let connection = connection?;
            let event = loop {
                tokio::select! {
                    biased;
                    stream = connection.accept_bi() => break match stream {
                        Ok((send, recv)) => ConnectionEvent::Bidi(send, recv),
                        Err(error) => ConnectionEvent::Lost(error),
                    },
                    stream = connection.accept_uni() => break match stream {
                        Ok(recv) => ConnectionEvent::Uni(recv),
                        Err(error) => ConnectionEvent::Lost(error),
                    },
                    has_changed = changed(&mut failures) => if has_changed {
                        break ConnectionEvent::Failure;
                    },
                }
            };
            let next = if matches!(event, ConnectionEvent::Lost(_)) { None } else { Some(connection) };
            Some((event, (next, failures)))
        }));
        Self { waker, is_ready: true, confirmed, incoming: Some(incoming) }
    }

    /// True until the handshake is confirmed.
    pub(super) fn is_early(&self) -> bool {
        self.confirmed.is_some()
    }

    /// True once, when the handshake is confirmed.
    pub(super) fn poll_confirmed(&mut self) -> bool {
        let mut cx = Context::from_waker(&self.waker);
        let is_confirmed = self.is_ready
            && self.confirmed.as_mut().is_some_and(|confirmed| confirmed.as_mut().poll(&mut cx).is_ready());
        if is_confirmed {
            self.confirmed = None;
        }
        is_confirmed
    }

    pub(super) fn poll_next(&mut self) -> Option<ConnectionEvent> {
        if !self.is_ready {
            return None;
        }
        let mut cx = Context::from_waker(&self.waker);
        match self.incoming.as_mut().map(|incoming| incoming.as_mut().poll_next(&mut cx)) {
            Some(Poll::Ready(Some(event))) => return Some(event),
            Some(Poll::Ready(None)) => self.incoming = None,
            Some(Poll::Pending) | None => {}
        }
        self.is_ready = false;
        None
    }
}

/// True for a change. When the sender is gone there will be none, and the receiver is dropped.
async fn changed(receiver: &mut Option<Failures>) -> bool {
    let Some(open) = receiver else { return std::future::pending().await };
    let has_changed = open.changed().await.is_ok();
    if !has_changed {
        *receiver = None;
    }
    has_changed
}

// === Migration of the peer ===

/// Time for which a new address is polled for its validation.
const VALIDATION_LIMIT: Duration = Duration::from_secs(3);

/// Shortest time between two such polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Watches a client's address, which may change while its connection goes on. [BQ-70]
pub(super) struct PathMigration {
    path: Path,
    known: SocketAddr,
    /// PATH_RESPONSE frames up to the last change.
    responses: u64,
    /// Time since which an address is in use that is not validated.
    unvalidated: Option<Instant>,
}

impl PathMigration {
    pub(super) fn new(connection: &Connection, known: SocketAddr) -> Option<Self> {
        let path = connection.path(PathId::ZERO)?;
        Some(Self { path, known, responses: 0, unvalidated: None })
    }

    /// The peer's new address, once.
    ///
    /// The library uses a new address at once (and sends little there) and does not tell when it has validated it. A
    /// PATH_RESPONSE is the sign: the library asks for one after a change only.
    pub(super) fn take_new_address(&mut self) -> Option<SocketAddr> {
        let address = canonical(self.path.remote_address().ok()?);
        if address == self.known {
            self.unvalidated = None;
            return None;
        }
        let responses = self.path.stats().frame_rx.path_response;
        if responses == self.responses {
            self.unvalidated.get_or_insert_with(Instant::now);
            return None;
        }
        (self.known, self.responses, self.unvalidated) = (address, responses, None);
        Some(address)
    }

    /// Time of the next poll; the validation itself wakes no task.
    pub(super) fn next_poll(&self) -> Option<Instant> {
        let now = Instant::now();
        (now < self.unvalidated? + VALIDATION_LIMIT).then(|| now + self.path.stats().rtt.max(POLL_INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waker_signals_its_event_once_until_it_is_taken() {
        let wakers = Arc::new(EventWakers::default());
        let first = wakers.waker(Event::Readable(StreamKey::bidi(1)));
        let second = wakers.waker(Event::Writable(StreamKey::bidi(2)));
        for _ in 0..3 {
            first.wake_by_ref();
            second.wake_by_ref();
        }
        let mut events = Vec::new();
        wakers.take(&mut events);
        assert_eq!(events, [Event::Readable(StreamKey::bidi(1)), Event::Writable(StreamKey::bidi(2))]);
        second.wake_by_ref();
        events.clear();
        wakers.take(&mut events);
        assert_eq!(events, [Event::Writable(StreamKey::bidi(2))]);
    }

    #[test]
    fn a_pending_waker_keeps_no_memory_of_the_link() {
        let wakers = Arc::new(EventWakers::default());
        let waker = wakers.waker(Event::Connection);
        waker.wake_by_ref();
        let weak = Arc::downgrade(&wakers);
        drop(wakers);
        assert!(weak.upgrade().is_none());
        waker.wake();
    }
}
