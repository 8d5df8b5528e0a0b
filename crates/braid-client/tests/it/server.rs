//! Scripted server: the test decides each of its steps.

use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_client::{Builder, Client, ClientTlsOptions};
use braid_proto::connection::{Acceptance, Event, Sent, Server, ServerOptions, StreamAction, Token};
use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{Connect, QoS, Subscribe, Unsubscribe};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicName;
use braid_transport::quic::QuicOptions;
use braid_transport::quic::codes::CLOSE_ABNORMAL;
use braid_transport::sim::{Host, Network};
use braid_transport::{ClientAuth, Close, Link, ListenOptions, Listener, Read, ServerTls, mem, self_signed};
use bytes::{Buf, Bytes};
use tempfile::TempDir;
use tokio::io::ReadBuf;
use tokio::time::timeout;

/// An in-memory listener, and a builder of clients that connect to it.
pub(crate) fn network() -> (Listening, Builder) {
    let (listener, connector) = mem::listener();
    let builder = Client::builder("mqtt://unused").client_id("c").in_memory(connector);
    (Listening { listener, options: ServerOptions::default(), tls: None }, builder)
}

/// A listener over QUIC on a simulated network.
pub(crate) fn quic() -> (Listening, Builder) {
    let (listening, builder, _) = quic_with(QuicOptions::server());
    (listening, builder)
}

/// A listener over QUIC on a simulated network, one in memory that stands for TLS, a builder of clients that choose
/// between them, and the host of the client.
pub(crate) fn quic_and_memory() -> (Listening, Listening, Builder, Host) {
    let (quic, builder, device) = quic_at("auto://localhost", QuicOptions::server());
    let (listener, connector) = mem::listener();
    let memory = Listening { listener, options: ServerOptions::default(), tls: None };
    (quic, memory, builder.in_memory(connector), device)
}

/// A listener over QUIC with these settings, and the host of the client.
pub(crate) fn quic_with(quic: QuicOptions) -> (Listening, Builder, Host) {
    quic_at("quic://localhost", quic)
}

fn quic_at(url: &str, quic: QuicOptions) -> (Listening, Builder, Host) {
    let dir = tempfile::tempdir().expect("a directory");
    let files = self_signed(dir.path(), &["localhost".to_owned()]).expect("a certificate");
    let tls = ServerTls::load(files, ClientAuth::None).expect("a certificate");
    let kept = Some((tls.clone(), dir));
    let network = Network::new(1);
    let options = ListenOptions { quic, ..ListenOptions::default() };
    let listener = network.listen(tls, &options).expect("a free port");
    let server: SocketAddr = listener.local_addr().expect("an address");
    let device = network.host("device");
    let builder = Client::builder(url)
        .client_id("c")
        .tls(ClientTlsOptions { insecure: true, ..ClientTlsOptions::default() })
        .in_simulation(device.clone(), server);
    (Listening { listener, options: ServerOptions::default(), tls: kept }, builder, device)
}

pub(crate) struct Listening {
    listener: Listener,
    pub(crate) options: ServerOptions,
    /// With the directory of its files.
    tls: Option<(ServerTls, TempDir)>,
}

impl Listening {
    /// Drops all tickets, so that no early data is possible.
    pub(crate) fn forget_tickets(&self) {
        self.tls.as_ref().expect("it is QUIC").0.reload().expect("the files are there");
    }

    /// The next connection, before its CONNECT.
    pub(crate) async fn incoming(&mut self) -> Peer {
        self.incoming_unless_gone().await.expect("the client shakes hands")
    }

    /// The next connection, before its CONNECT; `None`: the client leaves before the handshake is done.
    pub(crate) async fn incoming_unless_gone(&mut self) -> Option<Peer> {
        let incoming = self.listener.accept().await.expect("the network is there");
        let mut link = incoming.handshake().await.ok()?;
        let mut server = Server::new(Arc::new(self.options.clone()), now());
        if link.datagram_size().is_some() {
            server.permit_datagrams();
        }
        if link.is_early() {
            server.set_early();
        }
        let peer = Peer {
            link,
            server,
            events: VecDeque::new(),
            ended: Vec::new(),
            opened: Vec::new(),
            ignored: HashSet::new(),
            datagrams: 0,
            buffer: vec![0; 65536],
        };
        Some(peer)
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
    pub(crate) link: Link,
    server: Server,
    /// With the stream whose bytes made them.
    events: VecDeque<(StreamKey, Event)>,
    /// Ends of streams: `None` for FIN.
    pub(crate) ended: Vec<(StreamKey, Option<u64>)>,
    /// The streams that the client has opened.
    pub(crate) opened: Vec<StreamKey>,
    /// Streams that are not read.
    ignored: HashSet<StreamKey>,
    /// Number of datagrams that have come.
    pub(crate) datagrams: usize,
    buffer: Vec<u8>,
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
        self.server.accept(session, &acceptance, now(), |_| true);
        self.link.set_trusted();
        self.flush().await;
    }

    /// Accepts with the last data of an enhanced authentication.
    pub(crate) async fn accept_authenticated(&mut self, data: Option<Bytes>) {
        let session = Session::new("c".into(), SessionExpiry::NEVER);
        let acceptance = Acceptance { authentication_data: data, ..Acceptance::default() };
        self.server.accept(session, &acceptance, now(), |_| true);
        self.flush().await;
    }

    /// Asks the client; returns its answer.
    pub(crate) async fn challenge(&mut self, data: impl Into<Bytes>) -> Option<Bytes> {
        self.server.challenge(data.into(), now());
        self.flush().await;
        self.auth().await
    }

    /// The data of the next AUTH; `None`: the client has left.
    pub(crate) async fn auth(&mut self) -> Option<Bytes> {
        match self.event().await? {
            Event::Auth(auth) => auth.authentication_data,
            other => panic!("AUTH was expected, not {other:?}"),
        }
    }

    pub(crate) async fn finish_reauthentication(&mut self, data: impl Into<Bytes>) {
        self.server.finish_reauthentication(Some(data.into()));
        self.flush().await;
    }

    pub(crate) async fn reject(&mut self, reason: ReasonCode) {
        self.server.reject(reason);
        self.flush().await;
    }

    /// The next event; `None`: the client has gone, or the connection is closed. Fails the test when the client
    /// does nothing for an hour.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        self.event_on().await.map(|(_, event)| event)
    }

    /// The next event with its stream.
    pub(crate) async fn event_on(&mut self) -> Option<(StreamKey, Event)> {
        timeout(Duration::from_secs(3600), poll_fn(|cx| self.poll_event(cx)))
            .await
            .expect("the client does something")
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<(StreamKey, Event)>> {
        loop {
            self.note_events(StreamKey::CONTROL);
            // The rest is written when the link takes it.
            let _ = self.poll_flush(cx);
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(Some(event));
            }
            if self.server.is_closed() {
                return Poll::Ready(None);
            }
            let Self { link, server, ignored, buffer, .. } = self;
            let mut buffer = ReadBuf::new(buffer);
            let mut wants = |stream| server.is_reading(stream) && !ignored.contains(&stream);
            let Poll::Ready(read) = link.poll_read(cx, &mut buffer, &mut wants) else {
                let _ = link.poll_flush(cx);
                return Poll::Pending;
            };
            match read {
                Ok(Read::Bytes(stream)) => {
                    server.handle_bytes(stream, buffer.filled(), now());
                    self.note_events(stream);
                }
                Ok(Read::Opened(stream)) => {
                    self.opened.push(stream);
                    self.server.handle_stream_opened(stream);
                }
                Ok(Read::Finished(stream)) => {
                    self.ended.push((stream, None));
                    self.server.handle_stream_finished(stream);
                }
                Ok(Read::Reset(stream, code) | Read::Stopped(stream, code)) => {
                    self.ended.push((stream, Some(code)));
                    self.server.handle_stream_reset(stream, now());
                    self.link.abort(stream, code);
                }
                Ok(Read::Confirmed) => self.server.handle_confirmed(now()),
                Ok(Read::Datagram) => {
                    let handled = server.handle_datagram(buffer.filled(), now());
                    assert_eq!(handled, Ok(()), "the client keeps to the contract");
                    self.datagrams += 1;
                }
                Ok(Read::Moved(_) | Read::Path(_)) => {}
                Ok(Read::Closed) | Err(_) => self.server.handle_link_closed(),
            }
        }
    }

    fn note_events(&mut self, stream: StreamKey) {
        while let Some(event) = self.server.poll_event() {
            self.events.push_back((stream, event));
        }
    }

    /// Runs the client for this time without answering.
    pub(crate) async fn run(&mut self, time: Duration) {
        let mut events = VecDeque::new();
        let _ = timeout(time, async {
            while let Some(event) = self.event_on().await {
                events.push_back(event);
            }
        })
        .await;
        self.events = events;
    }

    /// From now on nothing is read from this stream.
    pub(crate) fn ignore(&mut self, stream: StreamKey) {
        self.ignored.insert(stream);
    }

    /// Ends a stream with RESET_STREAM and STOP_SENDING.
    pub(crate) fn abort(&mut self, stream: StreamKey, code: ReasonCode) {
        self.server.handle_stream_reset(stream, now());
        self.link.abort(stream, code.value().into());
    }

    /// The next PUBLISH.
    pub(crate) async fn publish(&mut self) -> (SharedMessage, Option<Token>) {
        let (_, message, token) = self.publish_on().await;
        (message, token)
    }

    /// The next PUBLISH and its stream.
    pub(crate) async fn publish_on(&mut self) -> (StreamKey, SharedMessage, Option<Token>) {
        loop {
            match self.event_on().await {
                Some((stream, Event::Publish(message, token))) => return (stream, message, token),
                Some((_, Event::Release(token))) => self.persisted(token).await,
                Some((_, Event::StreamEnded(_))) => {}
                other => panic!("PUBLISH was expected, not {other:?}"),
            }
        }
    }

    /// The next PUBLISH, acknowledged at once: its stream and payload.
    pub(crate) async fn take(&mut self) -> (StreamKey, String) {
        let (stream, message, token) = self.publish_on().await;
        if let Some(token) = token {
            self.persisted(token).await;
        }
        let text = message.payload[..message.payload.len().min(16)].to_vec();
        (stream, String::from_utf8(text).expect("text"))
    }

    /// The next SUBSCRIBE.
    pub(crate) async fn subscribe(&mut self) -> Box<Subscribe> {
        self.subscribe_on().await.1
    }

    /// The next SUBSCRIBE and its stream.
    pub(crate) async fn subscribe_on(&mut self) -> (StreamKey, Box<Subscribe>) {
        loop {
            match self.event().await {
                Some(Event::Subscribe(stream, subscribe)) => return (stream, subscribe),
                Some(Event::StreamEnded(_)) => {}
                other => panic!("SUBSCRIBE was expected, not {other:?}"),
            }
        }
    }

    /// The next UNSUBSCRIBE and its stream.
    pub(crate) async fn unsubscribe_on(&mut self) -> (StreamKey, Box<Unsubscribe>) {
        match self.event().await {
            Some(Event::Unsubscribe(stream, unsubscribe)) => (stream, unsubscribe),
            other => panic!("UNSUBSCRIBE was expected, not {other:?}"),
        }
    }

    /// Grants the next SUBSCRIBE: its stream and filters.
    pub(crate) async fn grant_next(&mut self) -> (StreamKey, Vec<String>) {
        let (stream, subscribe) = self.subscribe_on().await;
        let codes = subscribe.entries.iter().map(|entry| entry.qos.into()).collect();
        self.suback_on(stream, &subscribe, codes).await;
        let filters =
            subscribe.entries.iter().map(|entry| entry.filter.as_ref().expect("a filter").to_string());
        (stream, filters.collect())
    }

    /// Answers a SUBSCRIBE with the requested QoS.
    pub(crate) async fn grant(&mut self, subscribe: &Subscribe) {
        self.suback(subscribe, subscribe.entries.iter().map(|entry| entry.qos.into()).collect()).await;
    }

    pub(crate) async fn suback(&mut self, subscribe: &Subscribe, codes: Vec<ReasonCode>) {
        self.suback_on(StreamKey::CONTROL, subscribe, codes).await;
    }

    /// Every SUBSCRIBE has to be answered, also when its stream has ended.
    pub(crate) async fn suback_on(&mut self, on: StreamKey, subscribe: &Subscribe, codes: Vec<ReasonCode>) {
        let token = self.server.suback(on, subscribe.packet_id, codes).expect("it was asked for");
        self.persisted(token).await;
    }

    pub(crate) async fn unsuback(
        &mut self,
        on: StreamKey,
        unsubscribe: &Unsubscribe,
        codes: Vec<ReasonCode>,
    ) {
        let token = self.server.unsuback(on, unsubscribe.packet_id, codes).expect("the stream is open");
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
        self.deliver_on(StreamKey::CONTROL, topic, payload, qos).await;
    }

    /// Sends a message to the client on this stream.
    pub(crate) async fn deliver_on(&mut self, stream: StreamKey, topic: &str, payload: &str, qos: QoS) {
        let topic = TopicName::parse(topic).expect("a topic name");
        let message = Message::new(topic, payload.as_bytes().to_vec(), qos, false);
        let delivery = Delivery { stream, ..Delivery::of(SharedMessage::new(message)) };
        let sent = self.server.deliver(delivery, now());
        assert!(matches!(sent, Sent::Out(_)), "{sent:?}");
        self.flush().await;
    }

    /// Sends a datagram to the client.
    pub(crate) async fn send_datagram(&mut self, bytes: &'static [u8]) {
        self.link.send_datagram(Priority::DEFAULT, Bytes::from_static(bytes));
        self.flush().await;
    }

    pub(crate) async fn disconnect(&mut self, reason: ReasonCode) {
        self.server.disconnect(reason);
        self.flush().await;
    }

    /// Ends the connection because another one has taken its session.
    pub(crate) async fn take_over(&mut self) {
        self.disconnect(ReasonCode::SessionTakenOver).await;
        let close = Close { code: CLOSE_ABNORMAL, stop: Some(ReasonCode::SessionTakenOver.value()) };
        // The client may have closed the link.
        let _ = poll_fn(|cx| self.link.poll_close(cx, close)).await;
    }

    /// Drops the parts of large messages that CONNACK listed.
    pub(crate) fn drop_parts(&mut self) {
        let session = self.server.session_mut().expect("the connection is open");
        session.partials.expire(now() + Duration::from_secs(100_000));
    }

    pub(crate) fn session(&self) -> &Session {
        self.server.session().expect("the connection is open")
    }

    /// Events that [`Peer::event`] has not taken.
    pub(crate) fn pending(&mut self) -> Vec<Event> {
        self.note_events(StreamKey::CONTROL);
        self.events.drain(..).map(|(_, event)| event).collect()
    }

    /// Tells the client to use another server, and ends the connection.
    pub(crate) async fn redirect(&mut self, reference: &str) {
        self.server.redirect(reference);
        self.flush().await;
    }

    /// Expiry of the session that the connection left.
    pub(crate) fn session_expiry(mut self) -> SessionExpiry {
        self.server
            .take_end()
            .and_then(|end| end.session)
            .map_or(SessionExpiry::from_secs(0), |session| session.expiry)
    }

    /// Cuts the link; returns the session that the server keeps.
    pub(crate) fn cut(mut self) -> Session {
        self.server.handle_link_closed();
        self.server.take_end().and_then(|end| end.session).expect("a session")
    }

    async fn flush(&mut self) {
        poll_fn(|cx| self.poll_flush(cx)).await;
    }

    /// Ready when everything is written. The client may have gone: the next read says so.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.server.continue_resend(now(), |_| true);
        let mut streams = Vec::new();
        self.server.streams_to_write(&mut streams);
        let mut is_stuck = false;
        for stream in streams {
            while let Some(outbox) = self.server.outbox(stream)
                && !outbox.is_empty()
            {
                match self.link.poll_write(cx, stream, &[IoSlice::new(outbox.chunk())]) {
                    Poll::Ready(Ok(len)) => outbox.advance(len),
                    Poll::Ready(Err(_)) => outbox.advance(outbox.len()),
                    Poll::Pending => {
                        is_stuck = true;
                        break;
                    }
                }
            }
        }
        while let Some(action) = self.server.poll_stream() {
            match action {
                StreamAction::Finish(stream) => self.link.finish(stream),
                StreamAction::Abort(stream, reason) => self.link.abort(stream, reason.value().into()),
            }
        }
        let _ = self.link.poll_flush(cx);
        if is_stuck { Poll::Pending } else { Poll::Ready(()) }
    }
}

pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
