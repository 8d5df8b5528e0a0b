use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::source::{ScheduledRequest, Source};
use super::{Failure, RequestLoad, Reuse};
use crate::dial::Dialer;
use crate::exchange::counters::Counters;

/// Pause after the first of several connections in a row without a response, and the longest pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Task that makes connections one after the other, and requests on them.
pub(super) struct Worker {
    dialer: Arc<Dialer>,
    source: Source,
    tally: Arc<Counters>,
    load: RequestLoad,
}

impl Worker {
    pub(super) fn new(load: &RequestLoad, dialer: Arc<Dialer>, source: Source, tally: Arc<Counters>) -> Self {
        Self { dialer, source, tally, load: load.clone() }
    }

    /// Works until there are no more requests, or the sender of `over` is dropped.
    pub(super) async fn run(mut self, mut over: watch::Receiver<()>) {
        let mut pause = PAUSE.0;
        while let Some(scheduled) = self.next(&mut over).await {
            self.tally.requested(scheduled.request.size);
            let Some(progress) = self.attend(scheduled, &mut over).await else { return };
            if progress {
                pause = PAUSE.0;
                continue;
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    async fn next(&mut self, over: &mut watch::Receiver<()>) -> Option<ScheduledRequest> {
        tokio::select! {
            next = poll_fn(|cx| self.source.poll_next(cx)) => next,
            _ = over.changed() => None,
        }
    }

    /// Makes a connection for `first`, and the following requests if connections are kept. True if there was a response
    /// or no failure; `None` after the end of the run.
    async fn attend(&mut self, first: ScheduledRequest, over: &mut watch::Receiver<()>) -> Option<bool> {
        let mut requests = VecDeque::from([first]);
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
                    self.give_up(&requests, &failure);
                    return Some(false);
                }
            };
            let source = (self.load.reuse == Reuse::Kept).then_some(&mut self.source);
            let outcome = tokio::select! {
                outcome = connection.run(std::mem::take(&mut requests), source) => outcome,
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
            requests = connection.unanswered();
            if early && failure.is_early_rejected() {
                early = false;
                continue;
            }
            self.give_up(&requests, &failure);
            return Some(connection.has_answered());
        }
    }

    /// Counts requests that will not be answered.
    fn give_up(&self, requests: &VecDeque<ScheduledRequest>, why: &Failure) {
        let mut counts = self.tally.counts();
        for scheduled in requests {
            counts.objects.entry(scheduled.request.size).or_default().counts.failed += 1;
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
