//! Queue of a session: the only part of a session that other tasks touch.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Instant;

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};

use super::backpressure::{AckRttEstimator, RoomRegistration, RoomWaiters, hold_until};
use super::egress::EgressQueue;
use super::overflow::{Admission, Decision, Eviction, Occupancy, StreamOccupancy, Victims, trim};
use super::pending::PendingQueue;
use super::policy::QueuePolicy;
use super::stored::{StoredEntry, StoredQueue};
use super::usage::{Evicted, PerStreamUsage, QueueLimits, QueueUsage, UsageHint};
use crate::lock_order::{Ordered, Rank};
use crate::log_throttle::LogThrottle;
use crate::view::{Inquiry, ViewError};

/// Questions that may wait for the next turn of a connection.
const OPEN_INQUIRIES: usize = 16;

/// Bounded queue of a session, with the means to wake its connection.
///
/// A push never waits. A message that does not fit is handled by [`overflow`](super::overflow). A push to a congested
/// queue returns a deadline, until which the publisher may hold its acknowledgements back.
///
/// A std Mutex: it is held for a few pushes or one swap, never across an await or a wake-up.
#[derive(Debug, Default)]
pub(crate) struct SessionQueue {
    inner: Mutex<Inner>,
    hint: Hint,
}

#[derive(Debug, Default)]
struct Inner {
    pending: PendingQueue,
    /// Usage of the egress queue at the last visit of the connection. It counts against the limits: otherwise a client
    /// that never reads could hold twice as much, and more with every reconnect.
    taken: QueueUsage,
    taken_streams: PerStreamUsage,
    connection: Connection,
    /// Publishers that hold acknowledgements back until the queue has room. Allocated with the first one.
    room_waiters: Option<Arc<RoomWaiters>>,
    /// Allocated with the first message that is dropped.
    overflow_log: Option<Box<LogThrottle>>,
}

/// State and usage at the last release of the lock, for readers without it.
#[derive(Debug, Default)]
struct Hint {
    state: AtomicU8,
    usage: UsageHint,
}

/// Guard of the queue, which updates its hint if it was used to change it.
struct Locked<'a> {
    inner: Ordered<MutexGuard<'a, Inner>>,
    hint: &'a Hint,
    is_changed: bool,
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        self.is_changed = true;
        &mut self.inner
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.is_changed {
            self.hint.state.store(self.inner.connection.state as u8, Ordering::Relaxed);
            self.hint.usage.set(&self.inner.held());
        }
    }
}

/// Ability of a session to take one more message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// Its connection can send the message.
    Connected,
    /// The message can wait for its next connection.
    Offline,
    /// The queue is full: the message, or one that waits, would be dropped.
    Full,
    /// The session has ended.
    Closed,
}

/// Connection of the session, as far as publishers need it.
#[derive(Debug, Default)]
struct Connection {
    state: State,
    signal: Option<Signal>,
    /// Questions that the connection answers at its next turn.
    inquiries: Vec<Inquiry>,
    /// Set while the connection's task sleeps.
    waker: Option<Waker>,
    ack_rtt: AckRttEstimator,
    /// The queue has been below its congestion threshold since the session was resumed. Before that a full queue is no
    /// reason to disconnect the client: it is given the time to empty the queue.
    has_kept_up: bool,
    /// Upper bound of the heap bytes that were queued when the session was resumed.
    resumed_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum State {
    #[default]
    Offline,
    Online,
    /// The session has ended.
    Closed,
}

/// Command to the connection of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Close the connection and hand the session over to the one that claims it.
    TakeOver,
    /// Close the connection.
    Close(ReasonCode),
    /// Check the client against rules and bans that have changed.
    Recheck,
    /// Nothing but the inquiries, which are taken with any signal.
    Inquire,
}

/// Outcome of a push.
#[derive(Debug, Default)]
pub(crate) struct PushOutcome {
    /// Deliveries that were dropped, of those that arrived and of those in the queue.
    pub(crate) dropped: u64,
    /// Those of them for which the queue had no room.
    pub(crate) overflowed: u64,
    /// Those of them for which the queues of all offline clients together had no room.
    pub(crate) crowded: u64,
    /// The connection is told to close.
    pub(crate) disconnects: bool,
    /// Numbers in the store of the dropped deliveries, of those that are stored.
    pub(crate) lost: Vec<NonZeroU64>,
    /// Deliveries of shared subscriptions to a session that has ended: another member can have them.
    pub(crate) orphans: Vec<Delivery>,
    /// Number of overflowed deliveries since the last log line, if the next line is due.
    pub(crate) log: Option<u64>,
    /// The queue is congested: deadline for the publisher's acknowledgements of messages that are not urgent.
    pub(crate) congested_until: Option<Instant>,
    /// Deadline for urgent messages, if their publisher sends too many of them.
    pub(crate) urgent_congested_until: Option<Instant>,
}

impl PushOutcome {
    fn note_expired(&mut self, expired: Evicted) {
        self.dropped += expired.messages();
        self.lost.extend(expired.lsns);
    }

    fn note_overflowed(&mut self, evicted: Evicted) {
        self.overflowed += evicted.messages();
        self.note_expired(evicted);
    }
}

/// Messages that were removed because of their time.
#[derive(Debug, Default)]
pub(crate) struct Expired {
    /// Removed because their Message Expiry Interval had passed.
    pub(crate) expired: Evicted,
    /// Removed because they had waited for longer than the policy allows.
    pub(crate) aged: Evicted,
    /// Some message that is left has an expiry.
    pub(crate) may_expire: bool,
    /// Number of messages that were looked at.
    pub(crate) visited: usize,
}

impl SessionQueue {
    /// A panic under the lock may leave counts that do not agree with the messages: they are counted anew.
    fn lock(&self) -> Locked<'_> {
        let inner = Ordered::acquire(Rank::Queue, || {
            self.inner.lock().unwrap_or_else(|poisoned| {
                self.inner.clear_poison();
                let mut inner = poisoned.into_inner();
                inner.pending.recount();
                inner
            })
        });
        Locked { inner, hint: &self.hint, is_changed: false }
    }

    #[cfg(test)]
    pub(crate) fn while_locked<T>(&self, run: impl FnOnce() -> T) -> T {
        let _locked = self.lock();
        run()
    }

    /// Adds deliveries. The connection's waker goes to `wakers`, to be woken after the whole batch and outside of every
    /// lock.
    pub(crate) fn push(
        &self,
        deliveries: impl Iterator<Item = Delivery>,
        policy: &QueuePolicy,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> PushOutcome {
        let mut outcome = PushOutcome::default();
        let mut inner = self.lock();
        for delivery in deliveries {
            // Urgent messages are not delayed by backpressure for bulk, within the rate of their publisher.
            let until = if delivery.priority > Priority::DEFAULT {
                &mut outcome.urgent_congested_until
            } else {
                &mut outcome.congested_until
            };
            if until.is_none() {
                let threshold = policy.limits.congestion_threshold();
                *until = inner.congested_until(delivery.stream, threshold, now);
            }
            inner.push(delivery, policy, now, &mut outcome);
        }
        if inner.pending.has_arrived() || outcome.disconnects {
            wakers.extend(inner.connection.waker.take());
        }
        outcome.log = inner.note_overflow(outcome.overflowed, now);
        outcome
    }

    /// Tests whether acknowledgements need not be held back any more: the queue is below its congestion threshold, or
    /// no connection drains it. Otherwise registers the task's waker for that. A connection that has sent nothing yet
    /// is not the one that was congested.
    pub(crate) fn poll_room(
        &self,
        registration: &mut Option<RoomRegistration>,
        limits: QueueLimits,
        context: &Context<'_>,
    ) -> bool {
        let mut inner = self.lock();
        let Connection { state, ack_rtt, .. } = &inner.connection;
        let drains = *state == State::Online && ack_rtt.progress_at().is_some();
        if !drains || inner.has_room_for_publishers(limits) {
            return true;
        }
        inner.room_waiters.get_or_insert_default().register(registration, context.waker());
        false
    }

    /// Capacity for a message of size `more`, beside `reserved` that is about to be pushed. Takes no lock: a message to
    /// ten thousand members of a shared subscription must not take ten thousand locks.
    pub(crate) fn capacity(
        &self,
        reserved: &QueueUsage,
        more: &QueueUsage,
        policy: &QueuePolicy,
    ) -> Capacity {
        // Relaxed: a push that comes too late finds the session ended, or the queue full.
        let state = self.hint.state.load(Ordering::Relaxed);
        if state == State::Closed as u8 {
            return Capacity::Closed;
        }
        let is_online = state == State::Online as u8;
        let is_wanted = is_online || policy.keeps_qos0 || !more.has_qos0();
        if !is_wanted || !self.hint.usage.read().plus(reserved).admits(more, policy.limits) {
            Capacity::Full
        } else if is_online {
            Capacity::Connected
        } else {
            Capacity::Offline
        }
    }

    /// Moves all messages into `egress`, and registers the connection's waker for the next push or signal.
    ///
    /// `resolve`: maps a stream that has ended to the stream of its deliveries.
    pub(crate) fn poll_take(
        &self,
        egress: &mut EgressQueue,
        resolve: impl Fn(StreamKey) -> StreamKey,
        limits: QueueLimits,
        context: &Context<'_>,
    ) -> Option<Signal> {
        let mut inner = self.lock();
        let signal = inner.connection.signal.take();
        inner.connection.ack_rtt = egress.ack_rtt();
        let has_arrived = inner.pending.has_arrived();
        let lane = if has_arrived { egress.take(&mut inner.pending, &resolve) } else { None };
        inner.note_taken(egress);
        let has_room = inner.has_room_for_publishers(limits);
        let held_bytes = inner.held().heap_bytes();
        let connection = &mut inner.connection;
        connection.has_kept_up |= has_room;
        connection.resumed_bytes = connection.resumed_bytes.min(held_bytes);
        connection.waker.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
        let publishers = inner.take_publishers(has_room);
        drop(inner);
        if has_arrived {
            egress.sort_arrivals(lane, resolve);
        }
        publishers.into_iter().for_each(Waker::wake);
        signal
    }

    /// Notes that the connection evicted `dropped` messages of its egress queue. Wakes publishers if that makes room.
    /// Returns the number of messages to log, if a line is due.
    pub(crate) fn note_trimmed(
        &self,
        egress: &mut EgressQueue,
        dropped: u64,
        limits: QueueLimits,
        now: Instant,
    ) -> Option<u64> {
        let mut inner = self.lock();
        inner.note_taken(egress);
        let has_room = inner.has_room_for_publishers(limits);
        let publishers = inner.take_publishers(has_room);
        let log = inner.note_overflow(dropped, now);
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        log
    }

    /// Heap bytes that a disconnect would free: queued since the client connected. What was queued before counts as
    /// offline, and frees nothing.
    pub(crate) fn used(&self) -> usize {
        let inner = self.lock();
        if inner.connection.state == State::Online {
            inner.held().heap_bytes().saturating_sub(inner.connection.resumed_bytes)
        } else {
            0
        }
    }

    /// Removes messages that have expired or waited for too long, of those that the connection has not taken.
    pub(crate) fn expire(&self, policy: &QueuePolicy, now: Instant) -> Expired {
        self.lock().expire(policy, now)
    }

    /// Sends a command to the connection. The caller wakes the returned waker, outside of every lock.
    #[must_use]
    pub(crate) fn signal(&self, signal: Signal) -> Option<Waker> {
        let connection = &mut self.lock().connection;
        // A close must not replace a take-over, and a check neither.
        let is_weaker = match connection.signal {
            Some(Signal::TakeOver) => true,
            Some(Signal::Close(_)) => signal == Signal::Recheck,
            Some(Signal::Recheck | Signal::Inquire) | None => false,
        };
        if !is_weaker {
            connection.signal = Some(signal);
        }
        connection.waker.take()
    }

    /// Asks the connection. The caller wakes the returned waker, outside of every lock. The answer's channel closes
    /// when the connection ends before its next turn.
    ///
    /// # Errors
    /// There is no connection, or too many questions are open.
    pub(crate) fn inquire(&self, inquiry: Inquiry) -> Result<Option<Waker>, ViewError> {
        let Connection { state, signal, inquiries, waker, .. } = &mut self.lock().connection;
        if *state != State::Online {
            return Err(ViewError::NotConnected);
        }
        if inquiries.len() >= OPEN_INQUIRIES {
            return Err(ViewError::Busy);
        }
        inquiries.push(inquiry);
        signal.get_or_insert(Signal::Inquire);
        Ok(waker.take())
    }

    /// Takes the questions to the connection.
    pub(crate) fn take_inquiries(&self) -> Vec<Inquiry> {
        std::mem::take(&mut self.lock().connection.inquiries)
    }

    /// Whether the session has a connection, or is claimed by one.
    pub(crate) fn is_online(&self) -> bool {
        self.lock().connection.state == State::Online
    }

    /// Messages that wait for the client, and their bytes: those that its connection has taken and not sent included.
    pub(crate) fn usage(&self) -> QueueUsage {
        self.lock().held()
    }

    /// Begins a new connection, and voids the commands to the one before. Called while the session is claimed, before
    /// another claim can begin: the signal of that one must not be lost.
    pub(crate) fn open(&self) {
        let mut inner = self.lock();
        let resumed_bytes = inner.held().heap_bytes();
        let connection = &mut inner.connection;
        connection.state = State::Online;
        connection.signal = None;
        connection.has_kept_up = false;
        connection.resumed_bytes = resumed_bytes;
    }

    /// Begins with the entries of the store after a start, as far as there is room. Expired ones make room first.
    pub(crate) fn set_stored(
        &self,
        stored: StoredQueue,
        policy: &QueuePolicy,
        now: Instant,
    ) -> (Expired, PushOutcome) {
        let expired = {
            let mut inner = self.lock();
            inner.pending.set_stored(Some(Box::new(stored)));
            inner.expire(policy, now)
        };
        (expired, self.park(VecDeque::new(), policy, now))
    }

    /// Copies of the entries whose messages have to be read before the connection takes anything.
    pub(crate) fn stored_entries(&self) -> Vec<StoredEntry> {
        self.lock().pending.stored_entries()
    }

    /// Replaces stored entries with the deliveries that were read of them. Entries that were removed meanwhile stay
    /// removed. Returns the numbers of those that were not read.
    pub(crate) fn replace_stored(&self, read: HashMap<NonZeroU64, Delivery>) -> Vec<NonZeroU64> {
        let mut inner = self.lock();
        let before = inner.held().heap_bytes();
        let missing = inner.pending.replace_stored(read);
        // The entries were queued before the client came.
        inner.connection.resumed_bytes += inner.held().heap_bytes().saturating_sub(before);
        missing
    }

    /// Ends a connection. `unsent` comes back to the front of the queue, as far as there is room.
    pub(crate) fn park(&self, unsent: VecDeque<Delivery>, policy: &QueuePolicy, now: Instant) -> PushOutcome {
        let mut inner = self.lock();
        let publishers = inner.disconnect(State::Offline);
        inner.pending.restore(unsent, |delivery| {
            delivery.charge_offline();
            policy.begin_wait(delivery, now);
        });
        let mut outcome = PushOutcome::default();
        outcome.note_expired(inner.pending.expire(now).unwrap_or_default());
        if !policy.keeps_qos0 {
            outcome.note_expired(inner.pending.remove_qos0());
        }
        inner.trim(policy, &mut outcome);
        outcome.log = inner.note_overflow(outcome.overflowed, now);
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        outcome
    }

    /// Ends the session. Returns the messages that were queued.
    pub(crate) fn close(&self) -> VecDeque<Delivery> {
        let mut inner = self.lock();
        let publishers = inner.disconnect(State::Closed);
        let queued = inner.pending.take();
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        queued
    }
}

impl Inner {
    fn push(
        &mut self,
        mut delivery: Delivery,
        policy: &QueuePolicy,
        now: Instant,
        outcome: &mut PushOutcome,
    ) {
        let usage = QueueUsage::of(&delivery);
        let decision = if self.wants(&delivery, policy) {
            Some(self.admit(&delivery, &usage, policy, now, outcome))
        } else {
            None
        };
        if decision == Some(Decision::Admit) {
            if self.connection.state == State::Offline {
                delivery.stream = StreamKey::CONTROL; // No stream outlives its connection. [BQ-42]
                delivery.charge_offline();
            }
            policy.begin_wait(&mut delivery, now);
            return self.pending.push_back(delivery, &usage);
        }
        if self.connection.state == State::Closed && delivery.shared.is_some() {
            return outcome.orphans.push(delivery);
        }
        outcome.dropped += 1;
        outcome.lost.extend(delivery.queue_lsn);
        if decision.is_some() {
            outcome.overflowed += 1;
            outcome.crowded += u64::from(self.is_offline_limit_reached(&delivery, &usage, policy));
        }
        if decision == Some(Decision::Disconnect) {
            outcome.disconnects |= self.disconnect_slow_client();
        }
    }

    /// Whether messages of this QoS are queued at all now.
    fn wants(&self, delivery: &Delivery, policy: &QueuePolicy) -> bool {
        match self.connection.state {
            State::Online => true,
            State::Offline => policy.keeps_qos0 || delivery.qos > QoS::AtMostOnce,
            State::Closed => false,
        }
    }

    /// Decides on a delivery, and carries out the evictions that the decision asks for.
    fn admit(
        &mut self,
        delivery: &Delivery,
        usage: &QueueUsage,
        policy: &QueuePolicy,
        now: Instant,
        outcome: &mut PushOutcome,
    ) -> Decision {
        let of = (delivery.qos, delivery.priority);
        let mut admission = Admission::new(policy.overflow, policy.limits, of, usage);
        loop {
            let decision = admission.decide(&self.occupancy(delivery, usage, policy));
            let Decision::Evict(eviction) = decision else { return decision };
            let victims = match eviction {
                Eviction::Expired => {
                    outcome.note_expired(self.pending.expire(now).unwrap_or_default());
                    continue;
                }
                Eviction::Qos0 => {
                    outcome.note_overflowed(self.pending.remove_qos0());
                    continue;
                }
                Eviction::Oldest(victims) => victims,
            };
            let evicted = match victims {
                Victims::All => self.pending.evict(delivery.priority, None),
                Victims::SameStream => self.pending.evict(delivery.priority, Some(delivery.stream)),
                Victims::InMemory => self.pending.evict_arrived(delivery.priority),
            };
            let Some((evicted, lsn)) = evicted else { return Decision::Reject };
            admission.note_evicted(&evicted);
            outcome.dropped += 1;
            outcome.overflowed += 1;
            outcome.crowded += u64::from(admission.frees_memory());
            outcome.lost.extend(lsn);
        }
    }

    fn occupancy<'a>(
        &'a self,
        delivery: &Delivery,
        usage: &QueueUsage,
        policy: &QueuePolicy,
    ) -> Occupancy<'a> {
        let (Self { pending, taken, taken_streams, .. }, stream) = (self, delivery.stream);
        let is_one_stream = pending.is_one_stream();
        let is_control_alone = stream.is_control() && taken_streams.is_empty() && is_one_stream;
        let of_stream =
            || StreamOccupancy { pending: pending.usage_of(stream), taken: taken_streams.usage_of(stream) };
        Occupancy {
            pending: pending.usage(),
            taken,
            stream: (!is_control_alone).then(of_stream),
            is_one_stream,
            evictable_heap_bytes: pending.arrived_heap_bytes(),
            is_offline_limit_reached: self.is_offline_limit_reached(delivery, usage, policy),
        }
    }

    fn is_offline_limit_reached(
        &self,
        delivery: &Delivery,
        usage: &QueueUsage,
        policy: &QueuePolicy,
    ) -> bool {
        self.connection.state == State::Offline
            && policy.is_offline_limit_reached(usage.heap_bytes(), delivery.priority)
    }

    /// Evicts what exceeds the limits. Urgent messages may use their reserve.
    fn trim(&mut self, policy: &QueuePolicy, outcome: &mut PushOutcome) {
        while let Some(eviction) =
            trim(policy.overflow, self.pending.usage(), policy.limits, Priority::HIGHEST)
        {
            match eviction {
                Eviction::Qos0 => outcome.note_overflowed(self.pending.remove_qos0()),
                Eviction::Expired | Eviction::Oldest(_) => {
                    let Some((usage, lsn)) = self.pending.evict(Priority::HIGHEST, None) else { return };
                    let mut evicted = Evicted::default();
                    evicted.note(&usage, lsn);
                    outcome.note_overflowed(evicted);
                }
            }
        }
    }

    fn expire(&mut self, policy: &QueuePolicy, now: Instant) -> Expired {
        let messages = self.pending.usage().messages();
        let expired = self.pending.expire(now);
        let aged = self.pending.expire_aged(policy, now);
        let searches = usize::from(expired.is_some()) + usize::from(aged.is_some());
        Expired {
            expired: expired.unwrap_or_default(),
            aged: aged.unwrap_or_default(),
            may_expire: self.pending.may_expire(),
            visited: messages * searches,
        }
    }

    /// Tells the connection to close because a message did not fit, if the client had kept up before. Returns whether
    /// it is told now.
    fn disconnect_slow_client(&mut self) -> bool {
        let Connection { state, signal, has_kept_up, .. } = &mut self.connection;
        let leaves = *state == State::Online && *has_kept_up && signal.is_none();
        if leaves {
            *signal = Some(Signal::Close(ReasonCode::QuotaExceeded));
            *has_kept_up = false;
        }
        leaves
    }

    /// Ends the connection. Returns the wakers of waiting publishers, to be woken outside of the lock.
    fn disconnect(&mut self, state: State) -> Vec<Waker> {
        self.connection.state = state;
        self.connection.waker = None;
        self.connection.inquiries = Vec::new();
        self.connection.ack_rtt = AckRttEstimator::default();
        self.taken = QueueUsage::default();
        self.taken_streams.clear();
        self.take_publishers(true)
    }

    /// Counts dropped deliveries. Returns the number to log, if a line is due.
    fn note_overflow(&mut self, dropped: u64, now: Instant) -> Option<u64> {
        if dropped == 0 && self.overflow_log.is_none() {
            return None;
        }
        self.overflow_log.get_or_insert_default().note(dropped, now)
    }

    fn note_taken(&mut self, egress: &mut EgressQueue) {
        self.taken = egress.usage();
        egress.copy_streams(&mut self.taken_streams);
    }

    /// Deadline for acknowledgements of a message for this stream; `None` if the queue is not congested or the stream
    /// is stuck. A stream that is stuck delays no publisher, and its messages delay no other stream. [BQ-55]
    fn congested_until(&self, stream: StreamKey, threshold: QueueLimits, now: Instant) -> Option<Instant> {
        let exceeds =
            |usage: &QueueUsage| usage.messages() > threshold.messages || usage.bytes() > threshold.bytes;
        let Connection { state, ack_rtt, .. } = &self.connection;
        if *state != State::Online || !exceeds(&self.held()) {
            return None;
        }
        let progress_at = match self.taken_streams.progress_of(stream) {
            Some(progress_at) => progress_at?,
            None if self.taken_streams.is_empty() || exceeds(self.pending.usage()) => {
                ack_rtt.progress_at()?
            }
            None => return None,
        };
        hold_until(progress_at, ack_rtt.stuck_timeout(), now)
    }

    /// Usage of the queue and of the egress queue.
    fn held(&self) -> QueueUsage {
        self.taken.plus(self.pending.usage())
    }

    /// Whether the queue is not congested.
    fn has_room_for_publishers(&self, limits: QueueLimits) -> bool {
        let (threshold, held) = (limits.congestion_threshold(), self.held());
        held.messages() <= threshold.messages && held.bytes() <= threshold.bytes
    }

    /// Wakers of waiting publishers if there is room, to be woken outside of the lock.
    #[must_use]
    fn take_publishers(&mut self, has_room: bool) -> Vec<Waker> {
        let waiters = self.room_waiters.as_ref().filter(|_| has_room);
        waiters.map(|waiters| waiters.take()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::{Duration, SystemTime};

    use braid_proto::message::{Message, SharedMessage};
    use braid_proto::topic::TopicName;
    use braid_store::{Lsn, StoredDelivery};

    use super::*;
    use crate::config::{LimitsConfig, QueueOverflow};
    use crate::memory::Memory;

    const LIMITS: QueueLimits = QueueLimits { messages: 8, bytes: 1 << 20 };

    fn config() -> LimitsConfig {
        LimitsConfig {
            queued_messages: LIMITS.messages,
            queued_bytes: LIMITS.bytes,
            ..LimitsConfig::default()
        }
    }

    fn policy_of(limits: &LimitsConfig, now: Instant) -> QueuePolicy {
        QueuePolicy::new(limits, now, Arc::new(Memory::new(limits)))
    }

    fn message(payload: impl Into<bytes::Bytes>, qos: QoS) -> Message {
        Message::new(TopicName::parse("t").expect("a topic name"), payload.into(), qos, false)
    }

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A queue, and a publisher that waits for room in it.
    struct Fixture {
        queue: SessionQueue,
        policy: QueuePolicy,
        publisher: Arc<WakeCounter>,
        registration: Option<RoomRegistration>,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self::with(&config())
        }

        fn with(limits: &LimitsConfig) -> Self {
            let now = Instant::now();
            let (queue, policy) = (SessionQueue::default(), policy_of(limits, now));
            Self { queue, policy, publisher: Arc::default(), registration: None, now }
        }

        /// The connection sends, and takes all messages.
        fn take(&self, egress: &mut EgressQueue) {
            let context = Context::from_waker(Waker::noop());
            egress.note_end(self.now);
            self.queue.poll_take(egress, |stream| stream, LIMITS, &context);
        }

        fn push(&self, delivery: Delivery) -> PushOutcome {
            self.queue.push(std::iter::once(delivery), &self.policy, self.now, &mut Vec::new())
        }

        /// Six messages of eight exceed the congestion threshold.
        fn push_six(&self, qos: QoS) -> PushOutcome {
            let message = SharedMessage::new(message("", qos));
            let deliveries = std::iter::repeat_with(|| Delivery::of(message.clone())).take(6);
            self.queue.push(deliveries, &self.policy, self.now, &mut Vec::new())
        }

        /// The publisher waits if there is no room.
        fn has_room(&mut self) -> bool {
            let waker = Waker::from(self.publisher.clone());
            self.queue.poll_room(&mut self.registration, LIMITS, &Context::from_waker(&waker))
        }

        fn park(&self) -> PushOutcome {
            self.queue.park(VecDeque::new(), &self.policy, self.now)
        }

        fn times_woken(&self) -> usize {
            self.publisher.0.load(Ordering::Relaxed)
        }

        fn registered(&self) -> usize {
            self.queue.lock().room_waiters.as_ref().map_or(0, |waiters| waiters.len())
        }
    }

    #[test]
    fn publisher_is_woken_when_the_connection_trims_enough() {
        let (mut fixture, mut egress) = (Fixture::new(), EgressQueue::default());
        fixture.queue.open();
        fixture.push_six(QoS::AtMostOnce);
        fixture.take(&mut egress);
        assert!(!fixture.has_room());
        for woken in [0, 0, 0, 1] {
            assert!(egress.pop(|_, _| true).is_some());
            fixture.queue.note_trimmed(&mut egress, 0, LIMITS, fixture.now);
            assert_eq!(fixture.times_woken(), woken, "{} of eight are left", egress.usage().messages());
        }
        assert!(fixture.has_room());
    }

    /// Publishers come and go while a subscriber is slow and alive: the list of wakers must not grow.
    #[test]
    fn publishers_that_disconnect_leave_no_waker_behind() {
        let mut fixture = Fixture::new();
        fixture.queue.open();
        fixture.take(&mut EgressQueue::default());
        fixture.push_six(QoS::AtLeastOnce);
        for _ in 0..1000 {
            fixture.publisher = Arc::default();
            assert!(!fixture.has_room() && !fixture.has_room());
            assert_eq!(fixture.registered(), 1);
            fixture.registration = None;
        }
        assert_eq!(fixture.registered(), 0);
    }

    /// [BQ-54]: unsent messages come before those that arrived since the last visit, and all of them before later ones.
    #[test]
    fn unsent_messages_come_back_in_front() {
        let (fixture, mut egress) = (Fixture::new(), EgressQueue::default());
        let push = |text: &'static str| {
            fixture.push(Delivery::of(SharedMessage::new(message(text, QoS::AtLeastOnce))));
        };
        fixture.queue.open();
        ["1", "2"].into_iter().for_each(push);
        fixture.take(&mut egress);
        push("3");
        fixture.queue.park(egress.drain(), &fixture.policy, fixture.now);
        push("4");
        fixture.queue.open();
        push("5");
        fixture.take(&mut egress);
        let texts: Vec<_> = egress.drain().iter().map(|delivery| delivery.message.payload.clone()).collect();
        assert_eq!(texts, ["1", "2", "3", "4", "5"]);
    }

    /// [BQ-55]: the others lose nothing to it, though their messages have a lower priority.
    #[test]
    fn a_stream_above_its_fair_share_loses_its_own_messages() {
        let overflow = QueueOverflow::DropOldest;
        let limits = LimitsConfig { queued_messages: 100, queue_overflow: overflow, ..config() };
        let (fixture, mut egress) = (Fixture::with(&limits), EgressQueue::default());
        fixture.queue.open();
        let message = SharedMessage::new(message("", QoS::AtLeastOnce));
        let mut dropped = 0;
        for (stream, priority, count) in [(2, 5, 4), (1, 9, 90)] {
            let (stream, priority) = (StreamKey::bidi(stream), Priority::new(priority));
            for _ in 0..count {
                let delivery = Delivery { stream, priority, ..Delivery::of(message.clone()) };
                dropped += fixture.push(delivery).dropped;
            }
        }
        fixture.take(&mut egress);
        let left = egress.drain();
        let on = |number| left.iter().filter(|left| left.stream == StreamKey::bidi(number)).count();
        assert_eq!((on(2), on(1) as u64), (4, 90 - dropped));
        assert!(dropped > 0);
    }

    fn number(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).expect("not zero")
    }

    fn stored_delivery(queue_lsn: u64) -> Delivery {
        Delivery {
            queue_lsn: Some(number(queue_lsn)),
            ..Delivery::of(SharedMessage::new(message("", QoS::AtLeastOnce)))
        }
    }

    /// The store is read without the lock: entries may be evicted meanwhile.
    #[test]
    fn entries_evicted_while_they_are_read_do_not_come_back() {
        let overflow = QueueOverflow::DropOldest;
        let limits = LimitsConfig { queued_messages: 3, queue_overflow: overflow, ..LimitsConfig::default() };
        let (fixture, mut egress) = (Fixture::with(&limits), EgressQueue::default());
        let entry = |queue_lsn| {
            let lsn = Lsn::new(queue_lsn);
            StoredEntry::new(lsn, StoredDelivery::new(lsn, QoS::AtLeastOnce), SystemTime::UNIX_EPOCH)
        };
        // Those of the record of a session, then those of the log.
        for part in [1..=2, 3..=3] {
            let (entries, memory) = (part.map(entry).collect(), Arc::new(Memory::new(&limits)));
            let stored = StoredQueue::new(entries, fixture.now, None, memory);
            drop(fixture.queue.set_stored(stored, &fixture.policy, fixture.now));
        }
        assert_eq!(fixture.queue.stored_entries().len(), 3);
        assert_eq!(fixture.push(stored_delivery(4)).lost, [number(1)]);
        fixture.queue.open();
        fixture.take(&mut egress);
        assert!(egress.is_empty(), "older entries are still in the store");
        let read = [1, 2].map(|queue_lsn| (number(queue_lsn), stored_delivery(queue_lsn)));
        assert_eq!(fixture.queue.replace_stored(read.into()), [number(3)], "queued and not read");
        assert_eq!(fixture.queue.used(), 0, "all of it was queued before the client came");
        fixture.take(&mut egress);
        let queue_lsns: Vec<_> = egress.drain().iter().filter_map(|delivery| delivery.queue_lsn).collect();
        assert_eq!(queue_lsns, [number(2), number(4)]);
    }

    /// A disconnect frees heap memory only: a payload in a spool is not in the heap.
    #[test]
    fn spooled_payloads_use_no_memory() {
        let (fixture, mut egress) = (Fixture::new(), EgressQueue::default());
        fixture.queue.open();
        for (qos, spooled) in [(QoS::AtLeastOnce, true), (QoS::AtMostOnce, true), (QoS::AtMostOnce, false)] {
            let message = message(vec![0; 10_000], qos).with_spooled(spooled);
            fixture.push(Delivery::of(SharedMessage::new(message)));
        }
        for _ in 0..2 {
            assert!((10_000..12_000).contains(&fixture.queue.used()), "{}", fixture.queue.used());
            fixture.take(&mut egress);
        }
        let limits = LimitsConfig { queued_messages: 1, queued_bytes: 0, ..LimitsConfig::default() };
        assert_eq!(egress.trim(&policy_of(&limits, fixture.now)).messages(), 2);
        fixture.queue.note_trimmed(&mut egress, 2, LIMITS, fixture.now);
        assert!((1..1000).contains(&fixture.queue.used()), "{}", fixture.queue.used());
    }

    /// Publishers do not wait for the next connection either, before its pace is known.
    #[test]
    fn publishers_stop_waiting_when_the_connection_ends() {
        let mut fixture = Fixture::new();
        for (ends, woken) in [(false, 1), (true, 2)] {
            fixture.queue.open();
            fixture.take(&mut EgressQueue::default());
            assert!(fixture.push_six(QoS::AtLeastOnce).congested_until.is_some() && !fixture.has_room());
            if ends {
                fixture.queue.close();
            } else {
                fixture.park();
            }
            assert_eq!(fixture.times_woken(), woken);
            fixture.queue.open();
            assert!(fixture.has_room(), "the next connection has sent nothing yet");
            fixture.park();
        }
    }

    /// A full queue of young messages costs nothing every time that old ones are searched for.
    #[test]
    fn only_queues_with_something_due_are_searched() {
        let fixture = Fixture::with(&LimitsConfig { queued_secs: 60, ..config() });
        let expire = |secs| fixture.queue.expire(&fixture.policy, fixture.now + Duration::from_secs(secs));
        fixture.push_six(QoS::AtLeastOnce);
        assert_eq!(expire(30).visited, 0);
        let later = fixture.now + Duration::from_secs(50);
        let young = std::iter::once(stored_delivery(7));
        fixture.queue.push(young, &fixture.policy, later, &mut Vec::new());
        let expired = expire(62);
        assert_eq!((expired.visited, expired.aged.messages()), (7, 6));
        assert_eq!(expire(70).visited, 0, "the one that is left is young");
        assert_eq!(expire(112).aged.lsns, [number(7)]);
    }

    #[test]
    fn usage_is_counted_anew_after_a_panic_under_the_lock() {
        let fixture = Fixture::new();
        fixture.push_six(QoS::AtLeastOnce);
        let before = fixture.queue.lock().held();
        let panics = std::panic::AssertUnwindSafe(|| {
            let mut inner = fixture.queue.lock();
            inner.pending.push_back(stored_delivery(7), &QueueUsage::of_small(1000, usize::MAX / 2));
            panic!("a bug");
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(fixture.queue.lock().held(), before.plus(&QueueUsage::of(&stored_delivery(7))));
        assert_eq!(fixture.push_six(QoS::AtLeastOnce).dropped, 5, "eight are the limit");
    }

    /// QoS 0 that gives way when the client leaves is counted and logged like QoS 0 that gives way at a push.
    #[test]
    fn qos0_above_the_limits_counts_as_overflow_when_the_client_leaves() {
        let fixture = Fixture::with(&LimitsConfig { queue_qos0: true, ..config() });
        fixture.queue.open();
        let urgent = Priority::new(Priority::DEFAULT.value() + 1);
        for priority in [[Priority::DEFAULT; 8].as_slice(), &[urgent; 2]].concat() {
            let message = SharedMessage::new(message("", QoS::AtMostOnce));
            let outcome = fixture.push(Delivery { priority, ..Delivery::of(message) });
            assert_eq!(outcome.dropped, 0, "the urgent ones use their reserve");
        }
        let outcome = fixture.park();
        assert_eq!((outcome.dropped, outcome.overflowed), (10, 10));
    }
}
