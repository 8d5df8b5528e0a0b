//! Progress of deliveries, for a store.

use std::num::NonZeroU64;

use braid_proto::connection::{Event, Progress, Sent, ServerOptions};
use braid_proto::message::Delivery;
use braid_proto::packet::{Ack, AckKind, Connect, Packet, PacketId, ProtocolVersion, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::SessionExpiry;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;

use crate::rig::{Rig, connect, delivery, encoded, options};

const V5: ProtocolVersion = ProtocolVersion::V5;

fn publish(id: u16) -> Packet {
    Packet::Publish(Publish {
        dup: false,
        qos: QoS::ExactlyOnce,
        retain: false,
        topic: Some(TopicName::parse("t").unwrap()),
        packet_id: PacketId::new(id),
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: None,
        payload: "".into(),
        spooled: false,
    })
}

fn acks(kinds: &[(AckKind, u16)]) -> Vec<u8> {
    let ack = |&(kind, id): &(AckKind, u16)| {
        let ack = Ack::new(kind, PacketId::new(id).unwrap(), ReasonCode::Success);
        encoded(&Packet::Ack(ack), V5)
    };
    kinds.iter().flat_map(ack).collect()
}

#[test]
fn progress_is_reported_for_stored_deliveries_only() {
    let mut rig = Rig::connected(ServerOptions { receive_maximum: 9, ..options() }, connect(V5));
    let lsn = NonZeroU64::new;
    for (number, qos) in
        [(1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce), (3, QoS::ExactlyOnce), (0, QoS::ExactlyOnce)]
    {
        let delivery = Delivery { queue_lsn: lsn(number), ..delivery("t", "", qos) };
        assert!(matches!(rig.server.deliver(delivery, rig.now), Sent::Out(Some(_))));
    }
    assert_eq!(rig.server.poll_progress(), None);
    let sent = rig.server.unwritten_on(StreamKey::CONTROL);
    // PUBREC comes twice, and once with an error; the last bytes arrive with the end of the connection.
    rig.read(&acks(&[
        (AckKind::Puback, 1),
        (AckKind::Pubrec, 2),
        (AckKind::Pubrec, 2),
        (AckKind::Pubrec, 4),
    ]));
    let refused = Ack::new(AckKind::Pubrec, PacketId::new(3).unwrap(), ReasonCode::QuotaExceeded);
    rig.read(&encoded(&Packet::Ack(refused), V5));
    rig.read(&acks(&[(AckKind::Pubcomp, 2), (AckKind::Pubcomp, 4)]));
    rig.server.handle_link_closed();
    let progress: Vec<_> = std::iter::from_fn(|| rig.server.poll_progress()).collect();
    let [one, two, three] = [1, 2, 3].map(|number| lsn(number).unwrap());
    let packet_id = PacketId::new(2).unwrap();
    let expected = [
        Progress::Completed(one),
        Progress::Released { queue_lsn: two, packet_id, behind: (StreamKey::CONTROL, sent) },
        Progress::Released { queue_lsn: two, packet_id, behind: (StreamKey::CONTROL, sent + 4) },
        Progress::Completed(three),
        Progress::Completed(two),
    ];
    assert_eq!(progress, expected);
}

#[test]
fn a_token_names_its_request() {
    let mut rig = Rig::connected(options(), connect(V5));
    rig.read(&acks(&[(AckKind::Pubrel, 70)]));
    assert!(rig.events().is_empty(), "an identifier that is not known has no effect");
    rig.read(&encoded(&publish(7), V5));
    rig.read(&acks(&[(AckKind::Pubrel, 7)]));
    let ids: Vec<_> = rig
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Publish(_, token) => token,
            Event::Release(token) => Some(token),
            _ => None,
        })
        .map(|token| token.packet_id().value())
        .collect();
    assert_eq!(ids, [7, 7]);
}

#[test]
fn expiry_and_will_are_known_before_the_decision() {
    let mut rig = Rig::before_connect(ServerOptions {
        maximum_session_expiry: SessionExpiry::from_secs(60),
        ..options()
    });
    assert!(rig.server.offer().is_none());
    let mut connect: Connect = connect(V5);
    connect.properties.session_expiry = Some(100);
    rig.read(&encoded(&Packet::Connect(Box::new(connect)), V5));
    assert_eq!(rig.server.offer(), Some((SessionExpiry::from_secs(60), None)));
}
