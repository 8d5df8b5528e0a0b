//! A client with its session as MQTT requires it, over any connection.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

use braid_proto::packet::{Ack, AckKind, Packet, PacketId, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use fastrand::Rng;

use super::model::{DeliveryModel, Got, Name};
use super::wire::{Look, Wire};
use crate::support::{CONTROL, Ended, id, topic};

/// Upper bound of unacknowledged messages of a client.
pub(super) const OUTGOING: usize = 20;

/// Packet Identifiers of QoS 1 on data streams, which other streams may use too; on the control stream; of QoS 2.
const IDS_ON_DATA: std::ops::Range<u16> = 1..40;
const IDS_ON_CONTROL: std::ops::Range<u16> = 1001..1100;
const IDS_OF_QOS2: std::ops::Range<u16> = 20..300;

/// State of a data stream, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    Open,
    /// FIN was sent, and that of the broker has not come.
    Finishing,
    /// Malformed bytes were sent on it.
    Spoilt,
}

/// An unacknowledged message of the client.
#[derive(Debug)]
struct Outgoing {
    name: Name,
    publish: Publish,
    stream: StreamKey,
    /// PUBREC came: only the PUBREL is sent again.
    is_released: bool,
    /// PUBREL was repeated: PUBCOMP may answer the first, and report the second as unknown.
    is_repeated: bool,
    /// On the next connection.
    waits: bool,
}

pub(super) struct ModelClient {
    pub(super) name: usize,
    pub(super) wire: Option<Wire>,
    /// Number of attempts to connect.
    pub(super) connection: u32,
    pub(super) streams: BTreeMap<StreamKey, StreamState>,
    pub(super) receive_maximum: Option<u16>,
    pub(super) next_number: u32,
    pub(super) model: DeliveryModel,
    /// Answers to requests, and the streams that brought them.
    pub(super) answers: Vec<(StreamKey, Packet)>,
    /// A PINGRESP has come.
    pub(super) is_answered: bool,
    /// Acknowledged since the last check.
    pub(super) accepted: Vec<Name>,
    /// Published again since the last check.
    pub(super) repeated: Vec<Name>,
    outgoing: Vec<Outgoing>,
    /// Identifiers whose exchange continued on another stream: packets of the first may come late.
    retired: HashSet<u16>,
    /// Answers to send, each with the stream of its request.
    pending: Vec<(StreamKey, Packet)>,
    /// Acknowledgements sent on data streams: a reset discards those that have not arrived.
    carried: Vec<(StreamKey, Packet)>,
    /// Identifiers of QoS 2 messages that were received and whose PUBREL has not come.
    unreleased: HashSet<PacketId>,
    /// Messages of this connection that are not completely acknowledged.
    unacknowledged: BTreeSet<PacketId>,
    /// Completed messages: they may have been repeated on another stream meanwhile.
    acknowledged: HashSet<PacketId>,
}

fn ack(kind: AckKind, packet_id: PacketId) -> Packet {
    Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success))
}

impl fmt::Debug for ModelClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, outgoing, pending, unreleased, .. } = self;
        write!(f, "{name}: {outgoing:?} {pending:?} {unreleased:?}")
    }
}

impl ModelClient {
    pub(super) fn new(name: usize) -> Self {
        Self {
            name,
            wire: None,
            connection: 0,
            streams: BTreeMap::new(),
            receive_maximum: None,
            next_number: 0,
            model: DeliveryModel::default(),
            answers: Vec::new(),
            is_answered: false,
            accepted: Vec::new(),
            repeated: Vec::new(),
            outgoing: Vec::new(),
            retired: HashSet::new(),
            pending: Vec::new(),
            carried: Vec::new(),
            unreleased: HashSet::new(),
            unacknowledged: BTreeSet::new(),
            acknowledged: HashSet::new(),
        }
    }

    pub(super) fn client_id(&self) -> String {
        format!("client-{}", self.name)
    }

    /// A stream that accepts packets of the client: often the control stream.
    pub(super) fn any_stream(&self, rng: &mut Rng) -> StreamKey {
        let open =
            self.streams.iter().filter(|(_, state)| **state == StreamState::Open).map(|(stream, _)| *stream);
        let all: Vec<_> = open.chain([CONTROL]).collect();
        rng.choice(all).unwrap_or(CONTROL)
    }

    /// A data stream that accepts packets of the client.
    pub(super) fn any_data_stream(&self, rng: &mut Rng) -> Option<StreamKey> {
        Some(self.any_stream(rng)).filter(|stream| !stream.is_control())
    }

    async fn send(&mut self, stream: StreamKey, packet: Packet) {
        self.wire.as_mut().expect("connected").send(stream, packet).await;
    }

    /// True when an exchange is incomplete in either direction, also one for the next connection.
    pub(super) fn is_busy(&self, all: bool) -> bool {
        let is_outgoing = self.outgoing.iter().any(|one| all || !one.waits);
        is_outgoing || !self.pending.is_empty() || !self.unreleased.is_empty()
    }

    /// Reads every stream again.
    pub(super) fn read_all(&mut self) {
        if let Some(lanes) = self.wire.as_mut().and_then(Wire::lanes) {
            self.streams.keys().for_each(|stream| lanes.read(*stream));
        }
    }

    // -- Sending -----------------------------------------------------------------------------------

    pub(super) fn has_room(&self) -> bool {
        self.outgoing.len() < OUTGOING
    }

    /// The messages that the broker may still have to dispatch.
    pub(super) fn unaccepted(&self) -> impl Iterator<Item = Name> {
        self.outgoing.iter().filter(|one| !one.is_released).map(|one| one.name)
    }

    fn free_id(&self, stream: StreamKey, qos: QoS, rng: &mut Rng) -> PacketId {
        let ids = match (qos, stream) {
            (QoS::ExactlyOnce, _) => IDS_OF_QOS2,
            (_, CONTROL) => IDS_ON_CONTROL,
            _ => IDS_ON_DATA,
        };
        let is_used = |value: u16| {
            qos == QoS::ExactlyOnce && self.retired.contains(&value)
                || self.outgoing.iter().any(|one| {
                    let is_same = one.publish.packet_id == Some(id(value));
                    // The rest of a QoS 2 exchange is known by its identifier alone. [BQ-21]
                    is_same && (one.stream == stream || qos == QoS::ExactlyOnce && one.publish.qos == qos)
                })
        };
        loop {
            let value = rng.u16(ids.clone());
            if !is_used(value) {
                return id(value);
            }
        }
    }

    pub(super) async fn publish(
        &mut self,
        name: Name,
        mut publish: Publish,
        stream: StreamKey,
        rng: &mut Rng,
    ) {
        if publish.qos > QoS::AtMostOnce {
            publish.packet_id = Some(self.free_id(stream, publish.qos, rng));
            let publish = publish.clone();
            self.outgoing.push(Outgoing {
                name,
                publish,
                stream,
                is_released: false,
                is_repeated: false,
                waits: false,
            });
        }
        self.send(stream, Packet::Publish(publish)).await;
    }

    /// Continues the incomplete exchanges of `stream` on the control stream. `is_ours`: this client ended the stream,
    /// and bytes that it sent there may still arrive.
    pub(super) async fn go_on(&mut self, stream: StreamKey, is_ours: bool, rng: &mut Rng) {
        let mut again = Vec::new();
        if is_ours {
            let lost = self.carried.extract_if(.., |(on, _)| *on == stream);
            self.pending.extend(lost.map(|(_, packet)| (CONTROL, packet)));
        }
        for at in 0..self.outgoing.len() {
            if self.outgoing[at].stream != stream || self.outgoing[at].waits {
                continue;
            }
            let free = self.free_id(CONTROL, QoS::AtLeastOnce, rng);
            let one = &mut self.outgoing[at];
            let packet_id = one.publish.packet_id.expect("QoS 1 or 2");
            if one.is_released {
                again.push(ack(AckKind::Pubrel, packet_id));
            } else if one.publish.qos == QoS::ExactlyOnce && is_ours {
                one.waits = true;
                continue;
            } else {
                one.publish.dup = true;
                if one.publish.qos == QoS::AtLeastOnce {
                    one.publish.packet_id = Some(free);
                }
                again.push(Packet::Publish(one.publish.clone()));
                self.repeated.push(one.name);
            }
            (one.stream, one.is_repeated) = (CONTROL, true);
            self.retired.insert(packet_id.value());
        }
        for packet in again {
            self.send(CONTROL, packet).await;
        }
    }

    /// A connection has ended: nothing of it is read any more.
    pub(super) fn forget_connection(&mut self) {
        self.wire = None;
        self.streams.clear();
        self.answers.clear();
        self.pending.clear();
        self.carried.clear();
        self.unacknowledged.clear();
        self.acknowledged.clear();
        self.retired.clear();
    }

    /// Repeats unacknowledged packets on a new connection.
    pub(super) async fn resume(&mut self, rng: &mut Rng) {
        for at in 0..self.outgoing.len() {
            let free = self.free_id(CONTROL, QoS::AtLeastOnce, rng);
            let one = &mut self.outgoing[at];
            (one.stream, one.is_repeated, one.waits) = (CONTROL, true, false);
            let packet_id = one.publish.packet_id.expect("QoS 1 or 2");
            let packet = if one.is_released {
                ack(AckKind::Pubrel, packet_id)
            } else {
                one.publish.dup = true;
                if one.publish.qos == QoS::AtLeastOnce {
                    one.publish.packet_id = Some(free);
                }
                self.repeated.push(one.name);
                Packet::Publish(one.publish.clone())
            };
            self.send(CONTROL, packet).await;
        }
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// Reads at most `limit` packets, stream by stream in any order. True when there was one.
    pub(super) async fn pump(&mut self, limit: usize, rng: &mut Rng) -> bool {
        let mut streams: Vec<_> = self.streams.keys().copied().chain([CONTROL]).collect();
        rng.shuffle(&mut streams);
        // Packets from before the end of a stream are read before their repetitions on the control stream.
        streams.sort_by_key(|stream| self.streams.get(stream) != Some(&StreamState::Spoilt));
        let mut left = limit;
        for stream in streams {
            while left > 0 {
                let Some(wire) = &mut self.wire else { return false };
                match wire.look(stream).await {
                    Look::Nothing => break,
                    Look::Packet(packet) => self.handle(stream, packet).await,
                    Look::End => {
                        self.handle_end(stream, rng).await;
                        break;
                    }
                }
                left -= 1;
            }
        }
        left < limit
    }

    async fn handle_end(&mut self, stream: StreamKey, rng: &mut Rng) {
        let state = self.streams.remove(&stream);
        let wire = self.wire.as_mut().expect("connected");
        let Some(state) = state else {
            let why = wire.why().await;
            panic!("{} lost its connection: {why:?}", self.name) // [BQ-34]
        };
        let ended = wire.ended(stream).await;
        wire.lanes().expect("QUIC").forget(stream);
        match (state, ended) {
            // [BQ-30]: after everything before it was answered.
            (StreamState::Finishing, Ended::Finished) => {
                let left = self.outgoing.iter().find(|one| one.stream == stream);
                assert!(left.is_none(), "no answer on {stream}: {:?}", left.map(|one| &one.publish));
            }
            (StreamState::Spoilt, Ended::Reset(0x81)) => self.go_on(stream, false, rng).await, // [BQ-34]
            _ => panic!("{} had {stream} {state:?}, and it {ended:?}", self.name),
        }
        self.model.moved(Some(stream));
    }

    async fn handle(&mut self, stream: StreamKey, packet: Packet) {
        // Packets that the broker repeats on the control stream count there only.
        let is_ending = self.streams.get(&stream) == Some(&StreamState::Finishing);
        match packet {
            Packet::Publish(publish) if is_ending && publish.qos > QoS::AtMostOnce => {}
            Packet::Publish(publish) => self.handle_publish(stream, &publish),
            Packet::Ack(ack) if ack.kind == AckKind::Pubrel && is_ending => drop(ack),
            Packet::Ack(Ack { kind: AckKind::Pubrel, packet_id, .. }) => {
                self.unreleased.remove(&packet_id);
                self.pending.push((stream, ack(AckKind::Pubcomp, packet_id)));
            }
            Packet::Ack(ack) => self.handle_ack(stream, &ack).await,
            Packet::Suback(_) | Packet::Unsuback(_) => self.answers.push((stream, packet)),
            Packet::Pingresp if stream.is_control() => self.is_answered = true,
            other => panic!("{other:?} on {stream}"), // [BQ-11]
        }
    }

    fn handle_publish(&mut self, stream: StreamKey, publish: &Publish) {
        let text = String::from_utf8_lossy(&publish.payload);
        let mut words = text.split([':', ' ']).map(|word| word.parse().expect("a number"));
        let (Some(publisher), Some(number), Some(to)) = (words.next(), words.next(), words.next()) else {
            panic!("{text:?} is no message of the model");
        };
        assert_eq!(publish.topic, Some(topic(super::model::TOPICS[to])));
        let name = Name { publisher, number: u32::try_from(number).expect("few") };
        let got = Got { name, qos: publish.qos, connection: self.connection, stream };
        let Some(packet_id) = publish.packet_id else { return self.model.got.push(got) };
        let was_acknowledged = publish.dup && self.acknowledged.contains(&packet_id);
        let is_new = !was_acknowledged && self.unacknowledged.insert(packet_id);
        let may_come_late = self.streams.get(&stream) == Some(&StreamState::Spoilt);
        assert!(is_new || publish.dup || may_come_late, "{packet_id} is in use: {publish:?}"); // [BQ-22]
        let most = self.receive_maximum.map_or(usize::MAX, usize::from);
        assert!(self.unacknowledged.len() <= most, "{:?} of {most}", self.unacknowledged); // [BQ-24]
        if publish.qos == QoS::AtLeastOnce {
            self.model.got.push(got);
            return self.pending.push((stream, ack(AckKind::Puback, packet_id)));
        }
        if self.unreleased.insert(packet_id) {
            self.model.got.push(got);
        }
        self.pending.push((stream, ack(AckKind::Pubrec, packet_id)));
    }

    /// [BQ-14], [BQ-20]
    async fn handle_ack(&mut self, stream: StreamKey, ack: &Ack) {
        let is_it = |one: &Outgoing| {
            let is_due = match ack.kind {
                AckKind::Puback => one.publish.qos == QoS::AtLeastOnce,
                AckKind::Pubrec => one.publish.qos == QoS::ExactlyOnce && !one.is_released,
                _ => one.is_released,
            };
            one.stream == stream && one.publish.packet_id == Some(ack.packet_id) && is_due
        };
        let at = self.outgoing.iter().position(is_it);
        let at = at.unwrap_or_else(|| panic!("{} got {ack:?} on {stream} without cause", self.name));
        let is_over = ack.kind == AckKind::Pubcomp && self.outgoing[at].is_repeated;
        assert!(!ack.reason.is_error() || is_over, "{ack:?}");
        if ack.kind != AckKind::Pubcomp {
            self.accepted.push(self.outgoing[at].name);
        }
        if ack.kind != AckKind::Pubrec {
            self.outgoing.remove(at);
            return;
        }
        let on = if self.streams.get(&stream) == Some(&StreamState::Finishing) { CONTROL } else { stream };
        let one = &mut self.outgoing[at];
        (one.is_released, one.stream) = (true, on);
        if on != stream {
            self.retired.insert(ack.packet_id.value());
        }
        self.send(on, self::ack(AckKind::Pubrel, ack.packet_id)).await;
    }

    /// Sends some or all of the pending answers in any order, mostly on the stream of their request. [BQ-22]
    pub(super) async fn answer(&mut self, all: bool, rng: &mut Rng) {
        let mut pending = std::mem::take(&mut self.pending);
        rng.shuffle(&mut pending);
        for (stream, packet) in pending {
            if !all && rng.u8(0..3) == 0 {
                self.pending.push((stream, packet));
                continue;
            }
            let is_open = stream.is_control() || self.streams.get(&stream) == Some(&StreamState::Open);
            let on = if is_open && rng.u8(0..4) > 0 { stream } else { self.any_stream(rng) };
            if let Packet::Ack(ack) = &packet
                && ack.kind != AckKind::Pubrec
            {
                self.unacknowledged.remove(&ack.packet_id);
                self.acknowledged.insert(ack.packet_id);
            }
            if !on.is_control() {
                self.carried.push((on, packet.clone()));
            }
            self.send(on, packet).await;
        }
    }
}
