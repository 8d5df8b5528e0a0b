use bytes::{BufMut, Bytes, BytesMut};

use super::ack::{put_reason_and_user, read_reason};
use super::properties::{UserProperties, id, put_properties, read_properties};
use super::{ClientId, PacketType, ProtocolVersion, QoS, put_packet};
use crate::decoder::wire::Reader;
use crate::error::Violation;
use crate::reason::ReasonCode;

/// CONNACK (MQTT 3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connack {
    /// The server had a session for this client and goes on with it.
    pub session_present: bool,
    /// Success, or why not.
    pub reason: ReasonCode,
    /// What the server grants; empty before MQTT 5.
    pub properties: ConnackProperties,
}

/// The properties of CONNACK (MQTT 5, 3.2.2.3). Absent means the standard's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the standard's")]
pub struct ConnackProperties {
    /// Seconds.
    pub session_expiry: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub maximum_qos: Option<QoS>,
    pub retain_available: Option<bool>,
    /// Bytes.
    pub maximum_packet_size: Option<u32>,
    pub assigned_client_id: Option<ClientId>,
    pub topic_alias_maximum: Option<u16>,
    pub reason_string: Option<Box<str>>,
    pub wildcard_subscription_available: Option<bool>,
    pub subscription_identifiers_available: Option<bool>,
    pub shared_subscription_available: Option<bool>,
    /// Seconds.
    pub server_keep_alive: Option<u16>,
    pub response_information: Option<Box<str>>,
    pub server_reference: Option<Box<str>>,
    pub authentication_method: Option<Box<str>>,
    pub authentication_data: Option<Bytes>,
    pub user: UserProperties,
}

impl Connack {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Connack.first_byte(), |out| {
            // MQTT 3.1 reserves the first byte.
            let flags = u8::from(self.session_present && version != ProtocolVersion::V31); // [MQTT-3.2.2-1]
            if version.is_v5() {
                out.put_slice(&[flags, self.reason.value()]);
                self.properties.encode(out);
            } else {
                // What has no word in MQTT 3 is not sent at all: the fallback keeps the encoder total.
                out.put_slice(&[flags, self.reason.connack_v3().unwrap_or(3)]);
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let flags = reader.u8()?;
        if flags > 1 && version != ProtocolVersion::V31 {
            return Err(Violation::ConnackFlags); // [MQTT-3.2.2-1]
        }
        let session_present = flags & 1 != 0 && version != ProtocolVersion::V31;
        if !version.is_v5() {
            let code = reader.u8()?;
            let reason = ReasonCode::from_connack_v3(code)
                .ok_or(Violation::UnknownReasonCode(PacketType::Connack, code))?;
            return Ok(Self { session_present, reason, properties: ConnackProperties::default() });
        }
        let value = reader.u8()?;
        // A server that does not speak MQTT 5 answers with the return codes of MQTT 3.
        if reader.is_empty() && (1..=5).contains(&value) {
            let reason = ReasonCode::from_connack_v3(value).unwrap_or(ReasonCode::UnspecifiedError);
            return Ok(Self { session_present, reason, properties: ConnackProperties::default() });
        }
        let reason = read_reason(
            &mut Reader::new(&[value], crate::decoder::wire::Source::Borrowed),
            PacketType::Connack,
        )?;
        let properties = ConnackProperties::decode(reader)?;
        Ok(Self { session_present, reason, properties })
    }
}

impl ConnackProperties {
    fn encode(&self, out: &mut BytesMut) {
        put_properties(out, |to| {
            to.number(id::SESSION_EXPIRY_INTERVAL, self.session_expiry);
            to.short(id::RECEIVE_MAXIMUM, self.receive_maximum);
            to.flag(id::MAXIMUM_QOS, self.maximum_qos.map(|qos| qos != QoS::AtMostOnce));
            to.flag(id::RETAIN_AVAILABLE, self.retain_available);
            to.number(id::MAXIMUM_PACKET_SIZE, self.maximum_packet_size);
            to.text(id::ASSIGNED_CLIENT_IDENTIFIER, self.assigned_client_id.as_ref().map(ClientId::as_str));
            to.short(id::TOPIC_ALIAS_MAXIMUM, self.topic_alias_maximum);
            to.flag(id::WILDCARD_SUBSCRIPTION_AVAILABLE, self.wildcard_subscription_available);
            to.flag(id::SUBSCRIPTION_IDENTIFIER_AVAILABLE, self.subscription_identifiers_available);
            to.flag(id::SHARED_SUBSCRIPTION_AVAILABLE, self.shared_subscription_available);
            to.short(id::SERVER_KEEP_ALIVE, self.server_keep_alive);
            to.text(id::RESPONSE_INFORMATION, self.response_information.as_deref());
            to.text(id::SERVER_REFERENCE, self.server_reference.as_deref());
            to.text(id::AUTHENTICATION_METHOD, self.authentication_method.as_deref());
            to.binary(id::AUTHENTICATION_DATA, self.authentication_data.as_deref());
            put_reason_and_user(to, self.reason_string.as_deref(), &self.user);
        });
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Violation> {
        const ALLOWED: [u8; 17] = [
            id::SESSION_EXPIRY_INTERVAL,
            id::RECEIVE_MAXIMUM,
            id::MAXIMUM_QOS,
            id::RETAIN_AVAILABLE,
            id::MAXIMUM_PACKET_SIZE,
            id::ASSIGNED_CLIENT_IDENTIFIER,
            id::TOPIC_ALIAS_MAXIMUM,
            id::REASON_STRING,
            id::WILDCARD_SUBSCRIPTION_AVAILABLE,
            id::SUBSCRIPTION_IDENTIFIER_AVAILABLE,
            id::SHARED_SUBSCRIPTION_AVAILABLE,
            id::SERVER_KEEP_ALIVE,
            id::RESPONSE_INFORMATION,
            id::SERVER_REFERENCE,
            id::AUTHENTICATION_METHOD,
            id::AUTHENTICATION_DATA,
            id::USER_PROPERTY,
        ];
        let mut all = Self::default();
        read_properties(reader, &ALLOWED, |reader, id, value| {
            match id {
                id::SESSION_EXPIRY_INTERVAL => all.session_expiry = Some(value.number()),
                id::RECEIVE_MAXIMUM => all.receive_maximum = Some(value.short()),
                id::MAXIMUM_QOS => {
                    all.maximum_qos = Some(if value.flag() { QoS::AtLeastOnce } else { QoS::AtMostOnce });
                }
                id::RETAIN_AVAILABLE => all.retain_available = Some(value.flag()),
                id::MAXIMUM_PACKET_SIZE => all.maximum_packet_size = Some(value.number()),
                id::ASSIGNED_CLIENT_IDENTIFIER => all.assigned_client_id = Some(value.text().into()),
                id::TOPIC_ALIAS_MAXIMUM => all.topic_alias_maximum = Some(value.short()),
                id::REASON_STRING => all.reason_string = Some(value.text().into()),
                id::WILDCARD_SUBSCRIPTION_AVAILABLE => {
                    all.wildcard_subscription_available = Some(value.flag());
                }
                id::SUBSCRIPTION_IDENTIFIER_AVAILABLE => {
                    all.subscription_identifiers_available = Some(value.flag());
                }
                id::SHARED_SUBSCRIPTION_AVAILABLE => all.shared_subscription_available = Some(value.flag()),
                id::SERVER_KEEP_ALIVE => all.server_keep_alive = Some(value.short()),
                id::RESPONSE_INFORMATION => all.response_information = Some(value.text().into()),
                id::SERVER_REFERENCE => all.server_reference = Some(value.text().into()),
                id::AUTHENTICATION_METHOD => all.authentication_method = Some(value.text().into()),
                id::AUTHENTICATION_DATA => all.authentication_data = Some(reader.own(value.binary())),
                _ => all.user.push(value.pair()),
            }
            Ok(())
        })?;
        Ok(all)
    }
}
