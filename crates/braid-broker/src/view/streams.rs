//! Streams of a connection: what each has moved, what waits on it, and for what.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::connection::StreamReport;
use braid_proto::stream::Priority;
use braid_transport::quic::{Blocked, GateState, PathReport, PathState};

use super::connection::ConnectionSummary;

/// Connection and its streams, as they are at the start of a turn of its task.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionReport {
    /// Connection.
    pub connection: Arc<ConnectionSummary>,
    /// Path; `None` on a transport without streams.
    pub path: Option<PathState>,
    /// All paths of a QUIC connection, of which `path` carries data first.
    pub paths: Vec<PathReport>,
    /// Congestion gate; `None` on a transport without streams, and where it is turned off.
    pub gate: Option<GateState>,
    /// The control stream, then data streams in the order of their keys.
    pub streams: Vec<StreamView>,
    /// Data streams beyond the first 1,024, which `streams` does not have.
    pub omitted: usize,
    /// Data streams that the client opened faster than is allowed, and that wait for their turn.
    pub opening: usize,
    /// Bytes in the outboxes of all streams.
    pub unwritten: usize,
    /// Messages to the client that count against its Receive Maximum.
    pub unacknowledged: usize,
}

/// Stream of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamView {
    /// Kind, direction, and counts.
    pub report: StreamReport,
    /// Priority in the transport: that of the most urgent bytes on it. The control stream is above all.
    pub priority: Priority,
    /// Messages to the client that are not in the outbox yet.
    pub queued_messages: usize,
    /// Bytes of these messages, as `limits.queued_bytes` counts them.
    pub queued_bytes: usize,
    /// Lanes with such messages, in the order of sending.
    pub lanes: Vec<LaneView>,
    /// Time for which the oldest message to the client has waited, in the outbox or not, at least.
    pub oldest: Option<Duration>,
    /// Reason for which bytes or messages to the client wait.
    pub held: Option<Held>,
    /// The broker does not read the stream: its receivers cannot keep up, or a limit is reached.
    pub is_paused: bool,
}

/// Messages of one priority that wait for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Priority.
    pub priority: Priority,
    /// Number of messages.
    pub messages: usize,
    /// Time for which the next one has waited, at least: whole seconds.
    pub oldest: Option<Duration>,
    /// Reason for which it waits; `None` if it is sent in this turn.
    pub held: Option<Held>,
}

/// Reason for which bytes or messages to a client wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// QUIC: the congestion window, or the buffer of the socket, is full.
    Path,
    /// QUIC: the congestion gate keeps packets back.
    Gate,
    /// QUIC: the client does not read the stream.
    FlowControl,
    /// TCP: the buffer of the socket is full. The client does not read, or the path is slow.
    Socket,
    /// The bytes must not leave before the store has committed what they follow from.
    Durability,
    /// The client has not acknowledged as many messages as its Receive Maximum or the limits of the broker allow.
    ReceiveMaximum,
    /// Messages of an earlier connection are sent again first.
    Resends,
    /// The outbox of the stream is full of messages before it; what holds them is the reason of the stream.
    Outbox,
    /// The outboxes of the other streams of the connection are full.
    OtherStreams,
}

impl Held {
    /// Name, for labels of metrics and APIs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Gate => "gate",
            Self::FlowControl => "flow_control",
            Self::Socket => "socket",
            Self::Durability => "durability",
            Self::ReceiveMaximum => "receive_maximum",
            Self::Resends => "resends",
            Self::Outbox => "outbox",
            Self::OtherStreams => "other_streams",
        }
    }
}

impl From<Blocked> for Held {
    fn from(blocked: Blocked) -> Self {
        match blocked {
            Blocked::Path => Self::Path,
            Blocked::Gate => Self::Gate,
            Blocked::FlowControl => Self::FlowControl,
        }
    }
}
