//! Mutations of correct histories, each with the violation that must be found, or none where MQTT allows the change.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::super::event::{Event, Line, Phase};
use super::super::report::Kind;
use super::model::Entry;

/// A mutation; `apply` returns `None` where a history has nothing to mutate.
pub(super) struct Mutation {
    pub(super) name: &'static str,
    pub(super) expected: &'static [Kind],
    pub(super) apply: fn(&mut Vec<Entry>, &mut Rng) -> Option<()>,
}

type Change = fn(&mut Vec<Entry>, &mut Rng) -> Option<()>;

const fn row(name: &'static str, expected: &'static [Kind], apply: Change) -> Mutation {
    Mutation { name, expected, apply }
}

/// All mutations.
pub(super) const TABLE: &[Mutation] = &[
    row("remove the deliveries of a message", &[Kind::Lost], |history, rng| {
        let id = acked(history, rng, |topic| topic.starts_with('t'))?;
        remove_deliveries(history, &["s0"], &id)
    }),
    row("remove the deliveries to a shared group", &[Kind::Lost], |history, rng| {
        let id = acked(history, rng, |topic| topic.starts_with('t'))?;
        remove_deliveries(history, &["g0", "g1"], &id)
    }),
    row("remove the deliveries of an unacknowledged message", &[], |history, rng| {
        let id = acked(history, rng, |topic| topic.starts_with('t'))?;
        history.retain(|(_, line)| !matches!(&line.event, Event::Acked { id: one, .. } if *one == id));
        remove_deliveries(history, &["s0"], &id)
    }),
    row("turn the acknowledgement of an undelivered message into an error", &[], |history, rng| {
        let found = acked(history, rng, |topic| topic.starts_with('t'))?;
        for (_, line) in history.iter_mut() {
            if let Event::Acked { id, reason, .. } = &mut line.event {
                *reason = if *id == found { 0x97 } else { *reason };
            }
        }
        remove_deliveries(history, &["s0"], &found)
    }),
    row("remove the deliveries to a subscriber whose file is cut off", &[], |history, rng| {
        let id = acked(history, rng, |topic| topic.starts_with('t'))?;
        history.retain(|(file, line)| file != "s0" || !matches!(line.event, Event::End {}));
        remove_deliveries(history, &["s0"], &id)
    }),
    row("remove the deliveries before a session that ends", &[], |history, rng| {
        let id = acked(history, rng, |topic| topic.starts_with('t'))?;
        remove_deliveries(history, &["s0"], &id)?;
        let t = history.iter().rev().find(|(_, line)| is_delivered_to(line, "s0"))?.1.t;
        insert(history, "s0", t, connect("s0", "unanswered", true));
        Some(())
    }),
    row("deliver again after completion", &[Kind::Duplicate], |history, rng| {
        let (at, again) = completed_exactly(history, rng)?;
        insert(history, "s0", history[at].1.t, with_flags(&again, 60_001, false));
        Some(())
    }),
    row("deliver again with DUP after completion", &[Kind::Duplicate], |history, rng| {
        let (at, again) = completed_exactly(history, rng)?;
        insert(history, "s0", history[at].1.t, with_flags(&again, pid(&again)?, true));
        Some(())
    }),
    row("deliver twice before completion", &[Kind::Duplicate], |history, rng| {
        let at = first_delivery(history, rng, is_exactly_once)?;
        insert(history, "s0", history[at].1.t, with_flags(&history[at].1.event.clone(), 60_001, false));
        Some(())
    }),
    row("redeliver with DUP before completion", &[], |history, rng| {
        let at = first_delivery(history, rng, is_exactly_once)?;
        let event = history[at].1.event.clone();
        insert(history, "s0", history[at].1.t, with_flags(&event, pid(&event)?, true));
        Some(())
    }),
    row("deliver QoS 1 twice", &[], |history, rng| {
        let at = first_delivery(
            history,
            rng,
            |event| matches!(event, Event::Delivered { qos, .. } if qos.level() == 1),
        )?;
        insert(history, "s0", history[at].1.t, with_flags(&history[at].1.event.clone(), 60_001, false));
        Some(())
    }),
    row("swap two deliveries", &[Kind::Order], |history, rng| swap(history, rng, false)),
    row("swap two deliveries of different QoS", &[], |history, rng| swap(history, rng, true)),
    row("deliver on the old connection", &[Kind::TwoOwners], |history, rng| {
        deliver_on_old(history, rng, 250_000_001, false)
    }),
    row("deliver on the old connection within the grace", &[], |history, rng| {
        deliver_on_old(history, rng, 0, false)
    }),
    row("deliver an old message on the old connection", &[Kind::TwoOwners], |history, rng| {
        deliver_on_old(history, rng, 250_000_001, true)
    }),
    row("deliver an old message on the old connection after a partition", &[], |history, rng| {
        for phase in [Phase::Begin, Phase::End] {
            let event = Event::Fault { name: "partition".into(), on: "n0".into(), phase };
            insert(history, "faults", history[10].1.t, event);
        }
        deliver_on_old(history, rng, 250_000_001, true)
    }),
    row("deny a session", &[Kind::SessionLost], |history, rng| {
        set_present(history, rng, |client| client.starts_with('s'), false)
    }),
    row("keep a session", &[Kind::SessionKept], |history, rng| {
        set_present(history, rng, |client| client == "s2", true)
    }),
    row("deny a session after an unanswered Clean Start", &[], |history, rng| {
        let at = pick(rng, (0..history.len()).filter(|at| is_connack(&history[*at].1, "s0", true)))?;
        let Event::Connack { present, .. } = &mut history[at].1.event else { return None };
        *present = false;
        insert(history, "s0", history[at - 2].1.t, connect("s0", "unanswered", true));
        Some(())
    }),
    row("deny a session that has expired", &[], |history, rng| {
        let found = set_present_at(history, rng, |client| client == "s0", false)?;
        for (_, line) in history.iter_mut() {
            if let Event::Connect { client, expiry, .. } = &mut line.event {
                *expiry = (client == "s0").then_some(0);
            }
        }
        // Without an open connection before.
        let before = history[..found].iter().rev().find_map(|(_, line)| match &line.event {
            Event::Closed { client, reason, .. } if client == "s0" => Some(*reason),
            Event::Connack { client, .. } if client == "s0" => Some(Some(1)),
            _ => None,
        });
        (before == Some(None)).then_some(())
    }),
    row("show an older retained message", &[Kind::RetainedStale], |history, rng| {
        change_look(history, rng, true)
    }),
    row("show the retained message of another publisher", &[Kind::RetainedDiffers], |history, rng| {
        change_look(history, rng, false)
    }),
    row("show no retained message", &[Kind::RetainedMissing], |history, rng| {
        let acked = publications(history).into_iter().filter(|one| one.acked && one.qos > 0);
        let topics: BTreeSet<String> = acked.map(|one| one.topic).collect();
        let is_kept = |line: &Line<'_>| matches!(&line.event, Event::Delivered { topic, .. } if topics.contains(topic.as_ref()));
        let at = pick(
            rng,
            (0..history.len())
                .filter(|at| is_delivered_to(&history[*at].1, "l1") && is_kept(&history[*at].1)),
        )?;
        history.remove(at);
        Some(())
    }),
    row("remove the deliveries of a Will", &[Kind::WillMissing], |history, rng| {
        let (conn, id) = delivered_will(history, rng)?;
        drop(conn);
        remove_deliveries(history, &["s1"], &id)
    }),
    row("carry out the Will of a client that disconnects", &[Kind::WillAfterDisconnect], |history, rng| {
        history.retain(|(_, line)| !matches!(line.event, Event::Fault { .. }));
        disconnect_before_will(history, rng)
    }),
    row("carry out the Will of a client whose DISCONNECT is lost", &[], |history, rng| {
        let event = Event::Fault { name: "kill".into(), on: "n0".into(), phase: Phase::Begin };
        insert(history, "faults", history[0].1.t, event);
        disconnect_before_will(history, rng)
    }),
    row("deliver a message that was never published", &[Kind::Ghost], |history, rng| {
        let at = first_delivery(history, rng, |_| true)?;
        let mut event = history[at].1.event.clone();
        let Event::Delivered { id, .. } = &mut event else { return None };
        *id = "p0:999999".into();
        insert(history, "s0", history[at].1.t, event);
        Some(())
    }),
    row("deliver a message that a killed publisher did not write down", &[], |history, rng| {
        let at = first_delivery(history, rng, |_| true)?;
        let mut event = history[at].1.event.clone();
        let Event::Delivered { id, .. } = &mut event else { return None };
        *id = "p0:999999".into();
        insert(history, "s0", history[at].1.t, event);
        history.retain(|(file, line)| file != "p0" || !matches!(line.event, Event::End {}));
        Some(())
    }),
    row("deliver on another topic", &[Kind::Ghost], |history, rng| {
        let at = first_delivery(history, rng, |_| true)?;
        let Event::Delivered { topic, .. } = &mut history[at].1.event else { return None };
        *topic = "t/other".into();
        Some(())
    }),
    row("deliver without a subscription", &[Kind::Ghost], |history, rng| {
        let one = publications(history).into_iter().filter(|one| one.topic == "unheard" && one.qos > 0);
        let one = pick(rng, one)?;
        let at = (0..history.len())
            .find(|at| history[*at].1.t > one.t && is_delivered_to(&history[*at].1, "s0"))?;
        let mut event = history[at].1.event.clone();
        let Event::Delivered { id, topic, retain, .. } = &mut event else { return None };
        (*id, *topic, *retain) = (one.id.into(), "unheard".into(), false);
        insert(history, "s0", history[at].1.t, event);
        Some(())
    }),
];

/// A message as its publisher knows it.
struct Publication {
    t: u64,
    id: String,
    topic: String,
    qos: u8,
    acked: bool,
}

fn publications(history: &[Entry]) -> Vec<Publication> {
    let mut all: BTreeMap<String, Publication> = BTreeMap::new();
    for (_, Line { t, event }) in history {
        match event {
            Event::Publish { id, topic, qos, .. } => {
                let (topic, qos) = (topic.to_string(), qos.level());
                let one = Publication { t: *t, id: id.to_string(), topic, qos, acked: false };
                all.entry(id.to_string()).or_insert(one);
            }
            Event::Acked { id, reason: 0, .. } => all.get_mut(id.as_ref()).unwrap().acked = true,
            _ => {}
        }
    }
    all.into_values().collect()
}

fn pick<T>(rng: &mut Rng, candidates: impl Iterator<Item = T>) -> Option<T> {
    let candidates: Vec<T> = candidates.collect();
    rng.choice(candidates)
}

/// Id of an acknowledged message of QoS 1 or 2.
fn acked(history: &[Entry], rng: &mut Rng, is_wanted: fn(&str) -> bool) -> Option<String> {
    let all = publications(history).into_iter();
    pick(rng, all.filter(|one| one.acked && one.qos > 0 && is_wanted(&one.topic))).map(|one| one.id)
}

fn is_delivered_to(line: &Line<'_>, wanted: &str) -> bool {
    matches!(&line.event, Event::Delivered { client, .. } if client == wanted)
}

fn remove_deliveries(history: &mut Vec<Entry>, clients: &[&str], wanted: &str) -> Option<()> {
    let before = history.len();
    history.retain(|(_, line)| match &line.event {
        Event::Delivered { client, id, .. } | Event::DeliveryDone { client, id, .. } => {
            id != wanted || !clients.contains(&client.as_ref())
        }
        _ => true,
    });
    (history.len() < before).then_some(())
}

/// Inserts an event behind all of time `t`.
fn insert(history: &mut Vec<Entry>, file: &str, t: u64, event: Event<'static>) {
    let at = history.partition_point(|(_, line)| line.t <= t);
    history.insert(at, (file.into(), Line { t, event }));
}

fn connect(client: &'static str, conn: &'static str, clean: bool) -> Event<'static> {
    Event::Connect { client: client.into(), conn: conn.into(), node: None, clean, expiry: None }
}

fn pid(event: &Event<'_>) -> Option<u16> {
    if let Event::Delivered { pid, .. } = event { *pid } else { None }
}

fn with_flags(event: &Event<'static>, new_pid: u16, new_dup: bool) -> Event<'static> {
    let mut event = event.clone();
    if let Event::Delivered { pid, dup, .. } = &mut event {
        (*pid, *dup) = (Some(new_pid), new_dup);
    }
    event
}

fn is_exactly_once(event: &Event<'_>) -> bool {
    matches!(event, Event::Delivered { qos, .. } if qos.level() == 2)
}

/// Ids of a client that are delivered once only, neither with DUP nor with RETAIN.
fn delivered_once(history: &[Entry], wanted: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (_, line) in history {
        if let Event::Delivered { client, id, dup, retain, .. } = &line.event {
            *counts.entry(id.to_string()).or_default() +=
                if client == wanted { 1 } else { 0 } + u32::from(client == wanted && (*dup || *retain));
        }
    }
    counts.into_iter().filter(|(_, count)| *count == 1).map(|(id, _)| id).collect()
}

/// The one delivery of a message to `s0`.
fn first_delivery(history: &[Entry], rng: &mut Rng, is_wanted: fn(&Event<'_>) -> bool) -> Option<usize> {
    let once = delivered_once(history, "s0");
    pick(
        rng,
        (0..history.len()).filter(|at| {
            let event = &history[*at].1.event;
            let Event::Delivered { client, id, .. } = event else { return false };
            client == "s0" && !id.starts_with('w') && once.contains(id.as_ref()) && is_wanted(event)
        }),
    )
}

/// A delivery of QoS 2 to `s0` that is completed, and the index of its completion.
fn completed_exactly(history: &[Entry], rng: &mut Rng) -> Option<(usize, Event<'static>)> {
    let delivered = first_delivery(history, rng, is_exactly_once)?;
    let Event::Delivered { id: wanted, conn: old, .. } = &history[delivered].1.event else { return None };
    let done = history.iter().position(|(_, line)| {
        matches!(&line.event, Event::DeliveryDone { client, id, conn } if client == "s0" && id == wanted && conn == old)
    })?;
    Some((done, history[delivered].1.event.clone()))
}

/// Moves a delivery of `s0` behind the next one of its publisher and topic on its connection.
fn swap(history: &mut Vec<Entry>, rng: &mut Rng, is_of_other_qos: bool) -> Option<()> {
    let qos: BTreeMap<String, u8> = publications(history).into_iter().map(|one| (one.id, one.qos)).collect();
    let once = delivered_once(history, "s0");
    let sequence: Vec<_> = (0..history.len())
        .filter_map(|at| {
            let Event::Delivered { client, conn, id, topic, .. } = &history[at].1.event else { return None };
            let publisher = id.split(':').next()?;
            // QoS 0 is not sent again on another connection, and `p2` sends nothing again.
            let qos = *qos.get(id.as_ref()).filter(|qos| **qos > 0 && client == "s0" && publisher != "p2")?;
            let key = (publisher.to_owned(), topic.to_string(), conn.to_string());
            Some((at, key, qos, once.contains(id.as_ref())))
        })
        .collect();
    let pairs = sequence.iter().enumerate().filter_map(|(index, (first, key, qos, is_simple))| {
        let (second, _, other, is_other_simple) =
            sequence[index + 1..].iter().find(|other| other.1 == *key)?;
        let fits = *is_simple && *is_other_simple && (qos != other) == is_of_other_qos;
        fits.then_some((*first, *second))
    });
    let (first, second) = pick(rng, pairs)?;
    let (file, mut line) = history[first].clone();
    line.t = history[second].1.t;
    let Event::Delivered { id: moved, .. } = &line.event else { return None };
    let moved = moved.to_string();
    history.insert(second + 1, (file, line));
    history.remove(first);
    history.retain(|(file, line)| {
        file != "s0" || !matches!(&line.event, Event::DeliveryDone { id, .. } if *id == moved)
    });
    Some(())
}

fn is_connack(line: &Line<'_>, wanted: &str, wanted_present: bool) -> bool {
    matches!(&line.event, Event::Connack { client, present, .. } if client == wanted && *present == wanted_present)
}

/// Delivers on an older connection at another node, `after` the CONNACK of the newer one, a message that was published
/// before or after that CONNACK.
fn deliver_on_old(history: &mut Vec<Entry>, rng: &mut Rng, after: u64, is_old_message: bool) -> Option<()> {
    let connacks: Vec<(u64, String, String)> = history
        .iter()
        .filter_map(|(_, Line { t, event })| match event {
            Event::Connack { client, conn, node, .. } if client == "s0" => {
                Some((*t, conn.to_string(), node.to_string()))
            }
            _ => None,
        })
        .collect();
    let sent: BTreeMap<String, u64> = publications(history).into_iter().map(|one| (one.id, one.t)).collect();
    let once = delivered_once(history, "s0");
    let mut candidates = Vec::new();
    for pair in connacks.windows(2).filter(|pair| pair[0].2 != pair[1].2) {
        let (moved, conn) = (pair[1].0, &pair[1].1);
        for (at, (_, line)) in history.iter().enumerate() {
            let Event::Delivered { conn: one, id, dup: false, .. } = &line.event else { continue };
            let Some(sent) = sent.get(id.as_ref()) else { continue };
            let is_in_time = if after == 0 { line.t < moved + 250_000_000 } else { line.t > moved + after };
            if one == conn && once.contains(id.as_ref()) && is_in_time && (*sent < moved) == is_old_message {
                candidates.push((at, pair[0].1.clone()));
            }
        }
    }
    let (at, old) = pick(rng, candidates.into_iter())?;
    let Event::Delivered { conn, .. } = &mut history[at].1.event else { return None };
    *conn = old.into();
    Some(())
}

fn set_present_at(history: &mut [Entry], rng: &mut Rng, of: fn(&str) -> bool, value: bool) -> Option<usize> {
    let candidates = (0..history.len()).filter(|at| {
        matches!(&history[*at].1.event, Event::Connack { client, present, .. } if of(client) && *present != value)
    });
    let at = pick(rng, candidates)?;
    let Event::Connack { present, .. } = &mut history[at].1.event else { return None };
    *present = value;
    Some(at)
}

fn set_present(history: &mut [Entry], rng: &mut Rng, of: fn(&str) -> bool, value: bool) -> Option<()> {
    set_present_at(history, rng, of, value).map(|_| ())
}

/// Replaces what `l1` sees on a topic by an earlier message of the same publisher, or by the last of another one.
fn change_look(history: &mut [Entry], rng: &mut Rng, is_older: bool) -> Option<()> {
    let all = publications(history);
    let split =
        |id: &str| id.split_once(':').map(|(name, number)| (name.to_owned(), number.parse::<u64>().unwrap()));
    let mut candidates = Vec::new();
    for (at, (_, line)) in history.iter().enumerate().filter(|(_, (_, line))| is_delivered_to(line, "l1")) {
        let Event::Delivered { id: seen, topic: on, .. } = &line.event else { continue };
        let seen_now = all.iter().find(|one| one.id == *seen && one.acked)?;
        let (publisher, number) = split(&seen_now.id)?;
        let acked = || all.iter().filter(|one| one.topic == *on && one.acked && one.qos > 0);
        let last_of = |wanted: &str| {
            acked()
                .filter_map(|one| split(&one.id))
                .filter(|(name, _)| name == wanted)
                .map(|(_, number)| number)
                .max()
        };
        for one in acked() {
            let (name, its_number) = split(&one.id)?;
            let is_last = last_of(&name) == Some(its_number);
            let fits = if is_older {
                name == publisher && its_number < number && one.qos == seen_now.qos
            } else {
                name != publisher && is_last
            };
            if fits {
                candidates.push((at, one.id.clone()));
            }
        }
    }
    let (at, other) = pick(rng, candidates.into_iter())?;
    let Event::Delivered { id, .. } = &mut history[at].1.event else { return None };
    *id = other.into();
    Some(())
}

/// A Will that reached `s1`: its connection and id.
fn delivered_will(history: &[Entry], rng: &mut Rng) -> Option<(String, String)> {
    let wills: BTreeMap<String, String> = history
        .iter()
        .filter_map(|(_, line)| match &line.event {
            Event::Will { conn, id, .. } => Some((id.to_string(), conn.to_string())),
            _ => None,
        })
        .collect();
    let delivered = history.iter().filter_map(|(_, line)| match &line.event {
        Event::Delivered { client, id, .. } if client == "s1" => wills.get_key_value(id.as_ref()),
        _ => None,
    });
    pick(rng, delivered).map(|(id, conn)| (conn.clone(), id.clone()))
}

/// Sends DISCONNECT before the end of a connection whose Will is carried out.
fn disconnect_before_will(history: &mut Vec<Entry>, rng: &mut Rng) -> Option<()> {
    let (wanted, _) = delivered_will(history, rng)?;
    let closed = |(_, line): &Entry| matches!(&line.event, Event::Closed { conn, .. } if *conn == wanted);
    let at = history.iter().position(closed)?;
    let t = history[at].1.t;
    history.insert(
        at,
        ("w0".into(), Line { t, event: Event::Disconnect { client: "w0".into(), conn: wanted.into() } }),
    );
    Some(())
}
