//! Protocol machines of both ends of a Network Connection.
//!
//! **Mutate once, then drain.** For each thing that happens, a driver does this:
//!
//! 1. call one `handle_*` method or command,
//! 2. take every [`Event`] with `poll_event` and answer it,
//! 3. write the bytes of `outbox` as far as the link takes them,
//! 4. arm one timer for `poll_timeout`.
//!
//! Time is given by the caller and never goes back. Methods come in four kinds: getters, `handle_*` (something
//! happened), commands (requests of the application) and `poll_*` (work for the caller).

mod client;
mod datagram;
mod exchange;
mod mounting;
mod server;
mod stream;
mod streams;
mod traffic;

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use crate::message::Delivery;
use crate::types::{PacketId, ProtocolVersion, ReasonCode, StreamKey, Violation};

pub use client::{Client, ClientEvent, ClientOptions, Connected, Incoming, SendError, ServerProof};
pub use datagram::{DATAGRAMS_PROPERTY, DATAGRAMS_VALUE};
pub use exchange::Continued;
pub use server::{Acceptance, EarlyPublish, End, Event, ReadObstacle, Server, ServerOptions};
pub use stream::Outbox;
pub use traffic::StreamReport;

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer sent DISCONNECT.
    Disconnected(ReasonCode),
    /// The peer broke the specification.
    Violation(Violation),
    /// Closed by this side.
    Closed(ReasonCode),
    /// The server refused the CONNECT.
    Refused(ReasonCode),
    /// The link under it ended without a DISCONNECT.
    Lost,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disconnected(reason) => write!(f, "the peer disconnected: {reason}"),
            Self::Violation(violation) => write!(f, "{violation}"),
            Self::Closed(reason) => write!(f, "closed: {reason}"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Lost => f.write_str("the link ended without DISCONNECT"),
        }
    }
}

/// Names a request whose acknowledgement waits until its effect is durable. Tokens of a connection ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// Number of the acknowledgement in the connection; it alone orders tokens.
    sequence: u64,
    stream: StreamKey,
    packet_id: PacketId,
    /// Whether the request is a PUBLISH of QoS 2.
    is_exactly_once: bool,
}

impl Token {
    /// Stream of the request.
    pub const fn stream(self) -> StreamKey {
        self.stream
    }

    /// Packet Identifier of the request.
    pub const fn packet_id(self) -> PacketId {
        self.packet_id
    }
}

/// Outcome of sending a message.
#[derive(Debug)]
pub enum Sent {
    /// Written to the outbox; with QoS 1 and 2 under this identifier.
    Out(Option<PacketId>),
    /// Dropped: its Message Expiry Interval had passed. [MQTT-3.3.2-5]
    Expired,
    /// Dropped: larger than the peer's Maximum Packet Size. [MQTT-3.1.2-24]
    TooLarge,
    /// Given back: the peer's Receive Maximum is reached, or no packet identifier is free. An acknowledgement makes
    /// room.
    Blocked(Box<Delivery>),
}

/// Outcome of sending a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resent {
    /// Written to the outbox of this stream.
    Out(StreamKey),
    /// Left out: it was acknowledged meanwhile.
    Over,
    /// Dropped: larger than the peer's Maximum Packet Size. Its exchange ends as if it had been completed.
    /// [MQTT-3.1.2-24], [MQTT-3.1.2-25]
    TooLarge,
    /// Withheld: the peer's Receive Maximum is reached. An acknowledgement makes room.
    Blocked,
}

/// Progress of a delivery that is in a stored queue, for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// PUBREC arrived: the message is released, and its identifier stays in use. Its PUBREL is in an outbox, behind
    /// bytes that are not written yet. A repeated PUBREC reports it again.
    Released {
        /// [`Delivery::queue_lsn`] of the message.
        queue_lsn: NonZeroU64,
        /// Packet Identifier of the exchange.
        packet_id: PacketId,
        /// Stream of the PUBREL, and unwritten bytes before it.
        behind: (StreamKey, usize),
    },
    /// The exchange of this delivery is over.
    Completed(NonZeroU64),
}

/// Timers of a connection, by the event that each bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// CONNECT, or CONNACK on a client.
    Handshake = 0,
    /// Any byte of the peer: 1.5 times the Keep Alive on a server; PINGRESP on a client.
    Peer = 1,
    /// The client's next PINGREQ.
    Ping = 2,
    /// Completion of the oldest large packet, which alone may grow beyond the limit of partial bytes; on a server.
    PartialMemory = 3,
    /// Progress of any incomplete packet on a data stream; on a server.
    Partial = 4,
}

/// Expiry of each timer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers([Option<Instant>; 5]);

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        self.0[timer as usize] = at;
    }

    /// Sets a timer to `delay` after `now`, or to never where the clock does not reach that far.
    pub(crate) fn set_after(&mut self, timer: Timer, now: Instant, delay: Duration) {
        self.set(timer, now.checked_add(delay));
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.0[timer as usize].is_some()
    }

    pub(crate) fn is_due(&self, timer: Timer, now: Instant) -> bool {
        self.0[timer as usize].is_some_and(|at| at <= now)
    }

    /// Expiry of the earliest timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}

/// Instruction to the transport about a data stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAction {
    /// Send FIN: all bytes of the stream are written. [BQ-30]
    Finish(StreamKey),
    /// Send RESET_STREAM and STOP_SENDING with this code. [BQ-34]
    Abort(StreamKey, ReasonCode),
}

/// Limits agreed in CONNECT and CONNACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    pub(crate) version: ProtocolVersion,
    /// Maximum number of unacknowledged QoS 1 and 2 messages from the peer.
    pub(crate) receive_maximum: u16,
    /// Maximum number of unacknowledged QoS 1 and 2 messages to the peer.
    pub(crate) peer_receive_maximum: u16,
    /// Bytes.
    pub(crate) peer_maximum_packet_size: usize,
    /// Maximum payload bytes that are kept until the peer acknowledges them; a single message may exceed it.
    pub(crate) maximum_inflight_bytes: usize,
    pub(crate) inbound_aliases: u16,
    pub(crate) outbound_aliases: u16,
    /// Maximum Packet Size of this side, bytes.
    pub(crate) maximum_packet_size: usize,
    /// Maximum bytes of incomplete packets on the data streams.
    pub(crate) maximum_partial_bytes: usize,
    /// Whether this side is the client.
    pub(crate) is_client: bool,
}
