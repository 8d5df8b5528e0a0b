//! Admission of clients to their handshake: those that wait, oldest first. Pure.
//!
//! A handshake costs a millisecond of processor time and more, and a client gives up after some seconds. If all of a
//! crowd are begun at once, each waits for all others, and most give up after the work for them was done. Here a client
//! is admitted when those before it have been answered, and one that would have to wait for too long is refused at
//! once, so that it comes again later. The oldest is first because the wait of all is bounded: the newest first would
//! save the wait of some, and have the others wait in vain.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Clients that wait at most, some 2 KB each.
pub(in crate::quic) const MOST: usize = 16_384;

/// Time from one admission to the next that is assumed until it is measured: that of a handshake on one core.
const INTERVAL: Duration = Duration::from_millis(1);

/// Weight of the mean before one more interval, and of that interval.
const WEIGHTS: (u32, u32) = (15, 1);

/// Clients that wait for their handshake.
#[derive(Debug)]
pub(super) struct AdmissionQueue<T> {
    waiting: VecDeque<(T, Instant)>,
    /// Longest time for which a client is to wait.
    limit: Duration,
    /// Mean time from one admission to the next while clients wait.
    interval: Duration,
    /// Time of the last admission, if clients have waited ever since.
    last: Option<Instant>,
}

impl<T> AdmissionQueue<T> {
    /// A queue in which clients are to wait for `limit` at most.
    pub(super) fn new(limit: Duration) -> Self {
        Self { waiting: VecDeque::new(), limit, interval: INTERVAL, last: None }
    }

    /// Adds a client; returns it if it would have to wait for too long.
    pub(super) fn push(&mut self, client: T, now: Instant) -> Result<(), T> {
        let before = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        if self.waiting.len() >= MOST || self.interval.saturating_mul(before) > self.limit {
            return Err(client);
        }
        self.waiting.push_back((client, now));
        Ok(())
    }

    /// Takes a client that has waited for twice the limit, because admissions came to be slower. It is about to give
    /// up, and a handshake would be in vain.
    pub(super) fn pop_late(&mut self, now: Instant) -> Option<T> {
        let (_, since) = self.waiting.front()?;
        let is_late = now.saturating_duration_since(*since) > 2 * self.limit;
        if is_late { self.waiting.pop_front().map(|(client, _)| client) } else { None }
    }

    /// Takes the client that has waited the longest.
    pub(super) fn pop(&mut self, now: Instant) -> Option<T> {
        let (client, _) = self.waiting.pop_front()?;
        if let Some(last) = self.last {
            let (before, one) = WEIGHTS;
            // A pause of all the process is one sample only.
            let sample = now.saturating_duration_since(last).min(self.limit);
            self.interval = (self.interval * before + sample * one) / (before + one);
        }
        self.last = (!self.waiting.is_empty()).then_some(now);
        Some(client)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes all clients.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(client, _)| client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LIMIT: Duration = Duration::from_secs(1);

    /// Adds clients up to the first that is refused; how many wait then.
    fn fill(queue: &mut AdmissionQueue<usize>, now: Instant) -> usize {
        while queue.push(queue.waiting.len(), now).is_ok() {}
        queue.waiting.len()
    }

    /// Admits so many clients, one each interval. The time afterwards.
    fn admit(
        queue: &mut AdmissionQueue<usize>,
        count: usize,
        interval: Duration,
        mut now: Instant,
    ) -> Instant {
        for _ in 0..count {
            now += interval;
            queue.pop(now).expect("one waits");
        }
        now
    }

    #[test]
    fn clients_are_refused_that_would_wait_longer_than_the_limit_at_the_measured_rate() {
        let (mut queue, now) = (AdmissionQueue::new(LIMIT), Instant::now());
        assert_eq!(fill(&mut queue, now), 1001, "as assumed");
        let now = admit(&mut queue, 200, 5 * MS, now);
        assert!(queue.push(0, now).is_err(), "800 take 4 s");
        let now = admit(&mut queue, 650, 5 * MS, now);
        let waiting = fill(&mut queue, now);
        assert!((195..=205).contains(&waiting), "{waiting} of 5 ms each");
    }

    #[test]
    fn the_oldest_client_is_first() {
        let (mut queue, now) = (AdmissionQueue::new(LIMIT), Instant::now());
        for client in 0..3 {
            queue.push(client, now).expect("room");
        }
        assert_eq!(
            [queue.pop(now), queue.pop(now), queue.pop(now), queue.pop(now)],
            [Some(0), Some(1), Some(2), None]
        );
    }

    #[test]
    fn time_without_clients_is_no_interval() {
        let (mut queue, mut now) = (AdmissionQueue::new(LIMIT), Instant::now());
        for client in 0..100 {
            queue.push(client, now).expect("room");
            queue.pop(now).expect("one waits");
            now += LIMIT;
        }
        assert_eq!(fill(&mut queue, now), 1001);
    }

    #[test]
    fn clients_that_have_waited_too_long_are_late() {
        let (mut queue, now) = (AdmissionQueue::new(LIMIT), Instant::now());
        queue.push(0, now).expect("room");
        queue.push(1, now + MS).expect("room");
        assert_eq!(queue.pop_late(now + 2 * LIMIT), None);
        assert_eq!(queue.pop_late(now + 2 * LIMIT + MS), Some(0));
        assert_eq!(queue.pop_late(now + 2 * LIMIT + MS), None);
    }

    #[test]
    fn memory_is_bounded_however_fast_clients_are_admitted() {
        let mut queue = AdmissionQueue { interval: Duration::ZERO, ..AdmissionQueue::new(LIMIT) };
        assert_eq!(fill(&mut queue, Instant::now()), MOST);
    }
}
