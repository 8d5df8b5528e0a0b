//! Packets as language-neutral fields, as `vectors/README.md` describes them.

use braid_proto::packet::{
    ConnackProperties, ConnectProperties, MessageProperties, Packet, Publish, UserProperties, Will,
};
use serde_json::{Map, Value, json};

/// Lower-case hexadecimal digits without spaces.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An object without the fields that are absent or empty.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let there = |value: &Value| !(value.is_null() || value.as_array().is_some_and(Vec::is_empty));
    let fields = fields.into_iter().filter(|(_, value)| there(value));
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

fn user(properties: &UserProperties) -> Value {
    properties.iter().map(|(name, value)| json!([name, value])).collect()
}

fn message(properties: Option<&MessageProperties>) -> Value {
    let Some(all) = properties else { return Value::Null };
    object([
        ("payload_format", json!(all.payload_format.map(u8::from))),
        ("message_expiry", json!(all.message_expiry)),
        ("content_type", json!(all.content_type)),
        ("response_topic", json!(all.response_topic.as_ref().map(ToString::to_string))),
        ("correlation_data", json!(all.correlation_data.as_ref().map(|data| hex(data)))),
        ("user", user(&all.user)),
    ])
}

fn will(will: &Will) -> Value {
    object([
        ("topic", json!(will.topic.as_str())),
        ("payload", json!(hex(&will.payload))),
        ("qos", json!(will.qos.bits())),
        ("retain", json!(will.retain)),
        ("delay", json!(will.delay)),
        ("properties", message(will.properties.as_deref())),
    ])
}

fn connect_properties(all: &ConnectProperties) -> Value {
    object([
        ("session_expiry", json!(all.session_expiry)),
        ("receive_maximum", json!(all.receive_maximum)),
        ("maximum_packet_size", json!(all.maximum_packet_size)),
        ("topic_alias_maximum", json!(all.topic_alias_maximum)),
        ("request_response_information", json!(all.request_response_information)),
        ("request_problem_information", json!(all.request_problem_information)),
        ("authentication_method", json!(all.authentication_method)),
        ("authentication_data", json!(all.authentication_data.as_ref().map(|data| hex(data)))),
        ("user", user(&all.user)),
    ])
}

fn connack_properties(all: &ConnackProperties) -> Value {
    object([
        ("session_expiry", json!(all.session_expiry)),
        ("receive_maximum", json!(all.receive_maximum)),
        ("maximum_qos", json!(all.maximum_qos.map(braid_proto::packet::QoS::bits))),
        ("retain_available", json!(all.retain_available)),
        ("maximum_packet_size", json!(all.maximum_packet_size)),
        ("assigned_client_id", json!(all.assigned_client_id.as_ref().map(ToString::to_string))),
        ("topic_alias_maximum", json!(all.topic_alias_maximum)),
        ("reason_string", json!(all.reason_string)),
        ("wildcard_subscription_available", json!(all.wildcard_subscription_available)),
        ("subscription_identifiers_available", json!(all.subscription_identifiers_available)),
        ("shared_subscription_available", json!(all.shared_subscription_available)),
        ("server_keep_alive", json!(all.server_keep_alive)),
        ("response_information", json!(all.response_information)),
        ("server_reference", json!(all.server_reference)),
        ("authentication_method", json!(all.authentication_method)),
        ("authentication_data", json!(all.authentication_data.as_ref().map(|data| hex(data)))),
        ("user", user(&all.user)),
    ])
}

fn publish_fields(name: (&str, Value), publish: &Publish) -> Value {
    object([
        name,
        ("dup", json!(publish.dup)),
        ("qos", json!(publish.qos.bits())),
        ("retain", json!(publish.retain)),
        ("topic", json!(publish.topic.as_ref().map(ToString::to_string))),
        ("packet_id", json!(publish.packet_id.map(braid_proto::packet::PacketId::value))),
        ("topic_alias", json!(publish.topic_alias)),
        ("subscription_ids", publish.subscription_ids.iter().map(|id| json!(id)).collect()),
        ("properties", message(publish.properties.as_deref())),
        ("payload", json!(hex(&publish.payload))),
    ])
}

/// Fields of a packet.
pub(crate) fn of(packet: &Packet) -> Value {
    let name = ("type", json!(packet.packet_type().to_string()));
    match packet {
        Packet::Connect(connect) => object([
            name,
            ("client_id", json!(connect.client_id.as_str())),
            ("clean_start", json!(connect.clean_start)),
            ("keep_alive", json!(connect.keep_alive)),
            ("will", connect.will.as_ref().map_or(Value::Null, will)),
            ("user_name", json!(connect.user_name)),
            ("password", json!(connect.password.as_ref().map(|password| hex(password)))),
            ("properties", connect_properties(&connect.properties)),
        ]),
        Packet::Connack(connack) => object([
            name,
            ("session_present", json!(connack.session_present)),
            ("reason", json!(connack.reason.value())),
            ("properties", connack_properties(&connack.properties)),
        ]),
        Packet::Publish(publish) => publish_fields(name, publish),
        Packet::Ack(ack) => object([
            name,
            ("packet_id", json!(ack.packet_id.value())),
            ("reason", json!(ack.reason.value())),
            ("reason_string", json!(ack.properties.as_ref().and_then(|all| all.reason_string.clone()))),
            ("user", ack.properties.as_ref().map_or(Value::Null, |all| user(&all.user))),
        ]),
        Packet::Subscribe(subscribe) => {
            let entries = subscribe.entries.iter().map(|entry| {
                object([
                    ("filter", json!(entry.filter.as_ref().ok().map(ToString::to_string))),
                    ("qos", json!(entry.qos.bits())),
                    ("no_local", json!(entry.no_local)),
                    ("retain_as_published", json!(entry.retain_as_published)),
                    ("retain_handling", json!(entry.retain_handling as u8)),
                ])
            });
            object([
                name,
                ("packet_id", json!(subscribe.packet_id.value())),
                ("subscription_id", json!(subscribe.id)),
                ("user", user(&subscribe.user)),
                ("entries", entries.collect()),
            ])
        }
        Packet::Unsubscribe(unsubscribe) => object([
            name,
            ("packet_id", json!(unsubscribe.packet_id.value())),
            ("user", user(&unsubscribe.user)),
            (
                "filters",
                unsubscribe
                    .filters
                    .iter()
                    .map(|filter| json!(filter.as_ref().ok().map(ToString::to_string)))
                    .collect(),
            ),
        ]),
        Packet::Suback(suback) => object([
            name,
            ("packet_id", json!(suback.packet_id.value())),
            ("codes", suback.codes.iter().map(|code| json!(code.value())).collect()),
            ("reason_string", json!(suback.reason_string)),
            ("user", user(&suback.user)),
        ]),
        Packet::Unsuback(unsuback) => object([
            name,
            ("packet_id", json!(unsuback.packet_id.value())),
            ("codes", unsuback.codes.iter().map(|code| json!(code.value())).collect()),
            ("reason_string", json!(unsuback.reason_string)),
            ("user", user(&unsuback.user)),
        ]),
        Packet::Pingreq | Packet::Pingresp => object([name]),
        Packet::Disconnect(disconnect) => object([
            name,
            ("reason", json!(disconnect.reason.value())),
            ("session_expiry", json!(disconnect.session_expiry)),
            ("reason_string", json!(disconnect.reason_string)),
            ("server_reference", json!(disconnect.server_reference)),
            ("user", user(&disconnect.user)),
        ]),
        Packet::Auth(auth) => object([
            name,
            ("reason", json!(auth.reason.value())),
            ("authentication_method", json!(auth.method)),
            ("authentication_data", json!(auth.authentication_data.as_ref().map(|data| hex(data)))),
            ("reason_string", json!(auth.reason_string)),
            ("user", user(&auth.user)),
        ]),
    }
}
