//! Metrics, curves and series of a run, from the summaries of programs and the counters of links.

use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use braid_bench::summary::{self, RunSummary, Step, StepSummary, TopicSummary};
use braid_measure::Quantiles;

use super::links::{Samples, path_value};
use crate::report::{Cdf, LinkRun, ProgramRun, Series, SeriesKind};
use crate::scenario::{Field, Flow, Metric, ProgramField, Scenario, Value, Window};

/// Rounding errors of shares.
const ROUNDING: f64 = 1e-9;

/// Results of one run: input of metrics, curves and series.
pub(super) struct Evidence<'a> {
    /// Summaries of programs, by name; missing for programs that wrote none.
    pub(super) summaries: BTreeMap<String, RunSummary>,
    pub(super) programs: &'a [ProgramRun],
    pub(super) links: &'a [LinkRun],
    /// Start of the workload, in microseconds since the Unix epoch.
    pub(super) origin_unix_us: u64,
    /// Planned duration of the workload.
    pub(super) lasts: Duration,
    /// Counters of links, second by second.
    pub(super) samples: &'a Samples,
    /// Links of the scenario, in the order of `samples`.
    pub(super) link_names: &'a [&'a str],
    pub(super) windows: &'a [Window],
    /// Settings of the profile, then of the variant.
    pub(super) sets: [&'a BTreeMap<String, String>; 2],
}

impl Evidence<'_> {
    /// All metrics that have a value.
    pub(super) fn metrics(&self, scenario: &Scenario) -> BTreeMap<String, f64> {
        let metrics = scenario.metrics.iter();
        metrics.filter_map(|metric| Some((metric.name.clone(), self.metric(metric)?))).collect()
    }

    fn metric(&self, metric: &Metric) -> Option<f64> {
        let per = match &metric.per {
            Some(per) => Some(self.value(per)?),
            None => None,
        };
        let value = match (&metric.value, per) {
            (Value::Topic(flow, Field::Quantile(thousandths)), Some(due)) => {
                quantile_of_due(&self.flow(flow)?, f64::from(*thousandths) / 1000.0, due)?
            }
            (Value::In { value, window }, Some(due)) if value.quantile().is_some() => {
                self.quantile_in(value, window, Some(due))?
            }
            (value, Some(per)) if per != 0.0 => self.value(value)? / per,
            (_, Some(_)) => return None,
            (value, None) => self.value(value)?,
        };
        Some(value * metric.times).filter(|value| value.is_finite())
    }

    pub(super) fn value(&self, value: &Value) -> Option<f64> {
        match value {
            Value::Topic(flow, field) => {
                let topic = self.flow(flow)?;
                let summary = self.summaries.get(&flow.program)?;
                topic_value(&topic, *field, summary.seconds, &self.whole_seconds(&topic, summary))
            }
            Value::Counter { program, name } => {
                let summary = self.summaries.get(program)?;
                // Counters of 0 are not printed.
                Some(summary.counters.get(name).copied().unwrap_or(0) as f64)
            }
            Value::Program { program, field } => self.program_value(program, *field),
            Value::Stream { .. } => self.stream_value(value, (0.0, self.lasts.as_secs_f64())),
            Value::Set(name) => {
                let [profile, variant] = self.sets;
                variant.get(name).or_else(|| profile.get(name))?.parse().ok()
            }
            Value::In { value, window } => self.value_in(value, window),
            Value::Link { link, way, field } => {
                let link = self.links.iter().find(|run| run.name == *link)?;
                let of = |up: &bool| path_value(if *up { &link.up } else { &link.down }, *field);
                Some(way.directions().iter().map(of).sum())
            }
        }
    }

    /// Start of a program on the clock of the workload, seconds.
    pub(super) fn shift(&self, summary: &RunSummary) -> f64 {
        (summary.started_unix_us as f64 - self.origin_unix_us as f64) / 1e6
    }

    /// Messages per second of the program, for the seconds that lie wholly in the workload, without the first; silent
    /// seconds count 0.
    #[expect(clippy::cast_possible_truncation, reason = "seconds of a run")]
    #[expect(clippy::cast_sign_loss, reason = "clamped to 0 first")]
    fn whole_seconds(&self, topic: &TopicSummary, summary: &RunSummary) -> Vec<u64> {
        let before = -self.shift(summary);
        let first = (before + 1.0).ceil().max(0.0) as usize;
        let end = (before + self.lasts.as_secs_f64()).floor().max(0.0) as usize;
        (first..end).map(|second| topic.per_second.get(second).copied().unwrap_or(0)).collect()
    }

    fn program_value(&self, name: &str, field: ProgramField) -> Option<f64> {
        let summary = self.summaries.get(name);
        let program = self.programs.iter().find(|run| run.name == name)?;
        let connect = summary.and_then(|summary| summary.connections.connect_us);
        match field {
            ProgramField::CpuSeconds => Some(program.cpu_seconds),
            ProgramField::PeakMb => program.peak_memory.map(|bytes| bytes as f64 / 1e6),
            ProgramField::Seconds => summary.map(|summary| summary.seconds),
            ProgramField::Established => summary.map(|summary| summary.connections.established as f64),
            ProgramField::ConnectP50Ms => connect.map(|connect| connect.p50 / 1000.0),
            ProgramField::ConnectP99Ms => connect.map(|connect| connect.p99 / 1000.0),
            ProgramField::ConnectMaxMs => connect.map(|connect| connect.max / 1000.0),
            ProgramField::PingrespMaxMs => summary?.pingresp_us.map(|pingresp| pingresp.max / 1000.0),
            ProgramField::FirstLossAt => {
                let ends = ["disconnected with reason", "EXIT for"];
                let summary = summary?;
                let is_end = |event: &&summary::Event| ends.iter().any(|end| event.what.contains(end));
                summary.events.iter().find(is_end).map(|event| event.at + self.shift(summary))
            }
            ProgramField::NotAbove => summary.map(|summary| summary.headers.not_above as f64),
            ProgramField::Skipped => summary.map(|summary| summary.headers.skipped as f64),
            ProgramField::LastReason => {
                let mut reasons = summary?.events.iter().rev().filter_map(|event| {
                    let (_, reason) = event.what.split_once("disconnected with reason ")?;
                    reason.split(':').next()?.trim().parse().ok()
                });
                reasons.next()
            }
        }
    }

    /// Sum of all entries of a topic; `None` without a summary.
    pub(super) fn flow(&self, flow: &Flow) -> Option<TopicSummary> {
        let summary = self.summaries.get(&flow.program)?;
        if let Some(step) = flow.topic.as_deref().and_then(step_named) {
            let taken = summary.connections.steps.iter().find(|one| one.step == step);
            return Some(taken.map_or_else(TopicSummary::default, step_topic));
        }
        let is_meant = |topic: &&TopicSummary| flow.topic.as_ref().is_none_or(|name| *name == topic.topic);
        Some(merged(summary.topics.iter().filter(is_meant)))
    }

    /// Latency distributions of the scenario.
    pub(super) fn cdfs(&self, scenario: &Scenario) -> Vec<Cdf> {
        let curves = scenario.curves.iter().filter_map(|curve| {
            let topic = self.flow(&curve.of)?;
            let arrived = arrived(&topic);
            let due = curve.per.as_ref().and_then(|per| self.value(per)).unwrap_or(arrived).max(arrived);
            let share = if due > 0.0 { arrived / due } else { 0.0 };
            let points = topic.latency_cdf.iter().map(|&(us, below)| (us as f64 / 1000.0, below * share));
            Some(Cdf { name: curve.name.clone(), points: points.collect() })
        });
        curves.filter(|cdf| !cdf.points.is_empty()).collect()
    }

    /// Time series of the scenario.
    pub(super) fn series(&self, scenario: &Scenario) -> Vec<Series> {
        let lines = scenario.series.iter().filter_map(|line| {
            let summary = self.summaries.get(&line.of.program)?;
            let counts = match line.of.stream {
                None => self.flow(&line.of)?.per_second,
                Some(number) => {
                    summary.streams.iter().find(|stream| stream.stream == number)?.bytes_per_second.clone()
                }
            };
            let unit = if line.kind == SeriesKind::Stream { "B/s" } else { "1/s" };
            Some(Series {
                kind: line.kind,
                name: line.name.clone(),
                unit: unit.into(),
                start: self.shift(summary),
                step: 1.0,
                values: counts.iter().map(|&count| count as f64).collect(),
            })
        });
        lines.collect()
    }
}

/// Step of a topic name such as `(subscribed)`.
fn step_named(topic: &str) -> Option<Step> {
    let name = topic.strip_prefix('(')?.strip_suffix(')')?;
    match name {
        "connected" => Some(Step::Connected),
        "subscribed" => Some(Step::Subscribed),
        "reconnected" => Some(Step::Reconnected),
        "resubscribed" => Some(Step::Resubscribed),
        _ => None,
    }
}

/// A step as a topic, whose messages are the clients that took it.
fn step_topic(step: &StepSummary) -> TopicSummary {
    TopicSummary {
        received: step.latency_us.count,
        per_second: step.per_second.clone(),
        latency_us: Some(step.latency_us),
        latency_cdf: step.latency_cdf.clone(),
        ..TopicSummary::default()
    }
}

/// Sum of several topics, with the latencies of all their messages.
fn merged<'a>(topics: impl Iterator<Item = &'a TopicSummary>) -> TopicSummary {
    let mut sum = TopicSummary::default();
    let mut parts: Vec<(Quantiles, &[(u64, f64)])> = Vec::new();
    for topic in topics {
        sum.add_counts(topic);
        let latency = topic.latency_us.filter(|latency| latency.count > 0);
        parts.extend(latency.map(|latency| (latency, topic.latency_cdf.as_slice())));
    }
    match parts[..] {
        [] => {}
        [(latency, curve)] => (sum.latency_us, sum.latency_cdf) = (Some(latency), curve.to_vec()),
        _ => {
            let (latency, curve) = merged_latencies(&parts);
            (sum.latency_us, sum.latency_cdf) = (Some(latency), curve);
        }
    }
    sum
}

/// Quantiles and curve of the messages of several topics together, each with its quantiles and its curve.
fn merged_latencies(parts: &[(Quantiles, &[(u64, f64)])]) -> (Quantiles, Vec<(u64, f64)>) {
    let count: u64 = parts.iter().map(|(latency, _)| latency.count).sum();
    let share_of = |latency: &Quantiles| latency.count as f64 / count as f64;
    // Rises of the curves, weighted by the messages.
    let mut rises: Vec<(u64, f64)> = Vec::new();
    for (latency, curve) in parts {
        let before = iter::once(0.0).chain(curve.iter().map(|(_, share)| *share));
        let rise = |((us, share), before): (&(u64, f64), f64)| (*us, (share - before) * share_of(latency));
        rises.extend(curve.iter().zip(before).map(rise));
    }
    rises.sort_by_key(|(us, _)| *us);
    let mut curve: Vec<(u64, f64)> = Vec::new();
    let mut share = 0.0;
    for (us, rise) in rises {
        share += rise;
        match curve.last_mut() {
            Some(last) if last.0 == us => last.1 = share,
            _ => curve.push((us, share)),
        }
    }
    if let Some(last) = curve.last_mut() {
        // The sum has rounding errors.
        last.1 = 1.0;
    }
    let max = parts.iter().map(|(latency, _)| latency.max).fold(0.0, f64::max);
    let at = |share: f64| {
        let point = curve.iter().find(|(_, below)| *below + ROUNDING >= share);
        point.map_or(max, |(us, _)| *us as f64)
    };
    let mean = parts.iter().map(|(latency, _)| latency.mean * share_of(latency)).sum();
    let [p50, p90, p95, p99, p999] = [0.5, 0.9, 0.95, 0.99, 0.999].map(at);
    (Quantiles { p50, p90, p95: Some(p95), p99, p999, max, mean, count }, curve)
}

/// Messages whose latency is known.
fn arrived(topic: &TopicSummary) -> f64 {
    topic.latency_us.map_or(0.0, |latency| latency.count as f64)
}

fn topic_value(topic: &TopicSummary, field: Field, seconds: f64, whole: &[u64]) -> Option<f64> {
    let latency = topic.latency_us.filter(|latency| latency.count > 0);
    Some(match field {
        Field::Sent => topic.sent as f64,
        Field::Acked => topic.acked as f64,
        Field::Received => topic.received as f64,
        // Requests without a response at the end are neither acknowledged nor failed.
        Field::Offered => topic.sent.max(topic.acked + topic.failed) as f64,
        Field::Bytes => topic.bytes as f64,
        Field::Quantile(thousandths) => {
            quantile_of_due(topic, f64::from(thousandths) / 1000.0, arrived(topic))?
        }
        Field::MaxMs => latency?.max / 1000.0,
        Field::MeanMs => latency?.mean / 1000.0,
        Field::Within(ms) => share_within(topic, f64::from(ms)) * arrived(topic),
        Field::SecondsBelow(count) => {
            whole.iter().filter(|&&second| second < u64::from(count)).count() as f64
        }
        Field::RateQuantile(thousandths) => {
            let mut sorted = whole.to_vec();
            sorted.sort_unstable();
            let last = sorted.len().checked_sub(1)?;
            // The rank counts steps between the seconds, rounded up, unlike the nearest rank of
            // `braid_measure::quantile`: the committed reports and the bounds of their scenarios have it so.
            let at = (last * usize::from(thousandths)).div_ceil(1000);
            *sorted.get(at.min(last))? as f64
        }
        // The answer to a request is counted as both.
        Field::Rate if seconds > 0.0 => topic.acked.max(topic.received) as f64 / seconds,
        Field::Rate => return None,
        Field::LongestGapMs => topic.longest_gap_us? as f64 / 1000.0,
        // Defined for windows only.
        Field::Settled(_) => return None,
        Field::LastSecond => {
            topic.per_second.iter().rposition(|&count| count > 0).map_or(0.0, |at| at as f64 + 1.0)
        }
    })
}

/// Latency in ms that `quantile` (0 to 1) of `due` messages did not exceed; `None` if fewer arrived.
fn quantile_of_due(topic: &TopicSummary, quantile: f64, due: f64) -> Option<f64> {
    let latency = topic.latency_us.filter(|latency| latency.count > 0)?;
    let arrived = latency.count as f64;
    let share = quantile * due.max(arrived) / arrived;
    if share > 1.0 {
        return None;
    }
    // The reported quantiles are more exact than the curve.
    if (due - arrived).abs() < 0.5 {
        let known = [
            (0.5, Some(latency.p50)),
            (0.9, Some(latency.p90)),
            (0.95, latency.p95),
            (0.99, Some(latency.p99)),
            (0.999, Some(latency.p999)),
        ];
        if let Some(us) = known.iter().find_map(|(at, us)| us.filter(|_| (at - quantile).abs() < 1e-9)) {
            return Some(us / 1000.0);
        }
    }
    let point = topic.latency_cdf.iter().find(|(_, below)| *below + ROUNDING >= share);
    Some(point.map_or(latency.max, |&(us, _)| us as f64) / 1000.0)
}

/// Share of the arrived messages with at most `ms` of latency.
fn share_within(topic: &TopicSummary, ms: f64) -> f64 {
    let below = topic.latency_cdf.iter().take_while(|(us, _)| *us as f64 <= ms * 1000.0).last();
    below.map_or(0.0, |&(_, share)| share)
}

#[cfg(test)]
pub(super) mod tests {
    use braid_bench::summary::{ConnectionsSummary, HeadersSummary, Role, SCHEMA, StreamSummary};
    use braid_measure::Quantiles;

    use super::*;

    /// Summary of a subscriber: 50 of 100 messages arrived, half of them within 10 ms and all within 20.
    pub(in crate::experiment) fn consumer() -> RunSummary {
        let latency = Quantiles { p50: 10_000.0, max: 20_000.0, count: 50, ..Quantiles::default() };
        let topic = TopicSummary {
            topic: "t".into(),
            received: 50,
            per_second: vec![0, 3, 10, 20, 9, 8],
            latency_us: Some(latency),
            latency_cdf: vec![(5_000, 0.25), (10_000, 0.5), (20_000, 1.0)],
            ..TopicSummary::default()
        };
        RunSummary {
            schema: SCHEMA.into(),
            role: Role::Sub,
            started_unix_us: 3_000_000,
            seconds: 6.0,
            counters: BTreeMap::from([("recv".to_owned(), 50)]),
            connections: ConnectionsSummary::default(),
            pingresp_us: Some(Quantiles { max: 7_000.0, ..Quantiles::default() }),
            pings_unanswered: 0,
            pings: None,
            lateness_us: None,
            headers: HeadersSummary::default(),
            topics: vec![topic],
            streams: vec![StreamSummary { stream: 2, bytes_per_second: vec![7, 8] }],
            events: Vec::new(),
        }
    }

    fn producer() -> RunSummary {
        let topic =
            TopicSummary { topic: "t".into(), sent: 60, acked: 50, failed: 50, ..TopicSummary::default() };
        RunSummary { role: Role::Pub, topics: vec![topic], ..consumer() }
    }

    const NO_SAMPLES: &Samples = &Samples::new();
    const NO_SETS: &BTreeMap<String, String> = &BTreeMap::new();

    /// Evidence with these summaries, without links.
    pub(in crate::experiment) fn of_programs(summaries: BTreeMap<String, RunSummary>) -> Evidence<'static> {
        Evidence {
            summaries,
            programs: &[],
            links: &[],
            origin_unix_us: 3_900_000,
            lasts: Duration::from_secs(7),
            samples: NO_SAMPLES,
            link_names: &[],
            windows: &[],
            sets: [NO_SETS; 2],
        }
    }

    fn evidence(links: &[LinkRun]) -> Evidence<'_> {
        let summaries = [("consumer".to_owned(), consumer()), ("producer".to_owned(), producer())];
        Evidence { links, ..of_programs(BTreeMap::from(summaries)) }
    }

    fn metric(value: &str, per: Option<&str>) -> Option<f64> {
        let metric = Metric {
            name: "m".into(),
            title: None,
            unit: String::new(),
            digits: 0,
            value: value.parse().expect("a value"),
            per: per.map(|per| per.parse().expect("a value")),
            times: 1.0,
        };
        evidence(&[]).metric(&metric)
    }

    #[test]
    fn missing_messages_count_as_the_slowest() {
        let due = Some("producer:t:due");
        assert_eq!(metric("producer:t:due", None), Some(100.0));
        assert_eq!(metric("consumer:t:p50_ms", None), Some(10.0));
        assert_eq!(metric("consumer:t:p50_ms", due), Some(20.0), "the 50th of 100 was the last that came");
        assert_eq!(metric("consumer:t:p90_ms", due), None);
        assert_eq!(
            metric("consumer:t:p95_ms", None),
            Some(20.0),
            "from the curve, which programs do not tell of"
        );
        assert_eq!(metric("consumer:t:within_10ms", due), Some(0.25));
        assert_eq!(metric("consumer:t:within_4ms", due), Some(0.0));
        assert_eq!(metric("consumer:t:received", due), Some(0.5));
    }

    /// Topic with these latencies (ms) of its messages.
    fn topic_of(name: &str, millis: &[u64]) -> TopicSummary {
        let mut latencies = braid_measure::Latencies::default();
        millis.iter().for_each(|millis| latencies.record(Duration::from_millis(*millis)));
        TopicSummary {
            topic: name.into(),
            received: millis.len() as u64,
            latency_us: latencies.quantiles_us(),
            latency_cdf: latencies.curve_us(),
            ..TopicSummary::default()
        }
    }

    #[test]
    fn all_topics_are_the_messages_of_all() {
        let fast: Vec<u64> = (1..=60).collect();
        let slow: Vec<u64> = (1..=40).map(|step| step * 100).collect();
        let [all, fast, slow] = [("all", [&fast[..], &slow].concat()), ("fast", fast), ("slow", slow)]
            .map(|(name, millis)| topic_of(name, &millis));
        let summary = |topics| RunSummary { topics, ..consumer() };
        let summaries = [("both", summary(vec![fast, slow])), ("one", summary(vec![all]))];
        let evidence = of_programs(summaries.map(|(name, summary)| (name.to_owned(), summary)).into());
        let value = |program: &str, field: &str| {
            evidence.value(&format!("{program}:*:{field}").parse().expect("a value")).expect("messages came")
        };
        for field in ["p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms", "mean_ms", "within_150ms"]
        {
            let (both, one) = (value("both", field), value("one", field));
            assert!((both - one).abs() <= one / 500.0, "{field}: {both} is not {one}");
        }
        assert!(
            (value("both", "max_ms") - 4000.0).abs() < 8.0,
            "the slowest is of the topic with fewer messages"
        );
    }

    #[test]
    fn a_request_is_due_once_and_answered_once() {
        let topic = TopicSummary {
            topic: "100".into(),
            sent: 60,
            acked: 42,
            received: 42,
            failed: 6,
            ..TopicSummary::default()
        };
        let summary = RunSummary { role: Role::Request, topics: vec![topic], ..consumer() };
        let evidence = of_programs(BTreeMap::from([("client".to_owned(), summary)]));
        let value = |text: &str| evidence.value(&text.parse().expect("a value"));
        assert_eq!(value("client:100:due"), Some(60.0), "twelve are unfinished");
        assert_eq!(value("client:100:rate"), Some(7.0));
    }

    #[test]
    fn whole_seconds_of_the_workload_count_also_silent_ones() {
        // The consumer began 0.9 s before the workload, which lasts until its second 7.9: seconds 2 to 6 are whole.
        assert_eq!(metric("consumer:t:rate_min", None), Some(0.0), "nothing came in the seventh second");
        assert_eq!(metric("consumer:t:rate_p50", None), Some(9.0));
        assert_eq!(metric("consumer:t:rate_max", None), Some(20.0));
        assert_eq!(metric("consumer:t:seconds_below_9", None), Some(2.0));
        assert_eq!(metric("consumer:t:last_second", None), Some(6.0));
    }

    #[test]
    fn an_unknown_value_is_none() {
        assert_eq!(metric("consumer:recv", None), Some(50.0));
        assert_eq!(metric("consumer:pub_fail", None), Some(0.0), "a counter that never counted");
        for nothing in ["unknown:t:received", "unknown:recv", "consumer::cpu_seconds", "link:x:up:bytes"] {
            assert_eq!(metric(nothing, None), None, "{nothing}");
        }
        assert_eq!(metric("consumer:t:received", Some("unknown:t:due")), None);
        assert_eq!(metric("consumer:t:received", Some("consumer:t:sent")), None, "nothing is divided by 0");
    }

    #[test]
    fn shares_of_dropped_packets() {
        let mut link = LinkRun { name: "bad".into(), ..LinkRun::default() };
        link.up.counters.offered.packets = 100;
        link.up.counters.policed.packets = 30;
        link.up.counters.lost.packets = 20;
        let links = [link];
        let evidence = evidence(&links);
        let value = |text: &str| evidence.value(&text.parse().expect("a value"));
        assert_eq!(value("link:bad:up:policed_share"), Some(0.3));
        assert_eq!(value("link:bad:up:dropped_share"), Some(0.5));
        assert_eq!(value("link:bad:down:dropped_share"), Some(0.0));
    }

    #[test]
    fn curves_end_below_one_when_messages_are_missing_and_series_start_with_their_program() {
        let text = r#"like = "hol"
            [[curve]]
            name = "t"
            of = "consumer:t"
            per = "producer:t:due"
            [[series]]
            kind = "stream"
            name = "two"
            of = "consumer:stream:2""#;
        let scenario = Scenario::parse("x.toml", text).expect("a scenario");
        let evidence = evidence(&[]);
        assert_eq!(evidence.cdfs(&scenario)[0].points, [(5.0, 0.125), (10.0, 0.25), (20.0, 0.5)]);
        let series = evidence.series(&scenario);
        assert!((series[0].start + 0.9).abs() < 1e-9, "{}", series[0].start);
        assert_eq!(series[0].values, [7.0, 8.0]);
        assert_eq!(series[0].kind, SeriesKind::Stream);
    }

    #[test]
    fn steps_of_clients_are_read_as_topics() {
        let mut client = consumer();
        let latency_us = Quantiles { p50: 7_000.0, max: 9_000.0, count: 3, ..Quantiles::default() };
        let latency_cdf = vec![(7_000, 0.5), (9_000, 1.0)];
        let step = StepSummary { step: Step::Subscribed, per_second: vec![3], latency_us, latency_cdf };
        client.connections.steps.push(step);
        client.headers = HeadersSummary { skipped: 2, not_above: 1, ..HeadersSummary::default() };
        client.topics[0].longest_gap_us = Some(1_500);
        let programs = [ProgramRun { name: "client".into(), ..ProgramRun::default() }];
        let summaries = BTreeMap::from([("client".to_owned(), client)]);
        let evidence = Evidence { programs: &programs, ..of_programs(summaries) };
        let value = |text: &str| evidence.value(&text.parse().expect("a value"));
        assert_eq!(value("client:(subscribed):p50_ms"), Some(7.0));
        assert_eq!(value("client:(subscribed):p95_ms"), Some(9.0));
        assert_eq!(value("client:(subscribed):received"), Some(3.0));
        assert_eq!(value("client:(reconnected):received"), Some(0.0), "no client took it");
        assert_eq!(value("client:(reconnected):p50_ms"), None);
        assert_eq!(value("client:*:received"), Some(50.0), "steps are no topics");
        assert_eq!((value("client::skipped"), value("client::not_above")), (Some(2.0), Some(1.0)));
        assert_eq!(value("client:t:longest_gap_ms"), Some(1.5));
    }
}
