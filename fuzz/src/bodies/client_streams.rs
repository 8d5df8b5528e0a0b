//! Any operations on a client with many streams.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::{Client, ClientEvent, ClientOptions, Sent, Token};
use braid_proto::packet::{
    Connect, Disconnect, Packet, PacketId, PacketType, ProtocolVersion, QoS, SubscribeEntry, UserProperties,
};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

use super::peer::{Peer, STREAMS, delivery, publish, version};

const RECEIVE_MAXIMUM: u16 = 6;

/// Each byte is an operation of the server, the application or the link, on a stream. Under any operations, the client
/// stays within the server's Receive Maximum, writes packets, each on an open stream, reports the end of each
/// stream once, and answers no request twice.
pub fn client_streams(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let mut world = World::new(bytes.next().unwrap_or(0));
    while let Some(operation) = bytes.next() {
        world.operate(operation, &mut bytes);
        world.check();
    }
}

struct World {
    now: Instant,
    version: ProtocolVersion,
    places_resends: bool,
    client: Client,
    tokens: Vec<Token>,
    requests: BTreeSet<PacketId>,
    resends: Vec<PacketId>,
    server: Peer,
    /// Streams whose end the client has not reported.
    open: BTreeSet<StreamKey>,
    /// Stream numbers are not used twice in a connection.
    used: BTreeSet<StreamKey>,
}

impl World {
    fn new(byte: u8) -> Self {
        let now = Instant::now();
        let version = version(byte & 3);
        let mut world = Self {
            now,
            version,
            places_resends: byte & 4 != 0,
            client: client(version, None, now),
            tokens: Vec::new(),
            requests: BTreeSet::new(),
            resends: Vec::new(),
            server: Peer::new(version),
            open: BTreeSet::new(),
            used: BTreeSet::new(),
        };
        world.begin(byte);
        world
    }

    fn begin(&mut self, byte: u8) {
        if self.places_resends {
            self.client.place_resends();
        }
        self.server = Peer::new(self.version);
        if byte & 8 != 0 {
            return; // CONNACK may come later, and something else before it.
        }
        self.connack(byte);
    }

    fn connack(&mut self, byte: u8) {
        let session_present = byte >> 4 & 1;
        if self.version.is_v5() {
            self.read(StreamKey::CONTROL, &[0x20, 6, session_present, 0, 3, 0x21, 0, byte >> 5]);
        } else {
            self.read(StreamKey::CONTROL, &[0x20, 2, session_present, 0]);
        }
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
            1 => self.receive(on, 1, byte()),
            2 => self.receive(on, 2, byte()),
            3 => self.read(on, &[0x62, 2, 0, byte()]),
            4 => self.read(on, &[0x40, 2, 0, byte()]),
            5 => self.read(on, &[0x50, 2, 0, byte()]),
            6 => self.read(on, &[0x70, 2, 0, byte()]),
            7 | 8 => self.publish(on, byte()),
            9 => {
                let count = usize::from(byte()) % (self.tokens.len() + 1);
                if let Some(token) = self.tokens.drain(..count).next_back() {
                    self.client.acknowledge(token, self.now);
                }
            }
            10 => self.subscribe(on),
            11 => {
                let id = byte();
                let (suback, v3) = ([0x90, 4, 0, id, 0, 0], [0x90, 3, 0, id, 0]);
                self.read(on, if self.version.is_v5() { &suback } else { &v3 });
            }
            12 => {
                self.now += Duration::from_secs(byte().into());
                self.client.handle_timeout(self.now);
            }
            13 => self.again(byte()),
            14 => self.resend(on),
            _ => self.connack(byte()),
        }
    }

    /// Begins or ends a stream.
    fn operate_stream(&mut self, operation: u8, on: StreamKey, byte: u8) {
        match operation {
            0..6 => self.open(on),
            6 | 7 if on.is_uni() => {}
            6 | 7 => self.client.handle_stream_finished(on, self.now),
            8 | 9 => self.client.handle_stream_reset(on, self.now),
            10 => self.client.handle_stream_refused(on, ReasonCode::PacketTooLarge, self.now),
            11 | 12 => self.client.finish_stream(on),
            13 => self.client.abort_stream(on, ReasonCode::UnspecifiedError, self.now),
            14 => self.client.pause(byte & 1 == 0, self.now),
            _ if byte < 8 => self.client.disconnect(Disconnect::new(ReasonCode::Success)),
            _ => self.client.continue_resend(self.now),
        }
    }

    fn open(&mut self, stream: StreamKey) {
        if !stream.is_control() && self.client.is_established() && self.used.insert(stream) {
            self.client.handle_stream_opened(stream);
            self.server.open(stream);
            self.open.insert(stream);
        }
    }

    fn read(&mut self, on: StreamKey, bytes: &[u8]) {
        if !on.is_uni() {
            self.client.handle_bytes(on, bytes, self.now);
        }
    }

    fn receive(&mut self, on: StreamKey, qos: u8, id: u8) {
        self.read(on, &publish(self.version, 0x30 | qos << 1 | (id & 0x80) >> 4, id & 0x7F));
    }

    fn publish(&mut self, on: StreamKey, byte: u8) {
        let delivery = delivery(on, byte, usize::from(byte) * 16, false);
        let takes = self.client.takes(&delivery);
        let sent = self.client.publish(delivery, self.now).expect("the server grants everything");
        assert!(takes != matches!(sent, Sent::Blocked(_)), "{sent:?}");
    }

    fn subscribe(&mut self, on: StreamKey) {
        let entry = SubscribeEntry::new(TopicFilter::parse("a").expect("a filter"), QoS::ExactlyOnce);
        if let Ok(id) = self.client.subscribe(on, vec![entry], None, UserProperties::new(), self.now) {
            assert!(self.requests.insert(id), "{id} is in use");
        }
    }

    fn resend(&mut self, on: StreamKey) {
        self.resends.extend(self.client.take_resends().into_iter().map(|(id, _)| id));
        if let Some(id) = self.resends.pop() {
            self.client.resend(id, on, self.now);
        }
    }

    fn again(&mut self, byte: u8) {
        self.client.handle_link_closed();
        self.check();
        let session = self.client.take_session();
        self.version = version(byte & 3);
        self.places_resends = byte & 4 != 0;
        self.client = client(self.version, session, self.now);
        self.tokens.clear();
        self.requests.clear();
        self.resends.clear();
        self.open.clear();
        self.used.clear();
        self.begin(byte);
    }

    fn check(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                ClientEvent::Message(incoming) => self.tokens.extend(incoming.token),
                ClientEvent::Subscribed(suback) => assert!(self.requests.remove(&suback.packet_id)),
                ClientEvent::StreamEnded(stream, requests) => {
                    assert!(self.open.remove(&stream), "{stream} ended twice");
                    requests.iter().for_each(|id| assert!(self.requests.remove(id), "{id} was answered"));
                }
                ClientEvent::StreamViolated(stream, violation) => {
                    assert!(!stream.is_control() && violation.reason().is_error());
                }
                _ => {}
            }
        }
        if let Some(session) = self.client.session() {
            assert!(session.outbound.unacknowledged() <= usize::from(RECEIVE_MAXIMUM));
        }
        self.server.drain(&mut self.client, |stream, packet| {
            let is_of_data = (PacketType::Publish..=PacketType::Unsubscribe).contains(&packet.packet_type());
            assert!(stream.is_control() || is_of_data, "{packet:?} on {stream}");
            let is_of_uni = matches!(packet, Packet::Publish(publish) if publish.qos == QoS::AtMostOnce);
            assert!(!stream.is_uni() || is_of_uni, "{packet:?} on {stream}");
        });
    }
}

fn client(version: ProtocolVersion, session: Option<Session>, now: Instant) -> Client {
    let mut connect = Connect::new(version, "c");
    connect.clean_start = false;
    if version.is_v5() {
        connect.properties.session_expiry = Some(u32::MAX);
        connect.properties.receive_maximum = Some(4);
        connect.properties.topic_alias_maximum = Some(3);
    }
    let options = ClientOptions { maximum_inflight: RECEIVE_MAXIMUM, ..ClientOptions::default() };
    let session = session.or_else(|| Some(Session::new("c".into(), SessionExpiry::NEVER)));
    Client::new(Arc::new(options), connect, session, now)
}
