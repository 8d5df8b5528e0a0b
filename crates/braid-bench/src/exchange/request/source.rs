use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use super::Load;
use crate::alarm::Alarm;
use crate::exchange::Request;
use crate::pace::Pace;

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
    pace: Option<Pace>,
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
        let part = |rate| Pace::in_turn(start, rate, alarm, number as u64, load.connections as u64);
        Source { requests: Arc::clone(self), pace: load.rate.map(part) }
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
        let due = match &mut self.pace {
            None => Instant::now(),
            Some(pace) => ready!(pace.poll_step(cx)),
        };
        Poll::Ready(self.requests.next(due))
    }
}
