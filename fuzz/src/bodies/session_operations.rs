//! Any operations on a server and its session.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::{Acceptance, EarlyPublish, Event, Server, ServerOptions, Token};
use braid_proto::packet::{Connect, Packet, PacketId, PacketType, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use bytes::BytesMut;

use super::peer::{Peer, STREAMS, delivery, publish, version};

const MAXIMUM_INFLIGHT: u16 = 8;

/// Each byte is an operation of the client, the driver or the link, on a stream. Under any operations, the server
/// stays within its limits, writes packets, each on an open stream, and hands a session over exactly once.
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
    /// Session between two connections.
    kept: Option<Session>,
    deciding: bool,
    tokens: Vec<Token>,
    subscribes: Vec<(StreamKey, PacketId)>,
    client: Peer,
    connacks: u32,
    /// Stream numbers are not used twice in a connection.
    used: BTreeSet<StreamKey>,
    /// Streams that the client has stopped and may still write. [BQ-33]
    stopped: BTreeSet<StreamKey>,
    /// Streams that the client has finished: QUIC has no bytes behind a FIN.
    finished: BTreeSet<StreamKey>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let mut world = Self {
            now,
            version: ProtocolVersion::V5,
            server: server(now, EarlyPublish::Hold),
            kept: Some(Session::new("c".into(), SessionExpiry::NEVER)),
            deciding: false,
            tokens: Vec::new(),
            subscribes: Vec::new(),
            client: Peer::new(ProtocolVersion::V5),
            connacks: 0,
            used: BTreeSet::new(),
            stopped: BTreeSet::new(),
            finished: BTreeSet::new(),
        };
        world.connect(ProtocolVersion::V5);
        world
    }

    fn operate(&mut self, operation: u8, bytes: &mut impl Iterator<Item = u8>) {
        let mut byte = || bytes.next().unwrap_or(0);
        let on = STREAMS[usize::from(operation >> 4 & 7)];
        if operation & 0x80 != 0 {
            return self.operate_stream(operation & 0x0F, on, byte());
        }
        match operation & 0x0F {
            0 => {
                let len = byte();
                let raw: Vec<u8> = (0..len % 32).map(|_| byte()).collect();
                self.read(on, &raw);
            }
            1 => self.publish(on, 1, byte()),
            2 => self.publish(on, 2, byte()),
            3 => self.read(on, &[0x62, 2, 0, byte()]),
            4 => self.read(on, &[0x40, 2, 0, byte()]),
            5 => self.read(on, &[0x50, 2, 0, byte()]),
            6 => self.read(on, &[0x70, 2, 0, byte()]),
            7 => self.deliver(on, byte()),
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
                if let Some((on, id)) = self.subscribes.pop() {
                    self.tokens.extend(self.server.suback(on, id, codes));
                }
            }
            12 => {
                self.now += Duration::from_secs(byte().into());
                self.server.handle_timeout(self.now);
            }
            13 => self.again(byte()),
            14 => self.server.disconnect(ReasonCode::from_u8(byte()).unwrap_or(ReasonCode::ServerBusy)),
            _ => self.read(on, &[0xC0, 0]),
        }
    }

    /// Begins or ends a stream as the client, or confirms the handshake.
    fn operate_stream(&mut self, operation: u8, on: StreamKey, byte: u8) {
        match operation {
            0..6 => self.open(on),
            6 => {
                self.finished.insert(on);
                self.server.handle_stream_finished(on);
            }
            7 => {
                self.stopped.insert(on);
                self.server.handle_stream_stopped(on);
            }
            8 => self.server.handle_stream_reset(on, self.now),
            9 => {
                let packet = [0x82, 7, 0, byte, 0, 0, 1, b'a' + byte % 3, 1];
                let v3 = [0x82, 6, 0, byte, 0, 1, b'a' + byte % 3, 1];
                self.read(on, if self.version.is_v5() { &packet } else { &v3 });
            }
            // A packet whose end does not come.
            10 => self.read(on, &[0x30, 0x80, 0x80, 8]),
            11 => self.read(on, &vec![0; usize::from(byte) * 256]),
            12 | 13 => self.server.handle_confirmed(self.now),
            _ => {
                let id = byte % 12;
                let packet = [0xA2, 6, 0, id, 0, 0, 1, b'a'];
                let v3 = [0xA2, 5, 0, id, 0, 1, b'a'];
                self.read(on, if self.version.is_v5() { &packet } else { &v3 });
            }
        }
    }

    fn open(&mut self, stream: StreamKey) {
        if !stream.is_control() && self.used.insert(stream) {
            self.server.handle_stream_opened(stream);
            self.client.open(stream);
        }
    }

    fn read(&mut self, on: StreamKey, bytes: &[u8]) {
        if on.is_control() || !self.finished.contains(&on) {
            self.server.handle_bytes(on, bytes, self.now);
        }
    }

    fn publish(&mut self, on: StreamKey, qos: u8, id: u8) {
        self.read(on, &publish(self.version, 0x30 | qos << 1, id));
    }

    fn deliver(&mut self, on: StreamKey, byte: u8) {
        self.server.deliver(delivery(on, byte, usize::from(byte) * 8, byte & 8 != 0), self.now);
    }

    fn decide(&mut self, byte: u8) {
        if !std::mem::take(&mut self.deciding) {
            return;
        }
        if byte & 1 == 0 {
            let session = self.kept.take().expect("only one connection has the session");
            self.server.accept(session, &Acceptance::default(), self.now, |_| true);
        } else {
            self.server.reject(ReasonCode::from_u8(byte).unwrap_or(ReasonCode::Banned));
        }
    }

    fn again(&mut self, byte: u8) {
        self.server.handle_link_closed();
        self.collect();
        let early = [None, Some(EarlyPublish::Hold), Some(EarlyPublish::Reject), Some(EarlyPublish::Accept)];
        let early = early[usize::from(byte >> 4 & 3)];
        self.server = server(self.now, early.unwrap_or_default());
        if early.is_some() {
            self.server.set_early();
        }
        self.deciding = false;
        self.tokens.clear();
        self.subscribes.clear();
        self.connect(version((byte & 0x0F) % 3));
    }

    fn connect(&mut self, version: ProtocolVersion) {
        self.version = version;
        self.client = Peer::new(version);
        self.connacks = 0;
        self.used.clear();
        self.stopped.clear();
        self.finished.clear();
        let mut connect = Connect::new(version, "c");
        connect.clean_start = false;
        if version.is_v5() {
            connect.properties.receive_maximum = Some(MAXIMUM_INFLIGHT);
            connect.properties.maximum_packet_size = Some(1000);
            connect.properties.topic_alias_maximum = Some(3);
        }
        let mut bytes = BytesMut::new();
        Packet::Connect(Box::new(connect)).encode(version, &mut bytes);
        self.read(StreamKey::CONTROL, &bytes);
    }

    fn collect(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Connect(_) => self.deciding = true,
                Event::Auth(_) if self.server.session().is_none() => self.deciding = true,
                Event::Auth(_) => self.server.finish_reauthentication(None),
                Event::Publish(_, token) => self.tokens.extend(token),
                Event::Release(token) => self.tokens.push(token),
                Event::Subscribe(on, subscribe) => self.subscribes.push((on, subscribe.packet_id)),
                Event::Unsubscribe(on, unsubscribe) => {
                    let codes = vec![ReasonCode::Success; unsubscribe.filters.len()];
                    self.tokens.extend(self.server.unsuback(on, unsubscribe.packet_id, codes));
                }
                Event::StreamViolated(stream, violation) => {
                    assert!(!stream.is_control() && violation.reason().is_error());
                }
                Event::StreamEnded(stream) => {
                    assert!(!stream.is_control());
                    let session = self.server.session();
                    let is_over = session.is_none_or(|session| session.inbound.unacknowledged(stream) == 0);
                    assert!(is_over || self.stopped.contains(&stream));
                }
                Event::Complete(..) | Event::OffsetRefused(..) => {}
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
        self.server.continue_resend(self.now, |_| true);
        let connacks = &mut self.connacks;
        self.client.drain(&mut self.server, |stream, packet| {
            let packet_type = packet.packet_type();
            let is_of_data = (PacketType::Publish..=PacketType::Unsuback).contains(&packet_type);
            assert!(stream.is_control() || is_of_data && !stream.is_uni(), "{packet:?} on {stream}");
            *connacks += u32::from(packet_type == PacketType::Connack);
            assert_eq!(*connacks, 1, "{packet:?} with {connacks} CONNACKs");
        });
    }
}

fn server(now: Instant, early_publish: EarlyPublish) -> Server {
    let options = ServerOptions {
        receive_maximum: 4,
        maximum_inflight: MAXIMUM_INFLIGHT,
        maximum_packet_size: 1 << 18,
        topic_alias_maximum: 4,
        maximum_partial_bytes: 1 << 15,
        early_publish,
        ..ServerOptions::default()
    };
    Server::new(Arc::new(options), now)
}
