use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::Load;
use crate::alarm::{Alarm, Ring};
use crate::exchange::Request;

/// Request to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) request: Request,
    /// Start of its latency.
    pub(super) due: Instant,
}

/// Requests of a run.
#[derive(Debug)]
pub(super) struct Requests {
    next: AtomicU64,
    most: u64,
    sizes: Vec<u64>,
}

/// Requests of one connection, one after the other.
#[derive(Debug)]
pub(super) struct Source {
    requests: Arc<Requests>,
    /// Schedule; `None` is at once.
    schedule: Option<Schedule>,
}

/// Seconds between two requests.
#[derive(Debug)]
struct Schedule {
    alarm: Alarm,
    start: Instant,
    rate: f64,
    /// Index of the next request among those of all connections, which take turns.
    place: u64,
    connections: u64,
    ring: Option<Ring>,
}

impl Requests {
    pub(super) fn new(load: &Load) -> Self {
        let most = load.requests.unwrap_or(u64::MAX);
        Self { next: AtomicU64::new(0), most, sizes: load.sizes.clone() }
    }

    /// Source of the connection with this number, counted from 0.
    pub(super) fn source(
        self: &Arc<Self>,
        load: &Load,
        number: usize,
        start: Instant,
        alarm: &Alarm,
    ) -> Source {
        let schedule = load.rate.map(|rate| Schedule {
            alarm: alarm.clone(),
            start,
            rate,
            place: number as u64,
            connections: load.connections as u64,
            ring: None,
        });
        Source { requests: Arc::clone(self), schedule }
    }

    fn next(&self, due: Instant) -> Option<Ask> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let size = self.sizes.get(usize::try_from(id % self.sizes.len() as u64).unwrap_or_default())?;
        (id < self.most).then_some(Ask { request: Request { id, size: *size }, due })
    }
}

impl Source {
    /// Next request, as soon as it is due; `None` after the last one.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ask>> {
        let due = match &mut self.schedule {
            None => Instant::now(),
            Some(schedule) => ready!(schedule.poll_next(cx)),
        };
        Poll::Ready(self.requests.next(due))
    }
}

impl Schedule {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        // A double holds the seconds of a month to the nanosecond.
        let due = self.start + Duration::from_secs_f64(self.place as f64 / self.rate);
        if Instant::now() < due {
            let ring = self.ring.get_or_insert_with(|| self.alarm.at(due));
            ring.set(due);
            ready!(Pin::new(ring).poll(cx));
        }
        self.place += self.connections;
        Poll::Ready(due)
    }
}
