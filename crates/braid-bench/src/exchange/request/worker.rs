use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::{Failure, Load, Reuse};
use crate::alarm::Alarm;
use crate::dial::Dialer;
use crate::exchange::Request;
use crate::exchange::tally::Counters;
use crate::pace::Pace;

/// Pause after the first of several connections in a row without a response, and the longest pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Task that makes connections one after the other, and requests on them.
pub(super) struct Worker {
    dialer: Arc<Dialer>,
    source: Source,
    tally: Arc<Counters>,
    load: Load,
}

impl Worker {
    pub(super) fn new(load: &Load, dialer: Arc<Dialer>, source: Source, tally: Arc<Counters>) -> Self {
        Self { dialer, source, tally, load: load.clone() }
    }

    /// Works until there are no more requests, or the sender of `over` is dropped.
    pub(super) async fn run(mut self, mut over: watch::Receiver<()>) {
        let mut pause = PAUSE.0;
        while let Some(ask) = self.next(&mut over).await {
            self.tally.asked(ask.request.size);
            let Some(progress) = self.attend(ask, &mut over).await else { return };
            if progress {
                pause = PAUSE.0;
                continue;
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    async fn next(&mut self, over: &mut watch::Receiver<()>) -> Option<Ask> {
        tokio::select! {
            ask = poll_fn(|cx| self.source.poll_next(cx)) => ask,
            _ = over.changed() => None,
        }
    }

    /// Makes a connection for `ask`, and the following requests if connections are kept. True if there was a response or
    /// no failure; `None` after the end of the run.
    async fn attend(&mut self, ask: Ask, over: &mut watch::Receiver<()>) -> Option<bool> {
        let mut asks = VecDeque::from([ask]);
        let mut early = self.load.zero_rtt;
        loop {
            let begun = Instant::now();
            let connected = tokio::select! {
                connected = self.connect(begun, early) => connected,
                _ = over.changed() => return None,
            };
            let mut connection = match connected {
                Ok(connection) => connection,
                Err(failure) => {
                    self.give_up(&asks, &failure);
                    return Some(false);
                }
            };
            let source = (self.load.reuse == Reuse::Kept).then_some(&mut self.source);
            let outcome = tokio::select! {
                outcome = connection.run(&mut asks, source, begun, self.load.patience) => outcome,
                _ = over.changed() => {
                    connection.close().await;
                    return None;
                }
            };
            let Err(failure) = outcome else {
                if self.load.reuse == Reuse::Kept {
                    connection.close().await;
                }
                return Some(true);
            };
            asks.extend(connection.unanswered());
            if early && failure.is_early_rejected() {
                early = false;
                continue;
            }
            self.give_up(&asks, &failure);
            return Some(connection.has_answered());
        }
    }

    /// Counts requests that will not be answered.
    fn give_up(&self, asks: &VecDeque<Ask>, why: &Failure) {
        let mut counts = self.tally.counts();
        for ask in asks {
            counts.objects.entry(ask.request.size).or_default().counts.failed += 1;
        }
        drop(counts);
        self.tally.note(&why.to_string());
    }

    async fn connect(&self, begun: Instant, early: bool) -> Result<Connection, Failure> {
        let connected = async {
            let (link, _) = self.dialer.attempt(1, Some(early)).await?;
            self.tally.connected(begun.elapsed());
            Connection::open(link, self.load.streams, Arc::clone(&self.tally)).await
        };
        let silence = Failure::Silence(self.load.patience);
        timeout_at(begun + self.load.patience, connected).await.unwrap_or(Err(silence))
    }
}

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
