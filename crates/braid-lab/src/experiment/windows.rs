//! Values of a run restricted to windows of the workload's time.

use braid_bench::summary::{TopicSummary, Trace};
use braid_measure::quantile_of_all;

use super::links::between;
use super::measure::Evidence;
use crate::scenario::{Field, ProgramField, Scenario, Value, Window};

/// Messages of a topic's trace that were due in a window.
struct Part {
    /// Number of messages: due ones of a publisher, arrived ones of a subscriber.
    messages: usize,
    /// Latencies (ms), sorted; empty for a publisher.
    took: Vec<f64>,
    /// Due time (seconds since the start of the window) and latency (ms) of each message.
    late: Vec<(f64, f64)>,
}

impl Evidence<'_> {
    /// Reasons to refuse the run: traces that windows need, and that lack messages or pings which were counted.
    pub(super) fn incomplete_traces(&self, scenario: &Scenario) -> Vec<String> {
        let mut doubts = Vec::new();
        for value in scenario.values() {
            let Value::In { value, .. } = value else { continue };
            let Some((of, traced, counted)) = self.traced(value) else { continue };
            let doubt =
                format!("the trace of {of} has {traced} of {counted}: shorten the run, or slow it down");
            if traced < counted && !doubts.contains(&doubt) {
                doubts.push(doubt);
            }
        }
        doubts
    }

    /// Subject of a value, and how many of its messages or pings its trace has, and how many were counted; `None`
    /// without a trace.
    fn traced(&self, value: &Value) -> Option<(String, u64, u64)> {
        match value {
            Value::Topic(flow, _) => {
                let topic = self.flow(flow)?;
                let traced = topic.trace.as_ref()?.due_unix_us.len() as u64;
                let arrived = topic.latency_us.map_or(0, |latency| latency.count);
                let due = topic.sent.max(topic.acked + topic.failed);
                Some((format!("{flow}"), traced, due.max(arrived)))
            }
            Value::Program { program, field: ProgramField::PingrespMaxMs } => {
                let summary = self.summaries.get(program)?;
                let traced = summary.pings.as_ref()?.due_unix_us.len() as u64;
                Some((
                    format!("the pings of {program}"),
                    traced,
                    summary.pingresp_us.map_or(0, |pings| pings.count),
                ))
            }
            _ => None,
        }
    }

    /// Value restricted to the window of this name.
    pub(super) fn value_in(&self, value: &Value, window: &str) -> Option<f64> {
        let part = self.part(window)?;
        let (from, until) = part.seconds();
        match value {
            Value::Topic(_, Field::Quantile(_)) => self.quantile_in(value, window, None),
            Value::Topic(flow, field) => part_value(&self.part_of(&self.flow(flow)?, from, until)?, *field),
            Value::Stream { .. } => self.stream_value(value, (from, until)),
            Value::Program { program, field: ProgramField::PingrespMaxMs } => {
                let pings = self.summaries.get(program)?.pings.as_ref()?;
                self.took_in(pings, from, until).map(|(_, ms)| ms).reduce(f64::max)
            }
            Value::Program { program, field: ProgramField::CpuSeconds } => {
                let [before, after] = self.samples.processor(program, [part.from.0, part.until.0])?;
                Some(after.saturating_sub(before).as_secs_f64())
            }
            Value::Link { link, way, field } => {
                let at = self.link_names.iter().position(|name| name == link)?;
                let of = |up: &bool| {
                    let [before, after] = self.samples.between(at, *up, [part.from.0, part.until.0])?;
                    between(&before, &after, *field)
                };
                way.directions().iter().map(of).sum()
            }
            // Not defined for windows.
            Value::Program { .. } | Value::Counter { .. } | Value::Set(_) | Value::In { .. } => None,
        }
    }

    /// Latency quantile (ms) of `due` messages, or of those that arrived, in a window.
    pub(super) fn quantile_in(&self, value: &Value, window: &str, due: Option<f64>) -> Option<f64> {
        let (from, until) = self.part(window)?.seconds();
        let (Value::Topic(flow, _), Some(quantile)) = (value, value.quantile()) else { return None };
        let took = self.part_of(&self.flow(flow)?, from, until)?.took;
        let due = due.unwrap_or(0.0).max(took.len() as f64);
        quantile_of_all(&took, due, quantile)
    }

    fn part(&self, window: &str) -> Option<&Window> {
        self.windows.iter().find(|one| one.name == window)
    }

    /// Messages that were due then; `None` if the program wrote no trace.
    fn part_of(&self, topic: &TopicSummary, from: f64, until: f64) -> Option<Part> {
        let trace = topic.trace.as_ref()?;
        let messages = self.due_in(trace, from, until).count();
        let late: Vec<(f64, f64)> =
            self.took_in(trace, from, until).map(|(at, ms)| (at - from, ms)).collect();
        let mut took: Vec<f64> = late.iter().map(|(_, ms)| *ms).collect();
        took.sort_by(f64::total_cmp);
        Some(Part { messages, took, late })
    }

    /// Index in the trace and due time (s) of the messages that were due then.
    fn due_in(&self, trace: &Trace, from: f64, until: f64) -> impl Iterator<Item = (usize, f64)> {
        let origin = self.origin_unix_us as f64;
        let since = trace.due_unix_us.iter().map(move |unix_us| (*unix_us as f64 - origin) / 1e6);
        since.enumerate().filter(move |(_, at)| (from..until).contains(at))
    }

    /// Due time (s) and latency (ms) of the messages that were due then and arrived.
    fn took_in(&self, trace: &Trace, from: f64, until: f64) -> impl Iterator<Item = (f64, f64)> {
        self.due_in(trace, from, until)
            .filter_map(|(place, at)| Some((at, *trace.took_us.get(place)? as f64 / 1000.0)))
    }

    /// Bytes, or bytes per second, of a stream in a part of the time. Seconds of the program at the edges count in
    /// proportion.
    pub(super) fn stream_value(&self, value: &Value, (from, until): (f64, f64)) -> Option<f64> {
        let Value::Stream { program, number, and_above, is_total } = value else { return None };
        let summary = self.summaries.get(program)?;
        let is_meant = |stream: u64| stream == *number || (*and_above && stream > *number);
        let mut streams = summary.streams.iter().filter(|stream| is_meant(stream.stream)).peekable();
        streams.peek()?;
        let shift = self.shift(summary);
        let bytes: f64 = streams
            .flat_map(|stream| stream.bytes_per_second.iter().enumerate())
            .map(|(second, bytes)| {
                let begins = second as f64 + shift;
                let inside = ((begins + 1.0).min(until) - begins.max(from)).max(0.0);
                *bytes as f64 * inside
            })
            .sum();
        Some(if *is_total { bytes } else { bytes / (until - from) }).filter(|value| value.is_finite())
    }
}

fn part_value(part: &Part, field: Field) -> Option<f64> {
    let Part { messages, took, late } = part;
    Some(match field {
        Field::Offered => *messages as f64,
        Field::Received => took.len() as f64,
        Field::MaxMs => *took.last()?,
        Field::MeanMs if took.is_empty() => return None,
        Field::MeanMs => took.iter().sum::<f64>() / took.len() as f64,
        Field::Within(limit) => took.iter().filter(|ms| **ms <= f64::from(limit)).count() as f64,
        Field::Settled(_) if took.is_empty() => return None,
        Field::Settled(limit) => {
            let is_late = |(_, ms): &&(f64, f64)| *ms > f64::from(limit);
            late.iter().filter(is_late).map(|(at, _)| *at).fold(0.0, f64::max)
        }
        // Not defined for windows.
        Field::Sent
        | Field::Acked
        | Field::Bytes
        | Field::Quantile(_)
        | Field::SecondsBelow(_)
        | Field::RateQuantile(_)
        | Field::Rate
        | Field::LongestGapMs
        | Field::LastSecond => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use braid_bench::summary::StreamSummary;
    use braid_emulator::PathCounters;
    use braid_measure::Quantiles;

    use super::super::job::tests::plan;
    use super::super::links::{Sample, Samples};
    use super::super::measure::tests::{consumer, of_programs};
    use super::*;
    use crate::scenario::Metric;

    fn windows() -> Vec<Window> {
        let text = r#"like = "hol"
            [[window]]
            name = "steady"
            from = "1s"
            until = "3s""#;
        Scenario::parse("x.toml", text).expect("a scenario").windows
    }

    /// Value of a workload that begins at 10 s. Of the twenty messages that were due in its window, one took 500 ms and
    /// one did not arrive.
    fn value_in_window(text: &str, per: Option<&str>) -> Option<f64> {
        let due: Vec<u64> = (0..40).map(|n| 10_000_000 + n * 100_000).collect();
        let arrived: Vec<u64> = due.iter().copied().filter(|due| *due != 11_700_000).collect();
        let took =
            arrived.iter().map(|due| if *due == 11_400_000 { 500_000 } else { due / 1_000_000 * 1000 });
        let trace = Trace { took_us: took.collect(), due_unix_us: arrived };
        let (mut receiver, mut sender) = (consumer(), consumer());
        receiver.topics[0].trace = Some(trace);
        receiver.pings = Some(Trace {
            due_unix_us: vec![10_500_000, 11_500_000, 12_999_999],
            took_us: vec![90_000, 7_000, 8_000],
        });
        sender.topics[0].trace = Some(Trace { due_unix_us: due, took_us: Vec::new() });
        // The receiver began half a second before the workload.
        receiver.started_unix_us = 9_500_000;
        let stream = |stream, bytes: u64| StreamSummary { stream, bytes_per_second: vec![bytes; 6] };
        receiver.streams = vec![stream(1, 1), stream(2, 100), stream(3, 20)];
        let mut rows = Samples::new();
        for second in 0..5_u64 {
            let mut counters = PathCounters::default();
            counters.offered.packets = second * second * 10;
            counters.offered.bytes = second * second * 1000;
            counters.policed.packets = second;
            let mut down = PathCounters::default();
            down.offered.bytes = second * 250;
            counters.lost.packets = second * 3;
            rows.push(Sample {
                links: vec![[counters, down]],
                processor: BTreeMap::from([("broker".to_owned(), Duration::from_millis(second * 300))]),
            });
        }
        let windows = windows();
        let limit = BTreeMap::from([("limit".to_owned(), "50".to_owned())]);
        let none = BTreeMap::new();
        let summaries = [("consumer".to_owned(), receiver), ("producer".to_owned(), sender)];
        let evidence = Evidence {
            origin_unix_us: 10_000_000,
            windows: &windows,
            samples: &rows,
            link_names: &["bad"],
            sets: [&limit, &none],
            ..of_programs(BTreeMap::from(summaries))
        };
        let value: Value = text.parse().expect("a value");
        match (&value, per) {
            (Value::In { value, window }, Some(due)) => {
                evidence.quantile_in(value, window, evidence.value(&due.parse().expect("a value")))
            }
            (value, _) => evidence.value(value),
        }
    }

    #[test]
    fn messages_belong_to_the_window_of_their_due_time() {
        assert_eq!(value_in_window("producer:t:due@steady", None), Some(20.0));
        assert_eq!(value_in_window("consumer:t:received@steady", None), Some(19.0));
        assert_eq!(value_in_window("consumer:t:p50_ms@steady", None), Some(12.0));
        assert_eq!(value_in_window("consumer:t:p90_ms@steady", None), Some(12.0));
        assert_eq!(value_in_window("consumer:t:p99_ms@steady", None), Some(500.0));
        assert_eq!(value_in_window("consumer:t:max_ms@steady", None), Some(500.0));
        assert_eq!(value_in_window("consumer:t:within_100ms@steady", None), Some(18.0));
        let due = Some("producer:t:due@steady");
        assert_eq!(value_in_window("consumer:t:p90_ms@steady", due), Some(12.0));
        assert_eq!(
            value_in_window("consumer:t:p95_ms@steady", due),
            Some(500.0),
            "the one that is missing is slower"
        );
        assert_eq!(value_in_window("consumer:t:p99_ms@steady", due), None);
        assert_eq!(value_in_window("producer:t:p50_ms@steady", None), None, "a publisher has no latencies");
    }

    #[test]
    fn convergence_ends_with_the_last_late_message() {
        let settled = value_in_window("consumer:t:settled_100ms@steady", None).expect("messages came");
        assert!((settled - 0.4).abs() < 1e-9, "{settled}");
        assert_eq!(value_in_window("consumer:t:settled_500ms@steady", None), Some(0.0));
    }

    #[test]
    fn pings_belong_to_the_window_in_which_they_were_sent() {
        assert_eq!(value_in_window("consumer::pingresp_max_ms@steady", None), Some(8.0));
        assert_eq!(value_in_window("producer::pingresp_max_ms@steady", None), None, "it wrote no trace");
    }

    #[test]
    fn bytes_and_packets_belong_to_the_window_of_their_arrival() {
        assert_eq!(value_in_window("consumer:stream:2:rate@steady", None), Some(100.0));
        assert_eq!(value_in_window("consumer:stream:2+:rate@steady", None), Some(120.0));
        assert_eq!(value_in_window("consumer:stream:2:bytes@steady", None), Some(200.0));
        assert_eq!(
            value_in_window("consumer:stream:2:bytes", None),
            Some(550.0),
            "half a second was before the workload"
        );
        assert_eq!(value_in_window("consumer:stream:9:rate@steady", None), None);
        // From the first second to the third: 10 to 90 were offered.
        assert_eq!(value_in_window("link:bad:up:policed_share@steady", None), Some(2.0 / 80.0));
        assert_eq!(value_in_window("link:bad:up:dropped_share@steady", None), Some(8.0 / 80.0));
        assert_eq!(value_in_window("link:bad:up:offered_bytes@steady", None), Some(8_000.0));
        assert_eq!(value_in_window("link:bad:both:offered_bytes@steady", None), Some(8_500.0));
        assert_eq!(value_in_window("broker::cpu_seconds@steady", None), Some(0.6));
        assert_eq!(value_in_window("other::cpu_seconds@steady", None), None);
        assert_eq!(value_in_window("set:limit", None), Some(50.0));
        assert_eq!(value_in_window("set:other", None), None);
    }

    #[test]
    fn a_trace_that_lacks_messages_refuses_the_run() {
        let mut scenario = plan().scenario;
        let metric = |value: &str, per: Option<&str>| Metric {
            value: value.parse().expect("a value"),
            per: per.map(|per| per.parse().expect("a value")),
            ..scenario.metrics[0].clone()
        };
        scenario.metrics = vec![
            metric("consumer:t:p99_ms@steady", Some("producer:t:due@steady")),
            metric("consumer::pingresp_max_ms@steady", None),
        ];
        let doubts = |due: usize, took: usize, pings: usize| {
            let (mut receiver, mut sender) = (consumer(), consumer());
            let trace = |count| Trace { due_unix_us: vec![1; count], took_us: vec![1; count] };
            receiver.topics[0].trace = Some(trace(took));
            receiver.pings = Some(trace(pings));
            receiver.pingresp_us = Some(Quantiles { count: 3, ..Quantiles::default() });
            let trace = Trace { due_unix_us: vec![1; due], took_us: Vec::new() };
            sender.topics[0] = TopicSummary {
                topic: "t".into(),
                sent: 55,
                acked: 50,
                failed: 10,
                trace: Some(trace),
                ..TopicSummary::default()
            };
            let summaries = [("consumer".to_owned(), receiver), ("producer".to_owned(), sender)];
            of_programs(BTreeMap::from(summaries)).incomplete_traces(&scenario)
        };
        assert_eq!(doubts(60, 50, 3), Vec::<String>::new());
        let remedy = "shorten the run, or slow it down";
        let of = |what: &str| format!("the trace of {what}: {remedy}");
        assert_eq!(doubts(60, 49, 3), [of("consumer:t has 49 of 50")]);
        assert_eq!(
            doubts(59, 50, 2),
            [of("producer:t has 59 of 60"), of("the pings of consumer has 2 of 3")]
        );
    }
}
