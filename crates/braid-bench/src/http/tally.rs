use std::collections::BTreeMap;
use std::time::Duration;

use braid_measure::Latencies;

use super::load::Protocol;
use super::summary::{ClientError, Counts, HttpSummary, Moments, SCHEMA, Traffic};

/// Most different errors that are kept; more are counted under [`OTHER_ERRORS`].
const ERRORS: usize = 16;
const OTHER_ERRORS: &str = "other errors";

/// Most seconds that are counted for themselves, a day: later ones count as the last.
const MOST_SECONDS: usize = 24 * 60 * 60;

/// Counts of one thread, and the sum over all threads.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) counts: Counts,
    pub(super) traffic: Traffic,
    /// Times from a request to the end of its response.
    pub(super) request: Durations,
    /// Requests that were done, by whole seconds since the thread began.
    pub(super) done_per_second: Vec<u64>,
    /// A sample for each client.
    pub(super) clients: Vec<ClientSample>,
    pub(super) errors: BTreeMap<String, u64>,
    /// Version of the last connection.
    pub(super) protocol: Option<Protocol>,
    /// Duration of the measurement.
    pub(super) main: Duration,
}

/// Times of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTimes {
    /// Begin, microseconds since the Unix epoch.
    pub(super) started_unix_us: u64,
    /// Duration, with the warm-up.
    pub(super) elapsed: Duration,
    /// CPU time of the process in it.
    pub(super) cpu: Duration,
}

/// Times of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ClientSample {
    /// Time from the begin of a connection until requests can be sent.
    pub(super) connect: Option<Duration>,
    /// Time from the begin of a connection to the first byte of a response.
    pub(super) first_byte: Option<Duration>,
    pub(super) requests_per_second: f64,
}

impl Tally {
    /// Counts an error that ended a client.
    pub(super) fn error(&mut self, text: String) {
        self.errors_of(text, 1);
    }

    fn errors_of(&mut self, text: String, count: u64) {
        let is_new = !self.errors.contains_key(&text);
        let key = if is_new && self.errors.len() >= ERRORS { OTHER_ERRORS.to_owned() } else { text };
        *self.errors.entry(key).or_default() += count;
    }

    /// Errors that ended clients, with the number of clients, the most frequent first.
    fn errors(&self) -> Vec<(String, u64)> {
        let mut errors: Vec<_> = self.errors.iter().map(|(text, count)| (text.clone(), *count)).collect();
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        errors
    }

    /// Counts a request that was done so long after the begin of the thread.
    pub(super) fn done_after(&mut self, since: Duration) {
        let second = usize::try_from(since.as_secs()).unwrap_or(usize::MAX).min(MOST_SECONDS - 1);
        if self.done_per_second.len() <= second {
            self.done_per_second.resize(second + 1, 0);
        }
        self.done_per_second[second] += 1;
    }

    /// Results of a run. `total`: requests of the load, if it has a number of them.
    pub(super) fn summary(&self, total: Option<u64>, protocol: &str, times: RunTimes) -> HttpSummary {
        let RunTimes { started_unix_us, elapsed, cpu } = times;
        let requests = Counts { total: total.unwrap_or(self.counts.done), ..self.counts };
        let measured = self.main.as_secs_f64();
        let per_second = |count: u64| if measured > 0.0 { count as f64 / measured } else { 0.0 };
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        let times = |of: fn(&ClientSample) -> Option<Duration>| {
            moments_of(&self.clients.iter().filter_map(of).map(micros).collect::<Vec<_>>())
        };
        let mut connects = Latencies::default();
        self.clients.iter().filter_map(|client| client.connect).for_each(|took| connects.record(took));
        let rates: Vec<f64> = self.clients.iter().map(|client| client.requests_per_second).collect();
        HttpSummary {
            schema: SCHEMA.to_owned(),
            protocol: protocol.to_owned(),
            started_unix_us,
            seconds: elapsed.as_secs_f64(),
            measured_seconds: measured,
            cpu_seconds: cpu.as_secs_f64(),
            requests_per_second: per_second(requests.completed()),
            bytes_per_second: per_second(self.traffic.bytes),
            requests,
            traffic: self.traffic,
            request_us: self.request.moments(),
            request_quantiles_us: self.request.histogram().quantiles_us(),
            request_curve_us: self.request.histogram().curve_us(),
            done_per_second: self.done_per_second.clone(),
            connect_us: times(|client| client.connect),
            connect_quantiles_us: connects.quantiles_us(),
            first_byte_us: times(|client| client.first_byte),
            client_requests_per_second: moments_of(&rates),
            errors: self.errors().into_iter().map(|(what, clients)| ClientError { what, clients }).collect(),
        }
    }

    /// Adds the counts of another thread.
    pub(super) fn add(&mut self, other: Self) {
        self.counts.add(&other.counts);
        self.traffic.add(&other.traffic);
        self.request.add(&other.request);
        self.clients.extend(other.clients);
        self.done_per_second.resize(self.done_per_second.len().max(other.done_per_second.len()), 0);
        self.done_per_second.iter_mut().zip(other.done_per_second).for_each(|(sum, count)| *sum += count);
        for (text, count) in other.errors {
            self.errors_of(text, count);
        }
        self.protocol = other.protocol.or(self.protocol);
        self.main = self.main.max(other.main);
    }
}

/// Distribution of durations in bounded memory: exact moments, and a histogram.
#[derive(Debug, Default)]
pub(super) struct Durations {
    histogram: Latencies,
    min: Option<u64>,
    max: u64,
    /// Microseconds.
    sum: u128,
    squares: u128,
}

impl Durations {
    pub(super) fn record(&mut self, duration: Duration) {
        self.histogram.record(duration);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.min = Some(self.min.map_or(micros, |min| min.min(micros)));
        self.max = self.max.max(micros);
        self.sum += u128::from(micros);
        self.squares = self.squares.saturating_add(u128::from(micros) * u128::from(micros));
    }

    fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram);
        self.min = self.min.into_iter().chain(other.min).min();
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.squares = self.squares.saturating_add(other.squares);
    }

    fn histogram(&self) -> &Latencies {
        &self.histogram
    }

    /// Moments in microseconds; the share within a standard deviation is that of the histogram.
    fn moments(&self) -> Moments {
        let count = self.histogram.arrived();
        let Some(min) = self.min else { return Moments::default() };
        let mean = self.sum as f64 / count as f64;
        let sd = deviation(count, self.sum as f64, self.squares as f64);
        let micros = |value: f64| Duration::from_secs_f64(value.max(0.0) / 1e6);
        let above = self.histogram.share_within(micros(mean + sd));
        // The bucket of the lower bound is inside.
        let below = (mean - sd >= 1.0).then(|| self.histogram.share_within(micros(mean - sd - 1.0)));
        let within = (above - below.unwrap_or_default()).clamp(0.0, 1.0);
        Moments { min: min as f64, max: self.max as f64, mean, sd, within_sd: within * 100.0 }
    }
}

/// Moments of a few values.
fn moments_of(values: &[f64]) -> Moments {
    if values.is_empty() {
        return Moments::default();
    }
    let (sum, squares): (f64, f64) = (values.iter().sum(), values.iter().map(|value| value * value).sum());
    let mean = sum / values.len() as f64;
    let sd = deviation(values.len() as u64, sum, squares);
    // A millionth more than rounding can take away.
    let within =
        values.iter().filter(|value| (*value - mean).abs() <= sd * (1.0 + 1e-6) + mean.abs() * 1e-9).count();
    Moments {
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        mean,
        sd,
        within_sd: within as f64 / values.len() as f64 * 100.0,
    }
}

/// Standard deviation of a sample, with Bessel's correction as in h2load.
fn deviation(count: u64, sum: f64, squares: f64) -> f64 {
    if count < 2 {
        return 0.0;
    }
    let count = count as f64;
    ((squares - sum * sum / count).max(0.0) / (count - 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_a_histogram_are_those_of_the_list() {
        let mut durations = Durations::default();
        assert_eq!(durations.moments(), Moments::default());
        let mut rng = fastrand::Rng::with_seed(7);
        let values: Vec<u64> = (0..2000).map(|_| 50 + rng.u64(..20) * rng.u64(..500)).collect();
        let mut other = Durations::default();
        for (at, value) in values.iter().enumerate() {
            let half = if at % 2 == 0 { &mut durations } else { &mut other };
            half.record(Duration::from_micros(*value));
        }
        durations.add(&other);
        let (found, wanted) =
            (durations.moments(), moments_of(&values.iter().map(|value| *value as f64).collect::<Vec<_>>()));
        assert_eq!((found.min, found.max), (wanted.min, wanted.max));
        assert!((found.mean - wanted.mean).abs() < 1e-6 && (found.sd - wanted.sd).abs() < 1e-3, "{found:?}");
        assert!((found.within_sd - wanted.within_sd).abs() < 0.5, "{found:?} is not {wanted:?}");
    }

    #[test]
    fn one_value_has_no_deviation() {
        let one = Moments { min: 7.0, max: 7.0, mean: 7.0, sd: 0.0, within_sd: 100.0 };
        assert_eq!(moments_of(&[7.0]), one);
        let mut durations = Durations::default();
        durations.record(Duration::from_micros(7));
        assert_eq!(durations.moments(), one);
        // h2load: 45us and 153us have the mean 99us and sd 76us, with both within.
        let two = moments_of(&[45.0, 153.0]);
        assert!((two.sd - 76.37).abs() < 0.01, "{two:?}");
        assert!(two.within_sd.abs() < 100.1 && two.within_sd >= 99.9, "{two:?}");
    }

    #[test]
    fn different_errors_are_bounded() {
        let mut tally = Tally::default();
        (0..40).for_each(|number| tally.error(format!("error {number}")));
        tally.error("error 3".to_owned());
        let errors = tally.errors();
        assert_eq!(errors.len(), ERRORS + 1);
        assert_eq!(errors[..2], [(OTHER_ERRORS.to_owned(), 24), ("error 3".to_owned(), 2)]);
    }
}
