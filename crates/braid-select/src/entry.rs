//! State of one network and origin: measurements, corrections and the choice.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::cost::{Cost, Path, Stack, Workload};
use crate::decision::Comparison;
use crate::estimate::{PathEstimate, RatioAverage};
use crate::protocol::Protocol;
use crate::reading::Interval;
use crate::switch::Switch;

/// Capacity of a path beyond the rate of a sender that losses limited: a guess until another one has measured it.
const HIDDEN_CAPACITY: f64 = 4.0;

/// Part of the throughput that losses permit, from which on losses are the limit.
const LOSS_LIMITED: f64 = 0.5;

/// Measurements by one protocol.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) path: PathEstimate,
    /// Measured completion time, divided by the prediction for the same bytes on the same path.
    pub(crate) completion: Option<RatioAverage>,
    /// Urgent latency on the path as this protocol measures it, divided by that on the path as the other one does.
    pub(crate) urgent_correction: Option<RatioAverage>,
    /// Completion time in the same way.
    pub(crate) completion_correction: Option<RatioAverage>,
    /// Loss ratio when both protocols were measured last.
    loss_beside: Option<f64>,
}

/// State of one network and origin.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) switch: Switch,
    pub(crate) backoff: Backoff,
    /// Latest event.
    pub(crate) at: Duration,
    /// Latest sign that QUIC works.
    pub(crate) quic_worked: Option<Duration>,
    /// End of the longest lifetime of an advertisement that was sent.
    pub(crate) advertised_until: Duration,
    /// True if TCP is chosen because QUIC failed, not for its cost.
    pub(crate) failed: bool,
    /// Smoothed RTT (s) of an earlier run.
    pub(crate) remembered_srtt: Option<f32>,
    /// TCP packets since the latest change, or sign that QUIC works.
    pub(crate) tcp_packets: u64,
    tcp: Measurement,
    quic: Measurement,
}

/// Implementations of the two protocols, and the workload whose cost is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) tcp: Stack,
    pub(crate) quic: Stack,
    pub(crate) workload: Workload,
}

impl Model {
    const fn stack(&self, of: Protocol) -> &Stack {
        match of {
            Protocol::Tcp => &self.tcp,
            Protocol::Quic => &self.quic,
        }
    }

    /// Path for `of` as the other protocol measured it.
    fn translate(&self, of: Protocol, path: &Path) -> Path {
        let limit = self.stack(of.other()).loss_limited_rate(path);
        let rate =
            path.rate.map(|rate| if rate >= LOSS_LIMITED * limit { rate * HIDDEN_CAPACITY } else { rate });
        Path { rate, ..*path }
    }

    /// Cost on the path that `of` measured, of whose losses so many are random. The rest is made by the protocol itself
    /// (losses of bursts at a policer) and does not meet small responses.
    fn own_cost(&self, of: Protocol, path: &Path, random_loss: f64) -> Cost {
        self.stack(of).cost(path, random_loss, &self.workload)
    }

    /// Part of the predicted completion time that is left without losses.
    fn lossless_share(&self, of: Protocol, path: &Path) -> f64 {
        let bytes = f64::from(self.workload.large_bytes);
        let stack = self.stack(of);
        stack.completion(&Path { loss: 0.0, ..*path }, bytes)
            / stack.completion(path, bytes).max(f64::MIN_POSITIVE)
    }

    fn translated_cost(&self, of: Protocol, path: &Path) -> Cost {
        self.own_cost(of, &self.translate(of, path), path.loss)
    }
}

impl Entry {
    pub(crate) fn new(now: Duration, chosen: Protocol) -> Self {
        Self {
            switch: Switch::new(chosen),
            backoff: Backoff::default(),
            at: now,
            quic_worked: None,
            advertised_until: Duration::ZERO,
            failed: false,
            remembered_srtt: None,
            tcp_packets: 0,
            tcp: Measurement::default(),
            quic: Measurement::default(),
        }
    }

    pub(crate) const fn measurement(&self, of: Protocol) -> &Measurement {
        match of {
            Protocol::Tcp => &self.tcp,
            Protocol::Quic => &self.quic,
        }
    }

    const fn measurement_mut(&mut self, of: Protocol) -> &mut Measurement {
        match of {
            Protocol::Tcp => &mut self.tcp,
            Protocol::Quic => &mut self.quic,
        }
    }

    /// Takes the statistics of an interval.
    pub(crate) fn observe(&mut self, now: Duration, model: &Model, of: Protocol, interval: &Interval) {
        self.measurement_mut(of).path.observe(now, interval);
        let (Some(own), Some(other)) = (self.fresh_path(now, of), self.fresh_path(now, of.other())) else {
            return;
        };
        for (protocol, own, other) in [(of, own, other), (of.other(), other, own)] {
            self.measurement_mut(protocol).loss_beside = Some(own.loss);
            let own = model.own_cost(protocol, &own, own.loss.min(other.loss));
            let predicted = model.translated_cost(protocol, &other);
            let measurement = self.measurement_mut(protocol);
            for (correction, ratio) in [
                (&mut measurement.urgent_correction, own.urgent / predicted.urgent),
                (&mut measurement.completion_correction, own.completion / predicted.completion),
            ] {
                RatioAverage::observe(correction, now, ratio);
            }
        }
    }

    /// Takes the completion time of a response in seconds.
    ///
    /// A response above the large one of the workload counts by the mean time of as many bytes: a path whose rate is
    /// not known has no prediction for more.
    pub(crate) fn complete(&mut self, now: Duration, model: &Model, of: Protocol, bytes: f64, elapsed: f64) {
        let measurement = self.measurement_mut(of);
        if let Some(path) = measurement.path.path() {
            let share = (f64::from(model.workload.large_bytes) / bytes).min(1.0);
            let way = (path.srtt / 2.0).min(elapsed);
            let elapsed = way + (elapsed - way) * share;
            let ratio = elapsed / model.stack(of).completion(&path, bytes * share);
            RatioAverage::observe(&mut measurement.completion, now, ratio);
        }
    }

    /// Smallest smoothed RTT (s) that one of the protocols measured, or that of an earlier run.
    pub(crate) fn srtt(&self) -> Option<f64> {
        let measured = [&self.tcp, &self.quic].into_iter().filter_map(|of| Some(of.path.path()?.srtt));
        measured.reduce(f64::min).or(self.remembered_srtt.map(f64::from))
    }

    /// Path as a protocol measured it last.
    fn path(&self, of: Protocol) -> Option<Path> {
        self.measurement(of).path.path()
    }

    /// Path as a protocol measures it, while that is fresh.
    fn fresh_path(&self, now: Duration, of: Protocol) -> Option<Path> {
        let estimate = &self.measurement(of).path;
        estimate.path().filter(|_| estimate.is_fresh(now))
    }

    /// Loss ratio of random losses on the path that `of` measures: at most the smaller one of both protocols, when both
    /// were measured last, and what has come since then. A path that is not used any more may have become worse too.
    fn random_loss(&self, of: Protocol, path: &Path) -> f64 {
        let (Some(other), Some(beside)) = (self.path(of.other()), self.measurement(of).loss_beside) else {
            return path.loss;
        };
        let since = (path.loss - beside).max(0.0);
        (path.loss - since).min(other.loss) + since
    }

    /// Costs of both protocols; `None` while nothing is measured.
    ///
    /// A protocol that is measured now has the cost of its own path. If only one of them is, the cost of the other one
    /// is predicted from that path, times its correction.
    pub(crate) fn compare(&self, now: Duration, model: &Model) -> Option<Comparison> {
        let paths = [Protocol::Tcp, Protocol::Quic].map(|of| (of, self.path(of)));
        // The latest one, fresh or not, is the best that is known.
        let (measured_by, path) = paths
            .into_iter()
            .filter_map(|(of, path)| Some((of, path?)))
            .max_by_key(|(of, _)| self.measurement(*of).path.at)?;
        let cost = |of: Protocol| match self.fresh_path(now, of) {
            _ if of == measured_by => model.own_cost(of, &path, self.random_loss(of, &path)),
            Some(own) => model.own_cost(of, &own, self.random_loss(of, &own)),
            None => {
                let mut cost = model.translated_cost(of, &path);
                let measurement = self.measurement(of);
                cost.urgent *= measurement.urgent_correction.map_or(1.0, |of| of.ratio());
                cost.completion *= measurement.completion_correction.map_or(1.0, |of| of.ratio());
                cost
            }
        };
        let (mut tcp, mut quic) = (cost(Protocol::Tcp), cost(Protocol::Quic));
        // The chosen protocol is worse only beyond the error of its measurement.
        let ratio = |of: Protocol| {
            let is_chosen = of == self.switch.chosen();
            self.measurement(of).completion.map(|of| if is_chosen { of.low() } else { of.ratio() })
        };
        let (tcp_ratio, quic_ratio) = (ratio(Protocol::Tcp), ratio(Protocol::Quic));
        let (tcp_predicted, quic_predicted) = (tcp.completion, quic.completion);
        let lossless = |of: Protocol| self.path(of).map_or(1.0, |path| model.lossless_share(of, &path));
        tcp.completion =
            correct(tcp_predicted, tcp_ratio, quic_predicted, quic_ratio, lossless(Protocol::Quic));
        quic.completion =
            correct(quic_predicted, quic_ratio, tcp_predicted, tcp_ratio, lossless(Protocol::Tcp));
        Some(Comparison { tcp, quic, path, measured_by, lasted: Duration::ZERO })
    }
}

/// Completion time by what was measured: the protocol's own ratio, or the error of the other protocol's prediction.
///
/// A time above the prediction of the other protocol has two parts. `lossless` of it is taken for a delay that both
/// have (the server, a bottleneck), and added. The rest is taken for losses, and scales with the prediction.
fn correct(predicted: f64, ratio: Option<f64>, other: f64, other_ratio: Option<f64>, lossless: f64) -> f64 {
    match (ratio, other_ratio) {
        (Some(ratio), _) => predicted * ratio,
        (None, Some(ratio)) if ratio >= 1.0 => {
            predicted + (ratio - 1.0) * (lossless * other + (1.0 - lossless) * predicted)
        }
        (None, Some(ratio)) => predicted * ratio,
        (None, None) => predicted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MODEL: Model =
        Model { tcp: Stack::TCP, quic: Stack::QUIC, workload: Workload { streams: 8, large_bytes: 65_536 } };

    fn interval(loss: f64, srtt: f64) -> Interval {
        Interval {
            srtt,
            rttvar: 0.0,
            min_rtt: srtt,
            sent: 1000,
            lost: loss * 1000.0,
            progress: true,
            rate: None,
        }
    }

    #[test]
    fn an_unmeasured_protocol_is_predicted_from_the_path_of_the_other() {
        let mut entry = Entry::new(SECOND, Protocol::Tcp);
        assert!(entry.compare(SECOND, &MODEL).is_none());
        entry.observe(SECOND, &MODEL, Protocol::Tcp, &interval(0.1, 0.05));
        let costs = entry.compare(SECOND, &MODEL).unwrap();
        assert_eq!((costs.measured_by, costs.path.srtt), (Protocol::Tcp, 0.05));
        assert_eq!(costs.quic, Stack::QUIC.cost(&costs.path, costs.path.loss, &MODEL.workload));
        assert!(costs.quic.total() < 0.5 * costs.tcp.total(), "{costs}");
    }

    #[test]
    fn a_response_of_many_megabytes_counts_by_its_mean_rate() {
        // A clean path of 0.1 ms whose rate nothing has limited: 300 MB take 0.5 s over TCP, and 1.4 s over QUIC.
        let mut entry = Entry::new(SECOND, Protocol::Tcp);
        for (of, elapsed) in [(Protocol::Tcp, 0.5), (Protocol::Quic, 1.4)] {
            entry.observe(SECOND, &MODEL, of, &interval(0.0, 1e-4));
            (0..12).for_each(|_| entry.complete(SECOND, &MODEL, of, 3e8, elapsed));
        }
        let costs = entry.compare(SECOND, &MODEL).unwrap();
        assert!(costs.tcp.completion < costs.quic.completion, "{costs}");
        assert!(costs.quic.completion < 1e-3, "of 64 KiB: {costs}");
        // Where the way is long, the mean of many bytes shows no time below it.
        let mut entry = Entry::new(SECOND, Protocol::Quic);
        entry.observe(SECOND, &MODEL, Protocol::Tcp, &interval(0.0, 0.1));
        (0..12).for_each(|_| entry.complete(SECOND, &MODEL, Protocol::Tcp, 3e8, 24.0));
        let costs = entry.compare(SECOND, &MODEL).unwrap();
        assert!((0.05..0.06).contains(&costs.tcp.completion), "{costs}");
    }

    #[test]
    fn a_measured_difference_of_the_paths_is_kept() {
        // QUIC loses half of its packets to a policer, TCP none. Afterwards only one of them is measured.
        for (kept, loss) in [(Protocol::Tcp, 0.0), (Protocol::Quic, 0.5)] {
            let mut entry = Entry::new(SECOND, Protocol::Tcp);
            for second in 1..40 {
                entry.observe(SECOND * second, &MODEL, Protocol::Tcp, &interval(0.0, 0.05));
                entry.observe(SECOND * second, &MODEL, Protocol::Quic, &interval(0.5, 0.05));
            }
            let both = entry.compare(40 * SECOND, &MODEL).unwrap();
            for second in 100..300 {
                entry.observe(SECOND * second, &MODEL, kept, &interval(loss, 0.05));
            }
            let one = entry.compare(300 * SECOND, &MODEL).unwrap();
            for (before, after) in [(both.tcp, one.tcp), (both.quic, one.quic)] {
                assert!((after.total() / before.total() - 1.0).abs() < 0.1, "{kept}: {both} then {one}");
            }
        }
    }

    #[test]
    fn losses_that_began_when_only_one_protocol_was_measured_are_random() {
        // QUIC loses a tenth to a policer, TCP nothing. TCP is not used any more when QUIC begins to lose more.
        let mut entry = Entry::new(SECOND, Protocol::Quic);
        for second in 1..40 {
            entry.observe(SECOND * second, &MODEL, Protocol::Tcp, &interval(0.0, 0.05));
            entry.observe(SECOND * second, &MODEL, Protocol::Quic, &interval(0.1, 0.05));
        }
        for (from, loss, random_loss) in [(100, 0.1, 0.0), (300, 0.4, 0.3), (500, 0.05, 0.0)] {
            for second in from..from + 200 {
                entry.observe(SECOND * second, &MODEL, Protocol::Quic, &interval(loss, 0.05));
            }
            let path = entry.path(Protocol::Quic).unwrap();
            assert!((path.loss - loss).abs() < 0.01, "{path:?}");
            let costs = entry.compare((from + 199) * SECOND, &MODEL).unwrap();
            let expected = Stack::QUIC.cost(&path, random_loss, &MODEL.workload);
            assert!((costs.quic.total() / expected.total() - 1.0).abs() < 0.05, "{loss}: {costs}");
        }
    }

    #[test]
    fn a_path_that_was_not_measured_beside_the_other_hides_no_losses() {
        let mut entry = Entry::new(SECOND, Protocol::Quic);
        entry.observe(SECOND, &MODEL, Protocol::Tcp, &interval(0.0, 0.05));
        entry.observe(100 * SECOND, &MODEL, Protocol::Quic, &interval(0.1, 0.05));
        let costs = entry.compare(100 * SECOND, &MODEL).unwrap();
        let path = entry.path(Protocol::Quic).unwrap();
        assert_eq!(costs.quic, Stack::QUIC.cost(&path, path.loss, &MODEL.workload));
    }

    #[test]
    fn a_limit_of_losses_hides_the_capacity() {
        let path = Path { srtt: 0.1, rttvar: 0.0, min_rtt: 0.1, loss: 0.01, rate: None };
        let limit = Stack::TCP.loss_limited_rate(&path);
        for (of, share, factor) in
            [(Protocol::Quic, 0.6, 4.0), (Protocol::Quic, 0.4, 1.0), (Protocol::Tcp, 0.6, 1.0)]
        {
            let path = Path { rate: Some(share * limit), ..path };
            assert_eq!(MODEL.translate(of, &path).rate, Some(factor * share * limit));
        }
    }

    #[test]
    fn measured_completion_replaces_the_prediction() {
        for (ratio, other_ratio, lossless, corrected) in [
            (None, None, 1.0, 2.0),
            (Some(1.5), Some(9.0), 1.0, 3.0),
            (None, Some(2.0), 1.0, 5.0),
            (None, Some(2.0), 0.0, 4.0),
            (None, Some(2.0), 0.5, 4.5),
            (None, Some(0.5), 1.0, 1.0),
        ] {
            assert_eq!(correct(2.0, ratio, 3.0, other_ratio, lossless), corrected);
        }
        let mut entry = Entry::new(SECOND, Protocol::Tcp);
        // Without a path there is nothing to compare with.
        entry.complete(SECOND, &MODEL, Protocol::Tcp, 1e3, 1.0);
        assert!(entry.tcp.completion.is_none());
        entry.observe(SECOND, &MODEL, Protocol::Tcp, &interval(0.0, 0.05));
        entry.complete(SECOND, &MODEL, Protocol::Tcp, 65_536.0, 2.0);
        // After one sample the chosen protocol has the benefit of the doubt: half of it.
        let costs = entry.compare(SECOND, &MODEL).unwrap();
        assert!((costs.tcp.completion - 1.0).abs() < 1e-6 && (costs.quic.completion - 1.0).abs() < 1e-6);
        for second in 2..200 {
            entry.complete(SECOND * second, &MODEL, Protocol::Tcp, 65_536.0, 2.0);
        }
        let costs = entry.compare(SECOND, &MODEL).unwrap();
        assert!((costs.tcp.completion - 2.0).abs() < 0.1, "{costs}");
    }
}
