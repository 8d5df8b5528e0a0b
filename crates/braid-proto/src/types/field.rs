//! Values of packet fields.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

/// Protocol version of a connection, from its CONNECT.
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
    /// Protocol Version byte of CONNECT.
    pub const fn level(self) -> u8 {
        match self {
            Self::V31 => 3,
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }

    /// Protocol Name of CONNECT.
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

/// Packet Identifier, never 0. [MQTT-2.2.1-3]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketId(NonZeroU16);

impl PacketId {
    /// First identifier of a new session.
    pub const FIRST: Self = Self(NonZeroU16::MIN);

    /// Packet Identifier of this number; `None` for 0.
    pub const fn new(value: u16) -> Option<Self> {
        match NonZeroU16::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Number, 1..=65535.
    pub const fn value(self) -> u16 {
        self.0.get()
    }

    /// Next identifier; 1 follows 65535.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(value) => Self(value),
            None => Self::FIRST,
        }
    }
}

impl Default for PacketId {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Client Identifier; empty where a CONNECT leaves the choice to the server. Cloning shares the text.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(Arc<str>);

impl ClientId {
    /// Text of the identifier.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the server assigns the identifier.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for ClientId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

format_as_text!(ClientId);

macro_rules! packet_types {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// Type of a Control Packet (MQTT 2.1.2).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the names are the standard's")]
        pub enum PacketType {
            $($name = $number,)*
        }

        impl PacketType {
            /// Type of this number, 1..=15.
            pub(crate) const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for PacketType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

packet_types! {
    Connect = 1, "CONNECT";
    Connack = 2, "CONNACK";
    Publish = 3, "PUBLISH";
    Puback = 4, "PUBACK";
    Pubrec = 5, "PUBREC";
    Pubrel = 6, "PUBREL";
    Pubcomp = 7, "PUBCOMP";
    Subscribe = 8, "SUBSCRIBE";
    Suback = 9, "SUBACK";
    Unsubscribe = 10, "UNSUBSCRIBE";
    Unsuback = 11, "UNSUBACK";
    Pingreq = 12, "PINGREQ";
    Pingresp = 13, "PINGRESP";
    Disconnect = 14, "DISCONNECT";
    Auth = 15, "AUTH";
}

impl PacketType {
    /// First byte of the fixed header, with the flags that the standard prescribes.
    pub(crate) const fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.flags()
    }

    /// Flags of the fixed header; those of PUBLISH are DUP, QoS and RETAIN.
    pub(crate) const fn flags(self) -> u8 {
        // [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1]
        if matches!(self, Self::Pubrel | Self::Subscribe | Self::Unsubscribe) { 0b0010 } else { 0 }
    }
}

/// Quality of Service (MQTT 4.3), ordered: the effective level is the minimum of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QoS {
    /// At most once.
    #[default]
    AtMostOnce = 0,
    /// At least once.
    AtLeastOnce = 1,
    /// Exactly once.
    ExactlyOnce = 2,
}

impl QoS {
    /// Level of the two bits on the wire; `None` for the reserved 3.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }

    /// Two bits on the wire.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for QoS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bits())
    }
}

/// Replay of retained messages at SUBSCRIBE (MQTT 5, 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RetainHandling {
    /// Replay at every SUBSCRIBE, as in MQTT 3.
    #[default]
    SendAlways = 0,
    /// Replay only for a new subscription.
    SendIfNew = 1,
    /// No replay.
    DoNotSend = 2,
}
