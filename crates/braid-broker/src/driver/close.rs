//! End of a connection: its last bytes, and what the transport tells the peer.

use std::time::Duration;

use braid_proto::connection::Cause;
use braid_proto::reason::ReasonCode;
use braid_transport::Close;
use braid_transport::quic::codes::{CLOSE_ABNORMAL, CLOSE_NORMAL};

// The time of the last bytes. On TCP all of it may be used for them. On QUIC the peer has CONNECTION_CLOSE within 3 s
// of the decision [BQ-41]: 1.5 s for the last bytes, 1 s for STOP_SENDING, which carries the reason even where
// DISCONNECT cannot, and 0.5 s for the path.

/// Limit for the close of a connection, on any transport.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time at which CONNECTION_CLOSE leaves at the latest. [BQ-41]
pub(super) const QUIC_CLOSE_TIMEOUT: Duration = Duration::from_millis(2500);

/// Part of [`QUIC_CLOSE_TIMEOUT`] in which the last bytes wait for room.
const QUIC_FLUSH_TIMEOUT: Duration = Duration::from_millis(1500);

/// Limit for writing the last bytes.
pub(super) const fn flush_timeout(is_multi: bool) -> Duration {
    if is_multi { QUIC_FLUSH_TIMEOUT } else { CLOSE_TIMEOUT }
}

/// State of the end of a connection.
pub(super) struct ConnectionClose {
    /// The peer has ended the link, or the link is lost.
    pub(super) link_ended: bool,
    /// The broker ended the connection and sent a reason, which the peer should read.
    pub(super) is_explained: bool,
    /// The broker has ended the connection: requests that it has not handled are dropped.
    pub(super) drops_requests: bool,
    /// Codes for the transport.
    pub(super) codes: Close,
}

impl ConnectionClose {
    pub(super) const fn new() -> Self {
        let codes = Close { code: CLOSE_NORMAL, stop: None };
        Self { link_ended: false, is_explained: false, drops_requests: false, codes }
    }

    /// The protocol machine has closed the connection. `has_version`: a CONNECT came, and decides how a DISCONNECT or
    /// CONNACK is written.
    pub(super) fn decide(&mut self, cause: Cause, has_version: bool) {
        let is_our_choice = matches!(cause, Cause::Violation(_) | Cause::Closed(_) | Cause::Refused(_));
        self.is_explained = is_our_choice && has_version;
        self.codes = codes(cause);
    }
}

/// Codes of CONNECTION_CLOSE and STOP_SENDING. [BQ-40], [BQ-41]
fn codes(cause: Cause) -> Close {
    let (code, stop) = match cause {
        Cause::Disconnected(_) => (CLOSE_NORMAL, None),
        Cause::Closed(reason) | Cause::Refused(reason) => (CLOSE_NORMAL, Some(reason)),
        Cause::Violation(violation) => (CLOSE_ABNORMAL, Some(violation.reason())),
        Cause::Lost => (CLOSE_ABNORMAL, None),
    };
    Close { code, stop: stop.map(ReasonCode::value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [BQ-40], [BQ-41]
    #[test]
    fn the_cause_decides_the_codes_and_whether_the_peer_should_read_the_reason() {
        let close = |cause, has_version| {
            let mut close = ConnectionClose::new();
            close.decide(cause, has_version);
            (close.codes.code, close.codes.stop, close.is_explained)
        };
        let taken_over = ReasonCode::SessionTakenOver;
        assert_eq!(close(Cause::Closed(taken_over), true), (CLOSE_NORMAL, Some(0x8e), true));
        assert_eq!(
            close(Cause::Refused(ReasonCode::NotAuthorized), false),
            (CLOSE_NORMAL, Some(0x87), false)
        );
        assert_eq!(close(Cause::Lost, true), (CLOSE_ABNORMAL, None, false));
    }

    #[test]
    fn the_last_bytes_leave_time_for_the_codes() {
        assert!(flush_timeout(true) < QUIC_CLOSE_TIMEOUT && QUIC_CLOSE_TIMEOUT < CLOSE_TIMEOUT);
        assert_eq!(flush_timeout(false), CLOSE_TIMEOUT);
    }
}
