//! Sender's half of QoS 1 and 2, with its send quota.

use std::num::NonZeroU64;
use std::time::Instant;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::message::Delivery;
use crate::types::{Lane, PacketId, Priority, QoS, StreamKey};
use crate::work;

/// Sender's half of QoS 1 and 2 (MQTT 4.3.2, 4.3.3), with the packet identifiers of the session.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    inflight: HashMap<PacketId, Inflight, FxBuildHasher>,
    next_id: PacketId,
    next_order: u64,
    /// Bytes in a spool of the payloads kept for retransmission.
    spooled_bytes: usize,
    quota: LaneQuota,
}

/// Inflight exchange.
#[derive(Clone, Debug)]
struct Inflight {
    phase: Phase,
    /// Order of the first PUBLISH, then of the first PUBREL.
    order: u64,
    /// Whether its PUBLISH or PUBREL was sent on this connection, on a stream that has not ended.
    sent_on_connection: bool,
    /// Whether the exchange counts against the peer's Receive Maximum: it was sent on this connection, perhaps on a
    /// stream that has ended since.
    uses_quota: bool,
    /// Whether its PUBLISH was retransmitted.
    is_repeated: bool,
    /// Lane whose quota it uses.
    lane: Lane,
    /// Stream of its last packet.
    stream: StreamKey,
    /// Offset of the end of its PUBLISH on a data stream.
    end: u64,
}

/// Phase of an exchange.
#[derive(Clone, Debug)]
pub enum Phase {
    /// PUBLISH was sent: PUBACK or PUBREC is outstanding.
    Sent(Delivery),
    /// PUBREL was sent: PUBCOMP is outstanding. With the [`Delivery::queue_lsn`] of the message.
    Released(Option<NonZeroU64>),
    /// SUBSCRIBE or UNSUBSCRIBE was sent: its answer is outstanding.
    Request,
}

impl Outbound {
    /// Allocates an identifier; `None` when all 65,535 are in use. [MQTT-2.2.1-3],
    /// [MQTT-2.2.1-4], [MQTT-4.3.2-1], [MQTT-4.3.3-1]
    fn allocate(&mut self) -> Option<PacketId> {
        if !self.has_free_id() {
            return None;
        }
        let mut id = self.next_id;
        while self.inflight.contains_key(&id) {
            id = id.next();
        }
        self.next_id = id.next();
        Some(id)
    }

    /// Begins behind an identifier, so that those up to it are not used before all others were.
    pub(crate) fn begin_behind(&mut self, id: PacketId) {
        if self.next_id <= id {
            self.next_id = id.next();
        }
    }

    fn insert(&mut self, id: PacketId, phase: Phase, lane: Lane, sent_on_connection: bool) {
        self.spooled_bytes += phase.spooled_len();
        if !matches!(phase, Phase::Request) {
            self.quota.add(lane, usize::from(sent_on_connection), phase.payload_len());
        }
        let inflight = Inflight {
            phase,
            order: self.next_order,
            sent_on_connection,
            uses_quota: sent_on_connection,
            is_repeated: false,
            lane,
            stream: lane.stream,
            end: 0,
        };
        self.inflight.insert(id, inflight);
        self.next_order += 1;
    }

    /// Begins the exchange of a QoS 1 or 2 delivery, which is sent now.
    ///
    /// # Errors
    /// Gives the delivery back when no identifier is free.
    pub fn send(&mut self, delivery: Delivery) -> Result<PacketId, Box<Delivery>> {
        debug_assert!(delivery.qos > QoS::AtMostOnce);
        let Some(id) = self.allocate() else { return Err(Box::new(delivery)) };
        let lane = delivery.lane();
        self.insert(id, Phase::Sent(delivery), lane, true);
        Ok(id)
    }

    /// Allocates an identifier for a SUBSCRIBE or UNSUBSCRIBE on a stream; `None` when none is free.
    pub fn send_request(&mut self, stream: StreamKey) -> Option<PacketId> {
        let id = self.allocate()?;
        self.insert(id, Phase::Request, Lane { stream, ..Lane::default() }, false);
        Some(id)
    }

    /// Takes over an identifier that [`Outbound::send_request`] of another session allocated. False, with nothing
    /// changed: it is in use.
    pub(crate) fn restore_request(&mut self, packet_id: PacketId, stream: StreamKey) -> bool {
        self.restore_in(packet_id, Phase::Request, Lane { stream, ..Lane::default() })
    }

    /// Notes the retransmission of an exchange. False: it was sent on this connection before.
    pub(crate) fn resend(&mut self, packet_id: PacketId) -> bool {
        let Some(inflight) = self.inflight.get_mut(&packet_id) else { return false };
        let first = !inflight.sent_on_connection;
        inflight.sent_on_connection = true;
        inflight.is_repeated |= matches!(inflight.phase, Phase::Sent(_));
        let is_new = !std::mem::replace(&mut inflight.uses_quota, true);
        self.quota.add(inflight.lane, usize::from(is_new), 0);
        first
    }

    /// Moves an exchange to the stream of its retransmission.
    pub(crate) fn move_to_stream(&mut self, packet_id: PacketId, stream: StreamKey) {
        let Some(inflight) = self.inflight.get_mut(&packet_id) else { return };
        let (messages, payload_bytes) = (usize::from(inflight.uses_quota), inflight.phase.payload_len());
        self.quota.remove(inflight.lane, messages, payload_bytes);
        inflight.stream = stream;
        inflight.lane.stream = stream;
        if let Phase::Sent(delivery) = &mut inflight.phase {
            delivery.stream = stream;
        }
        self.quota.add(inflight.lane, messages, payload_bytes);
    }

    /// Sets the stream of the exchange's last packet.
    pub(crate) fn set_stream(&mut self, packet_id: PacketId, stream: StreamKey) {
        if let Some(inflight) = self.inflight.get_mut(&packet_id) {
            inflight.stream = stream;
        }
    }

    /// Sets the offset of the end of its PUBLISH on the stream.
    pub(crate) fn set_end(&mut self, packet_id: PacketId, end: u64) {
        if let Some(inflight) = self.inflight.get_mut(&packet_id) {
            inflight.end = end;
        }
    }

    /// Restores an exchange of an earlier process, behind those restored before. [`Outbound::resume`] continues it.
    /// False, with nothing changed: the identifier is in use.
    pub fn restore(&mut self, packet_id: PacketId, phase: Phase) -> bool {
        let lane = phase.lane();
        self.restore_in(packet_id, phase, lane)
    }

    fn restore_in(&mut self, packet_id: PacketId, phase: Phase, lane: Lane) -> bool {
        if self.inflight.contains_key(&packet_id) {
            return false;
        }
        self.insert(packet_id, phase, lane, false);
        // Identifiers continue behind the last one that was used. [MQTT-2.2.1-3]
        self.next_id = packet_id.next();
        true
    }

    /// Ends an exchange that cannot continue.
    pub(crate) fn discard(&mut self, packet_id: PacketId) -> Option<Phase> {
        self.remove_if(packet_id, |_| true)
    }

    /// Handles PUBACK: the delivery of the QoS 1 exchange that it ends.
    pub fn handle_puback(&mut self, packet_id: PacketId) -> Option<Delivery> {
        self.remove_if(
            packet_id,
            |phase| matches!(phase, Phase::Sent(delivery) if delivery.qos == QoS::AtLeastOnce),
        )
        .and_then(Phase::into_delivery)
    }

    /// Handles PUBREC with a success, and returns [`Delivery::queue_lsn`] of the message. `None`: no QoS 2 message has
    /// this identifier. The payload is dropped, since it must not be sent again. [MQTT-4.3.3-6]
    ///
    /// A repeated PUBREC returns it too: the store may not have recorded the first.
    pub fn handle_pubrec(&mut self, packet_id: PacketId) -> Option<Option<NonZeroU64>> {
        let inflight = self.inflight.get_mut(&packet_id)?;
        match &inflight.phase {
            Phase::Sent(delivery) if delivery.qos == QoS::ExactlyOnce => {
                let queue_lsn = delivery.queue_lsn;
                let payload_bytes = delivery.message.payload_len();
                self.spooled_bytes -= inflight.phase.spooled_len();
                self.quota.remove(inflight.lane, 0, payload_bytes);
                inflight.phase = Phase::Released(queue_lsn); // [MQTT-4.3.3-3]
                inflight.order = self.next_order; // [MQTT-4.6.0-4]
                self.next_order += 1;
                self.resend(packet_id);
                Some(queue_lsn)
            }
            Phase::Released(queue_lsn) => Some(*queue_lsn),
            Phase::Sent(_) | Phase::Request => None,
        }
    }

    /// Handles PUBREC with a failure, and returns the exchange that it ends. `None`: no QoS 2 message has this
    /// identifier.
    pub fn handle_pubrec_error(&mut self, packet_id: PacketId) -> Option<Phase> {
        self.remove_if(packet_id, |phase| {
            matches!(phase, Phase::Released(_))
                || matches!(phase, Phase::Sent(delivery) if delivery.qos == QoS::ExactlyOnce)
        })
    }

    /// Handles PUBCOMP, and returns the exchange that it ends. `None`: no exchange waits for it.
    pub fn handle_pubcomp(&mut self, packet_id: PacketId) -> Option<Phase> {
        self.remove_if(packet_id, |phase| matches!(phase, Phase::Released(_)))
    }

    /// Handles SUBACK and UNSUBACK. False: no request waits for it.
    pub fn handle_answer(&mut self, packet_id: PacketId) -> bool {
        self.remove_if(packet_id, |phase| matches!(phase, Phase::Request)).is_some()
    }

    fn remove_if(&mut self, packet_id: PacketId, wanted: impl Fn(&Phase) -> bool) -> Option<Phase> {
        if !self.inflight.get(&packet_id).is_some_and(|inflight| wanted(&inflight.phase)) {
            return None;
        }
        let Inflight { phase, uses_quota, lane, .. } = self.inflight.remove(&packet_id)?;
        self.spooled_bytes -= phase.spooled_len();
        self.quota.remove(lane, usize::from(uses_quota), phase.payload_len());
        // An idle session keeps no table capacity.
        if self.inflight.is_empty() && self.inflight.capacity() > 64 {
            self.inflight = HashMap::default();
        }
        Some(phase)
    }

    /// Phase of the exchange with this identifier.
    pub fn get(&self, packet_id: PacketId) -> Option<&Phase> {
        self.inflight.get(&packet_id).map(|inflight| &inflight.phase)
    }

    /// Phase of the exchange with this identifier, unless it was sent on this connection.
    pub(crate) fn unsent(&self, packet_id: PacketId) -> Option<&Phase> {
        self.inflight
            .get(&packet_id)
            .filter(|inflight| !inflight.sent_on_connection)
            .map(|inflight| &inflight.phase)
    }

    /// Whether the exchange counts against the peer's Receive Maximum.
    pub fn uses_quota(&self, packet_id: PacketId) -> bool {
        self.inflight.get(&packet_id).is_some_and(|inflight| inflight.uses_quota)
    }

    /// Stream of a retransmitted PUBLISH, which the peer may receive after it has answered the first one.
    pub(crate) fn repeated_on(&self, packet_id: PacketId) -> Option<StreamKey> {
        let inflight = self.inflight.get(&packet_id).filter(|inflight| inflight.is_repeated)?;
        Some(inflight.stream)
    }

    /// Number of exchanges.
    pub fn len(&self) -> usize {
        self.inflight.len()
    }

    /// Bytes of the payloads kept until they are acknowledged.
    pub fn payload_bytes(&self) -> usize {
        self.quota.total.payload_bytes
    }

    /// Bytes of these payloads in the heap, not in a spool.
    pub fn heap_bytes(&self) -> usize {
        self.payload_bytes() - self.spooled_bytes
    }

    /// Charges the messages of an offline client as offline, until they are acknowledged.
    pub fn charge_offline(&mut self) {
        for inflight in self.inflight.values_mut() {
            if let Phase::Sent(delivery) = &mut inflight.phase {
                delivery.charge_offline();
            }
        }
    }

    /// Whether there is no exchange.
    pub fn is_empty(&self) -> bool {
        self.inflight.is_empty()
    }

    /// Whether a packet identifier is free.
    pub fn has_free_id(&self) -> bool {
        self.inflight.len() < usize::from(u16::MAX)
    }

    /// Number of messages that were sent on this connection and are not acknowledged, which the peer's Receive Maximum
    /// limits. [MQTT-4.9.0-1]
    pub fn unacknowledged(&self) -> usize {
        self.quota.total.messages
    }

    /// Whether a lane may send one more message of this size. [MQTT-4.9.0-2], [BQ-24]
    pub(crate) fn has_room(
        &self,
        lane: Lane,
        has_others: bool,
        payload_len: usize,
        limits: InflightAmount,
    ) -> bool {
        self.quota.allows(lane, has_others, payload_len, limits)
    }

    /// Begins a new connection, and returns the exchanges to retransmit: PUBRELs in the order of their PUBRECs, which
    /// no quota delays, then PUBLISHes in the order of their first transmission. Requests end with their connection,
    /// and their identifiers are free again.
    pub fn resume(&mut self) -> Vec<PacketId> {
        self.inflight.retain(|_, inflight| !matches!(inflight.phase, Phase::Request));
        self.quota = LaneQuota::default();
        self.inflight.values_mut().for_each(|inflight| inflight.uses_quota = false);
        let ids = self.inflight.keys().copied().collect();
        self.requeue(ids)
    }

    /// Ends a stream, and returns the exchanges to retransmit on the control stream, in the order of
    /// [`Outbound::resume`].
    /// [BQ-42]
    pub(crate) fn end_stream(&mut self, stream: StreamKey) -> Vec<PacketId> {
        self.end_stream_if(stream, |_| true)
    }

    /// Ends a stream that this side has reset after `taken` bytes. A QoS 2 message that the peer may have received
    /// stays until the next connection: retransmitted on another stream it could arrive before the end of this one, and
    /// would be a new message [BQ-20].
    pub(crate) fn abort_stream(&mut self, stream: StreamKey, taken: u64) -> Vec<PacketId> {
        self.end_stream_if(stream, |inflight| match &inflight.phase {
            Phase::Sent(delivery) => delivery.qos < QoS::ExactlyOnce || inflight.end > taken,
            Phase::Released(_) | Phase::Request => true,
        })
    }

    /// Expired messages on a stream of which the peer cannot have received more than a part.
    pub(crate) fn expired_in_part(&self, stream: StreamKey, taken: u64, now: Instant) -> Vec<PacketId> {
        let is_over = |inflight: &Inflight| match &inflight.phase {
            Phase::Sent(delivery) => delivery.message.is_expired(now),
            Phase::Released(_) | Phase::Request => false,
        };
        self.select_on(stream, |inflight| inflight.end > taken && is_over(inflight))
    }

    /// Messages on a stream that the peer has not acknowledged.
    pub(crate) fn unreceived_on(&self, stream: StreamKey) -> Vec<PacketId> {
        self.select_on(stream, |inflight| matches!(inflight.phase, Phase::Sent(_)))
    }

    /// Exchanges on a stream for which `wanted` is true, in ascending order.
    ///
    /// Scans all exchanges: streams end rarely, and an index would cost every message.
    fn select_on(&self, stream: StreamKey, wanted: impl Fn(&Inflight) -> bool) -> Vec<PacketId> {
        let is_wanted = |inflight: &Inflight| inflight.stream == stream && wanted(inflight);
        let mut ids: Vec<_> =
            self.inflight.iter().filter(|(_, inflight)| is_wanted(inflight)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    fn end_stream_if(&mut self, stream: StreamKey, wanted: impl Fn(&Inflight) -> bool) -> Vec<PacketId> {
        let ended =
            self.select_on(stream, |inflight| !matches!(inflight.phase, Phase::Request) && wanted(inflight));
        for inflight in ended.iter().filter_map(|id| self.inflight.get(id)) {
            let messages = usize::from(inflight.uses_quota);
            self.quota.remove(inflight.lane, messages, inflight.phase.payload_len());
        }
        self.quota.end_stream(stream);
        self.requeue(ended)
    }

    /// Ends the requests of a stream that has ended, which will not be answered. Their identifiers are free again.
    pub(crate) fn take_requests(&mut self, stream: StreamKey) -> Vec<PacketId> {
        let ids = self.select_on(stream, |inflight| matches!(inflight.phase, Phase::Request));
        ids.iter().for_each(|id| drop(self.discard(*id)));
        ids
    }

    /// Moves exchanges to the control stream for retransmission, and orders them. Exchanges of an ended stream still
    /// count against the quota: the peer has not acknowledged them. [MQTT-4.9.0-1]
    fn requeue(&mut self, ids: Vec<PacketId>) -> Vec<PacketId> {
        let mut order = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(inflight) = self.inflight.get_mut(&id) else { continue };
            inflight.sent_on_connection = false;
            inflight.stream = StreamKey::CONTROL;
            inflight.lane.stream = StreamKey::CONTROL;
            if let Phase::Sent(delivery) = &mut inflight.phase {
                delivery.stream = StreamKey::CONTROL;
            }
            self.quota.add(inflight.lane, usize::from(inflight.uses_quota), inflight.phase.payload_len());
            order.push((matches!(inflight.phase, Phase::Sent(_)), inflight.order, id));
        }
        order.sort_unstable(); // [MQTT-4.6.0-1], [MQTT-4.6.0-4]
        order.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Ends the session: its unacknowledged QoS 1 and 2 messages, in the order of sending.
    pub fn into_unacknowledged(mut self) -> Vec<Delivery> {
        let order = self.resume();
        order
            .into_iter()
            .filter_map(|id| self.inflight.remove(&id).and_then(|inflight| inflight.phase.into_delivery()))
            .collect()
    }
}

impl Phase {
    fn payload_len(&self) -> usize {
        if let Self::Sent(delivery) = self { delivery.message.payload_len() } else { 0 }
    }

    fn spooled_len(&self) -> usize {
        match self {
            Self::Sent(delivery) if delivery.message.is_spooled() => delivery.message.payload_len(),
            _ => 0,
        }
    }

    fn lane(&self) -> Lane {
        if let Self::Sent(delivery) = self { delivery.lane() } else { Lane::default() }
    }

    /// [`Delivery::queue_lsn`] of the message, also of a released one.
    pub(crate) fn queue_lsn(&self) -> Option<NonZeroU64> {
        match self {
            Self::Sent(delivery) => delivery.queue_lsn,
            Self::Released(queue_lsn) => *queue_lsn,
            Self::Request => None,
        }
    }

    fn into_delivery(self) -> Option<Delivery> {
        if let Self::Sent(delivery) = self { Some(delivery) } else { None }
    }
}

/// Maximum bytes of a payload to which the limit of inflight bytes does not apply: such messages are bounded by number.
const SMALL_PAYLOAD: usize = 4096;

/// Use of the send quota, in total and by lane: a lane that is stuck must not use all of the Receive Maximum. [BQ-24]
#[derive(Clone, Debug, Default)]
struct LaneQuota {
    /// Messages that count against the peer's Receive Maximum, and bytes of all payloads kept for retransmission.
    total: InflightAmount,
    /// Lanes used since the connection began, ascending; mostly one. Beyond [`LANES_KEPT`] only those in use.
    lanes: Vec<LaneUsage>,
}

#[derive(Clone, Debug)]
struct LaneUsage {
    lane: Lane,
    messages: usize,
    payload_bytes: usize,
}

/// Number of inflight messages, and bytes of their payloads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InflightAmount {
    pub(crate) messages: usize,
    pub(crate) payload_bytes: usize,
}

/// Number of lanes above which unused ones are removed.
const LANES_KEPT: usize = 64;

/// Number of messages that a lane leaves free for lanes above the default priority, so that their first message never
/// waits for an acknowledgement of bulk.
fn reserve(lane: Lane, messages: usize) -> usize {
    if lane.priority > Priority::DEFAULT { 0 } else { messages / 16 }
}

impl LaneQuota {
    fn find(&self, lane: Lane) -> Result<usize, usize> {
        work::step();
        self.lanes.binary_search_by_key(&lane, |usage| usage.lane)
    }

    fn add(&mut self, lane: Lane, messages: usize, payload_bytes: usize) {
        self.total.messages += messages;
        self.total.payload_bytes += payload_bytes;
        match self.find(lane) {
            Ok(at) => {
                self.lanes[at].messages += messages;
                self.lanes[at].payload_bytes += payload_bytes;
            }
            Err(at) => self.lanes.insert(at, LaneUsage { lane, messages, payload_bytes }),
        }
    }

    fn remove(&mut self, lane: Lane, messages: usize, payload_bytes: usize) {
        self.total.messages -= messages;
        self.total.payload_bytes -= payload_bytes;
        let Ok(at) = self.find(lane) else { return };
        self.lanes[at].messages -= messages;
        self.lanes[at].payload_bytes -= payload_bytes;
        if self.lanes[at].is_empty() && self.lanes.len() > LANES_KEPT {
            self.lanes.remove(at);
        }
    }

    /// Removes the unused lanes of a stream that has ended.
    fn end_stream(&mut self, stream: StreamKey) {
        let start = self.lanes.partition_point(|usage| usage.lane.stream < stream);
        let end = self.lanes.partition_point(|usage| usage.lane.stream <= stream);
        let used: Vec<_> = self.lanes[start..end].iter().filter(|usage| !usage.is_empty()).cloned().collect();
        self.lanes.splice(start..end, used);
    }

    /// Whether a lane may send one more message of this size. `has_others`: whether other streams are open, which may
    /// use a lane later.
    ///
    /// A single lane may use everything. With several, each may use up to eight times the free rest, so that the next
    /// one finds room even beside stuck lanes; and each may always send one message while any is free.
    fn allows(&self, lane: Lane, has_others: bool, payload_len: usize, limits: InflightAmount) -> bool {
        let free = limits.messages.saturating_sub(self.total.messages);
        if free <= reserve(lane, limits.messages) {
            return false;
        }
        let own = self.find(lane).ok().map(|at| &self.lanes[at]);
        let is_alone = !has_others && self.lanes.len() == usize::from(own.is_some());
        let (messages, payload_bytes) = own.map_or((0, 0), |usage| (usage.messages, usage.payload_bytes));
        if !is_alone && messages > 0 && messages >= (free - 1).saturating_mul(8) {
            return false;
        }
        payload_len <= SMALL_PAYLOAD || payload_bytes == 0 || self.total.payload_bytes <= limits.payload_bytes
    }
}

impl LaneUsage {
    const fn is_empty(&self) -> bool {
        self.messages == 0 && self.payload_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(n: u32) -> Lane {
        Lane { stream: StreamKey::bidi(n), priority: Priority::new(200) }
    }

    /// Fills the lanes one after the other; returns the number of messages of each.
    fn fill(lanes: u32, maximum: usize) -> Vec<usize> {
        let mut quota = LaneQuota::default();
        (0..lanes).for_each(|n| quota.add(lane(n), 0, 0));
        let limits = InflightAmount { messages: maximum, payload_bytes: 100 };
        let mut messages = 0;
        let one = |n| {
            let before = messages;
            while quota.allows(lane(n), false, 1, limits) {
                quota.add(lane(n), 1, 0);
                messages += 1;
            }
            messages - before
        };
        (0..lanes).map(one).collect()
    }

    /// [BQ-24]
    #[test]
    fn a_lane_leaves_room_for_the_next() {
        assert_eq!(fill(1, 1024), [1024], "alone");
        assert_eq!(fill(3, 1024), [910, 101, 11]);
        assert_eq!(fill(3, 20), [17, 2, 1]);
        assert_eq!(fill(2, 2), [1, 1]);
        assert_eq!(fill(2, 1), [1, 0]);
    }

    #[test]
    fn default_priority_leaves_room_for_higher_ones() {
        let lane = |priority| Lane { stream: StreamKey::CONTROL, priority: Priority::new(priority) };
        let mut quota = LaneQuota::default();
        for (maximum, most) in [(1, 1), (15, 15), (16, 15), (100, 94), (1024, 960)] {
            let limits = InflightAmount { messages: maximum, payload_bytes: 0 };
            let mut allows = |priority, messages| {
                quota.total.messages = messages;
                quota.allows(lane(priority), false, 1, limits)
            };
            assert!(allows(100, most - 1) && (most == maximum || !allows(100, most)), "{maximum}");
            assert!(allows(101, maximum - 1) && !allows(101, maximum));
        }
    }

    #[test]
    fn large_inflight_payloads_do_not_stop_small_ones_or_other_lanes() {
        let mut quota = LaneQuota::default();
        quota.add(lane(0), 1, 200_000);
        let limits = InflightAmount { messages: 10, payload_bytes: 100_000 };
        assert!(!quota.allows(lane(0), false, 5000, limits));
        assert!(quota.allows(lane(0), false, SMALL_PAYLOAD, limits));
        assert!(quota.allows(lane(1), false, 5000, limits));
    }
}
