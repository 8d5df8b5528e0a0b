use bytes::{BufMut, Bytes, BytesMut};

use super::properties::{PropertyWriter, UserProperties, id, put_properties, read_properties};
use super::publish::{MessageProperties, read_message_property};
use super::{ClientId, PacketType, ProtocolVersion, QoS, put_packet};
use crate::decoder::wire::{Reader, put_binary, put_string};
use crate::error::Violation;
use crate::topic::TopicName;

/// CONNECT (MQTT 3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// What the connection speaks from now on.
    pub version: ProtocolVersion,
    /// Empty where the server is to assign one.
    pub client_id: ClientId,
    /// Clean Start; Clean Session before MQTT 5.
    pub clean_start: bool,
    /// Seconds; 0 turns it off.
    pub keep_alive: u16,
    /// What to publish when the connection ends without a DISCONNECT.
    pub will: Option<Will>,
    /// The user name.
    pub user_name: Option<Box<str>>,
    /// The password, any bytes.
    pub password: Option<Bytes>,
    /// Empty before MQTT 5.
    pub properties: ConnectProperties,
}

/// The Will Message (MQTT 3.1.2.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Where to.
    pub topic: TopicName,
    /// What.
    pub payload: Bytes,
    /// Will QoS.
    pub qos: QoS,
    /// Will Retain.
    pub retain: bool,
    /// Will Delay Interval, seconds.
    pub delay: u32,
    /// The message's own properties.
    pub properties: Option<Box<MessageProperties>>,
}

/// The properties of CONNECT (MQTT 5, 3.1.2.11). Absent means the standard's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// The Connect Flags (MQTT 3.1.2.3).
mod flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const CLEAN_START: u8 = 0x02;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USER_NAME: u8 = 0x80;
}

impl Connect {
    /// A CONNECT without will, credentials or properties.
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

    pub(super) fn encode(&self, out: &mut BytesMut) {
        put_packet(out, PacketType::Connect.first_byte(), |out| {
            put_string(out, self.version.protocol_name());
            out.put_u8(self.version.level());
            out.put_u8(self.flags());
            out.put_u16(self.keep_alive);
            if self.version.is_v5() {
                put_properties(out, |to| self.properties.put(to));
            }
            put_string(out, self.client_id.as_str());
            if let Some(will) = &self.will {
                if self.version.is_v5() {
                    put_properties(out, |to| will.put_properties(to));
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
        let mut flags = 0;
        if self.clean_start {
            flags |= flag::CLEAN_START;
        }
        if let Some(will) = &self.will {
            flags |= flag::WILL | will.qos.bits() << 3;
            if will.retain {
                flags |= flag::WILL_RETAIN;
            }
        }
        if self.user_name.is_some() {
            flags |= flag::USER_NAME;
        }
        if self.password.is_some() {
            flags |= flag::PASSWORD;
        }
        flags
    }

    /// Tells the version in `offered` as soon as it is known, so that a refusal can be in the peer's words.
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
            properties = ConnectProperties::decode(reader)?;
        }
        let client_id = ClientId::from(reader.string()?); // [MQTT-3.1.3-1], [MQTT-3.1.3-3], [MQTT-3.1.3-4]
        // [MQTT-3.1.2-9]
        let will = if flags & flag::WILL != 0 { Some(Will::decode(reader, flags, version)?) } else { None };
        // In MQTT 3.1 a flag may announce what the Remaining Length leaves out.
        let ends_early = |reader: &Reader<'_>| version == ProtocolVersion::V31 && reader.is_empty();
        let user_name = if flags & flag::USER_NAME != 0 && !ends_early(reader) {
            Some(reader.string()?.into()) // [MQTT-3.1.2-17], [MQTT-3.1.3-12]
        } else {
            None // [MQTT-3.1.2-16]
        };
        let password = if flags & flag::PASSWORD != 0 && !ends_early(reader) {
            let field = reader.binary()?; // [MQTT-3.1.2-19]
            Some(reader.own(field))
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
    // Bridges set the upper bit to say what they are (mosquitto).
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
            const ALLOWED: [u8; 7] = [
                id::WILL_DELAY_INTERVAL,
                id::PAYLOAD_FORMAT_INDICATOR,
                id::MESSAGE_EXPIRY_INTERVAL,
                id::CONTENT_TYPE,
                id::RESPONSE_TOPIC,
                id::CORRELATION_DATA,
                id::USER_PROPERTY,
            ];
            read_properties(reader, &ALLOWED, |reader, id, value| {
                if id == id::WILL_DELAY_INTERVAL {
                    delay = value.number();
                    return Ok(());
                }
                read_message_property(&mut properties, reader, id, value)
            })?;
        }
        let topic = TopicName::parse(reader.string()?).map_err(Violation::TopicName)?; // [MQTT-3.1.3-11]
        let field = reader.binary()?;
        let payload = reader.own(field);
        let properties = properties.boxed();
        Ok(Self { topic, payload, qos, retain: flags & flag::WILL_RETAIN != 0, delay, properties })
    }

    fn put_properties(&self, to: &mut PropertyWriter<'_>) {
        to.number(id::WILL_DELAY_INTERVAL, (self.delay > 0).then_some(self.delay));
        if let Some(properties) = &self.properties {
            properties.put(to, properties.message_expiry);
        }
    }
}

impl ConnectProperties {
    fn put(&self, to: &mut PropertyWriter<'_>) {
        to.number(id::SESSION_EXPIRY_INTERVAL, self.session_expiry);
        to.short(id::RECEIVE_MAXIMUM, self.receive_maximum);
        to.number(id::MAXIMUM_PACKET_SIZE, self.maximum_packet_size);
        to.short(id::TOPIC_ALIAS_MAXIMUM, self.topic_alias_maximum);
        to.flag(id::REQUEST_RESPONSE_INFORMATION, self.request_response_information);
        to.flag(id::REQUEST_PROBLEM_INFORMATION, self.request_problem_information);
        to.text(id::AUTHENTICATION_METHOD, self.authentication_method.as_deref());
        to.binary(id::AUTHENTICATION_DATA, self.authentication_data.as_deref());
        to.user(&self.user);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Violation> {
        const ALLOWED: [u8; 9] = [
            id::SESSION_EXPIRY_INTERVAL,
            id::RECEIVE_MAXIMUM,
            id::MAXIMUM_PACKET_SIZE,
            id::TOPIC_ALIAS_MAXIMUM,
            id::REQUEST_RESPONSE_INFORMATION,
            id::REQUEST_PROBLEM_INFORMATION,
            id::USER_PROPERTY,
            id::AUTHENTICATION_METHOD,
            id::AUTHENTICATION_DATA,
        ];
        let mut all = Self::default();
        read_properties(reader, &ALLOWED, |reader, id, value| {
            match id {
                id::SESSION_EXPIRY_INTERVAL => all.session_expiry = Some(value.number()),
                id::RECEIVE_MAXIMUM => all.receive_maximum = Some(value.short()),
                id::MAXIMUM_PACKET_SIZE => all.maximum_packet_size = Some(value.number()),
                id::TOPIC_ALIAS_MAXIMUM => all.topic_alias_maximum = Some(value.short()),
                id::REQUEST_RESPONSE_INFORMATION => all.request_response_information = Some(value.flag()),
                id::REQUEST_PROBLEM_INFORMATION => all.request_problem_information = Some(value.flag()),
                id::AUTHENTICATION_METHOD => all.authentication_method = Some(value.text().into()),
                id::AUTHENTICATION_DATA => all.authentication_data = Some(reader.own(value.binary())),
                _ => all.user.push(value.pair()),
            }
            Ok(())
        })?;
        if all.authentication_data.is_some() && all.authentication_method.is_none() {
            return Err(Violation::AuthenticationDataWithoutMethod);
        }
        Ok(all)
    }
}
