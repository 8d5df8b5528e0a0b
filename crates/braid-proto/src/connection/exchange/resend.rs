//! Retransmission of unacknowledged exchanges, after a session was resumed or a stream has ended.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use super::Exchange;
use crate::connection::Resent;
use crate::connection::stream::Outbox;
use crate::message::Delivery;
use crate::reason::ReasonCode;
use crate::session::{InflightAmount, Phase};
use crate::types::{Lane, PacketId, Priority, StreamKey};
use crate::work;

/// Bytes of the control stream's outbox from which on no retransmission is added.
const RESEND_TARGET: usize = 16 * 1024;

/// Queue of exchanges to retransmit.
#[derive(Debug, Default)]
pub(super) struct ResendQueue {
    queue: BTreeMap<ResendOrder, (PacketId, Option<Priority>)>,
    /// Number of entries ever added.
    next: u64,
    /// Number of PUBLISH entries for each priority, some perhaps acknowledged meanwhile.
    publishes: BTreeMap<Priority, usize>,
}

/// Descending priority where the queue is ranked, then age. PUBREL has no priority and goes first.
type ResendOrder = (Option<Reverse<Priority>>, u64);

impl ResendQueue {
    /// Adds an exchange; `priority` is that of a PUBLISH, and orders the queue only if `is_ranked`.
    fn push(&mut self, id: PacketId, priority: Option<Priority>, is_ranked: bool) {
        work::step();
        let urgency = priority.filter(|_| is_ranked).map(Reverse);
        self.queue.insert((urgency, self.next), (id, priority));
        self.next += 1;
        if let Some(priority) = priority {
            *self.publishes.entry(priority).or_default() += 1;
        }
    }

    fn first(&self) -> Option<PacketId> {
        self.queue.first_key_value().map(|(_, (id, _))| *id)
    }

    fn pop_first(&mut self) {
        work::step();
        let Some((_, (_, Some(priority)))) = self.queue.pop_first() else { return };
        if let Some(count) = self.publishes.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                self.publishes.remove(&priority);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Highest priority in the queue: a new message may overtake it only with a higher one.
    pub(super) fn top(&self) -> Option<Priority> {
        self.publishes.last_key_value().map(|(priority, _)| *priority)
    }

    fn into_ids(self) -> Vec<PacketId> {
        self.queue.into_values().map(|(id, _)| id).collect()
    }
}

impl Exchange {
    /// Ends a data stream for the session: unfinished exchanges continue elsewhere, with [`Self::flush_resends`].
    /// [BQ-42], [BQ-21]
    pub(crate) fn end_stream(&mut self, stream: StreamKey) {
        self.session.inbound.end_stream(stream);
        let ids = self.session.outbound.end_stream(stream);
        self.add_resend(ids);
    }

    /// Ends a data stream that this side has reset after `taken` bytes. Returns the exchanges that are over: expired
    /// messages that were sent in part.
    pub(crate) fn abort_stream(&mut self, stream: StreamKey, taken: u64, now: Instant) -> Vec<PacketId> {
        self.session.inbound.end_stream(stream);
        let outbound = &mut self.session.outbound;
        let expired = outbound.expired_in_part(stream, taken, now);
        expired.iter().for_each(|id| drop(outbound.discard(*id)));
        let ids = outbound.abort_stream(stream, taken);
        self.add_resend(ids);
        expired
    }

    /// Enqueues retransmissions. A server sends them by lane, the highest priority first; a client keeps the order of
    /// the first transmission [MQTT-4.6.0-1].
    pub(super) fn add_resend(&mut self, ids: Vec<PacketId>) {
        for id in ids {
            let priority = match self.session.outbound.get(id) {
                Some(Phase::Sent(delivery)) => Some(delivery.priority),
                _ => None,
            };
            if self.driver_places_resends && priority.is_some() {
                self.unplaced.push(id);
            } else {
                self.resends.push(id, priority, !self.streams.agreement().is_client);
            }
        }
    }

    /// Leaves the stream and the time of each repeated PUBLISH to the driver; PUBREL is not affected.
    pub(crate) fn place_resends(&mut self) {
        self.driver_places_resends = true;
        let ids = std::mem::take(&mut self.resends).into_ids();
        self.add_resend(ids);
    }

    /// Takes the messages that the driver retransmits, in the order of [`Self::add_resend`].
    pub(crate) fn take_resends(&mut self) -> Vec<(PacketId, Delivery)> {
        let ids = std::mem::take(&mut self.unplaced);
        let delivery = |id: &PacketId| match self.session.outbound.unsent(*id) {
            Some(Phase::Sent(delivery)) => Some(delivery.clone()),
            _ => None,
        };
        ids.into_iter().filter_map(|id| Some((id, delivery(&id)?))).collect()
    }

    /// Whether a message may be retransmitted on a stream now, or need not be.
    pub(crate) fn takes_resend(&self, id: PacketId, on: StreamKey) -> bool {
        let outbound = &self.session.outbound;
        let Some(Phase::Sent(delivery)) = outbound.unsent(id) else { return true };
        let lane = Lane { stream: self.streams.resolve(on), ..delivery.lane() };
        // Without a limit of bytes: these payloads are kept in any case, and only their acknowledgement frees them.
        let limits = InflightAmount {
            messages: self.streams.agreement().peer_receive_maximum.into(),
            payload_bytes: usize::MAX,
        };
        let has_others = self.streams.has_others(lane.stream);
        outbound.uses_quota(id) || outbound.has_room(lane, has_others, 0, limits) // [MQTT-4.9.0-2], [BQ-24]
    }

    /// Retransmits a message on a stream, or on the control stream if that stream has ended. [BQ-21], [MQTT-3.3.1-1],
    /// [MQTT-4.3.3-7]
    pub(crate) fn resend(&mut self, id: PacketId, on: StreamKey, now: Instant) -> Resent {
        let Some(Phase::Sent(_)) = self.session.outbound.unsent(id) else { return Resent::Over };
        if !self.takes_resend(id, on) {
            return Resent::Blocked;
        }
        let on = self.streams.resolve(on);
        self.session.outbound.move_to_stream(id, on);
        if self.put_inflight(id, true, now) {
            self.session.outbound.resend(id);
            return Resent::Out(on);
        }
        self.discard(id);
        Resent::TooLarge
    }

    /// Ends the exchanges of messages that the peer refused together with their stream; returns their identifiers.
    pub(crate) fn refuse_stream(&mut self, stream: StreamKey) -> Vec<PacketId> {
        let ids = self.session.outbound.unreceived_on(stream);
        ids.iter().for_each(|id| self.discard(*id));
        ids
    }

    /// Ends an exchange as if it had been completed.
    pub(super) fn discard(&mut self, id: PacketId) {
        let over = self.session.outbound.discard(id);
        self.note_completed(over.and_then(|phase| phase.queue_lsn()));
    }

    /// Goes on with PUBREL instead of a PUBLISH of QoS 2 that must not be repeated: the peer may have received it, and
    /// would take the next message with this identifier for its repetition. False: the message is of QoS 1.
    fn release_unsent(&mut self, id: PacketId) -> bool {
        let Some(queue_lsn) = self.session.outbound.handle_pubrec(id) else { return false };
        self.note_released(id, queue_lsn, StreamKey::CONTROL);
        self.send_pubrel(StreamKey::CONTROL, id, true);
        true
    }

    pub(crate) fn is_resending(&self) -> bool {
        !self.resends.is_empty()
    }

    fn control_len(&self) -> usize {
        self.streams.outbox(StreamKey::CONTROL).map_or(0, Outbox::len)
    }

    /// Retransmits on the control stream, within the send quota and [`RESEND_TARGET`]: nothing overtakes the bytes in
    /// an outbox [BQ-53]. Must be called again after each write. Messages that `may_send` does not permit, or that
    /// exceed the Maximum Packet Size of this connection, end as if they had been completed: they are returned with the
    /// reason. [MQTT-3.1.2-25], [MQTT-4.4.0-1]
    pub(crate) fn flush_resends(
        &mut self,
        now: Instant,
        mut may_send: impl FnMut(&Delivery) -> bool,
    ) -> Vec<(PacketId, ReasonCode)> {
        let mut ended = Vec::new();
        while let Some(id) = self.resends.first()
            && self.control_len() < RESEND_TARGET
        {
            match self.session.outbound.unsent(id) {
                Some(Phase::Sent(delivery)) => {
                    if !may_send(delivery) {
                        if !self.release_unsent(id) {
                            self.discard(id);
                            ended.push((id, ReasonCode::NotAuthorized));
                        }
                    // Without a limit of bytes: these payloads are kept in any case, and only their acknowledgement
                    // frees them.
                    } else if !self.session.outbound.uses_quota(id) && !self.has_peer_room() {
                        break; // [MQTT-4.9.0-2]
                    // A message that was sent once no longer expires. [MQTT-3.3.1-1], [MQTT-4.3.3-7]
                    } else if self.put_inflight(id, true, now) {
                        self.session.outbound.resend(id);
                    } else {
                        self.discard(id);
                        ended.push((id, ReasonCode::PacketTooLarge));
                    }
                }
                Some(Phase::Released(_)) => {
                    if self.session.outbound.resend(id) {
                        self.send_pubrel(StreamKey::CONTROL, id, true); // [MQTT-4.3.3-6]
                    }
                }
                Some(Phase::Request) | None => {}
            }
            self.resends.pop_first();
        }
        ended
    }
}
