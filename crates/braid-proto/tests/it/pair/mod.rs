//! A client and a server connected directly, on a virtual clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};

use braid_proto::connection::{
    Acceptance, Cause, Client, ClientEvent, ClientOptions, Connected, Event, Incoming, Outbox, SendError,
    Sent, Server, ServerOptions, Token,
};
use braid_proto::error::Violation;
use braid_proto::message::{Delivery, Message, SharedMessage, SubscriptionIds};
use braid_proto::packet::{
    Ack, AckKind, Connack, ConnackProperties, Connect, Disconnect, Packet, PacketId, ProtocolVersion,
    Publish, QoS, SubscribeEntry,
};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};

/// Both ends. The server accepts everything, grants every SUBSCRIBE and declares everything durable at once, unless
/// a test answers in its place.
struct Pair {
    now: Instant,
    client: Client,
    server: Server,
    client_events: Vec<ClientEvent>,
    server_events: Vec<Event>,
}

fn connect(version: ProtocolVersion) -> Connect {
    Connect::new(version, "c")
}

fn session() -> Session {
    Session::new("c".into(), SessionExpiry::NEVER)
}

impl Pair {
    fn new(connect: Connect, session: Option<Session>, options: ServerOptions) -> Self {
        let now = Instant::now();
        Self {
            now,
            client: Client::new(Arc::default(), connect, session, now),
            server: Server::new(Arc::new(options), now),
            client_events: Vec::new(),
            server_events: Vec::new(),
        }
    }

    /// Connected pair; the server resumes this session.
    fn established(connect: Connect, session: Option<Session>, servers: Option<Session>) -> Self {
        let mut pair = Self::new(connect, session, ServerOptions::default());
        pair.drive();
        pair.accept(servers);
        pair.drive();
        pair
    }

    fn accept(&mut self, session: Option<Session>) {
        let acceptance = Acceptance { session_present: session.is_some(), ..Acceptance::default() };
        let session = session.unwrap_or_else(self::session);
        self.server.accept(session, &acceptance, self.now, |_| true);
    }

    /// Carries bytes until none are left, and answers as the server's driver.
    fn drive(&mut self) {
        loop {
            let up = take(self.client.outbox(StreamKey::CONTROL).unwrap());
            self.server.continue_resend(self.now, |_| true);
            let down = self.server.outbox(StreamKey::CONTROL).map(take).unwrap_or_default();
            if up.is_empty() && down.is_empty() {
                return;
            }
            // Only bytes that arrive restart the Keep Alive.
            if !up.is_empty() {
                self.server.handle_bytes(StreamKey::CONTROL, &up, self.now);
            }
            while let Some(event) = self.server.poll_event() {
                self.answer(&event);
                self.server_events.push(event);
            }
            if !down.is_empty() {
                self.client.handle_bytes(StreamKey::CONTROL, &down, self.now);
            }
            self.client_events.extend(std::iter::from_fn(|| self.client.poll_event()));
        }
    }

    fn answer(&mut self, event: &Event) {
        let token = match event {
            Event::Publish(_, token) => *token,
            Event::Release(token) => Some(*token),
            Event::Subscribe(on, subscribe) => {
                let codes = subscribe.entries.iter().map(|entry| entry.qos.into()).collect();
                self.server.suback(*on, subscribe.packet_id, codes)
            }
            Event::Unsubscribe(on, unsubscribe) => {
                let codes = vec![ReasonCode::Success; unsubscribe.filters.len()];
                self.server.unsuback(*on, unsubscribe.packet_id, codes)
            }
            _ => None,
        };
        if let Some(token) = token {
            self.server.handle_persisted(token);
        }
    }

    /// Advances the clock and handles timers as a driver.
    fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let next = self.client.poll_timeout().into_iter().chain(self.server.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = next.max(self.now);
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
            self.drive();
        }
        self.now = end;
    }

    /// Cuts the link; returns the sessions of both ends.
    fn cut(mut self) -> (Option<Session>, Option<Session>) {
        self.client.handle_link_closed();
        self.server.handle_link_closed();
        let (cause, session) = self.client.into_end();
        assert_eq!(cause, Cause::Lost);
        (session, self.server.take_end().and_then(|end| end.session))
    }

    fn publish(&mut self, qos: QoS) -> Sent {
        self.client.publish(delivery("t", "m", qos), self.now).unwrap()
    }

    /// The server sends a message.
    fn deliver(&mut self, qos: QoS) {
        let sent = self.server.deliver(delivery("t", "m", qos), self.now);
        assert!(matches!(sent, Sent::Out(_)), "{sent:?}");
    }

    /// Sends a packet that no well-behaved server would send.
    fn forge(&mut self, packet: &Packet, version: ProtocolVersion) {
        let mut bytes = bytes::BytesMut::new();
        packet.encode(version, &mut bytes);
        self.client.handle_bytes(StreamKey::CONTROL, &bytes, self.now);
        self.client_events.extend(std::iter::from_fn(|| self.client.poll_event()));
    }

    fn connected(&self) -> &Connected {
        let mut found = self.client_events.iter().filter_map(|event| match event {
            ClientEvent::Connected(connected) => Some(connected),
            _ => None,
        });
        found.next().expect("a CONNACK of success")
    }

    fn messages(&self) -> Vec<&Incoming> {
        let mut messages = Vec::new();
        for event in &self.client_events {
            if let ClientEvent::Message(message) = event {
                messages.push(message);
            }
        }
        messages
    }

    fn published(&self) -> Vec<(u16, ReasonCode)> {
        let mut all = Vec::new();
        for event in &self.client_events {
            if let ClientEvent::Published(id, reason) = event {
                all.push((id.value(), *reason));
            }
        }
        all
    }

    /// Number of messages that the server received.
    fn routed(&self) -> usize {
        self.server_events.iter().filter(|event| matches!(event, Event::Publish(..))).count()
    }
}

fn take(outbox: &mut Outbox) -> Vec<u8> {
    outbox.copy_to_bytes(outbox.remaining()).to_vec()
}

fn delivery(topic: &str, payload: &'static str, qos: QoS) -> Delivery {
    let topic = TopicName::parse(topic).unwrap();
    Delivery::of(SharedMessage::new(Message::new(topic, Bytes::from_static(payload.as_bytes()), qos, false)))
}

fn entry(filter: &str) -> SubscribeEntry {
    SubscribeEntry::new(TopicFilter::parse(filter).unwrap(), QoS::AtLeastOnce)
}

fn connack(session_present: bool, properties: ConnackProperties) -> Packet {
    Packet::Connack(Box::new(Connack { session_present, reason: ReasonCode::Success, properties }))
}

const ALL: [ProtocolVersion; 3] = [ProtocolVersion::V31, ProtocolVersion::V311, ProtocolVersion::V5];
const SECOND: Duration = Duration::from_secs(1);

mod authentication;
mod early;
mod flow;
mod keep_alive;
mod resume;
mod rules;
