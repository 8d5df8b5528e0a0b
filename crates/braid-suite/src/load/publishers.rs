//! The sending half of a flow: one thread with all publishers.
//!
//! Saturated, a publisher refills whenever a quarter of its window is free, so that one write carries many messages
//! however the broker's answers are spread. Paced, every message has a due time, which is in its payload even if it
//! leaves later.

use std::io;
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use braid_bench::Schedule;
use mio::{Events, Poll};
use rustix::thread::set_current_timer_slack;

use super::packets::PublishTemplate;
use super::publisher::Publisher;
use super::run_state::{RunState, nanoseconds};
use crate::case::Flow;

/// Most bytes of one refill: enough for a large write, few enough to stay in the cache.
const REFILL_BYTES: usize = 64 * 1024;
/// Window of QoS 1 without a configured one: there are 65,535 packet identifiers.
const QOS_1_LIMIT: u64 = 60_000;
/// Sleep while every window is full and no event says when one opens.
const PARK: Duration = Duration::from_micros(100);
/// Time without any delivery after which unanswered QoS 0 messages are lost and their windows open again.
pub(super) const LOST_AFTER: Duration = Duration::from_millis(200);
/// Time between two reads of acknowledgements in a paced run.
const PACED_READ: Duration = Duration::from_millis(5);
/// Time limit for writing the last messages and for their acknowledgements.
const FINISH: Duration = Duration::from_secs(10);
/// Delay from which a paced message counts as late.
const LATE: Duration = Duration::from_millis(1);

/// Totals of the publishers of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) messages: u64,
    /// QoS 1 messages without PUBACK.
    pub(super) unacknowledged: u64,
    /// Paced messages that left more than a millisecond after they were due.
    pub(super) late: u64,
}

/// A publisher of a flow.
struct Member {
    publisher: Publisher,
    /// QoS 0: messages before this one no longer occupy the window.
    given_up: u64,
    is_closed: bool,
}

/// State of the sending thread.
pub(super) struct Publishers<'run> {
    run: &'run RunState,
    flow: &'run Flow,
    poll: Poll,
    events: Events,
    members: Vec<Member>,
    buffer: Vec<u8>,
    late: u64,
}

impl<'run> Publishers<'run> {
    /// Takes over connected sockets, one per publisher.
    ///
    /// # Errors
    /// No epoll.
    pub(super) fn new(run: &'run RunState, flow: &'run Flow, sockets: Vec<TcpStream>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut members = Vec::with_capacity(sockets.len());
        for (index, socket) in sockets.into_iter().enumerate() {
            let template = |topic: &String| PublishTemplate::new(topic, flow.qos, flow.payload);
            let templates = flow.topics(index).iter().map(template).collect();
            let publisher = Publisher::register(poll.registry(), index, socket, templates)?;
            members.push(Member { publisher, given_up: 0, is_closed: false });
        }
        let events = Events::with_capacity(members.len().max(1));
        Ok(Self { run, flow, poll, events, members, buffer: vec![0; 256 * 1024], late: 0 })
    }

    /// Publishes until the run stops, then until every message is written and acknowledged. The connections stay open:
    /// brokers differ in what they do when a publisher leaves.
    pub(super) fn run(&mut self) -> Sent {
        match self.flow.pace {
            Some(rate) => self.pace(f64::from(rate)),
            None => self.saturate(),
        }
        self.finish();
        let messages = self.members.iter().map(|member| member.publisher.sent).sum();
        let acknowledged: u64 = self.members.iter().map(|member| member.publisher.acknowledged).sum();
        let unacknowledged = if self.flow.qos > 0 { messages - acknowledged } else { 0 };
        Sent { messages, unacknowledged, late: self.late }
    }

    fn saturate(&mut self) {
        let (mut moved_at, mut delivered) = (Instant::now(), 0);
        while !self.run.stop.load(Ordering::Relaxed) {
            let mut progress = false;
            for index in 0..self.members.len() {
                let free = self.free(index);
                let member = &mut self.members[index];
                if member.publisher.is_blocked || member.is_closed || free == 0 {
                    continue;
                }
                let now = self.run.now();
                for _ in 0..free.min((REFILL_BYTES / member.publisher.message_length()) as u64) {
                    member.publisher.push(now);
                }
                member.flush(self.run);
                progress = true;
            }
            let seen = self.run.delivered.load(Ordering::Relaxed);
            if seen != delivered {
                (moved_at, delivered) = (Instant::now(), seen);
            }
            // QoS 1 waits for acknowledgements, which are events; QoS 0 for the subscribers' thread.
            let wait_for_event = !progress && self.flow.qos > 0;
            self.receive(if wait_for_event { Duration::from_millis(100) } else { Duration::ZERO });
            if !progress && self.flow.qos == 0 {
                thread::sleep(PARK);
                if moved_at.elapsed() > LOST_AFTER {
                    self.give_up();
                }
            }
        }
    }

    /// Gives up on QoS 0 messages that no later message will show to be missing.
    fn give_up(&mut self) {
        for member in self.members.iter_mut().filter(|member| !member.publisher.is_blocked) {
            member.given_up = member.publisher.sent;
        }
    }

    /// Messages that a publisher may add now; 0 until there are enough for a write.
    fn free(&self, index: usize) -> u64 {
        let Member { publisher, given_up, .. } = &self.members[index];
        let window = u64::from(self.flow.window);
        if window == 0 && self.flow.qos == 0 {
            return u64::MAX;
        }
        let outstanding = match self.flow.qos {
            0 => {
                let resolved = self.run.resolved[index].load(Ordering::Relaxed);
                publisher.sent.saturating_sub(*given_up.max(&(resolved / self.flow.shape.copies())))
            }
            _ => publisher.sent - publisher.acknowledged,
        };
        let limit = if window == 0 { QOS_1_LIMIT } else { window };
        let free = limit.saturating_sub(outstanding);
        if free >= limit.div_ceil(4) { free } else { 0 }
    }

    fn pace(&mut self, rate: f64) {
        // Sleeps end on time instead of up to 50 us later, the kernel's default. A refusal shows as late messages.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let count = self.members.len();
        let mut schedule = Schedule::new(rate, 0);
        let (mut turn, mut read_at) = (0_usize, Instant::now());
        while !self.run.stop.load(Ordering::Relaxed) {
            let now = Duration::from_nanos(self.run.now());
            let (first, mut added) = (turn, 0_usize);
            while let Some(due) = schedule.take(now) {
                self.late += u64::from(now - due > LATE);
                self.members[turn].publisher.push(nanoseconds(due));
                (turn, added) = ((turn + 1) % count, added + 1);
            }
            for offset in 0..added.min(count) {
                self.members[(first + offset) % count].flush(self.run);
            }
            if read_at.elapsed() >= PACED_READ {
                read_at = Instant::now();
                self.receive(Duration::ZERO);
                self.refuse_reused_packet_ids();
            }
            let wait =
                self.run.instant(nanoseconds(schedule.due())).saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                thread::sleep(wait);
            }
        }
    }

    /// Ends the run before packet identifiers are used twice, if the broker does not acknowledge.
    fn refuse_reused_packet_ids(&self) {
        let behind =
            |Member { publisher, .. }: &Member| publisher.sent - publisher.acknowledged > QOS_1_LIMIT;
        if self.flow.qos > 0 && self.members.iter().any(behind) {
            self.run.fault("the broker stopped acknowledging: the run is void".to_owned());
            self.run.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Waits at most `timeout` for events, reads acknowledgements and goes on with blocked writes.
    fn receive(&mut self, timeout: Duration) {
        if self.poll.poll(&mut self.events, Some(timeout)).is_err() {
            return;
        }
        for event in &self.events {
            let member = self.members.get_mut(event.token().0);
            let Some(member) = member.filter(|member| !member.is_closed) else { continue };
            let blocked = member.publisher.is_blocked;
            if event.is_readable() {
                let outcome = member.publisher.receive(&mut self.buffer, || {});
                member.close_on_error(self.run, outcome);
            }
            if event.is_writable() && blocked {
                member.flush(self.run);
            }
        }
    }

    fn finish(&mut self) {
        let deadline = Instant::now() + FINISH;
        let qos = self.flow.qos;
        let is_unfinished = |Member { publisher, is_closed, .. }: &Member| {
            !is_closed && (publisher.has_unwritten() || (qos > 0 && publisher.acknowledged < publisher.sent))
        };
        self.members.iter_mut().for_each(|member| member.flush(self.run));
        while self.members.iter().any(is_unfinished) && Instant::now() < deadline {
            self.receive(Duration::from_millis(20));
        }
    }
}

impl Member {
    fn flush(&mut self, run: &RunState) {
        if !self.is_closed {
            let outcome = self.publisher.flush();
            self.close_on_error(run, outcome);
        }
    }

    fn close_on_error(&mut self, run: &RunState, outcome: Result<(), String>) {
        if let Err(reason) = outcome {
            self.is_closed = true;
            run.fault(format!("publisher {}: {reason}", self.publisher.index));
        }
    }
}
