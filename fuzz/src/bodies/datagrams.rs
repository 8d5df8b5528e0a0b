//! Datagrams of any bytes to a server.

use std::sync::Arc;
use std::time::Instant;

use braid_proto::connection::{
    Acceptance, DATAGRAMS_PROPERTY, DATAGRAMS_VALUE, Event, Server, ServerOptions,
};
use braid_proto::error::Violation;
use braid_proto::packet::{Connect, Packet, ProtocolVersion, QoS};
use braid_proto::session::Session;
use braid_proto::stream::StreamKey;
use bytes::BytesMut;

/// The first byte is the length of each datagram but the last. One is a message of QoS 0 without RETAIN, or has no
/// effect; what it does not depend on those before it, and the connection goes on.
pub fn datagrams(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let now = Instant::now();
    let mut used = server(now);
    for datagram in bytes.chunks(usize::from(*first).max(1)) {
        let outcome = handle(&mut used, datagram, now);
        assert_eq!(outcome, handle(&mut server(now), datagram, now), "{datagram:?}");
        assert!(!used.is_closed(), "{datagram:?}");
    }
}

/// Topic and payload of the message.
fn handle(server: &mut Server, datagram: &[u8], now: Instant) -> Result<(String, Vec<u8>), Violation> {
    let handled = server.handle_datagram(datagram, now);
    let event = server.poll_event();
    assert!(server.poll_event().is_none(), "one datagram is one message at most");
    match (handled, event) {
        (Ok(()), Some(Event::Publish(message, None))) => {
            assert!(message.qos == QoS::AtMostOnce && !message.retain);
            Ok((message.topic.as_str().to_owned(), message.payload.to_vec()))
        }
        (Err(violation), None) => Err(violation),
        other => panic!("{other:?}"),
    }
}

/// A server that has agreed on datagrams with its client.
fn server(now: Instant) -> Server {
    let mut server = Server::new(Arc::new(ServerOptions::default()), now);
    server.permit_datagrams();
    let mut connect = Connect::new(ProtocolVersion::V5, "c");
    connect.properties.user.push(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE);
    let mut bytes = BytesMut::new();
    Packet::Connect(Box::new(connect)).encode(ProtocolVersion::V5, &mut bytes);
    server.handle_bytes(StreamKey::CONTROL, &bytes, now);
    assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
    server.accept(Session::default(), &Acceptance::default(), now, |_| true);
    assert!(server.sends_datagrams());
    server
}
