use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::clock::Clock;
use crate::exchange::remarks::Remarks;
use crate::seconds::add_at;
use crate::summary::{ConnectionsSummary, HeadersSummary, Role, RunSummary, SCHEMA, TopicSummary};

/// Counters of a responder.
#[derive(Debug)]
pub(super) struct Tally {
    clock: Clock,
    /// A std lock: it is held for a few additions.
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: u64,
    requests: u64,
    responses: u64,
    bytes: u64,
    failed: u64,
    per_second: Vec<u64>,
    remarks: Remarks,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self { clock: Clock::now(), counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seconds(&self) -> f64 {
        self.clock.start().elapsed().as_secs_f64()
    }

    pub(super) fn connected(&self) {
        self.counts().connections += 1;
    }

    pub(super) fn asked(&self) {
        self.counts().requests += 1;
    }

    /// Counts a response that the transport has taken.
    pub(super) fn answered(&self, bytes: u64) {
        let second = self.clock.second(Instant::now());
        let mut counts = self.counts();
        counts.responses += 1;
        counts.bytes += bytes;
        add_at(&mut counts.per_second, second, 1);
    }

    /// Counts a failed connection or handshake.
    pub(super) fn failed(&self, why: &str) {
        self.counts().failed += 1;
        self.note(why);
    }

    pub(super) fn note(&self, what: &str) {
        let at = self.seconds();
        self.counts().remarks.note(at, what);
    }

    pub(super) fn summary(&self) -> RunSummary {
        let counts = self.counts();
        let topic = TopicSummary {
            topic: "objects".to_owned(),
            received: counts.requests,
            sent: counts.responses,
            bytes: counts.bytes,
            per_second: counts.per_second.clone(),
            ..TopicSummary::default()
        };
        let counters = [
            ("requests", counts.requests),
            ("responses", counts.responses),
            ("failed", counts.failed),
            ("unfinished", counts.requests.saturating_sub(counts.responses)),
            ("connections", counts.connections),
        ];
        RunSummary {
            schema: SCHEMA.to_owned(),
            role: Role::Reply,
            started_unix_us: self.clock.started_unix_us(),
            seconds: self.seconds(),
            counters: counters.map(|(name, count)| (name.to_owned(), count)).into_iter().collect(),
            connections: ConnectionsSummary {
                wanted: counts.connections,
                established: counts.connections,
                connect_us: None,
            },
            pingresp_us: None,
            pings: None,
            lateness_us: None,
            headers: HeadersSummary::default(),
            topics: vec![topic],
            streams: Vec::new(),
            events: counts.remarks.events(),
        }
    }
}
