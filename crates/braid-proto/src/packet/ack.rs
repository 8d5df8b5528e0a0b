//! PUBACK, PUBREC, PUBREL and PUBCOMP, and the fields that all acknowledgements share.

use bytes::{BufMut, BytesMut};

use super::properties::{Section, properties};
use super::put_packet;
use super::user_properties::UserProperties;
use crate::types::{PacketId, PacketType, ProtocolVersion, ReasonCode, Violation};
use crate::wire::Reader;

/// Kind of acknowledgement of a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the standard's")]
pub enum AckKind {
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
}

impl AckKind {
    /// Packet type.
    pub const fn packet_type(self) -> PacketType {
        match self {
            Self::Puback => PacketType::Puback,
            Self::Pubrec => PacketType::Pubrec,
            Self::Pubrel => PacketType::Pubrel,
            Self::Pubcomp => PacketType::Pubcomp,
        }
    }
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP (MQTT 3.4 to 3.7): four packets of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Packet type.
    pub kind: AckKind,
    /// Packet Identifier of the PUBLISH. [MQTT-2.2.1-5]
    pub packet_id: PacketId,
    /// Always success before MQTT 5.
    pub reason: ReasonCode,
    /// Reason String and User Properties, which few acknowledgements have.
    pub properties: Option<Box<AckProperties>>,
}

/// Properties of an acknowledgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckProperties {
    /// Diagnostics for humans.
    pub reason_string: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

properties!(AckProperties: REASON_STRING = reason_string, USER_PROPERTY = user);

impl Ack {
    /// Acknowledgement without properties.
    pub const fn new(kind: AckKind, packet_id: PacketId, reason: ReasonCode) -> Self {
        Self { kind, packet_id, reason, properties: None }
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, self.kind.packet_type().first_byte(), |out| {
            out.put_u16(self.packet_id.value());
            if !version.is_v5() || self.reason == ReasonCode::Success && self.properties.is_none() {
                return;
            }
            out.put_u8(self.reason.value());
            if let Some(properties) = &self.properties {
                properties.encode_section(out);
            }
        });
    }

    pub(super) fn decode(
        kind: AckKind,
        reader: &mut Reader<'_>,
        version: ProtocolVersion,
    ) -> Result<Self, Violation> {
        let packet_id = reader.packet_id()?;
        let mut ack = Self::new(kind, packet_id, ReasonCode::Success);
        if !version.is_v5() || reader.is_empty() {
            return Ok(ack);
        }
        ack.reason = read_reason(reader, kind.packet_type())?;
        if reader.is_empty() {
            return Ok(ack);
        }
        let mut properties = AckProperties::default();
        properties.decode_section(reader)?;
        if properties != AckProperties::default() {
            ack.properties = Some(Box::new(properties));
        }
        Ok(ack)
    }
}

/// Reads a Reason Code which the standard lists for the packet.
pub(super) fn read_reason(reader: &mut Reader<'_>, packet: PacketType) -> Result<ReasonCode, Violation> {
    // [MQTT-3.2.2-8], [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1], [MQTT-3.14.2-1]
    let value = reader.u8()?;
    parse_reason(value, packet)
}

pub(super) fn parse_reason(value: u8, packet: PacketType) -> Result<ReasonCode, Violation> {
    ReasonCode::from_u8(value)
        .filter(|reason| reason.is_allowed_in(packet))
        .ok_or(Violation::UnknownReasonCode(packet, value))
}
