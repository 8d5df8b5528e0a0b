//! Streams of a client's packets.

use braid_proto::connection::{ClientEvent, Sent};
use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS, SubscribeEntry, UserProperties};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

use super::forge;
use crate::rig::delivery;

mod rig {
    use std::sync::Arc;
    use std::time::Instant;

    use braid_proto::connection::{Client, ClientEvent, ClientOptions, StreamAction};
    use braid_proto::packet::ProtocolVersion;
    use braid_proto::stream::StreamKey;
    use bytes::Buf;

    use crate::rig::connect;

    /// Client after CONNACK.
    pub(crate) struct ClientRig {
        pub(crate) client: Client,
        pub(crate) now: Instant,
    }

    impl ClientRig {
        pub(crate) fn new() -> Self {
            let now = Instant::now();
            let options = Arc::new(ClientOptions::default());
            let mut connect = connect(ProtocolVersion::V5);
            connect.properties.receive_maximum = Some(2);
            let mut rig = Self { client: Client::new(options, connect, None, now), now };
            rig.sent_on(StreamKey::CONTROL);
            rig.read_on(StreamKey::CONTROL, &[0x20, 6, 0, 0, 3, 0x22, 0, 10]);
            assert!(matches!(rig.events()[..], [ClientEvent::Connected(_)]));
            rig
        }

        pub(crate) fn open(&mut self, n: u32) -> StreamKey {
            let stream = StreamKey::bidi(n);
            self.client.handle_stream_opened(stream);
            stream
        }

        pub(crate) fn read_on(&mut self, stream: StreamKey, bytes: &[u8]) {
            self.client.handle_bytes(stream, bytes, self.now);
        }

        pub(crate) fn sent_on(&mut self, stream: StreamKey) -> Option<Vec<u8>> {
            let outbox = self.client.outbox(stream)?;
            Some(outbox.copy_to_bytes(outbox.remaining()).to_vec())
        }

        pub(crate) fn events(&mut self) -> Vec<ClientEvent> {
            std::iter::from_fn(|| self.client.poll_event()).collect()
        }

        pub(crate) fn actions(&mut self) -> Vec<StreamAction> {
            std::iter::from_fn(|| self.client.poll_stream()).collect()
        }
    }
}
pub(super) use rig::ClientRig;

/// Publishes topic `t` on a stream; returns its identifier.
pub(super) fn publish(
    rig: &mut ClientRig,
    stream: StreamKey,
    qos: QoS,
    payload: &'static str,
) -> Option<PacketId> {
    let delivery = Delivery { stream, ..delivery("t", payload, qos) };
    match rig.client.publish(delivery, rig.now) {
        Ok(Sent::Out(id)) => id,
        other => panic!("{other:?}"),
    }
}

pub(super) fn subscribe(rig: &mut ClientRig, stream: StreamKey) -> PacketId {
    let entry = SubscribeEntry::new(TopicFilter::parse("f").unwrap(), QoS::AtLeastOnce);
    rig.client.subscribe(stream, vec![entry], None, UserProperties::new(), rig.now).unwrap()
}

// [BQ-10], [BQ-14], [BQ-15], [BQ-22]
#[test]
fn messages_and_requests_go_on_their_streams_under_identifiers_of_the_session() {
    let mut rig = ClientRig::new();
    let (a, b) = (rig.open(1), rig.open(2));
    publish(&mut rig, a, QoS::AtLeastOnce, "one");
    publish(&mut rig, b, QoS::ExactlyOnce, "two");
    let id = subscribe(&mut rig, b);
    publish(&mut rig, a, QoS::AtMostOnce, "none");
    assert_eq!(id.value(), 3);
    assert_eq!(rig.sent_on(a).unwrap(), [forge::publish(1, 1, "one"), forge::publish(0, 0, "none")].concat());
    assert_eq!(rig.sent_on(b).unwrap(), [forge::publish(2, 2, "two"), forge::subscribe(3, "f")].concat());
    rig.read_on(a, &forge::puback(1));
    rig.read_on(b, &forge::pubrec(2));
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubrel(2));
    rig.read_on(b, &[&forge::pubcomp(2)[..], &[0x90, 4, 0, 3, 0, 1]].concat());
    let events = rig.events();
    assert!(
        matches!(
            events[..],
            [ClientEvent::Published(..), ClientEvent::Published(..), ClientEvent::Subscribed(_)]
        ),
        "{events:?}"
    );
    assert!(rig.client.session().unwrap().outbound.is_empty());
    assert!(rig.sent_on(StreamKey::CONTROL).unwrap().is_empty());
}

// [BQ-18]
#[test]
fn aliases_are_set_on_the_control_stream_only() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    for stream in [a, StreamKey::CONTROL, a] {
        let delivery = Delivery { stream, ..delivery("some/topic", "", QoS::AtMostOnce) };
        assert!(matches!(rig.client.publish(delivery, rig.now), Ok(Sent::Out(None))));
    }
    let plain = [&[0x30, 13, 0, 10][..], b"some/topic", &[0]].concat();
    assert_eq!(rig.sent_on(a).unwrap(), [plain.clone(), plain].concat());
    assert_eq!(rig.sent_on(StreamKey::CONTROL).unwrap()[14..], [3, 0x23, 0, 1]);
}

// [BQ-12]
#[test]
fn only_qos_0_is_sent_on_a_unidirectional_stream() {
    let mut rig = ClientRig::new();
    let uni = StreamKey::uni(0);
    rig.client.handle_stream_opened(uni);
    publish(&mut rig, uni, QoS::AtMostOnce, "zero");
    publish(&mut rig, uni, QoS::AtLeastOnce, "one");
    subscribe(&mut rig, uni);
    assert_eq!(rig.sent_on(uni).unwrap(), forge::publish(0, 0, "zero"));
    let control = rig.sent_on(StreamKey::CONTROL).unwrap();
    assert_eq!(control, [forge::publish(1, 1, "one"), forge::subscribe(2, "f")].concat());
}

// [BQ-14]
#[test]
fn a_taken_message_is_acknowledged_on_its_stream() {
    let mut rig = ClientRig::new();
    let (a, b) = (rig.open(1), rig.open(2));
    rig.read_on(a, &forge::publish(1, 1, "a"));
    rig.read_on(b, &forge::publish(2, 2, "b"));
    let mut tokens = Vec::new();
    for event in rig.events() {
        let ClientEvent::Message(incoming) = event else { panic!("{event:?}") };
        tokens.extend(incoming.token);
    }
    assert_eq!((tokens[0].stream(), tokens[1].stream()), (a, b));
    rig.client.acknowledge(tokens[1], rig.now);
    assert_eq!(rig.sent_on(a).unwrap(), forge::puback(1));
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubrec(2));
    rig.read_on(b, &forge::pubrel(2));
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubcomp(2));
    assert!(rig.client.session().unwrap().inbound.is_empty());
}

// [BQ-22], [BQ-42], [MQTT-4.3.3-10]
#[test]
fn an_identifier_of_the_server_names_one_message_on_all_streams() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    rig.read_on(a, &forge::publish(2, 9, "once"));
    assert_eq!(rig.events().len(), 1);
    // The stream's FIN is on its way behind this.
    rig.read_on(StreamKey::CONTROL, &forge::publish_with_dup(2, 9, "once"));
    assert!(rig.events().is_empty(), "told twice");
}
