//! Driver of one connection: the loop between its link, its protocol machine and its session queue.
//!
//! One task runs it per connection. A turn goes through numbered steps, see [`Driver::poll`]: signals, reads, events
//! (messages are dispatched as a batch), acknowledgements, deliveries, writes. Therefore acknowledgements and
//! deliveries leave together, and each subscriber is woken once for all that one read contained.
//!
//! The parts own their state and do not know the driver: [`ReadGate`] decides which stream is read, [`PublishIngress`]
//! dispatches messages and slows the publisher down while memory is short, [`AckPipeline`] releases acknowledgements,
//! [`EgressQueue`] holds the deliveries, [`delivery_sender`] and [`RetainedSender`] choose the next ones,
//! [`StreamScheduler`] orders the writes.

mod ack_pipeline;
mod bans;
mod close;
mod connect;
mod counted_load;
mod datagrams;
mod delivery_sender;
mod events;
mod io;
mod read_gate;
mod read_limits;
mod report;
mod retained_sender;
mod stream_scheduler;
mod subscribe;
#[cfg(test)]
mod turn_tests;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use braid_proto::connection::{Cause, Server};
use braid_proto::error::Violation;
use braid_proto::reason::ReasonCode;
use braid_proto::session::SessionExpiry;
use braid_transport::{Incoming, Link};
use tokio::time::Sleep;

use self::ack_pipeline::AckPipeline;
use self::close::{CLOSE_TIMEOUT, ConnectionClose, QUIC_CLOSE_TIMEOUT, flush_timeout};
use self::connect::{SessionBinding, peer_name, shake_hands};
use self::events::{PublishIngress, Question};
use self::read_gate::ReadGate;
use self::report::Observer;
use self::retained_sender::RetainedSender;
use self::stream_scheduler::StreamScheduler;
use crate::auth::ExpiryTimer;
use crate::clock;
use crate::config::EarlyPublishConfig;
use crate::connection_guard::ConnectionGuard;
use crate::core::Core;
use crate::limit::Limit;
use crate::listener_policy::ListenerPolicy;
use crate::queue::egress::EgressQueue;
use crate::queue::session_queue::Signal;
use crate::view::BrokerEvent;

/// Turns of one poll, before other tasks run.
const MAX_TURNS: usize = 4;

/// Serves one connection from its handshake to its end. A link without a CONNECT is closed at once when the broker
/// stops. A CONNECT is answered with `refusal`, if there is one.
///
/// The future of the handshake is boxed, as that of CONNECT is: an idle connection must not keep their size.
///
/// The limits of its address are asked once the address is known, if they were not before.
pub(crate) async fn serve(
    mut guard: ConnectionGuard,
    policy: Arc<ListenerPolicy>,
    incoming: Box<Incoming>,
    refusal: Option<ReasonCode>,
) {
    let mut begun = Box::pin(Driver::begin(&mut guard, policy, incoming, refusal)).await;
    // By reference: moved out, it would keep its space here beside that of the driver.
    if let Some((driver, refusal)) = &mut begun {
        driver.run(*refusal).await;
    }
}

struct Driver {
    core: Arc<Core>,
    link: Link,
    server: Server,
    session: SessionBinding,
    gate: ReadGate,
    ingress: PublishIngress,
    acks: AckPipeline,
    egress: EgressQueue,
    retained: RetainedSender,
    /// `None` on a link without data streams.
    streams: Option<Box<StreamScheduler>>,
    timer: ConnectionTimer,
    close: ConnectionClose,
}

/// Result of [`Driver::poll`].
enum Turn {
    /// A CONNECT or AUTH to decide about.
    Decide(Question),
    /// The connection is closed; its last bytes may still have to be written.
    Over,
}

impl Driver {
    /// Driver of a connection after its handshake, and the reason to refuse its CONNECT with. `None` if the handshake
    /// failed, or the connection is refused without an answer.
    async fn begin(
        guard: &mut ConnectionGuard,
        policy: Arc<ListenerPolicy>,
        incoming: Box<Incoming>,
        refusal: Option<ReasonCode>,
    ) -> Option<(Self, Option<ReasonCode>)> {
        let core = guard.core().clone();
        let accepted = clock::now();
        let from = incoming.peer_address();
        let link = shake_hands(&core, incoming).await?;
        tracing::trace!(?from, transport = %link.peer().transport, "link established");
        let answer = guard.admit(link.peer().address).ok()?;
        Some((Self::new(core, policy, link, accepted), refusal.or(answer)))
    }

    /// `accepted`: start of the time for CONNECT.
    fn new(core: Arc<Core>, policy: Arc<ListenerPolicy>, mut link: Link, accepted: Instant) -> Self {
        let mut server = Server::new(core.server_options.clone(), accepted);
        if link.is_early() {
            server.set_early(); // [BQ-61]
        }
        if link.datagram_size().is_some() {
            server.permit_datagrams(); // [BQ-81]
        }
        let limit = Duration::from_secs(core.config.limits.connect_timeout_secs);
        Self {
            session: SessionBinding::new(core.sessions.registry.next_connection(), policy),
            gate: ReadGate::new(&core.config.limits, accepted),
            ingress: PublishIngress::new(),
            acks: AckPipeline::default(),
            egress: EgressQueue::default(),
            retained: RetainedSender::default(),
            streams: link.is_multi().then(|| Box::new(StreamScheduler::new(accepted, link.is_early()))),
            timer: ConnectionTimer { sleep: None, confirm_by: link.is_early().then(|| accepted + limit) },
            close: ConnectionClose::new(),
            core,
            link,
            server,
        }
    }

    /// Futures are boxed while they are needed: a connection with a session waits in none of them.
    async fn run(&mut self, refusal: Option<ReasonCode>) {
        loop {
            let turn = if self.session.entry.is_some() {
                // The session queue signals the stop of the broker.
                poll_fn(|context| self.poll(context)).await
            } else {
                Box::pin(self.poll_until_stopped()).await
            };
            match turn {
                Turn::Decide(question) => Box::pin(self.decide(question, refusal)).await,
                Turn::Over => break,
            }
        }
        // The transport keeps to this even if the task is dropped. [BQ-41]
        self.link.close_by(clock::now() + QUIC_CLOSE_TIMEOUT);
        let _ = Box::pin(tokio::time::timeout(CLOSE_TIMEOUT, self.close())).await;
    }

    /// Serves a connection without a session.
    async fn poll_until_stopped(&mut self) -> Turn {
        let core = self.core.clone();
        tokio::select! {
            turn = poll_fn(|context| self.poll(context)) => turn,
            () = core.lifecycle.stopped() => {
                self.end_link(None);
                Turn::Over
            }
        }
    }

    /// Waits until the handshake of an early link is confirmed; false if the connection ends before.
    async fn await_confirmation(&mut self) -> bool {
        let core = self.core.clone();
        let confirmed = poll_fn(|context| {
            let has_ended = self.link.is_early() && self.poll(context).is_ready();
            if self.link.is_early() && !has_ended { Poll::Pending } else { Poll::Ready(!has_ended) }
        });
        tokio::select! {
            is_confirmed = confirmed => is_confirmed,
            () = core.lifecycle.stopped() => {
                self.end_link(None);
                false
            }
        }
    }

    /// One poll of the connection, in turns, whose bytes leave together at the end. The order of the steps matters:
    /// each step may make work for a later one, and a step that registers a waker stands before the decision to wait.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        let slice = self.core.statistics.busy().slice();
        let began = clock::now();
        let mut turn_began = began;
        for _ in 0..MAX_TURNS {
            let now = turn_began;
            self.gate.begin_turn();
            // 1. Session queue. First: from here on a push or signal wakes the task, even one that comes during this
            // turn.
            let is_taken_over = self.poll_queue(now, context);
            // 2. Link. Registers for more input when the link has none; refused streams are remembered for step 14.
            let has_tried_to_read = !self.server.has_events();
            let has_read = self.poll_read(now, context);
            // 3. Events of the bytes. All messages of the turn are dispatched as a batch.
            let has_events = self.server.has_events();
            let question = self.drain_events(now);
            if is_taken_over && !self.server.is_closed() {
                // After the events: a client that comes back at once has sent its DISCONNECT before.
                self.end_session(ReasonCode::SessionTakenOver); // [MQTT-3.1.4-3]
            } else if let Some(question) = question {
                self.gate.set_busy(false, self.core.statistics.busy());
                return Poll::Ready(Turn::Decide(question));
            }
            // 4. Limits. After the events, which count the messages.
            self.gate.end_turn(&self.server, now);
            self.ingress.pressure.note_partial(self.server.partial_len(), &self.core.memory, now);
            // Not with the timer alone, which has no turn while a client sends without a pause.
            self.handle_due(now, has_tried_to_read);
            self.continue_recheck();
            // Dispatch may have taken long: the time to send is measured from here.
            let now = if has_events { clock::now() } else { now };
            // 5. Commits, which registers for the first that is not done. After the events, which begin them: over a
            // store in memory they are done by now.
            self.poll_commits(context);
            // 6. Receivers that cannot keep up. After the commits: durable acknowledgements wait here.
            self.poll_receivers(now, context);
            // 7. Deliveries. After the events and acknowledgements, which free identifiers and Receive Maximum.
            let has_dropped = self.deliver(now);
            // 8. Retained messages, behind the deliveries of the queue. They are encoded in the next turn.
            let has_retained = self.send_retained(now);
            // 9. Progress of deliveries to the store. Before the write: the bytes of this turn may have to wait for it.
            self.acks.commit_progress(&mut self.server, &self.core.persist);
            // 10. Barriers, which registers for the first that is not durable. Right before the write that they bound.
            self.poll_barriers(context);
            // 11. Write, acknowledgements and deliveries together, until the link is full, which registers for room.
            let has_written = self.poll_write(now, context);
            // 12. Memory of this connection, after all that changed it.
            let is_refusing = self.gate.has_refused();
            let unread = if is_refusing { self.link.unread_bytes() } else { self.link.held_bytes() };
            self.ingress.pressure.note_unread(unread, &self.core.memory);
            self.note_holdings();
            self.count_link();
            // 13. End. Messages before a DISCONNECT are dispatched first, in as many turns as that takes.
            if self.server.is_closed() && !self.server.has_events() {
                self.release();
                return Poll::Ready(Turn::Over);
            }
            // 14. Another turn if this one moved something. A refused stream that may be read by now counts: the reason
            // went in this turn, and no waker tells of it. Otherwise the timer decides, last, with the times of all
            // steps before.
            let has_changed = has_read
                || has_written
                || has_retained
                || has_dropped
                || self.session.recheck.is_some()
                || self.has_reopened(now);
            if !has_changed && !self.server.has_events() && self.poll_timer(now, context).is_pending() {
                self.gate.set_busy(false, self.core.statistics.busy());
                self.egress.rest();
                if !self.flush(context) {
                    context.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
            let now = clock::now();
            self.gate.note_turn(now - turn_began, slice);
            if now - began >= slice {
                break;
            }
            turn_began = now;
        }
        self.flush(context);
        self.gate.set_busy(true, self.core.statistics.busy());
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes deliveries and signals. True: another connection waits for the session.
    fn poll_queue(&mut self, now: Instant, context: &Context<'_>) -> bool {
        let Some(entry) = &self.session.entry else { return false };
        let policy = &self.core.queues.policy;
        let resolve = |stream| self.server.resolve(stream);
        let signal = entry.queue.poll_take(&mut self.egress, resolve, policy.limits, context);
        let evicted = self.egress.trim(policy);
        let dropped = evicted.messages();
        evicted.lsns.into_iter().for_each(|lsn| self.acks.note_dropped(Some(lsn)));
        if dropped > 0 {
            let log = entry.queue.note_trimmed(&mut self.egress, dropped, policy.limits, now);
            self.core.queues.note_trimmed(entry, dropped, log);
        }
        match signal {
            Some(Signal::Close(reason)) => self.end_session(reason),
            Some(Signal::Recheck) => self.recheck(),
            Some(Signal::TakeOver | Signal::Inquire) | None => {}
        }
        if signal.is_some() {
            self.observer().answer_inquiries(now);
        }
        signal == Some(Signal::TakeOver)
    }

    /// Parts that operators see.
    fn observer(&mut self) -> Observer<'_> {
        Observer {
            core: &self.core,
            session: &self.session,
            server: &self.server,
            link: &mut self.link,
            gate: &self.gate,
            acks: &self.acks,
            egress: &self.egress,
            pending_retained: self.retained.len(),
            streams: self.streams.as_deref(),
        }
    }

    /// Tells the session entry how much this connection holds beside its queue.
    fn note_holdings(&self) {
        let Some(entry) = &self.session.entry else { return };
        let inflight = self.server.session().map_or(0, |session| session.outbound.heap_bytes());
        let (partial, moved) = self.ingress.pressure.holdings();
        entry.set_holdings(inflight + partial, moved);
        if let Some(session) = self.server.session() {
            entry.observe(session);
        }
    }

    /// Waits for the earliest timeout of all parts; ready when one was handled or the pressure of memory is over.
    fn poll_timer(&mut self, now: Instant, context: &mut Context<'_>) -> Poll<()> {
        if self.gate.begin_probe(|| self.link.stream_frames(), now) {
            self.server.note_bytes(now); // [BQ-44]
        }
        if self.ingress.pressure.poll_relief(&self.core.memory, context) {
            return Poll::Ready(());
        }
        let times = [
            self.next_timeout(),
            self.session.expiry.as_deref().map(ExpiryTimer::next_timeout),
            self.acks.next_timeout(),
            self.gate.next_timeout(&self.read_input(now)),
        ];
        let Some(at) = times.into_iter().flatten().min() else { return Poll::Pending };
        ready!(self.timer.poll(at, context));
        self.handle_timeouts(clock::now());
        Poll::Ready(())
    }

    /// Handles the timeouts that are due in a turn which may be one of many without a pause.
    ///
    /// Those of the protocol machine measure how long the client sent nothing: they wait for a turn that read first.
    fn handle_due(&mut self, now: Instant, has_tried_to_read: bool) {
        if self.session.expiry.as_mut().is_some_and(|expiry| expiry.handle_timeout(now)) {
            self.expire();
        }
        if has_tried_to_read && self.next_timeout().is_some_and(|at| at <= now) {
            self.handle_timeouts(now);
        }
    }

    /// Next instant for [`Driver::handle_timeouts`].
    fn next_timeout(&self) -> Option<Instant> {
        let opening = self.streams.as_ref().and_then(|streams| streams.next_opening());
        [self.server.poll_timeout(), self.timer.confirm_by, opening].into_iter().flatten().min()
    }

    fn handle_timeouts(&mut self, now: Instant) {
        if self.gate.probe(|| self.link.stream_frames(), now) {
            self.server.note_bytes(now); // [BQ-44]
        }
        if self.gate.suspends_keep_alive(&self.ingress.pressure) {
            self.server.reset_keep_alive(now);
        }
        self.server.handle_timeout(now);
        self.open_waiting_streams(now);
        if self.timer.confirm_by.is_some_and(|by| by <= now) {
            self.timer.confirm_by = None;
            self.core.statistics.reach(Limit::ConnectTimeout);
            tracing::info!(
                peer = peer_name(self.link.peer()),
                "early data, and a handshake that was not finished in time"
            );
            self.end_link(None);
        }
    }

    // -- End ---------------------------------------------------------------------------------------

    /// Notes that the link has ended. One that fails is a connection that is lost. [MQTT3-4.8.0-2]
    fn end_link(&mut self, error: Option<std::io::Error>) {
        if let Some(error) = error {
            tracing::debug!(peer = peer_name(self.link.peer()), %error, "link failed");
        }
        self.close.link_ended = true;
        self.server.handle_link_closed();
    }

    /// Counts the limit that a violation exceeds, if it does.
    fn note_violation(&self, violation: Violation) {
        if let Some(limit) = Limit::of_violation(violation, self.session.entry.is_some()) {
            self.core.statistics.reach(limit);
        }
    }

    /// Gives the session back as soon as the connection is closed: a connection that takes it over does not wait for
    /// the last bytes of this one.
    fn release(&mut self) {
        self.gate.set_busy(false, self.core.statistics.busy());
        self.count_link();
        let Some(mut end) = self.server.take_end() else { return };
        let accepts_early = self.core.config.streams.early_publish == EarlyPublishConfig::Accept;
        if self.link.is_early() {
            // Perhaps a replay, which leaves nothing behind. [BQ-61]
            end.session.iter_mut().for_each(|session| session.expiry = SessionExpiry::WITH_CONNECTION);
            end.will = end.will.filter(|_| accepts_early);
        }
        // A refused connection has no Will of its own, and keeps the delayed one of the session.
        end.will = end.will.or(self.session.delayed_will.take().map(|will| *will));
        // A client that would not be accepted any more sends nothing more either.
        end.will = end.will.filter(|_| self.revocation().is_none() && self.ban().is_none());
        self.close.decide(end.cause, self.server.version().is_some());
        let (client, peer) = (self.session.client(), self.link.peer());
        if let Cause::Violation(violation) = end.cause {
            self.note_violation(violation);
        }
        match end.cause {
            Cause::Violation(violation) if client.is_some() => {
                tracing::info!(client, peer = peer_name(peer), cause = %violation, "connection closed");
            }
            // A peer that is not authenticated causes one for each connection that it opens.
            cause => tracing::debug!(client, peer = peer_name(peer), %cause, "connection closed"),
        }
        if let Some(entry) = self.session.entry.take() {
            self.core.statistics.client_left();
            entry.set_holdings(0, 0);
            let (deliveries, retained) = (self.egress.drain(), self.retained.take());
            let (cause, address) = (end.cause, self.link.peer().address);
            let owns = self.core.lifecycle.owns_sessions(clock::now());
            self.core.sessions.release(&entry, self.session.connection, end, deliveries, retained, owns);
            // Now that others find the client disconnected.
            self.core.lifecycle.events.record(|| {
                let client = (&entry.client_id).into();
                BrokerEvent::Disconnected { client, cause, address }
            });
        }
    }

    /// Writes the last bytes, ends the link and, if the peer should read the reason, waits until it has ended it too: a
    /// TCP socket that is closed with unread bytes discards what it has not sent yet.
    async fn close(&mut self) {
        let is_multi = self.link.is_multi();
        let last_bytes = poll_fn(|context| {
            self.poll_barriers(context);
            self.poll_write(clock::now(), context);
            self.flush(context);
            if self.close.link_ended || self.server.unwritten() == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let _ = tokio::time::timeout(flush_timeout(is_multi), last_bytes).await;
        if self.close.link_ended && !is_multi {
            return;
        }
        let codes = self.close.codes;
        let closed = poll_fn(|context| self.link.poll_close(context, codes)).await; // [BQ-40], [BQ-41]
        if closed.is_ok() && self.close.is_explained && !is_multi {
            poll_fn(|context| self.poll_discard(context)).await;
        }
    }
}

impl Drop for Driver {
    /// Ends a connection that is dropped because the runtime stops like one whose link is lost.
    fn drop(&mut self) {
        self.server.handle_link_closed();
        self.release();
        self.ingress.pressure.release(&self.core.memory);
    }
}

/// Timer of a connection, for the earliest of all its timeouts.
struct ConnectionTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    /// Time by which the handshake of an early link must be confirmed.
    confirm_by: Option<Instant>,
}

impl ConnectionTimer {
    fn poll(&mut self, at: Instant, context: &mut Context<'_>) -> Poll<()> {
        let at = tokio::time::Instant::from_std(at);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F: Future>(
        _: fn(ConnectionGuard, Arc<ListenerPolicy>, Box<Incoming>, Option<ReasonCode>) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// Every idle connection holds one: large parts are boxed, and exist where they are needed.
    #[test]
    fn the_task_of_a_connection_stays_small() {
        assert!(size_of::<Driver>() <= 1264, "{} bytes", size_of::<Driver>());
        assert!(size_of_future(serve) <= 1400, "{} bytes", size_of_future(serve));
    }
}
