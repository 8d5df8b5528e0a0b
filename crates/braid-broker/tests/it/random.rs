//! Random operations of several clients, compared with a naive model of what each must receive.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use braid_proto::packet::{
    Ack, AckKind, Connect, Disconnect, Packet, PacketId, Publish, QoS, SubscribeEntry,
};
use braid_proto::reason::ReasonCode;
use braid_store::MemoryStore;

use crate::support::{
    Client, Receiver, Seed, TestBroker, connect_v3, filter, id, lasting, pass, publish_packet, topic,
    unsubscribe_packet,
};

const SEEDS: u64 = 60;
const OPERATIONS: usize = 150;
const CLIENTS: usize = 4;
const TOPICS: [&str; 3] = ["t/0", "t/1", "other"];
const FILTERS: [&str; 5] = ["t/0", "t/1", "t/+", "#", "other"];
const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// Message of the model: its publisher, and its number among that client's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Name {
    publisher: usize,
    number: u32,
}

/// Copies of one message that one session must receive.
struct Expected {
    topic: usize,
    published: QoS,
    /// The QoS of each copy.
    copies: Vec<QoS>,
}

/// Message that a client has sent and the broker has not acknowledged.
struct Outgoing {
    publish: Publish,
    /// PUBREC came: only the PUBREL is sent again.
    is_released: bool,
}

/// Client with its session as the standard defines it, and the model of the broker's side.
struct Actor {
    name: usize,
    is_v5: bool,
    client: Option<Client>,
    has_session: bool,
    /// Unconnected since the broker started, which does not know the version then and makes one copy of each message.
    is_recovered: bool,
    receiver: Receiver,
    outgoing: VecDeque<Outgoing>,
    next_number: u32,
    next_id: PacketId,
    subscriptions: BTreeMap<&'static str, QoS>,
    expected: BTreeMap<Name, Expected>,
}

impl Actor {
    fn new(name: usize) -> Self {
        Self {
            name,
            is_v5: !name.is_multiple_of(2),
            client: None,
            has_session: false,
            is_recovered: false,
            receiver: Receiver::default(),
            outgoing: VecDeque::new(),
            next_number: 0,
            next_id: PacketId::FIRST,
            subscriptions: BTreeMap::new(),
            expected: BTreeMap::new(),
        }
    }

    /// Connects, taking over any present connection, and sends unacknowledged packets again.
    async fn connect(&mut self, broker: &TestBroker, rng: &mut fastrand::Rng) {
        let client_id = format!("actor-{}", self.name);
        let mut connect = if self.is_v5 { lasting(&client_id) } else { connect_v3(&client_id) };
        connect.clean_start = false;
        if self.is_v5 && rng.bool() {
            connect.properties.receive_maximum = Some(rng.u16(1..5));
            connect.properties.topic_alias_maximum = None;
        }
        let client = broker.connect(connect).await;
        assert_eq!(client.connack().session_present, self.has_session); // [MQTT-3.2.2-2], [MQTT-3.2.2-3]
        self.has_session = true;
        self.is_recovered = false;
        let mut again = Vec::new();
        for outgoing in &mut self.outgoing {
            again.push(if outgoing.is_released {
                let packet_id = outgoing.publish.packet_id.expect("QoS 2");
                Packet::Ack(Ack::new(AckKind::Pubrel, packet_id, ReasonCode::Success))
            } else {
                outgoing.publish.dup = true;
                Packet::Publish(outgoing.publish.clone())
            });
        }
        self.client.insert(client).send_all(again).await;
    }

    /// Reads at most `limit` packets that have arrived, and acknowledges those for which `answers` returns true.
    async fn pump(&mut self, limit: usize, mut answers: impl FnMut() -> bool) {
        let Some(client) = &mut self.client else { return };
        for _ in 0..limit {
            let Some(packet) = client.next_at_once().await else { return };
            let answer = match &packet {
                Packet::Ack(ack) if ack.kind != AckKind::Pubrel => handle_ack(&mut self.outgoing, ack),
                packet => self.receiver.handle(packet).filter(|_| answers()),
            };
            if let Some(answer) = answer {
                client.send(answer).await;
            }
        }
    }

    /// Reads until every exchange in both directions is complete.
    async fn drain(&mut self) {
        self.pump(usize::MAX, || true).await;
        assert!(self.outgoing.is_empty(), "acknowledgements of the broker are missing");
    }

    /// Checks the received messages. A session that ended before it was drained may lack some.
    fn check(&self, is_complete: bool) {
        let mut counts: HashMap<(Name, QoS), usize> = HashMap::new();
        let mut last: HashMap<(usize, usize, QoS), u32> = HashMap::new();
        for publish in &self.receiver.messages {
            let text = String::from_utf8_lossy(&publish.payload);
            let (publisher, number) = text.split_once(':').expect("a message of the model");
            let name = Name {
                publisher: publisher.parse().expect("a name"),
                number: number.parse().expect("a number"),
            };
            let expected = self.expected.get(&name);
            let expected = expected
                .unwrap_or_else(|| panic!("{} received {name:?}, which was not sent to it", self.name));
            assert_eq!(publish.topic, Some(topic(TOPICS[expected.topic])));
            assert!(expected.copies.contains(&publish.qos), "{name:?} with {:?}", publish.qos);
            let count = counts.entry((name, publish.qos)).or_default();
            *count += 1;
            if *count == 1 {
                // [MQTT-4.6.0-6]
                let last = last
                    .entry((publisher.parse().expect("a name"), expected.topic, publish.qos))
                    .or_default();
                assert!(*last <= name.number, "{} got {name:?} behind {last}", self.name);
                *last = name.number;
            }
        }
        for (name, expected) in &self.expected {
            for qos in QOS {
                let copies = expected.copies.iter().filter(|copy| **copy == qos).count();
                let count = counts.get(&(*name, qos)).copied().unwrap_or(0);
                let is_right = match qos {
                    // A QoS 1 message that its publisher repeated may arrive again.
                    QoS::AtMostOnce => count <= copies || expected.published == QoS::AtLeastOnce,
                    QoS::AtLeastOnce => count >= copies || !is_complete,
                    QoS::ExactlyOnce => count == copies || count < copies && !is_complete,
                };
                assert!(is_right, "{} got {count} of {copies} copies of {name:?} with {qos:?}", self.name);
            }
        }
    }
}

/// Acknowledgements come in the order of what they acknowledge. [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4]
fn handle_ack(outgoing: &mut VecDeque<Outgoing>, ack: &Ack) -> Option<Packet> {
    let (qos, is_released) = match ack.kind {
        AckKind::Puback => (QoS::AtLeastOnce, false),
        AckKind::Pubrec => (QoS::ExactlyOnce, false),
        _ => (QoS::ExactlyOnce, true),
    };
    let first = outgoing.iter().position(|one| one.publish.qos == qos && one.is_released == is_released);
    let first = first.unwrap_or_else(|| panic!("{ack:?} without cause"));
    assert_eq!(outgoing[first].publish.packet_id, Some(ack.packet_id), "{ack:?} is not in order");
    if ack.kind == AckKind::Pubrec {
        outgoing[first].is_released = true;
        return Some(Packet::Ack(Ack::new(AckKind::Pubrel, ack.packet_id, ReasonCode::Success)));
    }
    outgoing.remove(first);
    None
}

struct World {
    broker: TestBroker,
    store: Arc<MemoryStore>,
    actors: Vec<Actor>,
    rng: fastrand::Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        let store = Arc::new(MemoryStore::new());
        let broker = TestBroker::start_over(store.clone());
        let actors = (0..CLIENTS).map(Actor::new).collect();
        Self { broker, store, actors, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Crashes the broker and starts another over the present content of the store: changes of the old one are fenced
    /// from then on.
    fn crash(&mut self) {
        self.store = Arc::new(self.store.reopen());
        self.broker = TestBroker::start_over(self.store.clone());
        for actor in &mut self.actors {
            actor.client = None;
            actor.is_recovered = true;
        }
    }

    /// Drains and checks all clients.
    async fn finish(mut self) -> usize {
        let mut received = 0;
        for actor in &mut self.actors {
            actor.connect(&self.broker, &mut self.rng).await;
            actor.drain().await;
            actor.check(true);
            received += actor.receiver.messages.len();
        }
        received
    }

    /// Publishes some messages until they are acknowledged, sometimes with a lost link or a takeover in between.
    async fn publish(&mut self, who: usize) {
        let mut packets = Vec::new();
        for _ in 0..self.rng.usize(1..12) {
            let (topic, qos) = (self.rng.usize(0..TOPICS.len()), QOS[self.rng.usize(0..3)]);
            packets.push(self.message(who, topic, qos));
        }
        let actor = &mut self.actors[who];
        actor.client.as_mut().expect("connected").send_all(packets).await;
        match self.rng.u8(0..4) {
            // No answer of the broker is read, and the broker may have read nothing.
            0 => {
                drop(actor.client.take());
                actor.connect(&self.broker, &mut self.rng).await;
            }
            1 => actor.connect(&self.broker, &mut self.rng).await,
            2 => {
                let limit = self.rng.usize(0..10);
                actor.pump(limit, || true).await;
                actor.connect(&self.broker, &mut self.rng).await;
            }
            _ => {}
        }
        let mut rng = self.rng.fork();
        actor.pump(usize::MAX, || rng.u8(0..4) > 0).await;
        if !actor.outgoing.is_empty() {
            // Unanswered deliveries may have used up a quota, which must not delay an acknowledgement.
            panic!("{} publications without acknowledgement", actor.outgoing.len());
        }
    }

    /// Makes a new message, which the model expects at every subscriber of its topic.
    fn message(&mut self, who: usize, to: usize, qos: QoS) -> Packet {
        let publisher = &mut self.actors[who];
        publisher.next_number += 1;
        let name = Name { publisher: who, number: publisher.next_number };
        let packet_id = publisher.next_id;
        publisher.next_id = packet_id.next();
        let packet = publish_packet(TOPICS[to], format!("{who}:{}", name.number), qos, packet_id.value());
        if let (Packet::Publish(publish), true) = (&packet, qos > QoS::AtMostOnce) {
            publisher.outgoing.push_back(Outgoing { publish: publish.clone(), is_released: false });
        }
        for actor in &mut self.actors {
            let matching =
                actor.subscriptions.iter().filter(|(text, _)| filter(text).matches(&topic(TOPICS[to])));
            let mut copies: Vec<QoS> = matching.map(|(_, granted)| qos.min(*granted)).collect();
            if actor.is_v5 || actor.is_recovered {
                copies = copies.into_iter().max().into_iter().collect(); // [MQTT-3.3.4-2]
            }
            if !copies.is_empty() {
                actor.expected.insert(name, Expected { topic: to, published: qos, copies });
            }
        }
        packet
    }

    async fn subscribe(&mut self, who: usize) {
        let (text, qos) = (FILTERS[self.rng.usize(0..FILTERS.len())], QOS[self.rng.usize(0..3)]);
        let actor = &mut self.actors[who];
        let client = actor.client.as_mut().expect("connected");
        let codes = client.subscribe_all(None, vec![SubscribeEntry::new(filter(text), qos)]).await.codes;
        assert_eq!(codes, [ReasonCode::from(qos)]);
        actor.subscriptions.insert(text, qos);
    }

    async fn unsubscribe(&mut self, who: usize) {
        let text = FILTERS[self.rng.usize(0..FILTERS.len())];
        let actor = &mut self.actors[who];
        let client = actor.client.as_mut().expect("connected");
        client.send(unsubscribe_packet(65_535, &[text])).await;
        assert_eq!(client.find_unsuback().await.packet_id, id(65_535));
        actor.subscriptions.remove(text);
    }

    /// Replaces a session by a new one.
    async fn start_clean(&mut self, who: usize) {
        let old = &mut self.actors[who];
        let client_id = format!("actor-{who}");
        let clean = Connect { clean_start: true, ..lasting(&client_id) };
        let client = self.broker.connect(clean).await;
        assert!(!client.connack().session_present);
        old.check(false);
        let next_number = old.next_number;
        let new = Actor { client: Some(client), has_session: true, next_number, ..Actor::new(who) };
        *old = Actor { is_v5: true, ..new };
        // From here on its version is the former one again, which continues the session.
        old.is_v5 = !who.is_multiple_of(2);
        old.connect(&self.broker, &mut self.rng).await;
    }

    async fn step(&mut self) {
        let who = self.rng.usize(0..CLIENTS);
        let choice = self.rng.u8(0..100);
        let mut rng = self.rng.fork();
        let actor = &mut self.actors[who];
        if actor.client.is_none() {
            return match choice {
                0..70 => actor.connect(&self.broker, &mut self.rng).await,
                70..75 => self.start_clean(who).await,
                _ => pass(rng.u64(0..20)).await,
            };
        }
        match choice {
            0..40 => self.publish(who).await,
            40..55 => self.subscribe(who).await,
            55..60 => self.unsubscribe(who).await,
            60..75 => actor.pump(rng.clone().usize(0..20), || rng.u8(0..3) > 0).await,
            75..80 => drop(actor.client.take()),
            80..85 => {
                let mut client = actor.client.take().expect("connected");
                client.send(Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)))).await;
            }
            85..95 => actor.connect(&self.broker, &mut self.rng).await,
            95..97 => self.start_clean(who).await,
            _ => actor.drain().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_operations_of_clients_match_the_model() {
    let mut received = 0;
    for seed in 0..SEEDS {
        let _named = Seed(seed);
        let mut world = World::new(seed);
        for _ in 0..OPERATIONS {
            world.step().await;
        }
        received += world.finish().await;
    }
    // The model does not match only because nothing happened.
    assert!(received > 10_000, "{received}");
}

#[tokio::test(start_paused = true)]
async fn random_operations_with_crashes_of_the_broker_match_the_model() {
    let mut received = 0;
    for seed in 0..SEEDS {
        let _named = Seed(seed);
        let mut world = World::new(seed);
        for _ in 0..OPERATIONS {
            world.step().await;
            if world.rng.u8(0..20) == 0 {
                world.crash();
            }
        }
        world.crash();
        received += world.finish().await;
    }
    assert!(received > 10_000, "{received}");
}
