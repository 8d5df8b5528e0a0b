//! Reason Codes (MQTT 5, 2.4) and the return codes of MQTT 3.

use std::fmt;

use super::{PacketType, QoS};

macro_rules! reason_codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal, [$($packet:ident)|*];)*) => {
        /// Result of an operation (MQTT 5, table 2-6). Values from 0x80 are failures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ReasonCode {
            $($(#[$doc])* #[doc = $text] $name = $value,)*
        }

        impl ReasonCode {
            /// All codes of the standard.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Code of a byte on the wire.
            pub const fn from_u8(value: u8) -> Option<Self> {
                match value {
                    $($value => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Whether the standard lists the code for this packet.
            pub const fn is_allowed_in(self, packet: PacketType) -> bool {
                match self {
                    $(Self::$name => matches!(packet, $(PacketType::$packet)|*),)*
                }
            }

            /// Name of the code in words, for logs.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reason_codes! {
    Success = 0x00, "success", [Connack | Puback | Pubrec | Pubrel | Pubcomp | Unsuback | Auth | Suback | Disconnect];
    GrantedQos1 = 0x01, "granted QoS 1", [Suback];
    GrantedQos2 = 0x02, "granted QoS 2", [Suback];
    DisconnectWithWill = 0x04, "disconnect with will message", [Disconnect];
    NoMatchingSubscribers = 0x10, "no matching subscribers", [Puback | Pubrec];
    NoSubscriptionExisted = 0x11, "no subscription existed", [Unsuback];
    ContinueAuthentication = 0x18, "continue authentication", [Auth];
    ReAuthenticate = 0x19, "re-authenticate", [Auth];
    UnspecifiedError = 0x80, "unspecified error", [Connack | Puback | Pubrec | Suback | Unsuback | Disconnect];
    MalformedPacket = 0x81, "malformed packet", [Connack | Disconnect];
    ProtocolError = 0x82, "protocol error", [Connack | Disconnect];
    ImplementationSpecificError = 0x83, "implementation specific error", [Connack | Puback | Pubrec | Suback | Unsuback | Disconnect];
    UnsupportedProtocolVersion = 0x84, "unsupported protocol version", [Connack];
    ClientIdentifierNotValid = 0x85, "client identifier not valid", [Connack];
    BadUserNameOrPassword = 0x86, "bad user name or password", [Connack];
    NotAuthorized = 0x87, "not authorized", [Connack | Puback | Pubrec | Suback | Unsuback | Disconnect];
    ServerUnavailable = 0x88, "server unavailable", [Connack];
    ServerBusy = 0x89, "server busy", [Connack | Disconnect];
    Banned = 0x8A, "banned", [Connack];
    ServerShuttingDown = 0x8B, "server shutting down", [Disconnect];
    BadAuthenticationMethod = 0x8C, "bad authentication method", [Connack | Disconnect];
    KeepAliveTimeout = 0x8D, "keep alive timeout", [Disconnect];
    SessionTakenOver = 0x8E, "session taken over", [Disconnect];
    TopicFilterInvalid = 0x8F, "topic filter invalid", [Suback | Unsuback | Disconnect];
    TopicNameInvalid = 0x90, "topic name invalid", [Connack | Puback | Pubrec | Disconnect];
    PacketIdentifierInUse = 0x91, "packet identifier in use", [Puback | Pubrec | Suback | Unsuback];
    PacketIdentifierNotFound = 0x92, "packet identifier not found", [Pubrel | Pubcomp];
    ReceiveMaximumExceeded = 0x93, "receive maximum exceeded", [Disconnect];
    TopicAliasInvalid = 0x94, "topic alias invalid", [Disconnect];
    PacketTooLarge = 0x95, "packet too large", [Connack | Disconnect];
    MessageRateTooHigh = 0x96, "message rate too high", [Disconnect];
    QuotaExceeded = 0x97, "quota exceeded", [Connack | Puback | Pubrec | Suback | Disconnect];
    AdministrativeAction = 0x98, "administrative action", [Disconnect];
    PayloadFormatInvalid = 0x99, "payload format invalid", [Connack | Puback | Pubrec | Disconnect];
    RetainNotSupported = 0x9A, "retain not supported", [Connack | Disconnect];
    QosNotSupported = 0x9B, "QoS not supported", [Connack | Disconnect];
    UseAnotherServer = 0x9C, "use another server", [Connack | Disconnect];
    ServerMoved = 0x9D, "server moved", [Connack | Disconnect];
    SharedSubscriptionsNotSupported = 0x9E, "shared subscriptions not supported", [Suback | Disconnect];
    ConnectionRateExceeded = 0x9F, "connection rate exceeded", [Connack | Disconnect];
    MaximumConnectTime = 0xA0, "maximum connect time", [Disconnect];
    SubscriptionIdentifiersNotSupported = 0xA1, "subscription identifiers not supported", [Suback | Disconnect];
    WildcardSubscriptionsNotSupported = 0xA2, "wildcard subscriptions not supported", [Suback | Disconnect];
}

impl ReasonCode {
    /// Byte on the wire.
    pub const fn value(self) -> u8 {
        self as u8
    }

    /// Whether the code reports a failure.
    pub const fn is_error(self) -> bool {
        self.value() >= 0x80
    }

    /// Returns the code, or "unspecified error" where the standard does not list it for the packet.
    #[must_use]
    pub const fn allowed_in(self, packet: PacketType) -> Self {
        if self.is_allowed_in(packet) { self } else { Self::UnspecifiedError }
    }

    /// Equivalent CONNACK return code of MQTT 3 (3.1.1, table 3.1), 0..=5. `None` where there is none: the connection
    /// is then closed without CONNACK. [MQTT3-3.2.2-6]
    pub const fn connack_v3(self) -> Option<u8> {
        Some(match self {
            Self::Success => 0,
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::UnspecifiedError
            | Self::ImplementationSpecificError
            | Self::ServerUnavailable
            | Self::ServerBusy
            | Self::ServerShuttingDown
            | Self::QuotaExceeded
            | Self::UseAnotherServer
            | Self::ServerMoved
            | Self::ConnectionRateExceeded => 3,
            Self::BadUserNameOrPassword => 4,
            Self::NotAuthorized | Self::Banned | Self::BadAuthenticationMethod => 5,
            _ => return None,
        })
    }

    /// Reason Code of a CONNACK return code of MQTT 3.
    pub const fn from_connack_v3(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Success,
            1 => Self::UnsupportedProtocolVersion,
            2 => Self::ClientIdentifierNotValid,
            3 => Self::ServerUnavailable,
            4 => Self::BadUserNameOrPassword,
            5 => Self::NotAuthorized,
            _ => return None,
        })
    }

    /// SUBACK return code of MQTT 3 (3.1.1, 3.9.3): a granted QoS or 0x80.
    pub const fn suback_v3(self) -> u8 {
        if self.is_error() { 0x80 } else { self.value() }
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

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02X})", self.text(), self.value())
    }
}
