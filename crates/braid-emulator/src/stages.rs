//! The stages of a direction with their state, as the specification that holds now says.

use super::prf::{CounterPrf, Stage};
use super::queue::{Handling, Queue, Queued};
use super::spec::PathSpec;
use super::spec::quantity::nanos;
use super::stage::{ActiveQueue, Bucket, Delay, Limit, Line, LossModel, Order, Recorder, Turn};

#[derive(Debug)]
pub(crate) struct Stages {
    spec: PathSpec,
    prf: CounterPrf,
    bucket: Option<Bucket>,
    loss: Option<LossModel>,
    recorder: Option<Recorder>,
    delay: Option<Delay>,
    /// The latest time at which anything that was delayed leaves, in ns.
    last_due: u64,
    line: Option<Line>,
    /// Time (ns) at which the line that was there last has sent all that it was given.
    line_free: u64,
    /// Packets before the line, if their queue is managed.
    managed: Option<ActiveQueue>,
}

/// Random decisions about a packet, from the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rolls {
    pub(crate) lost: bool,
    pub(crate) duplicated: bool,
    /// Whether the duplicate is lost.
    pub(crate) copy_lost: bool,
}

/// Scheduling parameters of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) now: u64,
    pub(crate) index: u64,
    pub(crate) copy: bool,
    pub(crate) size: usize,
}

impl Stages {
    pub(crate) fn new(spec: PathSpec, prf: CounterPrf) -> Self {
        let mut stages = Self {
            spec: PathSpec::default(),
            prf,
            bucket: None,
            loss: None,
            recorder: None,
            delay: None,
            last_due: 0,
            line: None,
            line_free: 0,
            managed: None,
        };
        if spec.is_managed() {
            stages.managed = Some(ActiveQueue::new(spec.queue.unwrap_or_default(), spec.ecn));
        }
        stages.apply(spec, 0);
        stages
    }

    /// Lets `spec` hold from now on. A bucket, chain or recorder that does not change keeps its state; packets inside
    /// keep their time.
    pub(crate) fn apply(&mut self, spec: PathSpec, now: u64) {
        if self.bucket.as_ref().map(Bucket::policer) != spec.policer {
            self.bucket = spec.policer.map(|policer| Bucket::new(policer, now));
        }
        if self.loss.as_ref().map(LossModel::loss) != spec.loss.as_ref() {
            self.loss = spec.loss.clone().map(LossModel::new);
        }
        if self.recorder.as_ref().map(Recorder::replay) != spec.replay {
            self.recorder = spec.replay.map(Recorder::new);
        }
        self.delay = spec.delay.map(|mean| {
            Delay::new(mean, spec.jitter.unwrap_or_default(), &spec.distribution.clone().unwrap_or_default())
        });
        let line = spec.line();
        if self.line.as_ref().map(Line::spec) != line.as_ref() {
            self.line_free = self.line.as_ref().map_or(self.line_free, Line::free);
            self.line = line.map(|line| Line::new(line, self.line_free));
        }
        self.spec = spec;
        self.forget_managed();
    }

    /// Ends the management of a queue that is empty, if the specification names none any more.
    fn forget_managed(&mut self) {
        if !self.spec.is_managed() {
            self.managed.take_if(|managed| managed.since().is_none());
        }
    }

    /// Takes a packet into the managed queue. Returns those that have to go. `head`: bytes before the IP header.
    pub(crate) fn wait(&mut self, queued: Queued, head: usize) -> Vec<Queued> {
        let Some(managed) = &mut self.managed else { return Vec::new() };
        managed.push(queued, self.spec.limit.unwrap_or(Limit::DEFAULT), head)
    }

    /// Time (ns) at which the line takes the next packet of a managed queue.
    pub(crate) fn next_turn(&self) -> Option<u64> {
        let since = self.managed.as_ref().and_then(ActiveQueue::since)?;
        // Without a line nothing waits.
        Some(self.line.as_ref().map_or(since, |line| line.free().max(since)))
    }

    /// Lets the line take the next packet of the managed queue at `at` (ns), and sets its due time.
    pub(crate) fn turn(&mut self, at: u64, head: usize) -> Turn {
        let mut turn = self.managed.as_mut().map_or_else(Turn::default, |managed| managed.pop(at, head));
        if let Some(packet) = &mut turn.packet {
            let left = self.line.as_mut().map_or(at, |line| line.send(at, packet.size, &self.prf));
            packet.due = left.saturating_add(self.sample_delay(packet.index, packet.copy));
        }
        self.forget_managed();
        turn
    }

    /// Whether `packet`, an IP packet, is treated at all.
    pub(crate) fn selects(&self, packet: &[u8]) -> bool {
        self.spec.selector.as_ref().is_none_or(|selector| selector.selects(packet))
    }

    /// Duplication and loss of packet `index`. To be asked for every packet that is selected, and before anything that
    /// depends on time, so that the chains of loss models step with the packets' numbers only.
    pub(crate) fn roll(&mut self, index: u64) -> Rolls {
        let duplicated = self.hits(self.spec.duplicate, Stage::Duplicate, index, false);
        let lost = self.loss.as_mut().is_some_and(|loss| loss.step(&self.prf, index, false));
        // netem counts: one packet, plus one if duplicated, minus one if lost. Both together leave the packet alone.
        match (duplicated, lost) {
            (true, false) => {
                let copy_lost = self.loss.as_mut().is_some_and(|loss| loss.step(&self.prf, index, true));
                Rolls { lost: false, duplicated: true, copy_lost }
            }
            (true, true) => Rolls { lost: false, duplicated: false, copy_lost: false },
            (false, lost) => Rolls { lost, duplicated: false, copy_lost: false },
        }
    }

    /// Whether the policer has tokens for a packet.
    pub(crate) fn police(&mut self, now: u64, size: usize) -> bool {
        self.bucket.as_mut().is_none_or(|bucket| bucket.admit(now, size))
    }

    /// Whether the queue has room.
    pub(crate) fn has_room(&self, queue: &Queue, size: usize) -> bool {
        match self.managed {
            Some(_) => !queue.is_unserved(),
            None => queue.admits(self.spec.limit.unwrap_or(Limit::DEFAULT), self.order(), size),
        }
    }

    /// Which bit of a packet flips, if one does.
    pub(crate) fn corrupt(&self, Arrival { index, copy, size, .. }: Arrival) -> Option<u64> {
        let flips = size > 0 && self.hits(self.spec.corrupt, Stage::Corrupt, index, copy);
        flips.then(|| self.prf.below(Stage::CorruptBit, index, copy, size as u64 * 8))
    }

    /// Departure time of a packet, ns, and its handling.
    pub(crate) fn schedule(&mut self, arrival: Arrival, queue: &mut Queue) -> (u64, Handling) {
        let Arrival { now, index, copy, size } = arrival;
        let handling = match self.spec.mtu {
            Some(mtu) if size > usize::from(mtu) => Handling::TooBig,
            _ => Handling::Delayed,
        };
        if self.managed.is_some() {
            return (now, if handling == Handling::TooBig { handling } else { Handling::Waiting });
        }
        if handling == Handling::Delayed && self.hits(self.spec.reorder, Stage::Reorder, index, copy) {
            return (now, Handling::Overtaking);
        }
        let delay = self.sample_delay(index, copy);
        let order = self.order();
        let due = match (&mut self.line, order) {
            (None, _) => now.saturating_add(delay),
            (Some(line), Order::Netem) => {
                line.send(now.saturating_add(delay).max(self.last_due), size, &self.prf)
            }
            (Some(line), Order::Line) => {
                let left = line.send(now, size, &self.prf);
                queue.occupy_line(left, size);
                left.saturating_add(delay)
            }
        };
        self.last_due = self.last_due.max(due);
        (due, handling)
    }

    /// Delay of a packet, ns.
    fn sample_delay(&self, index: u64, copy: bool) -> u64 {
        let roll = self.prf.roll(Stage::Delay, index, copy);
        self.delay.as_ref().map_or(0, |delay| delay.sample(roll))
    }

    /// Departure time (ns) of the replay of an IP packet that has come, if it is replayed.
    pub(crate) fn replay(&mut self, packet: &[u8], arrival: Arrival) -> Option<u64> {
        let Arrival { now, index, size, .. } = arrival;
        if self.spec.mtu.is_some_and(|mtu| size > usize::from(mtu)) {
            return None;
        }
        let at = self.recorder.as_mut()?.record(packet, now)?;
        Some(at.saturating_add(self.sample_delay(index, true)))
    }

    fn order(&self) -> Order {
        self.spec.order.unwrap_or_default()
    }

    fn hits(&self, share: Option<super::spec::Probability>, stage: Stage, index: u64, copy: bool) -> bool {
        share.is_some_and(|share| share.hits(self.prf.roll(stage, index, copy)))
    }
}

/// Changes of the timeline that do not hold yet.
#[derive(Debug)]
pub(crate) struct PendingChanges {
    changes: std::vec::IntoIter<super::spec::Change>,
}

impl PendingChanges {
    pub(crate) fn new(changes: Vec<super::spec::Change>) -> Self {
        Self { changes: changes.into_iter() }
    }

    /// Time from which the next change holds, ns.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.changes.as_slice().first().map(|change| nanos(change.at))
    }

    /// The next change that holds at `now` (ns).
    pub(crate) fn take(&mut self, now: u64) -> Option<(u64, PathSpec)> {
        let at = self.next_at().filter(|&at| at <= now)?;
        self.changes.next().map(|change| (at, change.path))
    }
}
