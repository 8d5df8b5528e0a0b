//! The broker, its clients, the network between them, and what happens to all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use braid_broker::{BrokerConfig, MqttConfig, PriorityRule, SysConfig};
use braid_proto::packet::{Connect, Disconnect, Packet, ProtocolVersion, Publish, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};
use braid_store::{Image, MemoryStore, SessionImage, Store};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Conditions, Direction};
use fastrand::Rng;
use tokio::time::{Instant, timeout};

use super::actor::{Actor, Life};
use super::ledger::{FILTERS, Name, Origin, Publication, QOS, TOPICS};
use super::wire::{Wire, at_once};
use crate::support::{
    CONTROL, Client, Lanes, QuicBroker, allocated, anyone, filter, lasting, message, quiet, subscribe_packet,
    unsubscribe_packet, will,
};

const CLIENTS: usize = 3;

/// A connection on which nothing arrives for so long is lost.
const IDLE: Duration = Duration::from_secs(20);

/// Longer than the broker takes to notice the end of a stream, or to dispatch what has arrived.
const NOTICED: Duration = Duration::from_secs(3);

/// A connection that has moved and brings nothing for so long is given up.
const STARVED: Duration = Duration::from_secs(5);

/// The identifier of every SUBSCRIBE and UNSUBSCRIBE.
const REQUEST: u16 = 65_535;

/// What the end of a connection leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It lives: no Will.
    Alive,
    /// It ended without DISCONNECT: one Will.
    Lost,
    /// It ended with DISCONNECT: none.
    Disconnected,
    /// The client does not know whether there was one.
    Unknown,
}

/// What a run has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) messages: usize,
    pub(super) received: usize,
    /// Pairs of message and session, of which every copy was known.
    pub(super) known: usize,
    pub(super) pairs: usize,
    pub(super) streams_ended: usize,
    pub(super) take_overs: usize,
    pub(super) losses: usize,
    pub(super) moves: usize,
    /// Connections that did not survive a move.
    pub(super) starved: usize,
}

impl Seen {
    pub(super) fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.received += more.received;
        self.known += more.known;
        self.pairs += more.pairs;
        self.streams_ended += more.streams_ended;
        self.take_overs += more.take_overs;
        self.losses += more.losses;
        self.moves += more.moves;
        self.starved += more.starved;
    }
}

pub(super) struct World {
    broker: QuicBroker,
    store: Arc<MemoryStore>,
    actors: Vec<Actor>,
    /// Sees the Wills.
    heir: Client,
    fates: BTreeMap<(usize, u32), Fate>,
    wills: BTreeSet<(usize, u32)>,
    publications: BTreeMap<Name, Publication>,
    /// QoS 0 that may be on its way, and until when.
    in_flight: Vec<(Instant, Name)>,
    /// Streams that were reset, and when the broker must have noticed.
    resets: Vec<(Instant, usize, u32, StreamKey)>,
    rng: Rng,
    held_at_start: i64,
    seen: Seen,
    start: Instant,
}

fn config() -> BrokerConfig {
    let rule = |text, value| PriorityRule { filter: filter(text), priority: Priority::new(value) };
    BrokerConfig {
        mqtt: MqttConfig { maximum_inflight: 32, ..MqttConfig::default() },
        priority: vec![rule("alarm/#", 200), rule("bulk/#", 1)],
        sys: SysConfig { interval_secs: 0 },
        ..quiet()
    }
}

fn client_options() -> QuicOptions {
    QuicOptions { idle_timeout: Some(IDLE), keep_alive: Some(IDLE / 4), ..QuicOptions::client() }
}

impl World {
    pub(super) async fn new(seed: u64) -> Self {
        let store = Arc::new(MemoryStore::new());
        let broker = QuicBroker::start_over(config(), QuicOptions::server(), anyone(), store.clone());
        let mut heir = broker.memory.v5("heir").await;
        heir.subscribe("$will/+", QoS::AtMostOnce).await;
        Self {
            broker,
            store,
            actors: (0..CLIENTS).map(Actor::new).collect(),
            heir,
            fates: BTreeMap::new(),
            wills: BTreeSet::new(),
            publications: BTreeMap::new(),
            in_flight: Vec::new(),
            resets: Vec::new(),
            rng: Rng::with_seed(seed),
            held_at_start: allocated(),
            seen: Seen::default(),
            start: Instant::now(),
        }
    }

    /// Everybody is there and listens to something.
    pub(super) async fn begin(&mut self) {
        for who in 0..CLIENTS {
            self.connect(who, true).await;
            for _ in 0..2 {
                self.open(who).await;
                self.subscribe(who).await;
            }
        }
    }

    pub(super) async fn step(&mut self) {
        let who = self.rng.usize(0..CLIENTS);
        let choice = self.rng.u8(0..100);
        if std::env::var("BT2").is_ok() {
            let k = match &self.actors[who].wire {
                None => "none",
                Some(Wire::Memory(_)) => "mem",
                _ => "quic",
            };
            eprintln!(
                "{:?} STEP {who} {choice} {k} streams {:?}",
                Instant::now() - self.start,
                self.actors[who].streams
            );
        }
        match &self.actors[who].wire {
            None if choice < 60 => self.connect(who, choice < 45).await,
            None => {}
            Some(Wire::Memory(_)) => self.step_on_one_stream(who, choice).await,
            Some(Wire::Quic(_)) => self.step_on_many(who, choice).await,
        }
        let millis = if self.rng.bool() { 0 } else { self.rng.u64(1..150) };
        self.pass(Duration::from_millis(millis)).await;
        if self.rng.u8(0..3) > 0 {
            for actor in &mut self.actors {
                actor.pump(usize::MAX, &mut self.rng).await;
            }
            self.pass(Duration::ZERO).await;
        }
    }

    async fn step_on_one_stream(&mut self, who: usize, choice: u8) {
        match choice {
            0..40 => self.publish(who).await,
            40..60 => self.look(who).await,
            60..72 => self.subscribe(who).await,
            72..76 => self.unsubscribe(who).await,
            76..90 => self.connect(who, choice < 86).await,
            90..95 => self.disconnect(who).await,
            _ => self.vanish(who).await,
        }
    }

    async fn step_on_many(&mut self, who: usize, choice: u8) {
        match choice {
            0..28 => self.publish(who).await,
            28..44 => self.look(who).await,
            44..54 => self.open(who).await,
            54..66 => self.subscribe(who).await,
            66..69 => self.unsubscribe(who).await,
            69..73 => self.leave_unread(who).await,
            73..76 => self.finish(who).await,
            76..79 => self.reset(who).await,
            79..82 => self.spoil(who).await,
            82..86 => self.move_client(who, choice < 84).await,
            86..88 => self.gap(who).await,
            88..90 => self.lose(who).await,
            90..94 => self.connect(who, choice < 92).await,
            94..96 => self.disconnect(who).await,
            96 => self.vanish(who).await,
            _ => self.change_network(who),
        }
    }

    // -- Time --------------------------------------------------------------------------------------

    /// Lets time pass, and sees what came of it.
    async fn pass(&mut self, duration: Duration) {
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
        let now = Instant::now();
        for who in 0..CLIENTS {
            for name in std::mem::take(&mut self.actors[who].repeated) {
                self.publications.get_mut(&name).expect("published").is_repeated = true;
            }
            for name in std::mem::take(&mut self.actors[who].accepted) {
                self.actors.iter_mut().for_each(|actor| actor.ledger.accepted(name));
            }
        }
        for (_, name) in self.in_flight.extract_if(.., |(until, _)| *until < now) {
            self.actors.iter_mut().for_each(|actor| actor.ledger.accepted(name));
        }
        for (_, who, connection, stream) in self.resets.extract_if(.., |(until, ..)| *until < now) {
            if self.actors[who].connection == connection {
                self.actors[who].ledger.moved(Some(stream));
            }
        }
        self.check_wills().await;
    }

    /// No Will but of a connection that ended without DISCONNECT, and one of each.
    async fn check_wills(&mut self) {
        while let Some(packet) = at_once(self.heir.next()).await {
            let Some(Packet::Publish(publish)) = packet else { panic!("the heir got {packet:?}") };
            let text = String::from_utf8_lossy(&publish.payload).into_owned();
            let (who, connection) = text.split_once(':').expect("a Will of the model");
            let of = (who.parse().expect("a name"), connection.parse().expect("a number"));
            let fate = self.fates[&of];
            assert!(matches!(fate, Fate::Lost | Fate::Unknown), "the Will of {of:?}, which is {fate:?}");
            assert!(self.wills.insert(of), "the Will of {of:?} came twice");
        }
    }

    fn set_fate(&mut self, who: usize, fate: Fate) {
        let connection = self.actors[who].connection;
        self.fates.insert((who, connection), fate);
    }

    // -- Connections -------------------------------------------------------------------------------

    fn connect_packet(&mut self, who: usize) -> Connect {
        let actor = &mut self.actors[who];
        actor.connection += 1;
        actor.receive_maximum = self.rng.bool().then(|| self.rng.u16(1..9));
        let mut connect = lasting(&actor.client_id());
        connect.will = Some(will(&format!("$will/{who}"), &format!("{who}:{}", actor.connection)));
        connect.properties.receive_maximum = actor.receive_maximum;
        self.set_fate(who, Fate::Unknown);
        connect
    }

    /// Connects in place of whatever connection there is.
    async fn connect(&mut self, who: usize, with_quic: bool) {
        let is_new = self.actors[who].connection == 0;
        let old = self.actors[who].wire.take();
        if old.is_some() {
            self.set_fate(who, Fate::Lost);
            self.seen.take_overs += 1;
        }
        self.begin_absence(who, old.is_some());
        let mut attempts = 0;
        let (wire, session_present) = loop {
            attempts += 1;
            assert!(attempts < 10, "{who} cannot connect");
            let connect = self.connect_packet(who);
            if !with_quic {
                let client = self.broker.memory.connect(connect).await;
                let session_present = client.connack().session_present;
                break (Wire::Memory(client), session_present);
            }
            let connector = self.broker.connector(&self.actors[who].client_id(), client_options());
            // As clients do: what is lost on its way is tried again.
            let Ok(link) = connector.connect().await else { continue };
            let lanes = Lanes::new(link, ProtocolVersion::V5);
            lanes.send_connect(connect);
            if let Ok(Some(Packet::Connack(connack))) = timeout(IDLE, lanes.next(CONTROL)).await {
                assert_eq!(connack.reason, ReasonCode::Success);
                break (Wire::Quic(lanes), connack.session_present);
            }
        };
        assert!(session_present != is_new || attempts > 1 && is_new); // [MQTT-3.2.2-2], [MQTT-3.2.2-3]
        drop(old);
        self.set_fate(who, Fate::Alive);
        let actor = &mut self.actors[who];
        actor.ledger.moved(None);
        actor.wire = Some(wire);
        actor.resume(&mut self.rng).await;
    }

    /// From here on nobody listens to the connection, and the subscriptions leave their streams.
    fn begin_absence(&mut self, who: usize, was_connected: bool) {
        let actor = &mut self.actors[who];
        if was_connected || actor.connection == 0 {
            actor.ledger.begin_move();
            // Those of its streams that were ending end with it.
            let mut ending = actor.streams.values().filter(|life| **life != Life::Open).count();
            let connection = actor.connection;
            self.resets.retain(|(_, other, number, _)| {
                let is_its = *other == who && *number == connection;
                ending += usize::from(is_its);
                !is_its
            });
            for _ in 0..ending {
                actor.ledger.moved_with_all();
            }
        }
        actor.forget_connection();
    }

    async fn disconnect(&mut self, who: usize) {
        self.set_fate(who, Fate::Disconnected);
        let wire = self.actors[who].wire.take().expect("connected");
        self.begin_absence(who, true);
        match wire {
            Wire::Quic(lanes) => drop(lanes.disconnect().await),
            Wire::Memory(client) => client.disconnect().await,
        }
    }

    async fn vanish(&mut self, who: usize) {
        self.set_fate(who, Fate::Lost);
        drop(self.actors[who].wire.take());
        self.begin_absence(who, true);
    }

    /// The network is gone until nobody believes in the connection any more.
    async fn lose(&mut self, who: usize) {
        let host = self.broker.host(&self.actors[who].client_id());
        host.change(|link| link.cut = true);
        self.publish(who).await;
        self.set_fate(who, Fate::Lost);
        let wire = self.actors[who].wire.take();
        self.begin_absence(who, true);
        self.prolong(who, IDLE / 2);
        let wait = if self.rng.bool() { IDLE * 3 } else { IDLE / 2 };
        self.pass(wait).await;
        host.change(|link| link.cut = false);
        drop(wire);
        self.seen.losses += 1;
    }

    // -- The network -------------------------------------------------------------------------------

    fn change_network(&mut self, who: usize) {
        let latency = Duration::from_millis(self.rng.u64(1..40));
        let jitter = latency.mul_f64(self.rng.f64());
        let loss = if self.rng.bool() { 0.0 } else { self.rng.f64() * 0.05 };
        self.broker.host(&self.actors[who].client_id()).change(|link| {
            (link.latency, link.jitter, link.loss) = (latency, jitter, loss);
        });
    }

    /// The client comes to have another address, in the middle of what it says. The link is perfect until that is
    /// validated: where the first answers are late or lost the QUIC library gives up, and the connection starves. It
    /// may do so all the same when it is busy; then the client looks for another one, as users would.
    async fn move_client(&mut self, who: usize, by_nat: bool) {
        let host = self.broker.host(&self.actors[who].client_id());
        let mut before = Conditions::default();
        host.change_one(Direction::Up, |link| before = link.clone());
        self.publish(who).await;
        host.change(|link| *link = Conditions::default());
        if by_nat {
            host.rebind_nat();
        } else {
            self.lanes(who).rebind();
        }
        self.publish(who).await;
        self.prolong(who, STARVED);
        self.lanes(who).send(CONTROL, &Packet::Pingreq);
        self.actors[who].is_answered = false;
        for _ in 0..STARVED.as_millis() / 10 {
            self.pass(Duration::from_millis(10)).await;
            self.actors[who].pump(usize::MAX, &mut self.rng).await;
            if self.actors[who].is_answered {
                break;
            }
        }
        host.change(|link| *link = before.clone());
        self.seen.moves += 1;
        if !self.actors[who].is_answered {
            self.seen.starved += 1;
            self.vanish(who).await;
        }
    }

    /// For a while nothing passes, and the connection survives it.
    async fn gap(&mut self, who: usize) {
        let host = self.broker.host(&self.actors[who].client_id());
        host.change(|link| link.cut = true);
        self.publish(who).await;
        let gap = Duration::from_millis(self.rng.u64(10..4000));
        self.prolong(who, gap);
        self.pass(gap).await;
        host.change(|link| link.cut = false);
    }

    /// What a client has under way takes longer: the network is gone for so long, and is found again late.
    fn prolong(&mut self, who: usize, gap: Duration) {
        let until = Instant::now() + gap * 2 + NOTICED;
        for (at, name) in &mut self.in_flight {
            if name.publisher == who {
                *at = until;
            }
        }
        for (at, other, ..) in &mut self.resets {
            if *other == who {
                *at = until;
            }
        }
    }

    // -- Streams -----------------------------------------------------------------------------------

    fn lanes(&mut self, who: usize) -> &mut Lanes {
        self.actors[who].wire.as_mut().and_then(Wire::lanes).expect("QUIC")
    }

    async fn open(&mut self, who: usize) {
        if self.actors[who].streams.len() < 5 {
            let stream = self.lanes(who).open().await;
            self.actors[who].streams.insert(stream, Life::Open);
        }
    }

    async fn leave_unread(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            if self.rng.u8(0..3) > 0 {
                self.lanes(who).leave_unread(stream);
            } else {
                self.lanes(who).read(stream);
            }
        }
    }

    async fn finish(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            let lanes = self.lanes(who);
            lanes.read(stream);
            lanes.finish(stream);
            self.ends(who, stream, Life::Finishing);
        }
    }

    async fn spoil(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            let lanes = self.lanes(who);
            lanes.read(stream);
            lanes.send_bytes(stream, &[0xff, 0xff]);
            self.ends(who, stream, Life::Spoilt);
        }
    }

    fn ends(&mut self, who: usize, stream: StreamKey, life: Life) {
        let actor = &mut self.actors[who];
        actor.streams.insert(stream, life);
        actor.ledger.begin_move();
        self.seen.streams_ended += 1;
    }

    async fn reset(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            let code = self.rng.u64(0..100);
            let lanes = self.lanes(who);
            lanes.reset(stream, code);
            lanes.forget(stream);
            let actor = &mut self.actors[who];
            actor.streams.remove(&stream);
            actor.ledger.begin_move();
            actor.go_on(stream, true, &mut self.rng).await;
            self.resets.push((Instant::now() + NOTICED, who, actor.connection, stream));
            self.seen.streams_ended += 1;
        }
    }

    // -- Requests ----------------------------------------------------------------------------------

    /// A stream for a request, once it is known where the subscriptions are.
    async fn stream_for_request(&mut self, who: usize) -> StreamKey {
        let mut waited = Duration::ZERO;
        while self.actors[who].ledger.is_moving() {
            assert!(waited < Duration::from_secs(60), "a stream of {who} does not end");
            self.actors[who].pump(usize::MAX, &mut self.rng).await;
            self.pass(Duration::from_millis(20)).await;
            waited += Duration::from_millis(20);
        }
        let stream = self.actors[who].any_stream(&mut self.rng);
        if let Some(lanes) = self.actors[who].wire.as_mut().and_then(Wire::lanes) {
            lanes.read(stream);
        }
        stream
    }

    /// The answer comes on the stream of the request. [BQ-14]
    async fn request(&mut self, who: usize, stream: StreamKey, packet: Packet) -> Packet {
        self.actors[who].wire.as_mut().expect("connected").send(stream, packet).await;
        for _ in 0..6000 {
            self.actors[who].pump(usize::MAX, &mut self.rng).await;
            if let Some((on, answer)) = self.actors[who].answers.pop() {
                assert_eq!(on, stream, "{answer:?}");
                return answer;
            }
            self.pass(Duration::from_millis(10)).await;
        }
        panic!("{who} waits for an answer on {stream}");
    }

    async fn subscribe(&mut self, who: usize) {
        let text = FILTERS[self.rng.usize(0..FILTERS.len())];
        let qos = QOS[self.rng.usize(0..3)];
        let stream = self.stream_for_request(who).await;
        let open = self.open_messages();
        if std::env::var("BT2").is_ok() {
            eprintln!("  {who} SUBSCRIBE {text} {qos:?} on {stream}");
        }
        let number = self.actors[who].ledger.begin_subscribe(text, open.into_iter());
        let packet = subscribe_packet(REQUEST, None, vec![SubscribeEntry::new(filter(text), qos)]);
        match self.request(who, stream, packet).await {
            Packet::Suback(suback) => assert_eq!(suback.codes, [ReasonCode::from(qos)]),
            other => panic!("{other:?}"),
        }
        self.actors[who].ledger.subscribed(number, stream, text, qos);
    }

    async fn unsubscribe(&mut self, who: usize) {
        let text = FILTERS[self.rng.usize(0..FILTERS.len())];
        let stream = self.stream_for_request(who).await;
        let is_there = self.actors[who].ledger.has(text);
        if std::env::var("BT2").is_ok() {
            eprintln!("  {who} UNSUBSCRIBE {text} on {stream}");
        }
        self.actors[who].ledger.begin_unsubscribe(text);
        let code = if is_there { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
        match self.request(who, stream, unsubscribe_packet(REQUEST, &[text])).await {
            Packet::Unsuback(unsuback) => assert_eq!(unsuback.codes, [code]), // [BQ-17]
            other => panic!("{other:?}"),
        }
        self.actors[who].ledger.unsubscribed(text);
    }

    // -- Messages ----------------------------------------------------------------------------------

    /// What the broker may still dispatch.
    fn open_messages(&self) -> Vec<(Name, usize)> {
        let own = self.actors.iter().flat_map(Actor::unaccepted);
        let repeated = self.publications.iter().filter(|(_, one)| one.is_repeated).map(|(name, _)| *name);
        let all = own.chain(self.in_flight.iter().map(|(_, name)| *name)).chain(repeated);
        all.map(|name| (name, self.publications[&name].topic)).collect()
    }

    async fn publish(&mut self, who: usize) {
        let mut stream = self.actors[who].any_stream(&mut self.rng);
        for _ in 0..self.rng.usize(1..8) {
            if self.rng.u8(0..4) == 0 {
                stream = self.actors[who].any_stream(&mut self.rng);
            }
            let qos = if self.actors[who].has_room() { QOS[self.rng.usize(0..3)] } else { QoS::AtMostOnce };
            let to = self.rng.usize(0..TOPICS.len());
            let actor = &mut self.actors[who];
            actor.next_number += 1;
            let name = Name { publisher: who, number: actor.next_number };
            let origin = Origin { publisher: who, connection: actor.connection, stream };
            let publication = Publication { topic: to, qos, origin, is_repeated: false };
            self.publications.insert(name, publication);
            for other in &mut self.actors {
                other.ledger.publish(name, &publication);
            }
            if qos == QoS::AtMostOnce {
                self.in_flight.push((Instant::now() + NOTICED, name));
            }
            let len = if TOPICS[to] == "bulk/0" { self.rng.usize(0..40_000) } else { 0 };
            let payload = format!("{who}:{}:{to} {}", name.number, "x".repeat(len));
            let publish = Publish { qos, ..message(TOPICS[to], payload) };
            if std::env::var("BT2").is_ok() {
                eprintln!("  PUBLISH {name:?} {qos:?} to {} on {stream}", TOPICS[to]);
            }
            self.actors[who].publish(name, publish, stream, &mut self.rng).await;
        }
        self.seen.messages = self.publications.len();
    }

    /// Some packets are looked at, and some answered.
    async fn look(&mut self, who: usize) {
        let limit = self.rng.usize(1..30);
        self.actors[who].pump(limit, &mut self.rng).await;
        self.actors[who].answer(false, &mut self.rng).await;
    }

    // -- The end -----------------------------------------------------------------------------------

    /// Everybody gets everything, and leaves; what is left of them in the broker is nothing.
    pub(super) async fn finish_all(mut self) -> Seen {
        for who in 0..CLIENTS {
            self.broker.host(&self.actors[who].client_id()).change(|link| {
                (link.loss, link.jitter, link.latency) = (0.0, Duration::ZERO, Duration::from_millis(1));
            });
            let with_quic = self.rng.bool();
            self.connect(who, with_quic).await;
        }
        self.settle().await;
        for actor in &self.actors {
            if std::env::var("BT2").is_ok() {
                eprintln!("CHECK {}", actor.name);
            }
            actor.ledger.check(&self.publications, true);
            let (known, pairs) = actor.ledger.known();
            self.seen.known += known;
            self.seen.pairs += pairs;
            self.seen.received += actor.ledger.got.len();
        }
        assert_eq!((self.image().sessions.len(), self.unfinished()), (CLIENTS, vec![]));
        self.leave().await;
        self.seen
    }

    /// Until nothing is on its way: neither for the clients nor for the broker.
    async fn settle(&mut self) {
        let mut left = Vec::new();
        for _ in 0..5000 {
            let mut is_quiet = true;
            for actor in &mut self.actors {
                is_quiet &= !actor.pump(usize::MAX, &mut self.rng).await;
                actor.answer(true, &mut self.rng).await;
                is_quiet &= !actor.is_busy();
            }
            self.pass(Duration::from_millis(10)).await;
            if is_quiet {
                left = self.unfinished();
                if left.is_empty() {
                    self.pass(NOTICED * 3).await;
                    return;
                }
            }
        }
        let busy: Vec<_> = self.actors.iter().filter(|actor| actor.is_busy()).collect();
        panic!("it does not come to rest: {busy:?}; in the store: {left:?}");
    }

    /// What the store has of the sessions.
    fn image(&self) -> Image {
        let mut image = Image::default();
        self.store.recover(&mut image).expect("memory can be read");
        image
    }

    /// What is queued, on its way or unreleased, session by session.
    fn unfinished(&self) -> Vec<String> {
        let sessions = self.image().sessions.into_values();
        let left = sessions.filter(|session| !session.queue.is_empty() || !session.received.is_empty());
        left.map(|session| {
            let SessionImage { record, queue, received, .. } = session;
            format!("{:?}: {queue:?}, unreleased {received:?}", record.client_id)
        })
        .collect()
    }

    async fn leave(&mut self) {
        for who in 0..CLIENTS {
            let goodbye = Disconnect { session_expiry: Some(0), ..Disconnect::new(ReasonCode::Success) };
            self.set_fate(who, Fate::Disconnected);
            let mut wire = self.actors[who].wire.take().expect("connected");
            wire.send(CONTROL, Packet::Disconnect(Box::new(goodbye))).await;
            wire.closed().await;
        }
        self.pass(IDLE * 4).await;
        for (of, fate) in &self.fates {
            assert!(*fate != Fate::Lost || self.wills.contains(of), "no Will of {of:?}");
        }
        assert_eq!(self.image(), Image::default());
        let statistics = self.broker.memory.statistics();
        assert_eq!((statistics.connections(), statistics.clients()), (1, 1), "the heir is left");
        self.actors.clear();
        self.publications.clear();
        self.fates.clear();
        let held = allocated() - self.held_at_start;
        assert!(held < 200_000, "{held} bytes are left");
    }
}
