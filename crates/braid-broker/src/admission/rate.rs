//! Rate limit of connections, of a listener or of an address.

use std::time::Instant;

use crate::token_bucket::TokenBucket;

/// Token buckets for connections. As many connections as are accepted are refused with a CONNACK, which costs a
/// handshake each. Any more are refused without one.
#[derive(Debug)]
pub(crate) struct ConnectionRate {
    accepted: TokenBucket,
    answered: TokenBucket,
}

/// Decision about one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateDecision {
    Accept,
    /// Refuse with a CONNACK.
    Answer,
    /// Refuse without a handshake.
    Refuse,
}

impl ConnectionRate {
    /// `None` for a rate of 0, which stands for no limit.
    pub(crate) fn new(per_second: u64, now: Instant) -> Option<Self> {
        let bucket = || TokenBucket::new(per_second, now);
        bucket().zip(bucket()).map(|(accepted, answered)| Self { accepted, answered })
    }

    pub(crate) fn admit(&mut self, now: Instant) -> RateDecision {
        if self.accepted.try_take(1, now) {
            RateDecision::Accept
        } else if self.answered.try_take(1, now) {
            RateDecision::Answer
        } else {
            RateDecision::Refuse
        }
    }

    /// Takes a connection that is refused with a CONNACK for another reason. False if it is to be refused without one.
    pub(crate) fn answer(&mut self, now: Instant) -> bool {
        self.answered.try_take(1, now)
    }

    /// Tests whether the next connection would be refused without a handshake.
    pub(crate) fn is_exhausted(&self, now: Instant) -> bool {
        !self.accepted.has(1, now) && !self.answered.has(1, now)
    }

    /// Tests whether the state is that of a new limit.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.accepted.is_full(now) && self.answered.is_full(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_second_of_connections_is_accepted_and_as_many_are_answered() {
        let start = Instant::now();
        assert!(ConnectionRate::new(0, start).is_none());
        let mut rate = ConnectionRate::new(3, start).expect("a rate");
        for now in [start, start + Duration::from_secs(5)] {
            assert!(rate.is_idle(now) && !rate.is_exhausted(now));
            let decisions: Vec<_> = (0..8).map(|_| rate.admit(now)).collect();
            let expected = [RateDecision::Accept, RateDecision::Answer, RateDecision::Refuse];
            assert_eq!(decisions[..6], [[expected[0]; 3], [expected[1]; 3]].concat());
            assert_eq!(decisions[6..], [expected[2]; 2]);
            assert!(rate.is_exhausted(now) && !rate.is_idle(now) && !rate.answer(now));
            let later = now + Duration::from_millis(400);
            assert!(!rate.is_exhausted(later) && !rate.is_idle(later));
            assert!(
                rate.answer(later) && !rate.answer(later) && !rate.is_exhausted(later),
                "one was accepted"
            );
        }
    }
}
