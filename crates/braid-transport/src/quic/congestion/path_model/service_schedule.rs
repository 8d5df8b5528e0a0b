//! Predicted service of datagrams by a FIFO bottleneck.

use std::collections::VecDeque;

/// Datagrams without a known wait that are kept. The oldest are given up beyond, and their service is taken as
/// predicted.
pub(super) const OUTSTANDING: usize = 8192;

/// Lateness (s) of a timer: a datagram sent within it finds the bottleneck almost busy.
const CLOSE: f64 = 0.002;

/// Datagrams whose wait is not known, and when the bottleneck is done with all of them.
///
/// Each starts when it was sent or when the one before is done, so a correction moves all of them. They are not
/// computed anew: `start` of the oldest follows when it leaves the schedule, and the end of the last is the maximum
/// over all `i` of `at[i] + service * (n - i)`. It is attained on the upper convex hull of the points `(i, at[i])`,
/// whose vertices are few.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceSchedule {
    datagrams: VecDeque<Datagram>,
    /// Index of the oldest datagram.
    first: u64,
    /// Time (s) at which the bottleneck is done with all before the oldest.
    free_before: f64,
    /// Time (s) at which it is done with all.
    free_at: f64,
    /// Older points, youngest first, each with its next hull vertex among the younger ones before it.
    older: Vec<(Point, Option<usize>)>,
    /// Hull of the younger points, which `datagrams` ends with.
    hull: Vec<Point>,
    #[cfg(test)]
    steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Datagram {
    ordinal: u64,
    /// Time of sending (s).
    at: f64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    index: u64,
    at: f64,
}

impl Point {
    /// Seconds per datagram from this point to a younger one.
    fn slope(self, younger: Self) -> f64 {
        (younger.at - self.at) / (younger.index - self.index) as f64
    }
}

/// Predicted service of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) ordinal: u64,
    /// Begin (s).
    pub(super) start: f64,
    /// The datagram has to wait for the one before.
    pub(super) is_queued: bool,
    /// The datagram was sent as soon as the bottleneck was free, or sooner.
    pub(super) is_close: bool,
}

impl ServiceSchedule {
    pub(super) fn free_at(&self) -> f64 {
        self.free_at
    }

    /// Time of sending (s) of the youngest datagram.
    pub(super) fn last_sent(&self) -> Option<f64> {
        self.datagrams.back().map(|last| last.at)
    }

    /// Adds a datagram. `service`: s per datagram.
    pub(super) fn push(&mut self, ordinal: u64, at: f64, service: f64) {
        if self.datagrams.len() == OUTSTANDING {
            self.pop(u64::MAX, service);
        }
        let point = Point { index: self.first + self.datagrams.len() as u64, at };
        self.datagrams.push_back(Datagram { ordinal, at });
        while let [.., before, last] = self.hull[..]
            && before.slope(last) <= last.slope(point)
        {
            self.hull.pop();
            #[cfg(test)]
            (self.steps += 1);
        }
        self.hull.push(point);
        self.free_at = self.free_at.max(at) + service;
    }

    /// Takes the oldest datagram, if its ordinal is at most this one.
    pub(super) fn pop(&mut self, ordinal: u64, service: f64) -> Option<Service> {
        let Datagram { ordinal, at } = *self.datagrams.front().filter(|first| first.ordinal <= ordinal)?;
        self.datagrams.pop_front();
        if self.older.is_empty() {
            self.age(Point { index: self.first, at });
        }
        self.older.pop();
        self.first += 1;
        #[cfg(test)]
        (self.steps += 1);
        let (start, late) = (self.free_before.max(at), at - self.free_before);
        self.free_before = start + service;
        Some(Service { ordinal, start, is_queued: late < 0.0, is_close: late < CLOSE })
    }

    /// Makes the younger points older ones, the oldest of which is `oldest`.
    fn age(&mut self, oldest: Point) {
        self.hull.clear();
        let younger = self
            .datagrams
            .iter()
            .enumerate()
            .map(|(place, datagram)| Point { index: oldest.index + 1 + place as u64, at: datagram.at });
        for point in younger.rev().chain([oldest]) {
            let mut next = self.older.len().checked_sub(1);
            while let Some((vertex, Some(after))) = next.and_then(|next| self.older.get(next))
                && let Some((beyond, _)) = self.older.get(*after)
                && point.slope(*vertex) <= vertex.slope(*beyond)
            {
                next = Some(*after);
            }
            self.older.push((point, next));
        }
        #[cfg(test)]
        (self.steps += self.older.len() as u64);
    }

    /// Corrects when (s) the bottleneck is done with all before the oldest datagram.
    pub(super) fn correct(&mut self, free_before: f64, service: f64) {
        self.free_before = free_before;
        let end = self.first + self.datagrams.len() as u64;
        let done = |point: Point| point.at + service * (end - point.index) as f64;
        self.free_at = free_before + service * self.datagrams.len() as f64;
        let mut vertex = self.older.last().copied();
        while let Some((point, next)) = vertex {
            self.free_at = self.free_at.max(done(point));
            #[cfg(test)]
            (self.steps += 1);
            vertex = next
                .and_then(|next| self.older.get(next).copied())
                .filter(|(next, _)| point.slope(*next) > service);
        }
        for (place, point) in self.hull.iter().enumerate().rev() {
            self.free_at = self.free_at.max(done(*point));
            #[cfg(test)]
            (self.steps += 1);
            if place
                .checked_sub(1)
                .and_then(|before| self.hull.get(before))
                .is_some_and(|before| before.slope(*point) > service)
            {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// End of the last service, datagram by datagram.
    fn naive(schedule: &ServiceSchedule, service: f64) -> f64 {
        let free = schedule.free_before;
        schedule.datagrams.iter().fold(free, |free, datagram| free.max(datagram.at) + service)
    }

    proptest! {
        #[test]
        fn the_end_is_that_of_the_last_of_all_services(
            steps in vec((0..5_u64, 0..6_u64, 0..40_u32, 1..30_u32), 1..200),
        ) {
            let (mut schedule, mut ordinal, mut now) = (ServiceSchedule::default(), 0, 0.0);
            for (sent, served, pause, service) in steps {
                let service = f64::from(service) / 1000.0;
                for _ in 0..sent {
                    ordinal += 1;
                    now += f64::from(pause) / 1000.0 / (ordinal % 3 + 1) as f64;
                    schedule.push(ordinal, now, service);
                }
                (0..served).for_each(|_| {
                    schedule.pop(ordinal, service);
                });
                schedule.correct(now - 0.05, service);
                let expected = naive(&schedule, service);
                prop_assert!((schedule.free_at() - expected).abs() < 1e-9, "{} {expected}", schedule.free_at());
            }
        }
    }

    /// A sample that visits each outstanding datagram takes 4,000 steps here, and all samples take eight million.
    #[test]
    fn a_correction_does_not_visit_each_outstanding_datagram() {
        let mut schedule = ServiceSchedule::default();
        let service = |ordinal: u64| 0.001 + (ordinal % 7) as f64 * 0.000_01;
        for ordinal in 0..6000 {
            // Bursts, with pauses that grow.
            let at = (ordinal / 10) as f64 * 0.01 + ((ordinal / 10) as f64).powi(2) * 1e-6;
            schedule.push(ordinal, at, service(ordinal));
            if ordinal >= 4000 {
                let first = schedule.pop(u64::MAX, service(ordinal)).expect("outstanding");
                schedule.correct(first.start + service(ordinal), service(ordinal));
            }
        }
        assert!(schedule.steps < 200_000, "{} steps of 2,000 samples", schedule.steps);
    }
}
