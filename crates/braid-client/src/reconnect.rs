//! Reconnection with exponential backoff.

use std::time::Duration;

/// Reaction of the client to a lost or failed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnect {
    /// The first failure ends the client.
    Never,
    /// Connects again after a pause that doubles with each consecutive failure, from `initial` to `maximum`.
    ///
    /// Each pause is drawn at random from its upper half, so that the clients of a restarted server do not all connect
    /// at once.
    Backoff {
        /// The first pause.
        initial: Duration,
        /// The longest pause.
        maximum: Duration,
    },
}

impl Default for Reconnect {
    fn default() -> Self {
        Self::Backoff { initial: Duration::from_secs(1), maximum: Duration::from_secs(60) }
    }
}

/// Exponential backoff over consecutive failures.
#[derive(Debug)]
pub(crate) struct Backoff {
    reconnect: Reconnect,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(reconnect: Reconnect) -> Self {
        Self { reconnect, failures: 0 }
    }

    /// Starts over after a successful connection.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after one more failure; `random` is from 0.0 to 1.0. `None`: no further attempt.
    pub(crate) fn pause(&mut self, random: f64) -> Option<Duration> {
        let Reconnect::Backoff { initial, maximum } = self.reconnect else { return None };
        let doubled = initial.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        Some(doubled.min(maximum).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_the_maximum_and_start_over_after_success() {
        let mut backoff = Backoff::new(Reconnect::Backoff { initial: SECOND, maximum: SECOND * 5 });
        let mut pauses = || (0..5).map(|_| backoff.pause(1.0).unwrap().as_secs()).collect::<Vec<_>>();
        assert_eq!(pauses(), [1, 2, 4, 5, 5]);
        backoff.reset();
        assert_eq!(backoff.pause(1.0), Some(SECOND));
    }

    #[test]
    fn jitter_takes_half_of_the_pause_at_most() {
        let mut backoff = Backoff::new(Reconnect::Backoff { initial: SECOND, maximum: SECOND });
        assert_eq!(backoff.pause(0.0), Some(SECOND / 2));
    }

    #[test]
    fn a_million_failures_do_not_overflow() {
        let mut backoff = Backoff::new(Reconnect::default());
        backoff.failures = u32::MAX;
        assert_eq!(backoff.pause(1.0), Some(SECOND * 60));
    }

    #[test]
    fn never_reconnects() {
        assert_eq!(Backoff::new(Reconnect::Never).pause(0.5), None);
    }
}
