//! One direction of a link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::direction::Direction;
use super::nat::{Bindings, Crossing, Inside};
use super::prf::CounterPrf;
use super::queue::{Handling, Queue, Queued};
use super::spec::quantity::nanos;
use super::spec::{LinkSpec, PathSpec, Timeline};
use super::stage::Turn;
use super::stages::{Arrival, PendingChanges, Stages};
use super::verdict::{Fate, PathCounters, Verdict};

/// Capacity of untaken verdicts; further ones are counted only.
const VERDICTS: usize = 1 << 16;
/// Capacity of untaken replies; further ones are dropped.
const REPLIES: usize = 1 << 10;

/// One direction of a link: packets with their times go in, packets with their times come out.
///
/// The owner repeats: [`handle`](Self::handle) for each packet that has come, then [`take_due`](Self::take_due) until
/// `None`, [`take_reply`](Self::take_reply) until `None` and, if wanted, [`take_verdict`](Self::take_verdict) until
/// `None`; then it waits for a packet or for [`next_due`](Self::next_due). A time before the latest one counts as that.
///
/// The random decisions about packet `n` are a function of the seed, the direction, the stage and `n`, independent of
/// its time. Policer, queue limit and rate depend on time. Once the queue has reached its greatest length, no packet
/// allocates.
///
/// ```
/// use std::time::Duration;
/// use braid_emulator::{LinkSpec, Pipeline};
///
/// let link: LinkSpec = "delay=20ms / up: policer=29pps/5".parse()?;
/// let (mut up, _down) = Pipeline::pair(&link, 7);
/// let now = Duration::from_millis(3);
/// up.handle(now, &[0x45; 100]);
/// let due = up.next_due().ok_or("nothing to send")?;
/// assert_eq!(due, Duration::from_millis(23));
/// while let Some(departure) = up.take_due(due) {
///     // Send departure.bytes, then:
///     up.recycle(departure.bytes);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    stages: Stages,
    pending_changes: PendingChanges,
    queue: Queue,
    nat: NatSides,
    /// Bytes before the IP header.
    head: usize,
    now: u64,
    index: u64,
    counters: PathCounters,
    verdicts: VecDeque<Verdict>,
    replies: VecDeque<Vec<u8>>,
}

/// A packet that has to be sent now.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure {
    /// The packet's number in its direction; the first is 1.
    pub index: u64,
    /// Whether it is a duplicate.
    pub copy: bool,
    /// Due time; what the clock says beyond that is lateness.
    pub due: Duration,
    /// Link header, if there is one, and IP packet. To be given back with [`Pipeline::recycle`].
    pub bytes: Vec<u8>,
}

/// The NAT of the sender, and that of the receiver.
#[derive(Debug, Default)]
struct NatSides {
    leaving: Option<Inside>,
    entering: Option<Arc<Bindings>>,
}

impl Pipeline {
    /// The direction `direction` alone. If its sender is behind a NAT, nothing finds the way back: see
    /// [`pair`](Self::pair).
    pub fn new(path: impl Into<Timeline>, seed: u64, direction: Direction) -> Self {
        let timeline = path.into();
        let bindings = timeline.start.nat.clone().map(Bindings::new);
        Self::build(timeline, seed, direction, (bindings, None))
    }

    /// Both directions of `link`, up first, which share its NATs; each may live in a thread of its own. `seed` is for
    /// links that name none.
    pub fn pair(link: &LinkSpec, seed: u64) -> (Self, Self) {
        let seed = link.seed.unwrap_or(seed);
        let [left, right] =
            [&link.up, &link.down].map(|timeline| timeline.start.nat.clone().map(Bindings::new));
        let up = Self::build(link.up.clone(), seed, Direction::Up, (left.clone(), right.clone()));
        let down = Self::build(link.down.clone(), seed, Direction::Down, (right, left));
        (up, down)
    }

    fn build(
        timeline: Timeline,
        seed: u64,
        direction: Direction,
        (leaving, entering): (Option<Arc<Bindings>>, Option<Arc<Bindings>>),
    ) -> Self {
        let prf = CounterPrf::new(seed, direction);
        let leaving = leaving.map(|bindings| Inside::new(bindings, prf.clone()));
        Self {
            stages: Stages::new(timeline.start, prf),
            pending_changes: PendingChanges::new(timeline.changes),
            queue: Queue::new(),
            nat: NatSides { leaving, entering },
            head: 0,
            now: 0,
            index: 0,
            counters: PathCounters::default(),
            verdicts: VecDeque::new(),
            replies: VecDeque::new(),
        }
    }

    /// Says that each packet comes with `bytes` bytes before its IP header, 14 for Ethernet. They stay as they are and
    /// count nowhere.
    #[must_use]
    pub fn with_link_header(mut self, bytes: usize) -> Self {
        self.head = bytes;
        self
    }

    /// A packet has come, `frame` at `now`.
    pub fn handle(&mut self, now: Duration, frame: &[u8]) {
        let now = self.advance(now);
        self.index += 1;
        let packet = frame.get(self.head..).unwrap_or_default();
        let arrival = Arrival { now, index: self.index, copy: false, size: packet.len() };
        self.counters.offered.add(arrival.size);
        self.counters.largest = self.counters.largest.max(arrival.size as u64);
        if !self.stages.selects(packet) {
            if self.queue.is_unserved() {
                return self.settle(arrival, Fate::QueueFull);
            }
            return self.enter(arrival, frame, now, Handling::Unmatched, None);
        }
        let rolls = self.stages.roll(self.index);
        if !self.stages.police(now, arrival.size) {
            return self.settle(arrival, Fate::Policed);
        }
        if rolls.lost {
            return self.settle(arrival, Fate::Lost);
        }
        if !self.stages.has_room(&self.queue, arrival.size) {
            return self.settle(arrival, Fate::QueueFull);
        }
        // As in netem the duplicate enters first, and the packet itself is not asked for room again.
        if rolls.duplicated {
            let copy = Arrival { copy: true, ..arrival };
            self.counters.duplicated.add(copy.size);
            if rolls.copy_lost {
                self.settle(copy, Fate::Lost);
            } else if !self.stages.has_room(&self.queue, copy.size) {
                self.settle(copy, Fate::QueueFull);
            } else {
                self.admit(copy, frame);
            }
        }
        self.admit(arrival, frame);
        if let Some(due) = self.stages.replay(packet, arrival) {
            let copy = Arrival { copy: true, ..arrival };
            self.counters.duplicated.add(copy.size);
            self.enter(copy, frame, due, Handling::Delayed, None);
        }
    }

    /// Lets `path` hold from `now` on, in place of what the timeline says; later changes of the timeline still come.
    /// The NAT stays what it is.
    pub fn change(&mut self, now: Duration, path: PathSpec) {
        let now = self.advance(now);
        self.stages.apply(path, now);
    }

    /// Due time of the next packet, or time at which a managed queue decides about one; `None` while there is none.
    pub fn next_due(&self) -> Option<Duration> {
        let due = self.queue.next_due().into_iter().chain(self.stages.next_turn()).min();
        due.map(Duration::from_nanos)
    }

    /// The next packet that has to be sent at `now`, in the order of their times, at the same time in that of their
    /// coming.
    pub fn take_due(&mut self, now: Duration) -> Option<Departure> {
        self.advance(now);
        loop {
            let mut queued = self.queue.take_ready()?;
            let due = Duration::from_nanos(queued.due);
            let mut fate = match queued.handling {
                Handling::Unmatched => Fate::Unmatched,
                Handling::TooBig => Fate::TooBig,
                Handling::Delayed | Handling::Waiting => Fate::Sent { due },
                Handling::Overtaking => Fate::Overtook { due },
            };
            if matches!(fate, Fate::Sent { .. } | Fate::Overtook { .. }) && !self.cross_nat(&mut queued, due)
            {
                fate = Fate::Forgotten;
            }
            self.release(&queued, fate);
            let Queued { index, copy, bytes, .. } = queued;
            if !matches!(fate, Fate::TooBig | Fate::Forgotten) {
                return Some(Departure { index, copy, due, bytes });
            }
            self.queue.recycle(bytes);
        }
    }

    /// Takes the bytes of a departure back once they are sent. What is not given back is allocated anew.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.queue.recycle(bytes);
    }

    /// Next frame that the NAT answers to the sender of packets of this direction. It is not delayed.
    pub fn take_reply(&mut self) -> Option<Vec<u8>> {
        self.replies.pop_front()
    }

    /// The next verdict, in the order in which they were settled.
    pub fn take_verdict(&mut self) -> Option<Verdict> {
        self.verdicts.pop_front()
    }

    /// The counters so far.
    pub fn counters(&self) -> &PathCounters {
        &self.counters
    }

    fn advance(&mut self, now: Duration) -> u64 {
        self.now = self.now.max(nanos(now));
        loop {
            let turn = self.stages.next_turn().filter(|at| *at <= self.now);
            let until = turn.unwrap_or(self.now);
            if let Some((at, path)) = self.pending_changes.take(until) {
                self.stages.apply(path, at);
            } else if let Some(at) = turn {
                self.take_turn(at);
            } else {
                break;
            }
        }
        self.queue.advance(self.now);
        self.now
    }

    /// Lets the line take the next packet of a managed queue.
    fn take_turn(&mut self, at: u64) {
        let Turn { packet, dropped } = self.stages.turn(at, self.head);
        for queued in dropped {
            self.discard(queued, Fate::Managed);
        }
        if let Some(queued) = packet {
            // A packet that is due before now becomes ready when the queue advances.
            self.queue.enter(queued, at);
        }
    }

    /// Drops a packet that waited.
    fn discard(&mut self, queued: Queued, fate: Fate) {
        self.release(&queued, fate);
        self.queue.recycle(queued.bytes);
    }

    /// Counts and notes a packet that is inside no more.
    fn release(&mut self, queued: &Queued, fate: Fate) {
        let &Queued { index, copy, at, size, corrupted, is_marked, .. } = queued;
        self.counters.queued.remove(size);
        self.counters.count(fate, size);
        if is_marked && matches!(fate, Fate::Sent { .. }) {
            self.counters.marked.add(size);
        }
        self.note(Verdict { index, copy, at: Duration::from_nanos(at), size, corrupted, is_marked, fate });
    }

    /// Takes a packet in that has survived.
    fn admit(&mut self, arrival: Arrival, frame: &[u8]) {
        let corrupted = self.stages.corrupt(arrival);
        let (due, handling) = self.stages.schedule(arrival, &mut self.queue);
        self.enter(arrival, frame, due, handling, corrupted);
    }

    fn enter(
        &mut self,
        arrival: Arrival,
        frame: &[u8],
        due: u64,
        handling: Handling,
        corrupted: Option<u64>,
    ) {
        let Arrival { now, index, copy, size } = arrival;
        let mut bytes = self.queue.buffer();
        bytes.extend_from_slice(frame);
        if let Some(bit) = corrupted {
            let byte = self.head + usize::try_from(bit / 8).unwrap_or(0);
            bytes[byte] ^= 0x80 >> (bit % 8);
            self.counters.corrupted.add(size);
        }
        self.counters.queued.add(size);
        let queued = Queued { index, copy, at: now, due, size, corrupted, is_marked: false, handling, bytes };
        if handling == Handling::Waiting {
            for dropped in self.stages.wait(queued, self.head) {
                self.discard(dropped, Fate::QueueFull);
            }
            // An idle line takes it at once.
            self.advance(Duration::from_nanos(now));
        } else {
            self.queue.enter(queued, now);
        }
    }

    /// Whether the packet gets past the NATs.
    fn cross_nat(&mut self, queued: &mut Queued, at: Duration) -> bool {
        let Some(packet) = queued.bytes.get_mut(self.head..) else { return true };
        let mut crossing = Crossing::Through;
        if let Some(inside) = &mut self.nat.leaving {
            crossing = inside.leave(packet, at);
        }
        if let (Crossing::Through, Some(outside)) = (&crossing, &self.nat.entering) {
            crossing = outside.enter(packet, at);
        }
        let Crossing::Forgotten { reply } = crossing else { return true };
        if let Some(reply) = reply.filter(|_| self.replies.len() < REPLIES) {
            let frame = self.framed(&queued.bytes, &reply);
            self.replies.push_back(frame);
        }
        false
    }

    /// `reply` with the link header of `frame`, back to its sender.
    fn framed(&self, frame: &[u8], reply: &[u8]) -> Vec<u8> {
        const ADDRESSES: usize = 12;
        let mut framed = frame[..self.head].to_vec();
        if let Some(addresses) = framed.get_mut(..ADDRESSES) {
            addresses.rotate_left(ADDRESSES / 2);
        }
        framed.extend_from_slice(reply);
        framed
    }

    fn settle(&mut self, arrival: Arrival, fate: Fate) {
        let Arrival { now, index, copy, size } = arrival;
        self.counters.count(fate, size);
        let at = Duration::from_nanos(now);
        self.note(Verdict { index, copy, at, size, corrupted: None, is_marked: false, fate });
    }

    fn note(&mut self, verdict: Verdict) {
        if self.verdicts.len() < VERDICTS {
            self.verdicts.push_back(verdict);
        } else {
            self.counters.verdicts_dropped += 1;
        }
    }
}
