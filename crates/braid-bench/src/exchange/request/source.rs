use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use super::RequestLoad;
use crate::exchange::Request;
use crate::pace::Pace;
use crate::timer::TimerService;

/// Request with its due time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledRequest {
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
    pace: Option<Pace>,
}

impl Requests {
    pub(super) fn new(load: &RequestLoad) -> Self {
        let most = load.requests.unwrap_or(u64::MAX);
        Self { next: AtomicU64::new(0), most, sizes: load.sizes.clone() }
    }

    /// Source of the connection with this number, counted from 0.
    pub(super) fn source(
        self: &Arc<Self>,
        load: &RequestLoad,
        number: usize,
        start: Instant,
        timers: &TimerService,
    ) -> Source {
        let part = |rate| Pace::in_turn(start, rate, timers, number as u64, load.connections as u64);
        Source { requests: Arc::clone(self), pace: load.rate.map(part) }
    }

    fn next(&self, due: Instant) -> Option<ScheduledRequest> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let size = self.sizes.get(usize::try_from(id % self.sizes.len() as u64).unwrap_or_default())?;
        (id < self.most).then_some(ScheduledRequest { request: Request { id, size: *size }, due })
    }
}

impl Source {
    /// Next request, as soon as it is due; `None` after the last one.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<ScheduledRequest>> {
        let due = match &mut self.pace {
            None => Instant::now(),
            Some(pace) => ready!(pace.poll_step(cx)),
        };
        Poll::Ready(self.requests.next(due))
    }
}
