//! What a resumed session, or one of whose streams one has ended, must send again.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use super::{Exchange, Resent};
use crate::connection::outbox::Outbox;
use crate::message::Delivery;
use crate::packet::PacketId;
use crate::session::{Limits, Phase};
use crate::stream::{Lane, Priority, StreamKey};
use crate::work;

/// Bytes on the control stream above which nothing more is sent again.
const RESEND_TARGET: usize = 16 * 1024;

/// Exchanges in the order in which they go on.
#[derive(Debug, Default)]
pub(super) struct Resends {
    queue: BTreeMap<Place, (PacketId, Option<Priority>)>,
    /// Counts all that there ever were.
    next: u64,
    /// How many PUBLISH of each priority are in the queue, be it that some were acknowledged meanwhile.
    publishes: BTreeMap<Priority, usize>,
}

/// By urgency, where that counts, and then by age. PUBREL, which has none, goes before all.
type Place = (Option<Reverse<Priority>>, u64);

impl Resends {
    /// `priority`: of a PUBLISH; `is_ranked`: it counts.
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

    /// The highest priority in it: nothing new goes before its equals, everything more urgent does.
    pub(super) fn top(&self) -> Option<Priority> {
        self.publishes.last_key_value().map(|(priority, _)| *priority)
    }

    fn into_ids(self) -> Vec<PacketId> {
        self.queue.into_values().map(|(id, _)| id).collect()
    }
}

impl Exchange {
    /// A data stream has ended, or answers nothing new any more: what it had not finished goes on elsewhere.
    /// [BQ-42], [BQ-21]
    pub(crate) fn end_stream(&mut self, stream: StreamKey, now: Instant) -> Vec<PacketId> {
        self.session.inbound.end_stream(stream);
        let ids = self.session.outbound.end_stream(stream);
        self.add_resend(ids);
        self.flush_resend(now)
    }

    /// This side has ended a data stream after `taken` bytes. Returns what is over: messages of which the peer has
    /// only a part and that have expired, and what exceeds its Maximum Packet Size.
    pub(crate) fn abort_stream(
        &mut self,
        stream: StreamKey,
        taken: u64,
        now: Instant,
    ) -> (Vec<PacketId>, Vec<PacketId>) {
        self.session.inbound.end_stream(stream);
        let outbound = &mut self.session.outbound;
        let expired = outbound.expired_in_part(stream, taken, now);
        expired.iter().for_each(|id| drop(outbound.discard(*id)));
        let ids = outbound.abort_stream(stream, taken);
        self.add_resend(ids);
        (expired, self.flush_resend(now))
    }

    /// Adds what must be sent again. A server does so lane by lane, the most urgent first; a client keeps the order
    /// in which it first sent [MQTT-4.6.0-1].
    pub(super) fn add_resend(&mut self, ids: Vec<PacketId>) {
        for id in ids {
            let priority = match self.session.outbound.get(id) {
                Some(Phase::Sent(delivery)) => Some(delivery.priority),
                _ => None,
            };
            if self.places_resends && priority.is_some() {
                self.to_place.push(id);
            } else {
                self.resends.push(id, priority, !self.agreement.is_client);
            }
        }
    }

    /// From now on the shell places what is sent again, but for each PUBREL.
    pub(crate) fn place_resends(&mut self) {
        self.places_resends = true;
        let ids = std::mem::take(&mut self.resends).into_ids();
        self.add_resend(ids);
    }

    /// What the shell is to place, in the order of [`Self::add_resend`].
    pub(crate) fn take_resends(&mut self) -> Vec<(PacketId, Delivery)> {
        let ids = std::mem::take(&mut self.to_place);
        let delivery = |id: &PacketId| match self.session.outbound.unsent(*id) {
            Some(Phase::Sent(delivery)) => Some(delivery.clone()),
            _ => None,
        };
        ids.into_iter().filter_map(|id| Some((id, delivery(&id)?))).collect()
    }

    /// Whether a message may be sent again on a stream now; true as well when there is nothing to send any more.
    pub(crate) fn takes_resend(&self, id: PacketId, on: StreamKey) -> bool {
        let outbound = &self.session.outbound;
        let Some(Phase::Sent(delivery)) = outbound.unsent(id) else { return true };
        let lane = Lane { stream: self.streams.resolve(on), ..delivery.lane() };
        // However many bytes they are: they are kept in any case, and nothing else makes room.
        let limits =
            Limits { messages: self.agreement.peer_receive_maximum.into(), payload_bytes: usize::MAX };
        let has_others = self.streams.has_others(lane.stream);
        outbound.counts(id) || outbound.has_room(lane, has_others, 0, limits) // [MQTT-4.9.0-2], [BQ-24]
    }

    /// Sends a message again on a stream, or on the control stream if that has ended. [BQ-21], [MQTT-3.3.1-1],
    /// [MQTT-4.3.3-7]
    pub(crate) fn resend(&mut self, id: PacketId, on: StreamKey, now: Instant) -> Resent {
        let Some(Phase::Sent(_)) = self.session.outbound.unsent(id) else { return Resent::Over };
        if !self.takes_resend(id, on) {
            return Resent::Blocked;
        }
        let on = self.streams.resolve(on);
        self.session.outbound.place(id, on);
        if self.put_inflight(id, true, now) {
            self.session.outbound.resend(id);
            return Resent::Out(on);
        }
        let over = self.session.outbound.discard(id);
        self.note_completed(over.and_then(|phase| phase.queue_lsn()));
        Resent::TooLarge
    }

    /// The peer has ended a stream because of what is on it: the messages there that it has not taken over are.
    pub(crate) fn refuse_stream(&mut self, stream: StreamKey) -> Vec<PacketId> {
        let ids = self.session.outbound.unreceived_on(stream);
        for id in &ids {
            let over = self.session.outbound.discard(*id);
            self.note_completed(over.and_then(|phase| phase.queue_lsn()));
        }
        ids
    }

    pub(crate) fn is_resending(&self) -> bool {
        !self.resends.is_empty()
    }

    fn control_len(&self) -> usize {
        self.streams.outbox(StreamKey::CONTROL).map_or(0, Outbox::len)
    }

    /// Sends what a resumed session owes, as far as the quota goes, and a little at a time: it goes on the control
    /// stream, and what is encoded there cannot be overtaken [BQ-53]. Call it again when some is written. Returns what
    /// exceeds the Maximum Packet Size of this connection: those exchanges are over as if they had been completed.
    /// [MQTT-3.1.2-25], [MQTT-4.4.0-1]
    pub(crate) fn flush_resend(&mut self, now: Instant) -> Vec<PacketId> {
        let mut too_large = Vec::new();
        if self.resends.is_empty() {
            return too_large;
        }
        while let Some(id) = self.resends.first()
            && self.control_len() < RESEND_TARGET
        {
            match self.session.outbound.unsent(id) {
                Some(Phase::Sent(_)) => {
                    // However many bytes they are: they are kept in any case, and nothing else makes room.
                    if !self.session.outbound.counts(id) && !self.has_peer_room() {
                        break; // [MQTT-4.9.0-2]
                    }
                    // Once sent it no longer expires. [MQTT-3.3.1-1], [MQTT-4.3.3-7]
                    if self.put_inflight(id, true, now) {
                        self.session.outbound.resend(id);
                    } else {
                        let over = self.session.outbound.discard(id);
                        self.note_completed(over.and_then(|phase| phase.queue_lsn()));
                        too_large.push(id);
                    }
                }
                Some(Phase::Released(_)) => {
                    if self.session.outbound.resend(id) {
                        self.send_pubrel(StreamKey::CONTROL, id, true); // [MQTT-4.3.3-6]
                    }
                }
                Some(Phase::Control) | None => {}
            }
            self.resends.pop_first();
        }
        too_large
    }
}
