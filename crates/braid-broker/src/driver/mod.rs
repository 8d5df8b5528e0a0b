//! One task per connection: it moves bytes between the link and the protocol machine, and messages between the
//! machine and everybody else.
//!
//! A turn of the task goes: signals, read, events (messages are dispatched as a batch, acknowledgements become
//! sendable), deliveries, write. So acknowledgements and deliveries ride in one write, and however much one
//! read brought, each subscriber is woken once.

mod durable;
mod events;
mod held;
mod replay;
mod scratch;
mod subscribe;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use braid_proto::connection::{Cause, Sent, Server};
use braid_proto::message::Delivery;
use braid_proto::packet::{Connect, QoS};
use braid_proto::reason::ReasonCode;
use braid_transport::{ByteStream, Incoming, Link, Peer, Single};
use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::hub::Hub;
use crate::mailbox::Signal;
use crate::persist::DurableProgress;
use crate::routes::Routes;
use crate::slot::{ConnectionId, Slot};

/// Deliveries are encoded only up to here: what waits longer waits in the mailbox, where its order and its cap
/// are.
const OUTBOX_TARGET: usize = 64 * 1024;

/// A client that does not take its acknowledgements is not read any further. Large payloads do not count.
const OUTBOX_LIMIT: usize = 256 * 1024;

/// Slices of one vectored write.
const SLICES: usize = 16;

/// What a message is taken to lead to before one has shown it.
const FIRST_FAN_OUT: usize = 64;

/// Rounds of one turn, before others get theirs.
const ROUNDS: usize = 4;

/// The longest that a closing connection may take for its last bytes.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves one connection from its handshake to its end. A stranger that has said no CONNECT when the broker stops is
/// left at once.
pub(crate) async fn serve(hub: Arc<Hub>, incoming: Incoming) {
    let accepted = now();
    let from = incoming.peer_address();
    // Boxed: the handshake's size must not stay with a connection that is idle later.
    let Some(link) = Box::pin(shake_hands(&hub, incoming)).await else { return };
    let Link::Single(single) = link;
    tracing::trace!(?from, transport = %single.peer.transport, "link up");
    Driver::new(hub, single, accepted).run().await;
}

async fn shake_hands(hub: &Hub, incoming: Incoming) -> Option<Link> {
    let limit = Duration::from_secs(hub.config.limits.connect_timeout_secs);
    let from = incoming.peer_address().map(tracing::field::display);
    let handshake = tokio::time::timeout(limit, incoming.handshake());
    let result = tokio::select! {
        result = handshake => result,
        () = hub.stopped() => return None,
    };
    match result {
        Ok(Ok(link)) => return Some(link),
        Ok(Err(error)) => tracing::info!(from, %error, "handshake failed"),
        Err(_) => tracing::info!(from, "handshake took too long"),
    }
    None
}

pub(super) struct Driver {
    hub: Arc<Hub>,
    connection: ConnectionId,
    io: Box<dyn ByteStream>,
    peer: Peer,
    server: Server,
    /// The session's place, once a CONNECT was accepted.
    slot: Option<Arc<Slot>>,
    /// Taken from the mailbox, not sent yet.
    inbox: VecDeque<Delivery>,
    routes: Routes,
    /// Retained messages that are still owed.
    replays: VecDeque<replay::Replay>,
    /// How many deliveries each message of the last batch led to.
    fan_out: usize,
    /// Acknowledgements that wait for a receiver.
    held: Option<held::Held>,
    /// Commits that acknowledgements wait for.
    unsettled: VecDeque<durable::Unsettled>,
    /// Of a session that outlives its connection: how far its deliveries are.
    progress: Option<Box<DurableProgress>>,
    /// When a delivery was last sent.
    progress_at: Option<Instant>,
    alarm: Alarm,
    link_ended: bool,
    /// The broker closed the connection and told the peer why.
    explains: bool,
}

/// What a turn ends with, apart from waiting.
enum Turn {
    /// A CONNECT to decide about.
    Decide(Box<Connect>),
    /// The connection is closed; its last bytes may still have to be written.
    Over,
}

impl Driver {
    /// `accepted`: from then on the time for CONNECT runs.
    fn new(hub: Arc<Hub>, single: Single, accepted: Instant) -> Self {
        let server = Server::new(hub.server_options.clone(), accepted);
        Self {
            connection: hub.registry.next_connection(),
            io: single.io,
            peer: single.peer,
            server,
            slot: None,
            inbox: VecDeque::new(),
            routes: Routes::default(),
            replays: VecDeque::new(),
            fan_out: FIRST_FAN_OUT,
            held: None,
            unsettled: VecDeque::new(),
            progress: None,
            progress_at: None,
            alarm: Alarm::default(),
            link_ended: false,
            explains: false,
            hub,
        }
    }

    async fn run(mut self) {
        // Boxed: it happens once, and its size must not stay with an idle connection.
        if let Some(connect) = Box::pin(self.await_connect()).await {
            Box::pin(self.decide(*connect)).await;
            // A second CONNECT is a violation: what ends this is the end of the connection.
            poll_fn(|context| self.poll(context)).await;
        }
        // Boxed for the same reason.
        let _ = tokio::time::timeout(FAREWELL, Box::pin(self.say_goodbye())).await;
    }

    /// The CONNECT of a stranger; `None` when there will be none.
    async fn await_connect(&mut self) -> Option<Box<Connect>> {
        let hub = self.hub.clone();
        tokio::select! {
            turn = poll_fn(|context| self.poll(context)) => match turn {
                Turn::Decide(connect) => Some(connect),
                Turn::Over => None,
            },
            () = hub.stopped() => {
                self.end_link(None);
                None
            }
        }
    }

    /// Writes the last bytes, ends the link and, if the peer is to learn why, waits until it has ended it too:
    /// a TCP socket that is closed with unread bytes takes back what it has not delivered yet.
    async fn say_goodbye(&mut self) {
        poll_fn(|context| {
            self.poll_barriers(context);
            self.poll_write(context);
            if self.link_ended || self.is_written() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if self.link_ended {
            return;
        }
        let shutdown = poll_fn(|context| Pin::new(&mut self.io).poll_shutdown(context)).await;
        if shutdown.is_ok() && self.explains {
            poll_fn(|context| self.poll_discard(context)).await;
        }
    }

    /// Reads what nobody will look at, until the peer ends the link.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        scratch::with(|buffer| {
            loop {
                let mut buffer = ReadBuf::new(buffer);
                let result = ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer));
                if result.is_err() || buffer.filled().is_empty() {
                    return Poll::Ready(());
                }
            }
        })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        for _ in 0..ROUNDS {
            self.poll_mailbox(context);
            let could_read = self.may_read();
            let unwritten = self.outbox_len();
            let has_read = self.poll_read(context);
            if let Some(connect) = self.drain_events() {
                return Poll::Ready(Turn::Decide(connect));
            }
            self.poll_unsettled(context);
            self.poll_held(context);
            self.deliver();
            let has_replayed = self.replay();
            self.commit_progress(unwritten);
            self.poll_barriers(context);
            let has_written = self.poll_write(context);
            // What came before a DISCONNECT is dispatched, in as many turns as that takes.
            if self.server.is_closed() && !self.server.has_events() {
                self.release();
                return Poll::Ready(Turn::Over);
            }
            // What kept from reading may be gone by now, and nothing else would wake this task.
            let has_changed = has_read || has_written || has_replayed || !could_read && self.may_read();
            if !has_changed && !self.server.has_events() && self.poll_alarm(context).is_pending() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_mailbox(&mut self, context: &Context<'_>) {
        let Some(slot) = &self.slot else { return };
        match slot.mailbox.poll_take(&mut self.inbox, self.progress_at, self.hub.capacity, context) {
            Some(Signal::TakeOver) => self.server.disconnect(ReasonCode::SessionTakenOver), // [MQTT-3.1.4-3]
            Some(Signal::Close(reason)) => self.server.disconnect(reason),
            None => {}
        }
    }

    /// Whether more input can be dealt with.
    fn may_read(&mut self) -> bool {
        self.server.is_reading() && !self.server.has_events() && self.unwritten_packets() <= OUTBOX_LIMIT
    }

    /// One read; false when nothing was there.
    fn poll_read(&mut self, context: &mut Context<'_>) -> bool {
        if !self.may_read() {
            return false;
        }
        scratch::with(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            match Pin::new(&mut self.io).poll_read(context, &mut buffer) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.hub.statistics.read(buffer.filled().len() as u64);
                    self.server.handle_bytes(buffer.filled(), now());
                }
                Poll::Ready(result) => self.end_link(result.err()),
            }
            true
        })
    }

    /// A link that fails is a connection that is lost. [MQTT3-4.8.0-2]
    fn end_link(&mut self, error: Option<io::Error>) {
        if let Some(error) = error {
            tracing::debug!(peer = self.peer_name(), %error, "link failed");
        }
        self.link_ended = true;
        self.server.handle_link_closed();
    }

    /// Moves deliveries into the outbox as far as it, the peer and the mailbox go.
    fn deliver(&mut self) {
        if self.inbox.is_empty() {
            return;
        }
        let now = now();
        let (mut sent, mut dropped) = (0, 0);
        while self.outbox_len() < OUTBOX_TARGET {
            match self.inbox.front() {
                None => break,
                Some(next) if next.qos > QoS::AtMostOnce && !self.server.has_send_quota() => break,
                Some(_) => {}
            }
            let Some(next) = self.inbox.pop_front() else { break };
            let (stored, qos) = (next.stored, next.qos);
            match self.server.deliver(next, now) {
                Sent::Out(packet_id) => {
                    sent += 1;
                    if let (Some(place), Some(packet_id)) = (stored, packet_id) {
                        self.note_sent(place, qos, packet_id);
                    }
                }
                Sent::Expired | Sent::TooLarge => {
                    dropped += 1;
                    self.note_dropped(stored);
                }
                Sent::Blocked(delivery) => {
                    self.inbox.push_front(*delivery);
                    break;
                }
            }
        }
        if self.inbox.is_empty() && self.inbox.capacity() > 64 {
            self.inbox = VecDeque::new(); // Ten thousand receivers of one burst must not keep its memory.
        }
        if sent > 0 {
            self.progress_at = Some(now);
        }
        self.hub.statistics.sent(sent);
        self.hub.statistics.dropped(dropped);
    }

    /// Writes until the link takes no more; true when it took something.
    fn poll_write(&mut self, context: &mut Context<'_>) -> bool {
        let mut written = 0;
        let writable = self.progress.as_ref().and_then(|progress| progress.writable());
        while let Some(outbox) = self.server.outbox()
            && outbox.has_remaining()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = match writable {
                None => outbox.chunks_vectored(&mut slices),
                Some(writable) if writable > written => {
                    let chunk = outbox.chunk();
                    slices[0] = IoSlice::new(&chunk[..chunk.len().min(writable - written)]);
                    1
                }
                Some(_) => break,
            };
            match Pin::new(&mut self.io).poll_write_vectored(context, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.end_link(None);
                    return true;
                }
                Poll::Ready(Ok(taken)) => {
                    written += taken;
                    outbox.advance(taken);
                }
                Poll::Ready(Err(error)) => {
                    self.end_link(Some(error));
                    return true;
                }
            }
        }
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.io).poll_flush(context) {
            self.end_link(Some(error));
        }
        if let Some(progress) = &mut self.progress {
            progress.note_written(written);
        }
        self.hub.statistics.written(written as u64);
        written > 0
    }

    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let times = [self.server.poll_timeout(), self.held_until()];
        let Some(at) = times.into_iter().flatten().min() else { return Poll::Pending };
        if self.alarm.poll(at, context).is_pending() {
            return Poll::Pending;
        }
        self.server.handle_timeout(now());
        Poll::Ready(())
    }

    /// Gives the session back as soon as the connection is closed: whoever takes it over does not wait for the
    /// last bytes of this one.
    fn release(&mut self) {
        let Some(end) = self.server.take_end() else { return };
        let is_our_choice = matches!(end.cause, Cause::Violation(_) | Cause::Closed(_) | Cause::Refused(_));
        self.explains = is_our_choice && self.server.version().is_some();
        let client = self.slot.as_ref().map(|slot| slot.client_id.as_str());
        if let Cause::Violation(violation) = end.cause {
            tracing::info!(client, peer = self.peer_name(), cause = %violation, "connection closed");
        } else {
            tracing::debug!(client, peer = self.peer_name(), cause = %end.cause, "connection closed");
        }
        if let Some(slot) = self.slot.take() {
            self.hub.statistics.client_left();
            self.hub.release(&slot, self.connection, end, std::mem::take(&mut self.inbox));
        }
    }

    /// Without payloads by reference: a client that takes its time for a large message is read all the same, or its
    /// PINGREQ would not be heard.
    fn unwritten_packets(&mut self) -> usize {
        self.server.outbox().map_or(0, |outbox| outbox.packets_len())
    }

    fn outbox_len(&mut self) -> usize {
        self.server.outbox().map_or(0, |outbox| outbox.len())
    }

    /// For the log.
    fn peer_name(&self) -> String {
        self.peer.address.map_or_else(|| self.peer.transport.to_string(), |address| address.to_string())
    }

    fn is_written(&mut self) -> bool {
        self.outbox_len() == 0
    }
}

impl Drop for Driver {
    /// A connection that is dropped in the middle, because the runtime stops, loses its link like any other.
    fn drop(&mut self) {
        self.server.handle_link_closed();
        self.release();
    }
}

/// The time, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// One timer for all that a connection waits for.
#[derive(Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    fn poll(&mut self, at: Instant, context: &mut Context<'_>) -> Poll<()> {
        let at = tokio::time::Instant::from_std(at);
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(context)
    }
}
