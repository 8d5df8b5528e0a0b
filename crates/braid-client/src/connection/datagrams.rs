//! Messages in datagrams of QUIC, which may be lost.

use std::time::Instant;

use braid_proto::connection::Client as Protocol;
use braid_proto::message::Delivery;
use braid_proto::reason::ReasonCode;
use braid_transport::quic::DatagramCounts;
use tracing::debug;

use super::Connection;
use crate::send_queue::{Request, answer};
use crate::state::ClientState;

impl Connection {
    /// Largest datagram for messages; `None` if they go on streams.
    pub(super) fn datagram_limit(&mut self) -> Option<usize> {
        if self.protocol.sends_datagrams() { self.link.datagram_size() } else { None }
    }

    /// Sends an unreliable message as a datagram. Returns a request that is to be sent on a stream. [BQ-83]
    pub(super) fn send_datagram(
        &mut self,
        state: &ClientState,
        request: Request,
        now: Instant,
    ) -> Option<Request> {
        let Request::Publish { delivery, stream, waiter, is_unreliable: true } = request else {
            return Some(request);
        };
        let limit = self.datagram_limit();
        let packet = limit.and_then(|limit| self.protocol.datagram(&delivery, limit, now));
        let Some(packet) = packet else {
            state.channels.datagrams.note_streamed();
            return Some(Request::Publish { delivery, stream, waiter, is_unreliable: false });
        };
        debug!(topic = %delivery.message.topic, bytes = packet.len(), "sending PUBLISH in a datagram");
        self.link.send_datagram(delivery.priority, packet);
        if let Some(waiter) = waiter {
            answer(waiter, Ok(ReasonCode::Success));
        }
        None
    }

    /// Brings the counts of the link into the statistics.
    pub(super) fn count_datagrams(&mut self, state: &ClientState) {
        let Some(now) = self.link.datagram_counts().filter(|now| *now != DatagramCounts::default()) else {
            return;
        };
        state.channels.datagrams.add(self.writer.replace_counted(now), now);
    }
}

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
