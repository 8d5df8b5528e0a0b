use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::codec::Decoder;
use braid_proto::connection::{Acceptance, Event, Server, ServerOptions, Token};
use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{Connect, Packet, PacketId, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::topic::TopicName;
use bytes::{Buf, Bytes, BytesMut};

const MAXIMUM_INFLIGHT: u16 = 8;

/// Each byte is an operation: of the client, of the shell or of the link. Whatever comes, the server stays within
/// its limits, writes packets, and hands a session over exactly once.
pub fn session_operations(data: &[u8]) {
    let mut world = World::new();
    let mut bytes = data.iter().copied();
    while let Some(operation) = bytes.next() {
        world.operate(operation, &mut bytes);
        world.check();
    }
}

struct World {
    now: Instant,
    version: ProtocolVersion,
    server: Server,
    /// The session, while no connection has it.
    kept: Option<Session>,
    deciding: bool,
    tokens: Vec<Token>,
    subscribes: Vec<PacketId>,
    /// Reads what the server writes.
    client: Decoder,
    connacks: u32,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let mut world = Self {
            now,
            version: ProtocolVersion::V5,
            server: server(now),
            kept: Some(Session::new("c".into(), SessionExpiry::NEVER)),
            deciding: false,
            tokens: Vec::new(),
            subscribes: Vec::new(),
            client: Decoder::default(),
            connacks: 0,
        };
        world.connect(ProtocolVersion::V5);
        world
    }

    fn operate(&mut self, operation: u8, bytes: &mut impl Iterator<Item = u8>) {
        let mut byte = || bytes.next().unwrap_or(0);
        match operation % 16 {
            0 => {
                let len = byte();
                let raw: Vec<u8> = (0..len % 32).map(|_| byte()).collect();
                self.server.handle_bytes(&raw, self.now);
            }
            1 => self.publish(1, byte()),
            2 => self.publish(2, byte()),
            3 => self.server.handle_bytes(&[0x62, 2, 0, byte()], self.now),
            4 => self.server.handle_bytes(&[0x40, 2, 0, byte()], self.now),
            5 => self.server.handle_bytes(&[0x50, 2, 0, byte()], self.now),
            6 => self.server.handle_bytes(&[0x70, 2, 0, byte()], self.now),
            7 => self.deliver(byte()),
            8 => self.decide(byte()),
            9 => {
                let count = usize::from(byte()) % (self.tokens.len() + 1);
                if let Some(token) = self.tokens.drain(..count).next_back() {
                    self.server.handle_persisted(token);
                }
            }
            10 => {
                let reason = ReasonCode::from_u8(byte()).unwrap_or(ReasonCode::QuotaExceeded);
                if let Some(token) = self.tokens.last() {
                    self.server.set_reason(*token, reason);
                }
            }
            11 => {
                let codes = vec![ReasonCode::Success; usize::from(byte() % 4)];
                if let Some(id) = self.subscribes.pop() {
                    self.tokens.extend(self.server.suback(id, codes));
                }
            }
            12 => {
                self.now += Duration::from_secs(byte().into());
                self.server.handle_timeout(self.now);
            }
            13 => self.again(byte()),
            14 => self.server.disconnect(ReasonCode::from_u8(byte()).unwrap_or(ReasonCode::ServerBusy)),
            _ => self.server.handle_bytes(&[0xC0, 0], self.now),
        }
    }

    fn publish(&mut self, qos: u8, id: u8) {
        let mut packet = vec![0x30 | qos << 1, 5, 0, 1, b'a', 0, id];
        if self.version.is_v5() {
            packet[1] = 6;
            packet.push(0);
        }
        self.server.handle_bytes(&packet, self.now);
    }

    fn deliver(&mut self, byte: u8) {
        let qos = QoS::from_bits(byte % 3).unwrap_or_default();
        let payload = Bytes::from(vec![byte; usize::from(byte) * 8]);
        let message = Message::new(TopicName::parse("topic").expect("a name"), payload, qos, byte & 8 != 0);
        self.server.deliver(Delivery::of(Arc::new(message)), self.now);
    }

    fn decide(&mut self, byte: u8) {
        if !std::mem::take(&mut self.deciding) {
            return;
        }
        if byte & 1 == 0 {
            let session = self.kept.take().expect("only one connection has the session");
            self.server.accept(session, &Acceptance::default(), self.now);
        } else {
            self.server.reject(ReasonCode::from_u8(byte).unwrap_or(ReasonCode::Banned));
        }
    }

    fn again(&mut self, byte: u8) {
        self.server.handle_link_closed();
        self.collect();
        self.server = server(self.now);
        self.deciding = false;
        self.tokens.clear();
        self.subscribes.clear();
        self.connect(match byte % 3 {
            0 => ProtocolVersion::V31,
            1 => ProtocolVersion::V311,
            _ => ProtocolVersion::V5,
        });
    }

    fn connect(&mut self, version: ProtocolVersion) {
        self.version = version;
        self.client = Decoder::default();
        self.client.configure(version, usize::MAX);
        self.connacks = 0;
        let mut connect = Connect::new(version, "c");
        connect.clean_start = false;
        if version.is_v5() {
            connect.properties.receive_maximum = Some(MAXIMUM_INFLIGHT);
            connect.properties.maximum_packet_size = Some(1000);
            connect.properties.topic_alias_maximum = Some(3);
        }
        let mut bytes = BytesMut::new();
        Packet::Connect(Box::new(connect)).encode(version, &mut bytes);
        self.server.handle_bytes(&bytes, self.now);
    }

    fn collect(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Connect(_) => self.deciding = true,
                Event::Publish(_, token) => self.tokens.extend(token),
                Event::Release(token) => self.tokens.push(token),
                Event::Subscribe(subscribe) => self.subscribes.push(subscribe.packet_id),
                Event::Unsubscribe(unsubscribe) => {
                    let codes = vec![ReasonCode::Success; unsubscribe.filters.len()];
                    self.tokens.extend(self.server.unsuback(unsubscribe.packet_id, codes));
                }
                Event::Complete(..) => {}
            }
        }
        self.tokens.sort_unstable();
        if let Some(end) = self.server.take_end() {
            self.deciding = false;
            if let Some(session) = end.session {
                assert!(self.kept.replace(session).is_none(), "the session is there twice");
            }
        }
        assert_eq!(self.kept.is_none(), self.server.session().is_some(), "the session is lost");
    }

    fn check(&mut self) {
        self.collect();
        if let Some(session) = self.server.session() {
            assert!(
                session.outbound.unacknowledged() <= usize::from(MAXIMUM_INFLIGHT) + session.inbound.len()
            );
        }
        let Some(outbox) = self.server.outbox() else { return };
        let written = outbox.copy_to_bytes(outbox.len());
        let mut input = &written[..];
        while let Some(packet) = self.client.decode(&mut input).expect("the server writes packets") {
            let is_connack = matches!(packet, Packet::Connack(_));
            self.connacks += u32::from(is_connack);
            assert_eq!(self.connacks, 1, "{packet:?} with {} CONNACKs", self.connacks);
        }
        assert_eq!(self.client.partial_len(), 0, "half a packet was written");
    }
}

fn server(now: Instant) -> Server {
    let options = ServerOptions {
        receive_maximum: 4,
        maximum_inflight: MAXIMUM_INFLIGHT,
        maximum_packet_size: 1 << 16,
        topic_alias_maximum: 4,
        ..ServerOptions::default()
    };
    Server::new(Arc::new(options), now)
}
