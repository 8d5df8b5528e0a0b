//! One task per connection: it moves bytes between the link and the protocol machine, and messages between the
//! machine and everybody else.
//!
//! A turn of the task goes: signals, read, events (messages are dispatched as a batch, acknowledgements become
//! sendable), deliveries, write. So acknowledgements and deliveries ride in one write, and however much one
//! read brought, each subscriber is woken once.

mod durable;
mod events;
mod held;
mod pace;
mod pressure;
mod rank;
mod read;
mod replay;
mod scratch;
mod send;
mod streams;
mod subscribe;
mod unread;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_proto::connection::{Cause, Server};
use braid_proto::packet::{Connect, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::quic::codes::{CLOSE_ABNORMAL, CLOSE_NORMAL};
use braid_transport::{Close, Incoming, Link};
use tokio::time::Sleep;

use crate::auth::ClientAccess;
use crate::config::EarlyPublishConfig;
use crate::core::Core;
use crate::persist::DurableProgress;
use crate::queue::backpressure::AckRttEstimator;
use crate::queue::egress::EgressQueue;
use crate::queue::session_queue::Signal;
use crate::retained::RetainedCursor;
use crate::routing::RouteCache;
use crate::session_entry::{ConnectionId, SessionEntry};

/// What a message is taken to lead to before one has shown it.
const FIRST_FAN_OUT: usize = 64;

/// Rounds of one turn, before others get theirs.
const ROUNDS: usize = 4;

/// The longest that a closing connection of one stream may take for its last bytes.
const FAREWELL: Duration = Duration::from_secs(5);

/// The same for one of many streams, up to CONNECTION_CLOSE: the peer has it within 3 seconds. [BQ-41]
const FAREWELL_TO_STREAMS: Duration = Duration::from_millis(2500);

/// The part of it in which the last bytes wait for room: in the rest is STOP_SENDING, which says why even where
/// DISCONNECT cannot.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// Serves one connection from its handshake to its end. A stranger that has said no CONNECT when the broker stops is
/// left at once. With a `refusal` it is told only that.
pub(crate) async fn serve(core: Arc<Core>, incoming: Incoming, refusal: Option<ReasonCode>) {
    let accepted = now();
    let from = incoming.peer_address();
    // Boxed: the handshake's size must not stay with a connection that is idle later.
    let Some(link) = Box::pin(shake_hands(&core, incoming)).await else { return };
    tracing::trace!(?from, transport = %link.peer().transport, "link up");
    Driver::new(core, link, accepted, refusal).run().await;
}

async fn shake_hands(core: &Core, incoming: Incoming) -> Option<Link> {
    let limit = Duration::from_secs(core.config.limits.connect_timeout_secs);
    let from = incoming.peer_address().map(tracing::field::display);
    let handshake = tokio::time::timeout(limit, incoming.handshake());
    let result = tokio::select! {
        result = handshake => result,
        () = core.lifecycle.stopped() => return None,
    };
    match result {
        Ok(Ok(link)) => return Some(link),
        Ok(Err(error)) => tracing::info!(from, %error, "handshake failed"),
        Err(_) => tracing::info!(from, "handshake took too long"),
    }
    None
}

pub(super) struct Driver {
    core: Arc<Core>,
    connection: ConnectionId,
    link: Link,
    server: Server,
    /// The session's place, once a CONNECT was accepted.
    entry: Option<Arc<SessionEntry>>,
    /// Identity of the client, and what it may do, once it was authenticated.
    access: ClientAccess,
    /// Taken from the mailbox, not sent yet.
    egress: EgressQueue,
    /// Streams that have something to read, which the last look at the link did not want.
    refused: Vec<StreamKey>,
    /// While there are such: what comes on them.
    unread: Option<unread::Unread>,
    /// What data streams need; `None` where there are none.
    streams: Option<Box<streams::Streams>>,
    routes: RouteCache,
    /// Retained messages that are still pending.
    replays: VecDeque<RetainedCursor>,
    /// The delayed Will of a session whose new connection was refused.
    former_will: Option<Will>,
    /// How many deliveries each message of the last batch led to.
    fan_out: usize,
    /// Why its CONNECT is refused whatever it says.
    refusal: Option<ReasonCode>,
    /// How fast the client may publish, if that is limited.
    pace: Option<Box<pace::Pace>>,
    /// What it may bring while the broker holds too much.
    pressure: pressure::Pressure,
    /// Acknowledgements and streams that wait for a receiver.
    held: Option<held::Held>,
    /// Commits that acknowledgements wait for.
    unsettled: VecDeque<durable::PendingCommit>,
    /// Of a session that outlives its connection: how far its deliveries are.
    progress: Option<Box<DurableProgress>>,
    /// How quickly the client answers.
    ack_rtt: AckRttEstimator,
    /// Of an early link: when the handshake must be confirmed.
    confirm_by: Option<Instant>,
    alarm: Alarm,
    link_ended: bool,
    /// The broker closed the connection and told the peer why.
    explains: bool,
    /// How the link is closed.
    close: Close,
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
    fn new(core: Arc<Core>, link: Link, accepted: Instant, refusal: Option<ReasonCode>) -> Self {
        let mut server = Server::new(core.server_options.clone(), accepted);
        if link.is_early() {
            server.set_early(); // [BQ-61]
        }
        let time = Duration::from_secs(core.config.limits.connect_timeout_secs);
        let confirm_by = link.is_early().then(|| accepted + time);
        let streams = link.is_multi().then(|| Box::new(streams::Streams::new(accepted)));
        Self {
            connection: core.sessions.registry.next_connection(),
            link,
            server,
            entry: None,
            access: ClientAccess::default(),
            egress: EgressQueue::default(),
            refused: Vec::new(),
            unread: None,
            streams,
            routes: RouteCache::default(),
            replays: VecDeque::new(),
            former_will: None,
            fan_out: FIRST_FAN_OUT,
            refusal,
            pace: pace::Pace::new(&core.config.limits, accepted),
            pressure: pressure::Pressure::default(),
            held: None,
            unsettled: VecDeque::new(),
            progress: None,
            ack_rtt: AckRttEstimator::default(),
            confirm_by,
            alarm: Alarm::default(),
            link_ended: false,
            explains: false,
            close: Close { code: CLOSE_NORMAL, stop: None },
            core,
        }
    }

    async fn run(mut self) {
        // Boxed: it happens once, and its size must not stay with an idle connection.
        if let Some(connect) = Box::pin(self.await_connect()).await {
            Box::pin(self.decide(*connect)).await;
            // A second CONNECT is a violation: what ends this is the end of the connection.
            poll_fn(|context| self.poll(context)).await;
        }
        // The transport keeps to this, whatever becomes of this task. [BQ-41]
        self.link.close_by(now() + FAREWELL_TO_STREAMS);
        // Boxed for the same reason.
        let _ = tokio::time::timeout(FAREWELL, Box::pin(self.say_goodbye())).await;
    }

    /// The CONNECT of a stranger; `None` when there will be none.
    async fn await_connect(&mut self) -> Option<Box<Connect>> {
        let core = self.core.clone();
        tokio::select! {
            turn = poll_fn(|context| self.poll(context)) => match turn {
                Turn::Decide(connect) => Some(connect),
                Turn::Over => None,
            },
            () = core.lifecycle.stopped() => {
                self.end_link(None);
                None
            }
        }
    }

    /// Writes the last bytes, ends the link and, if the peer is to learn why, waits until it has ended it too:
    /// a TCP socket that is closed with unread bytes takes back what it has not delivered yet.
    async fn say_goodbye(&mut self) {
        let patience = if self.link.is_multi() { LAST_WORDS } else { FAREWELL };
        let last_words = poll_fn(|context| {
            self.poll_barriers(context);
            self.poll_write(context);
            if self.link_ended || self.server.unwritten() == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        let _ = tokio::time::timeout(patience, last_words).await;
        if self.link_ended && !self.link.is_multi() {
            return;
        }
        let close = self.close;
        let closed = poll_fn(|context| self.link.poll_close(context, close)).await; // [BQ-40], [BQ-41]
        if closed.is_ok() && self.explains && !self.link.is_multi() {
            poll_fn(|context| self.poll_discard(context)).await;
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        for _ in 0..ROUNDS {
            self.poll_queue(context);
            let has_read = self.poll_read(context);
            if let Some(connect) = self.drain_events() {
                return Poll::Ready(Turn::Decide(connect));
            }
            self.end_pace_turn();
            self.count_partial();
            self.poll_unsettled(context);
            self.poll_held(context);
            self.deliver();
            let has_replayed = self.replay();
            self.commit_progress();
            self.poll_barriers(context);
            let has_written = self.poll_write(context);
            self.note_holdings();
            // What came before a DISCONNECT is dispatched, in as many turns as that takes.
            if self.server.is_closed() && !self.server.has_events() {
                self.release();
                return Poll::Ready(Turn::Over);
            }
            // What kept from reading may be gone by now, and nothing else would wake this task.
            let may_go_on = self.refused.iter().any(|stream| self.may_read(*stream));
            let has_changed = has_read || has_written || has_replayed || may_go_on;
            if !has_changed && !self.server.has_events() && self.poll_alarm(context).is_pending() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_queue(&mut self, context: &Context<'_>) {
        let Some(entry) = &self.entry else { return };
        let limits = self.core.queues.policy.limits;
        let server = &self.server;
        let resolve = |stream| server.resolve(stream);
        let signal = entry.queue.poll_take(&mut self.egress, resolve, self.ack_rtt, limits, context);
        self.trim();
        match signal {
            Some(Signal::TakeOver) => self.server.disconnect(ReasonCode::SessionTakenOver), // [MQTT-3.1.4-3]
            Some(Signal::Close(reason)) => self.server.disconnect(reason),
            None => {}
        }
    }

    /// Evicts what exceeds the limits of the egress queue.
    fn trim(&mut self) {
        let evicted = self.egress.trim(&self.core.queues.policy);
        let dropped = evicted.messages();
        evicted.lsns.into_iter().for_each(|lsn| self.note_dropped(Some(lsn)));
        if let Some(entry) = self.entry.as_ref().filter(|_| dropped > 0) {
            let limits = self.core.queues.policy.limits;
            let log = entry.queue.note_trimmed(&mut self.egress, dropped, limits, now());
            self.core.queues.note_trimmed(&entry.client_id, dropped, log);
        }
    }

    /// A link that fails is a connection that is lost. [MQTT3-4.8.0-2]
    fn end_link(&mut self, error: Option<std::io::Error>) {
        if let Some(error) = error {
            tracing::debug!(peer = self.peer_name(), %error, "link failed");
        }
        self.link_ended = true;
        self.server.handle_link_closed();
    }

    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.watch_unread();
        if self.poll_relief(context) {
            return Poll::Ready(());
        }
        let held =
            [self.held_until(), self.next_opening(), self.next_look(), self.paid_at(), self.pause_ends()];
        let times = [self.server.poll_timeout(), self.confirm_by].into_iter().chain(held);
        let Some(at) = times.flatten().min() else { return Poll::Pending };
        if self.alarm.poll(at, context).is_pending() {
            return Poll::Pending;
        }
        let now = now();
        self.look_for_unread(now);
        self.reset_keep_alive(now);
        self.server.handle_timeout(now);
        self.admit_streams();
        if self.confirm_by.is_some_and(|by| by <= now) {
            self.confirm_by = None;
            tracing::info!(peer = self.peer_name(), "early data, and nobody who finishes the handshake");
            self.end_link(None);
        }
        Poll::Ready(())
    }

    /// Gives the session back as soon as the connection is closed: whoever takes it over does not wait for the
    /// last bytes of this one.
    fn release(&mut self) {
        let Some(mut end) = self.server.take_end() else { return };
        let accepts_early = self.core.config.streams.early_publish == EarlyPublishConfig::Accept;
        if self.link.is_early() && !accepts_early {
            end.will = None; // A PUBLISH would have waited for the confirmation too. [BQ-61]
        }
        // Of a refused connection nothing is published, and nothing that was to be is forgotten.
        end.will = end.will.or(self.former_will.take());
        let is_our_choice = matches!(end.cause, Cause::Violation(_) | Cause::Closed(_) | Cause::Refused(_));
        self.explains = is_our_choice && self.server.version().is_some();
        self.close = how_to_close(end.cause);
        let client = self.entry.as_ref().map(|entry| entry.client_id.as_str());
        if let Cause::Violation(violation) = end.cause {
            tracing::info!(client, peer = self.peer_name(), cause = %violation, "connection closed");
        } else {
            tracing::debug!(client, peer = self.peer_name(), cause = %end.cause, "connection closed");
        }
        if let Some(entry) = self.entry.take() {
            self.core.statistics.client_left();
            entry.set_holdings(0, 0);
            let pending_retained = std::mem::take(&mut self.replays).into();
            self.core.sessions.release(&entry, self.connection, end, self.egress.drain(), pending_retained);
        }
    }

    /// For the log.
    fn peer_name(&self) -> String {
        let peer = self.link.peer();
        peer.address.map_or_else(|| peer.transport.to_string(), |address| address.to_string())
    }
}

/// What the transport tells the peer of the end of a connection. [BQ-40], [BQ-41]
fn how_to_close(cause: Cause) -> Close {
    let (code, stop) = match cause {
        Cause::Disconnected(_) => (CLOSE_NORMAL, None),
        Cause::Closed(reason) | Cause::Refused(reason) => (CLOSE_NORMAL, Some(reason)),
        Cause::Violation(violation) => (CLOSE_ABNORMAL, Some(violation.reason())),
        Cause::Lost => (CLOSE_ABNORMAL, None),
    };
    Close { code, stop: stop.map(ReasonCode::value) }
}

impl Drop for Driver {
    /// A connection that is dropped in the middle, because the runtime stops, loses its link like any other.
    fn drop(&mut self) {
        self.server.handle_link_closed();
        self.release();
        self.forget_partial();
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
