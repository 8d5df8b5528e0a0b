//! What of a topic may be missing though it was acknowledged: what expired, and what a full queue had no room for. And what
//! must not come: what had expired for certain, and more than a queue may hold.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;

/// The clocks of the broker and of this program may differ by so much over the time that a message lives here.
pub(crate) const CLOCKS_DIFFER: Duration = Duration::from_millis(250);

/// When something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Its place among all that happened.
    pub(crate) turn: u64,
    /// Since the beginning.
    pub(crate) at: Duration,
}

/// What gives way in a full queue, as the broker calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Overflow {
    /// What comes.
    DropNewest,
    /// What waits longest.
    DropOldest,
    /// What comes, and the client.
    Disconnect,
}

/// What may be missing of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    /// Nothing.
    Whole,
    /// What has expired.
    Expires,
    /// What a full queue had no room for. The readers of such a topic have no other, and it is of QoS 2: so each of its
    /// messages is in a queue once, behind the one before.
    Capped(Cap),
}

/// What a queue may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cap {
    pub(crate) overflow: Overflow,
    /// That wait.
    pub(crate) messages: u64,
    /// That are on their way to the client, beside them: its Receive Maximum.
    pub(crate) inflight: u64,
}

/// What is known of each message of a topic that has terms.
#[derive(Debug, Default)]
pub(crate) struct Lives(Vec<Life>);

#[derive(Debug)]
struct Life {
    /// The broker cannot have had it before this.
    sent: Moment,
    /// It had it by then.
    acknowledged: Option<Moment>,
    /// The Message Expiry Interval.
    expiry: Option<Duration>,
}

/// When each message came to a reader.
pub(crate) type Came = BTreeMap<u64, Moment>;

impl Lives {
    pub(crate) fn begin(&mut self, sent: Moment, expiry: Option<Duration>) {
        self.0.push(Life { sent, acknowledged: None, expiry });
    }

    /// Only the first time counts.
    pub(crate) fn acknowledge(&mut self, number: u64, now: Moment) {
        if let Some(life) = usize::try_from(number).ok().and_then(|at| self.0.get_mut(at)) {
            life.acknowledged.get_or_insert(now);
        }
    }

    fn get(&self, number: u64) -> Option<&Life> {
        self.0.get(usize::try_from(number).ok()?)
    }

    fn sent(&self, number: u64) -> Option<Moment> {
        self.get(number).map(|life| life.sent)
    }

    fn acknowledged(&self, number: u64) -> Option<Moment> {
        self.get(number).and_then(|life| life.acknowledged)
    }

    /// Whether a reader who is there need not get a message that it has not got, by what came to it otherwise.
    pub(crate) fn may_be_missing(&self, terms: Terms, number: u64, came: &Came, now: Moment) -> bool {
        match terms {
            Terms::Whole => false,
            Terms::Expires => self.may_have_expired(number, came, now),
            Terms::Capped(cap) => match cap.overflow {
                Overflow::DropOldest => self.may_be_displaced(cap, number, came),
                Overflow::DropNewest | Overflow::Disconnect => self.may_be_refused(cap, number, came),
            },
        }
    }

    /// Its interval began at the earliest when it was sent, and had passed when its turn was over: what was behind it came.
    fn may_have_expired(&self, number: u64, came: &Came, now: Moment) -> bool {
        let Some(Life { sent, expiry: Some(expiry), .. }) = self.get(number) else { return false };
        let turn_was_over = came.range(number + 1..).next().map_or(now.at, |(_, came)| came.at);
        turn_was_over + CLOCKS_DIFFER >= sent.at + *expiry
    }

    /// It was the oldest in a full queue when another came. As each is in the queue once, that was the one which is as many
    /// further as the queue holds: it must have been sent before what was behind the missing one came, and what is older
    /// and came after that one was acknowledged can only have been on its way.
    fn may_be_displaced(&self, cap: Cap, number: u64, came: &Came) -> bool {
        let Some((_, next)) = came.range(number + 1..).next() else { return false };
        let displacing = number + cap.messages;
        if self.sent(displacing).is_none_or(|sent| sent.turn > next.turn) {
            return false;
        }
        let Some(acknowledged) = self.acknowledged(displacing) else { return true };
        let older = came.range(..number).rev().take_while(|(_, came)| came.turn > acknowledged.turn);
        older.count() as u64 <= cap.inflight
    }

    /// The queue was full when it came: of what is older, as much as the queue holds came to the reader only later.
    fn may_be_refused(&self, cap: Cap, number: u64, came: &Came) -> bool {
        let Some(sent) = self.sent(number) else { return false };
        let older = came.range(..number).rev().take_while(|(_, came)| came.turn > sent.turn);
        older.count() as u64 >= cap.messages
    }

    /// Whether a message had expired for certain before a connection began on which it was sent for the first time.
    pub(crate) fn had_expired(&self, number: u64, connected: Moment) -> bool {
        let Some(Life { acknowledged: Some(acknowledged), expiry: Some(expiry), .. }) = self.get(number)
        else {
            return false;
        };
        connected.at > acknowledged.at + *expiry + CLOCKS_DIFFER
    }

    /// Whether a message waited for a reader when that one connected.
    pub(crate) fn waited(&self, number: u64, connected: Moment) -> bool {
        self.acknowledged(number).is_some_and(|acknowledged| acknowledged.turn < connected.turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];

    fn moment(turn: u64) -> Moment {
        Moment { turn, at: Duration::from_secs(turn) }
    }

    /// So many messages, each sent and acknowledged within a turn, the first in turn 0.
    fn lives(messages: u64, expiry: Option<Duration>) -> Lives {
        let mut lives = Lives::default();
        for number in 0..messages {
            lives.begin(moment(number), expiry);
            lives.acknowledge(number, moment(number));
        }
        lives
    }

    /// These came, the first in turn 100.
    fn came(numbers: impl IntoIterator<Item = u64>) -> Came {
        numbers.into_iter().zip(100..).map(|(number, turn)| (number, moment(turn))).collect()
    }

    fn missing(overflow: Overflow, lives: &Lives, came: &Came) -> Vec<u64> {
        let terms = Terms::Capped(Cap { overflow, messages: 3, inflight: 2 });
        let numbers = 0..lives.0.len() as u64;
        let missing = numbers.filter(|number| !came.contains_key(number));
        missing.filter(|number| !lives.may_be_missing(terms, *number, came, moment(1_000))).collect()
    }

    #[test]
    fn nothing_of_a_whole_topic_may_be_missing() {
        let lives = lives(2, Some(Duration::from_secs(1)));
        assert!(!lives.may_be_missing(Terms::Whole, 0, &came([1]), moment(1_000)));
    }

    #[test]
    fn what_expired_before_its_turn_may_be_missing() {
        let may_be_missing = |expiry: u64, came: &Came, now: u64| {
            let lives = lives(3, Some(Duration::from_secs(expiry)));
            lives.may_be_missing(Terms::Expires, 1, came, moment(now))
        };
        // It was sent in second 1, and the next came in second 100.
        assert!(may_be_missing(99, &came([2]), 100));
        assert!(!may_be_missing(100, &came([2]), 1_000), "it was alive when its turn came");
        assert!(may_be_missing(100, &came([0]), 101), "its turn may not have come yet");
        assert!(!may_be_missing(100, &came([0]), 100));
        let lasting = lives(3, None);
        assert!(!lasting.may_be_missing(Terms::Expires, 1, &came([2]), moment(1_000)));
    }

    #[test]
    fn what_had_expired_before_the_connection_must_not_come_on_it() {
        let mut lives = lives(2, Some(Duration::from_secs(5)));
        assert!(!lives.had_expired(1, moment(6)));
        assert!(lives.had_expired(1, moment(7)));
        lives.begin(moment(2), Some(Duration::from_secs(5)));
        assert!(!lives.had_expired(2, moment(99)), "the broker may have got it a moment ago");
    }

    #[test]
    fn a_queue_that_drops_the_oldest_keeps_the_last_ones() {
        let oldest = |came: &Came| missing(Overflow::DropOldest, &lives(10, None), came);
        assert_eq!(oldest(&came([7, 8, 9])), NONE);
        assert_eq!(oldest(&came([0, 1, 7, 8, 9])), NONE, "two were on their way");
        assert_eq!(oldest(&came([8, 9])), [7], "there was room for it");
        assert_eq!(oldest(&came([7, 8])), [9], "nothing displaced it");
        assert_eq!(oldest(&came([0, 1, 2, 7, 8, 9])), [3, 4, 5, 6], "an older one was kept");
        assert_eq!(oldest(&came([5, 7, 8, 9])), NONE, "one that was on its way");
        assert_eq!(oldest(&came([])), (0..10).collect::<Vec<_>>(), "the last ones are never displaced");
    }

    #[test]
    fn what_had_not_been_sent_displaced_nothing() {
        let mut lives = lives(4, None);
        let came = came([3]);
        lives.begin(moment(200), None);
        assert_eq!(missing(Overflow::DropOldest, &lives, &came), [1, 2, 4]);
    }

    #[test]
    fn a_queue_that_drops_what_comes_keeps_the_first_ones() {
        for overflow in [Overflow::DropNewest, Overflow::Disconnect] {
            let newest = |came: &Came| missing(overflow, &lives(10, None), came);
            assert_eq!(newest(&came([0, 1, 2])), NONE);
            assert_eq!(newest(&came([0, 1, 2, 3, 4])), NONE, "two were on their way");
            assert_eq!(newest(&came([0, 2, 3, 4])), [1], "the queue was not full when it came");
            assert_eq!(newest(&came([0, 1])), (2..10).collect::<Vec<_>>(), "the queue was never full");
        }
    }

    #[test]
    fn what_had_come_before_stood_in_nobodys_way() {
        let mut lives = lives(3, None);
        let came = came([0, 1, 2]);
        lives.begin(moment(101), None);
        lives.begin(moment(99), None);
        assert_eq!(missing(Overflow::DropNewest, &lives, &came), [3]);
    }

    #[test]
    fn what_was_acknowledged_before_a_connection_waited_for_it() {
        let lives = lives(2, None);
        assert!(lives.waited(1, moment(2)) && !lives.waited(1, moment(1)) && !lives.waited(2, moment(9)));
    }
}
