//! Naive model of a cluster and its clients, which writes correct random histories.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use braid_proto::topic::{TopicFilter, TopicName};
use fastrand::Rng;

use super::super::event::{Event, Line, Phase, Qos};

/// Event with the name of its file.
pub(super) type Entry = (String, Line<'static>);

/// Message in the log.
#[derive(Clone)]
struct Stored {
    id: String,
    topic: &'static str,
    qos: u8,
}

/// Message that its publisher has not finished.
struct Pending {
    message: Stored,
    /// Its PUBLISH on the present connection was processed.
    is_served: bool,
    /// The server has stored it; a retransmission of QoS 2 is recognized.
    is_stored: bool,
    has_pubrec: bool,
}

struct Publisher {
    link: Link,
    next: u64,
    pending: VecDeque<Pending>,
    /// Retransmits; otherwise forgets what is not acknowledged, and the server may store it late.
    is_persistent: bool,
}

struct Subscriber {
    link: Link,
    clean: bool,
    filters: Vec<(&'static str, u8)>,
    queue: VecDeque<Stored>,
    inflight: Vec<(Stored, u16)>,
    next_pid: u16,
}

/// Connection of a client.
struct Link {
    client: String,
    conn: String,
    is_open: bool,
    node: usize,
    has_will: bool,
}

/// The cluster with its clients, and the history so far.
pub(super) struct Model {
    rng: Rng,
    t: u64,
    conns: u64,
    pub(super) history: Vec<Entry>,
    publishers: Vec<Publisher>,
    subscribers: Vec<Subscriber>,
    wills: Vec<(Link, u64)>,
    retained: BTreeMap<&'static str, Stored>,
    late: VecDeque<Stored>,
}

const TOPICS: [&str; 5] = ["t/0", "t/1", "r/0", "r/1", "unheard"];

impl Model {
    /// History of `steps` random steps.
    pub(super) fn run(seed: u64, steps: usize) -> Vec<Entry> {
        let mut model = Self::new(seed);
        for _ in 0..steps {
            model.step();
        }
        model.finish();
        model.history
    }

    fn new(seed: u64) -> Self {
        let link = |client: &str| Link {
            client: client.into(),
            conn: String::new(),
            is_open: false,
            node: 0,
            has_will: false,
        };
        let publisher = |name, is_persistent| Publisher {
            link: link(name),
            next: 0,
            pending: VecDeque::new(),
            is_persistent,
        };
        let subscriber = |name, clean, filters: &[(&'static str, u8)]| Subscriber {
            link: link(name),
            clean,
            filters: filters.to_vec(),
            queue: VecDeque::new(),
            inflight: Vec::new(),
            next_pid: 0,
        };
        let all = |qos| [("t/#", qos), ("r/+", qos), ("w/#", qos)];
        let shared = [("$share/g/t/#", 2)];
        let mut model = Self {
            rng: Rng::with_seed(seed),
            t: 1_000_000_000,
            conns: 0,
            history: Vec::new(),
            publishers: vec![publisher("p0", true), publisher("p1", true), publisher("p2", false)],
            subscribers: vec![
                subscriber("s0", false, &all(2)),
                subscriber("s1", false, &all(1)),
                subscriber("s2", true, &all(2)),
                subscriber("g0", false, &shared),
                subscriber("g1", false, &shared),
            ],
            wills: vec![(link("w0"), 0)],
            retained: BTreeMap::new(),
            late: VecDeque::new(),
        };
        (0..model.subscribers.len()).for_each(|index| model.resubscribe(index));
        model
    }

    fn tick(&mut self, most_micros: u64) {
        self.t += self.rng.u64(1_000..=most_micros * 1000);
    }

    fn emit(&mut self, file: &str, event: Event<'static>) {
        self.tick(2_000);
        self.history.push((file.into(), Line { t: self.t, event }));
    }

    fn step(&mut self) {
        let publisher = self.rng.usize(..self.publishers.len());
        let subscriber = self.rng.usize(..self.subscribers.len());
        match self.rng.u32(..100) {
            0..30 => self.publish(publisher),
            30..52 => self.serve(publisher),
            52..70 => self.ack(publisher),
            70..90 => self.deliver(subscriber),
            90..95 => self.complete(subscriber),
            95..96 => self.reconnect_publisher(publisher),
            96..98 => self.resubscribe(subscriber),
            98..99 => self.take_over(subscriber),
            _ => self.reconnect_will(),
        }
        let is_due = self.rng.u32(..20) == 0;
        if let Some(late) = self.late.pop_front_if(|_| is_due) {
            self.append(&late);
        }
    }

    // === connections ===

    /// Opens a connection at a random node.
    fn open(&mut self, link: &mut Link, clean: bool, is_first: bool) {
        self.conns += 1;
        (link.conn, link.is_open, link.node) = (format!("c{}", self.conns), true, self.rng.usize(..3));
        let (client, conn) = (link.client.clone(), link.conn.clone());
        let node = format!("n{}", link.node);
        let connect = Event::Connect {
            client: client.clone().into(),
            conn: conn.clone().into(),
            node: Some(node.clone().into()),
            clean,
            expiry: None,
        };
        self.emit(&link.client, connect);
        let present = !clean && !is_first;
        let connack = Event::Connack {
            client: client.into(),
            conn: conn.into(),
            node: node.into(),
            present,
            reason: 0,
        };
        self.emit(&link.client, connack);
    }

    /// Closes a connection without DISCONNECT, now and then by the death of its node.
    fn close(&mut self, link: &mut Link, reason: Option<u8>) {
        if !link.is_open {
            return;
        }
        link.is_open = false;
        let is_fault = reason.is_none() && self.rng.bool();
        let fault = |phase, node| Event::Fault { name: "kill".into(), on: format!("n{node}").into(), phase };
        if is_fault {
            self.emit("faults", fault(Phase::Begin, link.node));
        }
        let closed =
            Event::Closed { client: link.client.clone().into(), conn: link.conn.clone().into(), reason };
        self.emit(&link.client, closed);
        if is_fault {
            self.emit("faults", fault(Phase::End, link.node));
        }
    }

    fn with_publisher(&mut self, index: usize, act: impl FnOnce(&mut Self, &mut Publisher)) {
        let mut publisher = self.publishers.remove(index);
        act(self, &mut publisher);
        self.publishers.insert(index, publisher);
    }

    fn with_subscriber(&mut self, index: usize, act: impl FnOnce(&mut Self, &mut Subscriber)) {
        let mut subscriber = self.subscribers.remove(index);
        act(self, &mut subscriber);
        self.subscribers.insert(index, subscriber);
    }

    // === publishers ===

    fn reconnect_publisher(&mut self, index: usize) {
        self.with_publisher(index, |model, publisher| {
            model.close(&mut publisher.link, None);
            if !publisher.is_persistent {
                let forgotten = publisher.pending.drain(..);
                let forgotten = forgotten.filter(|one| !one.is_stored).map(|one| one.message);
                model.late.extend(forgotten);
            }
            let is_first = publisher.link.conn.is_empty();
            model.open(&mut publisher.link, !publisher.is_persistent, is_first);
            for pending in publisher.pending.iter_mut().filter(|one| !one.has_pubrec) {
                pending.is_served = false;
                model.emit_publish(&publisher.link, &pending.message, true);
            }
        });
    }

    fn emit_publish(&mut self, link: &Link, message: &Stored, dup: bool) {
        let number: u64 = message.id.rsplit_once(':').unwrap().1.parse().unwrap();
        let event = Event::Publish {
            client: link.client.clone().into(),
            conn: link.conn.clone().into(),
            topic: message.topic.into(),
            qos: Qos::try_from(message.qos).unwrap(),
            id: message.id.clone().into(),
            pid: (message.qos > 0).then_some(u16::try_from(number % 60_000).unwrap() + 1),
            dup,
            retain: message.topic.starts_with('r'),
            empty: false,
        };
        self.emit(&link.client, event);
    }

    fn publish(&mut self, index: usize) {
        if !self.publishers[index].link.is_open {
            self.reconnect_publisher(index);
        }
        self.with_publisher(index, |model, publisher| {
            let topic = TOPICS[model.rng.usize(..TOPICS.len())];
            let id = format!("{}:{}", publisher.link.client, publisher.next);
            publisher.next += 1;
            let message = Stored { id, topic, qos: model.rng.u8(..3) };
            model.emit_publish(&publisher.link, &message, false);
            publisher.pending.push_back(Pending {
                message,
                is_served: false,
                is_stored: false,
                has_pubrec: false,
            });
        });
    }

    /// The server processes the next PUBLISH of a publisher.
    fn serve(&mut self, index: usize) {
        self.with_publisher(index, |model, publisher| {
            let Some(at) = publisher.pending.iter().position(|one| !one.is_served && !one.has_pubrec) else {
                return;
            };
            let pending = &mut publisher.pending[at];
            pending.is_served = true;
            if pending.message.qos < 2 || !pending.is_stored {
                pending.is_stored = true;
                model.append(&pending.message);
            }
            if pending.message.qos == 0 {
                publisher.pending.remove(at);
            }
        });
    }

    /// The oldest message that was stored is acknowledged: PUBACK, PUBREC or PUBCOMP.
    fn ack(&mut self, index: usize) {
        self.with_publisher(index, |model, publisher| {
            let Publisher { link, pending, .. } = publisher;
            let Some(at) = pending.iter().position(|one| one.is_served || one.has_pubrec) else { return };
            let (client, conn) = (link.client.clone().into(), link.conn.clone().into());
            let id = pending[at].message.id.clone().into();
            if pending[at].message.qos == 2 && !pending[at].has_pubrec {
                pending[at].has_pubrec = true;
                model.emit(&link.client, Event::Pubrec { client, conn, id });
            } else {
                pending.remove(at);
                model.emit(&link.client, Event::Acked { client, conn, id, reason: 0 });
            }
        });
    }

    // === the log, and subscribers ===

    fn append(&mut self, message: &Stored) {
        if message.topic.starts_with('r') {
            self.retained.insert(message.topic, message.clone());
        }
        let name = TopicName::parse(message.topic).unwrap();
        let member = self.rng.usize(3..5);
        for (index, subscriber) in self.subscribers.iter_mut().enumerate() {
            let filter =
                subscriber.filters.iter().find(|(text, _)| TopicFilter::parse(text).unwrap().matches(&name));
            let Some((filter, granted)) = filter else { continue };
            let qos = message.qos.min(*granted);
            let is_chosen = !filter.starts_with('$') || index == member;
            if is_chosen && (subscriber.link.is_open || (!subscriber.clean && qos > 0)) {
                subscriber.queue.push_back(Stored { qos, ..message.clone() });
            }
        }
    }

    fn emit_delivered(
        &mut self,
        link: (&str, &str),
        message: &Stored,
        pid: u16,
        (dup, retain): (bool, bool),
    ) {
        let event = Event::Delivered {
            client: link.0.to_owned().into(),
            conn: link.1.to_owned().into(),
            topic: message.topic.into(),
            qos: Qos::try_from(message.qos).unwrap(),
            id: message.id.clone().into(),
            pid: (message.qos > 0).then_some(pid),
            dup,
            retain,
        };
        self.emit(link.0, event);
    }

    fn deliver(&mut self, index: usize) {
        self.with_subscriber(index, |model, subscriber| {
            let conn = subscriber.link.conn.clone();
            for _ in 0..model.rng.usize(1..16) {
                model.deliver_on(subscriber, &conn);
            }
        });
    }

    fn deliver_on(&mut self, subscriber: &mut Subscriber, conn: &str) {
        let Some(message) = subscriber.queue.pop_front().filter(|_| subscriber.link.is_open) else { return };
        subscriber.next_pid += 1;
        let pid = subscriber.next_pid;
        self.emit_delivered((&subscriber.link.client, conn), &message, pid, (false, false));
        if message.qos > 0 {
            subscriber.inflight.push((message, pid));
        }
    }

    fn complete(&mut self, index: usize) {
        self.with_subscriber(index, |model, subscriber| {
            for (message, _) in subscriber.inflight.drain(..) {
                let (client, conn) = (subscriber.link.client.clone(), subscriber.link.conn.clone());
                let event =
                    Event::DeliveryDone { client: client.into(), conn: conn.into(), id: message.id.into() };
                model.emit(&subscriber.link.client, event);
            }
        });
    }

    /// Closes and opens the connection of a subscriber: its session goes on, or begins anew.
    fn resubscribe(&mut self, index: usize) {
        self.with_subscriber(index, |model, subscriber| {
            model.close(&mut subscriber.link, None);
            let is_first = subscriber.link.conn.is_empty();
            model.open(&mut subscriber.link, subscriber.clean, is_first);
            model.resume(subscriber, is_first);
        });
    }

    fn resume(&mut self, subscriber: &mut Subscriber, is_first: bool) {
        let Subscriber { link, .. } = subscriber;
        if subscriber.clean {
            subscriber.queue.clear();
            subscriber.inflight.clear();
        }
        for (message, pid) in &subscriber.inflight {
            self.emit_delivered((&link.client, &link.conn), message, *pid, (true, false));
        }
        if subscriber.clean || is_first {
            for (filter, qos) in subscriber.filters.clone() {
                self.subscribe(link, filter, qos, &mut subscriber.next_pid);
            }
        }
    }

    /// Subscribes, and delivers what is retained.
    fn subscribe(&mut self, link: &Link, text: &'static str, qos: u8, next_pid: &mut u16) {
        let (client, conn) = (link.client.clone(), link.conn.clone());
        let subscribe = Event::Subscribe {
            client: client.clone().into(),
            conn: conn.clone().into(),
            filter: text.into(),
            qos: Qos::try_from(qos).unwrap(),
        };
        self.emit(&link.client, subscribe);
        let subscribed =
            Event::Subscribed { client: client.into(), conn: conn.into(), filter: text.into(), reason: qos };
        self.emit(&link.client, subscribed);
        let filter = TopicFilter::parse(text).unwrap();
        let retained: Vec<_> = self.retained.values().cloned().collect();
        for message in retained {
            if !filter.is_shared() && filter.matches(&TopicName::parse(message.topic).unwrap()) {
                *next_pid += 1;
                let message = Stored { qos: message.qos.min(qos), ..message };
                self.emit_delivered((&link.client, &link.conn), &message, *next_pid, (false, true));
            }
        }
    }

    /// Takes the session over at another node while the old connection is open: it brings a few more messages.
    fn take_over(&mut self, index: usize) {
        self.with_subscriber(index, |model, subscriber| {
            if !subscriber.link.is_open {
                return;
            }
            let client = subscriber.link.client.clone();
            let next = Link { client, conn: String::new(), is_open: false, node: 0, has_will: false };
            let mut old = std::mem::replace(&mut subscriber.link, next);
            model.open(&mut subscriber.link, subscriber.clean, false);
            for _ in 0..if subscriber.clean { 0 } else { model.rng.usize(..3) } {
                model.deliver_on(subscriber, &old.conn);
            }
            model.close(&mut old, Some(0x8E));
            model.resume(subscriber, false);
        });
    }

    // === Wills ===

    /// Lets the client of Wills go, with or without DISCONNECT, and come back.
    fn reconnect_will(&mut self) {
        let (mut link, mut number) = self.wills.remove(0);
        if link.has_will {
            let message = Stored { id: format!("w0:{number}"), topic: "w/0", qos: 1 };
            if self.rng.bool() {
                let (client, conn) = (link.client.clone().into(), link.conn.clone().into());
                self.emit(&link.client, Event::Disconnect { client, conn });
                self.close(&mut link, None);
            } else {
                self.close(&mut link, None);
                self.append(&message);
            }
        }
        number += 1;
        self.open(&mut link, true, true);
        link.has_will = true;
        let will = Event::Will {
            client: link.client.clone().into(),
            conn: link.conn.clone().into(),
            id: format!("w0:{number}").into(),
            topic: "w/0".into(),
            delay: 0,
            qos: Qos::try_from(1).unwrap(),
        };
        self.emit(&link.client, will);
        self.wills.push((link, number));
    }

    // === end ===

    fn finish(&mut self) {
        while let Some(late) = self.late.pop_front() {
            self.append(&late);
        }
        for index in 0..self.publishers.len() {
            self.reconnect_publisher(index);
            while !self.publishers[index].pending.is_empty() {
                self.serve(index);
                self.ack(index);
            }
        }
        for index in 0..self.subscribers.len() {
            self.resubscribe(index);
            while !self.subscribers[index].queue.is_empty() {
                self.deliver(index);
            }
            self.complete(index);
        }
        self.tick(20_000_000);
        for name in ["l0", "l1"] {
            let mut link =
                Link { client: name.into(), conn: String::new(), is_open: false, node: 0, has_will: false };
            self.open(&mut link, true, true);
            self.subscribe(&link, "r/#", 2, &mut 0);
            self.t += 2_000_000_000;
            let (client, conn) = (link.client.clone().into(), link.conn.clone().into());
            self.emit(name, Event::Disconnect { client, conn });
            self.close(&mut link, Some(0));
        }
        let mut files: Vec<_> = self.history.iter().map(|(file, _)| file.clone()).collect();
        files.sort();
        files.dedup();
        files.iter().for_each(|file| self.emit(file, Event::End {}));
    }
}

/// Lines of each file.
pub(super) fn texts(history: &[Entry]) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for (file, line) in history {
        let text = files.entry(file.clone()).or_default();
        text.push_str(&serde_json::to_string(line).unwrap());
        text.push('\n');
    }
    files
}

/// Writes the files of a history.
pub(super) fn write<T: AsRef<[u8]>>(dir: &Path, files: &BTreeMap<String, T>) {
    let folder = dir.join("history");
    std::fs::create_dir_all(&folder).unwrap();
    for (file, text) in files {
        std::fs::write(folder.join(format!("{file}.jsonl")), text).unwrap();
    }
}
