//! Checks at the end of a history: acknowledged messages and Wills that did not reach their subscribers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::delivery::{Deliveries, published};
use super::report::{Kind, Report};
use super::tables::{Connection, Message, Origin, Subscription, Tables};

/// Time around a DISCONNECT in which a fault may keep it from taking effect: the lease of a node.
const LEASE: u64 = 10_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// Will of a connection. `delay` in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Will {
    pub(super) conn: u32,
    pub(super) message: u32,
    pub(super) delay: u32,
}

/// Subscriptions that must get the messages of one topic, as indexes.
#[derive(Debug, Default)]
struct Recipients {
    single: Vec<usize>,
    /// Members of each shared group of which all sessions lived to the end.
    groups: Vec<Vec<usize>>,
}

/// Subscriptions, and the topics that were matched against them.
pub(super) struct Outcome<'a> {
    tables: &'a Tables,
    deliveries: &'a Deliveries,
    /// Numbers of the clients of which the whole life is in the history.
    complete: BTreeSet<u32>,
    by_topic: HashMap<u32, Recipients>,
}

impl<'a> Outcome<'a> {
    /// Outcome with the numbers of the clients whose files are complete.
    pub(super) fn new(tables: &'a Tables, deliveries: &'a Deliveries, complete: BTreeSet<u32>) -> Self {
        Self { tables, deliveries, complete, by_topic: HashMap::new() }
    }

    /// Checks all messages and Wills.
    pub(super) fn check(&mut self, report: &mut Report, wills: &[Will]) {
        let unchecked = self.tables.subscriptions.iter().filter(|one| !self.is_checked(one));
        report.counts.unchecked_subscriptions = unchecked.count() as u64;
        for (message, entry) in (0_u32..).zip(&self.tables.messages) {
            if entry.origin == Origin::Publish && entry.qos > 0 && entry.acked.is_some() {
                self.check_delivered(report, message, entry, entry.sent.0, Kind::Lost);
            }
        }
        for will in wills {
            self.check_will(report, *will);
        }
    }

    /// Whether a subscription must get messages, to the end of the history.
    fn is_checked(&self, one: &Subscription) -> bool {
        one.is_persistent && !one.is_over && one.qos > 0 && self.complete.contains(&one.client)
    }

    fn recipients(&mut self, topic: u32) -> &Recipients {
        if !self.by_topic.contains_key(&topic) {
            let recipients = self.find_recipients(topic);
            self.by_topic.insert(topic, recipients);
        }
        self.by_topic.entry(topic).or_default()
    }

    fn find_recipients(&self, topic: u32) -> Recipients {
        let name = self.tables.topic(topic);
        let mut recipients = Recipients::default();
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, one) in self.tables.subscriptions.iter().enumerate() {
            if !one.filter.matches(name) {
                continue;
            }
            if one.filter.is_shared() {
                groups.entry(one.filter.as_str()).or_default().push(index);
            } else if self.is_checked(one) {
                recipients.single.push(index);
            }
        }
        // A message may have been given to a member whose session ended.
        let is_whole = |members: &Vec<usize>| {
            members.iter().all(|one| self.is_checked(&self.tables.subscriptions[*one]))
        };
        recipients.groups = groups.into_values().filter(is_whole).collect();
        recipients
    }

    /// Checks that a message reached each subscription that was granted before `since`.
    fn check_delivered(
        &mut self,
        report: &mut Report,
        message: u32,
        entry: &Message,
        since: u64,
        kind: Kind,
    ) {
        let (tables, deliveries) = (self.tables, self.deliveries);
        let recipients = self.recipients(entry.topic);
        let was_there = |index: &&usize| tables.subscriptions[**index].granted < since;
        let has = |index: &usize| deliveries.has(tables.subscriptions[*index].client, message);
        let mut missed = Vec::new();
        for index in recipients.single.iter().filter(was_there) {
            report.counts.required += 1;
            let client = tables.subscriptions[*index].client;
            let is_same = |other: &usize| tables.subscriptions[*other].client == client;
            if !has(index) && !missed.iter().any(is_same) {
                missed.push(*index);
            }
        }
        for members in &recipients.groups {
            let Some(member) = members.iter().find(was_there) else { continue };
            report.counts.required += 1;
            if !members.iter().any(has) {
                missed.push(*member);
            }
        }
        for index in missed {
            report.add(kind, || missing(tables, message, &tables.subscriptions[index]));
        }
    }

    fn check_will(&mut self, report: &mut Report, will: Will) {
        let tables = self.tables;
        let connection = tables.connection(will.conn);
        let entry = tables.message(will.message);
        if connection.accepted.is_none() {
            return;
        }
        if let Some(disconnect) = connection.disconnect {
            let Some((t, conn)) = entry.delivered else { return };
            // DISCONNECT is not acknowledged: a node that dies or does not get it carries out the Will.
            if !tables.has_fault(disconnect.saturating_sub(SECOND), disconnect + LEASE) {
                report.add(Kind::WillAfterDisconnect, || {
                    let id = tables.id(will.message);
                    let text = format!(
                        "{id} was delivered although {} had disconnected",
                        name_of(tables, connection)
                    );
                    let mut events = published(tables, will.message);
                    events.push((disconnect, format!("DISCONNECT on {}", tables.at(will.conn))));
                    events
                        .push((t, format!("{id} delivered to {}", name_of(tables, tables.connection(conn)))));
                    (text, events)
                });
            }
            return;
        }
        let Some((closed, None)) = connection.closed else { return };
        let due = closed.saturating_add(u64::from(will.delay) * SECOND);
        let others =
            tables.client(connection.client).connections.iter().map(|other| tables.connection(*other));
        let mut later = others.filter(|other| other.connect > connection.connect && other.connect <= due);
        let is_resumed = will.delay > 0 && later.any(|_| true);
        if due <= tables.now && !is_resumed && entry.qos > 0 {
            report.counts.wills_due += 1;
            self.check_delivered(report, will.message, entry, closed, Kind::WillMissing);
        }
    }
}

fn name_of<'a>(tables: &'a Tables, connection: &Connection) -> &'a str {
    tables.client_name(connection.client)
}

/// Evidence of a message that was not delivered: the subscription, and the last connections of its client.
fn missing(tables: &Tables, message: u32, one: &Subscription) -> (String, Vec<(u64, String)>) {
    let client = tables.client_name(one.client);
    let id = tables.id(message);
    let text = if one.filter.is_shared() {
        format!("{id} reached no member of {}", one.filter)
    } else {
        format!("{id} did not reach {client}, which had subscribed to {}", one.filter)
    };
    let mut events = published(tables, message);
    let sent = tables.message(message).sent;
    if let (Origin::Will, Some((t, _))) = (tables.message(message).origin, tables.connection(sent.1).closed) {
        events.push((t, format!("closed without DISCONNECT: {}", tables.at(sent.1))));
    }
    events.push((
        one.granted,
        format!("{} granted to {client} with QoS {}, {}", one.filter, one.qos, tables.at(one.conn)),
    ));
    let connections = &tables.client(one.client).connections;
    let mut is_online = false;
    for conn in connections.iter().rev().take(5).rev() {
        let Connection { accepted, closed, .. } = tables.connection(*conn);
        let Some((_, accepted)) = accepted else { continue };
        events.push((*accepted, format!("CONNACK for {client}, {}", tables.at(*conn))));
        is_online |= closed.is_none();
        if let Some((t, reason)) = closed {
            let reason = reason
                .map_or_else(|| "without DISCONNECT".into(), |reason| format!("with reason {reason:#04x}"));
            events.push((*t, format!("closed {reason}: {}", tables.at(*conn))));
        }
    }
    let state = if is_online { "connected" } else { "not connected" };
    events.push((tables.now, format!("end of the history, {client} is {state}")));
    (text, events)
}
