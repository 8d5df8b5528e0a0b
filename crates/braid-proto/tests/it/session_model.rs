//! Two endpoints, a link that breaks, and random operations, against what MQTT 4.3 promises: QoS 2 exactly once,
//! QoS 1 at least once, resends in order, identifiers never in use twice, quotas never exceeded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::{
    Acceptance, Cause, Client, ClientEvent, ClientOptions, Event, Sent, Server, ServerOptions, Token,
};
use braid_proto::decoder::Decoder;
use braid_proto::packet::{Connect, Packet, PacketId, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use bytes::Buf;
use fastrand::Rng;

use crate::rig::delivery;

/// The number of a message is its payload.
fn number_of(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload.try_into().unwrap())
}

/// Acknowledgement of a message's receiver.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    qos: QoS,
    taken: u32,
    refused: u32,
    completed: bool,
}

/// One direction: its messages and the bytes on the wire.
#[derive(Default)]
struct Direction {
    fates: Vec<Fate>,
    /// Identifiers in use, each with its message.
    inflight: HashMap<PacketId, u32>,
    /// Written by the sender and not yet read by the receiver.
    wire: Vec<u8>,
    watch: Decoder,
    /// Newest message that was retransmitted on this connection.
    resent: Option<u32>,
    /// Messages sent on this connection and not completed.
    outstanding: HashMap<PacketId, u32>,
    receive_maximum: usize,
    held: Vec<Token>,
}

impl Direction {
    fn new(receive_maximum: u16) -> Self {
        Self { receive_maximum: receive_maximum.into(), ..Self::default() }
    }

    fn message(&mut self, qos: QoS) -> u32 {
        self.fates.push(Fate { qos, ..Fate::default() });
        u32::try_from(self.fates.len() - 1).unwrap()
    }

    fn connect(&mut self, version: ProtocolVersion) {
        self.wire.clear();
        self.watch = Decoder::default();
        self.watch.configure(version, usize::MAX);
        self.resent = None;
        self.outstanding.clear();
        self.held.clear();
    }

    /// Puts bytes on the wire and checks every PUBLISH among them.
    fn write(&mut self, bytes: &[u8]) {
        self.wire.extend_from_slice(bytes);
        let mut input = bytes;
        while let Some(packet) = self.watch.decode(&mut input).unwrap() {
            let Packet::Publish(publish) = packet else { continue };
            let Some(id) = publish.packet_id else { continue };
            let number = number_of(&publish.payload);
            // [MQTT-2.2.1-3], [MQTT-2.2.1-4], [MQTT-3.3.1-1], [MQTT-4.3.2-1], [MQTT-4.3.3-1]
            match self.inflight.insert(id, number) {
                None => assert!(!publish.dup, "a first PUBLISH has DUP"),
                Some(before) => {
                    assert_eq!(before, number, "{id} is in use");
                    assert!(publish.dup, "a resent PUBLISH has no DUP");
                    assert!(self.resent < Some(number), "resent out of order"); // [MQTT-4.6.0-1]
                    self.resent = Some(number);
                }
            }
            self.outstanding.insert(id, number);
            // [MQTT-3.3.4-7], [MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-2]
            assert!(self.outstanding.len() <= self.receive_maximum, "the receive maximum is exceeded");
        }
    }

    fn read(&mut self, random: &mut Rng) -> Vec<u8> {
        let len = random.usize(0..=self.wire.len());
        self.wire.drain(..len).collect()
    }

    fn complete(&mut self, id: PacketId) {
        let number = self.inflight.remove(&id).expect("an exchange that was never begun is over");
        self.outstanding.remove(&id);
        self.fates[number as usize].completed = true;
    }

    /// Acknowledges a random prefix of the pending acknowledgements.
    fn release(&mut self, random: &mut Rng) -> Option<Token> {
        let count = random.usize(0..=self.held.len());
        self.held.drain(..count).next_back()
    }

    fn check(&self, what: &str) {
        for (number, fate) in self.fates.iter().enumerate() {
            let fine = match fate.qos {
                QoS::AtMostOnce => fate.taken <= 1,
                QoS::AtLeastOnce => fate.completed && fate.taken + fate.refused >= 1,
                QoS::ExactlyOnce => {
                    fate.completed && (fate.taken == 1 || fate.taken == 0 && fate.refused > 0)
                }
            };
            assert!(fine, "{what} message {number}: {fate:?}");
        }
    }
}

struct World {
    random: Rng,
    now: Instant,
    version: ProtocolVersion,
    client: Client,
    server: Server,
    /// Session of the server while there is no connection.
    kept: Option<Session>,
    up: Direction,
    down: Direction,
    connections: u32,
}

const SERVER_MAXIMUM: u16 = 5;
const CLIENT_MAXIMUM: u16 = 3;

impl World {
    fn new(seed: u64, version: ProtocolVersion) -> Self {
        let now = Instant::now();
        // MQTT 3 has no Receive Maximum: each side limits what it sends.
        let (client, server) = (client(version, None, now), server(now));
        let mut world = Self {
            random: Rng::with_seed(seed),
            now,
            version,
            client,
            server,
            kept: Some(Session::new("c".into(), SessionExpiry::NEVER)),
            up: Direction::new(SERVER_MAXIMUM),
            down: Direction::new(CLIENT_MAXIMUM),
            connections: 0,
        };
        world.up.connect(version);
        world.down.connect(version);
        world
    }

    fn step(&mut self) {
        match self.random.u32(0..100) {
            0..15 => self.client_publishes(),
            15..30 => self.server_delivers(),
            30..55 => self.move_up(),
            55..80 => self.move_down(),
            80..97 => self.acknowledge(),
            97 => self.now += Duration::from_millis(self.random.u64(0..1000)),
            _ => self.lose(),
        }
        self.collect();
    }

    fn client_publishes(&mut self) {
        let qos = QoS::from_bits(self.random.u8(0..3)).unwrap();
        if !self.client.is_established() || qos > QoS::AtMostOnce && !self.client.has_send_quota() {
            return;
        }
        let number = self.up.message(qos);
        let sent = self.client.publish(delivery("up", number.to_be_bytes().to_vec(), qos), self.now);
        assert!(matches!(sent, Ok(Sent::Out(_))), "{sent:?}");
    }

    fn server_delivers(&mut self) {
        let qos = QoS::from_bits(self.random.u8(0..3)).unwrap();
        if self.server.session().is_none() || qos > QoS::AtMostOnce && !self.server.has_send_quota() {
            return;
        }
        let number = self.down.message(qos);
        let sent = self.server.deliver(delivery("down", number.to_be_bytes().to_vec(), qos), self.now);
        assert!(matches!(sent, Sent::Out(_)), "{sent:?}");
    }

    fn move_up(&mut self) {
        let bytes = self.up.read(&mut self.random);
        self.server.handle_bytes(StreamKey::CONTROL, &bytes, self.now);
    }

    fn move_down(&mut self) {
        let bytes = self.down.read(&mut self.random);
        self.client.handle_bytes(StreamKey::CONTROL, &bytes, self.now);
    }

    fn acknowledge(&mut self) {
        if let Some(token) = self.up.release(&mut self.random) {
            self.server.handle_persisted(token);
        }
        if let Some(token) = self.down.release(&mut self.random) {
            self.client.acknowledge(token, self.now);
        }
    }

    /// Takes events, then what is to be written.
    fn collect(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Connect(_) => {
                    let session = self.kept.take().expect("two connections at once");
                    let acceptance =
                        Acceptance { session_present: self.connections > 0, ..Acceptance::default() };
                    self.server.accept(session, &acceptance, self.now, |_| true);
                    self.connections += 1;
                }
                Event::Publish(message, token) => {
                    let fate = &mut self.up.fates[number_of(&message.payload) as usize];
                    match token {
                        Some(token) if self.random.u8(0..10) == 0 => {
                            fate.refused += 1;
                            self.server.set_reason(token, ReasonCode::QuotaExceeded);
                        }
                        _ => fate.taken += 1,
                    }
                    self.up.held.extend(token);
                }
                Event::Release(token) => self.up.held.push(token),
                Event::Complete(id, reason) => {
                    // The latter when a PUBCOMP was lost and its PUBREL came again.
                    let known = [ReasonCode::Success, ReasonCode::PacketIdentifierNotFound];
                    assert!(known.contains(&reason), "{reason}");
                    self.down.complete(id);
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = self.client.poll_event() {
            match event {
                ClientEvent::Connected(connected) => assert!(connected.lost.is_empty()),
                ClientEvent::Message(incoming) => {
                    self.down.fates[number_of(&incoming.message.payload) as usize].taken += 1;
                    self.down.held.extend(incoming.token);
                }
                ClientEvent::Published(id, _) => self.up.complete(id),
                other => panic!("{other:?}"),
            }
        }
        let len = self.client.outbox(StreamKey::CONTROL).unwrap().len();
        self.up.write(&self.client.outbox(StreamKey::CONTROL).unwrap().copy_to_bytes(len));
        self.server.continue_resend(self.now, |_| true);
        if let Some(outbox) = self.server.outbox(StreamKey::CONTROL) {
            let len = outbox.len();
            self.down.write(&outbox.copy_to_bytes(len));
        }
        let end = self.server.take_end();
        assert!(end.is_none() && self.client.cause().is_none(), "{:?} {end:?}", self.client.cause());
    }

    /// Bytes on the wire are lost, and pending acknowledgements are not sent.
    fn lose(&mut self) {
        self.server.handle_link_closed();
        self.client.handle_link_closed();
        let end = self.server.take_end().unwrap();
        assert_eq!(end.cause, Cause::Lost);
        self.kept = self.kept.take().or(end.session);
        assert!(self.kept.is_some(), "the session is gone");
        let next = server(self.now);
        self.server = next;
        let before = std::mem::replace(&mut self.client, client(self.version, None, self.now));
        let (_, session) = before.into_end();
        self.client = client(self.version, session, self.now);
        self.up.connect(self.version);
        self.down.connect(self.version);
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            let (up, down) = (std::mem::take(&mut self.up.wire), std::mem::take(&mut self.down.wire));
            self.server.handle_bytes(StreamKey::CONTROL, &up, self.now);
            self.client.handle_bytes(StreamKey::CONTROL, &down, self.now);
            self.collect();
            if let Some(token) = self.up.held.drain(..).next_back() {
                self.server.handle_persisted(token);
            }
            if let Some(token) = self.down.held.drain(..).next_back() {
                self.client.acknowledge(token, self.now);
            }
            self.collect();
        }
        assert!(self.client.is_established(), "still connecting");
    }
}

fn server(now: Instant) -> Server {
    let options = ServerOptions {
        receive_maximum: SERVER_MAXIMUM,
        maximum_inflight: CLIENT_MAXIMUM,
        ..ServerOptions::default()
    };
    Server::new(Arc::new(options), now)
}

fn client(version: ProtocolVersion, session: Option<Session>, now: Instant) -> Client {
    let mut connect = Connect::new(version, "c");
    connect.clean_start = false;
    connect.keep_alive = 0;
    if version.is_v5() {
        connect.properties.session_expiry = Some(u32::MAX);
        connect.properties.receive_maximum = Some(CLIENT_MAXIMUM);
        connect.properties.topic_alias_maximum = Some(1);
    }
    let options = ClientOptions { maximum_inflight: SERVER_MAXIMUM, ..ClientOptions::default() };
    let session = session.or_else(|| Some(Session::new("c".into(), SessionExpiry::NEVER)));
    Client::new(Arc::new(options), connect, session, now)
}

// [MQTT-4.3.1-1], [MQTT-4.3.2-3], [MQTT-4.3.3-3], [MQTT-4.3.3-5], [MQTT-4.3.3-6], [MQTT-4.3.3-10], [MQTT-4.3.3-13],
// [MQTT-4.4.0-1], [MQTT-4.1.0-1], [MQTT-4.5.0-2], [MQTT-3.3.4-1]
#[test]
fn random_operations_keep_the_promises_of_each_qos() {
    let mut messages = 0;
    for seed in 0..150 {
        for version in [ProtocolVersion::V31, ProtocolVersion::V311, ProtocolVersion::V5] {
            // Printed only on failure.
            println!("seed {seed}, {version}");
            let mut world = World::new(seed, version);
            for _ in 0..600 {
                world.step();
            }
            world.settle();
            world.up.check("client to server,");
            world.down.check("server to client,");
            assert!(world.up.inflight.is_empty() && world.down.inflight.is_empty());
            messages += world.up.fates.len() + world.down.fates.len();
        }
    }
    assert!(messages > 10_000, "too little happened: {messages} messages");
}
