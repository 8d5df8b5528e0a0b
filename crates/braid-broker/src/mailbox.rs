//! What others have for a session: the only thing of a session that other tasks touch.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{MessageProperties, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Lane, Priority, StreamKey};

use crate::inbox::Inbox;
use crate::pulse::Pulse;
use crate::shares::Shares;

/// What a delivery costs beside its texts and payload, about.
const DELIVERY_OVERHEAD: usize = 256;

/// What a User Property costs beside its texts, about.
const PROPERTY_OVERHEAD: usize = 64;

/// Bytes of a message from which on it is a large one: above, our client too gives it a stream of its own.
const LARGE: usize = 256 << 10;

/// Capacity that an empty mailbox may keep.
pub(crate) const KEEP_CAPACITY: usize = 64;

/// A session's bounded queue with the means to wake its owner.
///
/// Overflow policy: what does not fit is dropped and counted, QoS 0 before anything else; QoS 0 is dropped while
/// nobody is online. No push ever waits. It tells when the owner cannot keep up: then the publisher may hold its
/// acknowledgements back until there is room, the owner leaves, or it has waited long enough.
///
/// A std Mutex: it is held for a few pushes or one swap, never across an await or a wake-up.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<Delivery>,
    /// Of the queue.
    load: Load,
    /// The lane of all that is queued, unless there are several.
    lane: Option<Lane>,
    /// What is queued stream by stream, once it is for more than one.
    mixed: Shares,
    /// What the owner took and had not sent when it last looked in. It counts like what is queued: otherwise a
    /// client that never reads would double what it may hold, and add as much again with every reconnect.
    taken: Load,
    /// The same stream by stream.
    shares: Shares,
    state: State,
    signal: Option<Signal>,
    /// Set while the owner sleeps.
    owner: Option<Waker>,
    /// When the owner last sent something, and how quickly its client answers.
    pulse: Pulse,
    /// Publishers who wait with their acknowledgements until there is room again.
    publishers: Vec<Waker>,
}

/// How much is held somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// How many of the messages are of QoS 0.
    pub(crate) qos0: usize,
    /// And how many of the bytes.
    pub(crate) qos0_bytes: usize,
    /// How many of the bytes are in large messages.
    pub(crate) large_bytes: usize,
    /// And of those of QoS 0.
    pub(crate) qos0_large_bytes: usize,
}

impl Load {
    pub(crate) fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.qos0 += more.qos0;
        self.qos0_bytes = self.qos0_bytes.saturating_add(more.qos0_bytes);
        self.large_bytes = self.large_bytes.saturating_add(more.large_bytes);
        self.qos0_large_bytes = self.qos0_large_bytes.saturating_add(more.qos0_large_bytes);
    }

    pub(crate) fn subtract(&mut self, less: Self) {
        self.messages = self.messages.saturating_sub(less.messages);
        self.bytes = self.bytes.saturating_sub(less.bytes);
        self.qos0 = self.qos0.saturating_sub(less.qos0);
        self.qos0_bytes = self.qos0_bytes.saturating_sub(less.qos0_bytes);
        self.large_bytes = self.large_bytes.saturating_sub(less.large_bytes);
        self.qos0_large_bytes = self.qos0_large_bytes.saturating_sub(less.qos0_large_bytes);
    }

    /// What is to be acknowledged.
    pub(crate) fn beside_qos0(self) -> Self {
        Self {
            messages: self.messages.saturating_sub(self.qos0),
            bytes: self.bytes.saturating_sub(self.qos0_bytes),
            large_bytes: self.large_bytes.saturating_sub(self.qos0_large_bytes),
            ..Self::default()
        }
    }

    /// Whether `more`, one message, may be held beside this.
    pub(crate) fn admits(self, more: Self, capacity: Capacity) -> bool {
        let fits = match more.large_bytes {
            _ if self.messages == 0 => true,
            0 => self.weight(capacity).saturating_add(more.bytes) <= capacity.bytes,
            // However large it is: nobody could ever get it otherwise.
            _ if self.large_bytes == 0 => self.bytes <= capacity.bytes,
            large => {
                self.large_bytes.saturating_add(large) <= capacity.of_large()
                    && self.bytes.saturating_add(large) <= capacity.bytes
            }
        };
        fits && self.messages < capacity.messages
    }

    /// What it takes of the bytes of a capacity: one large message may be larger than all of it, and leaves room for
    /// small ones nevertheless.
    pub(crate) fn weight(self, capacity: Capacity) -> usize {
        let small = self.bytes.saturating_sub(self.large_bytes);
        small.saturating_add(self.large_bytes.min(capacity.of_large()))
    }
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

/// How much a mailbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Capacity {
    /// What is urgent may use a reserve: bulk that fills a mailbox must not keep an alarm out.
    fn reserve(self, priority: Priority) -> Self {
        if priority <= Priority::DEFAULT {
            return self;
        }
        Self { messages: self.messages / 4 * 5, bytes: self.bytes / 4 * 5 }
    }

    /// What large messages may fill. The rest is for small ones, which one recording that waits must not keep out.
    fn of_large(self) -> usize {
        self.bytes / 4 * 3
    }

    /// From here on publishers are slowed down.
    fn congestion(self) -> Self {
        Self { messages: self.messages / 4, bytes: self.bytes / 4 }
    }
}

/// What became of a push.
#[derive(Debug)]
pub(crate) struct Pushed {
    /// Deliveries that were not wanted or did not fit.
    pub(crate) dropped: u64,
    /// Their places in the store, of those that have one.
    pub(crate) lost: Vec<NonZeroU64>,
    /// The mailbox fills, though its owner sends: whoever pushes is faster than the client. It is worth waiting for
    /// until then, if there is no room before.
    pub(crate) congested: Option<Instant>,
}

/// Of several streams each may hold so many times what it leaves free: however many are not read, the next one finds
/// room.
const SHARE: usize = 8;

/// An owner that sends is waited for so long at least, whatever its pace.
const WAIT: Duration = Duration::from_millis(100);

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere must not take this session's messages with it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds deliveries. The owner's waker goes to `wakers`, to be woken after
    /// the whole batch and outside of every lock.
    pub(crate) fn push(
        &self,
        deliveries: impl Iterator<Item = Delivery>,
        capacity: Capacity,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> Pushed {
        let (mut dropped, mut lost) = (0, Vec::new());
        let mut inner = self.lock();
        let mut congested = None;
        for mut delivery in deliveries {
            let load = load_of(&delivery);
            // Nobody is made to wait for bulk with what is urgent.
            if delivery.priority <= Priority::DEFAULT && congested.is_none() {
                congested = inner.congested_until(delivery.stream, capacity.congestion(), now);
            }
            let capacity = capacity.reserve(delivery.priority);
            let mut fits = inner.has_room(load, capacity) && inner.shares_fairly(&delivery, load, capacity);
            if !fits && delivery.qos > QoS::AtMostOnce {
                if inner.load.qos0 > 0 {
                    dropped += inner.drop_qos0();
                }
                fits = inner.has_room_beside_qos0(load, capacity)
                    && inner.shares_fairly(&delivery, load, capacity);
            }
            let wanted = match inner.state {
                State::Online => true,
                State::Offline => delivery.qos > QoS::AtMostOnce,
                State::Closed => false,
            };
            if fits && wanted {
                if inner.state == State::Offline {
                    delivery.stream = StreamKey::CONTROL; // No stream outlives its connection. [BQ-42]
                }
                inner.push_back(delivery, load);
            } else {
                dropped += 1;
                lost.extend(delivery.stored);
            }
        }
        if !inner.queue.is_empty() {
            wakers.extend(inner.owner.take());
        }
        Pushed { dropped, lost, congested }
    }

    /// Whether there is room again, or nobody who makes some; if not, the caller is woken when that changes. An owner
    /// that has sent nothing yet is not the one that was waited for.
    pub(crate) fn poll_room(&self, capacity: Capacity, context: &Context<'_>) -> bool {
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
    pub(crate) fn is_ready(&self, message: &Message, capacity: Capacity) -> bool {
        let inner = self.lock();
        inner.state == State::Online && inner.has_room(load_of_message(message), capacity)
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
        inbox: &mut Inbox,
        resolve: impl Fn(StreamKey) -> StreamKey,
        pulse: Pulse,
        capacity: Capacity,
        context: &Context<'_>,
    ) -> Option<Signal> {
        let mut inner = self.lock();
        let signal = inner.signal.take();
        inner.pulse = pulse;
        let has_arrivals = !inner.queue.is_empty();
        let lane = inner.lane.take();
        if has_arrivals {
            let load = std::mem::take(&mut inner.load);
            let Inner { queue, mixed, .. } = &mut *inner;
            inbox.take(queue, load, mixed, &resolve);
            if !mixed.is_empty() {
                mixed.clear();
            }
        }
        inner.taken = inbox.load();
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

    /// The owner has dropped some of what it took: what it holds no more stands in nobody's way. If that makes room,
    /// whoever waits for it is woken.
    pub(crate) fn note_shed(&self, inbox: &mut Inbox, capacity: Capacity) {
        let mut inner = self.lock();
        inner.taken = inbox.load();
        inbox.copy_shares(&mut inner.shares);
        let publishers = inner.take_publishers(capacity);
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
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
    }

    /// The connection has ended; what it took but did not send comes back to the front. Returns how many were
    /// dropped because they are of QoS 0.
    pub(crate) fn park(&self, leftover: VecDeque<Delivery>) -> u64 {
        let mut inner = self.lock();
        inner.state = State::Offline;
        inner.owner = None;
        inner.pulse = Pulse::default();
        let publishers = std::mem::take(&mut inner.publishers);
        for delivery in leftover.into_iter().rev() {
            inner.queue.push_front(delivery);
        }
        inner.taken = Load::default();
        inner.shares.clear();
        let dropped = inner.drop_qos0();
        let Inner { queue, lane, .. } = &mut *inner;
        for delivery in queue.iter_mut() {
            delivery.stream = StreamKey::CONTROL; // No stream outlives its connection. [BQ-42]
        }
        *lane = None;
        inner.mixed.clear();
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        dropped
    }

    /// The session has ended: what is left.
    pub(crate) fn close(&self) -> VecDeque<Delivery> {
        let mut inner = self.lock();
        inner.state = State::Closed;
        inner.owner = None;
        let publishers = std::mem::take(&mut inner.publishers);
        inner.load = Load::default();
        inner.taken = Load::default();
        inner.shares.clear();
        inner.mixed.clear();
        let queue = std::mem::take(&mut inner.queue);
        drop(inner);
        publishers.into_iter().for_each(Waker::wake);
        queue
    }
}

impl Inner {
    fn has_room(&self, load: Load, capacity: Capacity) -> bool {
        self.held().admits(load, capacity)
    }

    /// The same for what is to be acknowledged: QoS 0 that the owner holds does not stand in its way.
    fn has_room_beside_qos0(&self, load: Load, capacity: Capacity) -> bool {
        let mut held = self.taken.beside_qos0();
        held.add(self.load);
        held.admits(load, capacity)
    }

    /// Whether a stream with this delivery leaves enough for the others, where there are others. [BQ-55]
    fn shares_fairly(&self, delivery: &Delivery, load: Load, capacity: Capacity) -> bool {
        let stream = delivery.stream;
        if stream.is_control() && self.shares.is_empty() && self.mixed.is_empty() {
            return true;
        }
        let mut own = self.shares.load_of(stream);
        own.add(self.queued_for(stream));
        let mut all = self.held();
        if delivery.qos > QoS::AtMostOnce {
            (own, all) = (own.beside_qos0(), all.beside_qos0()); // It makes room.
        }
        all.add(load);
        let mut mine = own;
        mine.add(load);
        let free = capacity.bytes.saturating_sub(all.weight(capacity));
        own.messages == 0
            || mine.weight(capacity) <= free.saturating_mul(SHARE)
                && mine.messages <= (capacity.messages + 1).saturating_sub(all.messages).saturating_mul(SHARE)
    }

    /// Until when a publisher should wait for this stream, if it should: more waits than is good, and the stream takes
    /// it. One that is stuck is waited for by nobody, and for what it leaves lying about no other stream is to blame.
    /// [BQ-55]
    fn congested_until(&self, stream: StreamKey, congestion: Capacity, now: Instant) -> Option<Instant> {
        let exceeds = |messages, bytes| messages > congestion.messages || bytes > congestion.bytes;
        if self.state != State::Online || !exceeds(self.len(), self.bytes()) {
            return None;
        }
        let progress_at = match self.shares.progress_of(stream) {
            Some(progress_at) => progress_at?,
            None if self.shares.is_empty() || exceeds(self.load.messages, self.load.bytes) => {
                self.pulse.progress_at()?
            }
            None => return None,
        };
        let stuck_at = progress_at + self.pulse.patience();
        (now < stuck_at).then(|| stuck_at.max(now + WAIT))
    }

    /// All that is held, here or with the owner.
    fn held(&self) -> Load {
        let mut held = self.taken;
        held.add(self.load);
        held
    }

    /// The part of the queue that is for a stream.
    fn queued_for(&self, stream: StreamKey) -> Load {
        if !self.mixed.is_empty() {
            self.mixed.load_of(stream)
        } else if self.queue.front().is_some_and(|first| first.stream == stream) {
            self.load
        } else {
            Load::default()
        }
    }

    fn push_back(&mut self, delivery: Delivery, load: Load) {
        let first = self.queue.front().map_or(delivery.stream, |first| first.stream);
        if self.mixed.is_empty() && first != delivery.stream {
            self.mixed.insert(first, self.load);
        }
        if !self.mixed.is_empty() {
            self.mixed.insert(delivery.stream, load);
        }
        self.load.add(load);
        let lane = delivery.lane();
        if self.queue.is_empty() {
            self.lane = Some(lane);
        } else if self.lane != Some(lane) {
            self.lane = None;
        }
        self.queue.push_back(delivery);
    }

    /// Makes room for what is to be acknowledged; returns how many were dropped.
    fn drop_qos0(&mut self) -> u64 {
        let before = self.queue.len();
        self.queue.retain(|delivery| delivery.qos > QoS::AtMostOnce);
        self.load = Load::default();
        self.queue.iter().for_each(|delivery| self.load.add(load_of(delivery)));
        self.mixed.drop_qos0();
        (before - self.queue.len()) as u64
    }

    /// Whether publishers need not wait: what is held, here and with the owner, is not too much.
    fn has_room_for_publishers(&self, capacity: Capacity) -> bool {
        let congestion = capacity.congestion();
        self.len() <= congestion.messages && self.bytes() <= congestion.bytes
    }

    /// Those who wait for room, if there is some; to be woken outside of the lock.
    #[must_use]
    fn take_publishers(&mut self, capacity: Capacity) -> Vec<Waker> {
        if self.has_room_for_publishers(capacity) { std::mem::take(&mut self.publishers) } else { Vec::new() }
    }

    /// Messages that wait here or with the owner.
    fn len(&self) -> usize {
        self.load.messages + self.taken.messages
    }

    /// Their cost.
    fn bytes(&self) -> usize {
        self.load.bytes.saturating_add(self.taken.bytes)
    }
}

/// One delivery, as a load.
pub(crate) fn load_of(delivery: &Delivery) -> Load {
    let load = load_of_message(&delivery.message);
    match delivery.qos {
        QoS::AtMostOnce => {
            Load { qos0: load.messages, qos0_bytes: load.bytes, qos0_large_bytes: load.large_bytes, ..load }
        }
        _ => load,
    }
}

fn load_of_message(message: &Message) -> Load {
    let bytes = message_cost(message);
    let large_bytes = if bytes > LARGE { bytes } else { 0 };
    Load { messages: 1, bytes, large_bytes, ..Load::default() }
}

/// The memory that a message keeps, about.
pub(crate) fn message_cost(message: &Message) -> usize {
    let properties = message.properties.as_deref().map_or(0, properties_cost);
    DELIVERY_OVERHEAD + message.topic.as_str().len() + properties + message.payload.len()
}

fn properties_cost(properties: &MessageProperties) -> usize {
    let user = properties.user.iter().map(|(name, value)| PROPERTY_OVERHEAD + name.len() + value.len());
    let content_type = properties.content_type.as_ref().map_or(0, |text| text.len());
    let response_topic = properties.response_topic.as_ref().map_or(0, |topic| topic.as_str().len());
    let correlation_data = properties.correlation_data.as_ref().map_or(0, bytes::Bytes::len);
    size_of::<MessageProperties>() + content_type + response_topic + correlation_data + user.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use braid_proto::topic::TopicName;

    use super::*;

    const CAPACITY: Capacity = Capacity { messages: 8, bytes: 1 << 20 };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A mailbox, and a publisher who counts how often it is woken.
    struct Scene {
        mailbox: Mailbox,
        publisher: Arc<Woken>,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            Self { mailbox: Mailbox::default(), publisher: Arc::default(), now: Instant::now() }
        }

        /// An owner that sends takes what is there.
        fn take(&self, inbox: &mut Inbox) {
            let (mut pulse, context) = (Pulse::default(), Context::from_waker(Waker::noop()));
            pulse.note_progress(self.now);
            self.mailbox.poll_take(inbox, |stream| stream, pulse, CAPACITY, &context);
        }

        /// Six of eight are more than is good.
        fn push_six(&self, qos: QoS) -> Pushed {
            let topic = TopicName::parse("t").expect("a topic name");
            let message = Arc::new(Message::new(topic, bytes::Bytes::new(), qos, false));
            let deliveries = std::iter::repeat_with(|| Delivery::of(message.clone())).take(6);
            self.mailbox.push(deliveries, CAPACITY, self.now, &mut Vec::new())
        }

        /// What the publisher is told, who waits if there is none.
        fn has_room(&self) -> bool {
            let waker = Waker::from(self.publisher.clone());
            self.mailbox.poll_room(CAPACITY, &Context::from_waker(&waker))
        }

        fn times_woken(&self) -> usize {
            self.publisher.0.load(Ordering::Relaxed)
        }
    }

    /// What the owner took was more than is good; then it drops what is of QoS 0.
    #[test]
    fn whoever_waits_for_room_is_told_when_the_owner_sheds_enough() {
        let (scene, mut inbox) = (Scene::new(), Inbox::default());
        scene.mailbox.open();
        scene.push_six(QoS::AtMostOnce);
        scene.take(&mut inbox);
        assert!(!scene.has_room());
        for woken in [0, 0, 0, 1] {
            assert!(inbox.pop(|_, _| true).is_some());
            scene.mailbox.note_shed(&mut inbox, CAPACITY);
            assert_eq!(scene.times_woken(), woken, "{} of eight are left", inbox.load().messages);
        }
        assert!(scene.has_room());
    }

    /// Whoever waits for room is told that the one who was to make it has left, and does not begin to wait for the
    /// next one, of whose pace nothing is known.
    #[test]
    fn nobody_waits_for_an_owner_who_has_left() {
        let scene = Scene::new();
        for (ends, woken) in [(false, 1), (true, 2)] {
            scene.mailbox.open();
            scene.take(&mut Inbox::default());
            assert!(scene.push_six(QoS::AtLeastOnce).congested.is_some() && !scene.has_room());
            if ends {
                scene.mailbox.close();
            } else {
                scene.mailbox.park(VecDeque::new());
            }
            assert_eq!(scene.times_woken(), woken);
            scene.mailbox.open();
            assert!(scene.has_room(), "the next owner has shown nothing yet");
            scene.mailbox.park(VecDeque::new());
        }
    }
}
