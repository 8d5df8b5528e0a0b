//! Choice of the next delivery to send, and the round-trip time of acknowledgements.

use std::collections::VecDeque;
use std::task::Context;
use std::time::Instant;

use braid_proto::connection::Server;
use braid_proto::message::Delivery;
use braid_proto::packet::PacketId;
use braid_proto::stream::{Lane, StreamKey};

use super::stream_scheduler::StreamScheduler;
use crate::queue::backpressure::AckRttEstimator;
use crate::queue::egress::EgressQueue;
use crate::queue::policy::QueuePolicy;
use crate::queue::session_queue::{SessionQueue, Signal};
use crate::queue::usage::Evicted;

/// Bytes in the outbox of a stream from which no delivery is encoded any more. Later ones wait as messages, where they
/// are ordered by priority and limited in number.
pub(super) const OUTBOX_TARGET: usize = 64 * 1024;

/// [`OUTBOX_TARGET`] while deliveries of several lanes wait: encoded deliveries cannot be overtaken any more. [BQ-53]
const MIXED_TARGET: usize = 16 * 1024;

/// Bytes in all outboxes of a connection from which a stream gets a delivery only if its own outbox is empty. [BQ-56]
const CONNECTION_TARGET: usize = 1024 * 1024;

/// Deliveries that a connection took from its session queue and has not sent.
#[derive(Default)]
pub(super) struct DeliverySender {
    egress: EgressQueue,
    ack_rtt: AckRttEstimator,
}

impl DeliverySender {
    // -- Queue -------------------------------------------------------------------------------------

    /// Takes all deliveries of the session queue. The task is woken at the next push or signal.
    pub(super) fn poll_queue(
        &mut self,
        queue: &SessionQueue,
        server: &Server,
        policy: &QueuePolicy,
        context: &Context<'_>,
    ) -> Option<Signal> {
        let resolve = |stream| server.resolve(stream);
        queue.poll_take(&mut self.egress, resolve, self.ack_rtt, policy.limits, context)
    }

    /// Evicts deliveries beyond the limits.
    pub(super) fn trim(&mut self, policy: &QueuePolicy) -> Evicted {
        self.egress.trim(policy)
    }

    /// Tells the session queue that `dropped` deliveries were evicted. Returns how many are to be logged, if it is time.
    pub(super) fn note_trimmed(
        &mut self,
        queue: &SessionQueue,
        dropped: u64,
        policy: &QueuePolicy,
        now: Instant,
    ) -> Option<u64> {
        queue.note_trimmed(&mut self.egress, dropped, policy.limits, now)
    }

    /// Moves deliveries of a stream that has ended to the control stream. [BQ-42]
    pub(super) fn redirect(&mut self, ended: StreamKey) {
        self.egress.redirect(ended);
    }

    /// Adds a delivery that does not come through the session queue.
    pub(super) fn push(&mut self, delivery: Delivery) {
        self.egress.push(delivery);
    }

    /// Takes all deliveries, in the order of sending.
    pub(super) fn drain(&mut self) -> VecDeque<Delivery> {
        self.egress.drain()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.egress.is_empty()
    }

    /// True when retained messages may be added for a stream: no delivery waits for it, and its outbox has room.
    pub(super) fn has_room(&self, server: &Server, stream: StreamKey) -> bool {
        let stream = server.resolve(stream);
        !self.egress.waits_on(stream) && server.unwritten_on(stream) < OUTBOX_TARGET
    }

    // -- Sending -----------------------------------------------------------------------------------

    /// Begins a round of sending: every lane may be asked again.
    pub(super) fn begin_round(&mut self, now: Instant) {
        self.egress.note_begin(now);
    }

    /// The most urgent delivery whose stream has room and that the peer takes, and its lane. Streams without room are
    /// passed over [BQ-53], [BQ-55] and noted in `streams`. `unwritten`: bytes in all outboxes.
    pub(super) fn next(
        &mut self,
        server: &Server,
        unwritten: usize,
        mut streams: Option<&mut StreamScheduler>,
    ) -> Option<(Lane, Delivery)> {
        let target = if self.egress.is_mixed() { MIXED_TARGET } else { OUTBOX_TARGET };
        let is_congested = unwritten >= CONNECTION_TARGET;
        self.egress.pop(|lane, delivery| {
            let own = server.unwritten_on(server.resolve(lane.stream));
            let has_room = own < target && (own == 0 || !is_congested);
            if let Some(streams) = &mut streams
                && !has_room
                && server.takes(delivery)
            {
                streams.note_refused(lane);
            }
            has_room && server.takes(delivery)
        })
    }

    /// Puts a delivery back that the peer does not take, to the front of its lane. [BQ-54]
    pub(super) fn put_back(&mut self, lane: Lane, delivery: Delivery) {
        self.egress.put_back(lane, delivery);
    }

    /// A delivery is in the outbox of `stream`.
    pub(super) fn note_sent(&mut self, stream: StreamKey, packet_id: Option<PacketId>, now: Instant) {
        self.egress.note_progress(stream, now);
        if let Some(packet_id) = packet_id {
            self.ack_rtt.note_sent(packet_id, now);
        }
    }

    /// Ends a round in which something was sent.
    pub(super) fn end_round(&mut self, now: Instant) {
        self.ack_rtt.note_progress(now);
    }

    /// The client has acknowledged a delivery.
    pub(super) fn note_acknowledged(&mut self, packet_id: PacketId, now: impl FnOnce() -> Instant) {
        if self.ack_rtt.watches(packet_id) {
            self.ack_rtt.note_complete(now());
        }
    }
}
