//! The oracle's books: what was published, what was acknowledged, and what came to whom.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use serde::Serialize;

use crate::terms::{Came, Lives, Moment, Overflow, Terms};

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
    /// Large messages that were acknowledged.
    pub(crate) large: u64,
    /// Connections that ended in the middle of a large message.
    pub(crate) cut: u64,
    /// Messages that a reader need not get any more, since they have expired.
    pub(crate) expired: u64,
    /// The same, since they did not fit into its queue.
    pub(crate) displaced: u64,
    #[serde(flatten)]
    pub(crate) faults: Faults,
}

impl Counts {
    /// Without what only tries: whoever connects again and again, and is refused each time, gets nowhere.
    pub(crate) fn progress(&self) -> Self {
        Self { connected: 0, cut: 0, wills: 0, retained_looks: 0, ..self.clone() }
    }
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
    /// Messages that had expired before they were sent to a reader.
    pub(crate) outlived: u64,
    /// More came from a queue than it may hold.
    pub(crate) overfull: u64,
}

impl Faults {
    /// All of them.
    pub(crate) fn sum(&self) -> u64 {
        let Self { lost, duplicates, disordered, corrupted, forgotten, stale, .. } = self;
        let Self { uncalled, unanswered, outlived, overfull, .. } = self;
        let broken = lost + duplicates + disordered + corrupted + forgotten + stale;
        broken + uncalled + unanswered + outlived + overfull
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
    terms: Terms,
    /// Of topics that have terms.
    lives: Lives,
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
    /// When it began to connect.
    connected: Moment,
    /// What had waited for that connection and came on it, of topics whose queue has a cap.
    waited: u64,
    progress: HashMap<String, Progress>,
}

/// A message as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) number: u64,
    /// `None` where order is not promised.
    pub(crate) place: Option<Place>,
    /// The server may have sent it before.
    pub(crate) dup: bool,
}

/// What a reader has of a topic.
#[derive(Debug, Default)]
struct Progress {
    /// Everything below has come, but for `missing`.
    next: u64,
    missing: BTreeSet<u64>,
    /// Missing, and nobody waits for them any more.
    excused: BTreeSet<u64>,
    /// The latest that came at each place.
    latest: HashMap<Place, u64>,
    /// Of topics that have terms.
    came: Came,
}

/// What was promised, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    topics: BTreeMap<String, Topic>,
    readers: Vec<Reader>,
    pub(crate) counts: Counts,
    told: Vec<String>,
    now: Moment,
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
                let nothing = Progress::default();
                let due = self.due(topic, reader.progress.get(name).unwrap_or(&nothing)).collect::<Vec<_>>();
                missing.extend(due.into_iter().map(|number| (ReaderId(at), name.clone(), number)));
            }
        }
        missing
    }

    /// What of a topic must still come to a reader who has this of it.
    fn due<'a>(&'a self, topic: &'a Topic, has: &'a Progress) -> impl Iterator<Item = u64> + 'a {
        let rest = has.missing.iter().copied().chain(has.next..topic.next);
        let is_due = move |number: &u64| topic.is_due(*number) && !topic.excuses(*number, has, self.now);
        rest.filter(is_due)
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
        let nothing = Progress::default();
        let has = self.readers[reader.0].progress.get(topic).unwrap_or(&nothing);
        self.topics.get(topic).is_none_or(|topic| self.due(topic, has).next().is_none())
    }

    // -- What is promised --------------------------------------------------------------------------

    /// It is so late now. Whatever comes into the books comes at a moment of its own.
    pub(crate) fn set_now(&mut self, at: Duration) {
        self.now = Moment { turn: self.now.turn + 1, at };
    }

    pub(crate) fn add_topic(&mut self, name: &str, kind: Use) {
        self.add_topic_with(name, kind, Terms::Whole);
    }

    /// As [`Ledger::add_topic`], of which something may be missing.
    pub(crate) fn add_topic_with(&mut self, name: &str, kind: Use, terms: Terms) {
        let (open, doubtful) = (BTreeSet::new(), BTreeSet::new());
        let topic = Topic { kind, terms, lives: Lives::default(), next: 0, open, doubtful };
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
        let (name, connected, progress) = (name.to_owned(), Moment::default(), HashMap::new());
        self.readers.push(Reader { name, prefixes, is_away: false, connected, waited: 0, progress });
        ReaderId(self.readers.len() - 1)
    }

    /// Nothing is missed at a reader who is away.
    pub(crate) fn set_away(&mut self, reader: ReaderId, is_away: bool) {
        self.readers[reader.0].is_away = is_away;
    }

    /// The reader begins to connect.
    pub(crate) fn connecting(&mut self, reader: ReaderId) {
        let reader = &mut self.readers[reader.0];
        (reader.connected, reader.waited) = (self.now, 0);
    }

    /// The next message of the topic was sent.
    pub(crate) fn sent(&mut self, topic: &str) {
        self.sent_for(topic, None);
    }

    /// The same of one that expires, if it does.
    pub(crate) fn sent_for(&mut self, topic: &str, expiry: Option<Duration>) {
        self.counts.published += 1;
        self.begin_for(topic, expiry);
    }

    /// As [`Ledger::sent`] of a message that nobody counts yet: a Will.
    pub(crate) fn begin(&mut self, topic: &str) {
        self.begin_for(topic, None);
    }

    fn begin_for(&mut self, topic: &str, expiry: Option<Duration>) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.insert(topic.next);
            topic.next += 1;
            if topic.terms != Terms::Whole {
                topic.lives.begin(self.now, expiry);
            }
        }
    }

    /// From now on the message must come to everybody.
    pub(crate) fn acknowledged(&mut self, topic: &str, number: u64) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.open.remove(&number);
            topic.lives.acknowledge(number, self.now);
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

    /// A message came to a reader.
    pub(crate) fn delivered(&mut self, reader: ReaderId, name: &str, arrival: Arrival) {
        let number = arrival.number;
        let who = &mut self.readers[reader.0];
        let topic = self.topics.get(name).filter(|topic| number < topic.next && who.wants(name));
        let Some(topic) = topic else {
            let line = format!("{} got {name} {number}, which it must not", who.name);
            self.counts.faults.uncalled += 1;
            return self.tell(line);
        };
        let progress = who.progress.entry(name.to_owned()).or_default();
        // What was sent again is there twice, and the second of them lives longer, behind what came after the first.
        let is_second = topic.kind == Use::AtLeastOnce && progress.excused.contains(&number);
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
        if topic.terms != Terms::Whole {
            progress.came.insert(number, self.now);
            let excused = progress.excuse(topic, self.now);
            match topic.terms {
                Terms::Expires => self.counts.expired += excused,
                _ => self.counts.displaced += excused,
            }
            self.check_terms(reader, name, arrival);
        }
        if !is_second {
            self.check_order(reader, name, arrival);
        }
    }

    /// Whether something came that must not: its time was over, or it is more than a queue may hold.
    fn check_terms(&mut self, reader: ReaderId, name: &str, arrival: Arrival) {
        let Some(Topic { terms, lives, .. }) = self.topics.get(name) else { return };
        let who = &mut self.readers[reader.0];
        let waited = lives.waited(arrival.number, who.connected);
        match *terms {
            Terms::Whole => {}
            Terms::Expires => {
                if !arrival.dup && lives.had_expired(arrival.number, who.connected) {
                    let line = format!("{} got {name} {}, which had expired", who.name, arrival.number);
                    self.counts.faults.outlived += 1;
                    self.tell(line);
                }
            }
            // The others keep what was acknowledged, were it too much, when the broker starts: something that was refused
            // may not have left the store before that.
            Terms::Capped(cap) if cap.overflow == Overflow::DropOldest && waited => {
                who.waited += 1;
                if who.waited == cap.messages + cap.inflight + 1 {
                    let line = format!("{} got {} of {name} that had waited", who.name, who.waited);
                    self.counts.faults.overfull += 1;
                    self.tell(line);
                }
            }
            Terms::Capped(_) => {}
        }
    }

    /// Whether something came behind a later one.
    fn check_order(&mut self, reader: ReaderId, name: &str, arrival: Arrival) {
        let Arrival { number, place: Some(place), .. } = arrival else { return };
        let who = &mut self.readers[reader.0];
        let progress = who.progress.entry(name.to_owned()).or_default();
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

    /// Whether a reader who has this of it need not get the message.
    fn excuses(&self, number: u64, has: &Progress, now: Moment) -> bool {
        self.lives.may_be_missing(self.terms, number, &has.came, now)
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
            return self.missing.remove(&number) || self.excused.remove(&number);
        }
        self.missing.extend(self.next..number);
        self.next = number + 1;
        true
    }

    /// Nobody waits any more for what need not come; how many these are.
    fn excuse(&mut self, topic: &Topic, now: Moment) -> u64 {
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
    use super::*;
    use crate::terms::Cap;

    const HERE: Option<Place> = Some((1, StreamKey::CONTROL));

    /// It came for the first time.
    fn came(number: u64, place: Option<Place>) -> Arrival {
        Arrival { number, place, dup: false }
    }

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
        (0..3).for_each(|number| ledger.delivered(reader, "m/1", came(number, HERE)));
        assert!(ledger.has_all(reader, "m/1"));
        assert_eq!(faults(&mut ledger), Faults::default());
        assert_eq!(ledger.counts.delivered, 3);
    }

    #[test]
    fn who_is_refused_again_and_again_gets_nowhere() {
        let (mut ledger, reader) = ledger(Use::AtLeastOnce, 1);
        let before = ledger.counts.progress();
        ledger.counts.connected += 1;
        ledger.counts.cut += 1;
        assert_eq!(ledger.counts.progress(), before);
        ledger.delivered(reader, "m/1", came(0, HERE));
        assert_ne!(ledger.counts.progress(), before);
    }

    #[test]
    fn what_was_acknowledged_and_did_not_come_is_lost_once() {
        let (mut ledger, reader) = ledger(Use::AtLeastOnce, 4);
        [0, 2].into_iter().for_each(|number| ledger.delivered(reader, "m/1", came(number, HERE)));
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
            [0, 1, 0].into_iter().for_each(|number| ledger.delivered(reader, "m/1", came(number, HERE)));
            assert_eq!(faults(&mut ledger), Faults { duplicates, ..Faults::default() });
            assert_eq!(ledger.counts.repeated, repeated);
        }
    }

    #[test]
    fn order_is_promised_within_a_place() {
        let other = Some((1, StreamKey::bidi(1)));
        for (place, disordered) in [(HERE, 1), (other, 0), (None, 0)] {
            let (mut ledger, reader) = ledger(Use::ExactlyOnce, 2);
            ledger.delivered(reader, "m/1", came(1, HERE));
            ledger.delivered(reader, "m/1", came(0, place));
            assert_eq!(faults(&mut ledger), Faults { disordered, ..Faults::default() });
        }
    }

    #[test]
    fn what_was_never_sent_and_what_is_not_wanted_is_uncalled() {
        let (mut ledger, reader) = ledger(Use::ExactlyOnce, 1);
        ledger.add_topic("n/1", Use::ExactlyOnce);
        ledger.sent("n/1");
        ledger.delivered(reader, "m/1", came(1, HERE));
        ledger.delivered(reader, "n/1", came(0, HERE));
        ledger.delivered(reader, "m/2", came(0, HERE));
        assert_eq!(ledger.counts.faults.uncalled, 3);
    }

    /// So many messages on one topic with these terms, of which each lives for two seconds, and one reader.
    fn ledger_with(terms: Terms, messages: u64) -> (Ledger, ReaderId) {
        let mut ledger = Ledger::default();
        ledger.add_topic_with("q/1", Use::ExactlyOnce, terms);
        let reader = ledger.add_reader("reader", &["q/"]);
        for number in 0..messages {
            ledger.set_now(Duration::ZERO);
            ledger.sent_for("q/1", Some(Duration::from_secs(2)));
            ledger.acknowledged("q/1", number);
        }
        (ledger, reader)
    }

    fn deliver(ledger: &mut Ledger, reader: ReaderId, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            ledger.set_now(ledger.now.at);
            ledger.delivered(reader, "q/1", came(number, HERE));
        }
    }

    fn capped(overflow: Overflow) -> Terms {
        Terms::Capped(Cap { overflow, messages: 3, inflight: 1 })
    }

    #[test]
    fn what_a_queue_had_no_room_for_is_not_lost_and_not_waited_for() {
        for (overflow, kept, displaced) in [(Overflow::DropOldest, 2..5, 2), (Overflow::DropNewest, 0..3, 0)]
        {
            let (mut ledger, reader) = ledger_with(capped(overflow), 5);
            assert!(!ledger.is_settled(true));
            deliver(&mut ledger, reader, kept);
            assert!(ledger.is_settled(true), "{overflow:?}");
            assert_eq!((faults(&mut ledger), ledger.counts.displaced), (Faults::default(), displaced));
        }
    }

    #[test]
    fn what_a_queue_had_room_for_is_lost() {
        for (overflow, kept, lost) in [(Overflow::DropOldest, 3..5, 1), (Overflow::DropNewest, 0..2, 3)] {
            let (mut ledger, reader) = ledger_with(capped(overflow), 5);
            deliver(&mut ledger, reader, kept);
            assert_eq!(faults(&mut ledger), Faults { lost, ..Faults::default() }, "{overflow:?}");
        }
    }

    #[test]
    fn what_was_displaced_may_come_late_and_only_once() {
        let (mut ledger, reader) = ledger_with(capped(Overflow::DropNewest), 5);
        deliver(&mut ledger, reader, [0, 1, 2, 4]);
        assert_eq!(ledger.counts.displaced, 1);
        ledger.forget_places(reader);
        deliver(&mut ledger, reader, [3, 3]);
        assert_eq!(faults(&mut ledger), Faults { duplicates: 1, ..Faults::default() });
    }

    #[test]
    fn the_second_of_what_was_sent_twice_may_come_when_the_first_has_expired() {
        for (kind, disordered) in [(Use::AtLeastOnce, 0), (Use::ExactlyOnce, 1)] {
            let (mut ledger, reader) = ledger_with(Terms::Expires, 0);
            ledger.add_topic_with("q/1", kind, Terms::Expires);
            for number in 0..2 {
                ledger.sent_for("q/1", Some(Duration::from_secs(2)));
                ledger.acknowledged("q/1", number);
            }
            ledger.set_now(Duration::from_secs(3));
            deliver(&mut ledger, reader, [1, 0]);
            assert_eq!(faults(&mut ledger), Faults { disordered, ..Faults::default() }, "{kind:?}");
        }
    }

    #[test]
    fn a_queue_must_not_hold_more_than_its_cap() {
        for (first, overfull) in [(1, 0), (0, 1)] {
            let (mut ledger, reader) = ledger_with(capped(Overflow::DropOldest), 5);
            ledger.set_now(Duration::ZERO);
            ledger.connecting(reader);
            deliver(&mut ledger, reader, first..5);
            assert_eq!(faults(&mut ledger).overfull, overfull, "from {first} on");
        }
    }

    #[test]
    fn what_expired_while_its_reader_was_away_is_not_lost_and_must_not_come() {
        for (second, dup, outlived) in [(1, false, 0), (3, false, 1), (3, true, 0)] {
            let (mut ledger, reader) = ledger_with(Terms::Expires, 2);
            ledger.set_now(Duration::from_secs(second));
            ledger.connecting(reader);
            ledger.delivered(reader, "q/1", Arrival { dup, ..came(1, HERE) });
            let (lost, expired) = if second < 2 { (1, 0) } else { (0, 1) };
            let expected = Faults { lost, outlived, ..Faults::default() };
            assert_eq!((faults(&mut ledger), ledger.counts.expired), (expected, expired), "{second} {dup}");
        }
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
        ledger.delivered(reader, "m/1", came(0, HERE));
        ledger.delivered(reader, "m/1", came(1, HERE));
        assert_eq!(faults(&mut ledger), Faults::default());
    }
}
