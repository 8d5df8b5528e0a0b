//! The oracle's books: what was published, what was acknowledged, and what came to whom.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use braid_proto::stream::StreamKey;
use serde::Serialize;

/// Faults that are told in words; all are counted.
const TOLD: usize = 20;

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReaderId(usize);

/// Where order is promised: one connection of a reader, and one stream of it.
pub(crate) type Place = (u64, StreamKey);

/// What happened so far, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// CONNACK.
    pub(crate) connected: u64,
    /// Messages that were sent for the first time.
    pub(crate) published: u64,
    pub(crate) puback: u64,
    pub(crate) pubrec: u64,
    pub(crate) pubcomp: u64,
    pub(crate) suback: u64,
    pub(crate) unsuback: u64,
    /// Wills of connections that ended without DISCONNECT.
    pub(crate) wills: u64,
    /// Looks of a new client at all retained messages.
    pub(crate) retained_looks: u64,
    /// Messages that came to a reader for the first time.
    pub(crate) delivered: u64,
    /// Messages of QoS 1 that came to a reader again, which they may.
    pub(crate) repeated: u64,
    #[serde(flatten)]
    pub(crate) faults: Faults,
}

/// Promises that were broken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Faults {
    /// Acknowledged, and not delivered to a reader: one for each reader.
    pub(crate) lost: u64,
    /// QoS 2, and delivered again.
    pub(crate) duplicates: u64,
    /// Delivered behind a later one of its topic and lane.
    pub(crate) disordered: u64,
    /// Not what was published.
    pub(crate) corrupted: u64,
    /// Sessions of which the server knew nothing.
    pub(crate) forgotten: u64,
    /// Retained messages that are missing, older than acknowledged, or were removed.
    pub(crate) stale: u64,
    /// Messages that were not to come: unsubscribed, or of a Will whose time is not there.
    pub(crate) uncalled: u64,
    /// Requests that got no answer, or a refusal.
    pub(crate) unanswered: u64,
}

impl Faults {
    /// All of them.
    pub(crate) fn sum(&self) -> u64 {
        let Self { lost, duplicates, disordered, corrupted, forgotten, stale, uncalled, unanswered } = self;
        lost + duplicates + disordered + corrupted + forgotten + stale + uncalled + unanswered
    }
}

/// What a topic is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Messages of QoS 1.
    AtLeastOnce,
    /// Messages of QoS 2.
    ExactlyOnce,
    /// Wills of QoS 2: acknowledged once their connection has ended, and delivered some time later.
    Will,
}

#[derive(Debug)]
struct Topic {
    kind: Use,
    /// The number of the next message.
    next: u64,
    /// Sent, and not acknowledged.
    open: BTreeSet<u64>,
    /// It is not known whether the broker took them.
    doubtful: BTreeSet<u64>,
}

#[derive(Debug)]
struct Reader {
    name: String,
    /// How its topics begin.
    prefixes: Vec<String>,
    is_away: bool,
    progress: HashMap<String, Progress>,
}

/// What a reader has of a topic.
#[derive(Debug, Default)]
struct Progress {
    /// Everything below has come, but for `missing`.
    next: u64,
    missing: BTreeSet<u64>,
    /// The latest that came at each place.
    latest: HashMap<Place, u64>,
}

/// What was promised, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    topics: BTreeMap<String, Topic>,
    readers: Vec<Reader>,
    pub(crate) counts: Counts,
    told: Vec<String>,
}

impl Ledger {
    // -- Getters -----------------------------------------------------------------------------------

    /// The first faults, in words.
    pub(crate) fn told(&self) -> &[String] {
        &self.told
    }

    /// The number of the topic's next message.
    pub(crate) fn next(&self, topic: &str) -> u64 {
        self.topics.get(topic).map_or(0, |topic| topic.next)
    }

    /// Messages that were sent and are not acknowledged, without Wills.
    pub(crate) fn unanswered(&self) -> usize {
        let asks = self.topics.values().filter(|topic| topic.kind != Use::Will);
        asks.map(|topic| topic.open.len()).sum()
    }

    /// What was promised to readers who are there and has not come: reader, topic and number. Wills, which take their
    /// time, only if wanted.
    pub(crate) fn missing(&self, with_wills: bool) -> Vec<(ReaderId, String, u64)> {
        let mut missing = Vec::new();
        for (at, reader) in self.readers.iter().enumerate().filter(|(_, reader)| !reader.is_away) {
            for (name, topic) in self.topics.iter().filter(|(name, _)| reader.wants(name)) {
                if topic.kind == Use::Will && !with_wills {
                    continue;
                }
                let has = reader.progress.get(name);
                let gaps = has.into_iter().flat_map(|has| has.missing.iter().copied());
                let rest = has.map_or(0, |has| has.next)..topic.next;
                let due = gaps.chain(rest).filter(|number| topic.is_due(*number));
                missing.extend(due.map(|number| (ReaderId(at), name.clone(), number)));
            }
        }
        missing
    }

    /// Whether everything is answered and has come. With Wills, also that nobody is away.
    pub(crate) fn is_settled(&self, with_wills: bool) -> bool {
        self.unanswered() == 0
            && !(with_wills && self.readers.iter().any(|reader| reader.is_away))
            && (0..self.readers.len()).all(|at| self.readers[at].is_away || self.has_whole(at, with_wills))
    }

    fn has_whole(&self, reader: usize, with_wills: bool) -> bool {
        let wanted = self.topics.iter().filter(|(name, topic)| {
            (with_wills || topic.kind != Use::Will) && self.readers[reader].wants(name)
        });
        wanted.into_iter().all(|(name, _)| self.has_all(ReaderId(reader), name))
    }

    /// Whether a reader who is there has not got all of this topic.
    pub(crate) fn is_missed(&self, topic: &str) -> bool {
        let there =
            self.readers.iter().enumerate().filter(|(_, reader)| !reader.is_away && reader.wants(topic));
        there.into_iter().any(|(at, _)| !self.has_all(ReaderId(at), topic))
    }

    /// Whether this reader has everything of this topic that was acknowledged.
    pub(crate) fn has_all(&self, reader: ReaderId, topic: &str) -> bool {
        let has = self.readers[reader.0].progress.get(topic);
        let Some(topic) = self.topics.get(topic) else { return true };
        let next = has.map_or(0, |has| has.next);
        (next..topic.next).all(|number| !topic.is_due(number))
            && has.is_none_or(|has| has.missing.iter().all(|number| !topic.is_due(*number)))
    }

    // -- What is promised --------------------------------------------------------------------------

    pub(crate) fn add_topic(&mut self, name: &str, kind: Use) {
        let topic = Topic { kind, next: 0, open: BTreeSet::new(), doubtful: BTreeSet::new() };
        self.topics.insert(name.to_owned(), topic);
    }

    /// Nothing will come on it any more.
    pub(crate) fn end_topic(&mut self, name: &str) {
        self.topics.remove(name);
        for reader in &mut self.readers {
            reader.progress.remove(name);
        }
    }

    pub(crate) fn add_reader(&mut self, name: &str, prefixes: &[&str]) -> ReaderId {
        let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        let reader = Reader { name: name.to_owned(), prefixes, is_away: false, progress: HashMap::new() };
        self.readers.push(reader);
        ReaderId(self.readers.len() - 1)
    }

    /// Nothing is missed at a reader who is away.
    pub(crate) fn set_away(&mut self, reader: ReaderId, is_away: bool) {
        self.readers[reader.0].is_away = is_away;
    }

    /// The next message of the topic was sent.
    pub(crate) fn sent(&mut self, topic: &str) {
        self.counts.published += 1;
        self.begin(topic);
    }

    /// As [`Ledger::sent`] of a message that nobody counts yet: a Will.
    pub(crate) fn begin(&mut self, topic: &str) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.insert(topic.next);
            topic.next += 1;
        }
    }

    /// From now on the message must come to everybody.
    pub(crate) fn acknowledged(&mut self, topic: &str, number: u64) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.remove(&number);
        }
    }

    /// The message may come, and need not.
    pub(crate) fn doubted(&mut self, topic: &str, number: u64) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.remove(&number);
            topic.doubtful.insert(number);
        }
    }

    // -- What comes --------------------------------------------------------------------------------

    /// A message came to a reader; `place` is `None` where order is not promised.
    pub(crate) fn delivered(&mut self, reader: ReaderId, name: &str, number: u64, place: Option<Place>) {
        let who = &mut self.readers[reader.0];
        let topic = self.topics.get(name).filter(|topic| number < topic.next && who.wants(name));
        let Some(topic) = topic else {
            let line = format!("{} got {name} {number}, which it must not", who.name);
            self.counts.faults.uncalled += 1;
            return self.tell(line);
        };
        let progress = who.progress.entry(name.to_owned()).or_default();
        if !progress.take(number) {
            if topic.kind == Use::AtLeastOnce {
                self.counts.repeated += 1;
                return;
            }
            let line = format!("{} got {name} {number} of QoS 2 again", who.name);
            self.counts.faults.duplicates += 1;
            return self.tell(line);
        }
        self.counts.delivered += 1;
        let Some(place) = place else { return };
        let latest = progress.latest.insert(place, number);
        if let Some(latest) = latest.filter(|latest| *latest > number) {
            progress.latest.insert(place, latest);
            let (connection, stream) = (place.0, place.1.index());
            let line = format!(
                "{} got {name} {number} behind {latest} on stream {stream} of connection {connection}",
                who.name
            );
            self.counts.faults.disordered += 1;
            self.tell(line);
        }
    }

    /// A connection of a reader has ended: nothing more comes at its places.
    pub(crate) fn forget_places(&mut self, reader: ReaderId) {
        self.readers[reader.0].progress.values_mut().for_each(|progress| progress.latest.clear());
    }

    /// What is missing now is lost; it is not missed a second time.
    pub(crate) fn write_off(&mut self, with_wills: bool) {
        for (reader, topic, number) in self.missing(with_wills) {
            self.counts.faults.lost += 1;
            let who = &mut self.readers[reader.0];
            who.progress.entry(topic.clone()).or_default().take(number);
            let line = format!("{} has lost {topic} {number}", who.name);
            self.tell(line);
        }
        let open: Vec<_> = self.topics.iter().filter(|(_, topic)| topic.kind != Use::Will).collect();
        let open: Vec<_> = open.iter().filter(|(_, topic)| !topic.open.is_empty()).collect();
        let lines: Vec<_> =
            open.iter().map(|(name, topic)| format!("{name} has no answer to {:?}", topic.open)).collect();
        self.counts.faults.unanswered += self.unanswered() as u64;
        lines.into_iter().for_each(|line| self.tell(line));
    }

    /// Says what is wrong, unless enough was said. Whoever says it has counted it.
    pub(crate) fn tell(&mut self, line: String) {
        if self.told.len() < TOLD {
            self.told.push(line);
        }
    }
}

impl Topic {
    fn is_due(&self, number: u64) -> bool {
        !self.open.contains(&number) && !self.doubtful.contains(&number)
    }
}

impl Reader {
    fn wants(&self, topic: &str) -> bool {
        self.prefixes.iter().any(|prefix| topic.starts_with(prefix.as_str()))
    }
}

impl Progress {
    /// False: it has come before.
    fn take(&mut self, number: u64) -> bool {
        if number < self.next {
            return self.missing.remove(&number);
        }
        self.missing.extend(self.next..number);
        self.next = number + 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Option<Place> = Some((1, StreamKey::CONTROL));

    /// One topic with so many acknowledged messages, and one reader.
    fn ledger(kind: Use, messages: u64) -> (Ledger, ReaderId) {
        let mut ledger = Ledger::default();
        ledger.add_topic("m/1", kind);
        let reader = ledger.add_reader("reader", &["m/"]);
        for number in 0..messages {
            ledger.sent("m/1");
            ledger.acknowledged("m/1", number);
        }
        (ledger, reader)
    }

    fn faults(ledger: &mut Ledger) -> Faults {
        ledger.write_off(true);
        ledger.counts.faults.clone()
    }

    #[test]
    fn nothing_is_wrong_when_all_came_in_order() {
        let (mut ledger, reader) = ledger(Use::ExactlyOnce, 3);
        assert!(!ledger.has_all(reader, "m/1"));
        (0..3).for_each(|number| ledger.delivered(reader, "m/1", number, HERE));
        assert!(ledger.has_all(reader, "m/1"));
        assert_eq!(faults(&mut ledger), Faults::default());
        assert_eq!(ledger.counts.delivered, 3);
    }

    #[test]
    fn what_was_acknowledged_and_did_not_come_is_lost_once() {
        let (mut ledger, reader) = ledger(Use::AtLeastOnce, 4);
        [0, 2].into_iter().for_each(|number| ledger.delivered(reader, "m/1", number, HERE));
        assert_eq!(faults(&mut ledger), Faults { lost: 2, ..Faults::default() });
        assert_eq!(faults(&mut ledger).lost, 2);
        assert_eq!(ledger.told(), ["reader has lost m/1 1", "reader has lost m/1 3"]);
    }

    #[test]
    fn what_was_not_acknowledged_is_no_loss_but_has_no_answer() {
        let (mut ledger, reader) = ledger(Use::AtLeastOnce, 0);
        ledger.sent("m/1");
        assert!(ledger.has_all(reader, "m/1"));
        assert_eq!(faults(&mut ledger), Faults { unanswered: 1, ..Faults::default() });
        assert!(ledger.told()[0].contains("{0}"), "{:?}", ledger.told());
    }

    #[test]
    fn a_reader_who_is_away_misses_nothing_until_it_is_back() {
        let (mut ledger, reader) = ledger(Use::ExactlyOnce, 1);
        ledger.set_away(reader, true);
        assert!(ledger.missing(true).is_empty());
        ledger.set_away(reader, false);
        assert_eq!(ledger.missing(true).len(), 1);
    }

    #[test]
    fn only_qos_1_may_come_again() {
        for (kind, duplicates, repeated) in [(Use::AtLeastOnce, 0, 1), (Use::ExactlyOnce, 1, 0)] {
            let (mut ledger, reader) = ledger(kind, 2);
            [0, 1, 0].into_iter().for_each(|number| ledger.delivered(reader, "m/1", number, HERE));
            assert_eq!(faults(&mut ledger), Faults { duplicates, ..Faults::default() });
            assert_eq!(ledger.counts.repeated, repeated);
        }
    }

    #[test]
    fn order_is_promised_within_a_place() {
        let other = Some((1, StreamKey::bidi(1)));
        for (place, disordered) in [(HERE, 1), (other, 0), (None, 0)] {
            let (mut ledger, reader) = ledger(Use::ExactlyOnce, 2);
            ledger.delivered(reader, "m/1", 1, HERE);
            ledger.delivered(reader, "m/1", 0, place);
            assert_eq!(faults(&mut ledger), Faults { disordered, ..Faults::default() });
        }
    }

    #[test]
    fn what_was_never_sent_and_what_is_not_wanted_is_uncalled() {
        let (mut ledger, reader) = ledger(Use::ExactlyOnce, 1);
        ledger.add_topic("n/1", Use::ExactlyOnce);
        ledger.sent("n/1");
        ledger.delivered(reader, "m/1", 1, HERE);
        ledger.delivered(reader, "n/1", 0, HERE);
        ledger.delivered(reader, "m/2", 0, HERE);
        assert_eq!(ledger.counts.faults.uncalled, 3);
    }

    #[test]
    fn a_will_is_due_when_its_connection_has_ended_and_only_if_it_was_taken() {
        let (mut ledger, reader) = ledger(Use::Will, 0);
        ledger.begin("m/1");
        assert!(ledger.missing(true).is_empty());
        ledger.doubted("m/1", 0);
        ledger.begin("m/1");
        ledger.acknowledged("m/1", 1);
        assert!(ledger.missing(false).is_empty());
        assert_eq!(ledger.missing(true), [(reader, "m/1".to_owned(), 1)]);
        ledger.delivered(reader, "m/1", 0, HERE);
        ledger.delivered(reader, "m/1", 1, HERE);
        assert_eq!(faults(&mut ledger), Faults::default());
    }
}
