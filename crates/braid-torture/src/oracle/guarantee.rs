//! Delivery guarantees of a topic: which acknowledged messages may be missing (expired, or dropped by a full queue),
//! and which must not be delivered (expired for certain, or more than a queue may hold).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plan::Overflow;

/// Largest difference between the clocks of the broker and of this process over the lifetime of a message.
pub(crate) const CLOCKS_DIFFER: Duration = Duration::from_millis(250);

/// Message Expiry Interval in seconds of the message with this number, on topics where some expire. Messages without
/// one show gaps among the short-lived, and those of an hour show a wrong clock.
pub(crate) fn expiry(number: u64) -> Option<u32> {
    [Some(1), None, Some(3_600), Some(2)][usize::try_from(number % 4).unwrap_or(0)]
}

/// Time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventTime {
    /// Sequence number among all events.
    pub(crate) turn: u64,
    /// Since the start.
    pub(crate) at: Duration,
}

/// Messages of a topic that have to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarantee {
    /// All.
    Complete,
    /// All that have not expired.
    Expires,
    /// All that found room in their queue. Subscribers of such a topic have no other, and its messages are of QoS 2, so
    /// that each is in a queue once, in order.
    Bounded(Cap),
}

/// Limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cap {
    pub(crate) overflow: Overflow,
    /// Messages queued.
    pub(crate) messages: u64,
    /// Messages inflight to the client besides: its Receive Maximum.
    pub(crate) inflight: u64,
}

/// Lifetime of each message of a topic without the complete guarantee.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes(Vec<Lifetime>);

#[derive(Debug)]
struct Lifetime {
    /// Lower bound of the time at which the broker had it.
    sent: EventTime,
    /// Upper bound of the time at which the broker had it.
    acknowledged: Option<EventTime>,
    /// Message Expiry Interval.
    expiry: Option<Duration>,
}

/// Time of each delivery to a subscriber.
pub(crate) type Arrivals = BTreeMap<u64, EventTime>;

impl Lifetimes {
    pub(crate) fn begin(&mut self, sent: EventTime, expiry: Option<Duration>) {
        self.0.push(Lifetime { sent, acknowledged: None, expiry });
    }

    /// Records the first acknowledgement of a message.
    pub(crate) fn acknowledge(&mut self, number: u64, now: EventTime) {
        if let Some(lifetime) = usize::try_from(number).ok().and_then(|at| self.0.get_mut(at)) {
            lifetime.acknowledged.get_or_insert(now);
        }
    }

    fn get(&self, number: u64) -> Option<&Lifetime> {
        self.0.get(usize::try_from(number).ok()?)
    }

    fn sent(&self, number: u64) -> Option<EventTime> {
        self.get(number).map(|lifetime| lifetime.sent)
    }

    fn acknowledged(&self, number: u64) -> Option<EventTime> {
        self.get(number).and_then(|lifetime| lifetime.acknowledged)
    }

    /// True if an undelivered message need not be delivered to a connected subscriber, given its other deliveries.
    pub(crate) fn may_be_missing(
        &self,
        guarantee: Guarantee,
        number: u64,
        arrivals: &Arrivals,
        now: EventTime,
    ) -> bool {
        match guarantee {
            Guarantee::Complete => false,
            Guarantee::Expires => self.may_have_expired(number, arrivals, now),
            Guarantee::Bounded(cap) => match cap.overflow {
                Overflow::DropOldest => self.may_be_displaced(cap, number, arrivals),
                Overflow::DropNewest | Overflow::Disconnect => self.may_be_refused(cap, number, arrivals),
            },
        }
    }

    /// The interval began no earlier than the PUBLISH was sent, and was over when a later message was delivered.
    fn may_have_expired(&self, number: u64, arrivals: &Arrivals, now: EventTime) -> bool {
        let Some(Lifetime { sent, expiry: Some(expiry), .. }) = self.get(number) else { return false };
        let turn_was_over = arrivals.range(number + 1..).next().map_or(now.at, |(_, arrivals)| arrivals.at);
        turn_was_over + CLOCKS_DIFFER >= sent.at + *expiry
    }

    /// True if the message can have been the oldest in a full queue. As each is queued once, it was displaced by the
    /// message that is one queue length further: that was sent before the next delivery behind the missing one, and
    /// older messages delivered after its acknowledgement can only have been inflight.
    fn may_be_displaced(&self, cap: Cap, number: u64, arrivals: &Arrivals) -> bool {
        let Some((_, next)) = arrivals.range(number + 1..).next() else { return false };
        let displacing = number + cap.messages;
        if self.sent(displacing).is_none_or(|sent| sent.turn > next.turn) {
            return false;
        }
        let Some(acknowledged) = self.acknowledged(displacing) else { return true };
        let older =
            arrivals.range(..number).rev().take_while(|(_, arrivals)| arrivals.turn > acknowledged.turn);
        older.count() as u64 <= cap.inflight
    }

    /// True if the queue was full when the message came: a queue length of older messages was delivered only later.
    fn may_be_refused(&self, cap: Cap, number: u64, arrivals: &Arrivals) -> bool {
        let Some(sent) = self.sent(number) else { return false };
        let older = arrivals.range(..number).rev().take_while(|(_, arrivals)| arrivals.turn > sent.turn);
        older.count() as u64 >= cap.messages
    }

    /// True if a message had expired for certain before the connection began on which it was sent first.
    pub(crate) fn had_expired(&self, number: u64, connected: EventTime) -> bool {
        let Some(Lifetime { acknowledged: Some(acknowledged), expiry: Some(expiry), .. }) = self.get(number)
        else {
            return false;
        };
        connected.at > acknowledged.at + *expiry + CLOCKS_DIFFER
    }

    /// True if a message was queued when its subscriber connected.
    pub(crate) fn waited(&self, number: u64, connected: EventTime) -> bool {
        self.acknowledged(number).is_some_and(|acknowledged| acknowledged.turn < connected.turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];

    fn time_of(turn: u64) -> EventTime {
        EventTime { turn, at: Duration::from_secs(turn) }
    }

    /// Lifetimes of messages that are sent and acknowledged at their number.
    fn lifetimes(messages: u64, expiry: Option<Duration>) -> Lifetimes {
        let mut lifetimes = Lifetimes::default();
        for number in 0..messages {
            lifetimes.begin(time_of(number), expiry);
            lifetimes.acknowledge(number, time_of(number));
        }
        lifetimes
    }

    /// Deliveries of these messages, from time 100 on.
    fn arrivals(numbers: impl IntoIterator<Item = u64>) -> Arrivals {
        numbers.into_iter().zip(100..).map(|(number, turn)| (number, time_of(turn))).collect()
    }

    fn missing(overflow: Overflow, lifetimes: &Lifetimes, arrivals: &Arrivals) -> Vec<u64> {
        let guarantee = Guarantee::Bounded(Cap { overflow, messages: 3, inflight: 2 });
        let numbers = 0..lifetimes.0.len() as u64;
        let missing = numbers.filter(|number| !arrivals.contains_key(number));
        missing
            .filter(|number| !lifetimes.may_be_missing(guarantee, *number, arrivals, time_of(1_000)))
            .collect()
    }

    #[test]
    fn nothing_of_a_whole_topic_may_be_missing() {
        let lifetimes = lifetimes(2, Some(Duration::from_secs(1)));
        assert!(!lifetimes.may_be_missing(Guarantee::Complete, 0, &arrivals([1]), time_of(1_000)));
    }

    #[test]
    fn a_message_that_expired_in_the_queue_may_be_missing() {
        let may_be_missing = |expiry: u64, arrivals: &Arrivals, now: u64| {
            let lifetimes = lifetimes(3, Some(Duration::from_secs(expiry)));
            lifetimes.may_be_missing(Guarantee::Expires, 1, arrivals, time_of(now))
        };
        // Sent in second 1; the next was delivered in second 100.
        assert!(may_be_missing(99, &arrivals([2]), 100));
        assert!(!may_be_missing(100, &arrivals([2]), 1_000), "it was alive when its turn came");
        assert!(may_be_missing(100, &arrivals([0]), 101), "its turn may not have come yet");
        assert!(!may_be_missing(100, &arrivals([0]), 100));
        let lasting = lifetimes(3, None);
        assert!(!lasting.may_be_missing(Guarantee::Expires, 1, &arrivals([2]), time_of(1_000)));
    }

    #[test]
    fn a_message_that_expired_before_the_connection_must_not_come() {
        let mut lifetimes = lifetimes(2, Some(Duration::from_secs(5)));
        assert!(!lifetimes.had_expired(1, time_of(6)));
        assert!(lifetimes.had_expired(1, time_of(7)));
        lifetimes.begin(time_of(2), Some(Duration::from_secs(5)));
        assert!(!lifetimes.had_expired(2, time_of(99)), "the broker may have got it a moment ago");
    }

    #[test]
    fn a_queue_that_drops_the_oldest_keeps_the_last_ones() {
        let oldest = |arrivals: &Arrivals| missing(Overflow::DropOldest, &lifetimes(10, None), arrivals);
        assert_eq!(oldest(&arrivals([7, 8, 9])), NONE);
        assert_eq!(oldest(&arrivals([0, 1, 7, 8, 9])), NONE, "two were on their way");
        assert_eq!(oldest(&arrivals([8, 9])), [7], "there was room for it");
        assert_eq!(oldest(&arrivals([7, 8])), [9], "nothing displaced it");
        assert_eq!(oldest(&arrivals([0, 1, 2, 7, 8, 9])), [3, 4, 5, 6], "an older one was kept");
        assert_eq!(oldest(&arrivals([5, 7, 8, 9])), NONE, "one that was on its way");
        assert_eq!(oldest(&arrivals([])), (0..10).collect::<Vec<_>>(), "the last ones are never displaced");
    }

    #[test]
    fn an_unsent_message_evicts_none() {
        let mut lifetimes = lifetimes(4, None);
        let arrivals = arrivals([3]);
        lifetimes.begin(time_of(200), None);
        assert_eq!(missing(Overflow::DropOldest, &lifetimes, &arrivals), [1, 2, 4]);
    }

    #[test]
    fn a_queue_that_drops_what_comes_keeps_the_first_ones() {
        for overflow in [Overflow::DropNewest, Overflow::Disconnect] {
            let newest = |arrivals: &Arrivals| missing(overflow, &lifetimes(10, None), arrivals);
            assert_eq!(newest(&arrivals([0, 1, 2])), NONE);
            assert_eq!(newest(&arrivals([0, 1, 2, 3, 4])), NONE, "two were on their way");
            assert_eq!(newest(&arrivals([0, 2, 3, 4])), [1], "the queue was not full when it came");
            assert_eq!(newest(&arrivals([0, 1])), (2..10).collect::<Vec<_>>(), "the queue was never full");
        }
    }

    #[test]
    fn earlier_messages_take_no_room() {
        let mut lifetimes = lifetimes(3, None);
        let arrivals = arrivals([0, 1, 2]);
        lifetimes.begin(time_of(101), None);
        lifetimes.begin(time_of(99), None);
        assert_eq!(missing(Overflow::DropNewest, &lifetimes, &arrivals), [3]);
    }

    #[test]
    fn messages_acknowledged_before_a_connection_are_queued_for_it() {
        let lifetimes = lifetimes(2, None);
        assert!(
            lifetimes.waited(1, time_of(2))
                && !lifetimes.waited(1, time_of(1))
                && !lifetimes.waited(2, time_of(9))
        );
    }
}
