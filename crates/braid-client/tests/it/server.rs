//! A server whose every step a test decides.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_client::{Builder, Client};
use braid_proto::connection::{Acceptance, Event, Sent, Server, ServerOptions, Token};
use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{Connect, QoS, Subscribe};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::topic::TopicName;
use braid_transport::{Link, Listener, Single, mem};
use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// A listener, and a builder of clients that connect to it.
pub(crate) fn network() -> (Listening, Builder) {
    let (listener, connector) = mem::hub();
    let builder = Client::builder("mqtt://unused").client_id("c").in_memory(connector);
    (Listening { listener }, builder)
}

pub(crate) struct Listening {
    listener: Listener,
}

impl Listening {
    /// The next connection, before its CONNECT.
    pub(crate) async fn incoming(&mut self) -> Peer {
        let incoming = self.listener.accept().await.expect("the hub is there");
        let Link::Single(single) = incoming.handshake().await.expect("no handshake in memory");
        Peer {
            single,
            server: Server::new(Arc::new(ServerOptions::default()), now()),
            events: VecDeque::new(),
        }
    }

    /// The next connection, accepted with a new session.
    pub(crate) async fn accept(&mut self) -> Peer {
        self.accept_with(None).await.0
    }

    /// The next connection, accepted with this session or a new one, and its CONNECT.
    pub(crate) async fn accept_with(&mut self, session: Option<Session>) -> (Peer, Connect) {
        let mut peer = self.incoming().await;
        let connect = peer.connect().await;
        peer.accept(session).await;
        (peer, connect)
    }
}

/// The server's end of one connection.
pub(crate) struct Peer {
    single: Single,
    server: Server,
    events: VecDeque<Event>,
}

impl Peer {
    pub(crate) async fn connect(&mut self) -> Connect {
        match self.event().await {
            Some(Event::Connect(connect)) => *connect,
            other => panic!("CONNECT was expected, not {other:?}"),
        }
    }

    pub(crate) async fn accept(&mut self, session: Option<Session>) {
        let acceptance = Acceptance { session_present: session.is_some(), ..Acceptance::default() };
        let session = session.unwrap_or_else(|| Session::new("c".into(), SessionExpiry::NEVER));
        self.server.accept(session, &acceptance, now());
        self.flush().await;
    }

    pub(crate) async fn reject(&mut self, reason: ReasonCode) {
        self.server.reject(reason);
        self.flush().await;
    }

    /// The next event; `None`: the client has gone, or the connection is closed. Fails the test when the client
    /// does nothing for an hour.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        timeout(Duration::from_secs(3600), self.wait()).await.expect("the client does something")
    }

    async fn wait(&mut self) -> Option<Event> {
        let mut buffer = vec![0; 65536];
        loop {
            while let Some(event) = self.server.poll_event() {
                self.events.push_back(event);
            }
            self.flush().await;
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.server.is_closed() {
                return None;
            }
            match self.single.io.read(&mut buffer).await {
                Ok(len) if len > 0 => self.server.handle_bytes(&buffer[..len], now()),
                _ => self.server.handle_link_closed(),
            }
        }
    }

    /// The next PUBLISH.
    pub(crate) async fn publish(&mut self) -> (Arc<Message>, Option<Token>) {
        loop {
            match self.event().await {
                Some(Event::Publish(message, token)) => return (message, token),
                Some(Event::Release(token)) => self.persisted(token).await,
                other => panic!("PUBLISH was expected, not {other:?}"),
            }
        }
    }

    /// The next SUBSCRIBE.
    pub(crate) async fn subscribe(&mut self) -> Box<Subscribe> {
        match self.event().await {
            Some(Event::Subscribe(subscribe)) => subscribe,
            other => panic!("SUBSCRIBE was expected, not {other:?}"),
        }
    }

    /// Answers a SUBSCRIBE with what it asks for.
    pub(crate) async fn grant(&mut self, subscribe: &Subscribe) {
        self.suback(subscribe, subscribe.entries.iter().map(|entry| entry.qos.into()).collect()).await;
    }

    pub(crate) async fn suback(&mut self, subscribe: &Subscribe, codes: Vec<ReasonCode>) {
        let token = self.server.suback(subscribe.packet_id, codes).expect("the connection is open");
        self.persisted(token).await;
    }

    pub(crate) async fn unsuback(
        &mut self,
        packet_id: braid_proto::packet::PacketId,
        codes: Vec<ReasonCode>,
    ) {
        let token = self.server.unsuback(packet_id, codes).expect("the connection is open");
        self.persisted(token).await;
    }

    pub(crate) async fn refuse(&mut self, token: Token, reason: ReasonCode) {
        self.server.set_reason(token, reason);
        self.persisted(token).await;
    }

    pub(crate) async fn persisted(&mut self, token: Token) {
        self.server.handle_persisted(token);
        self.flush().await;
    }

    /// Sends a message to the client.
    pub(crate) async fn deliver(&mut self, topic: &str, payload: &str, qos: QoS) {
        let topic = TopicName::parse(topic).expect("a topic name");
        let message = Message::new(topic, Bytes::copy_from_slice(payload.as_bytes()), qos, false);
        let sent = self.server.deliver(Delivery::of(Arc::new(message)), now());
        assert!(matches!(sent, Sent::Out(_)), "{sent:?}");
        self.flush().await;
    }

    pub(crate) async fn disconnect(&mut self, reason: ReasonCode) {
        self.server.disconnect(reason);
        self.flush().await;
    }

    pub(crate) fn session(&self) -> &Session {
        self.server.session().expect("the connection is open")
    }

    /// What has arrived and was not taken by [`Peer::event`].
    pub(crate) fn pending(&mut self) -> Vec<Event> {
        let more = std::iter::from_fn(|| self.server.poll_event());
        self.events.drain(..).chain(more).collect()
    }

    /// Cuts the link: what the server keeps.
    pub(crate) fn cut(mut self) -> Session {
        self.server.handle_link_closed();
        self.server.take_end().and_then(|end| end.session).expect("a session")
    }

    async fn flush(&mut self) {
        if let Some(outbox) = self.server.outbox() {
            let bytes = outbox.copy_to_bytes(outbox.remaining());
            // The client may have gone: the next read says so.
            let _ = self.single.io.write_all(&bytes).await;
        }
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
