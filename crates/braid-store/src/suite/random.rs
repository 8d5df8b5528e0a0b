use std::sync::Arc;

use braid_proto::packet::{QoS, Will};

use super::example::{
    closed, completed, filter, full_delivery, full_will, id, opened, parked, plain_message, queued_at,
    received_more, received_released, released, resumed, retain_cleared, retained, sent, stored_on,
    subscribed,
};
use super::model::Model;
use super::subject::Subject;
use crate::change::Change;
use crate::identity::{Claim, Lsn};

const STEPS: usize = 300;
pub(super) const CLIENTS: [&str; 4] = ["", "a", "b", "é"];
const TOPICS: [&str; 3] = ["t", "t/u", "$v"];
const LEVELS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
const FILTERS: [&str; 4] = ["t", "t/+", "#", "$share/g/t"];

pub(super) fn run(subject: &mut Subject<'_>, seed: u64) {
    let mut rng = Rng(seed);
    let mut model = Model::default();
    let mut claims: Vec<(usize, Claim)> = Vec::new();
    for _ in 0..STEPS {
        match rng.below(10) {
            0 => {
                subject.reopen();
                model.recovered(&subject.recover().0);
            }
            1 | 2 => {
                let client = rng.below(CLIENTS.len());
                let claim = subject.claim(CLIENTS[client]);
                assert!(claims.iter().all(|(of, earlier)| *of != client || *earlier < claim));
                model.claimed(CLIENTS[client], claim);
                claims.push((client, claim));
            }
            _ => {
                let changes = batch(&mut rng, &model, &claims);
                let expected = model.commit(&changes);
                assert_eq!(subject.try_commit(&changes), expected, "{changes:?}");
                compare(subject, &model, &changes);
                if rng.below(4) == 0 {
                    // Again: accepted or not, it changes nothing.
                    let before = model.image.clone();
                    assert_eq!(subject.try_commit(&changes), model.commit(&changes), "{changes:?}");
                    assert_eq!(model.image, before, "{changes:?}");
                    compare(subject, &model, &changes);
                }
            }
        }
    }
}

fn compare(subject: &Subject<'_>, model: &Model, changes: &[Change]) {
    let (image, next) = subject.recover();
    assert_eq!(image, model.image, "{changes:?}");
    assert!(next.session.value() > model.highest_session && next.lsn.value() > model.highest_lsn);
    for lsn in 1..=model.highest_lsn {
        let expected = model.messages.get(&Lsn::new(lsn)).cloned();
        assert_eq!(subject.message(lsn), expected, "message {lsn} after {changes:?}");
    }
}

pub(super) fn batch(rng: &mut Rng, model: &Model, claims: &[(usize, Claim)]) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..=rng.below(6) {
        add(rng, model, claims, &mut changes);
    }
    changes
}

/// Mostly what a broker does, sometimes what none should.
fn add(rng: &mut Rng, model: &Model, claims: &[(usize, Claim)], changes: &mut Vec<Change>) {
    let session = session(rng, model);
    let fresh = model.highest_lsn + 1 + rng.below(2) as u64;
    let recent = 1 + (model.highest_lsn + 2).saturating_sub(rng.below(8) as u64);
    let entry = entry(rng, model, session).unwrap_or(recent);
    let packet_id = 1 + u16::try_from(rng.below(3)).unwrap_or(0);
    // No two entries of a session are on their way with one identifier.
    let sent_as =
        u16::try_from(entry).map_or(packet_id, |entry| entry.wrapping_mul(4).wrapping_add(packet_id));
    let topic = TOPICS[rng.below(TOPICS.len())];
    let claim = claim(rng, model, session, claims);
    let change = match rng.below(20) {
        0 | 1 => match claims.len() {
            0 => return,
            // One that is new, mostly; or an old one.
            count => {
                let (client, claim) = claims[count - 1 - rng.below(count.min(3))];
                let reused = rng.below(8) == 0;
                opened(if reused { session } else { model.highest_session + 1 }, CLIENTS[client], claim)
            }
        },
        2 => resumed(session, claim),
        3 => parked(session, rng.below(100) as u64, claim),
        4 => closed(session, claim),
        5 => {
            let delay = u32::try_from(rng.below(9)).unwrap_or(0);
            Change::WillSet { session: id(session), will: Arc::new(Will { delay, ..(*full_will()).clone() }) }
        }
        6 => Change::WillCleared { session: id(session) },
        7 => subscribed(session, FILTERS[rng.below(FILTERS.len())], LEVELS[rng.below(LEVELS.len())]),
        8 => Change::Unsubscribed { session: id(session), filter: filter(FILTERS[rng.below(FILTERS.len())]) },
        9 => received_more(session, packet_id, u16::try_from(rng.below(3)).unwrap_or(0) + 1),
        10 => received_released(session, packet_id),
        11 | 12 => {
            // A publish: stored once, for several, perhaps retained.
            changes.push(stored_on(fresh, topic));
            for other in model.image.sessions.keys() {
                if rng.below(2) == 0 {
                    changes.push(queued_at(other.value(), fresh, fresh));
                }
            }
            if rng.below(2) == 0 { retained(fresh) } else { queued_at(session, fresh, fresh) }
        }
        13 => {
            // The same message again, at a place of its own.
            let message = known_message(rng, model).unwrap_or(fresh);
            let topic = model.messages.get(&Lsn::new(message)).map_or(topic, |m| m.topic().as_str());
            changes.push(Change::Stored { lsn: Lsn::new(message), message: plain_message(message, topic) });
            let lsn = Lsn::new(if rng.below(2) == 0 { fresh } else { entry });
            Change::Queued { session: id(session), lsn, delivery: full_delivery(message) }
        }
        14 => queued_at(session, fresh, recent),
        15 | 16 => sent(session, entry, sent_as),
        17 => released(session, entry, sent_as),
        18 => completed(session, entry),
        _ => retain_cleared(topic),
    };
    changes.push(change);
}

/// One that is there, mostly.
fn session(rng: &mut Rng, model: &Model) -> u64 {
    let known: Vec<_> = model.image.sessions.keys().collect();
    match known.len() {
        0 => 1,
        _ if rng.below(8) == 0 => 1 + rng.below(20) as u64,
        count => known[rng.below(count)].value(),
    }
}

/// The good one, mostly.
fn claim(rng: &mut Rng, model: &Model, session: u64, claims: &[(usize, Claim)]) -> Claim {
    match model.image.sessions.get(&id(session)) {
        Some(session) if rng.below(4) > 0 => session.claim,
        _ if claims.is_empty() => Claim::new(0),
        _ => claims[rng.below(claims.len())].1,
    }
}

fn entry(rng: &mut Rng, model: &Model, session: u64) -> Option<u64> {
    let queue = &model.image.sessions.get(&id(session))?.queue;
    if queue.is_empty() { None } else { Some(queue[rng.below(queue.len())].0.value()) }
}

fn known_message(rng: &mut Rng, model: &Model) -> Option<u64> {
    let count = model.messages.len();
    if count == 0 { None } else { model.messages.keys().nth(rng.below(count)).map(|lsn| lsn.value()) }
}

/// SplitMix64 (Steele, Lea, Flood 2014): the suite is part of the crate and must not need another for this.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }
}
