//! Model of a bottleneck with a queue: when it will be free, and its service time per packet.
//!
//! Each packet is kept with its predicted wait. Its RTT sample tells the wait that it had; the difference corrects the
//! model. The service time is the time between two departures of packets of which the second had to wait for the first.

use std::collections::VecDeque;

use super::arrival_period::Expected;
use super::rtt_samples::{Departure, RttSample, median, push_bounded};
use super::sent_packets::Fate;
use super::service_schedule::ServiceSchedule;

/// Measurements of the service time of which the median counts.
const SAMPLES: usize = 7;

/// Share of the difference between prediction and measurement that corrects the model.
const GAIN: f64 = 0.6;

/// Losses among the last 64 packets above which there is a policer in place of the queue: nothing waits there, so the
/// model speeds up and loses more. Random losses of 10 % come to it once in a hundred thousand packets.
const MOST_LOST: u32 = 20;

/// Packets whose waits are compared, and by how much (s) growing waits differ.
const LAG: usize = 8;
const GROWN: f64 = 0.001;

/// Wait (s) that cannot be told from noise.
const NOISE: f64 = 0.000_5;

/// Time (s) and number of samples for which waits may be noisy: a busy processor makes them so, but not for as long.
const NOISY: f64 = 0.5;
const NOISY_WAITS: u32 = 32;

/// Error (s) of timers.
const TIMER_ERROR: f64 = 0.002;

/// Share of a service time that bulk aims to wait, so that a bottleneck that becomes faster is noticed, and its bounds
/// (s).
const AIM: f64 = 0.1;
const LEAST_AIM: f64 = 0.001;
const MOST_AIM: f64 = 0.004;

/// Service times that urgent packets may wait for each other.
const URGENT: f64 = 2.0;

/// Share of a service time for which an expected urgent packet may find the bottleneck busy.
const SLACK: f64 = 0.38;

/// Lateness (s) after which an urgent packet is no longer expected.
const LATE: f64 = 0.01;

/// Shortest and longest service time (s). Without a bound the time would fall to zero on a path that is faster than its
/// sender for long.
const FASTEST: f64 = 0.000_001;
const SLOWEST: f64 = 1.0;

#[derive(Clone, Debug, Default)]
pub(super) struct QueueModel {
    /// Service time (s).
    service: f64,
    samples: VecDeque<f64>,
    noise: Noise,
    /// A bit for each of the last packets: it is lost.
    lost: u64,
    base_delay: BaseDelay,
    /// Ordinal of the packet of the last sample, and when (s) its service began.
    last: Departure,
    measured: VecDeque<Measured>,
    /// Service time (s) as learnt from growing waits, or less.
    certain: f64,
    schedule: ServiceSchedule,
}

/// Packet with a known wait.
#[derive(Clone, Copy, Debug)]
struct Measured {
    ordinal: u64,
    /// Begin (s) of its service.
    start: f64,
    /// s
    wait: f64,
}

/// Difference between predicted and measured waits.
#[derive(Clone, Copy, Debug, Default)]
struct Noise {
    /// Average (s).
    error: f64,
    /// Bound (s): two service times at first sight, since errors make them longer.
    most: f64,
    /// Time (s) since which the average is above the bound, and samples since.
    since: Option<(f64, u32)>,
}

impl QueueModel {
    /// `rate`: datagrams per second. `last`: departure of the last packet with a known wait. `since`: ordinals and
    /// times of the packets sent after it.
    pub(super) fn new(rate: f64, last: Departure, since: impl Iterator<Item = (u64, f64)>) -> Self {
        let service = (1.0 / rate).clamp(FASTEST, SLOWEST);
        let mut schedule = ServiceSchedule::default();
        since.for_each(|(ordinal, at)| schedule.push(ordinal, at, service));
        schedule.correct(last.1 + service, service);
        let noise = Noise { most: (service * 2.0).max(TIMER_ERROR), ..Noise::default() };
        Self { service, noise, last, certain: service, schedule, ..Self::default() }
    }

    pub(super) fn rate(&self) -> f64 {
        1.0 / self.service
    }

    /// True if waits differ by more than what is to be measured: the model would follow noise.
    pub(super) fn is_too_noisy(&self, now: f64) -> bool {
        self.noise.since.is_some_and(|(since, count)| now - since > NOISY && count > NOISY_WAITS)
    }

    /// Counts a fate. True: more is lost than by a queue that is kept short.
    pub(super) fn is_lossy(&mut self, fate: Fate) -> bool {
        self.lost = self.lost << 1 | u64::from(fate == Fate::Lost);
        self.lost.count_ones() > MOST_LOST
    }

    /// Wait (s) of a packet that is sent now.
    pub(super) fn wait(&self, now: f64) -> f64 {
        (self.schedule.free_at() - now).max(0.0)
    }

    /// Adds a datagram that leaves.
    pub(super) fn charge(&mut self, ordinal: u64, now: f64) {
        self.schedule.push(ordinal, now, self.service);
    }

    /// Corrects the model by a sample.
    pub(super) fn handle_sample(&mut self, sample: &RttSample, now: f64) {
        let sent = &sample.sent;
        let (mut is_queued, mut found) = (true, None);
        while let Some(service) = self.schedule.pop(sent.ordinal, self.service) {
            is_queued &= service.is_queued;
            found = Some(service).filter(|service| service.ordinal == sent.ordinal);
        }
        // Otherwise its wait, or that of a later packet, was known before.
        let Some(predicted) = found else { return };
        let wait = sample.wait - self.base_delay.value;
        let start = sent.at + wait;
        let residual = start - predicted.start;
        self.noise.error += (residual.abs() - self.noise.error) / 16.0;
        let (since, count) = self.noise.since.unwrap_or((now, 0));
        self.noise.since = (self.noise.error > self.noise.most).then_some((since, count + 1));
        self.look_for_growth(Measured { ordinal: sent.ordinal, start, wait });
        if self.base_delay.handle(sent.ordinal, sent.at, residual, self.certain, now) {
            self.service = self.certain;
            self.samples.clear();
        }
        let (ordinal, before) = self.last;
        let service = (start - before) / (sent.ordinal - ordinal) as f64;
        let expected_wait = predicted.start - sent.at;
        if wait > NOISE && service > 0.0 && (is_queued || sent.ordinal == ordinal + 1) {
            self.learn(service);
        } else if wait <= NOISE && expected_wait > NOISE {
            self.speed_up(expected_wait);
        }
        self.last = (sent.ordinal, predicted.start + residual * GAIN);
        self.schedule.correct(self.last.1 + self.service, self.service);
    }

    /// Learns from waits that grow: they are those of a queue, and then the time between departures is service time.
    fn look_for_growth(&mut self, new: Measured) {
        let old = self.measured.front().copied();
        push_bounded(&mut self.measured, LAG, new);
        let Some(old) = old else { return };
        let service = (new.start - old.start) / (new.ordinal - old.ordinal) as f64;
        if service > self.certain && new.wait > old.wait + GROWN.max(self.certain * 0.5) {
            self.certain = service;
            self.measured.clear();
        } else if service > 0.0 {
            self.certain = self.certain.min(self.service);
        }
    }

    /// Shortens the service time after a packet did not wait. `expected_wait`: its prediction (s).
    fn speed_up(&mut self, expected_wait: f64) {
        let factor = if expected_wait > self.service * 0.3 { 0.7 } else { 0.9 };
        self.service = (self.service * factor).max(FASTEST);
        for sample in &mut self.samples {
            *sample = sample.min(self.service);
        }
    }

    fn learn(&mut self, service: f64) {
        push_bounded(&mut self.samples, SAMPLES, service.min(self.service * 4.0));
        if self.samples.len() >= 3 {
            self.service = median(self.samples.make_contiguous()).clamp(FASTEST, SLOWEST);
        }
    }

    /// Longest wait (s) of bulk.
    pub(super) fn aim(&self) -> f64 {
        (self.service * AIM).clamp(LEAST_AIM, MOST_AIM)
    }

    /// Tests whether a packet of bulk may leave. `expected`: the next urgent arrival.
    pub(super) fn permits_bulk(&self, expected: Option<Expected>, now: f64) -> bool {
        self.wait(now) <= self.aim() + 1e-9 && self.reserved_until(expected, now).is_none()
    }

    /// Time (s) until which an urgent packet is expected, if a packet sent now would still be in service then.
    fn reserved_until(&self, expected: Option<Expected>, now: f64) -> Option<f64> {
        let Expected { at, .. } = expected.filter(|next| self.service * 2.5 < next.interval)?;
        let end = self.schedule.free_at().max(now) + self.service;
        let is_reserved = now < at + LATE && end > at + self.service * SLACK && at - now < self.service;
        is_reserved.then_some(at + LATE)
    }

    pub(super) fn permits_urgent(&self, now: f64) -> bool {
        self.wait(now) <= self.service * URGENT + LEAST_AIM
    }

    /// Time (s) at which an urgent packet may leave.
    pub(super) fn permits_urgent_at(&self, now: f64) -> f64 {
        now + (self.wait(now) - self.service * URGENT - LEAST_AIM).max(0.0)
    }

    /// Time (s) at which more is permitted than now.
    pub(super) fn next(&self, expected: Option<Expected>, now: f64) -> f64 {
        let free = (self.schedule.free_at() - self.aim()).max(now);
        self.reserved_until(expected, free).map_or(free, |until| free.max(until))
    }
}

/// Packets of a sample: each sample is evaluated at once.
const SAMPLE: usize = 16;

/// Share of time for which the bottleneck has to be busy to hold a queue of ours.
const BUSY: f64 = 0.8;

/// Least correction (s).
const LEAST_CORRECTION: f64 = 0.000_1;

/// Delay beyond the minimum RTT that is no queue of ours: another route, other senders' queue, jitter.
///
/// A sender that takes it for its own queue sends less, and since the delay stays, less and less. Then the bottleneck
/// would be idle most of the time, and that tells them apart.
#[derive(Clone, Debug, Default)]
struct BaseDelay {
    /// s
    value: f64,
    /// Time (s) of the last correction: packets sent before show nothing about it.
    since: f64,
    /// Ordinal and time of sending (s) of the first packet of the sample.
    first: Option<Departure>,
    /// Excess (s) of waits over their predictions.
    residuals: Vec<f64>,
}

impl BaseDelay {
    /// Adds a packet to the sample: it waited `residual` s longer than predicted behind packets of `service` s each.
    /// True: the delay has grown.
    fn handle(&mut self, ordinal: u64, at: f64, residual: f64, service: f64, now: f64) -> bool {
        if at < self.since {
            return false;
        }
        let (first, begun) = *self.first.get_or_insert((ordinal, at));
        self.residuals.push(residual);
        if self.residuals.len() < SAMPLE {
            return false;
        }
        let busy = ordinal.saturating_sub(first) as f64 * service;
        let residual = median(&self.residuals);
        let has_grown = busy < (at - begun) * BUSY && residual > LEAST_CORRECTION;
        if has_grown || (residual < -LEAST_CORRECTION && self.value > 0.0) {
            self.value = (self.value + residual).max(0.0);
            self.since = now;
        }
        self.first = None;
        self.residuals.clear();
        has_grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_waits_has_a_rate_that_is_finite_and_falls_again() {
        let mut queue = QueueModel::new(1000.0, (0, 0.0), std::iter::empty());
        (0..10_000).for_each(|_| queue.speed_up(0.0));
        assert!(queue.rate() <= 1.0 / FASTEST, "{}", queue.rate());
        (0..60).for_each(|_| queue.learn(0.01));
        assert!((queue.rate() - 100.0).abs() < 1.0, "{}", queue.rate());
    }
}
