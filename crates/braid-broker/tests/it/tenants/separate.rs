//! Random operations of tenants on one broker, compared with those of the same clients on brokers of their own.

use std::num::NonZeroU16;
use std::sync::Arc;

use braid_broker::{Anonymous, PermitAll};
use braid_proto::packet::{
    Ack, AckKind, Connack, Disconnect, MessageProperties, Packet, Publish, QoS, SubscribeEntry, Will,
};
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;
use braid_store::MemoryStore;
use bytes::BytesMut;
use fastrand::Rng;

use crate::support::{
    Client, Entrance, Seed, TestBroker, connect_v3, connect_v5, filter, id, message, pass, quiet,
    subscribe_packet, topic, unsubscribe_packet, will,
};

const SEEDS: u64 = 60;
const OPERATIONS: usize = 120;
/// Name spaces: the one without a mountpoint, and two tenants.
const SPACES: usize = 3;
const MOUNTPOINTS: [&str; 2] = ["t1/", "deep/t2/"];
/// Each name space has clients of the same identifiers.
const CLIENTS: [&str; 3] = ["a", "b", "t1/a"];
const TOPICS: [&str; 8] = ["a", "a/b", "t1/a", "/", "$x", "$x/a", "$SYS/a", "$mount/t1/$x"];
const FILTERS: [&str; 12] = [
    "#",
    "+",
    "a/#",
    "+/b",
    "t1/#",
    "$x",
    "$x/#",
    "$SYS/#",
    "$share/g/#",
    "$share/g/+",
    "$share/h/$x/#",
    "+/+",
];
const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// One client, on the broker of all and on that of its name space.
struct Pair {
    clients: [Client; 2],
    /// Topic of the alias 1.
    alias: Option<String>,
}

struct World {
    shared: TestBroker,
    entrances: [Entrance; 2],
    own: Vec<TestBroker>,
    stores: Vec<Arc<MemoryStore>>,
    pairs: [[Option<Pair>; CLIENTS.len()]; SPACES],
    rng: Rng,
    received: usize,
}

fn start_shared(store: Arc<MemoryStore>) -> (TestBroker, [Entrance; 2]) {
    TestBroker::start_mounted(quiet(), Anonymous::default(), Arc::new(PermitAll), store, MOUNTPOINTS)
}

/// Topic or filter of a client. Without a mountpoint, `#` and `$mount/` are of the tenants too: those clients stay
/// below `main/` and elsewhere.
fn named(space: usize, text: &str) -> String {
    if space > 0 {
        return text.to_owned();
    }
    let (share, pattern) = text.split_at(text.len() - filter(text).pattern().len());
    let root = if pattern.starts_with('$') { "" } else { "main/" };
    format!("{share}{root}{}", pattern.replace("$mount", "$other"))
}

/// Acknowledgement of a packet.
fn answer(packet: &Packet) -> Option<Packet> {
    let ack = |kind, packet_id| Some(Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success)));
    match packet {
        Packet::Publish(Publish { qos: QoS::AtLeastOnce, packet_id: Some(id), .. }) => {
            ack(AckKind::Puback, *id)
        }
        Packet::Publish(Publish { qos: QoS::ExactlyOnce, packet_id: Some(id), .. }) => {
            ack(AckKind::Pubrec, *id)
        }
        Packet::Ack(Ack { kind: AckKind::Pubrel, packet_id, .. }) => ack(AckKind::Pubcomp, *packet_id),
        Packet::Ack(Ack { kind: AckKind::Pubrec, packet_id, reason, .. }) if !reason.is_error() => {
            ack(AckKind::Pubrel, *packet_id)
        }
        _ => None,
    }
}

impl Pair {
    /// Sends a packet on both links; one may have been closed by its broker, then the other is too.
    async fn send(&mut self, packet: &Packet) {
        for client in &mut self.clients {
            let mut bytes = BytesMut::new();
            packet.encode(client.version, &mut bytes);
            client.try_send_bytes(&bytes).await;
        }
    }

    /// Reads and acknowledges what has arrived on both links; it must be the same.
    async fn compare(&mut self) -> usize {
        let mut received = [Vec::new(), Vec::new()];
        for (client, received) in self.clients.iter_mut().zip(&mut received) {
            while let Some(mut packet) = client.next_at_once().await {
                if let Some(answer) = answer(&packet) {
                    client.send(answer).await;
                }
                if let Packet::Connack(connack) = &mut packet {
                    hide_random_id(connack);
                }
                received.push(packet);
            }
        }
        let [shared, own] = received;
        assert_eq!(shared, own);
        own.iter().filter(|packet| matches!(packet, Packet::Publish(_))).count()
    }
}

fn hide_random_id(connack: &mut Connack) {
    if let Some(assigned) = &mut connack.properties.assigned_client_id {
        assert!(assigned.as_str().starts_with("auto-") && assigned.as_str().len() == 37, "{assigned}");
        *assigned = "auto".into();
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let stores: Vec<_> = (0..=SPACES).map(|_| Arc::new(MemoryStore::new())).collect();
        let (shared, entrances) = start_shared(stores[SPACES].clone());
        let own = stores[..SPACES].iter().map(|store| TestBroker::start_over(store.clone())).collect();
        let (pairs, rng) = (Default::default(), Rng::with_seed(seed));
        Self { shared, entrances, own, stores, pairs, rng, received: 0 }
    }

    /// Crashes all brokers, and starts them over what they stored.
    async fn crash(&mut self) {
        // The order of Wills that are due at a restart is not defined.
        pass(11).await;
        for space in 0..SPACES {
            for who in 0..CLIENTS.len() {
                self.disconnect(space, who).await;
            }
        }
        for store in &mut self.stores {
            *store = Arc::new(store.reopen());
        }
        (self.shared, self.entrances) = start_shared(self.stores[SPACES].clone());
        for (broker, store) in self.own.iter_mut().zip(&self.stores) {
            *broker = TestBroker::start_over(store.clone());
        }
    }

    fn topic(&mut self, space: usize) -> String {
        named(space, TOPICS[self.rng.usize(0..TOPICS.len())])
    }

    fn filter(&mut self, space: usize) -> String {
        named(space, FILTERS[self.rng.usize(0..FILTERS.len())])
    }

    fn properties(&mut self, space: usize) -> Option<Box<MessageProperties>> {
        let response = self.rng.bool().then(|| self.topic(space));
        let response_topic = response.map(|text| topic(&text));
        MessageProperties { response_topic, ..MessageProperties::default() }.boxed()
    }

    async fn connect(&mut self, space: usize, who: usize) {
        let client_id = if self.rng.u8(0..10) == 0 { "" } else { CLIENTS[who] };
        let mut connect = if self.rng.u8(0..4) == 0 { connect_v3(client_id) } else { connect_v5(client_id) };
        connect.clean_start = client_id.is_empty() || self.rng.u8(0..4) == 0;
        if connect.version.is_v5() {
            connect.properties.session_expiry = Some(self.rng.u32(0..3) * 30);
            connect.properties.topic_alias_maximum = Some(self.rng.u16(0..4));
            connect.properties.receive_maximum = Some(self.rng.u16(1..4));
        }
        if self.rng.bool() {
            let to = self.topic(space);
            let properties = self.properties(space).filter(|_| connect.version.is_v5());
            let delay = if connect.version.is_v5() { self.rng.u32(0..2) * 10 } else { 0 };
            let (qos, retain) = (QOS[self.rng.usize(0..3)], self.rng.bool());
            connect.will = Some(Will { qos, retain, delay, properties, ..will(&to, "will") });
        }
        let version = connect.version;
        let shared = match space {
            0 => self.shared.link(version).await,
            _ => self.entrances[space - 1].link(version).await,
        };
        let mut pair = Pair { clients: [shared, self.own[space].link(version).await], alias: None };
        pair.send(&Packet::Connect(Box::new(connect))).await;
        self.received += pair.compare().await;
        // The one before it may have been taken over.
        if let Some(mut former) = self.pairs[space][who].replace(pair) {
            self.received += former.compare().await;
        }
    }

    async fn publish(&mut self, space: usize, who: usize) {
        let (to, properties, qos) = (self.topic(space), self.properties(space), QOS[self.rng.usize(0..3)]);
        let (retain, is_empty) = (self.rng.u8(0..3) == 0, self.rng.u8(0..5) == 0);
        let (uses_alias, number) = (self.rng.bool(), self.rng.u32(..));
        let Some(pair) = &mut self.pairs[space][who] else { return };
        let payload = if is_empty { String::new() } else { number.to_string() };
        let packet_id = (qos > QoS::AtMostOnce).then(|| id(1));
        let mut publish = Publish { qos, retain, packet_id, ..message(&to, payload) };
        if pair.clients[0].version.is_v5() {
            publish.properties = properties;
            if uses_alias {
                publish.topic_alias = Some(NonZeroU16::MIN);
                if pair.alias.as_ref() == Some(&to) {
                    publish.topic = None;
                }
                pair.alias = Some(to);
            }
        }
        pair.send(&Packet::Publish(publish)).await;
    }

    async fn subscribe(&mut self, space: usize, who: usize) {
        let (text, other) = (self.filter(space), self.filter(space));
        let retain_handling = [RetainHandling::SendAlways, RetainHandling::SendIfNew][self.rng.usize(0..2)];
        let (qos, number) = (QOS[self.rng.usize(0..3)], self.rng.u32(0..4));
        let retain_as_published = self.rng.bool();
        let Some(pair) = &mut self.pairs[space][who] else { return };
        let is_v5 = pair.clients[0].version.is_v5();
        let entry = |text: &str| {
            let entry = SubscribeEntry::new(filter(text), qos);
            if is_v5 { SubscribeEntry { retain_handling, retain_as_published, ..entry } } else { entry }
        };
        let number = Some(number).filter(|number| is_v5 && *number > 0);
        pair.send(&subscribe_packet(2, number, vec![entry(&text), entry(&other)])).await;
    }

    async fn disconnect(&mut self, space: usize, who: usize) {
        let Some(mut pair) = self.pairs[space][who].take() else { return };
        pair.send(&Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)))).await;
        self.received += pair.compare().await;
    }

    async fn compare(&mut self) {
        for pair in self.pairs.iter_mut().flatten().flatten() {
            self.received += pair.compare().await;
        }
    }

    async fn step(&mut self) {
        let (space, who) = (self.rng.usize(0..SPACES), self.rng.usize(0..CLIENTS.len()));
        match self.rng.u8(0..100) {
            _ if self.pairs[space][who].is_none() => self.connect(space, who).await,
            0..50 => self.publish(space, who).await,
            50..75 => self.subscribe(space, who).await,
            75..82 => {
                let text = self.filter(space);
                let Some(pair) = &mut self.pairs[space][who] else { return };
                pair.send(&unsubscribe_packet(3, &[&text])).await;
            }
            82..87 => self.pairs[space][who] = None,
            87..90 => self.disconnect(space, who).await,
            90..95 => self.connect(space, who).await,
            95..98 => pass(self.rng.u64(5..20)).await,
            _ => self.crash().await,
        }
        self.compare().await;
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_see_what_they_would_see_on_brokers_of_their_own() {
    let mut received = 0;
    for seed in 0..SEEDS {
        let _named = Seed(seed);
        let mut world = World::new(seed);
        for _ in 0..OPERATIONS {
            world.step().await;
        }
        received += world.received;
    }
    // They do not see the same only because nothing happened.
    assert!(received > 2_000, "{received}");
}
