use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::{
    Acceptance, Cause, Client, ClientEvent, ClientOptions, Event, Outbox, Sent, Server, ServerOptions,
    StreamAction, Token,
};
use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{
    Connect, MessageProperties, PacketId, ProtocolVersion, QoS, SubscribeEntry, UserProperties,
};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use bytes::Buf;
use fastrand::Rng;

use super::fates::Fates;
use super::wires::{Arrival, Wires};

const SERVER_MAXIMUM: u16 = 5;
const CLIENT_MAXIMUM: u16 = 4;

pub(super) struct World {
    random: Rng,
    now: Instant,
    version: ProtocolVersion,
    client: Client,
    server: Server,
    /// Session of the server between two connections.
    kept: Option<Session>,
    connections: u32,
    pub(super) up: Fates,
    pub(super) down: Fates,
    upward: Wires,
    downward: Wires,
    /// Pending acknowledgements of the server and of the client.
    up_held: Vec<Token>,
    down_held: Vec<Token>,
    requests: BTreeSet<PacketId>,
    next_stream: u32,
    /// Streams that the client has open, and those that the server has seen.
    open: Vec<StreamKey>,
    seen: Vec<StreamKey>,
    /// Streams on which one end was made to misbehave.
    spoilt: BTreeSet<StreamKey>,
    pub(super) streams_ended: usize,
}

impl World {
    pub(super) fn new(seed: u64, version: ProtocolVersion) -> Self {
        let now = Instant::now();
        Self {
            random: Rng::with_seed(seed),
            now,
            version,
            client: client(version, None, now),
            server: server(now),
            kept: Some(Session::new("c".into(), SessionExpiry::NEVER)),
            connections: 0,
            up: Fates::default(),
            down: Fates::default(),
            upward: Wires::default(),
            downward: Wires::default(),
            up_held: Vec::new(),
            down_held: Vec::new(),
            requests: BTreeSet::new(),
            next_stream: 1,
            open: Vec::new(),
            seen: Vec::new(),
            spoilt: BTreeSet::new(),
            streams_ended: 0,
        }
    }

    pub(super) fn step(&mut self) {
        match self.random.u32(0..100) {
            0..14 => self.client_publishes(),
            14..28 => self.server_delivers(),
            28..48 => self.move_up(),
            48..68 => self.move_down(),
            68..80 => self.acknowledge(),
            80..86 => self.open_stream(),
            86..89 => self.client_finishes(),
            89..91 => self.client_aborts(),
            91 => self.spoil_up(),
            92 => self.spoil_down(),
            93..96 => self.client_subscribes(),
            96..99 => self.now += Duration::from_millis(self.random.u64(0..1000)),
            _ => self.lose(),
        }
        self.collect(false);
    }

    // -- What both applications do -----------------------------------------------------------------

    fn any_stream(&mut self) -> StreamKey {
        let count = self.open.len();
        match self.random.usize(0..=count) {
            0 => StreamKey::CONTROL,
            n => self.open[n - 1],
        }
    }

    fn client_publishes(&mut self) {
        if !self.client.is_established() {
            return;
        }
        let stream = self.any_stream();
        let delivery = Delivery { stream, ..self.message("up") };
        let sent = self.client.publish(delivery, self.now).unwrap();
        note(&mut self.up, &sent);
    }

    fn server_delivers(&mut self) {
        if self.server.session().is_none() {
            return;
        }
        // Also for an ended stream.
        let stream = self.random.choice(&self.seen).copied().unwrap_or_default();
        let priority = Priority::new(self.random.u16(0..2));
        let delivery = Delivery { stream, priority, ..self.message("down") };
        let takes = self.server.takes(&delivery);
        let sent = self.server.deliver(delivery, self.now);
        assert_eq!(takes, matches!(sent, Sent::Out(_)), "{sent:?}");
        note(&mut self.down, &sent);
    }

    fn message(&mut self, topic: &str) -> Delivery {
        let qos = QoS::from_bits(self.random.u8(0..3)).unwrap();
        let len = if self.random.u8(0..4) == 0 { self.random.usize(1000..3000) } else { 0 };
        let is_up = topic == "up";
        let payload = if is_up { &mut self.up } else { &mut self.down }.begin(qos, len);
        let mut message = Message::new(TopicName::parse(topic).unwrap(), payload, qos, false);
        if is_up && self.random.u8(0..4) == 0 {
            let expiring = MessageProperties { message_expiry: Some(1), ..MessageProperties::default() };
            message = message.with_properties(Some(Box::new(expiring)), self.now);
        }
        Delivery::of(SharedMessage::new(message))
    }

    fn client_subscribes(&mut self) {
        let on = self.any_stream();
        let entry = SubscribeEntry::new(TopicFilter::parse("f").unwrap(), QoS::AtMostOnce);
        if let Ok(id) = self.client.subscribe(on, vec![entry], None, UserProperties::new(), self.now) {
            assert!(self.requests.insert(id), "{id} is in use");
        }
    }

    /// Acknowledges a random prefix of the pending acknowledgements at each end.
    fn acknowledge(&mut self) {
        let count = self.random.usize(0..=self.up_held.len());
        if let Some(token) = self.up_held.drain(..count).next_back() {
            self.server.handle_persisted(token);
        }
        let count = self.random.usize(0..=self.down_held.len());
        if let Some(token) = self.down_held.drain(..count).next_back() {
            self.client.acknowledge(token, self.now);
        }
    }

    // -- Streams -----------------------------------------------------------------------------------

    fn open_stream(&mut self) {
        if self.client.is_established() && self.open.len() < 4 {
            let stream = StreamKey::bidi(self.next_stream);
            self.next_stream += 1;
            self.client.handle_stream_opened(stream);
            self.open.push(stream);
        }
    }

    fn client_finishes(&mut self) {
        if let Some(stream) = self.random.choice(&self.open).copied() {
            self.client.finish_stream(stream);
        }
    }

    fn client_aborts(&mut self) {
        if let Some(stream) = self.random.choice(&self.open).copied() {
            self.client.abort_stream(stream, ReasonCode::UnspecifiedError, self.now);
        }
    }

    /// Sends an invalid packet behind a valid one, as the client.
    fn spoil_up(&mut self) {
        if let Some(stream) = self.random.choice(&self.open).copied()
            && self.client.outbox(stream).is_some_and(|outbox| outbox.is_empty())
        {
            self.upward.write(stream, &[0x00, 0x00]);
            self.spoilt.insert(stream);
        }
    }

    fn spoil_down(&mut self) {
        if let Some(stream) = self.random.choice(&self.open).copied()
            && self.server.outbox(stream).is_some_and(|outbox| outbox.is_empty())
        {
            self.downward.write(stream, &[0xD0, 0x00]);
            self.spoilt.insert(stream);
        }
    }

    // -- The link ----------------------------------------------------------------------------------

    fn move_up(&mut self) {
        let waiting = self.upward.waiting();
        if let Some(stream) = self.random.choice(waiting) {
            self.move_up_on(stream);
        }
    }

    fn move_up_on(&mut self, stream: StreamKey) {
        if !stream.is_control() && !self.seen.contains(&stream) {
            self.seen.push(stream);
            self.server.handle_stream_opened(stream);
        }
        let is_reading = self.server.is_reading(stream);
        match self.upward.read(stream, is_reading, &mut self.random) {
            Some(Arrival::Bytes(bytes)) => self.server.handle_bytes(stream, &bytes, self.now),
            Some(Arrival::Finished) => self.server.handle_stream_finished(stream),
            Some(Arrival::Reset) => {
                self.server.handle_stream_reset(stream, self.now);
                self.downward.reset(stream); // [BQ-32]
                self.upward.forget(stream);
            }
            None => {}
        }
    }

    fn move_down(&mut self) {
        let waiting = self.downward.waiting();
        if let Some(stream) = self.random.choice(waiting) {
            self.move_down_on(stream);
        }
    }

    fn move_down_on(&mut self, stream: StreamKey) {
        match self.downward.read(stream, true, &mut self.random) {
            Some(Arrival::Bytes(bytes)) => self.client.handle_bytes(stream, &bytes, self.now),
            Some(Arrival::Finished) => self.client.handle_stream_finished(stream, self.now),
            Some(Arrival::Reset) => {
                self.client.handle_stream_reset(stream, self.now);
                self.downward.forget(stream);
                self.upward.forget(stream);
            }
            None => {}
        }
    }

    /// Bytes on the wire are lost, and pending acknowledgements are not sent.
    fn lose(&mut self) {
        self.server.handle_link_closed();
        self.client.handle_link_closed();
        let end = self.server.take_end().unwrap();
        assert_eq!(end.cause, Cause::Lost);
        self.kept = self.kept.take().or(end.session);
        assert!(self.kept.is_some(), "the session is gone");
        self.server = server(self.now);
        let before = std::mem::replace(&mut self.client, client(self.version, None, self.now));
        let (_, session) = before.into_end();
        self.client = client(self.version, session, self.now);
        (self.upward, self.downward) = (Wires::default(), Wires::default());
        self.up.connect();
        self.down.connect();
        self.up_held.clear();
        self.down_held.clear();
        self.requests.clear();
        self.next_stream = 1;
        self.open.clear();
        self.seen.clear();
        self.spoilt.clear();
    }

    // -- Actions of both drivers -------------------------------------------------------------------

    /// Takes events, then writes some or all bytes.
    fn collect(&mut self, all: bool) {
        while let Some(event) = self.server.poll_event() {
            self.handle_server_event(event);
        }
        while let Some(event) = self.client.poll_event() {
            self.handle_client_event(event);
        }
        self.server.continue_resend(self.now, |_| true);
        let mut streams = Vec::new();
        self.client.streams_to_write(&mut streams);
        for stream in std::mem::take(&mut streams) {
            let bytes = some_of(self.client.outbox(stream).unwrap(), all, &mut self.random);
            self.upward.write(stream, &bytes);
        }
        self.server.streams_to_write(&mut streams);
        for stream in streams {
            let bytes = some_of(self.server.outbox(stream).unwrap(), all, &mut self.random);
            self.downward.write(stream, &bytes);
        }
        while let Some(action) = self.client.poll_stream() {
            act(action, &mut self.upward, &mut self.downward);
        }
        while let Some(action) = self.server.poll_stream() {
            act(action, &mut self.downward, &mut self.upward);
        }
        self.check();
    }

    fn handle_server_event(&mut self, event: Event) {
        match event {
            Event::Connect(_) => {
                let session = self.kept.take().expect("two connections at once");
                let session_present = self.connections > 0;
                let acceptance = Acceptance { session_present, ..Acceptance::default() };
                self.server.accept(session, &acceptance, self.now, |_| true);
                self.connections += 1;
            }
            Event::Publish(message, token) => {
                let is_refused = token.is_some() && self.random.u8(0..10) == 0;
                self.up.arrived(&message.payload, token.map(Token::stream), is_refused);
                if let Some(token) = token.filter(|_| is_refused) {
                    self.server.set_reason(token, ReasonCode::QuotaExceeded);
                }
                self.up_held.extend(token);
            }
            Event::Release(token) => self.up_held.push(token),
            Event::Subscribe(on, subscribe) => {
                let codes = vec![ReasonCode::Success; subscribe.entries.len()];
                let token = self.server.suback(on, subscribe.packet_id, codes);
                self.up_held.push(token.expect("a pending SUBACK"));
            }
            Event::StreamViolated(stream, violation) => {
                assert!(self.spoilt.contains(&stream), "{stream}: {violation}");
            }
            Event::StreamEnded(_) => {}
            Event::Complete(id, reason) => {
                let known = [ReasonCode::Success, ReasonCode::PacketIdentifierNotFound];
                assert!(known.contains(&reason), "{reason}");
                self.down.complete(id, false);
            }
            Event::Unsubscribe(..) | Event::Auth(_) | Event::OffsetRefused(..) => panic!("{event:?}"),
        }
    }

    fn handle_client_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Connected(connected) => assert!(connected.lost.is_empty()),
            ClientEvent::Message(incoming) => {
                let on = incoming.token.map(Token::stream);
                self.down.arrived(&incoming.message.payload, on, false);
                self.down_held.extend(incoming.token);
            }
            ClientEvent::Published(id, reason) => {
                self.up.complete(id, reason == ReasonCode::UnspecifiedError);
            }
            ClientEvent::Subscribed(suback) => {
                assert!(self.requests.remove(&suback.packet_id), "an answer to nothing");
            }
            ClientEvent::StreamEnded(stream, requests) => {
                let at = self.open.iter().position(|open| *open == stream).expect("it ended twice");
                self.open.remove(at);
                requests.iter().for_each(|id| assert!(self.requests.remove(id), "{id} was answered"));
                self.streams_ended += 1;
            }
            ClientEvent::StreamViolated(stream, violation) => {
                assert!(self.spoilt.contains(&stream), "{stream}: {violation}");
            }
            other => panic!("{other:?}"),
        }
    }

    fn check(&mut self) {
        let end = self.server.take_end();
        assert!(end.is_none() && self.client.cause().is_none(), "{:?} {end:?}", self.client.cause());
        // [BQ-24], [MQTT-4.9.0-1]
        let unacknowledged = |session: &Session| session.outbound.unacknowledged();
        let (client, server) = (self.client.session(), self.server.session());
        assert!(client.map_or(0, unacknowledged) <= usize::from(SERVER_MAXIMUM));
        assert!(server.map_or(0, unacknowledged) <= usize::from(CLIENT_MAXIMUM));
    }

    /// Lets everything arrive and be acknowledged, and once more on a new connection.
    pub(super) fn settle(&mut self) {
        for is_last in [false, true] {
            for _ in 0..60 {
                self.collect(true);
                self.upward.waiting().into_iter().for_each(|stream| self.move_up_on(stream));
                self.downward.waiting().into_iter().for_each(|stream| self.move_down_on(stream));
                self.collect(true);
                if let Some(token) = self.up_held.drain(..).next_back() {
                    self.server.handle_persisted(token);
                }
                if let Some(token) = self.down_held.drain(..).next_back() {
                    self.client.acknowledge(token, self.now);
                }
                if self.upward.waiting().is_empty()
                    && self.downward.waiting().is_empty()
                    && self.client.unwritten() + self.server.unwritten() == 0
                {
                    break;
                }
            }
            assert!(self.requests.is_empty(), "requests without an answer: {:?}", self.requests);
            if !is_last {
                self.lose();
            }
        }
        self.up.check("client to server,");
        self.down.check("server to client,");
        let (client, server) = (self.client.session().unwrap(), self.server.session().unwrap());
        assert!(client.outbound.is_empty() && server.outbound.is_empty());
        let left = |session: &Session| session.inbound.exchanges().collect::<Vec<_>>();
        assert_eq!((left(server), left(client)), (vec![], vec![]), "identifiers that will not be released");
    }
}

fn note(fates: &mut Fates, sent: &Sent) {
    match sent {
        Sent::Out(id) => fates.sent(*id),
        Sent::Blocked(_) => fates.take_back(),
        other => panic!("{other:?}"),
    }
}

fn some_of(outbox: &mut Outbox, all: bool, random: &mut Rng) -> Vec<u8> {
    let len = outbox.len();
    let len = if all || random.bool() { len } else { random.usize(0..=len) };
    outbox.copy_to_bytes(len).to_vec()
}

/// Writes `own` and reads `peers` as the link of one end.
fn act(action: StreamAction, own: &mut Wires, peers: &mut Wires) {
    match action {
        StreamAction::Finish(stream) => own.finish(stream),
        StreamAction::Abort(stream, reason) => {
            assert!(reason.is_error());
            own.reset(stream);
            peers.forget(stream);
        }
    }
}

fn server(now: Instant) -> Server {
    let options = ServerOptions {
        receive_maximum: SERVER_MAXIMUM,
        maximum_inflight: CLIENT_MAXIMUM,
        maximum_inflight_bytes: 3000,
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
