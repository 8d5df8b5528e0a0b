//! What others have for a session: the only thing of a session that other tasks touch.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use braid_proto::message::{Delivery, Message};
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};

use crate::config::QueueOverflow;
use crate::log_throttle::LogThrottle;
use crate::queue::backpressure::AckRttEstimator;
use crate::queue::egress::EgressQueue;
use crate::queue::pending::{PendingQueue, Removed};
use crate::queue::policy::QueuePolicy;
use crate::queue::stored::{StoredEntry, StoredQueue};
use crate::queue::usage::PerStreamUsage;
use crate::queue::usage::{QueueLimits, QueueUsage, is_fair_share, usage_of, usage_of_message};

/// A session's bounded queue with the means to wake its owner.
///
/// Overflow policy: what does not fit is dropped and counted, QoS 0 before anything else, then what the
/// [`QueuePolicy`] says. No push ever waits. It tells when the owner cannot keep up: then the publisher may hold its
/// acknowledgements back until there is room, the owner leaves, or it has waited long enough.
///
/// A std Mutex: it is held for a few pushes or one swap, never across an await or a wake-up.
#[derive(Debug, Default)]
pub(crate) struct SessionQueue(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    backlog: PendingQueue,
    /// What the owner took and had not sent when it last looked in. It counts like what is queued: otherwise a
    /// client that never reads would double what it may hold, and add as much again with every reconnect.
    taken: QueueUsage,
    /// The same stream by stream.
    shares: PerStreamUsage,
    state: State,
    signal: Option<Signal>,
    /// Set while the owner sleeps.
    owner: Option<Waker>,
    /// When the owner last sent something, and how quickly its client answers.
    pulse: AckRttEstimator,
    /// Publishers who wait with their acknowledgements until there is room again.
    publishers: Vec<Waker>,
    /// The owner has had room to spare: if it has none again it cannot keep up. One that came back to a full queue is
    /// first given the time to empty it.
    has_kept_up: bool,
    /// At most so many bytes in the heap are of what the owner came back to.
    resumed: usize,
    /// Times in which something is dropped for want of room.
    overflows: LogThrottle,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Offline,
    Online,
    /// The session has ended.
    Closed,
}

/// What the owner must do apart from delivering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Close the connection and give the session to whoever asked for it.
    TakeOver,
    /// Close the connection.
    Close(ReasonCode),
}

/// What became of a push.
#[derive(Debug, Default)]
pub(crate) struct Pushed {
    /// Deliveries that were not wanted or did not fit.
    pub(crate) dropped: u64,
    /// Those of them that did not fit.
    pub(crate) overflowed: u64,
    /// And those for which the queues of all clients that are away had no room together.
    pub(crate) crowded: u64,
    /// The owner is told to leave for that.
    pub(crate) disconnects: bool,
    /// Their places in the store, of those that have one.
    pub(crate) lost: Vec<NonZeroU64>,
    /// What was for this session alone of several that could have had it: it has ended, and another may.
    pub(crate) orphans: Vec<Delivery>,
    /// How many did not fit since that was last logged, if it is time to log it.
    pub(crate) log: Option<u64>,
    /// The mailbox fills, though its owner sends: whoever pushes is faster than the client. It is worth waiting for
    /// until then, if there is no room before.
    pub(crate) congested: Option<Instant>,
}

impl Pushed {
    /// It made way for nothing: its time was over.
    fn expire(&mut self, removed: Removed) {
        self.dropped += removed.load.messages as u64;
        self.lost.extend(removed.places);
    }

    fn drop(&mut self, removed: Removed) {
        self.dropped += removed.load.messages as u64;
        self.overflowed += removed.load.messages as u64;
        self.lost.extend(removed.places);
    }
}

/// What was taken out because its time was over.
#[derive(Debug)]
pub(crate) struct Expired {
    /// The Message Expiry Interval of its publisher had passed.
    pub(crate) expired: Removed,
    /// It had waited for longer than anything may.
    pub(crate) outdated: Removed,
    /// Something is left that is going to expire.
    pub(crate) may_expire: bool,
}

/// An owner that sends is waited for so long at least, whatever its pace.
const WAIT: Duration = Duration::from_millis(100);

impl SessionQueue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere must not take this session's messages with it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds deliveries. The owner's waker goes to `wakers`, to be woken after
    /// the whole batch and outside of every lock.
    pub(crate) fn push(
        &self,
        deliveries: impl Iterator<Item = Delivery>,
        policy: &QueuePolicy,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Pushed {
        let mut pushed = Pushed::default();
        let mut inner = self.lock();
        for mut delivery in deliveries {
            let load = usage_of(&delivery);
            // Nobody is made to wait for bulk with what is urgent.
            if delivery.priority <= Priority::DEFAULT && pushed.congested.is_none() {
                pushed.congested = inner.congested_until(delivery.stream, policy.capacity.congestion(), now);
            }
            let is_wanted = inner.wants(&delivery, policy);
            if is_wanted && inner.make_room(&delivery, load, policy, now, &mut pushed) {
                if inner.state == State::Offline {
                    delivery.stream = StreamKey::CONTROL; // No stream outlives its connection. [BQ-42]
                    delivery.rest();
                }
                policy.begin_wait(&mut delivery, now);
                inner.backlog.push_back(delivery, load);
                continue;
            }
            if inner.state == State::Closed && delivery.shared.is_some() {
                pushed.orphans.push(delivery);
                continue;
            }
            pushed.dropped += 1;
            pushed.overflowed += u64::from(is_wanted);
            pushed.crowded += u64::from(is_wanted && inner.is_crowded(&delivery, load, policy));
            pushed.lost.extend(delivery.stored);
            if is_wanted && delivery.qos > QoS::AtMostOnce && policy.overflow == QueueOverflow::Disconnect {
                pushed.disconnects |= inner.give_up();
            }
        }
        if inner.backlog.has_arrivals() || pushed.disconnects {
            wakers.extend(inner.owner.take());
        }
        pushed.log = inner.overflows.note(pushed.overflowed, now);
        pushed
    }

    /// Whether there is room again, or nobody who makes some; if not, the caller is woken when that changes. An owner
    /// that has sent nothing yet is not the one that was waited for.
    pub(crate) fn poll_room(&self, capacity: QueueLimits, context: &Context<'_>) -> bool {
        let mut inner = self.lock();
        let owner_sends = inner.state == State::Online && inner.pulse.progress_at().is_some();
        if !owner_sends || inner.has_room_for_publishers(capacity) {
            return true;
        }
        if !inner.publishers.iter().any(|waker| waker.will_wake(context.waker())) {
            inner.publishers.push(context.waker().clone());
        }
        false
    }

    /// Whether a member of a shared subscription should get the next message.
    pub(crate) fn is_ready(&self, message: &Message, capacity: QueueLimits) -> bool {
        let inner = self.lock();
        inner.state == State::Online && inner.has_room(usage_of_message(message), capacity)
    }

    /// Whether anything pushed now is kept.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().state != State::Closed
    }

    /// Moves everything into `inbox`. With nothing there, the owner is woken at the next push or signal.
    ///
    /// `pulse`: that of the owner's client.
    pub(crate) fn poll_take(
        &self,
        inbox: &mut EgressQueue,
        resolve: impl Fn(StreamKey) -> StreamKey,
        pulse: AckRttEstimator,
        capacity: QueueLimits,
        context: &Context<'_>,
    ) -> Option<Signal> {
        let mut inner = self.lock();
        let signal = inner.signal.take();
        inner.pulse = pulse;
        let has_arrivals = inner.backlog.has_arrivals();
        let lane = if has_arrivals { inner.backlog.move_to(inbox, &resolve) } else { None };
        inner.taken = inbox.load();
        inner.has_kept_up |= inner.has_room_for_publishers(capacity);
        inner.resumed = inner.resumed.min(inner.held().heap_bytes());
        inbox.copy_shares(&mut inner.shares);
        match &mut inner.owner {
            Some(owner) => owner.clone_from(context.waker()),
            owner => *owner = Some(context.waker().clone()),
        }
        let publishers = inner.take_publishers(capacity);
        drop(inner);
        if has_arrivals {
            inbox.sort_arrivals(lane, resolve);
        }
        publishers.into_iter().for_each(Waker::wake);
        signal
    }

    /// The owner has dropped so many of what it took: what it holds no more stands in nobody's way. If that makes
    /// room, whoever waits for it is woken. Returns how many are to be logged.
    pub(crate) fn note_shed(
        &self,
        inbox: &mut EgressQueue,
        dropped: u64,
        capacity: QueueLimits,
        now: Instant,
    ) -> Option<u64> {
        let mut inner = self.lock();
        inner.taken = inbox.load();
        inbox.copy_shares(&mut inner.shares);
        let publishers = inner.take_publishers(capacity);
        let log = inner.overflows.note(dropped, now);
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        log
    }

    /// Bytes of memory for a client that is connected, but for what it came back to: that rests, and makes no room if it goes.
    pub(crate) fn used(&self) -> usize {
        let inner = self.lock();
        if inner.state == State::Online { inner.held().heap_bytes().saturating_sub(inner.resumed) } else { 0 }
    }

    /// Takes out what has expired or waited for too long, and has not been taken by the owner.
    pub(crate) fn expire(&self, policy: &QueuePolicy, now: Instant) -> Expired {
        self.lock().expire(policy, now)
    }

    /// Tells the owner to do something. Outside of the lock the caller wakes what is returned.
    #[must_use]
    pub(crate) fn signal(&self, signal: Signal) -> Option<Waker> {
        let mut inner = self.lock();
        // A take-over must not be forgotten for a mere close.
        if inner.signal != Some(Signal::TakeOver) {
            inner.signal = Some(signal);
        }
        inner.owner.take()
    }

    /// A connection begins to take from here; what was to be told to the one before is void. Only for whoever
    /// claims the session, before another claim can begin: its signal must not be lost.
    pub(crate) fn open(&self) {
        let mut inner = self.lock();
        inner.state = State::Online;
        inner.signal = None;
        inner.has_kept_up = false;
        inner.resumed = inner.held().heap_bytes();
    }

    /// Begins with what the store has, as far as there is room: the client is away since before the start. What is over
    /// by then makes room before anything new comes.
    pub(crate) fn shelve(&self, shelf: StoredQueue, policy: &QueuePolicy, now: Instant) -> (Expired, Pushed) {
        let over = {
            let mut inner = self.lock();
            inner.backlog.shelve(shelf);
            inner.expire(policy, now)
        };
        (over, self.park(VecDeque::new(), policy, now))
    }

    /// What is to be read from the store before the owner takes anything.
    pub(crate) fn shelved(&self) -> Vec<StoredEntry> {
        self.lock().backlog.shelved()
    }

    /// What was read takes the place of what it was read from; what has gone meanwhile does not come back. Returns the
    /// places of what waits and was not read.
    pub(crate) fn unshelve(&self, read: HashMap<NonZeroU64, Delivery>) -> Vec<NonZeroU64> {
        let mut inner = self.lock();
        let before = inner.held().heap_bytes();
        let missing = inner.backlog.unshelve(read);
        // It was there before its client was.
        inner.resumed += inner.held().heap_bytes().saturating_sub(before);
        missing
    }

    /// The connection has ended; what it took but did not send comes back to the front, as far as there is room.
    pub(crate) fn park(&self, leftover: VecDeque<Delivery>, policy: &QueuePolicy, now: Instant) -> Pushed {
        let mut inner = self.lock();
        inner.state = State::Offline;
        inner.owner = None;
        inner.pulse = AckRttEstimator::default();
        let publishers = std::mem::take(&mut inner.publishers);
        inner.taken = QueueUsage::default();
        inner.shares.clear();
        inner.backlog.restore(leftover, |delivery| {
            delivery.rest();
            policy.begin_wait(delivery, now);
        });
        let mut pushed = Pushed::default();
        pushed.expire(inner.backlog.expire(now));
        if !policy.keeps_qos0 || inner.backlog.load().exceeds(policy.capacity) {
            pushed.dropped += inner.backlog.drop_qos0();
        }
        if policy.overflow == QueueOverflow::DropOldest {
            pushed.drop(inner.trim(policy.capacity));
        }
        pushed.log = inner.overflows.note(pushed.overflowed, now);
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        pushed
    }

    /// The session has ended: what is left.
    pub(crate) fn close(&self) -> VecDeque<Delivery> {
        let mut inner = self.lock();
        inner.state = State::Closed;
        inner.owner = None;
        let publishers = std::mem::take(&mut inner.publishers);
        inner.taken = QueueUsage::default();
        inner.shares.clear();
        let queue = inner.backlog.take();
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        queue
    }
}

impl Inner {
    fn expire(&mut self, policy: &QueuePolicy, now: Instant) -> Expired {
        let expired = self.backlog.expire(now);
        let outdated = if policy.has_age() {
            self.backlog.remove(|terms| policy.is_too_old(terms.waits_since, now))
        } else {
            Removed::default()
        };
        Expired { expired, outdated, may_expire: self.backlog.may_expire() }
    }

    /// Whether anything is to be done for it at all.
    fn wants(&self, delivery: &Delivery, policy: &QueuePolicy) -> bool {
        match self.state {
            State::Online => true,
            State::Offline => policy.keeps_qos0 || delivery.qos > QoS::AtMostOnce,
            State::Closed => false,
        }
    }

    /// Makes room for a delivery if there is none and it may; whether there is room then.
    fn make_room(
        &mut self,
        delivery: &Delivery,
        load: QueueUsage,
        policy: &QueuePolicy,
        now: Instant,
        pushed: &mut Pushed,
    ) -> bool {
        let capacity = policy.capacity.reserve(delivery.priority);
        let fits = |inner: &Self| {
            inner.has_room(load, capacity)
                && inner.shares_fairly(delivery, load, capacity)
                && !inner.is_crowded(delivery, load, policy)
        };
        if fits(self) {
            return true;
        }
        // What nobody gets any more stands in nobody's way.
        pushed.expire(self.backlog.expire(now));
        if fits(self) {
            return true;
        }
        if delivery.qos == QoS::AtMostOnce {
            return false;
        }
        let shed = self.backlog.drop_qos0();
        pushed.dropped += shed;
        pushed.overflowed += shed;
        let is_crowded = self.is_crowded(delivery, load, policy);
        if self.has_room_beside_qos0(load, capacity)
            && self.shares_fairly(delivery, load, capacity)
            && !is_crowded
        {
            return true;
        }
        if policy.overflow != QueueOverflow::DropOldest {
            return false;
        }
        // What it has itself must make up for what comes: nothing goes in vain.
        if is_crowded && self.backlog.arrived_bytes() < load.heap_bytes() {
            return false;
        }
        let mut removed = Removed::default();
        let has_room = self.displace(delivery, load, capacity, is_crowded, &mut removed);
        if is_crowded {
            pushed.crowded += removed.load.messages as u64;
        }
        pushed.drop(removed);
        has_room
    }

    /// Takes out what waits longest and is no more urgent, until there is room. What the owner holds it takes out
    /// itself, when it comes for this. `is_crowded`: as much must go as comes.
    fn displace(
        &mut self,
        delivery: &Delivery,
        load: QueueUsage,
        capacity: QueueLimits,
        is_crowded: bool,
        removed: &mut Removed,
    ) -> bool {
        loop {
            let (mut own, mut all) = (self.backlog.usage_of(delivery.stream), self.backlog.load());
            let fits = all.admits(load, capacity);
            own.add(load);
            all.add(load);
            let is_fair = self.backlog.is_of_one_stream() || is_fair_share(own, all, capacity);
            // What is urgent may have filled its reserve: then one goes for one that comes.
            let freed = removed.load;
            let has_bytes = freed.bytes >= load.bytes || all.weight(capacity) <= capacity.bytes;
            let replaces = load.large_bytes == 0 && freed.messages > 0 && has_bytes;
            let makes_up = freed.messages > 0 && freed.heap_bytes() >= load.heap_bytes();
            let has_place = fits && is_fair || replaces;
            if has_place && (makes_up || !is_crowded) {
                return true;
            }
            let displaced = if has_place {
                self.backlog.displace_arrived(delivery.priority)
            } else {
                self.backlog.displace(delivery.priority, fits.then_some(delivery.stream))
            };
            let Some((load, place)) = displaced else { return false };
            removed.note(load, place);
        }
    }

    /// Takes out what is too much.
    fn trim(&mut self, capacity: QueueLimits) -> Removed {
        let mut removed = Removed::default();
        // What is urgent may use its reserve.
        let capacity = capacity.reserve(Priority::HIGHEST);
        while self.backlog.load().exceeds(capacity)
            && let Some((load, place)) = self.backlog.displace(Priority::HIGHEST, None)
        {
            removed.note(load, place);
        }
        removed
    }

    /// Something did not fit: the owner is to leave, if it is there and had kept up. Whether it is told now.
    fn give_up(&mut self) -> bool {
        let leaves = self.state == State::Online && self.has_kept_up && self.signal.is_none();
        if leaves {
            self.signal = Some(Signal::Close(ReasonCode::QuotaExceeded));
            self.has_kept_up = false;
        }
        leaves
    }

    /// Whether the queues of all clients that are away, of which this is one, have no room together.
    fn is_crowded(&self, delivery: &Delivery, load: QueueUsage, policy: &QueuePolicy) -> bool {
        self.state == State::Offline && policy.is_crowded(load.heap_bytes(), delivery.priority)
    }

    fn has_room(&self, load: QueueUsage, capacity: QueueLimits) -> bool {
        self.held().admits(load, capacity)
    }

    /// The same for what is to be acknowledged: QoS 0 that the owner holds does not stand in its way.
    fn has_room_beside_qos0(&self, load: QueueUsage, capacity: QueueLimits) -> bool {
        let mut held = self.taken.beside_qos0();
        held.add(self.backlog.load());
        held.admits(load, capacity)
    }

    /// Whether a stream with this delivery leaves enough for the others, where there are others. [BQ-55]
    fn shares_fairly(&self, delivery: &Delivery, load: QueueUsage, capacity: QueueLimits) -> bool {
        let stream = delivery.stream;
        if stream.is_control() && self.shares.is_empty() && self.backlog.is_of_one_stream() {
            return true;
        }
        let mut own = self.shares.usage_of(stream);
        own.add(self.backlog.usage_of(stream));
        let mut all = self.held();
        if delivery.qos > QoS::AtMostOnce {
            (own, all) = (own.beside_qos0(), all.beside_qos0()); // It makes room.
        }
        own.add(load);
        all.add(load);
        is_fair_share(own, all, capacity)
    }

    /// Until when a publisher should wait for this stream, if it should: more waits than is good, and the stream takes
    /// it. One that is stuck is waited for by nobody, and for what it leaves lying about no other stream is to blame.
    /// [BQ-55]
    fn congested_until(&self, stream: StreamKey, congestion: QueueLimits, now: Instant) -> Option<Instant> {
        let exceeds = |messages, bytes| messages > congestion.messages || bytes > congestion.bytes;
        if self.state != State::Online || !exceeds(self.len(), self.bytes()) {
            return None;
        }
        let progress_at = match self.shares.progress_of(stream) {
            Some(progress_at) => progress_at?,
            None if self.shares.is_empty()
                || exceeds(self.backlog.load().messages, self.backlog.load().bytes) =>
            {
                self.pulse.progress_at()?
            }
            None => return None,
        };
        let stuck_at = progress_at + self.pulse.patience();
        (now < stuck_at).then(|| stuck_at.max(now + WAIT))
    }

    /// All that is held, here or with the owner.
    fn held(&self) -> QueueUsage {
        let mut held = self.taken;
        held.add(self.backlog.load());
        held
    }

    /// Whether publishers need not wait: what is held, here and with the owner, is not too much.
    fn has_room_for_publishers(&self, capacity: QueueLimits) -> bool {
        let congestion = capacity.congestion();
        self.len() <= congestion.messages && self.bytes() <= congestion.bytes
    }

    /// Those who wait for room, if there is some; to be woken outside of the lock.
    #[must_use]
    fn take_publishers(&mut self, capacity: QueueLimits) -> Vec<Waker> {
        if self.has_room_for_publishers(capacity) { std::mem::take(&mut self.publishers) } else { Vec::new() }
    }

    /// Messages that wait here or with the owner.
    fn len(&self) -> usize {
        self.backlog.load().messages + self.taken.messages
    }

    /// Their cost.
    fn bytes(&self) -> usize {
        self.backlog.load().bytes.saturating_add(self.taken.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::SystemTime;

    use braid_proto::topic::TopicName;
    use braid_store::{Lsn, StoredDelivery};

    use super::*;
    use crate::config::LimitsConfig;
    use crate::memory::Memory;

    const CAPACITY: QueueLimits = QueueLimits { messages: 8, bytes: 1 << 20 };

    fn policy(now: Instant) -> QueuePolicy {
        let limits = LimitsConfig {
            queued_messages: CAPACITY.messages,
            queued_bytes: CAPACITY.bytes,
            ..LimitsConfig::default()
        };
        QueuePolicy::new(&limits, now, Arc::new(Memory::new(&limits)))
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A mailbox, and a publisher who counts how often it is woken.
    struct Scene {
        mailbox: SessionQueue,
        publisher: Arc<Woken>,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            Self { mailbox: SessionQueue::default(), publisher: Arc::default(), now: Instant::now() }
        }

        /// An owner that sends takes what is there.
        fn take(&self, inbox: &mut EgressQueue) {
            let (mut pulse, context) = (AckRttEstimator::default(), Context::from_waker(Waker::noop()));
            pulse.note_progress(self.now);
            self.mailbox.poll_take(inbox, |stream| stream, pulse, CAPACITY, &context);
        }

        /// Six of eight are more than is good.
        fn push_six(&self, qos: QoS) -> Pushed {
            let topic = TopicName::parse("t").expect("a topic name");
            let message = Arc::new(Message::new(topic, bytes::Bytes::new(), qos, false));
            let deliveries = std::iter::repeat_with(|| Delivery::of(message.clone())).take(6);
            self.mailbox.push(deliveries, &policy(self.now), self.now, &mut Vec::new())
        }

        /// What the publisher is told, who waits if there is none.
        fn has_room(&self) -> bool {
            let waker = Waker::from(self.publisher.clone());
            self.mailbox.poll_room(CAPACITY, &Context::from_waker(&waker))
        }

        /// The owner leaves.
        fn park(&self) {
            self.mailbox.park(VecDeque::new(), &policy(self.now), self.now);
        }

        fn times_woken(&self) -> usize {
            self.publisher.0.load(Ordering::Relaxed)
        }
    }

    /// What the owner took was more than is good; then it drops what is of QoS 0.
    #[test]
    fn whoever_waits_for_room_is_told_when_the_owner_sheds_enough() {
        let (scene, mut inbox) = (Scene::new(), EgressQueue::default());
        scene.mailbox.open();
        scene.push_six(QoS::AtMostOnce);
        scene.take(&mut inbox);
        assert!(!scene.has_room());
        for woken in [0, 0, 0, 1] {
            assert!(inbox.pop(|_, _| true).is_some());
            scene.mailbox.note_shed(&mut inbox, 0, CAPACITY, scene.now);
            assert_eq!(scene.times_woken(), woken, "{} of eight are left", inbox.load().messages);
        }
        assert!(scene.has_room());
    }

    /// [BQ-54]: what an owner leaves is before what came since it last looked, and all of it before what comes.
    #[test]
    fn what_comes_back_is_before_what_came_meanwhile() {
        let (scene, mut inbox) = (Scene::new(), EgressQueue::default());
        let push = |text: &'static str| {
            let topic = TopicName::parse("t").expect("a topic name");
            let message = Message::new(topic, text.into(), QoS::AtLeastOnce, false);
            let delivery = std::iter::once(Delivery::of(Arc::new(message)));
            scene.mailbox.push(delivery, &policy(scene.now), scene.now, &mut Vec::new());
        };
        scene.mailbox.open();
        ["1", "2"].into_iter().for_each(push);
        scene.take(&mut inbox);
        push("3");
        scene.mailbox.park(inbox.drain(), &policy(scene.now), scene.now);
        push("4");
        scene.mailbox.open();
        push("5");
        scene.take(&mut inbox);
        let texts: Vec<_> = inbox.drain().iter().map(|delivery| delivery.message.payload.clone()).collect();
        assert_eq!(texts, ["1", "2", "3", "4", "5"]);
    }

    /// Nobody waits for the store with the mailbox locked: what is in it may have gone by then.
    #[test]
    fn what_goes_while_it_is_read_does_not_come_back() {
        let (scene, mut inbox) = (Scene::new(), EgressQueue::default());
        let limits = LimitsConfig {
            queued_messages: 3,
            queue_overflow: QueueOverflow::DropOldest,
            ..LimitsConfig::default()
        };
        let memory = Arc::new(Memory::new(&limits));
        let policy = QueuePolicy::new(&limits, scene.now, memory.clone());
        let number = |number| NonZeroU64::new(number).expect("not zero");
        let delivery = |place| {
            let topic = TopicName::parse("t").expect("a topic name");
            let message = Arc::new(Message::new(topic, bytes::Bytes::new(), QoS::AtLeastOnce, false));
            Delivery { stored: Some(number(place)), ..Delivery::of(message) }
        };
        let shelved = |place| {
            let lsn = Lsn::new(place);
            StoredEntry::new(lsn, StoredDelivery::new(lsn, QoS::AtLeastOnce), SystemTime::UNIX_EPOCH)
        };
        let shelf = StoredQueue::new((1..=3).map(shelved).collect(), scene.now, None, memory);
        drop(scene.mailbox.shelve(shelf, &policy, scene.now));
        assert_eq!(scene.mailbox.shelved().len(), 3);
        let pushed = scene.mailbox.push(std::iter::once(delivery(4)), &policy, scene.now, &mut Vec::new());
        assert_eq!(pushed.lost, [number(1)]);
        scene.mailbox.open();
        scene.take(&mut inbox);
        assert!(inbox.is_empty(), "nothing is taken before what is older");
        let read = [1, 2].map(|place| (number(place), delivery(place)));
        assert_eq!(scene.mailbox.unshelve(read.into()), [number(3)], "that one waits, and was not read");
        assert_eq!(scene.mailbox.used(), 0, "it came back to all of this");
        scene.take(&mut inbox);
        let places: Vec<_> = inbox.drain().iter().filter_map(|delivery| delivery.stored).collect();
        assert_eq!(places, [number(2), number(4)]);
    }

    /// Whoever frees memory by leaving is one who holds some: what is in a spool is none.
    #[test]
    fn what_is_in_a_spool_is_no_memory() {
        let (scene, mut inbox) = (Scene::new(), EgressQueue::default());
        scene.mailbox.open();
        for (qos, spooled) in [(QoS::AtLeastOnce, true), (QoS::AtMostOnce, true), (QoS::AtMostOnce, false)] {
            let topic = TopicName::parse("t").expect("a topic name");
            let message = Message::new(topic, vec![0; 10_000].into(), qos, false).with_spooled(spooled);
            let delivery = std::iter::once(Delivery::of(Arc::new(message)));
            scene.mailbox.push(delivery, &policy(scene.now), scene.now, &mut Vec::new());
        }
        for _ in 0..2 {
            assert!((10_000..12_000).contains(&scene.mailbox.used()), "{}", scene.mailbox.used());
            scene.take(&mut inbox);
        }
        assert_eq!(inbox.shed(QueueLimits { messages: 1, bytes: 0 }), 2);
        scene.mailbox.note_shed(&mut inbox, 2, CAPACITY, scene.now);
        assert!((1..1000).contains(&scene.mailbox.used()), "{}", scene.mailbox.used());
    }

    /// Whoever waits for room is told that the one who was to make it has left, and does not begin to wait for the
    /// next one, of whose pace nothing is known.
    #[test]
    fn nobody_waits_for_an_owner_who_has_left() {
        let scene = Scene::new();
        for (ends, woken) in [(false, 1), (true, 2)] {
            scene.mailbox.open();
            scene.take(&mut EgressQueue::default());
            assert!(scene.push_six(QoS::AtLeastOnce).congested.is_some() && !scene.has_room());
            if ends {
                scene.mailbox.close();
            } else {
                scene.park();
            }
            assert_eq!(scene.times_woken(), woken);
            scene.mailbox.open();
            assert!(scene.has_room(), "the next owner has shown nothing yet");
            scene.park();
        }
    }
}
