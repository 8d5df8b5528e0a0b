use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::source::{Ask, Source};
use super::{Failure, Load, Reuse};
use crate::dial::Dialer;
use crate::exchange::counters::Counters;

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
                outcome = connection.run(std::mem::take(&mut asks), source) => outcome,
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
            asks = connection.unanswered();
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
            Connection::open(link, &self.load, begun, Arc::clone(&self.tally)).await
        };
        let silence = Failure::Silence(self.load.patience);
        timeout_at(begun + self.load.patience, connected).await.unwrap_or(Err(silence))
    }
}
