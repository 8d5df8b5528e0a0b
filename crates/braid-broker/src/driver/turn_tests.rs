//! Turns of a driver, one at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use braid_auth::acl::Decision;
use braid_auth::identity::Identity;
use braid_proto::connection::Event;
use braid_proto::packet::{
    ClientId, Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, Subscribe, SubscribeEntry,
    Unsubscribe, UserProperties,
};
use braid_proto::stream::Priority;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{MemoryStore, NextIds};
use braid_transport::{ByteStream, mem};
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;

use super::*;
use crate::auth::{Access, Action, Anonymous, Authorize};
use crate::cluster::Storage;
use crate::config::BrokerConfig;
use crate::dispatch::subscribe_to_combinations;
use crate::memory::Memory;
use crate::statistics::Counter;

/// Authorizer that denies the subscriptions of one filter, or of all, and the priority of another.
#[derive(Default)]
struct Rules {
    denied: Mutex<&'static str>,
    lowered: Mutex<&'static str>,
    generation: AtomicU64,
}

impl Rules {
    fn change(&self, denied: &'static str, lowered: &'static str) {
        *self.denied.lock().unwrap() = denied;
        *self.lowered.lock().unwrap() = lowered;
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

impl Authorize for Rules {
    fn decide(&self, _identity: &Identity, _client_id: &ClientId, action: Action<'_>) -> Decision {
        let allowed = match action {
            Action::Subscribe(filter) => !["*", filter.as_str()].contains(&*self.denied.lock().unwrap()),
            Action::Prioritize(filter) => filter.as_str() != *self.lowered.lock().unwrap(),
            Action::Publish(_) | Action::Receive(_) => true,
        };
        Decision { allowed, line: None, list: 0 }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}

fn core(rules: Arc<Rules>) -> Arc<Core> {
    let config = BrokerConfig::default();
    let memory = Arc::new(Memory::new(&config.limits));
    let access = Access::new(Box::new(Anonymous::default()), rules);
    Arc::new(Core::new(config, access, Storage::of(Arc::new(MemoryStore::new())), NextIds::FIRST, memory))
}

struct Fixture {
    driver: Driver,
    client: Box<dyn ByteStream>,
}

impl Fixture {
    fn new(core: &Arc<Core>) -> Self {
        let (client, link) = mem::pair(1 << 20);
        let Link::Single(client) = client else { panic!("links in memory have one stream") };
        let driver = Driver::new(core.clone(), Arc::default(), link, clock::now());
        Self { driver, client: client.io }
    }

    async fn connected(core: &Arc<Core>) -> Self {
        let mut fixture = Self::new(core);
        let question = fixture.connect().await;
        fixture.driver.decide(question, None).await;
        fixture
    }

    async fn connect(&mut self) -> Question {
        self.send([Packet::Connect(Box::new(Connect::new(ProtocolVersion::V5, "client")))]).await;
        let turn = poll_fn(|context| self.driver.poll(context)).await;
        let Turn::Decide(question) = turn else { panic!("a CONNECT") };
        question
    }

    async fn send(&mut self, packets: impl IntoIterator<Item = Packet>) {
        let mut bytes = BytesMut::new();
        packets.into_iter().for_each(|packet| packet.encode(ProtocolVersion::V5, &mut bytes));
        self.client.write_all(&bytes).await.expect("room");
    }

    /// Reads, and answers as many events as one turn may.
    fn turn(&mut self) {
        let (now, mut context) = (clock::now(), Context::from_waker(Waker::noop()));
        self.driver.gate.begin_turn();
        let _ = self.driver.poll_read(now, &mut context);
        assert!(self.driver.drain_events(now).is_none());
    }

    fn poll(&mut self) -> Poll<Turn> {
        self.driver.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn subscriptions(&self) -> usize {
        self.driver.server.session().expect("connected").subscriptions.len()
    }
}

fn filter(number: usize) -> TopicFilter {
    TopicFilter::parse(&format!("t/{number}")).unwrap()
}

fn subscribe(numbers: impl Iterator<Item = usize>) -> Packet {
    let entries = numbers.map(|number| SubscribeEntry::new(filter(number), QoS::AtMostOnce)).collect();
    let user = [("braid-priority", "65535")].into_iter().collect();
    Packet::Subscribe(Box::new(Subscribe { packet_id: PacketId::new(1).unwrap(), id: None, user, entries }))
}

fn publish() -> Publish {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: Some(TopicName::parse("t").unwrap()),
        packet_id: None,
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: None,
        payload: "x".into(),
        spooled: false,
    }
}

fn unsubscribe(number: usize) -> Packet {
    let (packet_id, user) = (PacketId::new(1).unwrap(), UserProperties::new());
    Packet::Unsubscribe(Box::new(Unsubscribe { packet_id, user, filters: vec![Ok(filter(number))] }))
}

/// An authenticator may take seconds: its connection must not shorten the slices of others meanwhile.
#[tokio::test]
async fn a_connection_whose_client_is_authenticated_is_not_busy() {
    let core = core(Arc::default());
    let mut fixture = Fixture::new(&core);
    fixture.driver.gate.set_busy(true, core.statistics.busy());
    assert!(matches!(fixture.connect().await, Question::Connect(_)));
    assert_eq!(core.statistics.busy().count(), 0);
}

#[tokio::test]
async fn requests_of_one_read_are_handled_a_few_in_a_turn() {
    let mut fixture = Fixture::connected(&core(Arc::default())).await;
    fixture.send((0..100).map(|number| subscribe(number..number + 1))).await;
    let counts: Vec<_> = (0..4).map(|_| (fixture.turn(), fixture.subscriptions()).1).collect();
    assert_eq!(counts, [32, 64, 96, 100]);
    // The next packet gets the filters that are left of a turn.
    fixture.send([subscribe(100..110), subscribe(110..150)]).await;
    let counts: Vec<_> = (0..2).map(|_| (fixture.turn(), fixture.subscriptions()).1).collect();
    assert_eq!(counts, [132, 150]);
    fixture.send((0..40).map(unsubscribe)).await;
    let counts: Vec<_> = (0..2).map(|_| (fixture.turn(), fixture.subscriptions()).1).collect();
    assert_eq!(counts, [118, 110]);
    for _ in 0..3_000 {
        fixture.driver.server.put_back_event(Event::Complete(PacketId::new(1).unwrap(), ReasonCode::Success));
    }
    let counts: Vec<_> =
        (0..2).map(|_| (fixture.turn(), fixture.driver.server.pending_events().len()).1).collect();
    assert_eq!(counts, [952, 0]);
}

/// Retained messages are sent for what is left of the subscriptions, with the priorities that are left.
#[tokio::test]
async fn rules_that_change_between_the_turns_of_a_subscribe_hold_for_its_retained_messages() {
    let rules = Arc::new(Rules::default());
    let mut fixture = Fixture::connected(&core(rules.clone())).await;
    fixture.send([subscribe(0..40)]).await;
    fixture.turn();
    assert_eq!(fixture.subscriptions(), 32);
    rules.change("t/0", "t/1");
    fixture.driver.recheck();
    fixture.turn();
    assert_eq!(fixture.subscriptions(), 39);
    let cursors = fixture.driver.retained.take();
    let priority = |number| {
        let cursor = cursors.iter().find(|cursor| cursor.filter == filter(number))?;
        cursor.subscription.priority
    };
    let highest = Some(Priority::HIGHEST);
    assert_eq!(cursors.len(), 39);
    assert_eq!([priority(0), priority(1), priority(2)], [None, Some(Priority::DEFAULT), highest]);
}

/// A search for matches is work of the turn, although it finds none.
#[tokio::test]
async fn messages_whose_search_is_long_are_dispatched_a_few_in_a_turn() {
    let core = core(Arc::default());
    subscribe_to_combinations(&core, 12);
    let mut fixture = Fixture::connected(&core).await;
    let publish = |number: usize| {
        let topic = format!("a/a/a/a/a/a/a/a/a/a/a/a/{number}");
        Packet::Publish(Publish { topic: Some(TopicName::parse(&topic).unwrap()), ..publish() })
    };
    fixture.send((0..200).map(publish)).await;
    let received = || core.statistics.get(Counter::MessagesReceived);
    let counts: Vec<_> = (0..3).map(|_| (fixture.turn(), received()).1).collect();
    assert_eq!(counts, [128, 137, 146], "8,191 nodes for each message");
}

/// Messages behind the SUBSCRIBE are dispatched: of one of QoS 2 the session has noted the identifier.
#[tokio::test]
async fn a_connection_that_the_broker_ends_drops_its_requests_and_no_messages() {
    for signal in [Signal::TakeOver, Signal::Close(ReasonCode::ServerShuttingDown)] {
        let core = core(Arc::default());
        let mut fixture = Fixture::connected(&core).await;
        let publish = Publish { retain: true, ..publish() };
        fixture.send([subscribe(0..2_000), Packet::Publish(publish)]).await;
        assert!(fixture.poll().is_pending());
        let subscribed = fixture.subscriptions();
        assert!((32..=128).contains(&subscribed), "{subscribed}");
        let entry = fixture.driver.session.entry.clone().expect("connected");
        drop(entry.queue.signal(signal));
        // Turns of one poll are limited in time.
        let mut polls = (0..100).map(|_| fixture.poll());
        assert!(polls.any(|turn| matches!(turn, Poll::Ready(Turn::Over))), "{signal:?}");
        assert_eq!(core.retained.len(), 1);
    }
}

#[tokio::test]
async fn many_subscriptions_are_rechecked_a_few_in_a_turn() {
    let rules = Arc::new(Rules::default());
    let mut fixture = Fixture::connected(&core(rules.clone())).await;
    fixture.send([subscribe(0..1_000)]).await;
    while fixture.subscriptions() < 1_000 {
        assert!(fixture.poll().is_pending());
    }
    rules.change("*", "");
    for _ in 0..2 {
        fixture.driver.recheck();
    }
    assert_eq!(fixture.subscriptions(), 488, "256 at a time, and begun anew");
    fixture.driver.continue_recheck();
    assert_eq!(fixture.subscriptions(), 232);
    assert!(fixture.poll().is_pending());
    assert_eq!(fixture.subscriptions(), 0);
}
