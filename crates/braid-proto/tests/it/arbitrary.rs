//! Every Control Packet, with whatever its version allows.

use braid_proto::packet::UserProperties;

use std::num::{NonZeroU16, NonZeroU32};

use braid_proto::packet::*;
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;
use braid_proto::topic::{TopicFilter, TopicName};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

pub(crate) fn version() -> impl Strategy<Value = ProtocolVersion> {
    prop_oneof![Just(ProtocolVersion::V31), Just(ProtocolVersion::V311), Just(ProtocolVersion::V5)]
}

pub(crate) fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

/// Text with a byte order mark, four-byte characters and everything else but U+0000. [MQTT-1.5.4-3]
fn text() -> BoxedStrategy<Box<str>> {
    prop_oneof![
        Just("".into()),
        "[^\u{0}]{0,12}".prop_map(Box::from),
        Just("\u{FEFF}x\u{10FFFF}".into()),
        "[a-z]{200}".prop_map(Box::from),
    ]
    .boxed()
}

pub(crate) fn blob() -> impl Strategy<Value = Bytes> {
    prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 100..300)].prop_map(Bytes::from)
}

pub(crate) fn topic() -> impl Strategy<Value = TopicName> {
    "[^+#\u{0}]{1,10}(/[a-z$]{0,4}){0,3}".prop_map(|text| TopicName::parse(&text).unwrap())
}

pub(crate) fn filter() -> impl Strategy<Value = TopicFilter> {
    r"(\$share/[a-z]{1,3}/)?([a-z]{0,2}|\+)(/([a-z$]{1,4}|\+)){0,3}(/#)?"
        .prop_filter_map("not a filter", |text| TopicFilter::parse(&text).ok())
}

fn id() -> impl Strategy<Value = PacketId> {
    (1..=u16::MAX).prop_map(|id| PacketId::new(id).unwrap())
}

fn subscription_id() -> impl Strategy<Value = NonZeroU32> {
    prop_oneof![1..200_u32, 1..=268_435_455_u32].prop_map(|id| NonZeroU32::new(id).unwrap())
}

fn user() -> impl Strategy<Value = UserProperties> {
    vec((text(), text()), 0..4).prop_map(|pairs| pairs.into_iter().collect())
}

pub(crate) fn message_properties() -> impl Strategy<Value = Option<Box<MessageProperties>>> {
    let all = (
        option::of(any::<bool>()),
        option::of(any::<u32>()),
        option::of(text()),
        option::of(topic()),
        option::of(blob()),
        user(),
    );
    all.prop_map(|(payload_format, message_expiry, content_type, response_topic, correlation_data, user)| {
        let properties = MessageProperties {
            payload_format,
            message_expiry,
            content_type,
            response_topic,
            correlation_data,
            user,
        };
        (properties != MessageProperties::default()).then(|| Box::new(properties))
    })
}

fn will() -> impl Strategy<Value = Will> {
    (topic(), blob(), qos(), any::<bool>(), any::<u32>(), message_properties()).prop_map(
        |(topic, payload, qos, retain, delay, properties)| Will {
            topic,
            payload,
            qos,
            retain,
            delay,
            properties,
        },
    )
}

fn connect_properties() -> impl Strategy<Value = ConnectProperties> {
    let numbers = (
        option::of(any::<u32>()),
        option::of(1..=u16::MAX),
        option::of(1..=u32::MAX),
        option::of(any::<u16>()),
        option::of(any::<bool>()),
        option::of(any::<bool>()),
    );
    (numbers, option::of((text(), option::of(blob()))), user()).prop_map(|(numbers, authentication, user)| {
        let (method, data) = authentication.unzip();
        ConnectProperties {
            session_expiry: numbers.0,
            receive_maximum: numbers.1,
            maximum_packet_size: numbers.2,
            topic_alias_maximum: numbers.3,
            request_response_information: numbers.4,
            request_problem_information: numbers.5,
            authentication_method: method,
            authentication_data: data.flatten(),
            user,
        }
    })
}

fn connect(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    let flags = (any::<bool>(), any::<u16>(), option::of(will()), option::of(text()), option::of(blob()));
    (text(), flags, connect_properties()).prop_map(move |(client_id, flags, properties)| {
        let (clean_start, keep_alive, mut will, user_name, mut password) = flags;
        if !version.is_v5() {
            password = password.filter(|_| user_name.is_some());
            if let Some(will) = &mut will {
                (will.delay, will.properties) = (0, None);
            }
        }
        Packet::Connect(Box::new(Connect {
            version,
            client_id: (&*client_id).into(),
            clean_start,
            keep_alive,
            will,
            user_name,
            password,
            properties: if version.is_v5() { properties } else { ConnectProperties::default() },
        }))
    })
}

/// A code which the packet may have in this version.
fn reason(packet: PacketType, version: ProtocolVersion) -> impl Strategy<Value = ReasonCode> {
    let codes: Vec<_> = ReasonCode::ALL
        .iter()
        .copied()
        .filter(|code| code.is_allowed_in(packet))
        .filter(|code| {
            version.is_v5()
                || match packet {
                    PacketType::Connack => {
                        code.connack_v3().and_then(ReasonCode::from_connack_v3) == Some(*code)
                    }
                    PacketType::Suback => code.suback_v3() == code.value(),
                    _ => *code == ReasonCode::Success,
                }
        })
        .collect();
    proptest::sample::select(codes)
}

fn connack(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    let numbers = (
        option::of(any::<u32>()),
        option::of(1..=u16::MAX),
        option::of(prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce)]),
        option::of(1..=u32::MAX),
        option::of(any::<u16>()),
        option::of(any::<u16>()),
    );
    let flags = vec(option::of(any::<bool>()), 4);
    let texts = vec(option::of(text()), 5);
    (any::<bool>(), reason(PacketType::Connack, version), numbers, flags, texts, option::of(blob()), user())
        .prop_map(move |(present, reason, numbers, flags, mut texts, data, user)| {
            let properties = ConnackProperties {
                session_expiry: numbers.0,
                receive_maximum: numbers.1,
                maximum_qos: numbers.2,
                maximum_packet_size: numbers.3,
                topic_alias_maximum: numbers.4,
                server_keep_alive: numbers.5,
                retain_available: flags[0],
                wildcard_subscription_available: flags[1],
                subscription_identifiers_available: flags[2],
                shared_subscription_available: flags[3],
                assigned_client_id: texts[0].take().map(|text| (&*text).into()),
                reason_string: texts[1].take(),
                response_information: texts[2].take(),
                server_reference: texts[3].take(),
                authentication_method: texts[4].take(),
                authentication_data: data,
                user,
            };
            Packet::Connack(Box::new(Connack {
                session_present: present && version != ProtocolVersion::V31,
                reason,
                properties: if version.is_v5() { properties } else { ConnackProperties::default() },
            }))
        })
}

pub(crate) fn publish(version: ProtocolVersion) -> impl Strategy<Value = Publish> {
    let alias = option::of((any::<NonZeroU16>(), any::<bool>()));
    let rest = (message_properties(), vec(subscription_id(), 0..4), blob());
    (any::<bool>(), qos(), any::<bool>(), topic(), id(), alias, rest).prop_map(
        move |(dup, qos, retain, topic, id, alias, (properties, subscription_ids, payload))| {
            let alias = alias.filter(|_| version.is_v5());
            Publish {
                dup: dup && qos != QoS::AtMostOnce,
                qos,
                retain,
                topic: Some(topic).filter(|_| !alias.is_some_and(|(_, bare)| bare)),
                packet_id: (qos != QoS::AtMostOnce).then_some(id),
                topic_alias: alias.map(|(alias, _)| alias),
                subscription_ids: if version.is_v5() { subscription_ids } else { Vec::new() },
                properties: properties.filter(|_| version.is_v5()),
                payload: payload.into(),
                spooled: false,
            }
        },
    )
}

fn ack(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    let kinds = [AckKind::Puback, AckKind::Pubrec, AckKind::Pubrel, AckKind::Pubcomp];
    proptest::sample::select(kinds.to_vec())
        .prop_flat_map(move |kind| {
            (Just(kind), reason(kind.packet_type(), version), id(), option::of(text()), user())
        })
        .prop_map(move |(kind, reason, packet_id, reason_string, user)| {
            let properties = AckProperties { reason_string, user };
            let some = version.is_v5() && properties != AckProperties::default();
            Packet::Ack(Ack { kind, packet_id, reason, properties: some.then(|| Box::new(properties)) })
        })
}

fn subscribe(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    let handling = proptest::sample::select(vec![
        RetainHandling::SendAlways,
        RetainHandling::SendIfNew,
        RetainHandling::DoNotSend,
    ]);
    let entry = (filter(), qos(), any::<bool>(), any::<bool>(), handling).prop_map(
        move |(filter, qos, no_local, retain_as_published, retain_handling)| {
            let mut entry = SubscribeEntry::new(filter.clone(), qos);
            if version.is_v5() {
                entry.no_local = no_local && !filter.is_shared();
                entry.retain_as_published = retain_as_published;
                entry.retain_handling = retain_handling;
            }
            entry
        },
    );
    (id(), option::of(subscription_id()), user(), vec(entry, 1..5)).prop_map(
        move |(packet_id, id, user, entries)| {
            let (id, user) = if version.is_v5() { (id, user) } else { (None, UserProperties::new()) };
            Packet::Subscribe(Box::new(Subscribe { packet_id, id, user, entries }))
        },
    )
}

fn unsubscribe(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    (id(), user(), vec(filter().prop_map(Ok), 1..5)).prop_map(move |(packet_id, user, filters)| {
        let user = if version.is_v5() { user } else { UserProperties::new() };
        Packet::Unsubscribe(Box::new(Unsubscribe { packet_id, user, filters }))
    })
}

fn suback(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    let codes = vec(reason(PacketType::Suback, version), 1..5);
    (id(), codes, option::of(text()), user()).prop_map(move |(packet_id, codes, reason_string, user)| {
        let (reason_string, user) =
            if version.is_v5() { (reason_string, user) } else { (None, UserProperties::new()) };
        Packet::Suback(Box::new(Suback { packet_id, codes, reason_string, user }))
    })
}

fn unsuback(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    let codes = vec(reason(PacketType::Unsuback, version), 1..5);
    (id(), codes, option::of(text()), user()).prop_map(move |(packet_id, codes, reason_string, user)| {
        if !version.is_v5() {
            let (codes, reason_string, user) = (Vec::new(), None, UserProperties::new());
            return Packet::Unsuback(Box::new(Unsuback { packet_id, codes, reason_string, user }));
        }
        Packet::Unsuback(Box::new(Unsuback { packet_id, codes, reason_string, user }))
    })
}

fn disconnect(version: ProtocolVersion) -> impl Strategy<Value = Packet> {
    let texts = (option::of(text()), option::of(text()));
    (reason(PacketType::Disconnect, version), option::of(any::<u32>()), texts, user()).prop_map(
        move |(reason, session_expiry, (reason_string, server_reference), user)| {
            let mut disconnect = Disconnect::new(reason);
            if version.is_v5() {
                disconnect = Disconnect { reason, session_expiry, reason_string, server_reference, user };
            }
            Packet::Disconnect(Box::new(disconnect))
        },
    )
}

fn auth() -> impl Strategy<Value = Packet> {
    let reason = reason(PacketType::Auth, ProtocolVersion::V5);
    (reason, option::of(text()), option::of(blob()), option::of(text()), user()).prop_map(
        |(reason, method, authentication_data, reason_string, user)| {
            Packet::Auth(Box::new(Auth { reason, method, authentication_data, reason_string, user }))
        },
    )
}

pub(crate) fn packet(version: ProtocolVersion) -> BoxedStrategy<Packet> {
    let all = prop_oneof![
        connect(version),
        connack(version),
        publish(version).prop_map(Packet::Publish),
        ack(version),
        subscribe(version),
        suback(version),
        unsubscribe(version),
        unsuback(version),
        Just(Packet::Pingreq),
        Just(Packet::Pingresp),
        disconnect(version),
    ];
    if version.is_v5() { prop_oneof![10 => all, 1 => auth()].boxed() } else { all.boxed() }
}
