//! A client with a session and a history, and its connections to one node after another.

use std::borrow::Cow;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use braid_proto::packet::{
    Connack, Connect, Disconnect, Packet, PacketId, ProtocolVersion, Publish, QoS, Subscribe, SubscribeEntry,
    UserProperties, Will,
};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_torture::history::{Event, Writer};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::World;
use super::message;
use super::session::{Effect, Session};
use super::tally::{Back, GroupId};
use super::wire::{Wire, illegal};

/// Time limit of CONNECT to CONNACK.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Keep Alive, seconds; the server waits half as long again.
const KEEP_ALIVE: u16 = 5;
/// Time between two PINGREQ.
const PING: Duration = Duration::from_secs(1);
/// Time without a packet after which a connection is given up.
const SILENCE: Duration = Duration::from_secs(4);
/// Pause between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(200);
/// Session Expiry Interval of persistent sessions, seconds.
pub(crate) const HOUR: u32 = 3600;

/// Number of the Will among the messages of its client.
pub(crate) const WILL: u64 = 1;

/// Subscription of a client.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) filter: TopicFilter,
    pub(crate) qos: QoS,
    /// Group in the tally, unless messages may be missed.
    pub(crate) group: Option<GroupId>,
}

/// Properties of a client.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) id: String,
    pub(crate) version: ProtocolVersion,
    /// Clean Start, without a session that outlives the connection.
    pub(crate) clean: bool,
    /// Session Expiry Interval, seconds.
    pub(crate) expiry: u32,
    pub(crate) subscription: Option<Subscription>,
    pub(crate) will: Option<Will>,
}

impl Profile {
    /// A client with a persistent session of MQTT 5.
    pub(crate) fn persistent(id: &str) -> Self {
        let version = ProtocolVersion::V5;
        Self { id: id.to_owned(), version, clean: false, expiry: HOUR, subscription: None, will: None }
    }

    /// A client whose session ends with its connection.
    pub(crate) fn visitor(id: &str) -> Self {
        Self { clean: true, expiry: 0, ..Self::persistent(id) }
    }

    fn connect(&self) -> Connect {
        let mut connect = Connect::new(self.version, self.id.as_str());
        connect.clean_start = self.clean;
        connect.keep_alive = KEEP_ALIVE;
        connect.will = self.will.clone();
        connect.properties.session_expiry = self.version.is_v5().then_some(self.expiry);
        connect
    }
}

/// A connection to a node, after CONNACK.
#[derive(Debug)]
pub(crate) struct Link {
    wire: Wire,
    pub(crate) number: u64,
    pub(crate) node: usize,
    last_packet: Instant,
    next_ping: Instant,
}

/// Result of an attempt to connect, which the client does not know yet.
pub(crate) struct Dialed {
    number: u64,
    node: usize,
    /// The link, if CONNACK has come.
    answer: Option<(Wire, Box<Connack>)>,
    /// True if the server had acknowledged the session before CONNECT.
    was_known: bool,
}

/// A client across its connections.
pub(crate) struct Client {
    pub(crate) world: Rc<World>,
    pub(crate) profile: Profile,
    pub(crate) session: Session,
    history: Writer,
    /// True once the server has acknowledged the session.
    is_known: bool,
    is_subscribed: bool,
    /// Messages of QoS 2 that were delivered and not released.
    unreleased: Vec<(PacketId, String)>,
    /// Time of the last acknowledgement, or of the first message after one.
    pub(crate) waiting_since: Instant,
}

/// End of a connection, with the reason of the server's DISCONNECT.
pub(crate) struct Closed(pub(crate) Option<u8>);

impl Client {
    /// A client without a connection.
    ///
    /// # Errors
    /// Its history cannot be created.
    pub(crate) fn new(world: &Rc<World>, profile: Profile) -> Result<Self, String> {
        let history = Writer::create(&world.dir, &profile.id)?;
        Ok(Self {
            world: Rc::clone(world),
            profile,
            session: Session::default(),
            history,
            is_known: false,
            is_subscribed: false,
            unreleased: Vec::new(),
            waiting_since: Instant::now(),
        })
    }

    /// Appends to the history; a failure ends the run.
    pub(crate) fn write(&mut self, event: Event<'_>) {
        if let Err(reason) = self.history.write(event) {
            self.world.tally().fault(reason);
        }
    }

    /// Names of this client and of one of its connections, for the history.
    fn names(&self, conn: u64) -> (Cow<'static, str>, Cow<'static, str>) {
        (self.profile.id.clone().into(), conn.to_string().into())
    }

    /// Group of the tally that gets the messages of this client.
    fn group(&self) -> Option<GroupId> {
        self.profile.subscription.as_ref().and_then(|subscription| subscription.group)
    }

    // -- Connections -------------------------------------------------------------------------------

    /// Connects to any node but `not`, with as many attempts as it takes.
    pub(crate) async fn open(&mut self, not: Option<usize>) -> Link {
        self.world.tally().disconnected(&self.profile.id, false);
        let mut node = self.world.node_except(not);
        loop {
            let dial = self.dial(node);
            let dialed = dial.await;
            if let Some(link) = self.adopt(dialed) {
                return link;
            }
            sleep(AGAIN).await;
            node = self.world.node_except(Some(node));
        }
    }

    /// Tries to connect to a node; [`Client::adopt`] makes the connection the client's. Several may be on their way.
    pub(crate) fn dial(&mut self, node: usize) -> impl Future<Output = Dialed> + use<> {
        let number = self.world.next_connection();
        let world = Rc::clone(&self.world);
        let connect = self.profile.connect();
        let (client, conn) = self.names(number);
        self.write(Event::Connect {
            client: client.clone(),
            conn: conn.clone(),
            node: Some(world.name(node).into()),
            clean: connect.clean_start,
            expiry: connect.properties.session_expiry,
        });
        if let Some(Will { topic, delay, qos, .. }) = &connect.will {
            let id = message::identifier(&self.profile.id, WILL).into();
            let (topic, delay, qos) = (topic.as_str().into(), *delay, (*qos).into());
            self.write(Event::Will { client, conn, id, topic, delay, qos });
        }
        let (address, version, was_known) = (world.address(node), connect.version, self.is_known);
        async move {
            let handshake = async {
                let mut wire = Wire::connect(address, version, HANDSHAKE).await?;
                wire.send(&Packet::Connect(Box::new(connect)));
                match wire.next().await? {
                    Packet::Connack(connack) => Ok((wire, connack)),
                    packet => Err(illegal(&format!("{:?} before CONNACK", packet.packet_type()))),
                }
            };
            let answer = timeout(HANDSHAKE, handshake).await.ok();
            let answer = answer.and_then(|answer| answer.inspect_err(|error| world.note_error(error)).ok());
            Dialed { number, node, answer, was_known }
        }
    }

    /// Takes over a connection: repeats what is not acknowledged, and subscribes if the server does not know that.
    /// `None` if the server does not answer, or refuses.
    pub(crate) fn adopt(&mut self, dialed: Dialed) -> Option<Link> {
        let Dialed { number, node, answer, was_known } = dialed;
        let world = Rc::clone(&self.world);
        let (client, conn) = self.names(number);
        let Some((wire, connack)) = answer else {
            self.write(Event::Closed { client, conn, reason: None });
            return None;
        };
        let now = Instant::now();
        let mut link = Link { wire, number, node, last_packet: now, next_ping: now + PING };
        let Connack { session_present: present, reason, .. } = *connack;
        world.note_reason(reason);
        let reason = reason.value();
        self.write(Event::Connack { client, conn, node: world.name(node).into(), present, reason });
        if reason >= 0x80 {
            self.close(link, Closed(None));
            return None;
        }
        // Two first connections at once: the CONNACK of the later one may come first, and the session is new in the
        // other one.
        let present = present || self.is_known && !was_known;
        if !present {
            (self.is_subscribed, self.unreleased) = (false, Vec::new());
        }
        self.is_known = true;
        self.waiting_since = now;
        let before = self.session.inflight();
        let again = self.session.resume(present);
        world.tally().inflight -= before - self.session.inflight();
        for (message, packet) in again {
            if let Packet::Publish(publish) = &packet {
                self.write_publish(link.number, &message, publish);
            }
            link.wire.send(&packet);
        }
        if !self.is_subscribed {
            self.subscribe(&mut link);
        } else {
            self.is_back(&link);
        }
        Some(link)
    }

    /// Tells the tally that this client is connected, with its subscription.
    fn is_back(&self, link: &Link) {
        let now = std::time::Instant::now();
        let back = match &self.profile.subscription {
            Some(Subscription { filter, group: Some(group), .. }) if filter.is_shared() => {
                Back::Shared(*group)
            }
            Some(Subscription { group: Some(group), .. }) => Back::Queued(*group),
            Some(_) => Back::Connected,
            None => Back::Acknowledged,
        };
        self.world.tally().connected(&self.profile.id, link.node, back, now);
    }

    fn subscribe(&mut self, link: &mut Link) {
        let Some(Subscription { filter, qos, .. }) = self.profile.subscription.clone() else {
            return self.is_back(link);
        };
        let (client, conn) = self.names(link.number);
        self.write(Event::Subscribe { client, conn, filter: filter.as_str().into(), qos: qos.into() });
        let entries = vec![SubscribeEntry::new(filter, qos)];
        let user = UserProperties::default();
        // Subscribers publish nothing, so that the identifier is free.
        let subscribe = Subscribe { packet_id: PacketId::default(), id: None, user, entries };
        link.wire.send(&Packet::Subscribe(Box::new(subscribe)));
    }

    /// Ends a connection without DISCONNECT; its end is in the history, with the reason of the server.
    pub(crate) fn close(&mut self, link: Link, Closed(reason): Closed) {
        let (client, conn) = self.names(link.number);
        self.world.tally().disconnected(&client, false);
        self.write(Event::Closed { client, conn, reason });
        drop(link);
    }

    /// Ends a connection with DISCONNECT, after which the server discards the Will.
    pub(crate) fn disconnect(&mut self, mut link: Link) {
        let (client, conn) = self.names(link.number);
        self.write(Event::Disconnect { client, conn });
        link.wire.send(&Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success))));
        self.close(link, Closed(None));
    }

    /// Ends a connection by itself, with DISCONNECT or without, to return later.
    pub(crate) fn leave(&mut self, link: Link, is_clean: bool) {
        if is_clean {
            self.disconnect(link)
        } else {
            self.close(link, Closed(None))
        }
        self.world.tally().disconnected(&self.profile.id, true);
    }

    // -- Packets -----------------------------------------------------------------------------------

    /// Waits for the next packet and handles it. Cancelling loses nothing.
    ///
    /// # Errors
    /// The connection has ended, or is silent for too long.
    pub(crate) async fn step(&mut self, link: &mut Link) -> Result<(), Closed> {
        let packet = next(link).await.map_err(|error| self.lost(&error))?;
        self.handle(link, packet)
    }

    /// End of a connection by an error, which is a fault if it is an illegal packet.
    pub(crate) fn lost(&self, error: &io::Error) -> Closed {
        self.world.note_error(error);
        Closed(None)
    }

    /// Handles a packet of the server.
    ///
    /// # Errors
    /// DISCONNECT.
    pub(crate) fn handle(&mut self, link: &mut Link, packet: Packet) -> Result<(), Closed> {
        link.last_packet = Instant::now();
        match packet {
            Packet::Disconnect(disconnect) => {
                self.world.note_reason(disconnect.reason);
                return Err(Closed(Some(disconnect.reason.value())));
            }
            Packet::Suback(suback) => {
                let reason = suback.codes.first().map_or(0x80, |code| code.value());
                self.subscribed(link, reason);
                if reason >= 0x80 {
                    return Err(Closed(None));
                }
            }
            packet => {
                let (answer, effects) = self.session.handle(packet);
                // Deliveries come before their acknowledgement, and its record behind it.
                let (done, others): (Vec<_>, Vec<_>) =
                    effects.into_iter().partition(|effect| matches!(effect, Effect::Done { .. }));
                for effect in others {
                    self.apply(link, effect);
                }
                if let Some(answer) = answer {
                    link.wire.send(&answer);
                }
                for effect in done.into_iter().filter(|_| link.wire.is_written()) {
                    self.apply(link, effect);
                }
            }
        }
        Ok(())
    }

    fn subscribed(&mut self, link: &Link, reason: u8) {
        let (client, conn) = self.names(link.number);
        let filter = self.filter().to_owned().into();
        self.write(Event::Subscribed { client, conn, filter, reason });
        if reason < 0x80 {
            self.is_subscribed = true;
            self.is_back(link);
        }
    }

    fn filter(&self) -> &str {
        self.profile.subscription.as_ref().map_or("", |subscription| subscription.filter.as_str())
    }

    fn apply(&mut self, link: &Link, effect: Effect) {
        let ((client, conn), now) = (self.names(link.number), std::time::Instant::now());
        match effect {
            Effect::Received(id) => self.write(Event::Pubrec { client, conn, id: (&*id).into() }),
            Effect::Acknowledged { id, topic, reason, is_taken } => {
                self.waiting_since = Instant::now();
                self.write(Event::Acked { client: client.clone(), conn, id: (&*id).into(), reason });
                let mut tally = self.world.tally();
                tally.inflight = tally.inflight.saturating_sub(1);
                match TopicName::parse(&topic) {
                    Ok(topic) if is_taken => tally.acknowledged(&client, &id, &topic, now),
                    _ => tally.refused(),
                }
            }
            Effect::Deliver(publish) => self.deliver(link, &publish),
            Effect::Done { packet_id } => {
                let position = self.unreleased.iter().position(|(unreleased, _)| *unreleased == packet_id);
                if let Some((_, id)) = position.map(|position| self.unreleased.swap_remove(position)) {
                    self.write(Event::DeliveryDone { client, conn, id: id.into() });
                }
            }
        }
    }

    fn deliver(&mut self, link: &Link, publish: &Publish) {
        let topic = publish.topic.as_ref().map_or("", TopicName::as_str);
        let Some(id) = message::id(topic, &publish.payload) else {
            let (client, bytes) = (&self.profile.id, publish.payload.len());
            let line = format!("{client} got {bytes} bytes on {topic} that no client has sent");
            return self.world.tally().fault(line);
        };
        let (client, conn) = self.names(link.number);
        self.write(Event::Delivered {
            client,
            conn,
            topic: topic.into(),
            qos: publish.qos.into(),
            id: (&*id).into(),
            pid: publish.packet_id.map(PacketId::value),
            dup: publish.dup,
            retain: publish.retain,
        });
        let now = std::time::Instant::now();
        self.world.tally().delivered(&self.profile.id, self.group(), &id, now);
        if let Some(packet_id) = publish.packet_id {
            self.unreleased.push((packet_id, id));
        }
    }

    // -- Publishing --------------------------------------------------------------------------------

    /// Publishes a message of QoS 1 or 2.
    pub(crate) fn publish(
        &mut self,
        link: &mut Link,
        number: u64,
        topic: &TopicName,
        qos: QoS,
        retain: bool,
    ) {
        if self.session.inflight() == 0 {
            self.waiting_since = Instant::now();
        }
        let id: Rc<str> = message::identifier(&self.profile.id, number).into();
        let payload = message::payload(&id, topic.as_str(), number);
        let publish =
            self.session.publish(Rc::clone(&id), topic.clone(), payload, qos, retain).publish.clone();
        self.write_publish(link.number, &id, &publish);
        self.world.tally().inflight += 1;
        link.wire.send(&Packet::Publish(publish));
    }

    fn write_publish(&mut self, conn: u64, id: &str, publish: &Publish) {
        let (client, conn) = self.names(conn);
        self.write(Event::Publish {
            client,
            conn,
            topic: publish.topic.as_ref().map_or("", TopicName::as_str).into(),
            qos: publish.qos.into(),
            id: id.into(),
            pid: publish.packet_id.map(PacketId::value),
            dup: publish.dup,
            retain: publish.retain,
            empty: publish.payload.is_empty(),
        });
    }
}

/// Next packet of a connection, with PINGREQ at its times. Cancelling loses nothing.
///
/// # Errors
/// The connection has ended, or is silent for too long.
pub(crate) async fn next(link: &mut Link) -> io::Result<Packet> {
    loop {
        tokio::select! {
            packet = link.wire.next() => return packet,
            () = sleep_until(link.next_ping) => {
                if link.last_packet.elapsed() > SILENCE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                link.next_ping = Instant::now() + PING;
                link.wire.send(&Packet::Pingreq);
            }
        }
    }
}
