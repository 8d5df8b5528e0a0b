//! CONNECT and its answer, CONNACK.

use bytes::{BufMut, Bytes, BytesMut};

use super::ack::parse_reason;
use super::properties::{Section, Value, id, properties, put_property, read_properties};
use super::publish::MessageProperties;
use super::put_packet;
use super::secret::debug_hiding;
use super::user_properties::UserProperties;
use crate::types::{ClientId, PacketType, ProtocolVersion, QoS, ReasonCode, TopicName, Violation};
use crate::wire::{Reader, put_binary, put_measured, put_string};

/// CONNECT (MQTT 3.1). `Debug` hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Connect {
    /// Protocol version of the connection.
    pub version: ProtocolVersion,
    /// Client Identifier; empty where the server is to assign one.
    pub client_id: ClientId,
    /// Clean Start; Clean Session before MQTT 5.
    pub clean_start: bool,
    /// Keep Alive, seconds; 0 turns it off.
    pub keep_alive: u16,
    /// Will Message, published when the connection ends without a normal DISCONNECT.
    pub will: Option<Will>,
    /// User Name.
    pub user_name: Option<Box<str>>,
    /// Password.
    pub password: Option<Bytes>,
    /// Properties; empty before MQTT 5.
    pub properties: ConnectProperties,
}

/// The Will Message (MQTT 3.1.2.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Will Topic.
    pub topic: TopicName,
    /// Will Payload.
    pub payload: Bytes,
    /// Will QoS.
    pub qos: QoS,
    /// Will Retain.
    pub retain: bool,
    /// Will Delay Interval, seconds.
    pub delay: u32,
    /// Properties of the message.
    pub properties: Option<Box<MessageProperties>>,
}

/// Properties of CONNECT (MQTT 5, 3.1.2.11). An absent one means the standard's default. `Debug` hides the
/// Authentication Data.
#[derive(Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the standard's")]
pub struct ConnectProperties {
    /// Seconds; `u32::MAX` never expires.
    pub session_expiry: Option<u32>,
    pub receive_maximum: Option<u16>,
    /// Bytes.
    pub maximum_packet_size: Option<u32>,
    pub topic_alias_maximum: Option<u16>,
    pub request_response_information: Option<bool>,
    pub request_problem_information: Option<bool>,
    pub authentication_method: Option<Box<str>>,
    pub authentication_data: Option<Bytes>,
    pub user: UserProperties,
}

debug_hiding!(Connect: version, client_id, clean_start, keep_alive, will, user_name, properties; password);
debug_hiding!(ConnectProperties:
    session_expiry, receive_maximum, maximum_packet_size, topic_alias_maximum, request_response_information,
    request_problem_information, authentication_method, user;
    authentication_data
);

/// Connect Flags (MQTT 3.1.2.3).
mod flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const CLEAN_START: u8 = 0x02;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USER_NAME: u8 = 0x80;
}

/// User Property of CONNECT, with the value 1: the client continues large messages; of CONNACK: identifier and bytes of
/// one that the server has in part. [BQ-95], [BQ-97]
pub const RESUME_PROPERTY: &str = "braid-resume";

impl Connect {
    /// Whether a client could continue large messages: MQTT 5, and a session that outlives the connection. [BQ-95]
    pub(crate) fn may_resume_messages(&self) -> bool {
        self.version.is_v5() && self.properties.session_expiry.is_some_and(|seconds| seconds > 0)
    }

    /// Whether the client continues large messages on its next connection: it may, and says so by the User Property
    /// `braid-resume` with the value 1. [BQ-95]
    #[must_use]
    pub fn resumes_messages(&self) -> bool {
        self.may_resume_messages()
            && self.properties.user.iter().any(|property| property == (RESUME_PROPERTY, "1"))
    }

    /// CONNECT without will, credentials or properties.
    pub fn new(version: ProtocolVersion, client_id: impl Into<ClientId>) -> Self {
        Self {
            version,
            client_id: client_id.into(),
            clean_start: true,
            keep_alive: 60,
            will: None,
            user_name: None,
            password: None,
            properties: ConnectProperties::default(),
        }
    }

    /// Whether the Client Identifier must not be empty: always in MQTT 3.1, and in MQTT 3.1.1 for a session that
    /// outlives its connection. [MQTT3-3.1.3-7], [MQTT-3.1.3-6]
    pub const fn needs_client_id(&self) -> bool {
        match self.version {
            ProtocolVersion::V31 => true,
            ProtocolVersion::V311 => !self.clean_start,
            ProtocolVersion::V5 => false,
        }
    }

    pub(super) fn encode(&self, out: &mut BytesMut) {
        put_packet(out, PacketType::Connect.first_byte(), |out| {
            put_string(out, self.version.protocol_name());
            out.put_u8(self.version.level());
            out.put_u8(self.flags());
            out.put_u16(self.keep_alive);
            if self.version.is_v5() {
                self.properties.encode_section(out);
            }
            put_string(out, self.client_id.as_str());
            if let Some(will) = &self.will {
                if self.version.is_v5() {
                    put_measured(out, |out| will.put_properties(out));
                }
                put_string(out, will.topic.as_str());
                put_binary(out, &will.payload);
            }
            if let Some(user_name) = &self.user_name {
                put_string(out, user_name);
            }
            if let Some(password) = &self.password {
                put_binary(out, password);
            }
        });
    }

    fn flags(&self) -> u8 {
        let will = self.will.as_ref();
        let set = [
            (flag::CLEAN_START, self.clean_start),
            (flag::WILL, will.is_some()),
            (flag::WILL_RETAIN, will.is_some_and(|will| will.retain)),
            (flag::USER_NAME, self.user_name.is_some()),
            (flag::PASSWORD, self.password.is_some()),
        ];
        let qos = will.map_or(0, |will| will.qos.bits() << 3);
        set.iter().filter(|(_, is_set)| *is_set).fold(qos, |flags, (flag, _)| flags | flag)
    }

    /// Decodes the body. The version is stored in `offered` before the rest is decoded, so that a refusal can be
    /// encoded for the peer.
    pub(super) fn decode(
        reader: &mut Reader<'_>,
        offered: &mut Option<ProtocolVersion>,
    ) -> Result<Self, Violation> {
        let version = read_version(reader)?;
        *offered = Some(version);
        let flags = reader.u8()?;
        if flags & flag::RESERVED != 0 && version != ProtocolVersion::V31 {
            return Err(Violation::ConnectReservedFlag); // [MQTT-3.1.2-3]
        }
        if flags & flag::WILL == 0 && flags & (flag::WILL_QOS | flag::WILL_RETAIN) != 0 {
            return Err(Violation::WillFlags); // [MQTT-3.1.2-11], [MQTT-3.1.2-13]
        }
        if flags & flag::USER_NAME == 0 && flags & flag::PASSWORD != 0 && !version.is_v5() {
            return Err(Violation::PasswordWithoutUserName); // [MQTT3-3.1.2-22]
        }
        let keep_alive = reader.u16()?;
        let mut properties = ConnectProperties::default();
        if version.is_v5() {
            properties.decode_section(reader)?;
            if properties.authentication_data.is_some() && properties.authentication_method.is_none() {
                return Err(Violation::AuthenticationDataWithoutMethod);
            }
        }
        let client_id = ClientId::from(reader.string()?); // [MQTT-3.1.3-1], [MQTT-3.1.3-3], [MQTT-3.1.3-4]
        // [MQTT-3.1.2-9]
        let will = if flags & flag::WILL != 0 { Some(Will::decode(reader, flags, version)?) } else { None };
        // In MQTT 3.1 a flag may be set for a field that the Remaining Length leaves out.
        let ends_early = |reader: &Reader<'_>| version == ProtocolVersion::V31 && reader.is_empty();
        let user_name = if flags & flag::USER_NAME != 0 && !ends_early(reader) {
            Some(reader.string()?.into()) // [MQTT-3.1.2-17], [MQTT-3.1.3-12]
        } else {
            None // [MQTT-3.1.2-16]
        };
        let password = if flags & flag::PASSWORD != 0 && !ends_early(reader) {
            Some(reader.owned_binary()?) // [MQTT-3.1.2-19]
        } else {
            None // [MQTT-3.1.2-18]
        };
        let clean_start = flags & flag::CLEAN_START != 0;
        Ok(Self { version, client_id, clean_start, keep_alive, will, user_name, password, properties })
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<ProtocolVersion, Violation> {
    let name = reader.string()?;
    if name != "MQTT" && name != "MQIsdp" {
        return Err(Violation::ProtocolName); // [MQTT-3.1.2-1]
    }
    // Bridges set the upper bit (mosquitto).
    match (name, reader.u8()?) {
        ("MQIsdp", 3 | 0x83) => Ok(ProtocolVersion::V31),
        ("MQTT", 4 | 0x84) => Ok(ProtocolVersion::V311),
        ("MQTT", 5) => Ok(ProtocolVersion::V5),
        (_, other) => Err(Violation::UnsupportedVersion(other)), // [MQTT-3.1.2-2]
    }
}

impl Will {
    fn decode(reader: &mut Reader<'_>, flags: u8, version: ProtocolVersion) -> Result<Self, Violation> {
        let qos = QoS::from_bits((flags & flag::WILL_QOS) >> 3).ok_or(Violation::WillFlags)?; // [MQTT-3.1.2-12]
        let mut delay = 0;
        let mut properties = MessageProperties::default();
        if version.is_v5() {
            read_properties(reader, |part, id| {
                if id == id::WILL_DELAY_INTERVAL {
                    delay = u32::read(id, part)?;
                    return Ok(());
                }
                properties.read(id, part)
            })?;
        }
        let topic = TopicName::parse(reader.string()?).map_err(Violation::TopicName)?; // [MQTT-3.1.3-11]
        let payload = reader.owned_binary()?;
        let properties = properties.boxed();
        Ok(Self { topic, payload, qos, retain: flags & flag::WILL_RETAIN != 0, delay, properties })
    }

    fn put_properties(&self, out: &mut BytesMut) {
        if self.delay > 0 {
            put_property(out, id::WILL_DELAY_INTERVAL, &self.delay);
        }
        if let Some(properties) = &self.properties {
            properties.put(out, properties.message_expiry, None);
        }
    }
}

properties!(ConnectProperties:
    SESSION_EXPIRY_INTERVAL = session_expiry,
    RECEIVE_MAXIMUM = receive_maximum,
    MAXIMUM_PACKET_SIZE = maximum_packet_size,
    TOPIC_ALIAS_MAXIMUM = topic_alias_maximum,
    REQUEST_RESPONSE_INFORMATION = request_response_information,
    REQUEST_PROBLEM_INFORMATION = request_problem_information,
    AUTHENTICATION_METHOD = authentication_method,
    AUTHENTICATION_DATA = authentication_data,
    USER_PROPERTY = user
);

/// CONNACK (MQTT 3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connack {
    /// Session Present: the server resumes a session of this client.
    pub session_present: bool,
    /// Success, or the reason of the refusal.
    pub reason: ReasonCode,
    /// Grants of the server; empty before MQTT 5.
    pub properties: ConnackProperties,
}

/// Properties of CONNACK (MQTT 5, 3.2.2.3). An absent one means the standard's default. `Debug` hides the
/// Authentication Data.
#[derive(Clone, Default, PartialEq, Eq)]
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

debug_hiding!(ConnackProperties:
    session_expiry, receive_maximum, maximum_qos, retain_available, maximum_packet_size, assigned_client_id,
    topic_alias_maximum, reason_string, wildcard_subscription_available, subscription_identifiers_available,
    shared_subscription_available, server_keep_alive, response_information, server_reference,
    authentication_method, user;
    authentication_data
);

impl Connack {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Connack.first_byte(), |out| {
            // MQTT 3.1 reserves the first byte.
            let flags = u8::from(self.session_present && version != ProtocolVersion::V31); // [MQTT-3.2.2-1]
            if version.is_v5() {
                out.put_slice(&[flags, self.reason.value()]);
                self.properties.encode_section(out);
            } else {
                // A reason without a return code is not sent to MQTT 3: the fallback keeps the encoder total.
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
        // A server without MQTT 5 answers with the return codes of MQTT 3.
        if reader.is_empty() && (1..=5).contains(&value) {
            let reason = ReasonCode::from_connack_v3(value).unwrap_or(ReasonCode::UnspecifiedError);
            return Ok(Self { session_present, reason, properties: ConnackProperties::default() });
        }
        let reason = parse_reason(value, PacketType::Connack)?;
        let mut properties = ConnackProperties::default();
        properties.decode_section(reader)?;
        Ok(Self { session_present, reason, properties })
    }
}

properties!(ConnackProperties:
    SESSION_EXPIRY_INTERVAL = session_expiry,
    RECEIVE_MAXIMUM = receive_maximum,
    MAXIMUM_QOS = maximum_qos,
    RETAIN_AVAILABLE = retain_available,
    MAXIMUM_PACKET_SIZE = maximum_packet_size,
    ASSIGNED_CLIENT_IDENTIFIER = assigned_client_id,
    TOPIC_ALIAS_MAXIMUM = topic_alias_maximum,
    WILDCARD_SUBSCRIPTION_AVAILABLE = wildcard_subscription_available,
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = subscription_identifiers_available,
    SHARED_SUBSCRIPTION_AVAILABLE = shared_subscription_available,
    SERVER_KEEP_ALIVE = server_keep_alive,
    RESPONSE_INFORMATION = response_information,
    SERVER_REFERENCE = server_reference,
    AUTHENTICATION_METHOD = authentication_method,
    AUTHENTICATION_DATA = authentication_data,
    REASON_STRING = reason_string,
    USER_PROPERTY = user
);
