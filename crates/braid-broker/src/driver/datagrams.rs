//! Datagrams between the link and the protocol machine: messages of QoS 0 that may be lost.

use std::time::Instant;

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, StreamKey};
use braid_transport::quic::DatagramCounts;

use super::Driver;
use super::connect::peer_name;
use crate::statistics::Counter;

/// Datagrams of one connection.
#[derive(Debug, Default)]
pub(super) struct DatagramTraffic {
    /// Some were exchanged, or may be.
    is_used: bool,
    /// One was refused.
    has_refused: bool,
    /// Counts of the link that the statistics have.
    counted: DatagramCounts,
}

impl Driver {
    /// Handles a datagram of the client. One that is no message has no effect, and the connection goes on. [BQ-85]
    pub(super) fn handle_datagram(&mut self, datagram: &[u8], now: Instant) {
        let statistics = &self.core.statistics;
        statistics.add(Counter::BytesReceived, datagram.len() as u64);
        self.gate.note_read(StreamKey::CONTROL, datagram.len(), now);
        self.ingress.pressure.note_read(StreamKey::CONTROL);
        let handled = self.server.handle_datagram(datagram, now);
        let Some(traffic) = self.streams.as_mut().map(|streams| &mut streams.datagrams) else { return };
        traffic.is_used = true;
        let Err(cause) = handled else { return };
        statistics.add(Counter::DatagramsRefused, 1);
        let (client, peer) = (self.session.client(), peer_name(self.link.peer()));
        if std::mem::replace(&mut traffic.has_refused, true) {
            tracing::debug!(client, peer, %cause, "datagram dropped");
        } else {
            tracing::info!(client, peer, %cause, "datagram dropped; later ones are counted in datagrams/refused");
        }
    }

    /// Largest datagram for deliveries; `None` if the client gets none. [BQ-83]
    pub(super) fn datagram_limit(&mut self) -> Option<usize> {
        if !self.server.sends_datagrams() {
            return None;
        }
        self.link.datagram_size()
    }

    /// Sends a delivery as a datagram of at most `limit` bytes. False: it is to be sent on its stream. [BQ-83]
    pub(super) fn deliver_datagram(
        &mut self,
        lane: Lane,
        delivery: &Delivery,
        limit: usize,
        now: Instant,
    ) -> bool {
        let Some(packet) = self.server.datagram(delivery, limit, now) else {
            let falls_back = delivery.qos == QoS::AtMostOnce && !delivery.retain;
            self.core.statistics.add(Counter::DatagramsFallenBack, falls_back.into());
            return false;
        };
        if let Some(streams) = &mut self.streams {
            streams.datagrams.is_used = true;
        }
        self.core.statistics.add(Counter::BytesSent, packet.len() as u64);
        self.egress.note_sent(self.server.resolve(lane.stream), None, now);
        self.link.send_datagram(lane.priority, packet);
        true
    }

    /// Brings the counts of the link into the statistics.
    pub(super) fn count_datagrams(&mut self) {
        let Some(traffic) = self.streams.as_mut().map(|streams| &mut streams.datagrams) else { return };
        if !traffic.is_used {
            return;
        }
        let Some(now) = self.link.datagram_counts() else { return };
        let before = std::mem::replace(&mut traffic.counted, now);
        let unsent = now.dropped_unsent - before.dropped_unsent;
        let statistics = &self.core.statistics;
        statistics.add(Counter::DatagramsSent, now.sent - before.sent);
        statistics.add(Counter::DatagramsReceived, now.received - before.received);
        statistics.add(Counter::DatagramsDropped, unsent + now.dropped_unread - before.dropped_unread);
        self.note_dropped(unsent);
    }
}
