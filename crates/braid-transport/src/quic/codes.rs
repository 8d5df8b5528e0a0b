//! The application error codes of MQTT over QUIC.
//!
//! Codes below 0x100 on a stream are MQTT reason codes; what concerns only the transport is above.

use noq_proto::VarInt;

/// CONNECTION_CLOSE: all is said. Peers take it as the end of the control stream.
pub const CLOSE_NORMAL: u32 = 0;

/// CONNECTION_CLOSE: the connection ends because something went wrong.
pub const CLOSE_ABNORMAL: u32 = 1;

/// CONNECTION_CLOSE: no room for this connection now, try later.
pub const CLOSE_OVERLOADED: u32 = 2;

/// STOP_SENDING and RESET_STREAM on a stream that a server opened: no server does. The connection
/// lives on.
pub const STREAM_NOT_SERVED: u32 = 0x100;

pub(super) fn code(code: u32) -> VarInt {
    VarInt::from_u32(code)
}
