//! Everything back from the store, when a broker starts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

use braid_proto::message::{Delivery, Message};
use braid_proto::packet::Will;
use braid_proto::session::{Phase, Session};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use braid_store::{
    Claim, Image, Lsn, NextIds, Now, QueueEntry, SessionImage, SessionRecord, Store, StoreError,
    StoredDelivery, Unread,
};

/// Progress is told once for so many sessions and messages.
const EVERY: u64 = 1 << 12;

/// How much of what a store held is alive again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Sessions whose clients are away.
    pub sessions: u64,
    /// QoS 1 and 2 messages that wait for them or were on their way to them, counted once for each session.
    pub queued: u64,
    /// Retained messages.
    pub retained: u64,
}

/// What a store held, alive again.
pub(crate) struct Recovered {
    pub(crate) next: NextIds,
    /// How much it is.
    pub(crate) recovery: Recovery,
    pub(crate) sessions: Vec<RecoveredSession>,
    /// Those that have expired are among them.
    pub(crate) retained: Vec<(TopicName, Arc<Message>)>,
}

/// A session whose client is away.
pub(crate) struct RecoveredSession {
    pub(crate) record: SessionRecord,
    pub(crate) claim: Claim,
    pub(crate) session: Session,
    pub(crate) will: Option<Arc<Will>>,
    /// In their order.
    pub(crate) waiting: VecDeque<Delivery>,
}

/// Reads everything, and tells `progress` now and then how far that is. Blocks for as long as it takes.
pub(crate) fn recover(
    store: &dyn Store,
    now: Now,
    mut progress: impl FnMut(Recovery),
) -> Result<Recovered, StoreError> {
    let mut image = Image::default();
    let next = store.recover(&mut image)?;
    let messages = Messages::read(store, now)?;
    let (mut sessions, mut retained) = (Vec::new(), Vec::new());
    let (mut recovery, mut told) = (Recovery::default(), 0);
    let mut tell = |recovery: Recovery| {
        let read = recovery.sessions + recovery.queued + recovery.retained;
        if read >= told + EVERY {
            told = read;
            progress(recovery);
        }
    };
    for (_, image) in image.sessions {
        let queued = image.queue.len() as u64;
        sessions.push(revive(image, &messages)?);
        recovery.sessions += 1;
        recovery.queued += queued;
        tell(recovery);
    }
    for (topic, lsn) in image.retained {
        retained.push((topic, messages.of(lsn)?));
        recovery.retained += 1;
        tell(recovery);
    }
    Ok(Recovered { next, recovery, sessions, retained })
}

fn revive(image: SessionImage, messages: &Messages) -> Result<RecoveredSession, StoreError> {
    let SessionImage { record, claim, subscriptions, will, received, queue } = image;
    let mut session = Session::new(record.client_id.clone(), record.expiry);
    session.subscriptions =
        subscriptions.into_iter().map(|(filter, subscription)| (filter, subscription.live())).collect();
    for packet_id in received {
        // Its stream is over: from the next connection on any stream may go on with it. [BQ-21]
        session.inbound.receive(StreamKey::CONTROL, packet_id, false);
    }
    let mut waiting = VecDeque::new();
    for (lsn, entry) in queue {
        let place = NonZeroU64::new(lsn.value());
        let (packet_id, phase) = match entry {
            QueueEntry::Waiting(delivery) => {
                waiting.push_back(messages.revive(&delivery, place)?);
                continue;
            }
            QueueEntry::Sent(packet_id, delivery) => {
                (packet_id, Phase::Sent(messages.revive(&delivery, place)?))
            }
            QueueEntry::Released(packet_id) => (packet_id, Phase::Released(place)),
        };
        if !session.outbound.restore(packet_id, phase) {
            let reason = format!("session {} uses the packet identifier {packet_id} twice", record.id);
            return Err(StoreError::Damaged { reason: reason.into() });
        }
    }
    Ok(RecoveredSession { record, claim, session, will, waiting })
}

/// Each message once, however many wait for it.
struct Messages(HashMap<Lsn, Arc<Message>>);

impl Messages {
    /// All of them in one pass.
    fn read(store: &dyn Store, now: Now) -> Result<Self, StoreError> {
        let (mut read, mut topics) = (HashMap::new(), Topics::default());
        store.messages(&mut |lsn, unread: Unread<'_>| {
            let mut message = unread.read().live(now);
            topics.share(&mut message);
            if let Some(number) = NonZeroU64::new(lsn.value()) {
                message.set_stored(number);
            }
            read.insert(lsn, message);
        })?;
        Ok(Self(read))
    }

    fn of(&self, lsn: Lsn) -> Result<Arc<Message>, StoreError> {
        self.0.get(&lsn).cloned().ok_or_else(|| {
            let reason = format!("message {lsn} is referred to and not there");
            StoreError::Damaged { reason: reason.into() }
        })
    }

    fn revive(&self, delivery: &StoredDelivery, place: Option<NonZeroU64>) -> Result<Delivery, StoreError> {
        let message = self.of(delivery.message)?;
        Ok(Delivery { stored: place, ..delivery.live(message) })
    }
}

/// A queue of a thousand messages is of a handful of topics: they share the names, as live messages do.
#[derive(Default)]
struct Topics(HashSet<TopicName>);

impl Topics {
    fn share(&mut self, message: &mut Arc<Message>) {
        // What a store shares with us has its name already.
        let Some(message) = Arc::get_mut(message) else { return };
        match self.0.get(&message.topic) {
            Some(topic) => message.topic = topic.clone(),
            None => {
                self.0.insert(message.topic.clone());
            }
        }
    }
}
