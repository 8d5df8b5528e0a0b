//! Vocabulary of the store: changes, batches of them, and the check that a batch may be applied.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::SystemTime;

use braid_proto::packet::{ClientId, PacketId, Will};
use braid_proto::session::SessionExpiry;
use braid_proto::topic::{TopicFilter, TopicName};

use crate::error::StoreError;
use crate::ids::{Claim, Lsn, SessionId};
use crate::message::{StoredDelivery, StoredMessage};
use crate::session::StoredSubscription;

/// Changes that are applied together, in their order, or not at all. One turn of a connection's driver causes one
/// batch. The store makes many batches durable with one fsync (group commit); each has its own outcome.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    changes: Vec<Change>,
    lazy: bool,
}

impl Batch {
    /// An empty batch whose commit a caller waits for.
    pub const fn new() -> Self {
        Self { changes: Vec::new(), lazy: false }
    }

    /// An empty batch whose commit no caller waits for. The store may delay it, to make it durable with an fsync that
    /// another batch needs anyway; it becomes durable after a while even if nothing else is committed. Only for changes
    /// that may be lazy.
    pub const fn lazy() -> Self {
        Self { changes: Vec::new(), lazy: true }
    }

    /// Appends a change.
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// The changes in their order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// True when no caller waits for the commit.
    pub const fn is_lazy(&self) -> bool {
        self.lazy
    }

    /// True without any change. The commit of an empty batch is done at once.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl Extend<Change> for Batch {
    fn extend<I: IntoIterator<Item = Change>>(&mut self, changes: I) {
        self.changes.extend(changes);
    }
}

impl FromIterator<Change> for Batch {
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        Self { changes: changes.into_iter().collect(), lazy: false }
    }
}

impl IntoIterator for Batch {
    type Item = Change;
    type IntoIter = std::vec::IntoIter<Change>;

    fn into_iter(self) -> Self::IntoIter {
        self.changes.into_iter()
    }
}

/// Change of the durable state.
///
/// **Unknown names have no effect.** A change of a session, a queue entry or anything else that does not exist is
/// ignored: the session may have ended while a publisher's batch was on its way.
///
/// **Idempotent.** Committing the last committed batch once more leaves everything as it is, so a caller that does not
/// know its outcome may repeat it.
///
/// **Lazy** marks the changes that may go into a [`Batch::lazy`]: one that a crash loses causes a retransmission, which
/// the protocol handles. Every other change must be committed before the packet named at it is sent.
#[derive(Clone, Debug)]
pub enum Change {
    /// A session began, connected. The store first closes any session of the same client or with the same id.
    /// Before CONNACK.
    Opened {
        /// A new id.
        session: SessionId,
        /// The session's client.
        client_id: ClientId,
        /// The session's owner, see [`SessionRecord::identity`](crate::SessionRecord::identity).
        identity: Option<Arc<str>>,
        /// Session Expiry Interval.
        expiry: SessionExpiry,
        /// From [`Store::claim`](crate::Store::claim).
        claim: Claim,
    },
    /// The session is connected again, and neither its expiry nor the delay of its Will runs. Before CONNACK.
    Resumed {
        /// The resumed session.
        session: SessionId,
        /// The session's owner, see [`SessionRecord::identity`](crate::SessionRecord::identity).
        identity: Option<Arc<str>>,
        /// Session Expiry Interval of the new connection.
        expiry: SessionExpiry,
        /// From [`Store::claim`](crate::Store::claim).
        claim: Claim,
    },
    /// The connection ended and the session did not: its expiry and the delay of its Will begin to run.
    /// Lazy: a session that is not parked counts as parked at the time of its recovery.
    Parked {
        /// The parked session.
        session: SessionId,
        /// End of the connection.
        at: SystemTime,
        /// Session Expiry Interval from `at` on; DISCONNECT may have changed it.
        expiry: SessionExpiry,
        /// The claim under which it was opened or resumed.
        claim: Claim,
    },
    /// The session ended: everything that belongs to it is removed, and every message that only it referenced. Its Will
    /// and its messages of shared subscriptions must be queued for other sessions in the same batch.
    Closed {
        /// The ended session.
        session: SessionId,
        /// The claim under which it was opened, resumed or recovered.
        claim: Claim,
    },
    /// The session has this Will, instead of any before. Before CONNACK.
    WillSet {
        /// The session that sets it.
        session: SessionId,
        /// Its delay runs from [`Change::Parked`].
        will: Arc<Will>,
    },
    /// The Will is not to be published: after a DISCONNECT that removes it, or in the batch that publishes it.
    WillCleared {
        /// The session that set it.
        session: SessionId,
    },
    /// The session subscribed, or replaced its subscription with the same filter. Before SUBACK.
    ///
    /// The filter alone identifies it: of several subscriptions on different streams the latest is kept, because a
    /// session without a connection has one (`[BQ-42]`).
    Subscribed {
        /// The subscriber.
        session: SessionId,
        /// With `$share/{ShareName}/` for a shared subscription.
        filter: TopicFilter,
        /// As granted.
        subscription: StoredSubscription,
        /// Position of the log in each of its parts at which a new subscription begins; `None` for one that goes on.
        since: Option<Arc<[u64]>>,
    },
    /// The session has no subscription with this filter on any stream; its queue stays. Before UNSUBACK. When one of
    /// several ends, the session commits `Subscribed` again with one that remains.
    Unsubscribed {
        /// The subscriber.
        session: SessionId,
        /// The whole filter.
        filter: TopicFilter,
    },
    /// A message, once for all receivers. The store keeps it while a queue entry that is not released or a topic's
    /// retained message references it; without a reference at the end of the batch it is dropped. Storing it again
    /// changes nothing and costs nothing.
    Stored {
        /// Identifies the message.
        lsn: Lsn,
        /// Topic, payload, properties.
        message: StoredMessage,
    },
    /// The message is queued for the session, in the order of `lsn`. An entry with the same `lsn` is replaced. Needs
    /// [`Change::Stored`] earlier in the batch. Before PUBACK or PUBREC to the publisher.
    Queued {
        /// The receiver.
        session: SessionId,
        /// Identifies the entry and orders it in the session's queue: the message's own number, or another one when the
        /// session receives the message again (a retained message) or takes it over from another session.
        lsn: Lsn,
        /// References the message, with the options of the delivery.
        delivery: StoredDelivery,
    },
    /// PUBLISH has been sent with this identifier. QoS 2: before the PUBLISH leaves, since a crash could otherwise
    /// deliver it twice. QoS 1: lazy. No effect on an entry that was released.
    Sent {
        /// The receiver.
        session: SessionId,
        /// The entry.
        lsn: Lsn,
        /// In use until the entry is completed.
        packet_id: PacketId,
    },
    /// PUBREC came: the entry no longer references its message, and its identifier stays in use. Before PUBREL leaves.
    Released {
        /// The receiver.
        session: SessionId,
        /// The entry.
        lsn: Lsn,
        /// In use until the entry is completed.
        packet_id: PacketId,
    },
    /// PUBACK, PUBCOMP or a PUBREC with an error came, or the entry was dropped (expired, too large, queue
    /// full): it is removed. Lazy.
    Completed {
        /// The receiver.
        session: SessionId,
        /// The entry.
        lsn: Lsn,
    },
    /// Number of QoS 2 PUBLISH with this identifier that were received and are not released, each on a stream of its
    /// own (`[BQ-20]`); after a restart the identifier alone finds them (`[BQ-21]`). An increase is committed in the
    /// batch with the effects of the message, before PUBREC; a decrease as
    /// [`ReceivedReleased`](Self::ReceivedReleased).
    Received {
        /// The publisher.
        session: SessionId,
        /// The publisher's identifier.
        packet_id: PacketId,
        /// Exchanges that are open.
        exchanges: NonZeroU16,
    },
    /// PUBREL came for the only exchange with this identifier, which the publisher may now use for another message.
    /// Before PUBCOMP, or that message could be taken for a duplicate.
    ReceivedReleased {
        /// The publisher.
        session: SessionId,
        /// The publisher's identifier.
        packet_id: PacketId,
    },
    /// The message is the retained message of its topic, instead of any before. Needs [`Change::Stored`]
    /// earlier in the batch. Before PUBACK or PUBREC.
    Retained {
        /// The retained message.
        message: Lsn,
    },
    /// The topic has no retained message. Before PUBACK or PUBREC; lazy when the message expired.
    RetainCleared {
        /// The topic.
        topic: TopicName,
    },
}

impl Change {
    /// The session that it changes.
    pub const fn session(&self) -> Option<SessionId> {
        match self {
            Self::Opened { session, .. }
            | Self::Resumed { session, .. }
            | Self::Parked { session, .. }
            | Self::Closed { session, .. }
            | Self::WillSet { session, .. }
            | Self::WillCleared { session }
            | Self::Subscribed { session, .. }
            | Self::Unsubscribed { session, .. }
            | Self::Queued { session, .. }
            | Self::Sent { session, .. }
            | Self::Released { session, .. }
            | Self::Completed { session, .. }
            | Self::Received { session, .. }
            | Self::ReceivedReleased { session, .. } => Some(*session),
            Self::Stored { .. } | Self::Retained { .. } | Self::RetainCleared { .. } => None,
        }
    }

    /// The claim that it needs: only the changes that begin, park, resume or end a session need one.
    pub const fn claim(&self) -> Option<Claim> {
        match self {
            Self::Opened { claim, .. }
            | Self::Resumed { claim, .. }
            | Self::Parked { claim, .. }
            | Self::Closed { claim, .. } => Some(*claim),
            _ => None,
        }
    }

    /// The message that must be stored earlier in its batch.
    pub const fn message(&self) -> Option<Lsn> {
        match self {
            Self::Queued { delivery, .. } => Some(delivery.message),
            Self::Retained { message } => Some(*message),
            _ => None,
        }
    }
}

/// Fencing: ownership of sessions as one store value sees it.
pub(crate) trait Ownership {
    fn session_of(&self, client_id: &ClientId) -> Option<SessionId>;

    /// True when another store value or a newer claim owns the session.
    fn is_fenced(&self, session: SessionId, claim: Option<Claim>) -> bool;

    /// Checks that the whole batch may be applied, against the ownership before it.
    fn check(&self, changes: &[Change]) -> Result<(), StoreError> {
        // A message is mostly referenced right after it was stored: a batch with one message allocates no list.
        let mut last: Option<Lsn> = None;
        let mut stored: Vec<Lsn> = Vec::new();
        let mut own: Vec<SessionId> = Vec::new();
        for change in changes {
            if let Change::Stored { lsn, .. } = change {
                stored.extend(last.replace(*lsn));
            }
            if let Some(message) = change.message()
                && last != Some(message)
                && !stored.iter().rev().any(|lsn| *lsn == message)
            {
                return Err(StoreError::NotStored { message });
            }
            let Some(session) = change.session() else { continue };
            if own.iter().rev().any(|id| *id == session) {
                continue;
            }
            let mut is_fenced = self.is_fenced(session, change.claim());
            if let Change::Opened { client_id, claim, .. } = change {
                let former = self.session_of(client_id);
                is_fenced |= former.is_some_and(|former| self.is_fenced(former, Some(*claim)));
            }
            if is_fenced {
                return Err(StoreError::Fenced { session });
            }
            if matches!(change, Change::Opened { .. } | Change::Resumed { .. }) {
                own.push(session);
            }
        }
        Ok(())
    }
}
