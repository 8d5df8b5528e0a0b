//! A client's part that is the same for all: it connects until it is connected, and keeps its session.

use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use braid_bench::{Connection, Happening};
use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{Connect, MessageProperties, ProtocolVersion, QoS, Will};
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_transport::{ConnectOptions, connect};
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::house::{House, Way};
use crate::ledger::ReaderId;

/// Longer than anything takes.
const EXPIRY_SECS: u32 = 86_400;
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);
/// For an attempt.
const LIMIT: Duration = Duration::from_secs(20);

/// What happened, and on which stream.
pub(crate) type Happened = (StreamKey, Happening);

/// A client that outlives its connections, and whose session outlives the broker.
pub(crate) struct Line {
    pub(crate) house: Rc<House>,
    pub(crate) way: Rc<Way>,
    connect: Connect,
    /// What it gets is in the books under this name.
    reader: Option<ReaderId>,
    session: Option<Session>,
    /// The broker has acknowledged the session.
    is_known: bool,
    /// How often the broker had ended when this client last tried to connect.
    ends: u64,
    /// Connections so far.
    pub(crate) connections: u64,
}

impl Line {
    pub(crate) fn new(house: &Rc<House>, way: &Rc<Way>, name: &str, version: ProtocolVersion) -> Self {
        let client_id = format!("{name}-{}", way.scheme);
        let mut connect = Connect::new(version, client_id.as_str());
        connect.clean_start = false;
        let expiry = match version.is_v5() {
            true => SessionExpiry::from_secs(EXPIRY_SECS),
            false => SessionExpiry::NEVER,
        };
        connect.properties.session_expiry = version.is_v5().then_some(EXPIRY_SECS);
        let session = Session::new(client_id.as_str().into(), expiry);
        let (house, way) = (Rc::clone(house), Rc::clone(way));
        let (is_known, ends, connections) = (false, 0, 0);
        Self { house, way, connect, reader: None, session: Some(session), is_known, ends, connections }
    }

    /// It reads, and the books are to know when it connects.
    pub(crate) fn set_reader(&mut self, reader: ReaderId) {
        self.reader = Some(reader);
    }

    /// No more than so many messages may be on their way to it.
    pub(crate) fn set_receive_maximum(&mut self, messages: u16) {
        self.connect.properties.receive_maximum = Some(messages);
    }

    pub(crate) fn set_will(&mut self, will: Will) {
        self.connect.will = Some(will);
    }

    /// Nothing is left of it when its connection ends.
    pub(crate) fn expires_with_its_connection(&mut self) {
        self.connect.clean_start = true;
        self.connect.properties.session_expiry = None;
        self.session = None;
    }

    /// Connects, however long that takes.
    pub(crate) async fn open(&mut self) -> Connection {
        loop {
            self.expect_broker().await;
            if let Some(connection) = self.attempt().await {
                return connection;
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until the broker listens where nobody says that it does not.
    pub(crate) async fn expect_broker(&self) {
        if self.way.is_quic() {
            let _ = self.house.broker.subscribe().wait_for(|broker| broker.is_up).await;
        }
    }

    /// Connects once.
    pub(crate) async fn attempt(&mut self) -> Option<Connection> {
        self.ends = self.house.broker.borrow().ends;
        if let Some(reader) = self.reader {
            self.house.ledger().connecting(reader);
        }
        // An attempt that is given up takes its session with it.
        let before = self.session.clone();
        let (house, way, ends) = (Rc::clone(&self.house), Rc::clone(&self.way), self.ends);
        let outcome = tokio::select! {
            outcome = timeout(LIMIT, self.establish()) => outcome.ok().flatten(),
            () = ended(&house, &way, ends) => None,
        };
        let Some(connection) = outcome else {
            self.session = self.session.take().or(before);
            return None;
        };
        self.connections += 1;
        let mut ledger = house.ledger();
        ledger.counts.connected += 1;
        if self.is_known && !connection.session_present() {
            ledger.counts.faults.forgotten += 1;
            ledger.tell(format!("the session of {} is gone", self.connect.client_id.as_str()));
        }
        self.is_known = true;
        drop(ledger);
        Some(connection)
    }

    async fn establish(&mut self) -> Option<Connection> {
        let link = connect(&self.way.target, &self.way.tls, &ConnectOptions::default()).await.ok()?;
        Connection::resume(link, self.connect.clone(), &mut self.session).await.ok()
    }

    /// The next thing that happens; `None`: the connection has ended.
    pub(crate) async fn next(&self, connection: &mut Connection) -> Option<Happened> {
        tokio::select! {
            biased;
            happened = poll_fn(|cx| connection.poll_next_from(cx)) => happened.ok(),
            () = ended(&self.house, &self.way, self.ends) => None,
        }
    }

    /// Ends a connection without a word, if it has not ended; what came before that.
    pub(crate) fn close(&mut self, mut connection: Connection) -> Vec<Happened> {
        let mut context = Context::from_waker(Waker::noop());
        let mut rest = Vec::new();
        while let Poll::Ready(Ok(happened)) = connection.poll_next_from(&mut context) {
            rest.push(happened);
        }
        self.session = connection.into_session();
        rest
    }
}

/// The broker has ended since it had ended so often, and a client of QUIC would not learn of it. Others do.
async fn ended(house: &House, way: &Way, ends: u64) {
    if !way.is_quic() {
        return pending().await;
    }
    let _ = house.broker.subscribe().wait_for(|broker| broker.ends != ends).await;
}

/// A message on its way that expires after so many seconds, if it does.
pub(crate) fn expiring(delivery: Delivery, expiry: Option<u32>) -> Delivery {
    let Some(seconds) = expiry else { return delivery };
    let properties = MessageProperties { message_expiry: Some(seconds), ..MessageProperties::default() };
    let Delivery { message, .. } = &delivery;
    let message = Message::new(message.topic.clone(), message.payload.clone(), message.qos, message.retain);
    let message = message.with_properties(Some(Box::new(properties)), Instant::now().into_std());
    Delivery { message: Arc::new(message), ..delivery }
}

/// A message on its way.
pub(crate) fn delivery(topic: &str, payload: Bytes, qos: QoS, retain: bool, stream: StreamKey) -> Delivery {
    let message = Message::new(topic_name(topic), payload, qos, retain);
    Delivery { stream, ..Delivery::of(Arc::new(message)) }
}

/// A topic of ours.
#[expect(clippy::expect_used, reason = "they are all written in this program")]
pub(crate) fn topic_name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a topic without wildcards")
}

/// A filter of ours.
#[expect(clippy::expect_used, reason = "they are all written in this program")]
pub(crate) fn topic_filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a filter with wildcards in their places")
}
