//! Tables of what the checks know of a history: connections, sessions, subscriptions, messages, faults.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use braid_proto::topic::{TopicFilter, TopicName};

use super::event::{Phase, Qos};

/// Texts as small numbers.
#[derive(Default)]
pub(super) struct Names {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Names {
    fn find(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    /// Number of `text`, and whether it is new.
    fn intern(&mut self, text: &str) -> Result<(u32, bool), String> {
        if let Some(number) = self.find(text) {
            return Ok((number, false));
        }
        let number = u32::try_from(self.texts.len()).map_err(|_| "more than 4 billion names".to_owned())?;
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        Ok((number, true))
    }

    fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("?", |text| text)
    }
}

/// One connection of a client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: u32,
    pub(super) clean: bool,
    pub(super) expiry: Option<u32>,
    /// CONNECT was sent.
    pub(super) connect: u64,
    /// Node and time of a successful CONNACK.
    pub(super) accepted: Option<(u32, u64)>,
    /// A CONNACK with an error came.
    pub(super) is_refused: bool,
    /// DISCONNECT was sent.
    pub(super) disconnect: Option<u64>,
    pub(super) closed: Option<(u64, Option<u8>)>,
    /// Number of the session, which differs from those of all other sessions.
    pub(super) session: u32,
    /// First connection of the client, and the time of its CONNACK, that another node accepted later.
    pub(super) superseded: Option<(u64, u32)>,
}

/// A Client Identifier.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// Files with its events.
    pub(super) files: Vec<usize>,
    pub(super) connections: Vec<u32>,
    /// The session lives, as far as its client can know.
    pub(super) is_session_sure: bool,
    pub(super) session: u32,
    /// CONNECTs with Clean Start that the server has not answered: it may carry them out at any time.
    pub(super) open_clean: u32,
    /// All filters of its SUBSCRIBEs.
    pub(super) requested: Vec<TopicFilter>,
}

/// A granted subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) client: u32,
    pub(super) conn: u32,
    pub(super) filter: TopicFilter,
    /// The SUBACK came.
    pub(super) granted: u64,
    pub(super) qos: u8,
    /// Its session was created without Clean Start.
    pub(super) is_persistent: bool,
    /// Its session ended, or may have ended.
    pub(super) is_over: bool,
}

/// A message, or a Will.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) publisher: u32,
    pub(super) number: u64,
    pub(super) topic: u32,
    pub(super) qos: u8,
    pub(super) origin: Origin,
    pub(super) retain: bool,
    pub(super) empty: bool,
    /// The publisher went on with a new message on another connection while this one was not acknowledged.
    pub(super) is_abandoned: bool,
    /// First PUBLISH, and its connection.
    pub(super) sent: (u64, u32),
    pub(super) times_sent: u32,
    /// Successful PUBACK or PUBCOMP, and its connection.
    pub(super) acked: Option<(u64, u32)>,
    /// First delivery to any client, and its connection.
    pub(super) delivered: Option<(u64, u32)>,
}

/// Source of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// No event tells of its publication so far.
    Unknown,
    /// PUBLISH of a client.
    Publish,
    /// Will of a connection.
    Will,
}

/// Messages of one publisher.
#[derive(Debug, Default)]
struct Publisher {
    /// File with its publications.
    file: Option<usize>,
    highest: Option<u64>,
    /// Connection of its last PUBLISH.
    conn: u32,
    /// Sent on this connection, not acknowledged.
    open: HashSet<u32>,
    /// Sent on an earlier connection, not acknowledged, not sent again.
    stale: HashSet<u32>,
}

/// A fault and its duration.
#[derive(Debug)]
pub(super) struct Fault {
    name: String,
    on: String,
    begin: u64,
    end: Option<u64>,
}

/// First words of faults that leave the kernel alone: bytes that a process has written go on to their receiver.
const PROCESS_FAULTS: [&str; 6] = ["kill", "stop", "end", "full", "restart", "jump"];

/// Whether a fault of this name may keep bytes on their way.
#[must_use]
pub fn delays_bytes(name: &str) -> bool {
    !PROCESS_FAULTS.contains(&name.split('-').next().unwrap_or(name))
}

impl Fault {
    fn overlaps(&self, from: u64, to: u64) -> bool {
        self.begin <= to && self.end.is_none_or(|end| end >= from)
    }
}

/// Everything that the events so far say.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) start: Option<u64>,
    /// Time of the last event.
    pub(super) now: u64,
    client_names: Names,
    conn_names: Names,
    node_names: Names,
    topic_names: Names,
    publisher_names: Names,
    topics: Vec<TopicName>,
    pub(super) clients: Vec<Client>,
    pub(super) connections: Vec<Connection>,
    pub(super) subscriptions: Vec<Subscription>,
    pub(super) messages: Vec<Message>,
    message_numbers: HashMap<(u32, u64), u32>,
    publishers: Vec<Publisher>,
    faults: Vec<Fault>,
    sessions: u32,
}

impl Tables {
    pub(super) fn connection(&self, conn: u32) -> &Connection {
        &self.connections[conn as usize]
    }

    pub(super) fn connection_mut(&mut self, conn: u32) -> &mut Connection {
        &mut self.connections[conn as usize]
    }

    pub(super) fn client(&self, client: u32) -> &Client {
        &self.clients[client as usize]
    }

    pub(super) fn message(&self, message: u32) -> &Message {
        &self.messages[message as usize]
    }

    pub(super) fn message_mut(&mut self, message: u32) -> &mut Message {
        &mut self.messages[message as usize]
    }

    pub(super) fn topic(&self, topic: u32) -> &TopicName {
        &self.topics[topic as usize]
    }

    /// Topic of a message, as text.
    pub(super) fn topic_text(&self, message: &Message) -> &str {
        self.topic(message.topic).as_str()
    }

    pub(super) fn client_name(&self, client: u32) -> &str {
        self.client_names.text(client)
    }

    /// `<publisher>:<number>`
    pub(super) fn id(&self, message: u32) -> String {
        let Message { publisher, number, .. } = self.message(message);
        format!("{}:{number}", self.publisher_names.text(*publisher))
    }

    /// Connection with its node, as text.
    pub(super) fn at(&self, conn: u32) -> String {
        let node = self.connection(conn).accepted.map_or("no node", |(node, _)| self.node_names.text(node));
        format!("connection {} at {node}", self.conn_names.text(conn))
    }

    // === connections and sessions ===

    /// Adds a CONNECT.
    pub(super) fn connect(
        &mut self,
        file: usize,
        (client, conn): (&str, &str),
        (clean, expiry): (bool, Option<u32>),
    ) -> Result<(), String> {
        let (client, is_new) = self.client_names.intern(client)?;
        if is_new {
            self.clients.push(Client::default());
        }
        let (number, is_new) = self.conn_names.intern(conn)?;
        if !is_new {
            return Err(format!("a second CONNECT of the connection {conn}: give each its own name"));
        }
        let (connect, session) = (self.now, 0);
        self.connections.push(Connection {
            client,
            clean,
            expiry,
            connect,
            accepted: None,
            is_refused: false,
            disconnect: None,
            closed: None,
            session,
            superseded: None,
        });
        let entry = &mut self.clients[client as usize];
        entry.connections.push(number);
        if !entry.files.contains(&file) {
            entry.files.push(file);
        }
        if clean {
            entry.open_clean += 1;
            self.end_session(client);
        }
        Ok(())
    }

    /// Connection of an event, which must be one of `client`.
    pub(super) fn find_connection(&self, client: &str, conn: &str) -> Result<u32, String> {
        let number = self
            .conn_names
            .find(conn)
            .ok_or_else(|| format!("no CONNECT of the connection {conn} before"))?;
        let owner = self.client_name(self.connection(number).client);
        if owner != client {
            return Err(format!("the connection {conn} is one of {owner}, not of {client}"));
        }
        Ok(number)
    }

    /// Takes the node of a successful CONNACK, and marks older connections at other nodes. True if one is open.
    pub(super) fn accept(&mut self, conn: u32, node: &str) -> Result<bool, String> {
        let (node, _) = self.node_names.intern(node)?;
        let now = self.now;
        let connection = self.connection_mut(conn);
        if connection.accepted.is_some() || connection.is_refused {
            return Err("a second CONNACK of its connection".into());
        }
        connection.accepted = Some((node, now));
        let Connection { client, connect, .. } = *connection;
        let mut has_moved = false;
        for other in &self.clients[client as usize].connections {
            let other = &mut self.connections[*other as usize];
            // CONNACKs may cross: only one that was there before this CONNECT is certainly older.
            let is_older = other.accepted.is_some_and(|(other_node, t)| other_node != node && t < connect);
            has_moved |= is_older && other.closed.is_none();
            if is_older && other.superseded.is_none() {
                other.superseded = Some((now, conn));
            }
        }
        Ok(has_moved)
    }

    /// Begins a session: all before is over. `is_sure` if no other event may end it unnoticed.
    pub(super) fn begin_session(&mut self, client: u32, is_sure: bool) {
        self.end_session(client);
        self.clients[client as usize].is_session_sure = is_sure;
    }

    /// Ends the session of `client`, or what may be left of it.
    fn end_session(&mut self, client: u32) {
        self.sessions += 1;
        let entry = &mut self.clients[client as usize];
        entry.is_session_sure = false;
        entry.session = self.sessions;
        for subscription in self.subscriptions.iter_mut().filter(|one| one.client == client) {
            subscription.is_over = true;
        }
    }

    /// Subscriptions of the present session of `client`.
    pub(super) fn live_subscriptions(&self, client: u32) -> impl Iterator<Item = &Subscription> {
        self.subscriptions.iter().filter(move |one| one.client == client && !one.is_over)
    }

    /// Adds a granted subscription. One that replaces another counts from the first with a QoS above 0 on.
    pub(super) fn grant(&mut self, conn: u32, filter: TopicFilter, qos: u8) {
        let Connection { client, clean, .. } = *self.connection(conn);
        let is_persistent = !clean && self.client(client).is_session_sure;
        let mut same = self.subscriptions.iter_mut();
        let granted = self.now;
        match same.find(|one| one.client == client && !one.is_over && one.filter == filter) {
            Some(subscription) if subscription.qos > 0 && qos > 0 => subscription.qos = qos,
            Some(subscription) => {
                (subscription.qos, subscription.granted, subscription.conn) = (qos, granted, conn)
            }
            None => self.subscriptions.push(Subscription {
                client,
                conn,
                filter,
                granted,
                qos,
                is_persistent,
                is_over: false,
            }),
        }
    }

    // === messages ===

    /// Message of `<publisher>:<number>`, with an entry from now on.
    pub(super) fn find_message(&mut self, id: &str) -> Result<u32, String> {
        let wrong = || format!("id {id:?}: write <publisher>:<number>");
        let (publisher, number) = id.rsplit_once(':').ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let (publisher, is_new) = self.publisher_names.intern(publisher)?;
        if is_new {
            self.publishers.push(Publisher::default());
        }
        if let Some(known) = self.message_numbers.get(&(publisher, number)) {
            return Ok(*known);
        }
        let index =
            u32::try_from(self.messages.len()).map_err(|_| "more than 4 billion messages".to_owned())?;
        self.message_numbers.insert((publisher, number), index);
        self.messages.push(Message {
            publisher,
            number,
            topic: 0,
            qos: 0,
            origin: Origin::Unknown,
            retain: false,
            empty: false,
            is_abandoned: false,
            sent: (0, 0),
            times_sent: 0,
            acked: None,
            delivered: None,
        });
        Ok(index)
    }

    /// Number of a topic.
    pub(super) fn find_topic(&mut self, topic: &str) -> Result<u32, String> {
        let (number, is_new) = self.topic_names.intern(topic)?;
        if is_new {
            self.topics.push(TopicName::parse(topic).map_err(|error| format!("topic {topic:?}: {error}"))?);
        }
        Ok(number)
    }

    /// Adds a PUBLISH of a publisher; true for the first of its message.
    pub(super) fn publish(
        &mut self,
        file: usize,
        conn: u32,
        message: u32,
        (topic, qos): (u32, Qos),
        (retain, empty): (bool, bool),
    ) -> Result<bool, String> {
        let now = self.now;
        let entry = &mut self.messages[message as usize];
        let publisher = &mut self.publishers[entry.publisher as usize];
        if publisher.conn != conn {
            publisher.stale.extend(publisher.open.drain());
            publisher.conn = conn;
        }
        entry.times_sent += 1;
        if entry.origin != Origin::Unknown {
            if (entry.topic, entry.qos) != (topic, qos.level()) {
                return Err("a second message of its id: topic or QoS differ".into());
            }
            if entry.acked.is_none() {
                publisher.stale.remove(&message);
                publisher.open.insert(message);
            }
            return Ok(false);
        }
        if publisher.highest.is_some_and(|highest| highest > entry.number) {
            return Err("a number below an earlier one of its publisher: numbers must ascend".into());
        }
        publisher.highest = Some(entry.number);
        publisher.file = Some(file);
        (entry.topic, entry.qos, entry.retain, entry.empty) = (topic, qos.level(), retain, empty);
        (entry.origin, entry.sent) = (Origin::Publish, (now, conn));
        publisher.open.insert(message);
        for abandoned in publisher.stale.drain() {
            self.messages[abandoned as usize].is_abandoned = true;
        }
        Ok(true)
    }

    /// Adds the Will of a connection.
    pub(super) fn will(&mut self, conn: u32, message: u32, topic: u32, qos: Qos) -> Result<(), String> {
        let now = self.now;
        let entry = self.message_mut(message);
        if entry.origin != Origin::Unknown {
            return Err("a Will with the id of another message".into());
        }
        (entry.origin, entry.topic, entry.qos, entry.sent) = (Origin::Will, topic, qos.level(), (now, conn));
        Ok(())
    }

    /// Takes a message from the open ones of its publisher: the server has answered it.
    ///
    /// # Errors
    /// No PUBLISH of it was sent.
    pub(super) fn settle(&mut self, message: u32) -> Result<(), String> {
        let entry = &self.messages[message as usize];
        if entry.origin != Origin::Publish {
            return Err("an acknowledgement of a message that was not published".into());
        }
        let publisher = &mut self.publishers[entry.publisher as usize];
        publisher.open.remove(&message);
        publisher.stale.remove(&message);
        Ok(())
    }

    /// Whether the publication of a message may be missing in the history because a file is incomplete.
    pub(super) fn may_be_unrecorded(&self, message: u32, is_incomplete: impl Fn(usize) -> bool) -> bool {
        let Message { publisher, number, .. } = *self.message(message);
        let entry = &self.publishers[publisher as usize];
        match (entry.file, entry.highest) {
            (Some(file), Some(highest)) => is_incomplete(file) && number > highest,
            _ => {
                let client = self.client_names.find(self.publisher_names.text(publisher));
                client.is_some_and(|client| self.client(client).files.iter().any(|file| is_incomplete(*file)))
            }
        }
    }

    // === faults ===

    /// Adds the beginning or the end of a fault.
    pub(super) fn fault(&mut self, name: &str, on: &str, phase: Phase) -> Result<(), String> {
        let now = self.now;
        let mut open = self.faults.iter_mut().rev();
        match (phase, open.find(|fault| fault.name == name && fault.on == on && fault.end.is_none())) {
            (Phase::Begin, _) => {
                self.faults.push(Fault { name: name.into(), on: on.into(), begin: now, end: None });
            }
            (Phase::End, Some(fault)) => fault.end = Some(now),
            (Phase::End, None) => return Err(format!("the fault {name} on {on} ends without a beginning")),
        }
        Ok(())
    }

    pub(super) fn fault_count(&self) -> u64 {
        self.faults.len() as u64
    }

    /// Whether any fault was on between two times.
    pub(super) fn has_fault(&self, from: u64, to: u64) -> bool {
        self.faults.iter().any(|fault| fault.overlaps(from, to))
    }

    /// Whether a fault was on that may keep bytes on their way.
    pub(super) fn has_delay(&self, from: u64, to: u64) -> bool {
        self.faults.iter().any(|fault| delays_bytes(&fault.name) && fault.overlaps(from, to))
    }

    /// Faults that were on between two times: beginning and text.
    pub(super) fn faults_between(&self, from: u64, to: u64) -> Vec<(u64, String)> {
        let during = self.faults.iter().filter(|fault| fault.overlaps(from, to));
        let text = |fault: &Fault| {
            let end =
                fault.end.map_or_else(|| "not ended".into(), |end| format!("ended at {}", self.seconds(end)));
            (fault.begin, format!("fault {} on {}, {end}", fault.name, fault.on))
        };
        during.map(text).collect()
    }

    /// Time since the first event, as text.
    pub(super) fn seconds(&self, t: u64) -> String {
        let nanos = t.saturating_sub(self.start.unwrap_or(t));
        format!("{}.{:06} s", nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000)
    }
}
