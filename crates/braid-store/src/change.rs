use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::SystemTime;

use braid_proto::packet::{ClientId, PacketId, Will};
use braid_proto::session::SessionExpiry;
use braid_proto::topic::{TopicFilter, TopicName};

use crate::identity::{Claim, Lsn, SessionId};
use crate::message::{StoredDelivery, StoredMessage};
use crate::subscription::StoredSubscription;

/// One thing that must outlive the process.
///
/// **Unknown is not an error.** A change for a session, a queue entry or anything else that is not there (any
/// more) has no effect: while a publisher's batch was on its way, the session may have ended.
///
/// **Again is harmless.** Committing the last committed batch once more leaves everything as it is, so that
/// whoever does not know its outcome may repeat it.
///
/// **Late** stands where a change may go into a [`Batch::lazy`](crate::Batch::lazy): if it is lost in a crash,
/// something is sent again and the protocol sorts it out. Every other change must be committed before the
/// packet named at it leaves.
#[derive(Clone, Debug)]
pub enum Change {
    /// A session began, connected. Whatever the store held of the client or under the same id is closed
    /// first. Before CONNACK.
    Opened {
        /// A new id.
        session: SessionId,
        /// Whose it is.
        client_id: ClientId,
        /// How long it outlives its connection.
        expiry: SessionExpiry,
        /// From [`Store::claim`](crate::Store::claim).
        claim: Claim,
    },
    /// The session is connected again; its clocks stand still. Before CONNACK.
    Resumed {
        /// Which.
        session: SessionId,
        /// The interval of the new connection.
        expiry: SessionExpiry,
        /// From [`Store::claim`](crate::Store::claim).
        claim: Claim,
    },
    /// The connection ended and the session did not: its expiry and the delay of its Will begin to run.
    /// Late: a session that is not parked is taken as parked when it is recovered.
    Parked {
        /// Which.
        session: SessionId,
        /// When the connection ended.
        at: SystemTime,
        /// The interval that counts from `at`; DISCONNECT may have changed it.
        expiry: SessionExpiry,
        /// The claim under which it was opened or resumed.
        claim: Claim,
    },
    /// The session ended: everything of it is removed, and every message that only it referred to. What must
    /// not be lost of it (its Will, messages of a shared subscription) is queued for others in the same batch.
    Closed {
        /// Which.
        session: SessionId,
        /// The claim under which it was opened, resumed or recovered.
        claim: Claim,
    },
    /// The session has this Will, instead of any before. Before CONNACK.
    WillSet {
        /// Whose.
        session: SessionId,
        /// Its delay runs from [`Change::Parked`].
        will: Arc<Will>,
    },
    /// The Will is not to be published (any more): after a DISCONNECT without Will, or in the batch that
    /// publishes it.
    WillCleared {
        /// Whose.
        session: SessionId,
    },
    /// The session subscribed, or replaced its subscription with the same filter. Before SUBACK.
    ///
    /// The filter alone names it: of several on different streams the last that was told is kept, because
    /// one is what a session without a connection has (`[BQ-42]`).
    Subscribed {
        /// Who.
        session: SessionId,
        /// With its `$share/{ShareName}/` if it has one.
        filter: TopicFilter,
        /// As granted.
        subscription: StoredSubscription,
    },
    /// The session has no subscription with this filter on any stream any more; what is queued stays. Before
    /// UNSUBACK. When one of several ends, whoever keeps another says `Subscribed` again with that.
    Unsubscribed {
        /// Who.
        session: SessionId,
        /// The whole text of the filter names the subscription.
        filter: TopicFilter,
    },
    /// A message, once for everybody. It stays as long as a queue entry that is not yet released or the
    /// retained messages refer to it; without any at the end of the batch it is not kept. If the store has it
    /// already, nothing changes: a later reference to the same message stores it again, at no cost.
    Stored {
        /// Names the message.
        lsn: Lsn,
        /// Topic, payload, properties.
        message: StoredMessage,
    },
    /// The message waits for the session, behind everything with a lower `lsn`. An entry with the same `lsn`
    /// is replaced. Needs [`Change::Stored`] earlier in the batch. Before PUBACK or PUBREC to the publisher.
    Queued {
        /// For whom.
        session: SessionId,
        /// Names the entry in the session's queue, and is its place: the message's own, or another when the
        /// session receives the message a second time, later (a retained message) or from another session.
        lsn: Lsn,
        /// Which message, and how it goes.
        delivery: StoredDelivery,
    },
    /// PUBLISH has been sent with this identifier. QoS 2: before the PUBLISH leaves, or a crash could deliver
    /// it twice. QoS 1: late. An entry that was released stays so.
    Sent {
        /// To whom.
        session: SessionId,
        /// Which entry.
        lsn: Lsn,
        /// Its identifier until it is completed.
        packet_id: PacketId,
    },
    /// PUBREC came: the message is let go, the identifier stays in use. Before PUBREL leaves.
    Released {
        /// From whom.
        session: SessionId,
        /// Which entry.
        lsn: Lsn,
        /// Its identifier until it is completed.
        packet_id: PacketId,
    },
    /// PUBACK, PUBCOMP or a PUBREC with an error came, or the entry was dropped (expired, too large, queue
    /// full): it is removed. Late.
    Completed {
        /// Whose.
        session: SessionId,
        /// Which entry.
        lsn: Lsn,
    },
    /// So many QoS 2 PUBLISH with this identifier were taken over from the session and are not released, each on a stream of
    /// its own (`[BQ-20]`): after a restart they are found by their identifier alone (`[BQ-21]`). With one more: in one batch with
    /// what the message causes, before PUBREC. With one less: as [`ReceivedReleased`](Self::ReceivedReleased).
    Received {
        /// From whom.
        session: SessionId,
        /// The publisher's identifier.
        packet_id: PacketId,
        /// How many.
        exchanges: NonZeroU16,
    },
    /// PUBREL came: the publisher may use the identifier for another message. Before PUBCOMP, or that other
    /// message could be taken for a duplicate. There is no other exchange with the same identifier.
    ReceivedReleased {
        /// From whom.
        session: SessionId,
        /// The publisher's identifier.
        packet_id: PacketId,
    },
    /// The message is the retained message of its topic, instead of any before. Needs [`Change::Stored`]
    /// earlier in the batch. Before PUBACK or PUBREC.
    Retained {
        /// Which message.
        message: Lsn,
    },
    /// The topic has no retained message (any more). Before PUBACK or PUBREC; late when it expired.
    RetainCleared {
        /// Which topic.
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

    /// The claim that it needs: the changes of a session's life have one.
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
