//! The text of the live view.

use std::time::Duration;

use braid_bench::emqtt::{Counter, Counters, elapsed};
use braid_bench::generator::{RunSnapshot, RunStatistics};
use braid_bench::summary::TopicSummary;

use super::columns::{columns, quantile};
use crate::printable::printable;

const HEADER: [&str; 7] = ["topic", "stream", "priority", "messages", "per second", "p50 ms", "p99 ms"];

/// Lines that are no topics, and one for the cursor.
const OTHER_LINES: usize = 7;
/// Before that there are no rates: a few messages in a few milliseconds would be thousands a second.
const FIRST_RATE: Duration = Duration::from_secs(1);

/// Statistics of a run at one time.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) at: Duration,
    pub(super) counters: Counters,
    pub(super) connected: u64,
    pub(super) topics: Vec<TopicSummary>,
}

impl Snapshot {
    pub(super) fn of(statistics: &RunStatistics) -> Self {
        let RunSnapshot { counters, topics } = statistics.snapshot();
        Self { at: statistics.elapsed(), counters, connected: statistics.connected(), topics }
    }

    /// The lines for a window of so many columns and rows, with rates since `before`.
    pub(super) fn lines(&self, title: &str, before: &Self, (width, height): (usize, usize)) -> Vec<String> {
        let most = height.saturating_sub(OTHER_LINES);
        let mut lines = vec![format!("{title}  {}", elapsed(self.at)), self.connections()];
        lines.extend(self.counts(before));
        if self.topics.is_empty() {
            return lines;
        }
        let rows: Vec<_> = self.topics.iter().take(most).map(|topic| self.row(topic, before)).collect();
        lines.push(String::new());
        lines.extend(columns(&HEADER, &rows, width));
        if self.topics.len() > most {
            lines.push(format!("and {} more", self.topics.len() - most));
        }
        lines
    }

    fn connections(&self) -> String {
        let of = |counter: Counter| self.counters[counter];
        let lost = (of(Counter::ConnectSucc) + of(Counter::ReconnectSucc)).saturating_sub(self.connected);
        format!("connections: {} open, {lost} ended, {} failed", self.connected, of(Counter::ConnectFail))
    }

    /// The counters that say something and stand nowhere else.
    fn counts(&self, before: &Self) -> Option<String> {
        let shown = [
            Counter::Pub,
            Counter::PubFail,
            Counter::PubOverrun,
            Counter::Recv,
            Counter::Sub,
            Counter::SubFail,
        ];
        let counts: Vec<_> = shown
            .into_iter()
            .filter(|&counter| self.counters[counter] > 0)
            .map(|counter| {
                let count = self.counters[counter];
                let rate = self.rate(count, before.counters[counter], before);
                let rate = rate.map(|rate| format!(" ({rate:.1}/s)")).unwrap_or_default();
                format!("{} {count}{rate}", counter.name())
            })
            .collect();
        (!counts.is_empty()).then(|| counts.join("  "))
    }

    fn row(&self, topic: &TopicSummary, before: &Self) -> Vec<String> {
        let same = |other: &&TopicSummary| (&other.topic, other.stream) == (&topic.topic, topic.stream);
        let earlier = before.topics.iter().find(same).map_or(0, messages);
        let latency = topic.latency_us.as_ref();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let rate = self.rate(messages(topic), earlier, before);
        vec![
            printable(&topic.topic).into_owned(),
            topic.stream.to_string(),
            or_dash(topic.priority.map(|priority| priority.to_string())),
            messages(topic).to_string(),
            or_dash(rate.map(|rate| format!("{rate:.1}"))),
            quantile(latency, |quantiles| quantiles.p50),
            quantile(latency, |quantiles| quantiles.p99),
        ]
    }

    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    fn rate(&self, now: u64, earlier: u64, before: &Self) -> Option<f64> {
        let seconds = self.at.saturating_sub(before.at).as_secs_f64();
        let is_rate = self.at >= FIRST_RATE && seconds > 0.0;
        is_rate.then(|| now.saturating_sub(earlier) as f64 / seconds)
    }
}

/// Messages acknowledged, or received.
fn messages(topic: &TopicSummary) -> u64 {
    topic.acked.max(topic.received)
}

#[cfg(test)]
mod tests {
    use braid_measure::Quantiles;

    use super::*;

    fn snapshot(at: u64, acked: u64) -> Snapshot {
        let mut counters = Counters::default();
        counters[Counter::ConnectSucc] = 3;
        counters[Counter::Pub] = acked;
        let latency_us = Some(Quantiles { p50: 1500.0, p99: 20_000.0, ..Quantiles::default() });
        let topic = |name: &str, stream, priority| TopicSummary {
            topic: name.to_owned(),
            stream,
            priority,
            acked,
            latency_us,
            ..TopicSummary::default()
        };
        let topics = vec![topic("Topic1", 1, Some(200)), topic("Topic2", 2, None)];
        Snapshot { at: Duration::from_secs(at), counters, connected: 2, topics }
    }

    #[test]
    fn rates_are_those_since_the_view_before() {
        let lines = snapshot(62, 130).lines("pub to mqtt://h:1883", &snapshot(60, 100), (80, 24));
        assert_eq!(
            lines,
            [
                "pub to mqtt://h:1883  1m2s",
                "connections: 2 open, 1 ended, 0 failed",
                "pub 130 (15.0/s)",
                "",
                "topic   stream  priority  messages  per second  p50 ms  p99 ms",
                "Topic1       1       200       130        15.0    1.50    20.0",
                "Topic2       2         -       130        15.0    1.50    20.0",
            ]
        );
    }

    #[test]
    fn before_the_first_whole_second_there_are_no_rates() {
        let mut early = snapshot(0, 100);
        early.at = Duration::from_millis(2);
        let lines = early.lines("pub", &Snapshot::default(), (80, 24));
        assert_eq!(lines[2], "pub 100");
        assert_eq!(lines[5], "Topic1       1       200       100           -    1.50    20.0");
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut now = snapshot(1, 1);
        now.topics[1].topic = "a\u{1b}[2Jb".to_owned();
        let lines = now.lines("pub", &Snapshot::default(), (80, 24));
        assert!(lines[6].starts_with("a\\u{1b}[2Jb "), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
    }

    #[test]
    fn a_low_window_has_fewer_topics() {
        let lines = snapshot(1, 1).lines("pub", &Snapshot::default(), (80, 8));
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (7, Some("and 1 more")));
        assert!(!lines.iter().any(|line| line.starts_with("Topic2")));
    }
}
