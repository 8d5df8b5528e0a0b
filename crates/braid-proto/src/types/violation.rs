//! Violations of the specification by a peer, each with its Reason Code.

use std::io;

use thiserror::Error;

use super::{PacketType, ReasonCode, TopicError};

/// Violation of the specification by a peer.
///
/// A variant is the log line, the Reason Code, the metric label and the assertion of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    // -- Malformed packets: the bytes are no packet ------------------------------------------------
    /// Packet type 0, or 15 before MQTT 5.
    #[error("packet type {0} is reserved")]
    ReservedPacketType(u8),
    /// `[MQTT-2.1.3-1]`, `[MQTT3-2.2.2-2]`: the flags of the fixed header are not those of the type.
    #[error("reserved flags of the fixed header are set in {0}")]
    FixedHeaderFlags(PacketType),
    /// `[MQTT-1.5.5-1]`: a Variable Byte Integer of more than four bytes or, in MQTT 5, not of minimal length.
    #[error("a variable byte integer is not encoded as the standard demands")]
    VariableByteInteger,
    /// A field reaches beyond the end of the packet.
    #[error("the packet ends in the middle of a field")]
    Truncated,
    /// Bytes follow the last field.
    #[error("bytes follow the last field of the packet")]
    TrailingBytes,
    /// `[MQTT-1.5.4-1]`: ill-formed UTF-8.
    #[error("a string is not well-formed UTF-8")]
    Utf8,
    /// `[MQTT-1.5.4-2]`: a string holds U+0000.
    #[error("a string contains U+0000")]
    Utf8Null,
    /// A property identifier that MQTT does not have, or not in this packet.
    #[error("property 0x{0:02X} is not allowed in this packet")]
    PropertyNotAllowed(u8),
    /// `[MQTT-3.3.1-4]`: both QoS bits set.
    #[error("QoS 3 does not exist")]
    Qos3,
    /// `[MQTT-3.3.1-2]`: DUP with QoS 0.
    #[error("DUP is set on a QoS 0 message")]
    DupOnQos0,
    /// `[MQTT-2.2.1-3]`: packet identifier 0.
    #[error("packet identifier 0 is not allowed")]
    PacketIdZero,
    /// `[MQTT-3.1.2-3]`: the reserved flag of CONNECT.
    #[error("the reserved connect flag is set")]
    ConnectReservedFlag,
    /// `[MQTT-3.1.2-11]`, `[MQTT-3.1.2-12]`, `[MQTT-3.1.2-13]`: Will QoS or Will Retain without a Will, or QoS 3.
    #[error("the will flags of CONNECT contradict each other")]
    WillFlags,
    /// `[MQTT3-3.1.2-22]`: MQTT 3 allows a password only with a user name.
    #[error("a password without a user name")]
    PasswordWithoutUserName,
    /// `[MQTT-3.1.2-1]`: neither `MQTT` nor `MQIsdp`.
    #[error("the protocol name is neither MQTT nor MQIsdp")]
    ProtocolName,
    /// `[MQTT-3.8.3-5]`, `[MQTT3-3.8.3-4]`: reserved bits of the Subscription Options.
    #[error("reserved bits of the subscription options are set")]
    SubscriptionOptions,
    /// `[MQTT-3.2.2-1]`: reserved bits of the Connect Acknowledge Flags.
    #[error("reserved connect acknowledge flags are set")]
    ConnackFlags,
    /// A Reason Code that the standard does not list for the packet.
    #[error("reason code 0x{1:02X} is not defined for {0}")]
    UnknownReasonCode(PacketType, u8),

    // -- Protocol errors: a packet that must not be sent, or not now -------------------------------
    /// `[MQTT-3.1.0-1]`: another packet before CONNECT.
    #[error("the first packet is {0} instead of CONNECT")]
    FirstPacketNotConnect(PacketType),
    /// `[MQTT-3.1.0-2]`: a second CONNECT.
    #[error("a second CONNECT on the same connection")]
    SecondConnect,
    /// A packet that this side never receives, or not in this state.
    #[error("{0} must not be sent to this side now")]
    UnexpectedPacket(PacketType),
    /// A property more than once.
    #[error("property 0x{0:02X} is given more than once")]
    DuplicateProperty(u8),
    /// A property with a value outside its range, such as Receive Maximum 0.
    #[error("property 0x{0:02X} has a value that the standard forbids")]
    PropertyValue(u8),
    /// `[MQTT-3.8.3-2]`, `[MQTT-3.10.3-2]`: SUBSCRIBE or UNSUBSCRIBE without a Topic Filter.
    #[error("{0} without a topic filter")]
    NoTopicFilter(PacketType),
    /// Maximum QoS 3 in SUBSCRIBE.
    #[error("a maximum QoS of 3 does not exist")]
    MaximumQos3,
    /// Retain Handling 3.
    #[error("retain handling 3 does not exist")]
    RetainHandling3,
    /// `[MQTT-3.8.3-4]`: No Local on a shared subscription.
    #[error("no local is not allowed on a shared subscription")]
    NoLocalOnShared,
    /// `[MQTT-3.3.4-6]`: a client sends a Subscription Identifier in PUBLISH.
    #[error("a client must not send a subscription identifier in PUBLISH")]
    SubscriptionIdFromClient,
    /// A PUBLISH with neither a Topic Name nor a Topic Alias, or with an alias never defined.
    #[error("PUBLISH has neither a topic name nor a defined topic alias")]
    NoTopic,
    /// Authentication Data without a Method.
    #[error("authentication data without an authentication method")]
    AuthenticationDataWithoutMethod,
    /// `[MQTT-4.12.0-7]`: AUTH from a client that named no Authentication Method.
    #[error("AUTH without an authentication method in CONNECT")]
    AuthNotNegotiated,
    /// AUTH with a Reason Code that does not belong there: 0x18 answers an AUTH, 0x19 begins a re-authentication.
    #[error("AUTH with reason code {0:#04x} is not expected here")]
    UnexpectedAuth(u8),
    /// `[MQTT-4.12.0-5]`: AUTH with another Authentication Method than CONNECT.
    #[error("AUTH has another authentication method than CONNECT")]
    AuthenticationMethodChanged,
    /// A server ends an enhanced authentication without the proof that it knows the credentials.
    #[error("the server did not prove that it knows the credentials: it may be an impostor")]
    ServerNotAuthenticated,
    /// Session Expiry raised from 0 at DISCONNECT.
    #[error("DISCONNECT sets a session expiry although CONNECT had none")]
    SessionExpiryRaised,
    /// `[MQTT-3.2.2-4]`: Session Present, but the client has no session.
    #[error("the server claims a session that the client does not have")]
    SessionPresentWithoutSession,

    /// `[BQ-82]`: a datagram with something else.
    #[error("a datagram is not exactly one PUBLISH of QoS 0 without RETAIN and topic alias")]
    NotInDatagram,
    /// `[BQ-85]`: a datagram in early data, before CONNACK, or without an agreement.
    #[error("a datagram came without an agreement by CONNECT and CONNACK, or before it")]
    DatagramNotAgreed,
    /// `[BQ-10]`, `[BQ-11]`, `[BQ-12]`: a packet that belongs on the control stream.
    #[error("{0} must not be sent on a data stream")]
    NotOnDataStream(PacketType),

    // -- With a Reason Code of their own ----------------------------------------------------------
    /// `[MQTT-3.1.2-2]`: a protocol version that is not supported.
    #[error("protocol version {0} is not supported: use 3 (3.1), 4 (3.1.1) or 5 (5.0)")]
    UnsupportedVersion(u8),
    /// `[MQTT3-3.1.3-7]`: an empty Client Identifier without Clean Session before MQTT 5.
    #[error("the client identifier is not valid: give one, or set clean session")]
    ClientIdNotValid,
    /// A Topic Name against MQTT 4.7.
    #[error("the topic name is not valid: {0}")]
    TopicName(TopicError),
    /// `[MQTT-3.3.2-8]`, `[MQTT-3.3.2-9]`: Topic Alias 0 or above the Topic Alias Maximum.
    #[error("topic alias {0} is outside the range that was agreed")]
    TopicAlias(u16),
    /// `[BQ-18]`: more bytes of Topic Names with aliases, on all streams together, than a connection may define.
    #[error("the topic names with an alias are too long, on all streams together")]
    TopicAliasBytes,
    /// `[MQTT-3.3.4-7]`: more unacknowledged QoS 1 and 2 messages than Receive Maximum.
    #[error("more unacknowledged messages than the receive maximum allows")]
    ReceiveMaximumExceeded,
    /// `[BQ-23]`: before MQTT 5, more on all streams together than there are Packet Identifiers.
    #[error("more QoS 2 messages without PUBREL than there are packet identifiers")]
    TooManyUnreleased,
    /// `[BQ-12]`: QoS 1 or 2, which could not be acknowledged.
    #[error("a unidirectional stream carries QoS 0 only")]
    QosOnUnidirectional,
    /// `[BQ-45]`: an incomplete packet made no progress in time.
    #[error("an incomplete packet made no progress in time")]
    PartialPacketStalled,
    /// `[MQTT-3.2.2-15]`: larger than the Maximum Packet Size.
    #[error("a packet of {size} bytes exceeds the limit of {limit}")]
    PacketTooLarge {
        /// Fixed header included, bytes.
        size: usize,
        /// Bytes.
        limit: usize,
    },
    /// Failure of this side: no space for a large packet.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// `[MQTT-3.1.2-22]`: nothing received for one and a half times the Keep Alive.
    #[error("nothing was received within one and a half times the keep alive")]
    KeepAliveTimeout,
    /// No CONNECT in time.
    #[error("no CONNECT arrived in time")]
    ConnectTimeout,
    /// No CONNACK in time.
    #[error("the server did not answer CONNECT in time")]
    ConnackTimeout,
    /// Nothing arrived in time after a PINGREQ.
    #[error("the server did not answer PINGREQ in time")]
    PingrespTimeout,
}

impl Violation {
    /// Reason Code for DISCONNECT, CONNACK or a stream reset.
    pub const fn reason(self) -> ReasonCode {
        match self {
            Self::ReservedPacketType(_)
            | Self::FixedHeaderFlags(_)
            | Self::VariableByteInteger
            | Self::Truncated
            | Self::TrailingBytes
            | Self::Utf8
            | Self::Utf8Null
            | Self::PropertyNotAllowed(_)
            | Self::Qos3
            | Self::DupOnQos0
            | Self::PacketIdZero
            | Self::ConnectReservedFlag
            | Self::WillFlags
            | Self::PasswordWithoutUserName
            | Self::SubscriptionOptions
            | Self::ConnackFlags
            | Self::UnknownReasonCode(..) => ReasonCode::MalformedPacket,
            Self::FirstPacketNotConnect(_)
            | Self::SecondConnect
            | Self::UnexpectedPacket(_)
            | Self::DuplicateProperty(_)
            | Self::PropertyValue(_)
            | Self::NoTopicFilter(_)
            | Self::MaximumQos3
            | Self::RetainHandling3
            | Self::NoLocalOnShared
            | Self::SubscriptionIdFromClient
            | Self::NoTopic
            | Self::AuthenticationDataWithoutMethod
            | Self::AuthNotNegotiated
            | Self::UnexpectedAuth(_)
            | Self::SessionExpiryRaised
            | Self::SessionPresentWithoutSession
            | Self::NotInDatagram
            | Self::DatagramNotAgreed
            | Self::NotOnDataStream(_) => ReasonCode::ProtocolError,
            Self::AuthenticationMethodChanged => ReasonCode::BadAuthenticationMethod,
            // 0x87 is for servers only.
            Self::ServerNotAuthenticated => ReasonCode::UnspecifiedError,
            Self::QosOnUnidirectional => ReasonCode::QosNotSupported,
            Self::PartialPacketStalled => ReasonCode::ServerBusy,
            Self::ProtocolName | Self::UnsupportedVersion(_) => ReasonCode::UnsupportedProtocolVersion,
            Self::ClientIdNotValid => ReasonCode::ClientIdentifierNotValid,
            Self::TopicName(_) => ReasonCode::TopicNameInvalid,
            Self::TopicAlias(_) => ReasonCode::TopicAliasInvalid,
            Self::ReceiveMaximumExceeded => ReasonCode::ReceiveMaximumExceeded,
            Self::TopicAliasBytes | Self::TooManyUnreleased | Self::Spool(SpoolError::Full) => {
                ReasonCode::QuotaExceeded
            }
            Self::Spool(SpoolError::Failed(_)) => ReasonCode::ImplementationSpecificError,
            Self::PacketTooLarge { .. } => ReasonCode::PacketTooLarge,
            Self::KeepAliveTimeout | Self::PingrespTimeout => ReasonCode::KeepAliveTimeout,
            Self::ConnectTimeout | Self::ConnackTimeout => ReasonCode::MaximumConnectTime,
        }
    }
}

/// Reason why a large packet could not be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpoolError {
    /// All space for large messages is used, or reserved.
    #[error("no space is left for large messages")]
    Full,
    /// The storage failed.
    #[error("large messages cannot be stored: {0}")]
    Failed(io::ErrorKind),
}
