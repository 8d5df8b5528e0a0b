//! The thread of one direction.

use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_measure::Latencies;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use super::batch::{BATCH, Batch};
use super::clock::Clock;
use super::end::DirectionEnd;
use super::lateness::{Reading, RunQueue, Waits};
use super::log::DirectionLog;
use super::wake::Wake;
use super::{Wire, sys};
use braid_emulator::{Departure, Direction, PacketCount, PathCounters, PathSpec, Pipeline};

/// Shortest interval between publications of the counters: a fifth of that of samplers.
const PUBLICATION: Duration = Duration::from_millis(20);
/// Pause after an error of a wire, such as that of a device that is down.
const PAUSE: Duration = Duration::from_millis(10);

/// Order of the owner of a link to a direction.
pub(super) enum Order {
    Change(Box<PathSpec>),
    Stop,
}

/// Counters for others to see. A lock that only this thread and a sampler take, a few times a second, and that this
/// thread never waits for.
pub(super) type Publication = Arc<Mutex<PathCounters>>;

/// Parts of a direction.
pub(super) struct Parts {
    pub(super) direction: Direction,
    pub(super) pipeline: Pipeline,
    pub(super) from: Arc<dyn Wire>,
    pub(super) to: Arc<dyn Wire>,
    pub(super) clock: Clock,
    pub(super) wake: Arc<Wake>,
    pub(super) orders: Receiver<Order>,
    pub(super) publication: Publication,
    pub(super) log: Option<DirectionLog>,
    pub(super) realtime: bool,
    pub(super) mtu: u16,
    pub(super) expected_loss: Option<f64>,
}

/// A direction at work. It repeats:
///
/// 1. read a batch;
/// 2. obey the orders of the owner: packets that come after an order meet it;
/// 3. hand the batch to the pipeline;
/// 4. send what is due, to the other wire;
/// 5. send replies, to the wire they came from;
/// 6. write the log and publish the counters;
/// 7. unless the batch was full: wait for a frame, an order or the next due time.
pub(super) struct Path {
    parts: Parts,
    batch: Batch,
    leaving: Vec<Departure>,
    lateness: Latencies,
    /// Counts where frames do not say when they came.
    run_queue: Option<RunQueue>,
    /// Time that the thread waited for a processor before it read the batch.
    queued: Duration,
    /// Times that packets waited to be read, beyond those in their due times.
    waits: Waits,
    /// The time that the pipeline has reached.
    reached: Duration,
    faults: Faults,
    bypassed: PacketCount,
    above_mtu: u64,
    expected_loss: Option<f64>,
    /// Time from which reading may go on after an error.
    resume_at: Duration,
    publish_at: Duration,
    unpublished: bool,
}

/// Errors, with their numbers.
#[derive(Default)]
struct Faults {
    unsent: PacketCount,
    first: Option<String>,
}

impl Faults {
    fn add(&mut self, doing: &str, wire: &dyn Wire, error: &io::Error) {
        self.first.get_or_insert_with(|| format!("{doing} {}: {error}", wire.name()));
    }
}

impl Path {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            expected_loss: parts.expected_loss,
            parts,
            batch: Batch::new(),
            leaving: Vec::with_capacity(BATCH),
            lateness: Latencies::with_resolution(Duration::from_nanos(1)),
            run_queue: None,
            queued: Duration::ZERO,
            waits: Waits::new(),
            reached: Duration::ZERO,
            faults: Faults::default(),
            bypassed: PacketCount::default(),
            above_mtu: 0,
            resume_at: Duration::ZERO,
            publish_at: Duration::ZERO,
            unpublished: false,
        }
    }

    /// Runs until the order to stop.
    pub(super) fn run(mut self) -> DirectionEnd {
        // The kernel may otherwise wake us 50 us late to save power. It cannot fail since Linux 2.6.28.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let realtime = self.parts.realtime && sys::run_first();
        // Only here is it the thread that reads.
        self.run_queue = (!self.parts.from.stamps()).then(RunQueue::of_this_thread);
        loop {
            self.read();
            let stop = !self.obey();
            self.handle_batch();
            self.send_due();
            self.send_replies();
            self.write_log();
            self.publish();
            if stop {
                return self.end(realtime);
            }
            if !self.batch.is_full() {
                self.wait();
            }
        }
    }

    /// Whether to go on.
    fn obey(&mut self) -> bool {
        if !self.parts.wake.take() {
            return true;
        }
        while let Ok(order) = self.parts.orders.try_recv() {
            let Order::Change(path) = order else { return false };
            let now = self.parts.clock.now();
            // The share over the whole time is no longer that of either.
            self.expected_loss = None;
            let after = self.parts.pipeline.counters().offered.packets;
            if let Some(log) = &mut self.parts.log {
                log.changed(after, now, &path);
            }
            self.parts.pipeline.change(now, *path);
            self.reached = self.reached.max(now);
        }
        true
    }

    fn read(&mut self) {
        let Parts { from, clock, .. } = &self.parts;
        self.batch.clear();
        if clock.now() < self.resume_at {
            return;
        }
        match from.recv(&mut self.batch) {
            Err(error) if !is_transient(&error) => {
                self.faults.add("reading", &**from, &error);
                self.resume_at = clock.now() + PAUSE;
            }
            _ => {}
        }
        if let Some(run_queue) = &mut self.run_queue {
            self.queued = run_queue.since_last(clock.now());
        }
    }

    fn handle_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let Parts { pipeline, from, to, clock, log, mtu, .. } = &mut self.parts;
        let ((now, wall), head) = (clock.now_and_wall(), from.link_header());
        for (frame, stamp) in self.batch.frames().zip(self.batch.arrivals()) {
            if !carries_ip(frame, head) {
                self.bypassed.add(frame.len().saturating_sub(head));
                transmit(&**to, &[IoSlice::new(frame)], |_, error| {
                    self.faults.unsent.add(frame.len());
                    self.faults.add("sending to", &**to, &error);
                });
                continue;
            }
            self.above_mtu += u64::from(frame.len().saturating_sub(head) > usize::from(*mtu));
            let copies = pipeline.counters().duplicated.packets;
            let came = stamp.map_or(now, |stamp| now.saturating_sub(wall.saturating_sub(stamp)));
            // The pipeline does not go back; what it cannot know is late all the same.
            self.reached = self.reached.max(came);
            let came_at = self.reached;
            pipeline.handle(came_at, frame);
            self.waits.set(pipeline.counters().offered.packets, came_at.saturating_sub(came) + self.queued);
            if let Some(log) = log {
                let counters = pipeline.counters();
                log.arrived(counters.offered.packets, came_at, counters.duplicated.packets > copies, frame);
            }
        }
        self.unpublished = true;
    }

    fn send_due(&mut self) {
        let Parts { pipeline, to, clock, log, .. } = &mut self.parts;
        loop {
            let now = clock.now();
            self.reached = self.reached.max(now);
            while self.leaving.len() < BATCH
                && let Some(departure) = pipeline.take_due(now)
            {
                self.leaving.push(departure);
            }
            if self.leaving.is_empty() {
                return;
            }
            let mut frames = [IoSlice::new(&[]); BATCH];
            for (frame, departure) in frames.iter_mut().zip(&self.leaving) {
                *frame = IoSlice::new(&departure.bytes);
            }
            let mut unsent = 0_u64;
            transmit(&**to, &frames[..self.leaving.len()], |place, error| {
                let departure = &self.leaving[place];
                unsent |= 1 << place;
                self.faults.unsent.add(departure.bytes.len());
                self.faults.add("sending to", &**to, &error);
                if let Some(log) = log {
                    log.unsent(departure, &error);
                }
            });
            let sent_at = clock.now();
            for (place, departure) in self.leaving.drain(..).enumerate() {
                if unsent >> place & 1 == 0 {
                    let late = sent_at.saturating_sub(departure.due);
                    self.lateness.record(late + self.waits.of(departure.index));
                }
                pipeline.recycle(departure.bytes);
            }
            self.unpublished = true;
        }
    }

    fn send_replies(&mut self) {
        let from = &*self.parts.from;
        while let Some(reply) = self.parts.pipeline.take_reply() {
            transmit(from, &[IoSlice::new(&reply)], |_, error| {
                self.faults.unsent.add(reply.len());
                self.faults.add("replying to", from, &error);
            });
        }
    }

    fn write_log(&mut self) {
        while let Some(verdict) = self.parts.pipeline.take_verdict() {
            if let Some(log) = &mut self.parts.log {
                log.settled(verdict);
            }
        }
        if let Some(log) = &mut self.parts.log {
            log.turn();
        }
    }

    fn publish(&mut self) {
        if !self.unpublished {
            return;
        }
        let now = self.parts.clock.now();
        if now < self.publish_at {
            return;
        }
        // A sampler that holds the lock gets the next ones.
        if let Ok(mut published) = self.parts.publication.try_lock() {
            *published = *self.parts.pipeline.counters();
            self.unpublished = false;
            self.publish_at = now + PUBLICATION;
        }
    }

    fn wait(&mut self) {
        let Parts { pipeline, from, clock, wake, .. } = &self.parts;
        let now = clock.now();
        let due = pipeline.next_due();
        let publication = self.unpublished.then_some(self.publish_at);
        let paused = now < self.resume_at;
        let resume = paused.then_some(self.resume_at);
        let until = [due, publication, resume].into_iter().flatten().min();
        let timeout = match until.map(|until| until.saturating_sub(now)) {
            // Due sooner than a wait takes: read again.
            Some(Duration::ZERO) => return,
            timeout => timeout.and_then(|timeout| Timespec::try_from(timeout).ok()),
        };
        let mut events = [
            PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(from.fd(), PollFlags::IN),
        ];
        let watched = if paused { &mut events[..1] } else { &mut events[..] };
        // A signal ends the wait too, and that is all that can go wrong.
        let _ = poll(watched, timeout.as_ref());
    }

    fn end(mut self, realtime: bool) -> DirectionEnd {
        self.write_log();
        let counters = *self.parts.pipeline.counters();
        // Poisoned or not: the holders only copy.
        *self.parts.publication.lock().unwrap_or_else(PoisonError::into_inner) = counters;
        DirectionEnd {
            wire: self.parts.from.kind().to_owned(),
            elapsed: self.parts.clock.now(),
            counters,
            lateness: (&self.lateness).into(),
            reading: self.run_queue.map_or(Reading::Timestamps, |run_queue| run_queue.reading()),
            cpu: thread_time(),
            realtime,
            bypassed: self.bypassed,
            unsent: self.faults.unsent,
            missed: self.parts.from.missed(),
            above_mtu: self.above_mtu,
            mtu: self.parts.mtu,
            expected_loss: self.expected_loss,
            unlogged: self.parts.log.map_or(0, DirectionLog::close),
            first_error: self.faults.first,
        }
    }
}

/// Sends `frames` in order and reports each that the kernel does not take.
fn transmit(wire: &dyn Wire, frames: &[IoSlice<'_>], mut refused: impl FnMut(usize, io::Error)) {
    let mut next = 0;
    while next < frames.len() {
        match wire.send(&frames[next..]) {
            Ok(sent @ 1..) => next += sent,
            Ok(0) => {
                refused(next, io::ErrorKind::WriteZero.into());
                next += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                refused(next, error);
                next += 1;
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Whether an IP packet follows the link header.
fn carries_ip(frame: &[u8], head: usize) -> bool {
    const IPV4: [u8; 2] = [0x08, 0x00];
    const IPV6: [u8; 2] = [0x86, 0xdd];
    head == 0 || frame.get(head - 2..head).is_some_and(|kind| kind == IPV4 || kind == IPV6)
}

fn thread_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
}
