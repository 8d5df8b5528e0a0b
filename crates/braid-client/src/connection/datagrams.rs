//! Messages in datagrams of QUIC, which may be lost.

use std::time::Instant;

use braid_proto::connection::Client as Protocol;
use braid_proto::message::Delivery;
use tracing::debug;

use crate::send_queue::Request;
use crate::state::ClientState;

/// Handles a datagram of the server. One that is no message has no effect. [BQ-85]
pub(super) fn handle_datagram(protocol: &mut Protocol, state: &ClientState, datagram: &[u8], now: Instant) {
    if let Err(cause) = protocol.handle_datagram(datagram, now) {
        debug!(%cause, "datagram dropped");
        state.channels.datagrams.note_refused();
    }
}

/// Whether a request is a message for a datagram of at most this size.
pub(super) fn is_for_datagram(protocol: &Protocol, request: &Request, limit: Option<usize>) -> bool {
    let takes = |delivery: &Delivery| limit.is_some_and(|limit| protocol.takes_datagram(delivery, limit));
    matches!(request, Request::Publish { delivery, is_unreliable: true, .. } if takes(delivery))
}
