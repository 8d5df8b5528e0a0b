//! Moving averages of what was measured.

use std::time::Duration;

use crate::cost::Path;
use crate::reading::Interval;

/// Half-life of a measurement in seconds.
pub(crate) const HALF_LIFE: f64 = 30.0;

/// Packets, decayed, below which an estimate is no evidence.
const MIN_PACKETS: f64 = 20.0;

/// Age after which an estimate is stale: the path may be another one.
pub(crate) const FRESH: Duration = Duration::from_secs(60);

/// Largest loss ratio of an estimate.
const MAX_LOSS: f64 = 0.9;

/// Weight that is left of a measurement after `age`.
fn decay(age: Duration) -> f64 {
    (-age.as_secs_f64() / HALF_LIFE).exp2()
}

/// Path as one protocol measures it: sums over packets with a half-life of 30 s.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathEstimate {
    /// Time of the last reading with packets.
    pub(crate) at: Duration,
    /// Time of the last reading in which the peer acknowledged anything.
    pub(crate) progress: Option<Duration>,
    sent: f64,
    lost: f64,
    /// RTT in seconds, times the packets.
    srtt: f64,
    /// Mean deviation of the RTT in seconds, times the packets.
    rttvar: f64,
    /// Minimum RTT in seconds, times the packets.
    min_rtt: f64,
    /// Decaying maximum of the delivery rates that the path limited, in bytes a second; 0 if there was none.
    rate: f64,
}

impl PathEstimate {
    pub(crate) fn observe(&mut self, now: Duration, interval: &Interval) {
        if interval.progress {
            self.progress = Some(now);
        }
        if interval.sent == 0 {
            return;
        }
        let sent = interval.sent as f64;
        let left = decay(now.saturating_sub(self.at));
        self.at = self.at.max(now);
        for (sum, new) in [
            (&mut self.sent, sent),
            (&mut self.lost, interval.lost),
            (&mut self.srtt, interval.srtt * sent),
            (&mut self.rttvar, interval.rttvar * sent),
            (&mut self.min_rtt, interval.min_rtt * sent),
        ] {
            *sum = *sum * left + new;
        }
        if let Some(sample) = interval.rate {
            let rate = sample.bytes_per_second.get() as f64;
            self.rate = match sample.app_limited {
                false => rate.max(self.rate * left),
                // A lower bound of what the path carries.
                true if self.rate > 0.0 => rate.max(self.rate),
                true => 0.0,
            };
        }
    }

    /// Tests whether the estimate was fed within the last minute.
    pub(crate) fn is_fresh(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) <= FRESH
    }

    /// Measured path; `None` with too few packets.
    pub(crate) fn path(&self) -> Option<Path> {
        (self.sent >= MIN_PACKETS).then(|| {
            let lost = self.lost.max(0.0);
            Path {
                srtt: self.srtt / self.sent,
                rttvar: self.rttvar / self.sent,
                min_rtt: self.min_rtt / self.sent,
                // One standard deviation of the count below it, so that a single loss is no evidence.
                loss: ((lost - lost.sqrt()).max(0.0) / self.sent).min(MAX_LOSS),
                rate: (self.rate > 0.0).then_some(self.rate),
            }
        })
    }
}

/// Half-life of a ratio in seconds. Ratios belong to the implementations and the model, and change less than a path.
const RATIO_HALF_LIFE: f64 = 300.0;

/// Bound of a ratio and of its inverse.
const MAX_RATIO: f64 = 1e4;

/// Mean of a ratio over time, with a half-life of five minutes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RatioAverage {
    at: Duration,
    /// Time of the first sample.
    since: Duration,
    mean: f64,
    variance: f64,
    /// Sum of the squared weights of all samples: the inverse of their effective number.
    squares: f64,
}

impl RatioAverage {
    /// Takes a sample. Until the half-life has passed, samples weigh by the time since the one before.
    pub(crate) fn observe(average: &mut Option<Self>, now: Duration, ratio: f64) {
        if ratio.is_nan() {
            return;
        }
        let ratio = ratio.clamp(1.0 / MAX_RATIO, MAX_RATIO);
        let Some(average) = average else {
            // Unknown after one sample: as large as itself.
            let variance = ratio * ratio;
            *average = Some(Self { at: now, since: now, mean: ratio, variance, squares: 1.0 });
            return;
        };
        // Samples without time between them weigh as if one came every millisecond.
        let step = now.saturating_sub(average.at).as_secs_f64().max(0.001);
        let elapsed = now.saturating_sub(average.since).as_secs_f64();
        let weight = (1.0 - (-step / RATIO_HALF_LIFE).exp2()).max(step / (elapsed + 1.0)).min(1.0);
        let difference = ratio - average.mean;
        average.mean += difference * weight;
        average.variance += (difference * difference - average.variance) * weight;
        average.squares = average.squares * (1.0 - weight).powi(2) + weight * weight;
        average.at = average.at.max(now);
    }

    pub(crate) const fn ratio(&self) -> f64 {
        self.mean
    }

    /// Ratio less its standard error, but not below half of it.
    pub(crate) fn low(&self) -> f64 {
        (self.mean - (self.variance * self.squares).sqrt()).max(self.mean / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::reading::DeliveryRate;

    const SECOND: Duration = Duration::from_secs(1);

    fn interval(sent: u64, lost: f64, srtt: f64) -> Interval {
        Interval { srtt, rttvar: srtt / 10.0, min_rtt: srtt, sent, lost, progress: true, rate: None }
    }

    #[test]
    fn half_of_the_weight_is_left_after_half_a_minute() {
        let mut estimate = PathEstimate::default();
        estimate.observe(Duration::ZERO, &interval(100, 0.0, 0.1));
        estimate.observe(30 * SECOND, &interval(50, 0.0, 0.2));
        let path = estimate.path().unwrap();
        assert!((path.srtt - 0.15).abs() < 1e-9 && (path.rttvar - 0.015).abs() < 1e-9, "{path:?}");
    }

    #[test]
    fn few_packets_and_single_losses_are_no_evidence() {
        let mut estimate = PathEstimate::default();
        estimate.observe(SECOND, &interval(19, 1.0, 0.1));
        assert!(estimate.path().is_none());
        estimate.observe(SECOND, &interval(1, 0.0, 0.1));
        assert_eq!(estimate.path().unwrap().loss, 0.0);
        estimate.observe(SECOND, &interval(980, 99.0, 0.1));
        assert!((estimate.path().unwrap().loss - 0.09).abs() < 1e-9);
        // All of them were spurious.
        estimate.observe(SECOND, &interval(1000, -101.0, 0.1));
        assert_eq!(estimate.path().unwrap().loss, 0.0);
    }

    #[test]
    fn the_application_limits_no_rate() {
        let mut estimate = PathEstimate::default();
        let mut rate = |rate, app_limited| {
            let bytes_per_second = NonZeroU64::new(rate).unwrap();
            let sample = Some(DeliveryRate { bytes_per_second, app_limited });
            estimate.observe(SECOND, &Interval { rate: sample, ..interval(100, 0.0, 0.1) });
            estimate.path().unwrap().rate
        };
        assert_eq!(rate(500, true), None);
        assert_eq!(rate(900, false), Some(900.0));
        assert_eq!(rate(100, true), Some(900.0));
        assert_eq!(rate(1000, true), Some(1000.0));
    }

    #[test]
    fn ratios_average_and_are_bounded() {
        let mut average = None;
        for second in 1..=600 {
            RatioAverage::observe(&mut average, SECOND * second, if second % 2 == 0 { 4.0 } else { 1.0 });
        }
        let average = average.unwrap();
        assert!((average.ratio() - 2.5).abs() < 0.02, "{average:?}");
        assert!((0.85..0.999).contains(&(average.low() / average.ratio())), "{average:?}");
        for bad in [f64::NAN, f64::INFINITY, 0.0] {
            let mut average = None;
            RatioAverage::observe(&mut average, SECOND, bad);
            assert!(average.is_none_or(|average| (0.9e-4..1.1e4).contains(&average.ratio())), "{bad}");
        }
    }
}
