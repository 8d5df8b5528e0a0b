//! Datagrams: chapter 9.

use std::sync::Arc;
use std::time::Instant;

use super::payloads;
use crate::rig::{Rig, asking_for_datagrams, connect, delivery, encoded, options, over_datagrams};
use braid_proto::connection::{Client, ClientEvent, ClientOptions, DATAGRAMS_PROPERTY, DATAGRAMS_VALUE};
use braid_proto::error::Violation;
use braid_proto::packet::{Connack, ConnackProperties, Connect, Packet, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;

const V5: ProtocolVersion = ProtocolVersion::V5;
/// PUBLISH of QoS 0 with the payload `m` to `t`.
const PUBLISH: &[u8] = &[0x30, 5, 0, 1, b't', 0, b'm'];
const LIMIT: usize = 1200;

/// A server on a transport with datagrams, after this CONNECT.
fn agreed(connect: Connect) -> Rig {
    over_datagrams(options(), connect)
}

// [BQ-81]
#[test]
fn both_ends_agree_in_connect_and_connack() {
    let mut rig = agreed(asking_for_datagrams());
    let connack = rig.sent();
    assert!(rig.server.sends_datagrams());
    let (mut asked, mut silent) = (client(asking_for_datagrams()), client(connect(V5)));
    for client in [&mut asked, &mut silent] {
        client.handle_bytes(StreamKey::CONTROL, &connack, rig.now);
    }
    assert_eq!((asked.sends_datagrams(), silent.sends_datagrams()), (true, false));
    assert!(!agreed(connect(V5)).server.sends_datagrams());
    assert!(
        !Rig::connected(options(), asking_for_datagrams()).server.sends_datagrams(),
        "a transport without datagrams"
    );
}

fn client(connect: Connect) -> Client {
    Client::new(Arc::new(ClientOptions::default()), connect, None, Instant::now())
}

// [BQ-82], [BQ-85]
#[test]
fn a_datagram_is_one_publish_of_qos_0() {
    let mut rig = agreed(asking_for_datagrams());
    let qos_1: &[u8] = &[0x32, 7, 0, 1, b't', 0, 9, 0, b'm'];
    let alias: &[u8] = &[0x30, 8, 0, 1, b't', 3, 0x23, 0, 1, b'm'];
    let subscription_id: &[u8] = &[0x30, 7, 0, 1, b't', 2, 0x0B, 1, b'm'];
    for (datagram, expected) in [
        (&b""[..], Violation::Truncated),
        (&PUBLISH[..6], Violation::Truncated),
        (&[PUBLISH, PUBLISH].concat(), Violation::NotInDatagram),
        (&[0x31, 5, 0, 1, b't', 0, b'm'], Violation::NotInDatagram),
        (qos_1, Violation::NotInDatagram),
        (alias, Violation::NotInDatagram),
        (subscription_id, Violation::SubscriptionIdFromClient),
        (&[0xC0, 0], Violation::NotInDatagram),
        (&[0x00, 0], Violation::ReservedPacketType(0)),
        (&[0x30, 3, 0, 0, 0], Violation::NoTopic),
    ] {
        assert_eq!(rig.server.handle_datagram(datagram, rig.now), Err(expected), "{datagram:?}");
        assert_eq!(rig.server.handle_datagram(PUBLISH, rig.now), Ok(()), "after {datagram:?}");
        assert_eq!(payloads(&rig.events()), ["m"]);
    }
    assert!(!rig.server.is_closed());
}

// [BQ-85]
#[test]
fn a_datagram_that_was_not_agreed_on_is_dropped() {
    let early = |mut rig: Rig| rig.server.handle_datagram(PUBLISH, rig.now);
    assert_eq!(early(Rig::before_connect(options())), Err(Violation::DatagramNotAgreed));
    assert_eq!(early(agreed(connect(V5))), Err(Violation::DatagramNotAgreed));
    let mut rig = agreed(asking_for_datagrams());
    rig.server.set_early();
    assert_eq!(rig.server.handle_datagram(PUBLISH, rig.now), Err(Violation::DatagramNotAgreed));
    rig.server.handle_confirmed(rig.now);
    assert_eq!(rig.server.handle_datagram(PUBLISH, rig.now), Ok(()));
    rig.server.disconnect(ReasonCode::ServerShuttingDown);
    assert!(rig.server.handle_datagram(PUBLISH, rig.now).is_err());
    let mut before = client(asking_for_datagrams());
    assert_eq!(before.handle_datagram(PUBLISH, rig.now), Err(Violation::DatagramNotAgreed));
}

// [BQ-83]
#[test]
fn a_delivery_that_does_not_fit_or_is_not_plain_belongs_on_a_stream() {
    let rig = agreed(asking_for_datagrams());
    let datagram = |delivery: &_, limit| rig.server.datagram(delivery, limit, rig.now);
    let plain = delivery("t", "m", QoS::AtMostOnce);
    assert_eq!(datagram(&plain, LIMIT).as_deref(), Some(PUBLISH));
    assert!(rig.server.takes_datagram(&plain, LIMIT));
    assert_eq!(datagram(&plain, PUBLISH.len() - 1), None);
    let mut retained = plain.clone();
    retained.retain = true;
    assert_eq!(datagram(&retained, LIMIT), None);
    assert_eq!(datagram(&delivery("t", "m", QoS::AtLeastOnce), LIMIT), None);
    // Above 1 KiB a payload is shared by reference on streams.
    let large = datagram(&delivery("t", vec![b'x'; 1100], QoS::AtMostOnce), LIMIT).expect("it fits");
    assert_eq!(large.len(), 3 + 4 + 1100);
    assert_eq!(datagram(&delivery("t", vec![b'x'; 1200], QoS::AtMostOnce), LIMIT), None);
    let silent = agreed(connect(V5));
    assert_eq!(silent.server.datagram(&plain, LIMIT, silent.now), None);
}

#[test]
fn a_client_takes_and_sends_datagrams() {
    let mut client = client(asking_for_datagrams());
    let now = Instant::now();
    let user = [(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE)].into_iter().collect();
    let properties = ConnackProperties { user, ..ConnackProperties::default() };
    let connack = Connack { session_present: false, reason: ReasonCode::Success, properties };
    client.handle_bytes(StreamKey::CONTROL, &encoded(&Packet::Connack(Box::new(connack)), V5), now);
    assert!(matches!(client.poll_event(), Some(ClientEvent::Connected(_))));
    assert_eq!(client.handle_datagram(PUBLISH, now), Ok(()));
    let Some(ClientEvent::Message(incoming)) = client.poll_event() else { panic!("a message") };
    assert_eq!((&incoming.message.payload[..], incoming.token), (&b"m"[..], None));
    assert_eq!(client.handle_datagram(b"\xC0\x00", now), Err(Violation::NotInDatagram));
    let plain = delivery("t", "m", QoS::AtMostOnce);
    assert_eq!(client.datagram(&plain, LIMIT, now).as_deref(), Some(PUBLISH));
    assert!(client.takes_datagram(&plain, LIMIT) && client.is_established());
}
