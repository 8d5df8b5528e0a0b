//! Ledger of the oracle: messages published, acknowledged and delivered, and the faults that follow from them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use serde::Serialize;

use super::guarantee::{Arrivals, EventTime, Guarantee, Lifetimes};
use crate::plan::Overflow;

/// Faults that are described; all are counted.
const MOST_FAULT_LINES: usize = 20;

/// Number of a subscriber in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubscriberId(usize);

/// Scope of the ordering guarantee: one connection of a subscriber, and one stream of it.
pub(crate) type OrderScope = (u64, StreamKey);

/// Counters of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// CONNACK packets.
    pub(crate) connected: u64,
    /// Messages sent for the first time.
    pub(crate) published: u64,
    pub(crate) puback: u64,
    pub(crate) pubrec: u64,
    pub(crate) pubcomp: u64,
    pub(crate) suback: u64,
    pub(crate) unsuback: u64,
    /// Wills of connections that ended without DISCONNECT.
    pub(crate) wills: u64,
    /// Checks of all retained messages by a new client.
    pub(crate) retained_looks: u64,
    /// First deliveries to a subscriber.
    pub(crate) delivered: u64,
    /// Repeated deliveries of QoS 1, which are allowed.
    pub(crate) repeated: u64,
    /// Large messages acknowledged.
    pub(crate) large: u64,
    /// Connections that ended in the middle of a large message.
    pub(crate) cut: u64,
    /// Deliveries that are no longer due because the message has expired.
    pub(crate) expired: u64,
    /// Deliveries that are no longer due because the subscriber's queue was full.
    pub(crate) displaced: u64,
    #[serde(flatten)]
    pub(crate) faults: Faults,
}

impl Counts {
    /// The counters without those of mere attempts: a client that is refused again and again makes no progress.
    pub(crate) fn progress(&self) -> Self {
        Self { connected: 0, cut: 0, wills: 0, retained_looks: 0, ..self.clone() }
    }
}

/// Counters of broken guarantees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Faults {
    /// Acknowledged and not delivered, counted for each subscriber.
    pub(crate) lost: u64,
    /// Delivered again with QoS 2.
    pub(crate) duplicates: u64,
    /// Delivered behind a later message of the same topic and lane.
    pub(crate) disordered: u64,
    /// Payloads that differ from the published one.
    pub(crate) corrupted: u64,
    /// Sessions that the server has lost.
    pub(crate) forgotten: u64,
    /// Retained messages that are missing, older than the acknowledged one, or were removed.
    pub(crate) stale: u64,
    /// Deliveries without a subscription, or of a Will before its time.
    #[serde(rename = "uncalled")] // as in committed reports
    pub(crate) unexpected: u64,
    /// Requests without an answer, or refused.
    pub(crate) unanswered: u64,
    /// Messages that had expired before they were sent to a subscriber.
    #[serde(rename = "outlived")] // as in committed reports
    pub(crate) after_expiry: u64,
    /// Queues that delivered more than they may hold.
    pub(crate) overfull: u64,
    /// Connections that ended because of an illegal packet.
    pub(crate) illegal: u64,
}

impl Faults {
    /// Sum of all kinds.
    pub(crate) fn sum(&self) -> u64 {
        let Self { lost, duplicates, disordered, corrupted, forgotten, stale, .. } = self;
        let Self { unexpected, unanswered, after_expiry, overfull, illegal, .. } = self;
        let broken = lost + duplicates + disordered + corrupted + forgotten + stale;
        broken + unexpected + unanswered + after_expiry + overfull + illegal
    }
}

/// Kind of the messages of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopicKind {
    /// QoS 1.
    AtLeastOnce,
    /// QoS 2.
    ExactlyOnce,
    /// Wills of QoS 2: acknowledged when their connection has ended, and delivered some time later.
    Will,
}

#[derive(Debug)]
struct Topic {
    kind: TopicKind,
    guarantee: Guarantee,
    /// Empty for complete topics.
    lifetimes: Lifetimes,
    /// Number of the next message.
    next: u64,
    /// Sent and not acknowledged.
    open: BTreeSet<u64>,
    /// Messages that the broker may or may not have taken.
    uncertain: BTreeSet<u64>,
}

#[derive(Debug)]
struct SubscriberRecord {
    name: String,
    /// Prefixes of its topics.
    prefixes: Vec<String>,
    is_offline: bool,
    /// Start of the last connection attempt.
    connected: EventTime,
    /// Deliveries on this connection of messages that were queued before it, on topics with bounded queues.
    waited: u64,
    progress: HashMap<String, Progress>,
}

/// A delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) number: u64,
    /// `None` where order is not guaranteed.
    pub(crate) scope: Option<OrderScope>,
    /// DUP flag: the server may have sent it before.
    pub(crate) dup: bool,
}

/// Progress of a subscriber on a topic.
#[derive(Debug, Default)]
struct Progress {
    /// Every number below it was delivered, except for `missing`.
    next: u64,
    missing: BTreeSet<u64>,
    /// Missing, and no longer due.
    excused: BTreeSet<u64>,
    /// Highest number of each scope.
    latest: HashMap<OrderScope, u64>,
    /// Empty for complete topics.
    arrivals: Arrivals,
}

/// Published messages and their deliveries.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    topics: BTreeMap<String, Topic>,
    subscribers: Vec<SubscriberRecord>,
    pub(crate) counts: Counts,
    fault_lines: Vec<String>,
    now: EventTime,
    /// Progress before the first delivery.
    nothing: Progress,
}

impl Ledger {
    // -- Getters -----------------------------------------------------------------------------------

    /// Descriptions of the first faults.
    pub(crate) fn fault_lines(&self) -> &[String] {
        &self.fault_lines
    }

    /// Number of the topic's next message.
    pub(crate) fn next(&self, topic: &str) -> u64 {
        self.topics.get(topic).map_or(0, |topic| topic.next)
    }

    /// Messages sent and not acknowledged, without Wills.
    pub(crate) fn unanswered(&self) -> usize {
        let asks = self.topics.values().filter(|topic| topic.kind != TopicKind::Will);
        asks.map(|topic| topic.open.len()).sum()
    }

    /// Deliveries that are due to connected subscribers: subscriber, topic and number. Wills only if wanted, since they
    /// are delayed.
    pub(crate) fn missing(&self, with_wills: bool) -> Vec<(SubscriberId, String, u64)> {
        let due = self.due_deliveries(with_wills);
        due.map(|(subscriber, topic, number)| (subscriber, topic.to_owned(), number)).collect()
    }

    fn due_deliveries(&self, with_wills: bool) -> impl Iterator<Item = (SubscriberId, &str, u64)> {
        let connected = self.subscribers.iter().enumerate().filter(|(_, subscriber)| !subscriber.is_offline);
        connected.flat_map(move |(at, subscriber)| {
            let is_due = move |(name, topic): &(&String, &Topic)| {
                subscriber.reads(name) && (with_wills || topic.kind != TopicKind::Will)
            };
            self.topics.iter().filter(is_due).flat_map(move |(name, topic)| {
                let due = self.due(topic, subscriber.progress.get(name).unwrap_or(&self.nothing));
                due.map(move |number| (SubscriberId(at), name.as_str(), number))
            })
        })
    }

    /// Numbers of a topic's messages that are still due to a subscriber with this progress.
    fn due<'a>(&'a self, topic: &'a Topic, has: &'a Progress) -> impl Iterator<Item = u64> + 'a {
        let rest = has.missing.iter().copied().chain(has.next..topic.next);
        let is_due = move |number: &u64| topic.is_due(*number) && !topic.excuses(*number, has, self.now);
        rest.filter(is_due)
    }

    /// True if every request is answered and every delivery was made; with Wills also if no subscriber is offline.
    pub(crate) fn is_settled(&self, with_wills: bool) -> bool {
        self.unanswered() == 0
            && !(with_wills && self.subscribers.iter().any(|subscriber| subscriber.is_offline))
            && self.due_deliveries(with_wills).next().is_none()
    }

    /// True if a delivery on this topic is due to a connected subscriber.
    pub(crate) fn is_missed(&self, topic: &str) -> bool {
        let there = self
            .subscribers
            .iter()
            .enumerate()
            .filter(|(_, subscriber)| !subscriber.is_offline && subscriber.reads(topic));
        there.into_iter().any(|(at, _)| !self.has_all(SubscriberId(at), topic))
    }

    /// True if the subscriber has every acknowledged message of the topic.
    pub(crate) fn has_all(&self, subscriber: SubscriberId, topic: &str) -> bool {
        let has = self.subscribers[subscriber.0].progress.get(topic).unwrap_or(&self.nothing);
        self.topics.get(topic).is_none_or(|topic| self.due(topic, has).next().is_none())
    }

    // -- Commands: publishing and subscribing ------------------------------------------------------

    /// Sets the time of the next event. Each event has a time of its own.
    pub(crate) fn set_now(&mut self, at: Duration) {
        self.now = EventTime { turn: self.now.turn + 1, at };
    }

    pub(crate) fn add_topic(&mut self, name: &str, kind: TopicKind) {
        self.add_topic_with(name, kind, Guarantee::Complete);
    }

    /// Adds a topic with a weaker guarantee than [`Ledger::add_topic`].
    pub(crate) fn add_topic_with(&mut self, name: &str, kind: TopicKind, guarantee: Guarantee) {
        let (open, uncertain) = (BTreeSet::new(), BTreeSet::new());
        let topic = Topic { kind, guarantee, lifetimes: Lifetimes::default(), next: 0, open, uncertain };
        self.topics.insert(name.to_owned(), topic);
    }

    /// Removes a topic: every later delivery on it is a fault.
    pub(crate) fn end_topic(&mut self, name: &str) {
        self.topics.remove(name);
        for subscriber in &mut self.subscribers {
            subscriber.progress.remove(name);
        }
    }

    pub(crate) fn add_subscriber(&mut self, name: &str, prefixes: &[&str]) -> SubscriberId {
        let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        let (name, connected, progress) = (name.to_owned(), EventTime::default(), HashMap::new());
        self.subscribers.push(SubscriberRecord {
            name,
            prefixes,
            is_offline: false,
            connected,
            waited: 0,
            progress,
        });
        SubscriberId(self.subscribers.len() - 1)
    }

    /// Nothing is due to a subscriber while it is offline.
    pub(crate) fn set_offline(&mut self, subscriber: SubscriberId, is_offline: bool) {
        self.subscribers[subscriber.0].is_offline = is_offline;
    }

    /// Records the start of a connection attempt.
    pub(crate) fn connecting(&mut self, subscriber: SubscriberId) {
        let subscriber = &mut self.subscribers[subscriber.0];
        (subscriber.connected, subscriber.waited) = (self.now, 0);
    }

    /// Records that the topic's next message was sent, with its Message Expiry Interval.
    pub(crate) fn sent_for(&mut self, topic: &str, expiry: Option<Duration>) {
        self.counts.published += 1;
        self.begin_for(topic, expiry);
    }

    /// Records a Will that went with CONNECT: unlike [`Ledger::sent_for`] it is not counted yet.
    pub(crate) fn begin(&mut self, topic: &str) {
        self.begin_for(topic, None);
    }

    fn begin_for(&mut self, topic: &str, expiry: Option<Duration>) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.insert(topic.next);
            topic.next += 1;
            if topic.guarantee != Guarantee::Complete {
                topic.lifetimes.begin(self.now, expiry);
            }
        }
    }

    /// Records an acknowledgement: the message is due to every subscriber from now on.
    pub(crate) fn acknowledged(&mut self, topic: &str, number: u64) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.remove(&number);
            topic.lifetimes.acknowledge(number, self.now);
        }
    }

    /// Records that the broker may or may not have taken the message.
    pub(crate) fn mark_uncertain(&mut self, topic: &str, number: u64) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.remove(&number);
            topic.uncertain.insert(number);
        }
    }

    // -- Commands: deliveries ----------------------------------------------------------------------

    /// Records a delivery to a subscriber.
    pub(crate) fn delivered(&mut self, subscriber: SubscriberId, name: &str, arrival: Arrival) {
        let number = arrival.number;
        let receiver = &mut self.subscribers[subscriber.0];
        let topic = self.topics.get(name).filter(|topic| number < topic.next && receiver.reads(name));
        let Some(topic) = topic else {
            let fault = format!("{} got {name} {number}, which it must not", receiver.name);
            self.counts.faults.unexpected += 1;
            return self.report_fault(fault);
        };
        let progress = receiver.progress.entry(name.to_owned()).or_default();
        // A retransmitted PUBLISH of QoS 1 is queued twice, and the second copy expires later, behind the messages
        // after the first.
        let is_second = topic.kind == TopicKind::AtLeastOnce && progress.excused.contains(&number);
        if !progress.take(number) {
            if topic.kind == TopicKind::AtLeastOnce {
                self.counts.repeated += 1;
                return;
            }
            let fault = format!("{} got {name} {number} of QoS 2 again", receiver.name);
            self.counts.faults.duplicates += 1;
            return self.report_fault(fault);
        }
        self.counts.delivered += 1;
        if topic.guarantee != Guarantee::Complete {
            progress.arrivals.insert(number, self.now);
            let excused = progress.excuse(topic, self.now);
            match topic.guarantee {
                Guarantee::Expires => self.counts.expired += excused,
                _ => self.counts.displaced += excused,
            }
            self.check_guarantee(subscriber, name, arrival);
        }
        if !is_second {
            self.check_order(subscriber, name, arrival);
        }
    }

    /// Counts deliveries after expiry, and more deliveries than a queue may hold.
    fn check_guarantee(&mut self, subscriber: SubscriberId, name: &str, arrival: Arrival) {
        let Some(Topic { guarantee, lifetimes, .. }) = self.topics.get(name) else { return };
        let receiver = &mut self.subscribers[subscriber.0];
        let waited = lifetimes.waited(arrival.number, receiver.connected);
        match *guarantee {
            Guarantee::Complete => {}
            Guarantee::Expires => {
                if !arrival.dup && lifetimes.had_expired(arrival.number, receiver.connected) {
                    let fault = format!("{} got {name} {}, which had expired", receiver.name, arrival.number);
                    self.counts.faults.after_expiry += 1;
                    self.report_fault(fault);
                }
            }
            // The other policies keep acknowledged messages above the limit when the broker starts: a refused message
            // may still be in the store then.
            Guarantee::Bounded(cap) if cap.overflow == Overflow::DropOldest && waited => {
                receiver.waited += 1;
                if receiver.waited == cap.messages + cap.inflight + 1 {
                    let fault =
                        format!("{} got {} of {name} that had waited", receiver.name, receiver.waited);
                    self.counts.faults.overfull += 1;
                    self.report_fault(fault);
                }
            }
            Guarantee::Bounded(_) => {}
        }
    }

    /// Counts a delivery behind a later one.
    fn check_order(&mut self, subscriber: SubscriberId, name: &str, arrival: Arrival) {
        let Arrival { number, scope: Some(scope), .. } = arrival else { return };
        let receiver = &mut self.subscribers[subscriber.0];
        let progress = receiver.progress.entry(name.to_owned()).or_default();
        let latest = progress.latest.insert(scope, number);
        if let Some(latest) = latest.filter(|latest| *latest > number) {
            progress.latest.insert(scope, latest);
            let (connection, stream) = (scope.0, scope.1.index());
            let fault = format!(
                "{} got {name} {number} behind {latest} on stream {stream} of connection {connection}",
                receiver.name
            );
            self.counts.faults.disordered += 1;
            self.report_fault(fault);
        }
    }

    /// Ends the scopes of order of a subscriber with its connection.
    pub(crate) fn reset_order(&mut self, subscriber: SubscriberId) {
        self.subscribers[subscriber.0].progress.values_mut().for_each(|progress| progress.latest.clear());
    }

    /// Counts every missing delivery as lost, once.
    pub(crate) fn record_missing(&mut self, with_wills: bool) {
        for (subscriber, topic, number) in self.missing(with_wills) {
            self.counts.faults.lost += 1;
            let receiver = &mut self.subscribers[subscriber.0];
            receiver.progress.entry(topic.clone()).or_default().take(number);
            let fault = format!("{} has lost {topic} {number}", receiver.name);
            self.report_fault(fault);
        }
        let open: Vec<_> = self.topics.iter().filter(|(_, topic)| topic.kind != TopicKind::Will).collect();
        let open: Vec<_> = open.iter().filter(|(_, topic)| !topic.open.is_empty()).collect();
        let lines: Vec<_> =
            open.iter().map(|(name, topic)| format!("{name} has no answer to {:?}", topic.open)).collect();
        self.counts.faults.unanswered += self.unanswered() as u64;
        lines.into_iter().for_each(|fault| self.report_fault(fault));
    }

    /// Describes a fault that the caller has counted, unless enough are described.
    pub(crate) fn report_fault(&mut self, fault: String) {
        if self.fault_lines.len() < MOST_FAULT_LINES {
            self.fault_lines.push(fault);
        }
    }
}

impl Topic {
    fn is_due(&self, number: u64) -> bool {
        !self.open.contains(&number) && !self.uncertain.contains(&number)
    }

    /// True if the message is not due to a subscriber with this progress.
    fn excuses(&self, number: u64, has: &Progress, now: EventTime) -> bool {
        self.lifetimes.may_be_missing(self.guarantee, number, &has.arrivals, now)
    }
}

impl SubscriberRecord {
    fn reads(&self, topic: &str) -> bool {
        self.prefixes.iter().any(|prefix| topic.starts_with(prefix.as_str()))
    }
}

impl Progress {
    /// Records a delivery. False: the message was delivered before.
    fn take(&mut self, number: u64) -> bool {
        if number < self.next {
            return self.missing.remove(&number) || self.excused.remove(&number);
        }
        self.missing.extend(self.next..number);
        self.next = number + 1;
        true
    }

    /// Excuses missing messages that are not due; returns their number.
    fn excuse(&mut self, topic: &Topic, now: EventTime) -> u64 {
        let excused = self.missing.iter().copied().filter(|number| topic.excuses(*number, self, now));
        let excused: Vec<_> = excused.collect();
        for number in &excused {
            self.missing.remove(number);
        }
        self.excused.extend(&excused);
        excused.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::guarantee::Cap;
    use super::*;

    const HERE: Option<OrderScope> = Some((1, StreamKey::CONTROL));

    /// A first delivery.
    fn arrivals(number: u64, scope: Option<OrderScope>) -> Arrival {
        Arrival { number, scope, dup: false }
    }

    /// A ledger with one topic of this many acknowledged messages, and one subscriber.
    fn ledger(kind: TopicKind, messages: u64) -> (Ledger, SubscriberId) {
        let mut ledger = Ledger::default();
        ledger.add_topic("m/1", kind);
        let subscriber = ledger.add_subscriber("subscriber", &["m/"]);
        for number in 0..messages {
            ledger.sent_for("m/1", None);
            ledger.acknowledged("m/1", number);
        }
        (ledger, subscriber)
    }

    fn faults(ledger: &mut Ledger) -> Faults {
        ledger.record_missing(true);
        ledger.counts.faults.clone()
    }

    #[test]
    fn nothing_is_wrong_when_all_came_in_order() {
        let (mut ledger, subscriber) = ledger(TopicKind::ExactlyOnce, 3);
        assert!(!ledger.has_all(subscriber, "m/1"));
        (0..3).for_each(|number| ledger.delivered(subscriber, "m/1", arrivals(number, HERE)));
        assert!(ledger.has_all(subscriber, "m/1"));
        assert_eq!(faults(&mut ledger), Faults::default());
        assert_eq!(ledger.counts.delivered, 3);
    }

    #[test]
    fn repeated_refusals_are_no_progress() {
        let (mut ledger, subscriber) = ledger(TopicKind::AtLeastOnce, 1);
        let before = ledger.counts.progress();
        ledger.counts.connected += 1;
        ledger.counts.cut += 1;
        assert_eq!(ledger.counts.progress(), before);
        ledger.delivered(subscriber, "m/1", arrivals(0, HERE));
        assert_ne!(ledger.counts.progress(), before);
    }

    #[test]
    fn an_acknowledged_missing_message_is_lost_once() {
        let (mut ledger, subscriber) = ledger(TopicKind::AtLeastOnce, 4);
        [0, 2].into_iter().for_each(|number| ledger.delivered(subscriber, "m/1", arrivals(number, HERE)));
        assert_eq!(faults(&mut ledger), Faults { lost: 2, ..Faults::default() });
        assert_eq!(faults(&mut ledger).lost, 2);
        assert_eq!(ledger.fault_lines(), ["subscriber has lost m/1 1", "subscriber has lost m/1 3"]);
    }

    #[test]
    fn an_unacknowledged_message_is_unanswered_and_not_lost() {
        let (mut ledger, subscriber) = ledger(TopicKind::AtLeastOnce, 0);
        ledger.sent_for("m/1", None);
        assert!(ledger.has_all(subscriber, "m/1"));
        assert_eq!(faults(&mut ledger), Faults { unanswered: 1, ..Faults::default() });
        assert!(ledger.fault_lines()[0].contains("{0}"), "{:?}", ledger.fault_lines());
    }

    #[test]
    fn a_reader_who_is_away_misses_nothing_until_it_is_back() {
        let (mut ledger, subscriber) = ledger(TopicKind::ExactlyOnce, 1);
        ledger.set_offline(subscriber, true);
        assert!(ledger.missing(true).is_empty());
        ledger.set_offline(subscriber, false);
        assert_eq!(ledger.missing(true).len(), 1);
    }

    #[test]
    fn only_qos_1_may_come_again() {
        for (kind, duplicates, repeated) in [(TopicKind::AtLeastOnce, 0, 1), (TopicKind::ExactlyOnce, 1, 0)] {
            let (mut ledger, subscriber) = ledger(kind, 2);
            [0, 1, 0]
                .into_iter()
                .for_each(|number| ledger.delivered(subscriber, "m/1", arrivals(number, HERE)));
            assert_eq!(faults(&mut ledger), Faults { duplicates, ..Faults::default() });
            assert_eq!(ledger.counts.repeated, repeated);
        }
    }

    #[test]
    fn order_is_promised_within_a_place() {
        let other = Some((1, StreamKey::bidi(1)));
        for (scope, disordered) in [(HERE, 1), (other, 0), (None, 0)] {
            let (mut ledger, subscriber) = ledger(TopicKind::ExactlyOnce, 2);
            ledger.delivered(subscriber, "m/1", arrivals(1, HERE));
            ledger.delivered(subscriber, "m/1", arrivals(0, scope));
            assert_eq!(faults(&mut ledger), Faults { disordered, ..Faults::default() });
        }
    }

    #[test]
    fn unsent_and_unsubscribed_messages_are_uncalled() {
        let (mut ledger, subscriber) = ledger(TopicKind::ExactlyOnce, 1);
        ledger.add_topic("n/1", TopicKind::ExactlyOnce);
        ledger.sent_for("n/1", None);
        ledger.delivered(subscriber, "m/1", arrivals(1, HERE));
        ledger.delivered(subscriber, "n/1", arrivals(0, HERE));
        ledger.delivered(subscriber, "m/2", arrivals(0, HERE));
        assert_eq!(ledger.counts.faults.unexpected, 3);
    }

    /// A ledger with one topic of this guarantee and this many messages, each with an expiry of two seconds, and one
    /// subscriber.
    fn ledger_with(guarantee: Guarantee, messages: u64) -> (Ledger, SubscriberId) {
        let mut ledger = Ledger::default();
        ledger.add_topic_with("q/1", TopicKind::ExactlyOnce, guarantee);
        let subscriber = ledger.add_subscriber("subscriber", &["q/"]);
        for number in 0..messages {
            ledger.set_now(Duration::ZERO);
            ledger.sent_for("q/1", Some(Duration::from_secs(2)));
            ledger.acknowledged("q/1", number);
        }
        (ledger, subscriber)
    }

    fn deliver(ledger: &mut Ledger, subscriber: SubscriberId, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            ledger.set_now(ledger.now.at);
            ledger.delivered(subscriber, "q/1", arrivals(number, HERE));
        }
    }

    fn bounded(overflow: Overflow) -> Guarantee {
        Guarantee::Bounded(Cap { overflow, messages: 3, inflight: 1 })
    }

    #[test]
    fn a_message_without_room_is_neither_lost_nor_expected() {
        for (overflow, kept, displaced) in [(Overflow::DropOldest, 2..5, 2), (Overflow::DropNewest, 0..3, 0)]
        {
            let (mut ledger, subscriber) = ledger_with(bounded(overflow), 5);
            assert!(!ledger.is_settled(true));
            deliver(&mut ledger, subscriber, kept);
            assert!(ledger.is_settled(true), "{overflow:?}");
            assert_eq!((faults(&mut ledger), ledger.counts.displaced), (Faults::default(), displaced));
        }
    }

    #[test]
    fn a_missing_message_with_room_is_lost() {
        for (overflow, kept, lost) in [(Overflow::DropOldest, 3..5, 1), (Overflow::DropNewest, 0..2, 3)] {
            let (mut ledger, subscriber) = ledger_with(bounded(overflow), 5);
            deliver(&mut ledger, subscriber, kept);
            assert_eq!(faults(&mut ledger), Faults { lost, ..Faults::default() }, "{overflow:?}");
        }
    }

    #[test]
    fn an_evicted_message_may_come_late_and_only_once() {
        let (mut ledger, subscriber) = ledger_with(bounded(Overflow::DropNewest), 5);
        deliver(&mut ledger, subscriber, [0, 1, 2, 4]);
        assert_eq!(ledger.counts.displaced, 1);
        ledger.reset_order(subscriber);
        deliver(&mut ledger, subscriber, [3, 3]);
        assert_eq!(faults(&mut ledger), Faults { duplicates: 1, ..Faults::default() });
    }

    #[test]
    fn the_second_of_what_was_sent_twice_may_come_when_the_first_has_expired() {
        for (kind, disordered) in [(TopicKind::AtLeastOnce, 0), (TopicKind::ExactlyOnce, 1)] {
            let (mut ledger, subscriber) = ledger_with(Guarantee::Expires, 0);
            ledger.add_topic_with("q/1", kind, Guarantee::Expires);
            for number in 0..2 {
                ledger.sent_for("q/1", Some(Duration::from_secs(2)));
                ledger.acknowledged("q/1", number);
            }
            ledger.set_now(Duration::from_secs(3));
            deliver(&mut ledger, subscriber, [1, 0]);
            assert_eq!(faults(&mut ledger), Faults { disordered, ..Faults::default() }, "{kind:?}");
        }
    }

    #[test]
    fn a_queue_must_not_hold_more_than_its_cap() {
        for (first, overfull) in [(1, 0), (0, 1)] {
            let (mut ledger, subscriber) = ledger_with(bounded(Overflow::DropOldest), 5);
            ledger.set_now(Duration::ZERO);
            ledger.connecting(subscriber);
            deliver(&mut ledger, subscriber, first..5);
            assert_eq!(faults(&mut ledger).overfull, overfull, "from {first} on");
        }
    }

    #[test]
    fn a_message_that_expired_offline_is_not_lost_and_must_not_come() {
        for (second, dup, after_expiry) in [(1, false, 0), (3, false, 1), (3, true, 0)] {
            let (mut ledger, subscriber) = ledger_with(Guarantee::Expires, 2);
            ledger.set_now(Duration::from_secs(second));
            ledger.connecting(subscriber);
            ledger.delivered(subscriber, "q/1", Arrival { dup, ..arrivals(1, HERE) });
            let (lost, expired) = if second < 2 { (1, 0) } else { (0, 1) };
            let expected = Faults { lost, after_expiry, ..Faults::default() };
            assert_eq!((faults(&mut ledger), ledger.counts.expired), (expected, expired), "{second} {dup}");
        }
    }

    #[test]
    fn a_will_is_due_when_its_connection_has_ended_and_only_if_it_was_taken() {
        let (mut ledger, subscriber) = ledger(TopicKind::Will, 0);
        ledger.begin("m/1");
        assert!(ledger.missing(true).is_empty());
        ledger.mark_uncertain("m/1", 0);
        ledger.begin("m/1");
        ledger.acknowledged("m/1", 1);
        assert!(ledger.missing(false).is_empty());
        assert_eq!(ledger.missing(true), [(subscriber, "m/1".to_owned(), 1)]);
        ledger.delivered(subscriber, "m/1", arrivals(0, HERE));
        ledger.delivered(subscriber, "m/1", arrivals(1, HERE));
        assert_eq!(faults(&mut ledger), Faults::default());
    }
}
