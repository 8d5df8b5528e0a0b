//! Choice of the next delivery to send.

use braid_proto::connection::Server;
use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, StreamKey};

use super::stream_scheduler::StreamScheduler;
use crate::queue::egress::EgressQueue;
use crate::view::Held;

/// Bytes in the outbox of a stream from which no delivery is encoded any more. Later ones wait as messages, where they
/// are ordered by priority and limited in number.
pub(super) const OUTBOX_TARGET: usize = 64 * 1024;

/// [`OUTBOX_TARGET`] while deliveries of several lanes wait: encoded deliveries cannot be overtaken any more. [BQ-53]
const MIXED_TARGET: usize = 16 * 1024;

/// Bytes in all outboxes of a connection from which a stream gets a delivery only if its own outbox is empty. [BQ-56]
const CONNECTION_TARGET: usize = 1024 * 1024;

/// True when retained messages may be added for a stream: no delivery waits for it, and its outbox has room.
pub(super) fn has_room(egress: &EgressQueue, server: &Server, stream: StreamKey) -> bool {
    let stream = server.resolve(stream);
    !egress.waits_on(stream) && server.unwritten_on(stream) < OUTBOX_TARGET
}

/// Reason for which the next delivery of a lane is not sent now, as [`next_delivery`] decides; `None` if it is.
pub(super) fn held(
    egress: &EgressQueue,
    server: &Server,
    unwritten: usize,
    lane: Lane,
    delivery: &Delivery,
) -> Option<Held> {
    let own = server.unwritten_on(server.resolve(lane.stream));
    if own >= outbox_target(egress) {
        Some(Held::Outbox)
    } else if own > 0 && unwritten >= CONNECTION_TARGET {
        Some(Held::OtherStreams)
    } else if server.takes(delivery) {
        None
    } else if server.is_resending() {
        Some(Held::Resends)
    } else {
        Some(Held::ReceiveMaximum)
    }
}

fn outbox_target(egress: &EgressQueue) -> usize {
    if egress.is_mixed() { MIXED_TARGET } else { OUTBOX_TARGET }
}

/// Room of a connection for deliveries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes in all outboxes.
    pub(super) unwritten: usize,
    /// Largest datagram; `None` if the client gets none.
    pub(super) datagrams: Option<usize>,
}

/// The most urgent delivery whose stream has room and that the peer takes, and its lane. Streams without room are
/// passed over [BQ-53], [BQ-55] and noted in `streams`. `owns_session`: whether the session is of this node for
/// certain; otherwise only deliveries of QoS 0 are sent.
pub(super) fn next_delivery(
    egress: &mut EgressQueue,
    server: &Server,
    room: Room,
    owns_session: bool,
    mut streams: Option<&mut StreamScheduler>,
) -> Option<(Lane, Delivery)> {
    let target = outbox_target(egress);
    let is_congested = room.unwritten >= CONNECTION_TARGET;
    egress.pop(|lane, delivery| {
        if room.datagrams.is_some_and(|limit| server.takes_datagram(delivery, limit)) {
            return true; // [BQ-83]
        }
        let own = server.unwritten_on(server.resolve(lane.stream));
        let has_room = own < target && (own == 0 || !is_congested);
        if let Some(streams) = &mut streams
            && !has_room
            && server.takes(delivery)
        {
            streams.note_refused(lane);
        }
        has_room && server.takes(delivery) && (owns_session || delivery.qos == QoS::AtMostOnce)
    })
}
