//! Detector of a path that has become longer than the controller believes.
//!
//! BBR has no more in flight than what its path carries in two of the shortest round trips of the last ten
//! seconds. When a path becomes more than twice as long (another cell, another route behind the same address), that
//! is less than it could be, so each rate that BBR measures is lower than the last, down to four packets a round
//! trip. From outside it shows: round trips are long, the window is full, nothing is lost, and the rate has come
//! down. So may it with a queue that others fill; but then twice as much on its way brings no more through. That is
//! what a [`RttStep`] tries.

use std::time::{Duration, Instant};

use super::Floor;
use crate::quic::rate::{bytes_in, rate_of};

/// Least round trips and packets of a measurement.
const ROUND_TRIPS: u32 = 6;
const PACKETS: u32 = 12;

/// Time for which BBR remembers a round trip.
const MEMORY: Duration = Duration::from_secs(10);

/// Time until the next trial after one that failed.
const PAUSE: Duration = Duration::from_secs(60);

/// A trial takes so many times what the measurement before it took, at most: the queue may have become twice as long,
/// and counting starts a round trip late.
const PATIENCE: u32 = 3;

/// A path that is not longer than this is fast with four packets a round trip, and on a local network jitter alone
/// makes one round trip many times another.
const SHORT: Duration = Duration::from_millis(5);

/// Minimum RTT that a controller believes, and the measurement meanwhile.
#[derive(Clone, Debug)]
pub(super) struct RttStep {
    /// Shortest round trip, and when it was.
    believed: Option<(Duration, Instant)>,
    /// Bytes per second, the highest measured since.
    best: u64,
    measured: Measured,
    trial: Option<Trial>,
    /// Earliest time of the next trial.
    until: Instant,
}

/// Fates of the packets that were sent since it began.
#[derive(Clone, Copy, Debug)]
struct Measured {
    begun: Instant,
    shortest: Duration,
    packets: u32,
    bytes: u64,
    /// The window was full at some time.
    is_full: bool,
    is_app_limited: bool,
    is_lossy: bool,
}

/// Measurement before twice as much is sent.
#[derive(Clone, Copy, Debug)]
struct Trial {
    round_trip: Duration,
    rate: u64,
    /// End of the trial, whatever is known: perhaps nothing passes any more.
    until: Instant,
}

impl RttStep {
    pub(super) fn new(now: Instant) -> Self {
        Self { believed: None, best: 0, measured: Measured::begin(now), trial: None, until: now }
    }

    /// Lower bound during a trial: twice the measurement before, since the controller wants ever less meanwhile.
    pub(super) fn floor(&self) -> Option<Floor> {
        self.trial.map(|trial| trial.floor())
    }

    /// Notes a packet that is sent, be it a probe of a probe timeout.
    pub(super) fn handle_sent(&mut self, now: Instant) {
        if self.trial.is_some_and(|trial| now > trial.until) {
            self.give_up(now);
        }
    }

    pub(super) fn handle_full(&mut self) {
        self.measured.is_full = true;
    }

    /// Notes a loss or another sign of congestion: twice as much is too much.
    pub(super) fn handle_lost(&mut self, now: Instant) {
        self.measured.is_lossy = true;
        if self.trial.is_some() {
            self.give_up(now);
        }
    }

    pub(super) fn handle_acked(&mut self, sent: Instant, bytes: u64, now: Instant) {
        let round_trip = now.saturating_duration_since(sent);
        if self.believed.is_none_or(|(believed, _)| round_trip <= believed) {
            self.believed = Some((round_trip, now));
        }
        if sent >= self.measured.begun {
            self.measured.shortest = self.measured.shortest.min(round_trip);
            self.measured.packets += 1;
            self.measured.bytes += bytes;
        }
    }

    /// Ends the packets of one acknowledgement. True: the path is longer, and its controller should begin anew.
    pub(super) fn handle_end_of_acks(&mut self, app_limited: bool, now: Instant) -> bool {
        self.measured.is_app_limited |= app_limited;
        let measured = self.measured;
        let Some(rate) = measured.rate(now) else { return false };
        let taken = now.saturating_duration_since(measured.begun);
        self.measured = Measured::begin(now);
        if let Some(trial) = self.trial {
            let is_longer = rate >= trial.rate / 2 * 3 && measured.shortest <= trial.round_trip / 4 * 5;
            if is_longer {
                *self = Self::new(now);
            } else {
                self.give_up(now);
            }
            return is_longer;
        }
        if self.believed.is_some_and(|(_, at)| now.saturating_duration_since(at) > MEMORY) {
            (self.believed, self.best) = (Some((measured.shortest, now)), 0);
        }
        self.best = self.best.max(rate);
        if now >= self.until && rate < self.best / 2 && self.is_short_of(&measured) {
            let until = now + taken.saturating_mul(PATIENCE);
            self.trial = Some(Trial { round_trip: measured.shortest, rate, until });
        }
        false
    }

    fn give_up(&mut self, now: Instant) {
        self.trial = None;
        self.until = now + PAUSE;
    }

    fn is_short_of(&self, measured: &Measured) -> bool {
        measured.shortest > SHORT
            && self.believed.is_some_and(|(believed, _)| measured.shortest > believed * 2)
            && measured.is_full
            && !measured.is_app_limited
            && !measured.is_lossy
    }
}

impl Trial {
    fn floor(&self) -> Floor {
        let rate = self.rate.saturating_mul(2);
        Floor { rate, window: bytes_in(rate, self.round_trip) }
    }
}

impl Measured {
    fn begin(now: Instant) -> Self {
        Self {
            begun: now,
            shortest: Duration::MAX,
            packets: 0,
            bytes: 0,
            is_full: false,
            is_app_limited: false,
            is_lossy: false,
        }
    }

    /// Bytes per second, once there are enough packets. The first was not acknowledged before a round trip.
    fn rate(&self, now: Instant) -> Option<u64> {
        let elapsed = now.saturating_duration_since(self.begun);
        if self.packets < PACKETS || elapsed < self.shortest.saturating_mul(ROUND_TRIPS) {
            return None;
        }
        Some(rate_of(self.bytes, elapsed - self.shortest))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const BYTES: u64 = 1400;

    /// Sender with as many packets in flight as its window and the step permit.
    struct Sender {
        step: RttStep,
        now: Instant,
        /// Times of sending and of the acknowledgement.
        in_flight: VecDeque<(Instant, Instant)>,
        /// Time of the last acknowledgement that is due.
        last: Instant,
        /// Acknowledgements that brought a trial.
        tried: u32,
    }

    impl Sender {
        fn new() -> Self {
            let now = Instant::now();
            Self { step: RttStep::new(now), now, in_flight: VecDeque::new(), last: now, tried: 0 }
        }

        /// Runs over a path of `round_trip` ms that passes a packet each `spacing` us, and counts how often it was
        /// found longer.
        fn run(&mut self, seconds: u64, window: usize, round_trip: u64, spacing: u64) -> u32 {
            self.run_micros(seconds, window, round_trip * 1000, spacing)
        }

        fn run_micros(&mut self, seconds: u64, window: usize, round_trip: u64, spacing: u64) -> u32 {
            let (round_trip, spacing) = (Duration::from_micros(round_trip), Duration::from_micros(spacing));
            let end = self.now + Duration::from_secs(seconds);
            let mut found = 0;
            while self.now < end {
                found += u32::from(self.step(window, round_trip, spacing));
            }
            found
        }

        /// Fills the window, and takes one acknowledgement.
        fn step(&mut self, window: usize, round_trip: Duration, spacing: Duration) -> bool {
            let floor = self.step.floor().map_or(0, |floor| floor.window / BYTES);
            let window = window.max(usize::try_from(floor).expect("small"));
            while self.in_flight.len() < window {
                self.last = (self.last + spacing).max(self.now + round_trip);
                self.step.handle_sent(self.now);
                self.in_flight.push_back((self.now, self.last));
            }
            self.step.handle_full();
            let (sent, due) = self.in_flight.pop_front().expect("a window of one at least");
            self.now = self.now.max(due);
            self.step.handle_acked(sent, BYTES, self.now);
            let found = self.step.handle_end_of_acks(false, self.now);
            self.tried += u32::from(self.step.floor().is_some());
            found
        }
    }

    #[test]
    fn a_path_that_becomes_longer_is_found_so_once() {
        for (before, after) in [(2, 50), (20, 50), (40, 600)] {
            let mut sender = Sender::new();
            assert_eq!(sender.run(5, 40, before, 100), 0);
            assert_eq!(sender.tried, 0);
            assert_eq!(sender.run(9, 20, after, 100), 1, "{before} ms, then {after} ms");
        }
    }

    #[test]
    fn a_queue_behind_a_slow_bottleneck_is_not_a_longer_path() {
        let mut sender = Sender::new();
        // The first shows the round trip, those behind it wait for each other.
        assert_eq!(sender.run(300, 8, 2, 34_000), 0);
        assert_eq!(sender.tried, 0, "the rate is as high as it ever was");
    }

    #[test]
    fn a_bottleneck_that_others_share_is_tried_once_a_minute_at_most() {
        let mut sender = Sender::new();
        sender.run(5, 40, 10, 100);
        // The rate comes down and the round trips become long, because of the queue.
        assert_eq!(sender.run(9, 40, 10, 10_000), 0);
        let tried = sender.tried;
        assert!(tried > 0);
        assert_eq!(sender.run(40, 40, 10, 20_000), 0);
        assert_eq!(sender.tried, tried);
    }

    #[test]
    fn losses_and_a_lack_of_data_are_no_reason_to_try() {
        for is_lossy in [true, false] {
            let mut sender = Sender::new();
            sender.run(5, 40, 2, 100);
            for _ in 0..90 {
                if is_lossy {
                    sender.step.handle_lost(sender.now);
                } else {
                    sender.step.handle_end_of_acks(true, sender.now);
                }
                for _ in 0..4 {
                    let (sent, now) = (sender.now, sender.now + Duration::from_millis(25));
                    sender.now = now;
                    sender.step.handle_full();
                    sender.step.handle_acked(sent, BYTES, now);
                    assert!(!sender.step.handle_end_of_acks(!is_lossy, now));
                    assert!(sender.step.floor().is_none());
                }
            }
        }
    }

    /// Sender in the middle of a trial.
    fn on_trial() -> Sender {
        let mut sender = Sender::new();
        sender.run(5, 40, 20, 100);
        while sender.tried == 0 {
            assert!(!sender.step(20, Duration::from_millis(50), Duration::from_micros(100)));
        }
        sender
    }

    #[test]
    fn a_loss_ends_a_trial_and_nothing_begins_anew_after_it() {
        let mut sender = on_trial();
        sender.step.handle_lost(sender.now);
        assert!(sender.step.floor().is_none());
        assert_eq!(sender.run(9, 20, 50, 100), 0);
        assert!(sender.step.floor().is_none(), "not before a minute is over");
    }

    #[test]
    fn a_trial_that_nothing_answers_comes_to_an_end() {
        let mut sender = on_trial();
        // Some six round trips of 50 ms went before.
        sender.step.handle_sent(sender.now + Duration::from_millis(300));
        assert!(sender.step.floor().is_some(), "it takes as long as the measurement before, at least");
        sender.step.handle_sent(sender.now + Duration::from_millis(1500));
        assert!(sender.step.floor().is_none());
    }

    #[test]
    fn jitter_of_a_local_network_is_not_a_longer_path() {
        for (before, after) in [(100, 700), (200, 3000)] {
            let mut sender = Sender::new();
            sender.run_micros(2, 40, before, 2);
            assert_eq!(sender.run_micros(9, 20, after, 2), 0, "{before} us, then {after} us");
            assert_eq!(sender.tried, 0);
        }
    }

    #[test]
    fn less_than_a_millisecond_is_measured_as_well() {
        let begun = Instant::now();
        let (shortest, bytes) = (Duration::from_micros(100), 12 * BYTES);
        let measured = Measured { shortest, packets: 12, bytes, ..Measured::begin(begun) };
        // 500 us without the first round trip.
        assert_eq!(measured.rate(begun + Duration::from_micros(600)), Some(bytes * 2000));
        let trial = Trial { round_trip: Duration::from_micros(500), rate: 10_000_000, until: begun };
        assert_eq!(trial.floor().window, 10_000);
    }
}
