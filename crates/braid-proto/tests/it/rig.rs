//! A server's protocol machine with its clock and the actions of a driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::{
    Acceptance, Cause, DATAGRAMS_PROPERTY, DATAGRAMS_VALUE, End, Event, Server, ServerOptions, StreamAction,
};
use braid_proto::decoder::Decoder;
use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{Connect, Packet, ProtocolVersion, QoS};
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use bytes::{Buf, Bytes, BytesMut};

/// Small limits, so that tests reach them.
pub(crate) fn options() -> ServerOptions {
    ServerOptions {
        receive_maximum: 2,
        maximum_packet_size: 1024,
        topic_alias_maximum: 4,
        ..ServerOptions::default()
    }
}

/// CONNECT without Keep Alive; in MQTT 5 without problem information, so that answers are short.
pub(crate) fn connect(version: ProtocolVersion) -> Connect {
    let mut connect = Connect::new(version, "c");
    connect.keep_alive = 0;
    if version.is_v5() {
        connect.properties.request_problem_information = Some(false);
    }
    connect
}

pub(crate) fn encoded(packet: &Packet, version: ProtocolVersion) -> Vec<u8> {
    let mut out = BytesMut::new();
    packet.encode(version, &mut out);
    out.to_vec()
}

/// All packets of a byte sequence.
#[track_caller]
pub(crate) fn packets(mut bytes: &[u8], version: ProtocolVersion) -> Vec<Packet> {
    let mut decoder = Decoder::default();
    decoder.configure(version, usize::MAX);
    let mut packets = Vec::new();
    while let Some(packet) = decoder.decode(&mut bytes).unwrap() {
        packets.push(packet);
    }
    assert_eq!(decoder.partial_len(), 0, "half a packet at the end");
    packets
}

pub(crate) fn message(topic: &str, payload: impl Into<Bytes>, qos: QoS) -> SharedMessage {
    SharedMessage::new(Message::new(TopicName::parse(topic).unwrap(), payload.into(), qos, false))
}

/// Delivery on the control stream without RETAIN.
pub(crate) fn delivery(topic: &str, payload: impl Into<Bytes>, qos: QoS) -> Delivery {
    Delivery::of(message(topic, payload, qos))
}

/// CONNECT that asks for datagrams.
pub(crate) fn asking_for_datagrams() -> Connect {
    let mut connect = connect(ProtocolVersion::V5);
    connect.properties.user.push(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE);
    connect
}

/// Connection on a transport with datagrams, whose client asked for them. The CONNACK is not read.
pub(crate) fn agreed_on_datagrams(options: ServerOptions) -> Rig {
    over_datagrams(options, asking_for_datagrams())
}

/// Connection on a transport with datagrams, after this CONNECT.
pub(crate) fn over_datagrams(options: ServerOptions, connect: Connect) -> Rig {
    let mut rig = Rig::before_connect(options);
    rig.server.permit_datagrams();
    rig.read(&encoded(&Packet::Connect(Box::new(connect)), ProtocolVersion::V5));
    assert!(matches!(rig.server.poll_event(), Some(Event::Connect(_))));
    rig.server.accept(Session::default(), &Acceptance::default(), rig.now, |_| true);
    rig
}

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) now: Instant,
}

impl Rig {
    /// Connection before its CONNECT.
    pub(crate) fn before_connect(options: ServerOptions) -> Self {
        let now = Instant::now();
        Self { server: Server::new(Arc::new(options), now), now }
    }

    /// Connection with a new session; the CONNACK is read.
    pub(crate) fn connected(options: ServerOptions, connect: Connect) -> Self {
        Self::resumed(options, connect, Session::new("c".into(), SessionExpiry::NEVER))
    }

    /// Connection that resumes a session; only the CONNACK is read.
    pub(crate) fn resumed(options: ServerOptions, connect: Connect, session: Session) -> Self {
        let mut rig = Self::before_connect(options);
        let version = connect.version;
        rig.read(&encoded(&Packet::Connect(Box::new(connect)), version));
        assert!(matches!(rig.server.poll_event(), Some(Event::Connect(_))));
        rig.server.accept(session, &Acceptance::default(), rig.now, |_| true);
        rig.resend();
        let connack = rig.server.outbox(StreamKey::CONTROL).unwrap();
        assert_eq!(connack.chunk()[0], 0x20);
        let len = 2 + usize::from(connack.chunk()[1]);
        connack.advance(len);
        rig
    }

    pub(crate) fn read(&mut self, bytes: &[u8]) {
        self.read_on(StreamKey::CONTROL, bytes);
    }

    /// Retransmits as the driver does after each event, with every permission.
    fn resend(&mut self) {
        self.server.continue_resend(self.now, |_| true);
    }

    /// Takes the bytes of the outbox.
    pub(crate) fn sent(&mut self) -> Vec<u8> {
        self.resend();
        let Some(outbox) = self.server.outbox(StreamKey::CONTROL) else { return Vec::new() };
        let all = outbox.copy_to_bytes(outbox.remaining());
        assert!(outbox.is_empty());
        all.to_vec()
    }

    // -- Data streams ------------------------------------------------------------------------------

    /// Opens the bidirectional stream `n` as the client.
    pub(crate) fn open(&mut self, n: u32) -> StreamKey {
        let stream = StreamKey::bidi(n);
        self.server.handle_stream_opened(stream);
        stream
    }

    pub(crate) fn read_on(&mut self, stream: StreamKey, bytes: &[u8]) {
        self.server.handle_bytes(stream, bytes, self.now);
        self.resend();
    }

    /// Ends the client's half of a stream.
    pub(crate) fn finish(&mut self, stream: StreamKey) {
        self.server.handle_stream_finished(stream);
        self.resend();
    }

    /// Resets a stream as the client.
    pub(crate) fn reset(&mut self, stream: StreamKey) {
        self.server.handle_stream_reset(stream, self.now);
        self.resend();
    }

    /// Takes the bytes of a stream's outbox; `None` when it has none.
    pub(crate) fn sent_on(&mut self, stream: StreamKey) -> Option<Vec<u8>> {
        self.resend();
        let outbox = self.server.outbox(stream)?;
        Some(outbox.copy_to_bytes(outbox.remaining()).to_vec())
    }

    /// Pending instructions about streams.
    pub(crate) fn actions(&mut self) -> Vec<StreamAction> {
        std::iter::from_fn(|| self.server.poll_stream()).collect()
    }

    /// Declares the effects of all events durable.
    pub(crate) fn persist(&mut self, events: &[Event]) {
        let mut tokens = events.iter().filter_map(|event| match event {
            Event::Publish(_, token) => *token,
            Event::Release(token) => Some(*token),
            _ => None,
        });
        if let Some(token) = tokens.next_back() {
            self.server.handle_persisted(token);
        }
    }

    // -- What happened -----------------------------------------------------------------------------

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        while self.server.poll_timeout().is_some_and(|at| at <= self.now) {
            self.server.handle_timeout(self.now);
        }
    }

    pub(crate) fn end(&mut self) -> Option<End> {
        self.server.take_end()
    }

    pub(crate) fn cause(&mut self) -> Option<Cause> {
        self.end().map(|end| end.cause)
    }
}
