//! Checker of histories: what clients of a broker or a cluster sent and got, compared with the guarantees of MQTT.
//!
//! A history is a folder with `history/*.jsonl`, one file for each client and one for the faults; [`Event`] describes
//! its lines. The checker knows nothing of the program that wrote them. Definitions and reasons are in decision 22.
//!
//! All files are read once, merged by time. Memory grows with the number of messages and of pairs of a message and a
//! client that got it, some hundred bytes each.

mod delivery;
mod event;
mod outcome;
mod reader;
mod report;
mod retained;
mod tables;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;

use braid_proto::topic::TopicFilter;

use delivery::{Deliveries, Delivery};
pub use event::{Event, Line, Phase, Qos};
use outcome::{Outcome, Will};
use reader::{Ending, Reader};
pub use report::{Counts, Kind, Report, Violation};
use retained::Retained;
use tables::Tables;
pub use tables::delays_bytes;
pub use writer::Writer;

/// Folder of the files in that of a run.
const FOLDER: &str = "history";

/// First reason code that is an error.
const ERROR: u8 = 0x80;
/// Packet Identifier not found. As an acknowledgement of a PUBLISH it is in PUBCOMP only: the server had completed the
/// exchange, after its PUBREC without an error, before it got PUBREL once more.
const NOT_FOUND: u8 = 0x92;
const SECOND: u64 = 1_000_000_000;

/// Checks the history in `dir`.
///
/// # Errors
/// One line with the folder, or with the file and line that cannot be read or contradict an earlier line.
pub fn check(dir: &Path) -> Result<Report, String> {
    let mut checker = Checker::default();
    let endings = Reader::open(dir)?.merge(|file, line| checker.handle(file, line))?;
    if !endings.iter().any(|ending| ending.has_end) {
        return Err(format!("{}: no file has the event `end`: the run was interrupted", dir.display()));
    }
    Ok(checker.finish(&endings))
}

#[derive(Default)]
struct Checker {
    tables: Tables,
    deliveries: Deliveries,
    retained: Retained,
    wills: Vec<Will>,
    report: Report,
}

impl Checker {
    fn handle(&mut self, file: usize, line: &Line<'_>) -> Result<(), String> {
        self.report.counts.events += 1;
        self.tables.start.get_or_insert(line.t);
        self.tables.now = line.t;
        let now = line.t;
        match &line.event {
            Event::Connect { client, conn, clean, expiry, .. } => {
                self.tables.connect(file, (client, conn), (*clean, *expiry))
            }
            Event::Will { client, conn, id, topic, delay, qos } => {
                let conn = self.tables.find_connection(client, conn)?;
                let topic = self.tables.find_topic(topic)?;
                let message = self.tables.find_message(id)?;
                self.tables.will(conn, message, topic, *qos)?;
                self.wills.push(Will { conn, message, delay: *delay });
                Ok(())
            }
            Event::Connack { client, conn, node, present, reason } => {
                let conn = self.tables.find_connection(client, conn)?;
                self.connack(conn, node, *present, *reason)
            }
            Event::Disconnect { client, conn } => {
                let conn = self.tables.find_connection(client, conn)?;
                self.tables.connection_mut(conn).disconnect.get_or_insert(now);
                Ok(())
            }
            Event::Closed { client, conn, reason } => {
                let conn = self.tables.find_connection(client, conn)?;
                self.tables.connection_mut(conn).closed.get_or_insert((now, *reason));
                Ok(())
            }
            Event::Publish { client, conn, topic, qos, id, retain, empty, .. } => {
                let conn = self.tables.find_connection(client, conn)?;
                let topic = self.tables.find_topic(topic)?;
                let message = self.tables.find_message(id)?;
                let is_new = self.tables.publish(file, conn, message, (topic, *qos), (*retain, *empty))?;
                self.report.counts.published += u64::from(is_new);
                self.retained.publishing();
                Ok(())
            }
            Event::Pubrec { client, conn, id } => {
                self.tables.find_connection(client, conn)?;
                let message = self.tables.find_message(id)?;
                self.tables.settle(message)
            }
            Event::Acked { client, conn, id, reason } => {
                let conn = self.tables.find_connection(client, conn)?;
                let message = self.tables.find_message(id)?;
                self.acked(conn, message, *reason)
            }
            Event::Fault { name, on, phase } => self.tables.fault(name, on, *phase),
            Event::End {} => Ok(()),
            event => self.handle_subscriber(event),
        }
    }

    /// Handles the events of a subscriber.
    fn handle_subscriber(&mut self, event: &Event<'_>) -> Result<(), String> {
        match event {
            Event::Subscribe { client, conn, filter, .. } => {
                let conn = self.tables.find_connection(client, conn)?;
                let filter = parse_filter(filter)?;
                self.retained.subscribe(conn, &filter);
                let client = self.tables.connection(conn).client as usize;
                let requested = &mut self.tables.clients[client].requested;
                if !requested.contains(&filter) {
                    requested.push(filter);
                }
                Ok(())
            }
            Event::Subscribed { client, conn, filter, reason } => {
                let conn = self.tables.find_connection(client, conn)?;
                self.subscribed(conn, parse_filter(filter)?, *reason)
            }
            Event::Delivered { client, conn, topic, qos, id, pid, dup, retain } => {
                let conn = self.tables.find_connection(client, conn)?;
                let topic = self.tables.find_topic(topic)?;
                let message = self.tables.find_message(id)?;
                if self.tables.connection(conn).accepted.is_none() {
                    return Err("a delivery on a connection without a successful CONNACK".into());
                }
                let (qos, pid, dup, retain) = (qos.level(), *pid, *dup, *retain);
                let delivery = Delivery { conn, message, topic, qos, pid, dup, retain };
                self.deliveries.deliver(&mut self.tables, &mut self.report, &delivery);
                self.retained.deliver(&self.tables, &delivery);
                Ok(())
            }
            Event::DeliveryDone { client, conn, id } => {
                let conn = self.tables.find_connection(client, conn)?;
                let message = self.tables.find_message(id)?;
                self.deliveries.done(self.tables.connection(conn).client, message)
            }
            _ => Ok(()),
        }
    }

    fn connack(&mut self, conn: u32, node: &str, present: bool, reason: u8) -> Result<(), String> {
        let connection = self.tables.connection(conn);
        let (client, clean) = (connection.client, connection.clean);
        if clean {
            let open = &mut self.tables.clients[client as usize].open_clean;
            *open = open.saturating_sub(1);
        }
        if reason >= ERROR {
            self.tables.connection_mut(conn).is_refused = true;
            return Ok(());
        }
        let has_moved = self.tables.accept(conn, node)?;
        self.report.counts.moved += u64::from(has_moved);
        let tables = &self.tables;
        let is_certain = tables.client(client).open_clean == 0;
        if clean {
            if present {
                self.report.add(Kind::SessionKept, || kept(tables, conn));
            }
            self.tables.begin_session(client, false);
        } else if !present {
            if is_session_lost(tables, conn) {
                self.report.add(Kind::SessionLost, || lost(tables, conn));
            }
            self.tables.begin_session(client, is_certain);
        } else if may_be_another(tables, conn) {
            self.tables.begin_session(client, false);
        } else {
            self.tables.clients[client as usize].is_session_sure |= is_certain;
        }
        self.tables.connection_mut(conn).session = self.tables.client(client).session;
        Ok(())
    }

    fn acked(&mut self, conn: u32, message: u32, reason: u8) -> Result<(), String> {
        self.tables.settle(message)?;
        self.retained.publishing();
        let now = self.tables.now;
        let entry = self.tables.message_mut(message);
        if (reason < ERROR || reason == NOT_FOUND) && entry.acked.is_none() {
            entry.acked = Some((now, conn));
            self.report.counts.acknowledged += 1;
        }
        Ok(())
    }

    fn subscribed(&mut self, conn: u32, filter: TopicFilter, reason: u8) -> Result<(), String> {
        let connection = self.tables.connection(conn);
        let client = self.tables.client(connection.client);
        if !client.requested.contains(&filter) {
            return Err(format!("a SUBACK for {filter} without SUBSCRIBE"));
        }
        if reason < ERROR {
            self.retained.granted(self.tables.now, conn, &filter, reason);
            if connection.session == client.session {
                self.tables.grant(conn, filter, reason);
            }
        }
        Ok(())
    }

    fn finish(mut self, endings: &[Ending]) -> Report {
        let (tables, report) = (&self.tables, &mut self.report);
        let of_client = |file: usize| tables.clients.iter().any(|client| client.files.contains(&file));
        let clients_write_end = (0..).zip(endings).any(|(file, ending)| ending.has_end && of_client(file));
        let is_incomplete = |file: usize| {
            endings.get(file).is_some_and(|ending| ending.is_cut || (clients_write_end && !ending.has_end))
        };
        report.counts.incomplete_files =
            (0..endings.len()).filter(|file| is_incomplete(*file)).count() as u64;
        self.deliveries.finish(tables, report, is_incomplete);
        self.retained.finish(tables, report);
        let complete = (0..)
            .zip(&tables.clients)
            .filter(|(_, client)| !client.files.iter().any(|file| is_incomplete(*file)));
        let complete = complete.map(|(number, _)| number).collect();
        Outcome::new(tables, &self.deliveries, complete).check(report, &self.wills);
        report.finish(tables);
        self.report
    }
}

fn parse_filter(text: &str) -> Result<TopicFilter, String> {
    TopicFilter::parse(text).map_err(|error| format!("filter {text:?}: {error}"))
}

/// Whether the session of a client, which is not present on a new connection, should be.
fn is_session_lost(tables: &Tables, conn: u32) -> bool {
    let client = tables.connection(conn).client;
    let is_promised =
        tables.client(client).is_session_sure && tables.live_subscriptions(client).next().is_some();
    is_promised && !may_have_expired(tables, conn)
}

/// Whether the session that is present may be one that a CONNECT without an answer has opened after the end of the one
/// before.
fn may_be_another(tables: &Tables, conn: u32) -> bool {
    let others = &tables.client(tables.connection(conn).client).connections;
    let last = others.iter().map(|other| tables.connection(*other)).filter_map(|other| other.accepted);
    let last = last.map(|(_, t)| t).filter(|t| *t < tables.now).max();
    let is_unanswered = |other: &u32| {
        let other = tables.connection(*other);
        other.accepted.is_none() && !other.is_refused && last.is_none_or(|last| other.connect > last)
    };
    others.iter().filter(|other| **other != conn).any(is_unanswered) && may_have_expired(tables, conn)
}

/// Whether the session of the accepted connections before may have expired by now.
fn may_have_expired(tables: &Tables, conn: u32) -> bool {
    let entry = tables.client(tables.connection(conn).client);
    let others =
        entry.connections.iter().filter(|other| **other != conn).map(|other| tables.connection(*other));
    let accepted = others.filter(|other| other.accepted.is_some());
    let last = accepted.clone().max_by_key(|other| other.accepted.map(|(_, t)| t));
    let expiry = last.and_then(|last| last.expiry).map(|seconds| u64::from(seconds) * SECOND);
    let closed: Option<Vec<u64>> = accepted.map(|other| other.closed.map(|(t, _)| t)).collect();
    let offline =
        closed.and_then(|closed| closed.into_iter().max()).map(|last| tables.now.saturating_sub(last));
    expiry.zip(offline).is_some_and(|(expiry, offline)| offline + SECOND >= expiry)
}

/// Evidence of a lost session: its connections and subscriptions.
fn lost(tables: &Tables, conn: u32) -> (String, Vec<(u64, String)>) {
    let client = tables.connection(conn).client;
    let name = tables.client_name(client);
    let mut events: Vec<_> = tables
        .live_subscriptions(client)
        .take(5)
        .map(|one| (one.granted, format!("{} granted, {}", one.filter, tables.at(one.conn))))
        .collect();
    for other in tables.client(client).connections.iter().rev().take(4).filter(|other| **other != conn) {
        let connection = tables.connection(*other);
        events.extend(connection.accepted.map(|(_, t)| (t, format!("CONNACK, {}", tables.at(*other)))));
        events.extend(connection.closed.map(|(t, _)| (t, format!("closed: {}", tables.at(*other)))));
    }
    events.push((tables.connection(conn).connect, "CONNECT without Clean Start".into()));
    events.push((tables.now, format!("CONNACK without Session Present, {}", tables.at(conn))));
    (format!("the session of {name} is gone, {}", tables.at(conn)), events)
}

fn kept(tables: &Tables, conn: u32) -> (String, Vec<(u64, String)>) {
    let connection = tables.connection(conn);
    let events = vec![
        (connection.connect, "CONNECT with Clean Start".into()),
        (tables.now, format!("CONNACK with Session Present, {}", tables.at(conn))),
    ];
    (format!("{} has an old session, {}", tables.client_name(connection.client), tables.at(conn)), events)
}
