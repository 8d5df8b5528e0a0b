//! Hysteresis and dwell time of changes between the protocols.

use std::time::Duration;

use crate::estimate::FRESH;
use crate::protocol::Protocol;

/// Relative gain of QUIC that is worth a change.
const MIN_GAIN: f64 = 0.15;
/// Absolute gain of QUIC, in seconds, that is worth a change.
const MIN_GAIN_SECONDS: f64 = 0.01;
/// Time for which the gain must last.
const GAIN_LASTS: Duration = Duration::from_secs(5);
/// Relative gain of QUIC that needs to last shorter: every request that begins meanwhile meets the losses of TCP.
const LARGE_GAIN: f64 = 0.5;
/// Time for which a gain must last that is large by now.
const LARGE_GAIN_LASTS: Duration = Duration::from_secs(1);
/// Relative loss by QUIC that is worth a change back.
const MAX_LOSS: f64 = 0.25;
/// Time for which the loss must last.
const LOSS_LASTS: Duration = Duration::from_secs(30);
/// Shortest time between two changes.
const DWELL: Duration = Duration::from_secs(60);
/// Relative loss by QUIC after which a trial of it ends sooner.
const LARGE_LOSS: f64 = 1.0;
/// Time for which a loss must last that is large by now, and the shortest trial.
const LARGE_LOSS_LASTS: Duration = Duration::from_secs(5);
const SHORT_DWELL: Duration = Duration::from_secs(10);
/// Shortest time between a change to TCP and the next one to QUIC: with it, no input flaps twice in ten minutes.
const RETURN_DWELL: Duration = Duration::from_secs(600);
/// Longest time between a change to TCP and the next one to QUIC.
const MAX_DWELL: Duration = Duration::from_secs(4 * 3600);
/// Time without a flap after which one less is counted.
const FLAP_DECAY: Duration = Duration::from_secs(3600);
/// Most flaps that are counted.
const MAX_FLAPS: u32 = 8;

/// Chosen protocol, and since when it may change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    chosen: Protocol,
    /// Time of the last change.
    changed: Option<Duration>,
    /// Changes to TCP, decayed.
    flaps: u32,
    /// Time of the last change of `flaps`.
    counted: Duration,
    /// Start and latest confirmation of the wish to change.
    wish: Option<(Duration, Duration)>,
}

impl Switch {
    pub(crate) const fn new(chosen: Protocol) -> Self {
        Self { chosen, changed: None, flaps: 0, counted: Duration::ZERO, wish: None }
    }

    pub(crate) const fn chosen(&self) -> Protocol {
        self.chosen
    }

    pub(crate) const fn changed(&self) -> Option<Duration> {
        self.changed
    }

    /// Changes to TCP that are not forgotten yet: one less for each hour without one.
    pub(crate) fn flaps(&self, now: Duration) -> u32 {
        let hours = now.saturating_sub(self.counted).as_secs() / FLAP_DECAY.as_secs();
        self.flaps.saturating_sub(u32::try_from(hours).unwrap_or(u32::MAX))
    }

    /// Time until a change may follow from predictions; `None` if that is now.
    pub(crate) fn dwell(&self, now: Duration) -> Option<Duration> {
        self.dwell_of(now, DWELL)
    }

    /// `of_quic`: the shortest time on QUIC.
    fn dwell_of(&self, now: Duration, of_quic: Duration) -> Option<Duration> {
        let dwell = match self.chosen {
            Protocol::Quic => of_quic,
            Protocol::Tcp => (DWELL * (1 << self.flaps(now).min(MAX_FLAPS))).clamp(RETURN_DWELL, MAX_DWELL),
        };
        self.changed?.saturating_add(dwell).checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Takes the total costs of both in seconds. Returns for how long the other protocol has been better, when that is
    /// long enough and the dwell time is over.
    pub(crate) fn compare(&mut self, now: Duration, tcp: f64, quic: f64) -> Option<Duration> {
        let (wanted, lasts, dwell) = match self.chosen {
            Protocol::Tcp => {
                let is_large = tcp - quic >= LARGE_GAIN * tcp;
                let lasts = if is_large { LARGE_GAIN_LASTS } else { GAIN_LASTS };
                (tcp - quic >= MIN_GAIN_SECONDS.max(MIN_GAIN * tcp), lasts, DWELL)
            }
            Protocol::Quic => {
                let is_large = quic >= tcp * (1.0 + LARGE_LOSS);
                let (lasts, dwell) =
                    if is_large { (LARGE_LOSS_LASTS, SHORT_DWELL) } else { (LOSS_LASTS, DWELL) };
                (quic >= tcp * (1.0 + MAX_LOSS), lasts, dwell)
            }
        };
        // Nothing is known of a long gap between two readings.
        let started =
            self.wish.filter(|(_, at)| now.saturating_sub(*at) <= FRESH).map_or(now, |(start, _)| start);
        self.wish = wanted.then_some((started, now));
        let lasted = now.saturating_sub(started);
        (wanted && lasted >= lasts && self.dwell_of(now, dwell).is_none()).then_some(lasted)
    }

    /// Changes to `to`, whatever the dwell time.
    pub(crate) fn change(&mut self, now: Duration, to: Protocol) {
        if to == Protocol::Tcp {
            self.flaps = (self.flaps(now) + 1).min(MAX_FLAPS);
            self.counted = now;
        }
        (self.chosen, self.changed, self.wish) = (to, Some(now), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Second of the first change if costs stay as they are, within a day.
    fn change_after(switch: &mut Switch, from: u64, tcp: f64, quic: f64) -> Option<u64> {
        (from..from + 86_400).find(|second| switch.compare(at(*second), tcp, quic).is_some())
    }

    #[test]
    fn thresholds_of_gain_and_loss() {
        for (chosen, tcp, quic, after) in [
            (Protocol::Tcp, 0.100, 0.0849, Some(5)),
            (Protocol::Tcp, 0.100, 0.0851, None),
            (Protocol::Tcp, 0.100, 0.0501, Some(5)),
            (Protocol::Tcp, 0.100, 0.0499, Some(1)),
            (Protocol::Tcp, 0.012, 0.0019, Some(1)),
            (Protocol::Tcp, 0.012, 0.0021, None),
            (Protocol::Quic, 0.100, 0.1251, Some(30)),
            (Protocol::Quic, 0.100, 0.1249, None),
            (Protocol::Quic, 0.100, 0.1999, Some(30)),
            (Protocol::Quic, 0.100, 0.2001, Some(5)),
        ] {
            assert_eq!(change_after(&mut Switch::new(chosen), 0, tcp, quic), after, "{tcp} {quic}");
        }
    }

    #[test]
    fn an_interruption_or_a_gap_starts_the_time_again() {
        let mut switch = Switch::new(Protocol::Tcp);
        assert_eq!(switch.compare(at(0), 1.0, 0.6), None);
        assert_eq!(switch.compare(at(4), 1.0, 0.9), None);
        assert_eq!(switch.compare(at(6), 1.0, 0.6), None);
        assert_eq!(switch.compare(at(67), 1.0, 0.6), None);
        assert_eq!(switch.compare(at(72), 1.0, 0.6), Some(at(5)));
    }

    #[test]
    fn the_dwell_time_doubles_with_flaps_and_decays() {
        let mut switch = Switch::new(Protocol::Tcp);
        let mut now = change_after(&mut switch, 0, 1.0, 0.5).unwrap();
        switch.change(at(now), Protocol::Quic);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let down = change_after(&mut switch, now, 0.5, 0.9).unwrap();
            assert_eq!(down - now, 60);
            switch.change(at(down), Protocol::Tcp);
            now = change_after(&mut switch, down, 1.0, 0.5).unwrap();
            waits.push(now - down);
            switch.change(at(now), Protocol::Quic);
        }
        // Flaps 1 to 4 wait for 10 minutes, the fifth for 32; from there an hour takes one flap away again.
        assert_eq!(waits, [600, 600, 600, 960, 1920, 3600, 3600, 3600, 3600]);
        assert_eq!(switch.flaps(at(now + 100 * 3600)), 0);
    }

    #[test]
    fn a_trial_that_costs_twice_as_much_ends_after_ten_seconds() {
        let mut switch = Switch::new(Protocol::Tcp);
        switch.change(at(100), Protocol::Quic);
        assert_eq!(change_after(&mut switch, 100, 0.5, 1.0), Some(110));
        switch.change(at(110), Protocol::Tcp);
        assert_eq!(change_after(&mut switch, 110, 1.0, 0.1), Some(710), "no sooner than after any other");
    }

    #[test]
    fn a_hard_change_does_not_wait() {
        let mut switch = Switch::new(Protocol::Quic);
        switch.change(at(1), Protocol::Tcp);
        assert_eq!((switch.chosen(), switch.dwell(at(2))), (Protocol::Tcp, Some(at(599))));
    }
}
