use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::source::{Ask, Source};
use super::tally::Tally;
use super::{Dial, Failure, Load, Reuse};

/// Pause after the first of several connections in a row without a response, and the longest pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Task that makes connections one after the other, and requests on them.
pub(super) struct Worker<D> {
    dial: D,
    source: Source,
    tally: Arc<Tally>,
    streams: usize,
    reuse: Reuse,
    patience: Duration,
    zero_rtt: bool,
}

impl<D: Dial> Worker<D> {
    pub(super) fn new(load: &Load, dial: D, source: Source, tally: Arc<Tally>) -> Self {
        let Load { streams, reuse, patience, zero_rtt, .. } = *load;
        Self { dial, source, tally, streams, reuse, patience, zero_rtt }
    }

    /// Works until there are no more requests, or the sender of `over` is dropped.
    pub(super) async fn run(mut self, mut over: watch::Receiver<()>) {
        let mut pause = PAUSE.0;
        while let Some(ask) = self.next(&mut over).await {
            self.tally.asked(&ask);
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
        let mut early = self.zero_rtt;
        loop {
            let begun = Instant::now();
            let connected = tokio::select! {
                connected = self.connect(begun, early) => connected,
                _ = over.changed() => return None,
            };
            let mut connection = match connected {
                Ok(connection) => connection,
                Err(failure) => {
                    self.tally.failed(&asks, &failure);
                    return Some(false);
                }
            };
            let source = (self.reuse == Reuse::Kept).then_some(&mut self.source);
            let outcome = tokio::select! {
                outcome = connection.run(&mut asks, source, begun, self.patience) => outcome,
                _ = over.changed() => {
                    connection.close().await;
                    return None;
                }
            };
            let Err(failure) = outcome else {
                if self.reuse == Reuse::Kept {
                    connection.close().await;
                }
                return Some(true);
            };
            asks.extend(connection.unanswered());
            if early && failure.is_early_rejected() {
                early = false;
                continue;
            }
            self.tally.failed(&asks, &failure);
            return Some(connection.has_answered());
        }
    }

    async fn connect(&self, begun: Instant, early: bool) -> Result<Connection, Failure> {
        let connected = async {
            let link = self.dial.dial(early).await?;
            self.tally.connected(begun.elapsed());
            Connection::open(link, self.streams, Arc::clone(&self.tally)).await
        };
        let silence = Failure::Silence(self.patience);
        timeout_at(begun + self.patience, connected).await.unwrap_or(Err(silence))
    }
}
