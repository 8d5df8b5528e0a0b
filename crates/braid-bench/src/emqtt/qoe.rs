use std::time::Duration;

use super::DurationHistogram;

/// Durations that are printed, with their names.
const TOLD: [(DurationHistogram, &str); 4] = [
    (DurationHistogram::TcpHandshake, "tcp"),
    (DurationHistogram::Handshake, "handshake"),
    (DurationHistogram::Connect, "connect"),
    (DurationHistogram::Subscribe, "subscribe"),
];

/// Durations of the clients since the last lines, for those that `-Q true` prints once a second.
#[derive(Debug, Default)]
pub struct Qoe {
    /// In whole milliseconds, in the order of [`TOLD`].
    millis: [Vec<u64>; TOLD.len()],
}

impl Qoe {
    /// Keeps how long a client took. The latency of messages is not told.
    pub fn observe(&mut self, which: DurationHistogram, took: Duration) {
        if let Some(at) = TOLD.iter().position(|(told, _)| *told == which) {
            self.millis[at].push(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        }
    }

    /// Adds what others have kept.
    pub fn append(&mut self, others: Self) {
        self.millis.iter_mut().zip(others.millis).for_each(|(mine, theirs)| mine.extend(theirs));
    }

    /// A line for each that is known, with the space at its end: `connect, avg: 1.5ms, P95: 2ms, Max: 2ms `.
    #[must_use]
    pub fn lines(mut self) -> Vec<String> {
        let all = TOLD.iter().zip(&mut self.millis);
        all.filter_map(|((_, name), millis)| line(name, millis)).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "an average of milliseconds")]
fn line(name: &str, millis: &mut [u64]) -> Option<String> {
    millis.sort_unstable();
    let max = millis.last()?;
    // The smallest that 95 % of them do not exceed.
    let p95 = millis.get((millis.len() * 95).div_ceil(100).saturating_sub(1))?;
    let sum: u128 = millis.iter().map(|&took| u128::from(took)).sum();
    let average = sum as f64 / millis.len() as f64;
    Some(format!("{name}, avg: {average:?}ms, P95: {p95}ms, Max: {max}ms "))
}
