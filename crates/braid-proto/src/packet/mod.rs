//! Control Packets of MQTT, one type for each, with encoders and decoders for all protocol versions.

mod ack;
mod connect;
mod disconnect;
mod properties;
mod publish;
mod secret;
mod subscribe;
mod user_properties;

use bytes::{BufMut, BytesMut};

pub use crate::types::{ClientId, PacketId, PacketType, Payload, ProtocolVersion, QoS, QuicHint};
use crate::types::{PayloadSlice, Violation};
use crate::wire::{Reader, put_measured};
pub use ack::{Ack, AckKind, AckProperties};
pub use connect::{Connack, ConnackProperties, Connect, ConnectProperties, RESUME_PROPERTY, Will};
pub use disconnect::{Auth, Disconnect};

pub(crate) use properties::id;
pub use publish::{MessageProperties, OFFSET_PROPERTY, Publish};
pub(crate) use publish::{PublishHead, TopicCache, put_publish_head};
pub use subscribe::{Suback, Subscribe, SubscribeEntry, Unsuback, Unsubscribe};
pub use user_properties::UserProperties;

/// Control Packet of which the payload may be in the input that was decoded.
pub(crate) type BorrowedPacket<'a> = Packet<PayloadSlice<'a>>;

/// PUBLISH of which the payload may be in the input that was decoded.
pub(crate) type BorrowedPublish<'a> = Publish<PayloadSlice<'a>>;

/// One Control Packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet<P = Payload> {
    /// CONNECT (3.1).
    Connect(Box<Connect>),
    /// CONNACK (3.2).
    Connack(Box<Connack>),
    /// PUBLISH (3.3).
    Publish(Publish<P>),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7).
    Ack(Ack),
    /// SUBSCRIBE (3.8).
    Subscribe(Box<Subscribe>),
    /// SUBACK (3.9).
    Suback(Box<Suback>),
    /// UNSUBSCRIBE (3.10).
    Unsubscribe(Box<Unsubscribe>),
    /// UNSUBACK (3.11).
    Unsuback(Box<Unsuback>),
    /// PINGREQ (3.12).
    Pingreq,
    /// PINGRESP (3.13).
    Pingresp,
    /// DISCONNECT (3.14).
    Disconnect(Box<Disconnect>),
    /// AUTH (3.15).
    Auth(Box<Auth>),
}

impl<P> Packet<P> {
    /// Packet type.
    pub fn packet_type(&self) -> PacketType {
        match self {
            Self::Connect(_) => PacketType::Connect,
            Self::Connack(_) => PacketType::Connack,
            Self::Publish(_) => PacketType::Publish,
            Self::Ack(ack) => ack.kind.packet_type(),
            Self::Subscribe(_) => PacketType::Subscribe,
            Self::Suback(_) => PacketType::Suback,
            Self::Unsubscribe(_) => PacketType::Unsubscribe,
            Self::Unsuback(_) => PacketType::Unsuback,
            Self::Pingreq => PacketType::Pingreq,
            Self::Pingresp => PacketType::Pingresp,
            Self::Disconnect(_) => PacketType::Disconnect,
            Self::Auth(_) => PacketType::Auth,
        }
    }

    /// The packet with another payload of its PUBLISH.
    pub(crate) fn map_payload<Q>(self, payload: impl FnOnce(P) -> Q) -> Packet<Q> {
        match self {
            Self::Publish(publish) => Packet::Publish(publish.map_payload(payload)),
            Self::Connect(connect) => Packet::Connect(connect),
            Self::Connack(connack) => Packet::Connack(connack),
            Self::Ack(ack) => Packet::Ack(ack),
            Self::Subscribe(subscribe) => Packet::Subscribe(subscribe),
            Self::Suback(suback) => Packet::Suback(suback),
            Self::Unsubscribe(unsubscribe) => Packet::Unsubscribe(unsubscribe),
            Self::Unsuback(unsuback) => Packet::Unsuback(unsuback),
            Self::Pingreq => Packet::Pingreq,
            Self::Pingresp => Packet::Pingresp,
            Self::Disconnect(disconnect) => Packet::Disconnect(disconnect),
            Self::Auth(auth) => Packet::Auth(auth),
        }
    }
}

impl Packet {
    /// Appends the bytes of the packet to `out`. Fields that `version` does not have are left out. A PUBLISH that would
    /// exceed the largest packet of MQTT writes nothing.
    pub fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        match self {
            Self::Connect(connect) => connect.encode(out),
            Self::Connack(connack) => connack.encode(version, out),
            Self::Publish(publish) => publish.encode(version, out),
            Self::Ack(ack) => ack.encode(version, out),
            Self::Subscribe(subscribe) => subscribe.encode(version, out),
            Self::Suback(suback) => suback.encode(version, out),
            Self::Unsubscribe(unsubscribe) => unsubscribe.encode(version, out),
            Self::Unsuback(unsuback) => unsuback.encode(version, out),
            Self::Pingreq => put_packet(out, PacketType::Pingreq.first_byte(), |_| {}),
            Self::Pingresp => put_packet(out, PacketType::Pingresp.first_byte(), |_| {}),
            Self::Disconnect(disconnect) => disconnect.encode(version, out),
            Self::Auth(auth) => auth.encode(out),
        }
    }
}

impl<'a> BorrowedPacket<'a> {
    /// Decodes the body of a packet of this type, whose fixed header begins with `first`. Never `None`: the decoder has
    /// such a result, and does not have to move the packet.
    ///
    /// # Errors
    /// [`Violation`] of the standard by these bytes.
    #[inline]
    pub(crate) fn decode(
        packet_type: PacketType,
        first: u8,
        reader: &mut Reader<'a>,
        version: ProtocolVersion,
        topics: &mut TopicCache,
        offered: &mut Option<ProtocolVersion>,
    ) -> Result<Option<Self>, Violation> {
        let packet = match packet_type {
            PacketType::Connect => Self::Connect(Box::new(Connect::decode(reader, offered)?)),
            PacketType::Connack => Self::Connack(Box::new(Connack::decode(reader, version)?)),
            PacketType::Publish => {
                let publish = Publish::decode(first, reader, version, topics); // Takes the rest.
                return publish.map(Self::Publish).map(Some);
            }
            PacketType::Puback => Self::Ack(Ack::decode(AckKind::Puback, reader, version)?),
            PacketType::Pubrec => Self::Ack(Ack::decode(AckKind::Pubrec, reader, version)?),
            PacketType::Pubrel => Self::Ack(Ack::decode(AckKind::Pubrel, reader, version)?),
            PacketType::Pubcomp => Self::Ack(Ack::decode(AckKind::Pubcomp, reader, version)?),
            PacketType::Subscribe => Self::Subscribe(Box::new(Subscribe::decode(reader, version)?)),
            PacketType::Suback => Self::Suback(Box::new(Suback::decode(reader, version)?)),
            PacketType::Unsubscribe => Self::Unsubscribe(Box::new(Unsubscribe::decode(reader, version)?)),
            PacketType::Unsuback => Self::Unsuback(Box::new(Unsuback::decode(reader, version)?)),
            PacketType::Pingreq => Self::Pingreq,
            PacketType::Pingresp => Self::Pingresp,
            PacketType::Disconnect => Self::Disconnect(Box::new(Disconnect::decode(reader, version)?)),
            PacketType::Auth => Self::Auth(Box::new(Auth::decode(reader)?)),
        };
        reader.finish()?;
        Ok(Some(packet))
    }
}

/// Writes a fixed header and the body behind it.
fn put_packet(out: &mut BytesMut, first: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(first);
    put_measured(out, body);
}

/// Packet type in the first byte of a fixed header.
///
/// # Errors
/// [`Violation::ReservedPacketType`] and [`Violation::FixedHeaderFlags`].
pub(crate) fn packet_type_of(first: u8, version: ProtocolVersion) -> Result<PacketType, Violation> {
    let known =
        PacketType::from_number(first >> 4).filter(|kind| *kind != PacketType::Auth || version.is_v5());
    let packet_type = known.ok_or(Violation::ReservedPacketType(first >> 4))?;
    if packet_type == PacketType::Publish {
        return Ok(packet_type); // Its flags are DUP, QoS and RETAIN.
    }
    // MQTT 3.1 gave DUP and QoS a meaning in PUBREL, SUBSCRIBE and UNSUBSCRIBE: its clients may set DUP.
    let ignored = if version == ProtocolVersion::V31 && packet_type.flags() != 0 { 0b1000 } else { 0 };
    if first & 0x0F & !ignored != packet_type.flags() {
        // [MQTT-2.1.3-1], [MQTT-3.14.1-1], [MQTT-3.15.1-1], [MQTT3-2.2.2-2]
        return Err(Violation::FixedHeaderFlags(packet_type));
    }
    Ok(packet_type)
}
