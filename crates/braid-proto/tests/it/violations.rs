//! One row for each [`Violation`]: the bytes of the peer, the answer, and the cause of the end.
//!
//! The table becomes a match without a wildcard: a variant without a row does not compile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::{
    Cause, Client, ClientEvent, ClientOptions, Event, ServerOptions, StreamAction,
};
use braid_proto::decoder::SpoolError;
use braid_proto::error::Violation;
use braid_proto::packet::PacketType as T;
use braid_proto::packet::ProtocolVersion::{self, V5, V311};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicError;
use bytes::Buf;

use crate::hex;
use crate::rig::{Rig, agreed_on_datagrams, connect, options};
use crate::spool::MemorySpool;

/// State of the connection when the bytes arrive.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Server before CONNECT.
    Listening,
    /// Server that accepted a client of this version.
    Server(ProtocolVersion),
    /// Client that sent CONNECT and has no session.
    Connecting(ProtocolVersion),
    /// Client after CONNACK.
    Client(ProtocolVersion),
    /// Data stream of such a server: the answer is the code that ends it.
    Data(StreamKey),
    /// Oldest large packet, for whose memory others wait.
    OldestPartial,
    /// Second data stream of a server whose client of MQTT 3.1.1 has used every identifier for QoS 2 on the control
    /// stream.
    Unreleased,
    /// Data stream of a server whose client has defined aliases on the control stream that fill their memory.
    Aliased,
    /// Data stream of such a client.
    ClientData,
    /// Datagram to such a server, after an agreement on datagrams or without one.
    Datagram { is_agreed: bool },
    /// Server that accepted a client of MQTT 5 by an Authentication Method.
    Authenticated,
    /// Client that sent CONNECT with an Authentication Method.
    Requesting,
    /// Client that sent CONNECT with an Authentication Method and received an AUTH.
    Challenged,
    /// Server that accepted a client of this version and has no space in its spool; the input is filled up to 64 KiB.
    Spooling(ProtocolVersion, SpoolError),
}
use At::{
    Aliased, Authenticated, Challenged, Client as C, ClientData, Connecting, Data, Datagram, Listening,
    OldestPartial, Requesting, Server as S, Spooling, Unreleased,
};

const BIDI: StreamKey = StreamKey::bidi(1);
const UNI: StreamKey = StreamKey::uni(0);
const BROKEN: SpoolError = SpoolError::Failed(std::io::ErrorKind::NotFound);

/// Input.
enum Does {
    Read(&'static str),
    Wait(u64),
}
use Does::{Read, Wait};

struct Case {
    at: At,
    does: Does,
    violation: Violation,
    /// Answer to the peer.
    answer: &'static str,
}

const fn case(at: At, does: Does, violation: Violation, answer: &'static str) -> Case {
    Case { at, does, violation, answer }
}

macro_rules! table {
    ($($pattern:pat => [$($at:expr, $does:expr, $violation:expr, $answer:literal;)+])+) => {
        /// Name of the row of a violation.
        fn row(violation: Violation) -> &'static str {
            use Violation::*;
            match violation {
                $($pattern => stringify!($pattern),)+
            }
        }

        fn rows() -> Vec<(&'static str, Vec<Case>)> {
            use Violation::*;
            vec![$((stringify!($pattern), vec![$(case($at, $does, $violation, $answer)),+])),+]
        }
    };
}

table! {
    ReservedPacketType(_) => [
        Listening, Read("00 00"), ReservedPacketType(0), "";
        S(V311), Read("00 00"), ReservedPacketType(0), "";
        S(V311), Read("F0 00"), ReservedPacketType(15), "";
        S(V5), Read("00 00"), ReservedPacketType(0), "E0 01 81";
    ]
    // [MQTT-2.1.3-1], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1], [MQTT-3.14.1-1], [MQTT-3.15.1-1],
    // [MQTT3-2.2.2-2], [MQTT3-3.14.1-1]
    FixedHeaderFlags(_) => [
        Listening, Read("11 00"), FixedHeaderFlags(T::Connect), "";
        S(V311), Read("41 02 0001"), FixedHeaderFlags(T::Puback), "";
        S(V311), Read("60 02 0001"), FixedHeaderFlags(T::Pubrel), "";
        S(V311), Read("80 06 0001 0001 61 00"), FixedHeaderFlags(T::Subscribe), "";
        S(V311), Read("E1 00"), FixedHeaderFlags(T::Disconnect), "";
        S(V5), Read("60 02 0001"), FixedHeaderFlags(T::Pubrel), "E0 01 81";
        S(V5), Read("80 07 0001 00 0001 61 00"), FixedHeaderFlags(T::Subscribe), "E0 01 81";
        S(V5), Read("A0 06 0001 00 0001 61"), FixedHeaderFlags(T::Unsubscribe), "E0 01 81";
        S(V5), Read("C8 00"), FixedHeaderFlags(T::Pingreq), "E0 01 81";
        S(V5), Read("E2 00"), FixedHeaderFlags(T::Disconnect), "E0 01 81";
        S(V5), Read("F1 00"), FixedHeaderFlags(T::Auth), "E0 01 81";
    ]
    // [MQTT-1.5.5-1]
    VariableByteInteger => [
        S(V311), Read("30 FF FF FF FF"), VariableByteInteger, "";
        S(V5), Read("30 FF FF FF FF"), VariableByteInteger, "E0 01 81";
        S(V5), Read("30 84 00"), VariableByteInteger, "E0 01 81";
        S(V5), Read("C0 80 80 00"), VariableByteInteger, "E0 01 81";
        Listening, Read("10 8E 00 0004 'MQTT' 05 02 003C 00 0001 'c'"), VariableByteInteger, "20 03 00 81 00";
        S(V5), Read("30 05 0001 61 80 00"), VariableByteInteger, "E0 01 81";
    ]
    Truncated => [
        Listening, Read("10 00"), Truncated, "";
        S(V311), Read("40 01 00"), Truncated, "";
        S(V311), Read("30 03 0005 61"), Truncated, "";
        S(V5), Read("30 03 0005 61"), Truncated, "E0 01 81";
        S(V5), Read("30 04 0001 61 05"), Truncated, "E0 01 81";
        S(V5), Read("30 03 0001 61"), Truncated, "E0 01 81";
    ]
    TrailingBytes => [
        S(V311), Read("C0 01 00"), TrailingBytes, "";
        S(V311), Read("E0 01 00"), TrailingBytes, "";
        S(V311), Read("40 03 0001 00"), TrailingBytes, "";
        S(V5), Read("C0 01 00"), TrailingBytes, "E0 01 81";
        S(V5), Read("40 05 0001 00 00 00"), TrailingBytes, "E0 01 81";
    ]
    // [MQTT-1.5.4-1], [MQTT-1.5.7-1], [MQTT-3.1.3-4], [MQTT-3.1.3-11], [MQTT-3.1.3-12], [MQTT-3.3.2-1],
    // [MQTT-3.3.2-13], [MQTT-3.3.2-19], [MQTT-3.8.3-1], [MQTT-3.10.3-1], [MQTT-4.7.3-3]
    Utf8 => [
        Listening, Read("10 0D 0004 'MQTT' 04 02 003C 0001 FF"), Utf8, "";
        Listening, Read("10 0E 0004 'MQTT' 05 02 003C 00 0001 FF"), Utf8, "20 03 00 81 00";
        Listening, Read("10 14 0004 'MQTT' 05 06 003C 00 0001 'c' 00 0001 FF 0000"), Utf8, "20 03 00 81 00";
        Listening, Read("10 11 0004 'MQTT' 05 82 003C 00 0001 'c' 0001 FF"), Utf8, "20 03 00 81 00";
        S(V311), Read("30 05 0003 ED A0 80"), Utf8, "";
        S(V311), Read("82 07 0001 0002 C0 80 00"), Utf8, "";
        S(V5), Read("30 06 0003 ED A0 80 00"), Utf8, "E0 01 81";
        S(V5), Read("A2 06 0001 00 0001 80"), Utf8, "E0 01 81";
        S(V5), Read("30 08 0001 'a' 04 03 0001 FF"), Utf8, "E0 01 81";
        S(V5), Read("30 08 0001 'a' 04 08 0001 FF"), Utf8, "E0 01 81";
        S(V5), Read("30 0B 0001 'a' 07 26 0001 'n' 0001 FF"), Utf8, "E0 01 81";
    ]
    // [MQTT-1.5.4-2], [MQTT-4.7.3-2]
    Utf8Null => [
        S(V311), Read("30 03 0001 00"), Utf8Null, "";
        S(V311), Read("82 06 0001 0001 00 00"), Utf8Null, "";
        S(V5), Read("30 04 0001 00 00"), Utf8Null, "E0 01 81";
        S(V5), Read("30 0B 0001 'a' 07 26 0001 00 0001 'v'"), Utf8Null, "E0 01 81";
    ]
    PropertyNotAllowed(_) => [
        S(V5), Read("30 09 0001 'a' 05 11 00000001"), PropertyNotAllowed(0x11), "E0 01 81";
        S(V5), Read("30 05 0001 'a' 01 00"), PropertyNotAllowed(0), "E0 01 81";
        S(V5), Read("30 06 0001 'a' 02 FF 01"), PropertyNotAllowed(0xFF), "E0 01 81";
        S(V5), Read("E0 06 00 04 1C 0001 'a'"), PropertyNotAllowed(0x1C), "E0 01 81";
    ]
    // [MQTT-3.3.1-4]
    Qos3 => [
        S(V311), Read("36 05 0001 'a' 0001"), Qos3, "";
        S(V5), Read("36 06 0001 'a' 0001 00"), Qos3, "E0 01 81";
    ]
    // [MQTT-3.3.1-2]
    DupOnQos0 => [
        S(V311), Read("38 03 0001 'a'"), DupOnQos0, "";
        S(V5), Read("38 04 0001 'a' 00"), DupOnQos0, "E0 01 81";
    ]
    // [MQTT-2.2.1-3], [MQTT3-2.3.1-1]
    PacketIdZero => [
        S(V311), Read("32 05 0001 'a' 0000"), PacketIdZero, "";
        S(V311), Read("82 06 0000 0001 'a' 00"), PacketIdZero, "";
        S(V5), Read("32 06 0001 'a' 0000 00"), PacketIdZero, "E0 01 81";
        S(V5), Read("A2 06 0000 00 0001 'a'"), PacketIdZero, "E0 01 81";
        S(V5), Read("40 02 0000"), PacketIdZero, "E0 01 81";
    ]
    // [MQTT-3.1.2-3], [MQTT-3.1.4-1], [MQTT3-3.1.4-1]
    ConnectReservedFlag => [
        Listening, Read("10 0D 0004 'MQTT' 04 03 003C 0001 'c'"), ConnectReservedFlag, "";
        Listening, Read("10 0E 0004 'MQTT' 05 03 003C 00 0001 'c'"), ConnectReservedFlag, "20 03 00 81 00";
    ]
    // [MQTT-3.1.2-11], [MQTT-3.1.2-12], [MQTT-3.1.2-13]
    WillFlags => [
        Listening, Read("10 0D 0004 'MQTT' 04 0A 003C 0001 'c'"), WillFlags, "";
        Listening, Read("10 0D 0004 'MQTT' 04 22 003C 0001 'c'"), WillFlags, "";
        Listening, Read("10 13 0004 'MQTT' 04 1E 003C 0001 'c' 0001 't' 0001 'm'"), WillFlags, "";
        Listening, Read("10 0E 0004 'MQTT' 05 12 003C 00 0001 'c'"), WillFlags, "20 03 00 81 00";
        Listening, Read("10 0E 0004 'MQTT' 05 22 003C 00 0001 'c'"), WillFlags, "20 03 00 81 00";
        Listening, Read("10 15 0004 'MQTT' 05 1E 003C 00 0001 'c' 00 0001 't' 0001 'm'"), WillFlags, "20 03 00 81 00";
    ]
    // [MQTT3-3.1.2-22]
    PasswordWithoutUserName => [
        Listening, Read("10 10 0004 'MQTT' 04 42 003C 0001 'c' 0001 'p'"), PasswordWithoutUserName, "";
    ]
    // [MQTT-3.1.2-1], [MQTT3-3.1.2-1]
    ProtocolName => [
        Listening, Read("10 0D 0004 'MQTU' 04 02 003C 0001 'c'"), ProtocolName, "";
        Listening, Read("10 0D 0004 'mqtt' 05 02 003C 0001 'c'"), ProtocolName, "";
    ]
    // [MQTT-3.8.3-5], [MQTT3-3.8.3-4]
    SubscriptionOptions => [
        S(V311), Read("82 06 0001 0001 'a' 04"), SubscriptionOptions, "";
        S(V5), Read("82 07 0001 00 0001 'a' 40"), SubscriptionOptions, "E0 01 81";
        S(V5), Read("82 07 0001 00 0001 'a' 80"), SubscriptionOptions, "E0 01 81";
    ]
    // [MQTT-3.2.2-1]
    ConnackFlags => [
        Connecting(V311), Read("20 02 02 00"), ConnackFlags, "";
        Connecting(V5), Read("20 03 80 00 00"), ConnackFlags, "";
    ]
    // [MQTT-3.2.2-8], [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1], [MQTT-3.9.3-2],
    // [MQTT-3.11.3-2], [MQTT-3.14.2-1], [MQTT-3.15.2-1], [MQTT3-3.9.3-2]
    UnknownReasonCode(..) => [
        S(V5), Read("40 03 0001 42"), UnknownReasonCode(T::Puback, 0x42), "E0 01 81";
        S(V5), Read("40 03 0001 92"), UnknownReasonCode(T::Puback, 0x92), "E0 01 81";
        S(V5), Read("50 03 0001 01"), UnknownReasonCode(T::Pubrec, 0x01), "E0 01 81";
        S(V5), Read("62 03 0001 80"), UnknownReasonCode(T::Pubrel, 0x80), "E0 01 81";
        S(V5), Read("70 03 0001 10"), UnknownReasonCode(T::Pubcomp, 0x10), "E0 01 81";
        S(V5), Read("E0 01 8B"), UnknownReasonCode(T::Disconnect, 0x8B), "E0 01 81";
        S(V5), Read("E0 01 01"), UnknownReasonCode(T::Disconnect, 0x01), "E0 01 81";
        S(V5), Read("F0 02 80 00"), UnknownReasonCode(T::Auth, 0x80), "E0 01 81";
        Connecting(V5), Read("20 03 00 8E 00"), UnknownReasonCode(T::Connack, 0x8E), "";
        Connecting(V311), Read("20 02 00 06"), UnknownReasonCode(T::Connack, 6), "";
        C(V311), Read("90 03 0001 87"), UnknownReasonCode(T::Suback, 0x87), "";
        C(V5), Read("90 04 0001 00 03"), UnknownReasonCode(T::Suback, 3), "E0 01 81";
        C(V5), Read("B0 04 0001 00 01"), UnknownReasonCode(T::Unsuback, 1), "E0 01 81";
    ]
    // [MQTT-3.1.0-1]
    FirstPacketNotConnect(_) => [
        Listening, Read("C0 00"), FirstPacketNotConnect(T::Pingreq), "";
        Listening, Read("30 03 0001 'a'"), FirstPacketNotConnect(T::Publish), "";
    ]
    // [MQTT-3.1.0-2]
    SecondConnect => [
        S(V311), Read("10 0D 0004 'MQTT' 04 02 003C 0001 'c'"), SecondConnect, "";
        S(V5), Read("10 0E 0004 'MQTT' 05 02 003C 00 0001 'c'"), SecondConnect, "E0 01 82";
        S(V5), Read("10 02 0000"), SecondConnect, "E0 01 82";
        S(V5), Read("10 0D 0004 'MQTT' 09 02 003C 0001 'c'"), SecondConnect, "E0 01 82";
    ]
    UnexpectedPacket(_) => [
        S(V311), Read("20 02 00 00"), UnexpectedPacket(T::Connack), "";
        S(V311), Read("B0 02 0001"), UnexpectedPacket(T::Unsuback), "";
        S(V5), Read("D0 00"), UnexpectedPacket(T::Pingresp), "E0 01 82";
        S(V5), Read("90 04 0001 00 00"), UnexpectedPacket(T::Suback), "E0 01 82";
        // [MQTT-3.2.0-1], [MQTT-3.14.0-1]
        Connecting(V5), Read("D0 00"), UnexpectedPacket(T::Pingresp), "";
        C(V5), Read("C0 00"), UnexpectedPacket(T::Pingreq), "E0 01 82";
        C(V311), Read("E0 00"), UnexpectedPacket(T::Disconnect), "";
    ]
    DuplicateProperty(_) => [
        S(V5), Read("30 08 0001 'a' 04 01 01 01 01"), DuplicateProperty(0x01), "E0 01 82";
        S(V5), Read("82 0B 0001 04 0B 01 0B 02 0001 'a' 00"), DuplicateProperty(0x0B), "E0 01 82";
        Listening, Read("10 18 0004 'MQTT' 05 02 003C 0A 11 00000001 11 00000001 0001 'c'"), DuplicateProperty(0x11), "20 03 00 82 00";
    ]
    PropertyValue(_) => [
        S(V5), Read("30 06 0001 'a' 02 01 02"), PropertyValue(0x01), "E0 01 82";
        S(V5), Read("82 09 0001 02 0B 00 0001 'a' 00"), PropertyValue(0x0B), "E0 01 82";
        Listening, Read("10 11 0004 'MQTT' 05 02 003C 03 21 0000 0001 'c'"), PropertyValue(0x21), "20 03 00 82 00";
        Listening, Read("10 13 0004 'MQTT' 05 02 003C 05 27 00000000 0001 'c'"), PropertyValue(0x27), "20 03 00 82 00";
        Listening, Read("10 10 0004 'MQTT' 05 02 003C 02 17 02 0001 'c'"), PropertyValue(0x17), "20 03 00 82 00";
    ]
    // [MQTT-3.8.3-2], [MQTT-3.10.3-2]
    NoTopicFilter(_) => [
        S(V311), Read("82 02 0001"), NoTopicFilter(T::Subscribe), "";
        S(V311), Read("A2 02 0001"), NoTopicFilter(T::Unsubscribe), "";
        S(V5), Read("82 03 0001 00"), NoTopicFilter(T::Subscribe), "E0 01 82";
        S(V5), Read("A2 03 0001 00"), NoTopicFilter(T::Unsubscribe), "E0 01 82";
    ]
    // [MQTT3-3.8.3-4]
    MaximumQos3 => [
        S(V311), Read("82 06 0001 0001 'a' 03"), MaximumQos3, "";
        S(V5), Read("82 07 0001 00 0001 'a' 03"), MaximumQos3, "E0 01 82";
    ]
    RetainHandling3 => [
        S(V5), Read("82 07 0001 00 0001 'a' 30"), RetainHandling3, "E0 01 82";
    ]
    // [MQTT-3.8.3-4]
    NoLocalOnShared => [
        S(V5), Read("82 10 0001 00 000A '$share/g/a' 04"), NoLocalOnShared, "E0 01 82";
    ]
    // [MQTT-3.3.4-6]
    SubscriptionIdFromClient => [
        S(V5), Read("30 06 0001 'a' 02 0B 01"), SubscriptionIdFromClient, "E0 01 82";
    ]
    NoTopic => [
        S(V5), Read("30 03 0000 00"), NoTopic, "E0 01 82";
        S(V5), Read("30 06 0000 03 23 0001"), NoTopic, "E0 01 82";
    ]
    AuthenticationDataWithoutMethod => [
        Listening, Read("10 12 0004 'MQTT' 05 02 003C 04 16 0001 'd' 0001 'c'"), AuthenticationDataWithoutMethod, "20 03 00 82 00";
    ]
    // [MQTT-4.12.0-6], [MQTT-4.12.0-7]
    AuthNotNegotiated => [
        S(V5), Read("F0 00"), AuthNotNegotiated, "E0 01 82";
        C(V5), Read("F0 00"), AuthNotNegotiated, "E0 01 82";
        Connecting(V5), Read("20 0A 00 00 07 15 0004 'TEST'"), AuthNotNegotiated, "";
    ]
    UnexpectedAuth(_) => [
        Authenticated, Read("F0 09 18 07 15 0004 'TEST'"), UnexpectedAuth(0x18), "E0 01 82";
        Authenticated, Read("F0 09 00 07 15 0004 'TEST'"), UnexpectedAuth(0), "E0 01 82";
        Requesting, Read("F0 09 00 07 15 0004 'TEST'"), UnexpectedAuth(0), "";
        Requesting, Read("F0 09 19 07 15 0004 'TEST'"), UnexpectedAuth(0x19), "";
        Challenged, Read("F0 09 18 07 15 0004 'TEST'"), UnexpectedAuth(0x18), "";
    ]
    // [MQTT-4.12.0-5], [MQTT-4.12.1-1]
    AuthenticationMethodChanged => [
        Authenticated, Read("F0 09 19 07 15 0004 'MEST'"), AuthenticationMethodChanged, "E0 01 8C";
        Authenticated, Read("F0 00"), AuthenticationMethodChanged, "E0 01 8C";
        Requesting, Read("F0 09 18 07 15 0004 'MEST'"), AuthenticationMethodChanged, "";
        Requesting, Read("20 03 00 00 00"), AuthenticationMethodChanged, "";
        Requesting, Read("20 0A 00 00 07 15 0004 'MEST'"), AuthenticationMethodChanged, "";
    ]
    ServerNotAuthenticated => [
        Requesting, Read("20 0A 00 00 07 15 0004 'TEST'"), ServerNotAuthenticated, "";
        Challenged, Read("20 0A 00 00 07 15 0004 'TEST'"), ServerNotAuthenticated, "";
    ]
    SessionExpiryRaised => [
        S(V5), Read("E0 07 00 05 11 0000000A"), SessionExpiryRaised, "E0 01 82";
    ]
    // [MQTT-3.2.2-4]
    SessionPresentWithoutSession => [
        Connecting(V311), Read("20 02 01 00"), SessionPresentWithoutSession, "";
        Connecting(V5), Read("20 03 01 00 00"), SessionPresentWithoutSession, "";
    ]
    // [BQ-10], [BQ-11], [BQ-12]
    NotOnDataStream(_) => [
        Data(BIDI), Read("10 0E 0004 'MQTT' 05 02 003C 00 0001 'c'"), NotOnDataStream(T::Connect), "82";
        Data(BIDI), Read("20 03 00 00 00"), NotOnDataStream(T::Connack), "82";
        Data(BIDI), Read("90 04 0001 00 00"), NotOnDataStream(T::Suback), "82";
        Data(BIDI), Read("B0 04 0001 00 00"), NotOnDataStream(T::Unsuback), "82";
        Data(BIDI), Read("D0 00"), NotOnDataStream(T::Pingresp), "82";
        Data(BIDI), Read("E0 00"), NotOnDataStream(T::Disconnect), "82";
        Data(BIDI), Read("F0 00"), NotOnDataStream(T::Auth), "82";
        Data(UNI), Read("40 02 0001"), NotOnDataStream(T::Puback), "82";
        Data(UNI), Read("82 07 0001 00 0001 'a' 00"), NotOnDataStream(T::Subscribe), "82";
        Data(UNI), Read("C0 00"), NotOnDataStream(T::Pingreq), "82";
        ClientData, Read("20 03 00 00 00"), NotOnDataStream(T::Connack), "82";
        ClientData, Read("C0 00"), NotOnDataStream(T::Pingreq), "82";
        ClientData, Read("D0 00"), NotOnDataStream(T::Pingresp), "82";
        ClientData, Read("E0 00"), NotOnDataStream(T::Disconnect), "82";
        ClientData, Read("F0 00"), NotOnDataStream(T::Auth), "82";
    ]
    // [BQ-82]
    NotInDatagram => [
        Datagram { is_agreed: true }, Read("C0 00"), NotInDatagram, "";
        Datagram { is_agreed: true }, Read("31 04 0001 'a' 00"), NotInDatagram, "";
    ]
    // [BQ-85]
    DatagramNotAgreed => [
        Datagram { is_agreed: false }, Read("30 04 0001 'a' 00"), DatagramNotAgreed, "";
    ]
    // [BQ-12]
    QosOnUnidirectional => [
        Data(UNI), Read("32 06 0001 'a' 0001 00"), QosOnUnidirectional, "9B";
        Data(UNI), Read("34 06 0001 'a' 0001 00"), QosOnUnidirectional, "9B";
    ]
    // [BQ-45]
    PartialPacketStalled => [
        OldestPartial, Wait(30_000), PartialPacketStalled, "89";
    ]
    // [MQTT-3.1.2-2], [MQTT3-3.1.2-2]
    UnsupportedVersion(_) => [
        Listening, Read("10 0D 0004 'MQTT' 02 02 003C 0001 'c'"), UnsupportedVersion(2), "20 02 00 01";
        Listening, Read("10 0F 0006 'MQIsdp' 04 02 003C 0001 'c'"), UnsupportedVersion(4), "20 02 00 01";
        Listening, Read("10 0E 0004 'MQTT' 06 02 003C 00 0001 'c'"), UnsupportedVersion(6), "20 03 00 84 00";
        Listening, Read("10 0E 0004 'MQTT' FF 02 003C 00 0001 'c'"), UnsupportedVersion(255), "20 03 00 84 00";
    ]
    // [MQTT-3.1.3-8], [MQTT3-3.1.3-7], [MQTT3-3.1.3-8]
    ClientIdNotValid => [
        Listening, Read("10 0C 0004 'MQTT' 04 00 003C 0000"), ClientIdNotValid, "20 02 00 02";
        Listening, Read("10 0E 0006 'MQIsdp' 03 02 003C 0000"), ClientIdNotValid, "20 02 00 02";
    ]
    // [MQTT-3.3.2-2], [MQTT-3.3.2-14], [MQTT-4.7.0-1], [MQTT-4.7.3-1]
    TopicName(_) => [
        S(V311), Read("30 03 0001 '+'"), TopicName(TopicError::WildcardInName), "";
        S(V311), Read("30 02 0000"), TopicName(TopicError::Empty), "";
        S(V5), Read("30 06 0003 'a/#' 00"), TopicName(TopicError::WildcardInName), "E0 01 90";
        S(V5), Read("30 08 0001 'a' 04 08 0001 '+'"), TopicName(TopicError::WildcardInName), "E0 01 90";
        Listening, Read("10 15 0004 'MQTT' 05 06 003C 00 0001 'c' 00 0001 '#' 0001 'm'"), TopicName(TopicError::WildcardInName), "20 03 00 90 00";
    ]
    // [MQTT-3.3.2-8], [MQTT-3.3.2-9]
    TopicAlias(_) => [
        S(V5), Read("30 07 0001 'a' 03 23 0000"), TopicAlias(0), "E0 01 94";
        S(V5), Read("30 07 0001 'a' 03 23 0005"), TopicAlias(5), "E0 01 94";
    ]
    // [BQ-18]
    TopicAliasBytes => [
        Aliased, Read("30 07 0001 'a' 03 23 0001"), TopicAliasBytes, "97";
    ]
    // [MQTT-3.3.4-7], [MQTT-4.9.0-2]
    ReceiveMaximumExceeded => [
        S(V5), Read("32 06 0001 'a' 0001 00 34 06 0001 'a' 0002 00 32 06 0001 'a' 0003 00"), ReceiveMaximumExceeded, "E0 01 93";
        S(V5), Read("34 06 0001 'a' 0001 00 34 06 0001 'a' 0002 00 34 06 0001 'a' 0003 00"), ReceiveMaximumExceeded, "E0 01 93";
    ]
    // [BQ-23]
    TooManyUnreleased => [
        Unreleased, Read("34 05 0001 'a' 0001"), TooManyUnreleased, "97";
    ]
    // [MQTT-3.2.2-15]
    PacketTooLarge { .. } => [
        Listening, Read("10 80 80 04"), PacketTooLarge { size: 65_540, limit: 65_536 }, "";
        S(V311), Read("30 81 08"), PacketTooLarge { size: 1_028, limit: 1_024 }, "";
        S(V5), Read("30 81 08"), PacketTooLarge { size: 1_028, limit: 1_024 }, "E0 01 95";
        S(V5), Read("30 FF FF FF 7F"), PacketTooLarge { size: 268_435_460, limit: 1_024 }, "E0 01 95";
    ]
    Spool(_) => [
        Spooling(V311, SpoolError::Full), Read("30 80 80 07 0001 'a'"), Spool(SpoolError::Full), "";
        Spooling(V5, SpoolError::Full), Read("30 80 80 07 0001 'a' 00"), Spool(SpoolError::Full), "E0 01 97";
        Spooling(V5, BROKEN), Read("30 80 80 07 0001 'a' 00"), Spool(BROKEN), "E0 01 83";
    ]
    // [MQTT-3.1.2-22]
    KeepAliveTimeout => [
        S(V311), Wait(15_000), KeepAliveTimeout, "";
        S(V5), Wait(15_000), KeepAliveTimeout, "E0 01 8D";
    ]
    ConnectTimeout => [
        Listening, Wait(5_000), ConnectTimeout, "";
    ]
    ConnackTimeout => [
        Connecting(V311), Wait(10_000), ConnackTimeout, "";
        Connecting(V5), Wait(10_000), ConnackTimeout, "";
    ]
    PingrespTimeout => [
        C(V311), Wait(20_000), PingrespTimeout, "C0 00";
        C(V5), Wait(20_000), PingrespTimeout, "C0 00";
    ]
}

/// Bytes sent to the peer, and the cause; `None` while the connection is open.
fn run(at: At, does: &Does, before: Duration) -> (Vec<u8>, Option<Cause>) {
    match at {
        Listening | S(_) | Authenticated => run_server(at, does, before),
        Data(stream) => run_data(stream, does, before),
        OldestPartial => run_data(BIDI, does, before),
        Unreleased => run_unreleased(does),
        Aliased => run_aliased(does),
        ClientData => run_client_data(does),
        Datagram { is_agreed } => run_datagram(is_agreed, does),
        Spooling(version, error) => run_spooling(version, error, does),
        Connecting(version) | C(version) => run_client(at, version, does, before),
        Requesting | Challenged => run_client(at, V5, does, before),
    }
}

fn run_spooling(version: ProtocolVersion, error: SpoolError, does: &Does) -> (Vec<u8>, Option<Cause>) {
    let Read(text) = does else { panic!("nothing is waited for there") };
    let spool = Some(Arc::new(MemorySpool::refusing(error)) as _);
    let options = ServerOptions { spool, maximum_packet_size: 1 << 17, ..options() };
    let mut rig = Rig::connected(options, connect(version));
    let mut bytes = hex::bytes(&text.replace('\'', "\""));
    bytes.resize(1 << 16, 0);
    rig.read(&bytes);
    (rig.sent(), rig.cause())
}

/// A datagram that is no message has no effect. [BQ-85]
fn run_datagram(is_agreed: bool, does: &Does) -> (Vec<u8>, Option<Cause>) {
    let Read(text) = does else { panic!("nothing is waited for there") };
    let mut rig = match is_agreed {
        true => agreed_on_datagrams(options()),
        false => Rig::connected(options(), connect(V5)),
    };
    let _ = rig.sent();
    let handled = rig.server.handle_datagram(&hex::bytes(&text.replace('\'', "\"")), rig.now);
    assert!(!rig.server.is_closed() && rig.events().is_empty());
    (rig.sent(), handled.err().map(Cause::Violation))
}

fn run_server(at: At, does: &Does, before: Duration) -> (Vec<u8>, Option<Cause>) {
    let mut rig = match at {
        S(version) => {
            let mut connect = connect(version);
            connect.keep_alive = 10;
            Rig::connected(options(), connect)
        }
        Authenticated => {
            let mut connect = connect(V5);
            connect.properties.authentication_method = Some("TEST".into());
            Rig::connected(options(), connect)
        }
        _ => Rig::before_connect(options()),
    };
    match does {
        Read(text) => rig.read(&hex::bytes(&text.replace('\'', "\""))),
        Wait(time) => rig.wait(Duration::from_millis(*time) - before),
    }
    (rig.sent(), rig.cause())
}

/// Violations on a data stream end it and not the connection. [BQ-34]
fn run_data(stream: StreamKey, does: &Does, before: Duration) -> (Vec<u8>, Option<Cause>) {
    let options = ServerOptions { maximum_partial_bytes: 0, maximum_packet_size: 1 << 17, ..options() };
    let mut rig = Rig::connected(options, connect(V5));
    rig.server.handle_stream_opened(stream);
    match does {
        Read(text) => rig.server.handle_bytes(stream, &hex::bytes(&text.replace('\'', "\"")), rig.now),
        Wait(time) => {
            let mut hoard = hex::bytes("30 80 80 06 0001 61 00");
            hoard.resize(1 << 16, 0);
            rig.server.handle_bytes(stream, &hoard, rig.now);
            rig.wait(Duration::from_millis(*time) - before);
        }
    }
    assert!(rig.sent().is_empty());
    end_of_stream(rig, stream)
}

/// Code that ended the stream alone, and its violation.
fn end_of_stream(mut rig: Rig, stream: StreamKey) -> (Vec<u8>, Option<Cause>) {
    assert!(!rig.server.is_closed());
    let violation = rig.events().into_iter().find_map(|event| match event {
        Event::StreamViolated(on, violation) if on == stream => Some(Cause::Violation(violation)),
        _ => None,
    });
    (code(rig.server.poll_stream()), violation)
}

fn run_unreleased(does: &Does) -> (Vec<u8>, Option<Cause>) {
    let Read(text) = does else { panic!("nothing is waited for there") };
    let bytes = hex::bytes(&text.replace('\'', "\""));
    let mut rig = Rig::connected(options(), connect(V311));
    rig.server.handle_stream_opened(BIDI);
    for packet_id in 1..=u16::MAX {
        let [high, low] = packet_id.to_be_bytes();
        rig.read(&[0x34, 5, 0, 1, b'a', high, low]);
        let events = rig.events();
        rig.persist(&events);
    }
    // Once more on the same stream it is a duplicate.
    rig.read(&[0x3C, 5, 0, 1, b'a', 0, 1]);
    assert!(rig.cause().is_none());
    rig.server.handle_bytes(BIDI, &bytes, rig.now);
    end_of_stream(rig, BIDI)
}

fn run_aliased(does: &Does) -> (Vec<u8>, Option<Cause>) {
    let Read(text) = does else { panic!("nothing is waited for there") };
    let options = ServerOptions { topic_alias_maximum: 64, maximum_packet_size: 1 << 17, ..options() };
    let mut rig = Rig::connected(options, connect(V5));
    rig.server.handle_stream_opened(BIDI);
    for alias in 1..=64 {
        // With 16 bytes for each alias, 4 MiB.
        let mut publish = hex::bytes("30 F6 FF 03 FFF0");
        publish.resize(publish.len() + 0xFFF0, b't');
        publish.extend([3, 0x23, 0, alias]);
        rig.read(&publish);
    }
    assert_eq!(rig.events().len(), 64);
    // An alias that is defined again takes the place of itself.
    rig.read(&hex::bytes("30 07 0001 \"a\" 03 23 0001"));
    rig.read(&[&hex::bytes("30 F6 FF 03 FFF0")[..], &[b't'; 0xFFF0], &[3, 0x23, 0, 1]].concat());
    assert!(rig.cause().is_none());
    rig.read_on(BIDI, &hex::bytes(&text.replace('\'', "\"")));
    end_of_stream(rig, BIDI)
}

fn run_client_data(does: &Does) -> (Vec<u8>, Option<Cause>) {
    let Read(text) = does else { panic!("a client waits for nothing there") };
    let now = Instant::now();
    let mut client = Client::new(Arc::new(ClientOptions::default()), connect(V5), None, now);
    client.handle_bytes(StreamKey::CONTROL, &hex::bytes("20 03 00 00 00"), now);
    client.handle_stream_opened(BIDI);
    client.handle_bytes(BIDI, &hex::bytes(&text.replace('\'', "\"")), now);
    assert!(client.is_established());
    let violation = std::iter::from_fn(|| client.poll_event()).find_map(|event| match event {
        ClientEvent::StreamViolated(BIDI, violation) => Some(Cause::Violation(violation)),
        _ => None,
    });
    (code(client.poll_stream()), violation)
}

fn code(action: Option<StreamAction>) -> Vec<u8> {
    match action {
        Some(StreamAction::Abort(_, reason)) => vec![reason.value()],
        _ => Vec::new(),
    }
}

fn run_client(at: At, version: ProtocolVersion, does: &Does, before: Duration) -> (Vec<u8>, Option<Cause>) {
    let mut now = Instant::now();
    let mut connect = connect(version);
    connect.keep_alive = 10;
    if matches!(at, Requesting | Challenged) {
        connect.properties.authentication_method = Some("TEST".into());
    }
    let mut client = Client::new(Arc::new(ClientOptions::default()), connect, None, now);
    let written = client.outbox(StreamKey::CONTROL).unwrap().len();
    client.outbox(StreamKey::CONTROL).unwrap().advance(written);
    if matches!(at, Challenged) {
        client.handle_bytes(StreamKey::CONTROL, &hex::bytes("F0 09 18 07 15 0004 \"TEST\""), now);
    }
    if matches!(at, C(_)) {
        let connack = if version.is_v5() { "20 03 00 00 00" } else { "20 02 00 00" };
        client.handle_bytes(StreamKey::CONTROL, &hex::bytes(connack), now);
    }
    match does {
        Read(text) => client.handle_bytes(StreamKey::CONTROL, &hex::bytes(&text.replace('\'', "\"")), now),
        Wait(time) => {
            let end = now + Duration::from_millis(*time) - before;
            while let Some(at) = client.poll_timeout().filter(|at| *at <= end) {
                now = at;
                client.handle_timeout(now);
            }
        }
    }
    let unsent = client.outbox(StreamKey::CONTROL).unwrap().len();
    let sent = client.outbox(StreamKey::CONTROL).unwrap().copy_to_bytes(unsent).to_vec();
    (sent, client.cause())
}

// [MQTT-4.13.1-1], [MQTT-4.13.2-1], [MQTT3-4.8.0-1]
#[test]
fn every_violation_has_its_answer_and_its_cause() {
    for (name, cases) in rows() {
        for Case { at, does, violation, answer } in cases {
            assert_eq!(row(violation), name, "a case in the wrong row");
            let (sent, cause) = run(at, &does, Duration::ZERO);
            let told = match does {
                Read(text) => text.to_owned(),
                Wait(time) => format!("{time} ms"),
            };
            assert_eq!(cause, Some(Cause::Violation(violation)), "{name}, {at:?}: {told}");
            assert_eq!(hex::text(&sent), hex::text(&hex::bytes(answer)), "{name}, {at:?}: {told}");
        }
    }
}

#[test]
fn timers_do_not_end_a_connection_a_moment_early() {
    for (name, cases) in rows() {
        for Case { at, does, .. } in cases.into_iter().filter(|case| matches!(case.does, Wait(_))) {
            let (_, cause) = run(at, &does, Duration::from_millis(1));
            assert_eq!(cause, None, "{name}, {at:?}");
        }
    }
}
