//! The Control Packets of MQTT, one file per packet. The protocol version is a value, never a second tree.

mod ack;
mod auth;
mod connack;
mod connect;
mod disconnect;
mod identity;
pub(crate) mod properties;
mod publish;
mod qos;
mod suback;
mod subscribe;

use bytes::BytesMut;

pub use ack::{Ack, AckKind, AckProperties};
pub use auth::Auth;
pub use connack::{Connack, ConnackProperties};
pub use connect::{Connect, ConnectProperties, Will};
pub use disconnect::Disconnect;
pub use identity::{ClientId, PacketId, PacketType, ProtocolVersion};
pub use properties::UserProperties;
pub use publish::{MessageProperties, Publish};
pub(crate) use publish::{PublishHead, put_publish_head};
pub use qos::QoS;
pub use suback::{Suback, Unsuback};
pub use subscribe::{Subscribe, SubscribeEntry, Unsubscribe};

use crate::decoder::wire::{Reader, put_measured};
use crate::error::Violation;

/// One Control Packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// CONNECT (3.1).
    Connect(Box<Connect>),
    /// CONNACK (3.2).
    Connack(Box<Connack>),
    /// PUBLISH (3.3).
    Publish(Publish),
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

impl Packet {
    /// The packet's type.
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

    /// Appends the packet's bytes. A property that `version` does not have is left out.
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

    /// Decodes the body of one packet whose fixed header is known.
    ///
    /// # Errors
    /// The [`Violation`] that the bytes are.
    pub(crate) fn decode(
        first: u8,
        reader: &mut Reader<'_>,
        version: ProtocolVersion,
        offered: &mut Option<ProtocolVersion>,
    ) -> Result<Self, Violation> {
        let packet_type = PacketType::from_first_byte(first, version)?;
        let packet = match packet_type {
            PacketType::Connect => Self::Connect(Box::new(Connect::decode(reader, offered)?)),
            PacketType::Connack => Self::Connack(Box::new(Connack::decode(reader, version)?)),
            PacketType::Publish => Self::Publish(Publish::decode(first, reader, version, None)?),
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
        Ok(packet)
    }
}

/// Writes a fixed header and the body behind it.
pub(crate) fn put_packet(out: &mut BytesMut, first: u8, body: impl FnOnce(&mut BytesMut)) {
    use bytes::BufMut;
    out.put_u8(first);
    put_measured(out, body);
}
