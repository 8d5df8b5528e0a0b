//! Checks at each delivery: duplicates of QoS 2, order, two owners, ghosts.

use std::collections::HashMap;

use super::report::{Kind, Report};
use super::tables::{Message, Origin, Tables};

/// Time in which bytes that were in a socket may still arrive after another node has accepted the session.
const SOCKET_GRACE: u64 = 250_000_000;
/// Time after the end of a fault of the network in which retransmissions may still carry old bytes.
const RETRANSMISSION: u64 = 60_000_000_000;

/// PUBLISH of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) conn: u32,
    pub(super) message: u32,
    pub(super) topic: u32,
    pub(super) qos: u8,
    pub(super) pid: Option<u16>,
    pub(super) dup: bool,
    pub(super) retain: bool,
}

/// Deliveries of one message to one client.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// First delivery in the session, and its connection.
    t: u64,
    conn: u32,
    session: u32,
    pid: Option<u16>,
    /// Exchanges that are not due to RETAIN.
    exchanges: u32,
    is_done: bool,
    /// Delivered with RETAIN as well.
    is_retained: bool,
}

/// Filters of a client that match a topic.
#[derive(Clone, Copy, Debug)]
struct Matching {
    /// Number of filters that were looked at.
    of: usize,
    /// Each may bring a copy of a message.
    copies: u32,
    is_shared: bool,
}

/// Scope of an order: session (connection for QoS 0), publisher, topic, QoS of PUBLISH and of delivery.
type OrderKey = (u32, u32, u32, u8, u8);

/// State of the checks.
#[derive(Default)]
pub(super) struct Deliveries {
    progress: HashMap<(u32, u32), Progress>,
    /// Highest message of each sequence that was delivered.
    order: HashMap<OrderKey, u32>,
    matching: HashMap<(u32, u32), Matching>,
    /// Deliveries of messages without a PUBLISH so far.
    unknown: Vec<(u64, Delivery)>,
}

impl Deliveries {
    /// Whether a message reached a client.
    pub(super) fn has(&self, client: u32, message: u32) -> bool {
        self.progress.contains_key(&(client, message))
    }

    /// Takes a delivery.
    pub(super) fn deliver(&mut self, tables: &mut Tables, report: &mut Report, delivery: &Delivery) {
        let now = tables.now;
        let Delivery { conn, message, topic, .. } = *delivery;
        let client = tables.connection(conn).client;
        tables.message_mut(message).delivered.get_or_insert((now, conn));
        let matching = self.matching(tables, client, topic);
        if matching.copies == 0 {
            report.add(Kind::Ghost, || {
                ghost(tables, now, delivery, "the client never subscribed to this topic")
            });
        }
        check_owner(tables, report, delivery);
        let entry = tables.message(message);
        match entry.origin {
            Origin::Unknown => self.unknown.push((now, *delivery)),
            _ if entry.topic != topic => report.add(Kind::Ghost, || {
                let published = format!("it was published to {}", tables.topic(entry.topic));
                ghost(tables, now, delivery, &published)
            }),
            _ => {}
        }
        let first = self.count(tables, report, delivery, matching);
        if first && !delivery.retain && !matching.is_shared && entry.topic == topic {
            self.check_order(tables, report, delivery);
        }
    }

    /// Takes the end of a delivery.
    pub(super) fn done(&mut self, client: u32, message: u32) -> Result<(), String> {
        let progress = self.progress.get_mut(&(client, message));
        let progress = progress.ok_or("the end of a delivery that did not begin")?;
        progress.is_done |= progress.exchanges > 0;
        Ok(())
    }

    /// Reports the deliveries of messages that no event of the history published.
    pub(super) fn finish(&self, tables: &Tables, report: &mut Report, is_incomplete: impl Fn(usize) -> bool) {
        for (t, delivery) in &self.unknown {
            let entry = tables.message(delivery.message);
            let is_published = entry.origin != Origin::Unknown;
            if is_published && entry.topic != delivery.topic {
                let published = format!("it was published to {}", tables.topic(entry.topic));
                report.add(Kind::Ghost, || ghost(tables, *t, delivery, &published));
            } else if !is_published && !tables.may_be_unrecorded(delivery.message, &is_incomplete) {
                report.add(Kind::Ghost, || ghost(tables, *t, delivery, "it was never published"));
            }
        }
    }

    /// Filters of the client that match the topic.
    fn matching(&mut self, tables: &Tables, client: u32, topic: u32) -> Matching {
        let requested = &tables.client(client).requested;
        if let Some(known) = self.matching.get(&(client, topic)).filter(|known| known.of == requested.len()) {
            return *known;
        }
        let mut matching = Matching { of: requested.len(), copies: 0, is_shared: false };
        for filter in requested.iter().filter(|filter| filter.matches(tables.topic(topic))) {
            matching.copies += 1;
            matching.is_shared |= filter.is_shared();
        }
        self.matching.insert((client, topic), matching);
        matching
    }

    /// Counts a delivery, and checks that one of QoS 2 is no second exchange. True for the first of its session that is
    /// not due to RETAIN.
    fn count(
        &mut self,
        tables: &Tables,
        report: &mut Report,
        delivery: &Delivery,
        matching: Matching,
    ) -> bool {
        let Delivery { conn, message, pid, dup, retain, qos, .. } = *delivery;
        let connection = tables.connection(conn);
        let entry = tables.message(message);
        let exchanges = u32::from(!retain);
        let (t, session) = (tables.now, connection.session);
        let fresh = Progress { t, conn, session, pid, exchanges, is_done: false, is_retained: retain };
        let progress = self.progress.entry((connection.client, message));
        let is_new = matches!(progress, std::collections::hash_map::Entry::Vacant(_));
        let progress = progress.or_insert(fresh);
        if is_new || progress.session != session {
            *progress = fresh;
            report.counts.delivered += 1;
            return !retain;
        }
        report.counts.repeated += 1;
        progress.is_retained |= retain;
        if retain || progress.exchanges == 0 {
            progress.exchanges += exchanges;
            progress.pid = pid;
            return !retain;
        }
        let is_exact = qos == 2 && entry.qos == 2 && entry.origin == Origin::Publish && !progress.is_retained;
        if is_exact && (progress.is_done || (progress.pid != pid && !dup)) {
            progress.exchanges += 1;
            if progress.exchanges > matching.copies.max(1) {
                report.counts.repeated -= 1;
                report.add(Kind::Duplicate, || duplicate(tables, delivery, progress));
            }
            (progress.pid, progress.is_done) = (pid, false);
        } else if is_exact && progress.pid != pid {
            report.counts.renumbered += 1;
            progress.pid = pid;
        }
        false
    }

    /// Checks that first deliveries ascend.
    fn check_order(&mut self, tables: &Tables, report: &mut Report, delivery: &Delivery) {
        let Delivery { conn, message, .. } = *delivery;
        let entry = tables.message(message);
        if entry.origin != Origin::Publish {
            return;
        }
        let connection = tables.connection(conn);
        // QoS 0 is not queued: two nodes that had the session one after the other may have got other parts of it.
        let scope = if delivery.qos == 0 { conn } else { connection.session };
        let key = (scope, entry.publisher, entry.topic, entry.qos, delivery.qos);
        let highest = self.order.entry(key).or_insert(message);
        let later = tables.message(*highest);
        if later.number <= entry.number {
            *highest = message;
        } else if is_ordered(entry, later) && was_subscribed(tables, connection.client, entry) {
            let later = *highest;
            let before = self.progress.get(&(connection.client, later)).copied();
            report.add(Kind::Order, || disorder(tables, delivery, later, before));
        }
    }
}

/// Whether a client must get the first copy of a message. Of one that its publisher sent again a copy may come before
/// a subscription and the next one behind later messages.
fn was_subscribed(tables: &Tables, client: u32, entry: &Message) -> bool {
    let topic = tables.topic(entry.topic);
    let mut matching = tables.live_subscriptions(client).filter(|one| one.filter.matches(topic));
    entry.times_sent == 1 || matching.any(|one| one.granted < entry.sent.0)
}

/// Whether MQTT promises that `first` is delivered before `second`, a later message of the same publisher and topic. A
/// message is not ordered before those that its publisher sent on another connection while it was not acknowledged.
pub(super) fn is_ordered(first: &Message, second: &Message) -> bool {
    !first.is_abandoned || first.sent.1 == second.sent.1
}

/// Checks that no other node has the session.
fn check_owner(tables: &Tables, report: &mut Report, delivery: &Delivery) {
    let now = tables.now;
    let Some((moved, by)) = tables.connection(delivery.conn).superseded else { return };
    if delivery.dup || now <= moved + SOCKET_GRACE {
        return;
    }
    let entry = tables.message(delivery.message);
    let is_newer = entry.origin == Origin::Publish && entry.sent.0 > moved;
    if !is_newer && tables.has_delay(moved.saturating_sub(RETRANSMISSION), now) {
        return;
    }
    report.add(Kind::TwoOwners, || {
        let client = tables.client_name(tables.connection(delivery.conn).client);
        let id = tables.id(delivery.message);
        let text = format!(
            "{client} got {id} on {}, after {} had its session",
            tables.at(delivery.conn),
            tables.at(by)
        );
        let mut events = published(tables, delivery.message);
        events.extend(
            tables
                .connection(delivery.conn)
                .accepted
                .map(|(_, t)| (t, format!("CONNACK: {}", tables.at(delivery.conn)))),
        );
        events.push((moved, format!("CONNACK: {}", tables.at(by))));
        events.push((now, delivered(tables, delivery)));
        (text, events)
    });
}

/// Publication and acknowledgement of a message, as evidence.
pub(super) fn published(tables: &Tables, message: u32) -> Vec<(u64, String)> {
    let entry = tables.message(message);
    let (id, topic, qos) = (tables.id(message), tables.topic_text(entry), entry.qos);
    let mut events = Vec::new();
    let (t, conn) = entry.sent;
    match entry.origin {
        Origin::Unknown => return events,
        Origin::Publish => {
            let times = entry.times_sent;
            let text = format!(
                "{id} published to {topic}, QoS {qos}, {}, sent {times} times in all",
                tables.at(conn)
            );
            events.push((t, text));
        }
        Origin::Will => {
            events.push((t, format!("{id} announced as Will on {topic}, QoS {qos}, {}", tables.at(conn))))
        }
    }
    events.extend(entry.acked.map(|(t, conn)| (t, format!("{id} acknowledged, {}", tables.at(conn)))));
    events
}

fn delivered(tables: &Tables, delivery: &Delivery) -> String {
    let Delivery { conn, message, qos, pid, dup, retain, .. } = *delivery;
    let client = tables.client_name(tables.connection(conn).client);
    let pid = pid.map_or_else(|| "no packet identifier".into(), |pid| format!("packet identifier {pid}"));
    let flags = format!("{}{}", if dup { ", DUP" } else { "" }, if retain { ", RETAIN" } else { "" });
    format!("{} delivered to {client}, {}, QoS {qos}, {pid}{flags}", tables.id(message), tables.at(conn))
}

fn first_delivered(tables: &Tables, message: u32, progress: &Progress) -> (u64, String) {
    let state = if progress.is_done { ", completed later" } else { ", not completed" };
    let pid = progress.pid.map_or_else(String::new, |pid| format!(", packet identifier {pid}"));
    (progress.t, format!("{} first delivered, {}{pid}{state}", tables.id(message), tables.at(progress.conn)))
}

fn duplicate(tables: &Tables, delivery: &Delivery, before: &Progress) -> (String, Vec<(u64, String)>) {
    let client = tables.client_name(tables.connection(delivery.conn).client);
    let text = format!("{client} got {} in {} exchanges", tables.id(delivery.message), before.exchanges);
    let mut events = published(tables, delivery.message);
    events.push(first_delivered(tables, delivery.message, before));
    events.push((tables.now, delivered(tables, delivery)));
    (text, events)
}

fn disorder(
    tables: &Tables,
    delivery: &Delivery,
    later: u32,
    before: Option<Progress>,
) -> (String, Vec<(u64, String)>) {
    let client = tables.client_name(tables.connection(delivery.conn).client);
    let text = format!("{client} got {} behind {}", tables.id(delivery.message), tables.id(later));
    let mut events = published(tables, delivery.message);
    events.extend(published(tables, later));
    events.extend(before.map(|before| first_delivered(tables, later, &before)));
    events.push((tables.now, delivered(tables, delivery)));
    (text, events)
}

fn ghost(tables: &Tables, t: u64, delivery: &Delivery, reason: &str) -> (String, Vec<(u64, String)>) {
    let client = tables.client_name(tables.connection(delivery.conn).client);
    let topic = tables.topic(delivery.topic);
    let text = format!("{client} got {} on {topic}: {reason}", tables.id(delivery.message));
    let mut events = published(tables, delivery.message);
    events.push((t, delivered(tables, delivery)));
    (text, events)
}
