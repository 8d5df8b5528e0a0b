//! States that retained messages may have, given the messages that were sent and acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use super::guarantee::{CLOCKS_DIFFER, expiry};

/// Last level of the topics where some messages expire.
pub(super) const EXPIRES: &str = "/brief";
/// One message in this many removes the retained one.
const REMOVES: u64 = 5;

/// State of a topic in message numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Messages acknowledged, in order.
    pub(super) acknowledged: u64,
    /// Messages sent.
    pub(super) sent: u64,
    /// Time of the last PUBLISH, and of its acknowledgement if it has come.
    pub(super) last_sent: Duration,
    pub(super) last_acknowledged: Option<Duration>,
}

/// Duration of a check of all retained messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPeriod {
    pub(super) began: Duration,
    pub(super) ended: Duration,
}

/// States of all topics with retained messages.
#[derive(Debug, Default)]
pub(crate) struct Retained(pub(super) BTreeMap<String, State>);

impl Retained {
    /// Faults in the messages that a new client found, by topic and number, given the numbers acknowledged before it
    /// began.
    pub(super) fn faults(
        &self,
        before: &BTreeMap<String, u64>,
        period: ReadPeriod,
        found: &BTreeMap<String, u64>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for (topic, state) in &self.0 {
            // State n + 1 is that after message n.
            let may_be = before.get(topic).copied().unwrap_or(0)..=state.sent;
            let is_right = match found.get(topic) {
                Some(number) => {
                    may_be.contains(&(number + 1))
                        && !removes(*number)
                        && !state.had_expired(topic, *number, period)
                }
                None => {
                    let is_gone =
                        |count| removes(count - 1) || state.may_have_expired(topic, count - 1, period);
                    may_be.clone().any(|count| count == 0 || is_gone(count))
                }
            };
            if !is_right {
                let found = found.get(topic);
                wrong.push(format!("retained on {topic} is {found:?}, and {may_be:?} messages were sent"));
            }
        }
        wrong
    }

    pub(super) fn acknowledged(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(topic, state)| (topic.clone(), state.acknowledged)).collect()
    }
}

impl State {
    /// Expiry interval of the last message sent; earlier ones have been replaced.
    fn expiry(&self, topic: &str, number: u64) -> Option<Duration> {
        let is_last = topic.ends_with(EXPIRES) && number + 1 == self.sent;
        expiry(number).filter(|_| is_last).map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// True if the interval may be over: it began after the PUBLISH was sent.
    fn may_have_expired(&self, topic: &str, number: u64, period: ReadPeriod) -> bool {
        let expiry = self.expiry(topic, number);
        expiry.is_some_and(|expiry| period.ended + CLOCKS_DIFFER >= self.last_sent + expiry)
    }

    /// True if the interval is over for certain: it began before the acknowledgement.
    fn had_expired(&self, topic: &str, number: u64, period: ReadPeriod) -> bool {
        let expiry = self.expiry(topic, number);
        let over = expiry.zip(self.last_acknowledged).map(|(expiry, since)| since + expiry + CLOCKS_DIFFER);
        over.is_some_and(|over| period.began > over)
    }
}

pub(super) fn removes(number: u64) -> bool {
    number % REMOVES == REMOVES - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(acknowledged: u64, sent: u64, found: Option<u64>) -> bool {
        let state = State { acknowledged, sent, ..State::default() };
        is_right("r", state, ReadPeriod { began: Duration::ZERO, ended: Duration::ZERO }, found)
    }

    fn is_right(topic: &str, state: State, period: ReadPeriod, found: Option<u64>) -> bool {
        let retained = Retained([(topic.to_owned(), state)].into());
        let found = found.map(|number| (topic.to_owned(), number)).into_iter().collect();
        retained.faults(&retained.acknowledged(), period, &found).is_empty()
    }

    /// Message 7 expires after two seconds, which began between the seconds 10 and 11.
    #[test]
    fn a_retained_message_is_present_until_it_expires() {
        let seconds = Duration::from_secs;
        let state =
            State { acknowledged: 8, sent: 8, last_sent: seconds(10), last_acknowledged: Some(seconds(11)) };
        for (second, there, gone) in
            [(11, true, false), (12, true, true), (13, true, true), (14, false, true)]
        {
            let period = ReadPeriod { began: seconds(second), ended: seconds(second) };
            assert_eq!(is_right("r/brief", state, period, Some(7)), there, "in second {second}");
            assert_eq!(is_right("r/brief", state, period, None), gone, "in second {second}");
        }
        let period = ReadPeriod { began: seconds(99), ended: seconds(99) };
        assert!(is_right("r/0", state, period, Some(7)) && !is_right("r/0", state, period, None));
    }

    #[test]
    fn the_retained_message_is_the_acknowledged_one_or_a_later_one() {
        assert!(is_allowed(0, 0, None));
        assert!(is_allowed(2, 2, Some(1)));
        assert!(is_allowed(1, 2, Some(0)) && is_allowed(1, 2, Some(1)));
        assert!(!is_allowed(2, 2, Some(0)), "older");
        assert!(!is_allowed(2, 2, Some(2)), "never sent");
        assert!(!is_allowed(2, 2, None), "missing");
    }

    #[test]
    fn a_removed_message_is_absent() {
        assert!(is_allowed(5, 5, None));
        assert!(!is_allowed(5, 5, Some(3)));
        assert!(is_allowed(4, 5, Some(3)) && is_allowed(4, 5, None), "perhaps removed");
    }
}
