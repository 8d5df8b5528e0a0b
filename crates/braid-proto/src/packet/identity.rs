use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::error::Violation;

/// The version of MQTT that a connection speaks, as CONNECT said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtocolVersion {
    /// MQTT 3.1: protocol name `MQIsdp`, level 3.
    V31,
    /// MQTT 3.1.1: protocol name `MQTT`, level 4.
    #[default]
    V311,
    /// MQTT 5.0: protocol name `MQTT`, level 5.
    V5,
}

impl ProtocolVersion {
    /// The Protocol Version byte of CONNECT.
    pub const fn level(self) -> u8 {
        match self {
            Self::V31 => 3,
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }

    /// The Protocol Name of CONNECT.
    pub const fn protocol_name(self) -> &'static str {
        match self {
            Self::V31 => "MQIsdp",
            Self::V311 | Self::V5 => "MQTT",
        }
    }

    /// Whether packets carry properties and reason codes.
    pub const fn is_v5(self) -> bool {
        matches!(self, Self::V5)
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V31 => "3.1",
            Self::V311 => "3.1.1",
            Self::V5 => "5.0",
        })
    }
}

/// A Packet Identifier, never 0. [MQTT-2.2.1-3]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketId(NonZeroU16);

impl PacketId {
    /// The first identifier that a new session uses.
    pub const FIRST: Self = Self(NonZeroU16::MIN);

    /// `None` for 0.
    pub const fn new(value: u16) -> Option<Self> {
        match NonZeroU16::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// The number, 1..=65535.
    pub const fn value(self) -> u16 {
        self.0.get()
    }

    /// The identifier after this one; 1 follows 65535.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(value) => Self(value),
            None => Self::FIRST,
        }
    }

    pub(crate) fn parse(value: u16) -> Result<Self, Violation> {
        Self::new(value).ok_or(Violation::PacketIdZero)
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A Client Identifier; empty where a CONNECT leaves the choice to the server. Cloning shares the text.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(Arc<str>);

impl ClientId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the server is to assign one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for ClientId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// The type of a Control Packet (MQTT 2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the standard's")]
pub enum PacketType {
    Connect = 1,
    Connack = 2,
    Publish = 3,
    Puback = 4,
    Pubrec = 5,
    Pubrel = 6,
    Pubcomp = 7,
    Subscribe = 8,
    Suback = 9,
    Unsubscribe = 10,
    Unsuback = 11,
    Pingreq = 12,
    Pingresp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketType {
    /// The first byte of the fixed header, with the flags that the standard prescribes.
    pub(crate) const fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.flags()
    }

    const fn flags(self) -> u8 {
        // [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1]
        if matches!(self, Self::Pubrel | Self::Subscribe | Self::Unsubscribe) { 0b0010 } else { 0 }
    }

    /// The type that a fixed header names.
    pub(crate) fn from_first_byte(first: u8, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_type = match first >> 4 {
            1 => Self::Connect,
            2 => Self::Connack,
            3 => return Ok(Self::Publish), // Its flags have meanings of their own.
            4 => Self::Puback,
            5 => Self::Pubrec,
            6 => Self::Pubrel,
            7 => Self::Pubcomp,
            8 => Self::Subscribe,
            9 => Self::Suback,
            10 => Self::Unsubscribe,
            11 => Self::Unsuback,
            12 => Self::Pingreq,
            13 => Self::Pingresp,
            14 => Self::Disconnect,
            15 if version.is_v5() => Self::Auth,
            reserved => return Err(Violation::ReservedPacketType(reserved)),
        };
        // MQTT 3.1 gave DUP and QoS a meaning in PUBREL, SUBSCRIBE and UNSUBSCRIBE: its clients may set DUP.
        let ignored = if version == ProtocolVersion::V31 && packet_type.flags() != 0 { 0b1000 } else { 0 };
        if first & 0x0F & !ignored != packet_type.flags() {
            // [MQTT-2.1.3-1], [MQTT-3.14.1-1], [MQTT-3.15.1-1], [MQTT3-2.2.2-2]
            return Err(Violation::FixedHeaderFlags(packet_type));
        }
        Ok(packet_type)
    }
}

impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "CONNECT",
            Self::Connack => "CONNACK",
            Self::Publish => "PUBLISH",
            Self::Puback => "PUBACK",
            Self::Pubrec => "PUBREC",
            Self::Pubrel => "PUBREL",
            Self::Pubcomp => "PUBCOMP",
            Self::Subscribe => "SUBSCRIBE",
            Self::Suback => "SUBACK",
            Self::Unsubscribe => "UNSUBSCRIBE",
            Self::Unsuback => "UNSUBACK",
            Self::Pingreq => "PINGREQ",
            Self::Pingresp => "PINGRESP",
            Self::Disconnect => "DISCONNECT",
            Self::Auth => "AUTH",
        })
    }
}
