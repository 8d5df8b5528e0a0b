//! Events of a connection, and results of reads and writes.

use noq_proto::{ConnectionError, Dir, StreamId, VarInt};

use crate::quic::multipath::PathNotice;

/// Event of a connection. A hint about a stream: what it tells has to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum Event {
    /// The handshake is complete; a client knows whether its early data was taken.
    Connected,
    /// The handshake is confirmed (RFC 9001, 4.1.2).
    Confirmed,
    /// The peer has opened streams.
    Opened(Dir),
    /// The peer permits more streams.
    Available(Dir),
    /// Bytes, FIN or RESET_STREAM have come.
    Readable(StreamId),
    /// Room for a write that was refused.
    Writable(StreamId),
    /// STOP_SENDING has come.
    Stopped(StreamId, VarInt),
    /// A DATAGRAM frame has come.
    Datagram,
    /// The peer has acknowledged all of a stream.
    Finished(StreamId),
    /// A path of a client has changed.
    Path(PathNotice),
    /// The connection has ended.
    Lost,
}

/// Result of a read that is not pending.
#[derive(Clone, Copy, Debug)]
pub(in crate::quic) enum Received {
    Bytes {
        /// Nothing is left, nor an end: an event tells of more.
        is_drained: bool,
    },
    Finished,
    Reset(VarInt),
}

/// Reason for which a write takes nothing.
#[derive(Debug)]
pub(in crate::quic) enum Refused {
    /// STOP_SENDING, with its code.
    Stopped(VarInt),
    /// The stream has ended before.
    Closed,
    /// The connection has ended.
    Lost(ConnectionError),
}
