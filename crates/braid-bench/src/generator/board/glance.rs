//! Snapshot for a live view, taken with one lock for each tally.

use super::routes::RouteKey;
use super::{Board, lock};
use crate::emqtt::Counters;
use braid_measure::Latencies;
use braid_measure::Quantiles;

/// Snapshot of a board: smaller and cheaper than a summary.
#[derive(Clone, Debug, Default)]
pub struct Glance {
    /// Counters.
    pub counters: Counters,
    /// Topics, as in [`Board::topics`].
    pub topics: Vec<GlanceTopic>,
}

/// One topic on one stream.
#[derive(Clone, Debug, Default)]
pub struct GlanceTopic {
    /// Topic, as [`TopicSummary::topic`](crate::summary::TopicSummary::topic).
    pub topic: String,
    /// Number that the user gave the stream.
    pub stream: u64,
    /// Priority of the stream.
    pub priority: Option<u16>,
    /// Messages acknowledged, or received.
    pub messages: u64,
    /// Latency, where it is known.
    pub latency_us: Option<Quantiles>,
}

impl Board {
    /// Snapshot of the counters and the topics.
    #[must_use]
    pub fn glance(&self) -> Glance {
        let mut counters = Counters::default();
        let mut found: Vec<(u64, u64, Latencies)> = Vec::new();
        for tally in &self.shared.tallies {
            let tally = lock(tally);
            tally.counters.iter().for_each(|(counter, value)| counters[counter] += value);
            if found.len() < tally.routes.len() {
                found.resize_with(tally.routes.len(), Default::default);
            }
            for ((acked, received, latencies), route) in found.iter_mut().zip(&tally.routes) {
                let Some(route) = route else { continue };
                *acked += route.acked;
                *received += route.received;
                latencies.add(&route.latencies);
            }
        }
        let known: Vec<RouteKey> = lock(&self.shared.routes).iter().map(|(_, key)| key.clone()).collect();
        found.resize_with(known.len().max(found.len()), Default::default);
        let topics = known.into_iter().zip(found).map(|(key, (acked, received, latencies))| GlanceTopic {
            topic: key.topic,
            stream: key.stream,
            priority: key.priority,
            messages: acked.max(received),
            latency_us: latencies.quantiles_us(),
        });
        Glance { counters, topics: topics.collect() }
    }
}
