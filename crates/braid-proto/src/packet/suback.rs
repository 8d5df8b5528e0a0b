use bytes::{BufMut, BytesMut};

use super::ack::{put_reason_and_user, read_reason, read_reason_and_user};
use super::properties::{UserProperties, put_properties};
use super::{PacketId, PacketType, ProtocolVersion, QoS, put_packet};
use crate::decoder::wire::Reader;
use crate::error::Violation;
use crate::reason::ReasonCode;

/// SUBACK (MQTT 3.9): one code per Topic Filter, in their order. [MQTT-3.9.3-1]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suback {
    /// That of the SUBSCRIBE. [MQTT-3.8.4-2]
    pub packet_id: PacketId,
    /// The granted QoS or why not.
    pub codes: Vec<ReasonCode>,
    /// For people, not for programs.
    pub reason_string: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

/// UNSUBACK (MQTT 3.11): one code per Topic Filter in MQTT 5, none before. [MQTT-3.11.3-1]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsuback {
    /// That of the UNSUBSCRIBE. [MQTT-3.10.4-5]
    pub packet_id: PacketId,
    /// Success, No subscription existed, or why not.
    pub codes: Vec<ReasonCode>,
    /// For people, not for programs.
    pub reason_string: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

impl Suback {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Suback.first_byte(), |out| {
            out.put_u16(self.packet_id.value());
            if version.is_v5() {
                put_properties(out, |to| put_reason_and_user(to, self.reason_string.as_deref(), &self.user));
            }
            for code in &self.codes {
                out.put_u8(if version.is_v5() { code.value() } else { code.suback_v3() });
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = PacketId::parse(reader.u16()?)?;
        let mut suback = Self { packet_id, codes: Vec::new(), reason_string: None, user: Vec::new() };
        if version.is_v5() {
            read_reason_and_user(reader, &mut suback.reason_string, &mut suback.user)?;
        }
        while !reader.is_empty() {
            let code = read_reason(reader, PacketType::Suback)?; // [MQTT-3.9.3-2]
            if !version.is_v5() && code.suback_v3() != code.value() {
                return Err(Violation::UnknownReasonCode(PacketType::Suback, code.value())); // [MQTT3-3.9.3-2]
            }
            suback.codes.push(code);
        }
        Ok(suback)
    }
}

impl Unsuback {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Unsuback.first_byte(), |out| {
            out.put_u16(self.packet_id.value());
            if version.is_v5() {
                put_properties(out, |to| put_reason_and_user(to, self.reason_string.as_deref(), &self.user));
                out.extend(self.codes.iter().map(|code| code.value()));
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = PacketId::parse(reader.u16()?)?;
        let mut unsuback = Self { packet_id, codes: Vec::new(), reason_string: None, user: Vec::new() };
        if version.is_v5() {
            read_reason_and_user(reader, &mut unsuback.reason_string, &mut unsuback.user)?;
            while !reader.is_empty() {
                unsuback.codes.push(read_reason(reader, PacketType::Unsuback)?); // [MQTT-3.11.3-2]
            }
        }
        Ok(unsuback)
    }
}

impl From<QoS> for ReasonCode {
    fn from(qos: QoS) -> Self {
        match qos {
            QoS::AtMostOnce => Self::Success,
            QoS::AtLeastOnce => Self::GrantedQos1,
            QoS::ExactlyOnce => Self::GrantedQos2,
        }
    }
}
