//! A client that reconnects until it is connected and keeps its session.

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use braid_bench::{Connection, ConnectionEvent, Failure, SendOutcome};
use braid_proto::connection::Cause;
use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{Connect, MessageProperties, PacketId, ProtocolVersion, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Phase, Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_torture::means_illegal_packet;
use braid_transport::{ConnectOptions, connect};
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::ledger::SubscriberId;
use super::testbed::{Endpoint, Testbed};
use crate::topic::topic_name;

/// Session Expiry Interval, longer than any run.
const EXPIRY_SECS: u32 = 86_400;
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);
/// Time limit of an attempt.
const LIMIT: Duration = Duration::from_secs(20);

/// Event of a connection.
pub(crate) enum Received {
    /// Last acknowledgement of a message of this client.
    Landed(InflightMessage),
    /// Anything else, with its stream.
    Other(StreamKey, ConnectionEvent),
}

/// A message without its last acknowledgement.
pub(crate) struct InflightMessage {
    pub(crate) topic: String,
    pub(crate) number: u64,
    qos: QoS,
    /// True once PUBREC has come.
    is_received: bool,
}

/// Client that reconnects, and whose session continues when the broker restarts.
pub(crate) struct PersistentClient {
    pub(crate) testbed: Rc<Testbed>,
    pub(crate) endpoint: Rc<Endpoint>,
    connect: Connect,
    /// Number in the ledger, for subscribers.
    subscriber: Option<SubscriberId>,
    session: Option<Session>,
    /// Inflight messages across connections.
    pub(crate) inflight: HashMap<PacketId, InflightMessage>,
    /// True once the broker has acknowledged the session.
    is_known: bool,
    /// Ends of the broker before the last attempt to connect.
    ends: u64,
    /// Number of connections so far.
    pub(crate) connections: u64,
}

impl PersistentClient {
    pub(crate) fn new(
        testbed: &Rc<Testbed>,
        endpoint: &Rc<Endpoint>,
        name: &str,
        version: ProtocolVersion,
    ) -> Self {
        let client_id = format!("{name}-{}", endpoint.transport.scheme());
        let mut connect = Connect::new(version, client_id.as_str());
        connect.clean_start = false;
        let expiry = match version.is_v5() {
            true => SessionExpiry::from_secs(EXPIRY_SECS),
            false => SessionExpiry::NEVER,
        };
        connect.properties.session_expiry = version.is_v5().then_some(EXPIRY_SECS);
        let session = Session::new(client_id.as_str().into(), expiry);
        let (testbed, endpoint) = (Rc::clone(testbed), Rc::clone(endpoint));
        let (is_known, ends, connections) = (false, 0, 0);
        Self {
            testbed,
            endpoint,
            connect,
            subscriber: None,
            session: Some(session),
            inflight: HashMap::new(),
            is_known,
            ends,
            connections,
        }
    }

    /// Lets the ledger know of connection attempts of this subscriber.
    pub(crate) fn set_subscriber(&mut self, subscriber: SubscriberId) {
        self.subscriber = Some(subscriber);
    }

    /// Sets Receive Maximum.
    pub(crate) fn set_receive_maximum(&mut self, messages: u16) {
        self.connect.properties.receive_maximum = Some(messages);
    }

    pub(crate) fn set_will(&mut self, will: Will) {
        self.connect.will = Some(will);
    }

    /// Makes the session end with its connection.
    pub(crate) fn expires_with_its_connection(&mut self) {
        self.connect.clean_start = true;
        self.connect.properties.session_expiry = None;
        self.session = None;
    }

    /// Connects, with as many attempts as it takes.
    pub(crate) async fn open(&mut self) -> Connection {
        loop {
            self.expect_broker().await;
            if let Some(connection) = self.attempt().await {
                return connection;
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits on QUIC until the broker listens: an attempt before that would run into its timeout.
    pub(crate) async fn expect_broker(&self) {
        if self.endpoint.is_quic() {
            let _ = self.testbed.broker.subscribe().wait_for(|broker| broker.is_up).await;
        }
    }

    /// Tries to connect once.
    pub(crate) async fn attempt(&mut self) -> Option<Connection> {
        self.ends = self.testbed.broker.borrow().ends;
        if let Some(subscriber) = self.subscriber {
            self.testbed.ledger().connecting(subscriber);
        }
        // A cancelled attempt drops its session.
        let before = self.session.clone();
        let (testbed, endpoint, ends) = (Rc::clone(&self.testbed), Rc::clone(&self.endpoint), self.ends);
        let outcome = tokio::select! {
            outcome = timeout(LIMIT, self.establish()) => outcome.ok().flatten(),
            () = ended(&testbed, &endpoint, ends) => None,
        };
        let Some(connection) = outcome else {
            self.session = self.session.take().or(before);
            return None;
        };
        self.connections += 1;
        let mut ledger = testbed.ledger();
        ledger.counts.connected += 1;
        if self.is_known && !connection.session_present() {
            ledger.counts.faults.forgotten += 1;
            ledger.report_fault(format!("the session of {} is gone", self.connect.client_id.as_str()));
        }
        self.is_known = true;
        drop(ledger);
        Some(connection)
    }

    async fn establish(&mut self) -> Option<Connection> {
        let link =
            connect(&self.endpoint.target, &self.endpoint.tls, &ConnectOptions::default()).await.ok()?;
        match Connection::resume(link, self.connect.clone(), &mut self.session).await {
            Ok(connection) => Some(connection),
            Err(failure) => {
                self.note_end(&failure);
                None
            }
        }
    }

    /// Next event; `None`: the connection has ended.
    pub(crate) async fn next(&mut self, connection: &mut Connection) -> Option<Received> {
        let received = tokio::select! {
            biased;
            received = poll_fn(|cx| connection.poll_next_from(cx)) => received,
            () = ended(&self.testbed, &self.endpoint, self.ends) => return None,
        };
        let received = received.inspect_err(|failure| self.note_end(failure)).ok()?;
        self.note_pubrec(connection);
        Some(self.take(received))
    }

    /// Records the end of a connection that comes from an illegal packet.
    fn note_end(&self, failure: &Failure) {
        if is_illegal(failure) {
            let mut ledger = self.testbed.ledger();
            ledger.counts.faults.illegal += 1;
            ledger.report_fault(format!("{}: {failure}", self.connect.client_id.as_str()));
        }
    }

    /// Ends a connection without DISCONNECT; returns the events that had arrived.
    pub(crate) fn close(&mut self, mut connection: Connection) -> Vec<Received> {
        let mut context = Context::from_waker(Waker::noop());
        self.note_pubrec(&connection);
        let mut rest = Vec::new();
        while let Poll::Ready(Ok(received)) = connection.poll_next_from(&mut context) {
            rest.push(self.take(received));
        }
        self.session = connection.into_session();
        rest
    }

    // -- Publishing --------------------------------------------------------------------------------

    /// Publishes a topic's next message, with a Message Expiry Interval in seconds. False: it cannot leave now.
    pub(crate) fn publish(
        &mut self,
        connection: &mut Connection,
        number: u64,
        message: Delivery,
        expiry: Option<u32>,
    ) -> Result<bool, Failure> {
        let (topic, qos) = (message.message.topic.as_str().to_owned(), message.message.qos);
        let SendOutcome::Queued(Some(id)) = connection.send(expiring(message, expiry))? else {
            return Ok(false);
        };
        let expiry = expiry.map(|seconds| Duration::from_secs(seconds.into()));
        self.testbed.ledger().sent_for(&topic, expiry);
        self.inflight.insert(id, InflightMessage { topic, number, qos, is_received: false });
        Ok(true)
    }

    /// Records each PUBREC that has come.
    fn note_pubrec(&mut self, connection: &Connection) {
        let Some(session) = connection.session() else { return };
        for (id, message) in self.inflight.iter_mut().filter(|(_, message)| !message.is_received) {
            if matches!(session.outbound.get(*id), Some(Phase::Released(_))) {
                message.is_received = true;
                let mut ledger = self.testbed.ledger();
                ledger.counts.pubrec += 1;
                ledger.acknowledged(&message.topic, message.number);
            }
        }
    }

    /// Records PUBACK or PUBCOMP.
    fn take(&mut self, (stream, event): (StreamKey, ConnectionEvent)) -> Received {
        let ConnectionEvent::Published(id, reason) = event else { return Received::Other(stream, event) };
        let Some(message) = self.inflight.remove(&id) else { return Received::Other(stream, event) };
        let mut ledger = self.testbed.ledger();
        if reason.is_error() {
            ledger.counts.faults.unanswered += 1;
            ledger.report_fault(format!("{} {} was refused: {reason}", message.topic, message.number));
            ledger.mark_uncertain(&message.topic, message.number);
            return Received::Landed(message);
        }
        match message.qos {
            QoS::ExactlyOnce => {
                ledger.counts.pubrec += u64::from(!message.is_received);
                ledger.counts.pubcomp += 1;
            }
            _ => ledger.counts.puback += 1,
        }
        ledger.acknowledged(&message.topic, message.number);
        Received::Landed(message)
    }
}

/// Whether a connection ended because of an illegal packet of the broker, or of one that the broker takes for illegal.
/// One that was cut in the middle of a packet is merely lost.
fn is_illegal(failure: &Failure) -> bool {
    let Failure::Ended(cause) = failure else { return false };
    match cause {
        Cause::Disconnected(reason) | Cause::Refused(reason) => means_illegal_packet(*reason),
        // A broker may be stopped, or too slow for a time limit.
        Cause::Violation(violation) => {
            !matches!(violation.reason(), ReasonCode::KeepAliveTimeout | ReasonCode::MaximumConnectTime)
        }
        Cause::Closed(_) | Cause::Lost => false,
    }
}

/// Waits until the broker has ended once more, which a client of QUIC would not notice by itself; others do.
async fn ended(testbed: &Testbed, endpoint: &Endpoint, ends: u64) {
    if !endpoint.is_quic() {
        return pending().await;
    }
    let _ = testbed.broker.subscribe().wait_for(|broker| broker.ends != ends).await;
}

/// Delivery with a Message Expiry Interval in seconds, if one is given.
fn expiring(delivery: Delivery, expiry: Option<u32>) -> Delivery {
    let Some(seconds) = expiry else { return delivery };
    let properties = MessageProperties { message_expiry: Some(seconds), ..MessageProperties::default() };
    let Delivery { message, .. } = &delivery;
    let message = Message::new(message.topic.clone(), message.payload.clone(), message.qos, message.retain);
    let message = message.with_properties(Some(Box::new(properties)), Instant::now().into_std());
    Delivery { message: SharedMessage::new(message), ..delivery }
}

/// Delivery of a new message.
pub(crate) fn delivery(topic: &str, payload: Bytes, qos: QoS, retain: bool, stream: StreamKey) -> Delivery {
    let message = Message::new(topic_name(topic), payload, qos, retain);
    Delivery { stream, ..Delivery::of(SharedMessage::new(message)) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener};
    use std::path::Path;
    use std::thread;

    use braid_proto::error::Violation;

    use super::*;
    use crate::plan::Transport;

    /// CONNACK with success, without properties.
    const CONNACK: [u8; 5] = [0x20, 3, 0, 0, 0];

    /// Number of illegal packets that a client sees at a server that sends CONNACK, these bytes, and the end.
    async fn illegal_packets(bytes: &[u8]) -> u64 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let testbed = Testbed::new(1, Duration::ZERO, 1);
        let port = listener.local_addr().unwrap().port();
        let endpoint = Endpoint::new(Transport::Mqtt, port, Path::new("none.pem"));
        let mut client = PersistentClient::new(&testbed, &endpoint, "c", ProtocolVersion::V5);
        let packets = [&CONNACK, bytes].concat();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1000]).unwrap() > 0);
            stream.write_all(&packets).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            // The client ends the connection, perhaps by a reset.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let mut connection = client.open().await;
        while client.next(&mut connection).await.is_some() {}
        drop(connection);
        server.join().unwrap();
        let faults = testbed.read_ledger().counts.faults.clone();
        assert_eq!(faults.sum(), faults.illegal);
        faults.illegal
    }

    #[tokio::test]
    async fn an_illegal_packet_is_a_fault_and_a_cut_one_is_not() {
        for (name, bytes, illegal) in [
            ("nothing", &[][..], 0),
            ("a reserved type", &[0, 0], 1),
            ("a PUBLISH of QoS 3", &[0x36, 3, 0, 1, b'a'], 1),
            ("a PUBLISH without its end", &[0x30, 200, 1, 0, 1, b'a', 0, 1], 0),
            ("DISCONNECT because of a protocol error", &[0xe0, 1, 0x82], 1),
            ("DISCONNECT because of a malformed packet", &[0xe0, 1, 0x81], 1),
            ("DISCONNECT of a server that ends", &[0xe0, 1, 0x8b], 0),
        ] {
            assert_eq!(illegal_packets(bytes).await, illegal, "{name}");
        }
    }

    #[test]
    fn a_time_limit_is_no_illegal_packet() {
        let late = Failure::Ended(Cause::Violation(Violation::PingrespTimeout));
        assert!(!is_illegal(&late) && !is_illegal(&Failure::Ended(Cause::Lost)));
    }
}
