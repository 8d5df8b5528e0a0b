//! Sessions that this node has: their state as their record will have it, and the writes that are due.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::SystemTime;

use braid_proto::packet::{ClientId, PacketId, QoS, Will};
use braid_proto::session::SessionExpiry;
use braid_proto::topic::TopicFilter;
use braid_store::{
    Claim, Completer, Lsn, QueueEntry, RecoveredSession, SessionId, SessionRecord, StoredDelivery,
    StoredSubscription,
};

use crate::commit::CommitPart;
use crate::layout::Layout;
use crate::progress::{Checkpoint, Progress};
use crate::record::{Record, RecordedDelivery, RecordedSubscription, RecordedWill, millis};

/// Revision of a record: the sequence number of its last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revision {
    Known(u64),
    /// To be read: that of a new session.
    Unread,
}

/// Entry of the queue of a session.
#[derive(Clone, Debug)]
struct Queued {
    entry: QueueEntry,
    /// Order of the entries in flight.
    step: u64,
}

/// Shared subscription by which a message came, and the number of the message.
pub(crate) type SharedMessage = (Arc<TopicFilter>, Lsn);

/// Stage of a session at this node.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Claimed for the broker, which is about to have it.
    Taken,
    Connected,
    /// Given back by the broker.
    Parked,
}

/// Session of this node.
#[derive(Debug)]
pub(crate) struct OwnSession {
    pub(crate) client_id: ClientId,
    pub(crate) revision: Revision,
    pub(crate) claim: Claim,
    identity: Option<Arc<str>>,
    expiry: SessionExpiry,
    parked_at: Option<SystemTime>,
    stage: Stage,
    subscriptions: BTreeMap<TopicFilter, (StoredSubscription, Arc<[u64]>)>,
    will: Option<Arc<Will>>,
    queue: BTreeMap<Lsn, Queued>,
    /// Entries of the queue that came by shared subscriptions.
    shared: HashMap<Lsn, SharedMessage>,
    progress: Vec<Progress>,
    /// Progress as it was found, until the messages behind it are queued here.
    found: Option<Vec<Checkpoint>>,
    /// Index of the shard of each open exchange of QoS 2.
    received: BTreeMap<PacketId, Vec<usize>>,
    /// Exchanges as they were when nothing was being appended: the messages of all of them are in the log.
    decided: BTreeMap<PacketId, Vec<usize>>,
    next_step: u64,
    pub(crate) write: WriteState,
    /// Another node has the session.
    pub(crate) is_lost: bool,
}

/// Writes of the record of a session.
#[derive(Debug, Default)]
pub(crate) struct WriteState {
    /// The record has changed since it was written.
    pub(crate) is_due: bool,
    pub(crate) is_running: bool,
    /// The record has to wait for messages that are being appended.
    pub(crate) holds: bool,
    /// Batches of messages that are being appended.
    pub(crate) appending: usize,
    /// The session ends with the next write.
    pub(crate) ends: bool,
    /// Commits that wait for the next write.
    pub(crate) waiters: Vec<CommitPart>,
    /// Claims to the session of the client, which wait for the end of this one.
    pub(crate) claims: Vec<Completer<Claim>>,
    /// Number of the last write.
    pub(crate) number: u64,
    /// Messages that were in the log at the last write.
    pub(crate) log_len: u64,
}

impl OwnSession {
    /// A session that begins.
    pub(crate) fn new(
        layout: &Layout,
        client_id: ClientId,
        identity: Option<Arc<str>>,
        expiry: SessionExpiry,
        claim: Claim,
        positions: &[u64],
    ) -> Self {
        let at = |index| Checkpoint { done: positions.get(index).copied().unwrap_or(0), beyond: Vec::new() };
        Self {
            client_id,
            revision: Revision::Unread,
            claim,
            identity,
            expiry,
            parked_at: None,
            stage: Stage::Connected,
            subscriptions: BTreeMap::new(),
            will: None,
            queue: BTreeMap::new(),
            shared: HashMap::new(),
            progress: (0..layout.parts()).map(|index| Progress::resume(&at(index))).collect(),
            found: None,
            received: BTreeMap::new(),
            decided: BTreeMap::new(),
            next_step: 0,
            write: WriteState::default(),
            is_lost: false,
        }
    }

    /// A session whose record this node has claimed with `revision`. `received`: its open exchanges of QoS 2.
    pub(crate) fn taken(
        layout: &Layout,
        client_id: ClientId,
        record: &Record,
        revision: u64,
        received: BTreeMap<PacketId, Vec<usize>>,
        claim: Claim,
    ) -> Self {
        let mut session = Self::new(
            layout,
            client_id,
            record.identity.as_deref().map(Arc::from),
            record.expiry(),
            claim,
            &[],
        );
        let found: Vec<_> = (0..layout.parts())
            .map(|index| record.progress.get(index).cloned().unwrap_or_default())
            .collect();
        session.progress = found.iter().map(Progress::resume).collect();
        session.found = Some(found);
        session.revision = Revision::Known(revision);
        session.parked_at = record.parked_at();
        session.stage = Stage::Taken;
        session.received = received;
        session.note_decided();
        session.will = record.will.as_ref().and_then(RecordedWill::read).map(Arc::new);
        let subscriptions = record.subscriptions.iter().filter_map(RecordedSubscription::read);
        session.subscriptions = subscriptions.map(|(filter, one, since)| (filter, (one, since))).collect();
        for (lsn, entry) in record.queue.iter().filter_map(RecordedDelivery::read) {
            session.note_position(layout, lsn);
            session.set(lsn, entry);
        }
        session
    }

    /// The session for the broker, under `id`.
    pub(crate) fn recovered(&self, id: SessionId) -> RecoveredSession {
        let mut queue: Vec<_> = self.queue.iter().collect();
        queue.sort_by_key(|(lsn, queued)| (!is_inflight(&queued.entry), queued.step, **lsn));
        let received = self.received.iter().filter_map(|(id, shards)| {
            Some((*id, NonZeroU16::new(u16::try_from(shards.len()).unwrap_or(u16::MAX))?))
        });
        RecoveredSession {
            record: SessionRecord {
                id,
                client_id: self.client_id.clone(),
                identity: self.identity.clone(),
                expiry: self.expiry,
                parked_at: self.parked_at,
            },
            claim: self.claim,
            subscriptions: self
                .subscriptions
                .iter()
                .map(|(filter, (one, _))| (filter.clone(), *one))
                .collect(),
            will: self.will.clone(),
            received: received.collect(),
            queue: queue.into_iter().map(|(lsn, queued)| (*lsn, queued.entry.clone())).collect(),
        }
    }

    /// The record. `positions`: of the readers of the log; `node` and `run`: this node.
    pub(crate) fn record(&self, layout: &Layout, positions: &[u64], node: &str, run: &str) -> Record {
        let outlives = self.expiry.outlives_connection();
        let is_kept = |lsn: Lsn, queued: &Queued| match &queued.entry {
            QueueEntry::Sent(_, delivery) => {
                !self.shared.contains_key(&lsn) || delivery.qos == QoS::ExactlyOnce
            }
            QueueEntry::Released(_) => true,
            // The others are in the log.
            QueueEntry::Waiting(_) => layout.position(lsn).is_none() && !self.shared.contains_key(&lsn),
        };
        let mut queue: Vec<_> = self.queue.iter().filter(|(lsn, queued)| is_kept(**lsn, queued)).collect();
        queue.sort_by_key(|(lsn, queued)| (!is_inflight(&queued.entry), queued.step, **lsn));
        let subscriptions = self.subscriptions.iter();
        // The shards have the others once they have their messages.
        let received = self.decided.iter().flat_map(|(id, shards)| {
            let mut counts: BTreeMap<usize, u16> = BTreeMap::new();
            shards.iter().for_each(|shard| *counts.entry(*shard).or_default() += 1);
            counts.into_iter().map(move |(shard, count)| (id.value(), count, shard))
        });
        Record {
            owner: (!self.is_parked()).then(|| node.to_owned()),
            run: if self.is_parked() { String::new() } else { run.to_owned() },
            identity: self.identity.as_deref().map(str::to_owned),
            expiry: self.expiry.as_secs(),
            parked_at: self.parked_at.map(millis),
            subscriptions: subscriptions
                .filter(|_| outlives)
                .map(|(filter, (one, since))| RecordedSubscription::of(filter, one, since))
                .collect(),
            will: self.will.as_deref().map(RecordedWill::of),
            progress: if outlives { self.checkpoints(positions) } else { Vec::new() },
            queue: queue
                .into_iter()
                .filter(|_| outlives)
                .map(|(lsn, queued)| RecordedDelivery::of(*lsn, &queued.entry))
                .collect(),
            received: received.filter(|_| outlives).collect(),
            is_clean: self.is_parked() && self.write.appending == 0,
        }
    }

    fn checkpoints(&self, positions: &[u64]) -> Vec<Checkpoint> {
        if let Some(found) = &self.found {
            return found.clone();
        }
        let at = |index| positions.get(index).copied().unwrap_or(0);
        self.progress.iter().enumerate().map(|(index, progress)| progress.checkpoint_at(at(index))).collect()
    }

    // -- Changes -----------------------------------------------------------------------------------

    /// Begins a connection. The client may repeat what it published on the one before: CONNACK, which waits for the
    /// record, waits until each of these messages is in the log, or has failed and the session with it.
    pub(crate) fn resume(&mut self, identity: Option<Arc<str>>, expiry: SessionExpiry, claim: Claim) {
        (self.identity, self.expiry, self.claim) = (identity, expiry, claim);
        (self.stage, self.parked_at, self.found) = (Stage::Connected, None, None);
        self.write.holds = true;
    }

    pub(crate) fn park(&mut self, at: SystemTime, expiry: SessionExpiry) {
        (self.stage, self.parked_at, self.expiry) = (Stage::Parked, Some(at), expiry);
        self.write.holds = true;
    }

    pub(crate) fn set_will(&mut self, will: Option<Arc<Will>>) {
        self.write.holds |= will.is_none();
        self.will = will;
    }

    /// Whether the broker has given the session back: then the record names no node.
    pub(crate) const fn is_parked(&self) -> bool {
        matches!(self.stage, Stage::Parked)
    }

    pub(crate) const fn outlives_connection(&self) -> bool {
        self.expiry.outlives_connection()
    }

    /// A subscription, which keeps its beginning if it goes on.
    pub(crate) fn subscribe(
        &mut self,
        filter: TopicFilter,
        subscription: StoredSubscription,
        since: Option<Arc<[u64]>>,
    ) {
        let since = since.unwrap_or_default();
        self.subscriptions.entry(filter).or_insert((subscription, since)).0 = subscription;
    }

    pub(crate) fn unsubscribe(&mut self, filter: &TopicFilter) {
        self.subscriptions.remove(filter);
    }

    /// Filters that are not shared, with the positions at which they began.
    pub(crate) fn filters(&self) -> Vec<(TopicFilter, Arc<[u64]>)> {
        let own = self.subscriptions.iter().filter(|(filter, _)| !filter.is_shared());
        own.map(|(filter, (_, since))| (filter.clone(), since.clone())).collect()
    }

    /// Position of the session in a shard when it was found.
    pub(crate) fn found(&self, index: usize) -> Checkpoint {
        self.found.as_ref().and_then(|found| found.get(index)).cloned().unwrap_or_default()
    }

    /// Tests whether the session needs a message behind the position at which it was found that this node has not
    /// queued by now.
    pub(crate) fn is_missing(&self, index: usize, sequence: u64) -> bool {
        let found = self.found.as_ref().and_then(|found| found.get(index));
        let is_known = self.progress.get(index).is_some_and(|progress| progress.is_known(sequence));
        found.map_or(sequence > 0, |found| found.is_needed(sequence)) && !is_known
    }

    fn note_position(&mut self, layout: &Layout, lsn: Lsn) {
        if let Some((index, sequence)) = layout.position(lsn)
            && let Some(progress) = self.progress.get_mut(index)
        {
            progress.queue(sequence);
        }
    }

    fn set(&mut self, lsn: Lsn, entry: QueueEntry) {
        let step = self.next_step;
        self.next_step += 1;
        self.queue.insert(lsn, Queued { entry, step });
    }

    pub(crate) fn queue(&mut self, layout: &Layout, lsn: Lsn, delivery: StoredDelivery) {
        if let Some(filter) = &delivery.shared {
            self.shared.insert(lsn, (filter.clone(), delivery.message));
        } else if !self.outlives_connection() {
            return;
        }
        self.note_position(layout, lsn);
        self.set(lsn, QueueEntry::Waiting(delivery));
    }

    /// A PUBLISH is about to be sent. True: its record must be written before.
    pub(crate) fn send(&mut self, lsn: Lsn, packet_id: PacketId) -> bool {
        let Some(Queued { entry: QueueEntry::Waiting(delivery) | QueueEntry::Sent(_, delivery), .. }) =
            self.queue.get(&lsn)
        else {
            return false;
        };
        let delivery = delivery.clone();
        let is_once = delivery.qos == QoS::ExactlyOnce;
        self.set(lsn, QueueEntry::Sent(packet_id, delivery));
        is_once && self.outlives_connection()
    }

    /// PUBREC came. True: the record must be written before PUBREL is.
    pub(crate) fn release(&mut self, lsn: Lsn, packet_id: PacketId) -> bool {
        if !self.queue.contains_key(&lsn) {
            return false;
        }
        self.set(lsn, QueueEntry::Released(packet_id));
        self.outlives_connection()
    }

    /// A delivery is over. Returns its message if it came by a shared subscription.
    pub(crate) fn complete(&mut self, layout: &Layout, lsn: Lsn) -> Option<SharedMessage> {
        self.queue.remove(&lsn);
        if let Some((index, sequence)) = layout.position(lsn)
            && let Some(progress) = self.progress.get_mut(index)
        {
            progress.complete(sequence);
        }
        self.shared.remove(&lsn)
    }

    /// Messages of shared subscriptions that are over for their groups once the record is written as it is now: only
    /// this session can complete them, at whichever node [MQTT-4.8.2-4].
    pub(crate) fn claim_shared(&mut self) -> Vec<SharedMessage> {
        if !self.outlives_connection() {
            return Vec::new();
        }
        let queue = &self.queue;
        let claimed = self.shared.extract_if(|lsn, _| queue.get(lsn).is_some_and(is_sent_once));
        claimed.map(|(_, message)| message).collect()
    }

    /// Messages of shared subscriptions that leave a session without a connection, and whether no other member may have
    /// them [MQTT-4.8.2-5]. Those that its next record claims stay if it `goes_on`.
    pub(crate) fn take_shared(&mut self, goes_on: bool) -> Vec<(SharedMessage, bool)> {
        let (queue, outlives) = (&mut self.queue, self.expiry.outlives_connection());
        let is_claimed = |queued: &Queued| outlives && is_sent_once(queued);
        let leaving = self.shared.extract_if(|lsn, _| !(goes_on && queue.get(lsn).is_some_and(is_claimed)));
        let leaving: Vec<_> = leaving.collect();
        let taken = leaving.into_iter().map(|(lsn, message)| {
            let queued = queue.remove(&lsn);
            (message, !outlives && queued.is_some_and(|queued| is_sent_once(&queued)))
        });
        taken.collect()
    }

    /// Notes that each batch of messages so far is in the log, or will not be.
    pub(crate) fn note_decided(&mut self) {
        self.decided.clone_from(&self.received);
    }

    /// An exchange of QoS 2 of the client begins in a shard.
    pub(crate) fn open_exchange(&mut self, packet_id: PacketId, index: usize) {
        self.received.entry(packet_id).or_default().push(index);
    }

    /// An exchange ends: the index of its shard.
    pub(crate) fn close_exchange(&mut self, packet_id: PacketId) -> Option<usize> {
        let shards = self.received.get_mut(&packet_id)?;
        let index = shards.pop();
        if shards.is_empty() {
            self.received.remove(&packet_id);
        }
        index
    }

    /// Number of open exchanges with a packet identifier.
    pub(crate) fn exchanges(&self, packet_id: PacketId) -> usize {
        self.received.get(&packet_id).map_or(0, Vec::len)
    }
}

/// Tests whether a PUBLISH of QoS 2 was sent, or is about to be.
fn is_sent_once(queued: &Queued) -> bool {
    match &queued.entry {
        QueueEntry::Sent(_, delivery) => delivery.qos == QoS::ExactlyOnce,
        QueueEntry::Released(_) => true,
        QueueEntry::Waiting(_) => false,
    }
}

const fn is_inflight(entry: &QueueEntry) -> bool {
    !matches!(entry, QueueEntry::Waiting(_))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::layout::{Dimensions, OWN_NUMBERS};

    fn layout() -> Layout {
        Layout::new("test".parse().unwrap(), Dimensions { shards: 1, replicas: 3, log_bytes: 1 << 30 })
    }

    fn session(layout: &Layout) -> OwnSession {
        let expiry = SessionExpiry::from_secs(60);
        OwnSession::new(layout, ClientId::from("c"), None, expiry, Claim::new(1), &[])
    }

    /// The session at another node, by its record.
    fn moved(layout: &Layout, session: &OwnSession, position: u64) -> OwnSession {
        let record = session.record(layout, &[position, 0], "a", "run");
        let record = Record::read(&record.write()).expect("a record");
        let received = BTreeMap::new();
        OwnSession::taken(layout, session.client_id.clone(), &record, 1, received, Claim::new(2))
    }

    /// Step of a session: a message of the log that matches it or not, one that does not come by the log, a packet to
    /// or from the client, or a move to another node.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Log { matches: bool },
        Copy,
        Send { nth: usize },
        Receive { nth: usize },
        Complete { nth: usize },
        Move,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<bool>().prop_map(|matches| Step::Log { matches }),
            1 => Just(Step::Copy),
            3 => (0..9_usize).prop_map(|nth| Step::Send { nth }),
            2 => (0..9_usize).prop_map(|nth| Step::Receive { nth }),
            2 => (0..9_usize).prop_map(|nth| Step::Complete { nth }),
            1 => Just(Step::Move),
        ]
    }

    /// Naive model: all that waits, and all that is in flight in its order.
    #[derive(Default)]
    struct Model {
        position: u64,
        next: u64,
        waiting: BTreeSet<Lsn>,
        inflight: Vec<(Lsn, QueueEntry)>,
    }

    fn delivery(message: Lsn) -> StoredDelivery {
        StoredDelivery {
            retain: message.value().is_multiple_of(3),
            ..StoredDelivery::new(message, QoS::ExactlyOnce)
        }
    }

    fn packet_id(lsn: Lsn) -> PacketId {
        PacketId::new(u16::try_from(lsn.value() % 60_000).unwrap() + 1).unwrap()
    }

    impl Model {
        fn queue(&mut self, session: &mut OwnSession, layout: &Layout, lsn: Lsn, message: Lsn) {
            self.waiting.insert(lsn);
            session.queue(layout, lsn, delivery(message));
        }

        fn apply(&mut self, session: &mut OwnSession, layout: &Layout, step: Step) {
            match step {
                Step::Log { matches } => {
                    self.position += 1;
                    let lsn = layout.lsn(0, self.position);
                    if matches {
                        self.queue(session, layout, lsn, lsn);
                    }
                }
                // A copy is of a message of the log.
                Step::Copy if self.position == 0 => {}
                Step::Copy => {
                    self.next += 1;
                    let message = layout.lsn(0, self.position);
                    let own = Lsn::new(OWN_NUMBERS.value() + self.next);
                    self.queue(session, layout, own, message);
                }
                Step::Send { nth } => {
                    let Some(lsn) = self.waiting.iter().nth(nth).copied() else { return };
                    self.waiting.remove(&lsn);
                    assert!(session.send(lsn, packet_id(lsn)), "QoS 2 is written before it is sent");
                    let message =
                        if lsn < OWN_NUMBERS { lsn } else { session.queue[&lsn].entry.message().unwrap() };
                    self.inflight.push((lsn, QueueEntry::Sent(packet_id(lsn), delivery(message))));
                }
                Step::Receive { nth } => {
                    let Some(at) = (nth < self.inflight.len()).then_some(nth) else { return };
                    let (lsn, _) = self.inflight.remove(at);
                    assert!(session.release(lsn, packet_id(lsn)));
                    self.inflight.push((lsn, QueueEntry::Released(packet_id(lsn))));
                }
                Step::Complete { nth } => {
                    let Some(at) = (nth < self.inflight.len()).then_some(nth) else { return };
                    let (lsn, _) = self.inflight.remove(at);
                    assert!(session.complete(layout, lsn).is_none());
                }
                Step::Move => {}
            }
        }
    }

    proptest! {
        /// Another node has in flight what was, and reads from the log what waited, and nothing else.
        #[test]
        fn a_session_moves_whole(steps in proptest::collection::vec(step(), 0..120)) {
            let layout = layout();
            let (mut session, mut model) = (session(&layout), Model::default());
            for step in steps {
                model.apply(&mut session, &layout, step);
                if !matches!(step, Step::Move) {
                    continue;
                }
                session = moved(&layout, &session, model.position);
                let recovered = session.recovered(SessionId::new(7));
                let copies = model.waiting.iter().filter(|lsn| **lsn >= OWN_NUMBERS);
                let known: Vec<_> = recovered.queue.iter().map(|(lsn, _)| *lsn).collect();
                let wanted: Vec<_> = model.inflight.iter().map(|(lsn, _)| *lsn).chain(copies.copied()).collect();
                prop_assert_eq!(known, wanted);
                for (entry, expected) in recovered.queue.iter().zip(&model.inflight) {
                    prop_assert_eq!(entry, expected);
                }
                let missing: Vec<_> =
                    (1..=model.position).filter(|at| session.is_missing(0, *at)).map(|at| layout.lsn(0, at)).collect();
                // All messages behind the position are looked at; those that never matched are among them.
                let needed: Vec<_> = model.waiting.iter().filter(|lsn| **lsn < OWN_NUMBERS).copied().collect();
                prop_assert!(needed.iter().all(|lsn| missing.contains(lsn)), "{:?} of {:?}", missing, needed);
                let inflight = model.inflight.iter().map(|(lsn, _)| lsn);
                prop_assert!(inflight.clone().all(|lsn| !missing.contains(lsn)));
                prop_assert!(session.found(0).done <= model.position);
                for lsn in needed {
                    session.queue(&layout, lsn, delivery(lsn));
                }
                session.resume(None, SessionExpiry::from_secs(60), Claim::new(3));
            }
        }
    }

    /// [MQTT-4.3.3-8]: after CONNACK a repetition with DUP is answered with PUBREC, whatever becomes of the first one.
    #[test]
    fn the_record_of_a_session_that_is_taken_over_waits_for_its_messages() {
        let layout = layout();
        let mut session = session(&layout);
        session.resume(None, SessionExpiry::from_secs(60), Claim::new(2));
        assert!(session.write.holds);
    }

    #[test]
    fn a_session_that_ends_with_its_connection_has_a_short_record() {
        let layout = layout();
        let expiry = SessionExpiry::WITH_CONNECTION;
        let mut session = OwnSession::new(&layout, ClientId::from("c"), None, expiry, Claim::new(1), &[5, 6]);
        let filter = TopicFilter::parse("a").unwrap();
        let subscription = StoredSubscription::of(&braid_proto::session::Subscription::default());
        session.subscribe(filter, subscription, None);
        session.queue(&layout, layout.lsn(0, 9), delivery(layout.lsn(0, 9)));
        let record = session.record(&layout, &[9, 9], "a", "1");
        assert_eq!(record.write(), r#"{"o":"a","r":"1"}"#);
        assert!(!session.send(layout.lsn(0, 9), PacketId::FIRST), "nothing has to be written");
    }

    #[test]
    fn a_subscription_goes_on_where_it_began() {
        let layout = layout();
        let mut session = session(&layout);
        let filter = TopicFilter::parse("a/#").unwrap();
        let mut subscription = StoredSubscription::of(&braid_proto::session::Subscription::default());
        session.subscribe(filter.clone(), subscription, Some(Arc::from([3, 4])));
        subscription.no_local = true;
        session.subscribe(filter.clone(), subscription, Some(Arc::from([7, 8])));
        let session = moved(&layout, &session, 9);
        assert_eq!(session.filters(), [(filter.clone(), Arc::from([3, 4]))]);
        assert_eq!(session.recovered(SessionId::new(1)).subscriptions[&filter], subscription);
    }

    #[test]
    fn messages_of_shared_subscriptions_go_back_unless_only_this_session_can_complete_them() {
        let layout = layout();
        let mut session = session(&layout);
        let filter = Arc::new(TopicFilter::parse("$share/g/a").unwrap());
        let own = |number| Lsn::new(OWN_NUMBERS.value() + number);
        for (number, qos) in [(1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce), (3, QoS::ExactlyOnce)] {
            let shared = Some(filter.clone());
            let delivery = StoredDelivery { shared, ..StoredDelivery::new(Lsn::new(2 * number), qos) };
            session.queue(&layout, own(number), delivery);
        }
        session.send(own(1), PacketId::FIRST);
        session.send(own(2), PacketId::FIRST.next());
        assert_eq!(
            session.record(&layout, &[9, 9], "a", "1").queue.len(),
            1,
            "another member gets the others"
        );
        let messages = |taken: Vec<(SharedMessage, bool)>| {
            assert!(taken.iter().all(|((of, _), is_over)| *of == filter && !is_over));
            taken.iter().map(|((_, message), _)| message.value()).collect::<BTreeSet<_>>()
        };
        assert_eq!(messages(session.take_shared(true)), [2, 6].into());
        assert_eq!(session.claim_shared(), [(filter.clone(), Lsn::new(4))]);
        assert!(session.claim_shared().is_empty() && session.take_shared(false).is_empty(), "once");
        assert_eq!(session.record(&layout, &[9, 9], "a", "1").queue.len(), 1, "it stays in flight");
    }

    #[test]
    fn a_message_that_a_session_took_with_it_goes_to_no_other_member() {
        let layout = layout();
        let expiry = SessionExpiry::WITH_CONNECTION;
        let mut session = OwnSession::new(&layout, ClientId::from("c"), None, expiry, Claim::new(1), &[]);
        let filter = Arc::new(TopicFilter::parse("$share/g/a").unwrap());
        let own = |number| Lsn::new(OWN_NUMBERS.value() + number);
        for number in 1..=4 {
            let shared = Some(filter.clone());
            let delivery =
                StoredDelivery { shared, ..StoredDelivery::new(Lsn::new(number), QoS::ExactlyOnce) };
            session.queue(&layout, own(number), delivery);
        }
        for number in [1, 3, 4] {
            let packet_id = PacketId::new(u16::try_from(number).unwrap()).unwrap();
            session.send(own(number), packet_id);
            if number > 1 {
                session.release(own(number), packet_id);
            }
        }
        assert_eq!(session.complete(&layout, own(4)), Some((filter, Lsn::new(4))));
        assert!(session.claim_shared().is_empty(), "its record has no queue");
        let mut taken = session.take_shared(false);
        taken.sort_by_key(|((_, message), _)| *message);
        let over: Vec<_> = taken.iter().map(|((_, message), is_over)| (message.value(), *is_over)).collect();
        assert_eq!(over, [(1, true), (2, false), (3, true)], "[MQTT-4.8.2-5]");
    }
}
