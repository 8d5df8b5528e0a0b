//! Check of retained messages, by the subscribers that come after the last publication.

use std::collections::{BTreeMap, HashMap};

use braid_proto::topic::TopicFilter;

use super::delivery::{Delivery, is_ordered, published};
use super::report::{Kind, Report};
use super::tables::{Message, Origin, Tables};

/// Time from its SUBACK in which a subscriber gets what is retained.
const LOOK: u64 = 1_000_000_000;

/// Subscription after the last publication.
#[derive(Debug)]
struct Look {
    conn: u32,
    filter: TopicFilter,
    granted: Option<(u64, u8)>,
    /// Last message of each topic, with its time, of those that were published with RETAIN.
    seen: BTreeMap<u32, (u64, u32)>,
}

/// Retained messages of a topic, as far as they were acknowledged.
#[derive(Debug, Default)]
struct Topic {
    /// Last acknowledged message of each publisher and QoS.
    newest: HashMap<(u32, u8), u32>,
    /// An acknowledged message, if no message removes what is retained.
    kept: Option<u32>,
    has_removal: bool,
}

/// State of the check.
#[derive(Default)]
pub(super) struct Retained {
    looks: Vec<Look>,
}

impl Retained {
    /// Forgets all looks: publishing goes on.
    pub(super) fn publishing(&mut self) {
        self.looks.clear();
    }

    /// Takes a SUBSCRIBE.
    pub(super) fn subscribe(&mut self, conn: u32, filter: &TopicFilter) {
        if !filter.is_shared() {
            self.looks.push(Look { conn, filter: filter.clone(), granted: None, seen: BTreeMap::new() });
        }
    }

    /// Takes a SUBACK.
    pub(super) fn granted(&mut self, now: u64, conn: u32, filter: &TopicFilter, qos: u8) {
        let mut looks = self.looks.iter_mut();
        if let Some(look) =
            looks.find(|look| look.conn == conn && look.filter == *filter && look.granted.is_none())
        {
            look.granted = Some((now, qos));
        }
    }

    /// Takes a delivery.
    pub(super) fn deliver(&mut self, tables: &Tables, delivery: &Delivery) {
        let Delivery { conn, message, topic, retain, .. } = *delivery;
        let entry = tables.message(message);
        if !entry.retain && entry.origin != Origin::Will {
            return;
        }
        for look in self.looks.iter_mut().filter(|look| look.conn == conn) {
            // A queue may bring older messages than the retained one, after it.
            let is_older = |(_, seen): &(u64, u32)| tables.message(*seen).sent.0 >= entry.sent.0;
            let is_outdated = !retain && look.seen.get(&topic).is_some_and(is_older);
            if !is_outdated && look.filter.matches(tables.topic(topic)) {
                look.seen.insert(topic, (tables.now, message));
            }
        }
    }

    /// Compares what was seen with what was acknowledged, and the looks with each other.
    pub(super) fn finish(&self, tables: &Tables, report: &mut Report) {
        if self.looks.is_empty() {
            return;
        }
        let topics = acknowledged(tables);
        let mut first_seen: HashMap<u32, (u64, u32, u32)> = HashMap::new();
        for look in self.looks.iter().filter(|look| look.granted.is_some()) {
            for (topic, (t, message)) in &look.seen {
                report.counts.retained_looks += 1;
                let entry = tables.message(*message);
                let newest = topics.get(topic).and_then(|topic| topic.superseding(tables, entry));
                if let Some(newest) = newest {
                    report.add(Kind::RetainedStale, || stale(tables, look, (*t, *message), newest));
                    continue;
                }
                let (other_t, other_conn, other) =
                    *first_seen.entry(*topic).or_insert((*t, look.conn, *message));
                if other != *message && is_certain(entry) && is_certain(tables.message(other)) {
                    report.add(Kind::RetainedDiffers, || {
                        differs(tables, (other_t, other_conn, other), (*t, look.conn, *message))
                    });
                }
            }
            for (topic, state) in &topics {
                let Some(kept) = state.kept.filter(|_| !state.has_removal) else { continue };
                if look.must_see(tables)
                    && look.filter.matches(tables.topic(*topic))
                    && !look.seen.contains_key(topic)
                {
                    report.add(Kind::RetainedMissing, || missing(tables, look, kept));
                }
            }
        }
    }
}

impl Topic {
    /// Acknowledged message of the publisher of `seen` that replaces it.
    fn superseding(&self, tables: &Tables, seen: &Message) -> Option<u32> {
        let mut newest =
            [1, 2].into_iter().filter_map(|qos| self.newest.get(&(seen.publisher, qos)).copied());
        newest.find(|newest| is_superseded(seen, tables.message(*newest)))
    }
}

impl Look {
    /// Whether the subscriber was there long enough, with a QoS above 0.
    fn must_see(&self, tables: &Tables) -> bool {
        let Some((granted, qos)) = self.granted else { return false };
        let end = match tables.connection(self.conn) {
            one if one.closed.is_none() => tables.now,
            one => one.disconnect.unwrap_or(0),
        };
        qos > 0 && end >= granted + LOOK
    }
}

/// Acknowledged retained messages by topic.
fn acknowledged(tables: &Tables) -> BTreeMap<u32, Topic> {
    let mut topics: BTreeMap<u32, Topic> = BTreeMap::new();
    for (message, entry) in (0_u32..).zip(&tables.messages) {
        if !entry.retain || entry.origin != Origin::Publish {
            continue;
        }
        let topic = topics.entry(entry.topic).or_default();
        topic.has_removal |= entry.empty;
        if entry.acked.is_some() && entry.qos > 0 {
            let newest = topic.newest.entry((entry.publisher, entry.qos)).or_insert(message);
            if tables.message(*newest).number < entry.number {
                *newest = message;
            }
            topic.kept = Some(message);
        }
    }
    topics
}

/// Whether a message cannot be the retained one after an acknowledged one of its publisher. Messages of different QoS
/// have an order only if one was acknowledged before the other was sent.
fn is_superseded(seen: &Message, acknowledged: &Message) -> bool {
    let is_settled = seen.acked.is_some_and(|(t, _)| t < acknowledged.sent.0);
    let is_in_order = is_settled || (seen.qos == acknowledged.qos && is_ordered(seen, acknowledged));
    seen.origin == Origin::Publish && acknowledged.number > seen.number && is_in_order
}

/// Whether a message took effect before the first look: otherwise it may come between two of them.
fn is_certain(message: &Message) -> bool {
    message.origin == Origin::Publish && message.acked.is_some()
}

fn looked(tables: &Tables, conn: u32) -> String {
    format!("{}, {}", tables.client_name(tables.connection(conn).client), tables.at(conn))
}

fn stale(tables: &Tables, look: &Look, (t, seen): (u64, u32), newest: u32) -> (String, Vec<(u64, String)>) {
    let (seen_id, newest_id) = (tables.id(seen), tables.id(newest));
    let topic = tables.topic_text(tables.message(seen));
    let text = format!("{topic} holds {seen_id}, which the acknowledged {newest_id} replaces");
    let mut events = published(tables, seen);
    events.extend(published(tables, newest));
    events.extend(
        look.granted.map(|(t, _)| (t, format!("{} granted to {}", look.filter, looked(tables, look.conn)))),
    );
    events.push((t, format!("{seen_id} seen by {}", looked(tables, look.conn))));
    (text, events)
}

fn missing(tables: &Tables, look: &Look, kept: u32) -> (String, Vec<(u64, String)>) {
    let topic = tables.topic_text(tables.message(kept));
    let text = format!(
        "{topic} holds nothing for {}, {} was acknowledged",
        looked(tables, look.conn),
        tables.id(kept)
    );
    let mut events = published(tables, kept);
    events.extend(
        look.granted.map(|(t, _)| (t, format!("{} granted to {}", look.filter, looked(tables, look.conn)))),
    );
    (text, events)
}

fn differs(tables: &Tables, first: (u64, u32, u32), second: (u64, u32, u32)) -> (String, Vec<(u64, String)>) {
    let topic = tables.topic_text(tables.message(first.2));
    let text = format!(
        "{topic} holds {} for one subscriber, {} for another",
        tables.id(first.2),
        tables.id(second.2)
    );
    let mut events = Vec::new();
    for (t, conn, message) in [first, second] {
        events.extend(published(tables, message));
        events.push((t, format!("{} seen by {}", tables.id(message), looked(tables, conn))));
    }
    (text, events)
}
