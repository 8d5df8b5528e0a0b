use std::collections::BTreeMap;

use super::tally::RouteTally;
use super::{Board, lock};
use crate::seconds::add_all;
use crate::summary::{
    ConnectionsSummary, HeadersSummary, Role, RunSummary, SCHEMA, StreamSummary, TopicSummary, Trace,
};
use braid_measure::Latencies;

impl Board {
    /// Topics by stream, in the order of their first use. The first 256 have counters of their own.
    #[must_use]
    pub fn topics(&self) -> Vec<TopicSummary> {
        let mut routes: Vec<RouteTally> = Vec::new();
        for tally in &self.shared.tallies {
            let tally = lock(tally);
            for (at, route) in tally.routes.iter().enumerate() {
                let Some(route) = route else { continue };
                if routes.len() <= at {
                    routes.resize_with(at + 1, RouteTally::default);
                }
                routes[at].add(route);
            }
        }
        let known = lock(&self.shared.routes);
        routes.resize_with(known.iter().count().max(routes.len()), RouteTally::default);
        let named = known.iter().zip(routes).map(|((_, key), route)| TopicSummary {
            topic: key.topic.clone(),
            stream: key.stream,
            priority: key.priority,
            sent: route.sent,
            acked: route.acked,
            received: route.received,
            failed: route.failed,
            bytes: route.bytes,
            latency_us: route.latencies.quantiles_us(),
            latency_cdf: route.latencies.curve_us(),
            per_second: route.per_second,
            trace: route.trace,
        });
        named.collect()
    }

    /// Bytes by stream, written and read together, as the link took or brought them.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamSummary> {
        let mut all: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for tally in &self.shared.tallies {
            for (&stream, seconds) in &lock(tally).streams {
                add_all(all.entry(stream).or_default(), seconds);
            }
        }
        all.into_iter().map(|(stream, bytes_per_second)| StreamSummary { stream, bytes_per_second }).collect()
    }

    /// Summary of the run. After [`run`](crate::generator::run) has returned it is final.
    #[must_use]
    pub fn summary(&self, role: Role) -> RunSummary {
        let (mut established, mut connects, mut pings) = (0, Latencies::default(), Latencies::default());
        let mut answered = Trace::default();
        let (mut lateness, mut headers) = (Latencies::default(), HeadersSummary::default());
        for tally in &self.shared.tallies {
            let tally = lock(tally);
            established += tally.established;
            connects.add(&tally.connects);
            pings.add(&tally.pings);
            answered.due_unix_us.extend(&tally.ping_trace.due_unix_us);
            answered.took_us.extend(&tally.ping_trace.took_us);
            lateness.add(&tally.lateness);
            headers.add(tally.headers);
        }
        let counters = self.counters();
        RunSummary {
            schema: SCHEMA.to_owned(),
            role,
            started_unix_us: self.clock().started_unix_us(),
            seconds: self.elapsed().as_secs_f64(),
            counters: counters.iter().map(|(counter, value)| (counter.name().to_owned(), value)).collect(),
            connections: ConnectionsSummary {
                wanted: self.wanted(),
                established,
                connect_us: connects.quantiles_us(),
            },
            pingresp_us: pings.quantiles_us(),
            pings: Some(answered).filter(|answered| !answered.took_us.is_empty()),
            lateness_us: lateness.quantiles_us(),
            headers,
            topics: self.topics(),
            streams: self.streams(),
            events: lock(&self.shared.events).all(),
        }
    }
}
