//! Clients over TLS and QUIC on sockets of loopback, on the real clock: large messages that are cut, and references
//! from one server to another.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_client::{
    Builder, Client, ClientTlsOptions, ConnectionEvent, Events, Messages, Publication, QoS, Reconnect,
    Subscribe, Transport,
};
use braid_proto::packet::{Connack, ConnackProperties, Disconnect, Packet, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_store::spool::{FileSpool, SpoolOptions};
use braid_transport::{ByteStream, Listener};
use bytes::BytesMut;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::support::{Seed, SocketRelay, Sockets, only_stream, tls_listener};

/// Limit of each step, exceeded only after a fault.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: usize = 8_000_000;

fn builder(url: &str) -> Builder {
    let pause = Duration::from_millis(100);
    Client::builder(url)
        .client_id("device")
        .keep_alive(Duration::from_secs(1))
        .ping_timeout(Duration::from_secs(1))
        .reconnect(Reconnect::Backoff { initial: pause, maximum: pause })
        .tls(ClientTlsOptions { insecure: true, ..ClientTlsOptions::default() })
}

async fn next(events: &mut Events) -> ConnectionEvent {
    timeout(PATIENCE, events.recv()).await.expect("an event").expect("the client lives")
}

/// Waits for CONNACK of success.
async fn connected(events: &mut Events) -> Transport {
    loop {
        if let ConnectionEvent::Connected { transport, .. } = next(events).await {
            return transport;
        }
    }
}

/// A subscriber of everything, over a link in memory.
async fn subscriber(broker: &Sockets) -> (Client, Messages) {
    let builder = Client::builder("mqtt://unused").in_memory(broker.memory.connector.clone());
    let (client, messages) = builder.connect().await.expect("the broker is there");
    let all = Subscribe::to("#").expect("a filter").qos(QoS::ExactlyOnce);
    client.subscribe(all).await.expect("it is granted");
    (client, messages)
}

async fn receive(messages: &mut Messages) -> braid_client::Received {
    timeout(PATIENCE, messages.recv()).await.expect("a message").expect("the subscriber lives")
}

/// [BQ-96], [BQ-97], [BQ-98]
#[tokio::test]
async fn a_message_that_is_cut_at_random_arrives_byte_for_byte() {
    for transport in [Transport::Tls, Transport::Quic] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let seed = Seed(fastrand::u64(..));
            let mut random = fastrand::Rng::with_seed(seed.0);
            let directory = tempfile::tempdir().expect("a directory");
            let broker = broker(&directory);
            let (_subscriber, mut messages) = subscriber(&broker).await;
            let cuts = [(); 3].map(|()| random.usize(1_000_000..2_300_000));
            let relay = match transport {
                Transport::Tls => SocketRelay::tcp(broker.tls, &cuts).await,
                _ => SocketRelay::udp(broker.quic, &cuts).await,
            };
            let url = format!("{}://{}", transport.scheme(), relay.address);
            let builder = builder(&url).session_expiry(Duration::from_secs(3600));
            let (client, _none) = builder.connect().await.expect("the broker is there");
            let mut events = client.events();
            let mut payload = vec![0; SIZE];
            random.fill(&mut payload);
            let publication = Publication::to("large", payload.clone()).expect("a topic").qos(qos);
            let published = timeout(PATIENCE, client.publish(publication)).await.expect("in time");
            assert_eq!(published.expect("the broker takes it"), ReasonCode::Success, "{transport}, {cuts:?}");
            let small = Publication::to("small", "1").expect("a topic").qos(QoS::AtLeastOnce);
            client.publish(small).await.expect("the broker takes it");
            let message = receive(&mut messages).await;
            assert!(message.payload == payload, "{transport}, {cuts:?}: {} bytes", message.payload.len());
            assert_eq!(receive(&mut messages).await.topic.as_str(), "small", "{transport}, {cuts:?}: twice");

            client.disconnect().await.expect("the connection is there");
            let mut offsets = Vec::new();
            while let Some(event) = events.recv().await {
                if let ConnectionEvent::Continued { topic, offset, size } = event {
                    assert_eq!((topic.as_str(), size), ("large", SIZE));
                    offsets.push(offset);
                }
            }
            let (connections, latest) = relay.counts();
            assert_eq!(connections, cuts.len() + 1, "{transport}, {cuts:?}");
            assert_eq!(offsets.len(), cuts.len(), "{transport}, {cuts:?}: {offsets:?}");
            assert!(offsets[0] > 0 && offsets.is_sorted(), "{transport}, {cuts:?}: {offsets:?}");
            let rest = SIZE - offsets[cuts.len() - 1];
            assert!(latest < rest * 3 / 2 + 200_000, "{transport}, {cuts:?}: {latest} bytes for {rest}");
        }
    }
}

fn broker(directory: &TempDir) -> Sockets {
    let options = SpoolOptions { threshold: 256 << 10, bytes: 1 << 30, keep_free: 0 };
    Sockets::start(std::sync::Arc::new(FileSpool::open(directory.path(), options).expect("a spool")))
}

/// Server that refers to another one.
struct Origin(Listener);

impl Origin {
    /// Takes the next connection, and refers it to `server`: in CONNACK, or in DISCONNECT after it.
    async fn refer(&mut self, reason: ReasonCode, server: &str, is_in_connack: bool) {
        let mut link = self.accept().await;
        let reference = Some(server.into());
        if is_in_connack {
            let properties =
                ConnackProperties { server_reference: reference, ..ConnackProperties::default() };
            send(&mut link, Packet::Connack(Box::new(connack(reason, properties)))).await;
        } else {
            send(
                &mut link,
                Packet::Connack(Box::new(connack(ReasonCode::Success, ConnackProperties::default()))),
            )
            .await;
            let disconnect = Disconnect { server_reference: reference, ..Disconnect::new(reason) };
            send(&mut link, Packet::Disconnect(Box::new(disconnect))).await;
        }
        // The client closes the link, or leaves it to the server.
        let _ = timeout(Duration::from_millis(200), link.read(&mut [0; 64])).await;
    }

    /// Takes the next connection, whose CONNECT is read.
    async fn accept(&mut self) -> Box<dyn ByteStream> {
        let incoming = timeout(PATIENCE, self.0.accept()).await.expect("a client").expect("a socket");
        let mut link = only_stream(incoming.handshake().await.expect("TLS"));
        let len = link.read(&mut [0; 1024]).await.expect("CONNECT");
        assert!(len > 0, "CONNECT");
        link
    }
}

fn connack(reason: ReasonCode, properties: ConnackProperties) -> Connack {
    Connack { session_present: false, reason, properties }
}

async fn send(link: &mut Box<dyn ByteStream>, packet: Packet) {
    let mut bytes = BytesMut::new();
    packet.encode(ProtocolVersion::V5, &mut bytes);
    link.write_all(&bytes).await.expect("the client reads");
    link.flush().await.expect("the client reads");
}

/// A port of UDP at which nothing answers.
async fn closed_port() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    socket.local_addr().expect("an address")
}

/// 0x9C is for one connection, 0x9D for good.
#[tokio::test]
async fn a_client_goes_to_the_server_that_another_one_names_and_returns_or_not() {
    for (reason, returns) in [(ReasonCode::UseAnotherServer, true), (ReasonCode::ServerMoved, false)] {
        for is_in_connack in [true, false] {
            let directory = tempfile::tempdir().expect("a directory");
            let second = broker(&directory);
            let (_subscriber, mut messages) = subscriber(&second).await;
            let relay = SocketRelay::tcp(second.tls, &[]).await;
            let mut origin = Origin(tls_listener());
            let tls = origin.0.local_addr().expect("an address").port();
            let quic = closed_port().await.port();
            let builder = builder(&format!("auto://127.0.0.1?quic={quic}&tls={tls}"));
            let (client, _none) = builder.start().expect("valid options");
            let mut events = client.events();
            origin.refer(reason, &relay.address.to_string(), is_in_connack).await;
            if !is_in_connack {
                connected(&mut events).await;
            }
            assert_eq!(connected(&mut events).await, Transport::Tls);
            let here = Publication::to("here", "1").expect("a topic").qos(QoS::AtLeastOnce);
            client.publish(here.clone()).await.expect("the second server takes it");
            assert_eq!(receive(&mut messages).await.topic.as_str(), "here");

            relay.cut();
            let said = format!("{reason}, in CONNACK: {is_in_connack}");
            if returns {
                let mut link = origin.accept().await;
                let success = connack(ReasonCode::Success, ConnackProperties::default());
                send(&mut link, Packet::Connack(Box::new(success))).await;
                connected(&mut events).await;
                assert_eq!(relay.counts().0, 1, "{said}");
            } else {
                tokio::select! {
                    _ = connected(&mut events) => {}
                    _ = origin.accept() => panic!("{said}: it came back"),
                }
                client.publish(here).await.expect("the second server takes it");
                assert_eq!(receive(&mut messages).await.topic.as_str(), "here", "{said}");
                assert_eq!(relay.counts().0, 2, "{said}");
            }
        }
    }
}

/// Neither is followed: QUIC is tried at the port of the URL. [BQ-90]
#[tokio::test]
async fn hints_about_quic_that_contradict_each_other_are_ignored() {
    for hints in [["mqtt-quic=\":7\"", "clear"], ["mqtt-quic=\":7\"", "mqtt-quic=\":8\""]] {
        // QUIC without an answer: each attempt is known by its address.
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let quic = silent.local_addr().expect("an address").port();
        let mut origin = Origin(tls_listener());
        let tls = origin.0.local_addr().expect("an address").port();
        let builder = builder(&format!("auto://127.0.0.1?quic={quic}&tls={tls}"));
        let (client, _none) = builder.keep_alive(Duration::ZERO).start().expect("valid options");
        let mut events = client.events();
        let mut link = origin.accept().await;
        let mut datagram = [0; 2048];
        let (_, first) = silent.recv_from(&mut datagram).await.expect("QUIC was tried first");
        let mut properties = ConnackProperties::default();
        hints.iter().for_each(|hint| properties.user.push("alt-svc", hint));
        send(&mut link, Packet::Connack(Box::new(connack(ReasonCode::Success, properties)))).await;
        assert_eq!(connected(&mut events).await, Transport::Tls);
        client.change_transport().await.expect("there is another");
        let again = async { while silent.recv_from(&mut datagram).await.expect("a socket").1 == first {} };
        timeout(PATIENCE, again).await.expect("QUIC is tried again");
    }
}
