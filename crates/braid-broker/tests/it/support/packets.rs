//! Constructors of packets.

use braid_proto::packet::{
    Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, Subscribe, SubscribeEntry, Unsubscribe,
    UserProperties, Will,
};
use braid_proto::topic::{TopicFilter, TopicName};
use bytes::Bytes;

pub(crate) fn topic(text: &str) -> TopicName {
    TopicName::parse(text).expect("a topic name")
}

pub(crate) fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a topic filter")
}

pub(crate) fn id(value: u16) -> PacketId {
    PacketId::new(value).expect("not zero")
}

/// Clean Start 1, no Keep Alive.
pub(crate) fn connect_v5(client_id: &str) -> Connect {
    Connect { keep_alive: 0, ..Connect::new(ProtocolVersion::V5, client_id) }
}

/// Clean Session 1, no Keep Alive.
pub(crate) fn connect_v3(client_id: &str) -> Connect {
    Connect { keep_alive: 0, ..Connect::new(ProtocolVersion::V311, client_id) }
}

/// QoS 0, not retained, no properties.
pub(crate) fn will(to: &str, payload: &str) -> Will {
    Will {
        topic: topic(to),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        qos: QoS::AtMostOnce,
        retain: false,
        delay: 0,
        properties: None,
    }
}

/// A PUBLISH without identifier, which suits QoS 0 only.
pub(crate) fn message(to: &str, payload: impl AsRef<[u8]>) -> Publish {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: Some(topic(to)),
        packet_id: None,
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: None,
        payload: payload.as_ref().to_vec().into(),
        spooled: false,
    }
}

/// A PUBLISH of any QoS.
pub(crate) fn publish_packet(to: &str, payload: impl AsRef<[u8]>, qos: QoS, packet_id: u16) -> Packet {
    let packet_id = (qos > QoS::AtMostOnce).then(|| id(packet_id));
    Packet::Publish(Publish { qos, packet_id, ..message(to, payload) })
}

pub(crate) fn subscribe_packet(
    packet_id: u16,
    subscription_id: Option<u32>,
    entries: Vec<SubscribeEntry>,
) -> Packet {
    let number = subscription_id.and_then(std::num::NonZeroU32::new);
    Packet::Subscribe(Box::new(Subscribe {
        packet_id: id(packet_id),
        id: number,
        user: UserProperties::new(),
        entries,
    }))
}

pub(crate) fn unsubscribe_packet(packet_id: u16, filters: &[&str]) -> Packet {
    let filters = filters.iter().map(|text| TopicFilter::parse(text)).collect();
    Packet::Unsubscribe(Box::new(Unsubscribe {
        packet_id: id(packet_id),
        user: UserProperties::new(),
        filters,
    }))
}

/// The payloads as text.
pub(crate) fn texts(publishes: &[Publish]) -> Vec<String> {
    publishes.iter().map(|publish| String::from_utf8_lossy(&publish.payload).into_owned()).collect()
}
