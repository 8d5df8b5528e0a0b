//! Naive model of the messages that one session must receive.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;

use crate::support::{CONTROL, filter, topic};

pub(super) const TOPICS: [&str; 5] = ["t/0", "t/1", "other", "alarm/0", "bulk/0"];
pub(super) const FILTERS: [&str; 7] = ["t/0", "t/1", "t/+", "#", "other", "alarm/#", "bulk/0"];
pub(super) const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// Name of a message in the model: its publisher, and its number among that client's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) publisher: usize,
    pub(super) number: u32,
}

/// Connection and stream on which a client published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) publisher: usize,
    pub(super) connection: u32,
    pub(super) stream: StreamKey,
}

/// A message as it was published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Publication {
    pub(super) topic: usize,
    pub(super) qos: QoS,
    pub(super) origin: Origin,
    /// The message was published again, because its acknowledgement did not come.
    pub(super) is_repeated: bool,
}

/// Message as the application received it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Got {
    pub(super) name: Name,
    pub(super) qos: QoS,
    pub(super) connection: u32,
    pub(super) stream: StreamKey,
}

/// A subscription, with an identity of its own for as long as it exists, on whichever stream it is bound.
#[derive(Clone, Debug)]
struct Subscription {
    number: u32,
    filter: &'static str,
    qos: QoS,
    stream: StreamKey,
    is_bound: bool,
}

/// A filter that is subscribed without interruption.
#[derive(Clone, Copy, Debug)]
struct Hold {
    number: u32,
    /// The lowest QoS of all its subscriptions.
    qos: QoS,
}

/// Deliveries of one message that the broker may or must make.
#[derive(Debug)]
struct Expected {
    /// Every subscription that may have caused a copy.
    subscriptions: BTreeSet<u32>,
    /// The copies, if no subscription changed while the broker may have dispatched the message.
    copies: Option<Vec<QoS>>,
    /// The only subscription that caused a copy, and the number of moves of subscriptions by then.
    single: Option<(u32, u32)>,
    holds: Vec<(&'static str, u32)>,
    at_least_once: bool,
    topic: usize,
    changes: u32,
    moves: u32,
    was_moving: bool,
    /// The publisher does not know yet that the broker has received it.
    is_open: bool,
}

/// The subscriptions of a session, and the deliveries that follow from them. [BQ-16], [BQ-42], [BQ-43]
#[derive(Debug, Default)]
pub(super) struct DeliveryModel {
    subscriptions: Vec<Subscription>,
    holds: BTreeMap<&'static str, Hold>,
    next_number: u32,
    /// Number of changes of the subscription of a filter, begun ones included.
    changes: BTreeMap<&'static str, u32>,
    /// Number of moves of a subscription from stream to stream, begun ones included.
    moves: u32,
    /// Streams that are ending, and connections.
    moving: u32,
    expected: BTreeMap<Name, Expected>,
    pub(super) got: Vec<Got>,
}

fn matches(text: &str, to: usize) -> bool {
    filter(text).matches(&topic(TOPICS[to]))
}

impl DeliveryModel {
    // -- Subscriptions -----------------------------------------------------------------------------

    pub(super) fn has(&self, text: &str) -> bool {
        self.subscriptions.iter().any(|one| one.filter == text)
    }

    fn change(&mut self, text: &'static str) {
        *self.changes.entry(text).or_default() += 1;
    }

    fn changes_for(&self, to: usize) -> u32 {
        self.changes.iter().filter(|(text, _)| matches(text, to)).map(|(_, count)| *count).sum()
    }

    /// SUBSCRIBE is sent: from now on copies may be made for it. `open`: the messages that may still come.
    pub(super) fn begin_subscribe(
        &mut self,
        text: &'static str,
        qos: QoS,
        open: impl Iterator<Item = (Name, usize)>,
    ) -> u32 {
        self.change(text);
        if let Some(hold) = self.holds.get_mut(text) {
            hold.qos = hold.qos.min(qos);
        }
        self.next_number += 1;
        let number = self.next_number;
        for (name, _) in open.filter(|(_, to)| matches(text, *to)) {
            let expected = self.expected.entry(name).or_insert_with(Expected::unknown);
            expected.subscriptions.insert(number);
        }
        number
    }

    /// SUBACK has come.
    pub(super) fn subscribed(&mut self, number: u32, stream: StreamKey, text: &'static str, qos: QoS) {
        self.change(text);
        self.moves += 1;
        let is_replaced = |one: &Subscription| {
            one.filter == text && (one.stream == stream || one.stream.is_control() && !one.is_bound)
        };
        self.subscriptions.retain(|one| !is_replaced(one)); // [BQ-43]
        self.subscriptions.push(Subscription { number, filter: text, qos, stream, is_bound: true });
        self.holds.entry(text).or_insert(Hold { number, qos });
    }

    /// UNSUBSCRIBE is sent.
    pub(super) fn begin_unsubscribe(&mut self, text: &'static str) {
        self.change(text);
        self.holds.remove(text);
    }

    /// UNSUBACK has come. [BQ-17]
    pub(super) fn unsubscribed(&mut self, text: &'static str) {
        self.change(text);
        self.subscriptions.retain(|one| one.filter != text);
    }

    /// A stream, or all of them, is about to end.
    pub(super) fn begin_move(&mut self) {
        self.moves += 1;
        self.moving += 1;
    }

    /// The subscriptions of a stream (`None`: of all streams) are on the control stream. [BQ-42]
    pub(super) fn moved(&mut self, ended: Option<StreamKey>) {
        self.moves += 1;
        self.moving -= 1;
        let has_ended = |one: &Subscription| ended.is_none_or(|ended| one.stream == ended);
        for one in self.subscriptions.iter_mut().filter(|one| one.stream.is_control() && has_ended(one)) {
            one.is_bound = false;
        }
        self.subscriptions.sort_by_key(|one| one.stream);
        let mut kept: Vec<Subscription> = Vec::new();
        for mut one in std::mem::take(&mut self.subscriptions) {
            if !one.stream.is_control() && has_ended(&one) {
                let is_same =
                    |other: &&mut Subscription| other.filter == one.filter && other.stream.is_control();
                if let Some(other) = kept.iter_mut().find(is_same) {
                    other.qos = other.qos.max(one.qos);
                    continue;
                }
                (one.stream, one.is_bound) = (CONTROL, false);
            }
            kept.push(one);
        }
        self.subscriptions = kept;
    }

    /// One of the ends that began has become part of another.
    pub(super) fn moved_with_all(&mut self) {
        self.moving -= 1;
    }

    pub(super) fn is_moving(&self) -> bool {
        self.moving > 0
    }

    // -- Messages ----------------------------------------------------------------------------------

    /// A message is published.
    pub(super) fn publish(&mut self, name: Name, publication: &Publication) {
        let matching: Vec<_> =
            self.subscriptions.iter().filter(|one| matches(one.filter, publication.topic)).collect();
        if matching.is_empty() {
            return;
        }
        let mut by_stream: BTreeMap<StreamKey, QoS> = BTreeMap::new();
        for one in &matching {
            let copy = by_stream.entry(one.stream).or_insert(QoS::AtMostOnce);
            *copy = (*copy).max(one.qos.min(publication.qos)); // [MQTT-3.3.4-2], [BQ-16]
        }
        let single = if let [only] = &matching[..] { Some((only.number, self.moves)) } else { None };
        let is_held = |(text, hold): &(&&'static str, &Hold)| {
            matches(text, publication.topic) && hold.qos.min(publication.qos) > QoS::AtMostOnce
        };
        let expected = Expected {
            subscriptions: matching.iter().map(|one| one.number).collect(),
            copies: Some(by_stream.into_values().collect()),
            single,
            holds: self.holds.iter().filter(is_held).map(|(text, hold)| (*text, hold.number)).collect(),
            at_least_once: false,
            changes: self.changes_for(publication.topic),
            topic: publication.topic,
            moves: self.moves,
            was_moving: self.moving > 0,
            is_open: true,
        };
        self.expected.insert(name, expected);
    }

    /// The publisher knows that the broker has received the message.
    pub(super) fn accepted(&mut self, name: Name) {
        let Some(topic) = self.expected.get(&name).map(|expected| expected.topic) else { return };
        let changes = self.changes_for(topic);
        let Some(expected) = self.expected.get_mut(&name).filter(|expected| expected.is_open) else { return };
        expected.is_open = false;
        let has_moved = expected.was_moving || expected.moves != self.moves;
        let is_single = expected.subscriptions.len() <= 1;
        if expected.changes != changes || has_moved && !is_single {
            expected.copies = None;
        }
        if expected.copies.is_none() || has_moved {
            expected.single = None;
        }
        let holds = &self.holds;
        let is_held = |(text, number): &(&'static str, u32)| {
            holds.get(text).is_some_and(|hold| hold.number == *number && hold.qos > QoS::AtMostOnce)
        };
        expected.at_least_once = expected.holds.iter().any(is_held);
    }

    // -- Checks ------------------------------------------------------------------------------------

    /// Checks everything received so far; `is_complete`: no further delivery is expected.
    pub(super) fn check(&self, publications: &BTreeMap<Name, Publication>, is_complete: bool) {
        let mut counts: HashMap<Name, [usize; 3]> = HashMap::new();
        for got in &self.got {
            counts.entry(got.name).or_default()[usize::from(got.qos.bits())] += 1;
        }
        for (name, count) in &counts {
            let expected = self.expected.get(name).filter(|expected| !expected.subscriptions.is_empty());
            let Some(expected) = expected else { panic!("{name:?} came, which was not sent to it") };
            expected.check_most(*name, &publications[name], count);
        }
        if is_complete {
            for (name, expected) in &self.expected {
                let count = counts.get(name).copied().unwrap_or_default();
                expected.check_least(*name, &publications[name], count);
            }
        }
        self.check_order(publications);
    }

    /// Number of messages whose copies are all known, and of all messages.
    pub(super) fn known(&self) -> (usize, usize) {
        (self.expected.values().filter(|expected| expected.known().is_some()).count(), self.expected.len())
    }

    fn check_order(&self, publications: &BTreeMap<Name, Publication>) {
        let mut on_stream = HashMap::new();
        let mut by_subscription = HashMap::new();
        let mut seen = BTreeSet::new();
        for got in &self.got {
            let publication = &publications[&got.name];
            if publication.is_repeated {
                continue;
            }
            let Publication { origin, topic, qos, .. } = *publication;
            // Only new messages are sent on a data stream, in their order. [BQ-54]
            if !got.stream.is_control() {
                let last = on_stream.entry((got.connection, got.stream, origin, topic)).or_insert(0);
                assert!(*last < got.name.number, "{got:?} came behind {last} of {origin:?}");
                *last = got.name.number;
            }
            // A repeated message counts at its first arrival, on any stream. [MQTT-4.6.0-6] A message that is never
            // repeated may be overtaken where its stream has ended.
            let place = (got.qos == QoS::AtMostOnce).then_some((got.connection, got.stream));
            let single = self.expected.get(&got.name).and_then(|expected| expected.single);
            if let (Some(single), true) = (single, seen.insert(got.name)) {
                let last = by_subscription.entry((single, place, origin, topic, qos)).or_insert(0);
                assert!(*last < got.name.number, "{got:?} came behind {last} of {origin:?} for {single:?}");
                *last = got.name.number;
            }
        }
    }
}

impl Expected {
    /// A message that was published before any subscription could cause a copy.
    fn unknown() -> Self {
        Self {
            subscriptions: BTreeSet::new(),
            copies: None,
            single: None,
            holds: Vec::new(),
            at_least_once: false,
            topic: 0,
            changes: 0,
            moves: 0,
            was_moving: true,
            is_open: false,
        }
    }

    /// Number of copies of each QoS, if it is known.
    fn known(&self) -> Option<[usize; 3]> {
        let copies = self.copies.as_ref().filter(|_| !self.is_open)?;
        Some(QOS.map(|qos| copies.iter().filter(|copy| **copy == qos).count()))
    }

    fn check_most(&self, name: Name, publication: &Publication, count: &[usize; 3]) {
        let most = self.known().unwrap_or([self.subscriptions.len(); 3]);
        // A QoS 1 message may be published twice, with copies each time.
        let is_doubled = publication.qos == QoS::AtLeastOnce && publication.is_repeated;
        assert!(count[0] <= most[0] || is_doubled && most[0] > 0, "{count:?} of {name:?}: {self:?}");
        assert!(count[1] == 0 || most[1] > 0, "{count:?} of {name:?}: {self:?}"); // [MQTT-3.8.4-8]
        assert!(count[2] <= most[2], "{count:?} of {name:?}: {self:?}"); // [MQTT-4.3.3-10]
        let highest = count.iter().rposition(|count| *count > 0).unwrap_or(0);
        assert!(highest <= usize::from(publication.qos.bits()), "{count:?} of {name:?}: {publication:?}");
    }

    fn check_least(&self, name: Name, publication: &Publication, count: [usize; 3]) {
        if publication.qos == QoS::AtMostOnce {
            return;
        }
        assert!(!self.is_open, "{name:?} was never acknowledged");
        match self.known() {
            Some(known) => {
                let is_right = count[1] >= known[1] && count[2] == known[2];
                assert!(is_right, "{count:?} of {known:?} copies of {name:?}: {self:?}");
            }
            None => {
                let is_right = !self.at_least_once || count[1] + count[2] > 0;
                assert!(is_right, "nothing of {name:?} came: {self:?}");
            }
        }
    }
}
