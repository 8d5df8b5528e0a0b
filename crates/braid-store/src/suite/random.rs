//! Random operations against the model, without and with power failures.

use std::sync::Arc;

use braid_proto::packet::{QoS, Will};

use super::example::{
    closed, completed, filter, full_delivery, full_will, id, opened, parked, plain_message, queued_at,
    received_more, received_released, released, resumed, retain_cleared, retained, sent, stored_on,
    subscribed,
};
use super::model::Model;
use super::subject::{Subject, without_claims};
use crate::change::{Batch, Change};
use crate::completion::Commit;
use crate::error::StoreError;
use crate::ids::{Claim, Lsn};

/// Operations of one run without power failures.
const STEPS: usize = 300;
/// Power failures in one run.
const CRASHES: usize = 8;
/// Limit of the batches between two power failures.
const BATCHES: usize = 40;
const CLIENTS: [&str; 4] = ["", "a", "b", "é"];
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
                    // Repeated: accepted or not, it changes nothing.
                    let before = model.state.clone();
                    assert_eq!(subject.try_commit(&changes), model.commit(&changes), "{changes:?}");
                    assert_eq!(model.state, before, "{changes:?}");
                    compare(subject, &model, &changes);
                }
            }
        }
    }
}

fn compare(subject: &Subject<'_>, model: &Model, changes: &[Change]) {
    let (state, next) = subject.recover();
    assert_eq!(state, model.state, "{changes:?}");
    assert!(next.session.value() > model.highest_session && next.lsn.value() > model.highest_lsn);
    for lsn in 1..=model.highest_lsn {
        let expected = model.messages.get(&Lsn::new(lsn)).cloned();
        assert_eq!(subject.message(lsn), expected, "message {lsn} after {changes:?}");
    }
}

pub(super) fn run_crashes(subject: &mut Subject<'_>, seed: u64) {
    let mut rng = Rng(seed);
    let mut model = Model::default();
    let mut claims = Vec::new();
    for _ in 0..CRASHES {
        // A group is about ten calls: some stores fail at once, some survive.
        subject.fail_after(rng.below(200) as u64);
        let mut run = RunUntilCrash { states: vec![model], commits: Vec::new(), acknowledged: 0 };
        for _ in 0..rng.below(BATCHES) {
            run.step(subject, &mut rng, &mut claims);
        }
        run.take();
        subject.crash(rng.next());
        model = run.survivor(subject);
    }
}

/// Operations between two power failures.
struct RunUntilCrash {
    /// The model before every batch, and after the last.
    states: Vec<Model>,
    /// The commit of each batch, and its outcome if the store can write.
    commits: Vec<(Commit, Result<(), StoreError>)>,
    /// Index of the last state that must survive.
    acknowledged: usize,
}

impl RunUntilCrash {
    fn step(&mut self, subject: &Subject<'_>, rng: &mut Rng, claims: &mut Vec<(usize, Claim)>) {
        let mut model = self.states.last().cloned().unwrap_or_default();
        if rng.below(8) == 0 {
            let client = rng.below(CLIENTS.len());
            // A store that has failed grants nothing.
            let Ok(claim) = subject.store().claim(&CLIENTS[client].into()).wait() else { return };
            claims.push((client, claim));
            if let Some(last) = self.states.last_mut() {
                last.claimed(CLIENTS[client], claim);
            }
            return;
        }
        let changes = batch(rng, &model, claims);
        if changes.is_empty() {
            // Done at once, even if earlier commits are pending.
            return;
        }
        let expected = model.commit(&changes);
        let mut batch = if rng.below(3) == 0 { Batch::lazy() } else { Batch::new() };
        batch.extend(changes);
        self.commits.push((subject.store().commit(batch), expected));
        self.states.push(model);
        if rng.below(6) == 0 {
            self.wait();
        }
    }

    /// Waits for the last batch.
    fn wait(&mut self) {
        let Some((commit, expected)) = self.commits.last_mut() else { return };
        let commit = std::mem::replace(commit, Commit::Done(Err(StoreError::Closed)));
        match commit.wait() {
            Err(StoreError::Failed { .. }) => {}
            outcome => {
                assert_eq!(outcome, *expected);
                // A refusal does not acknowledge the batches before.
                if outcome.is_ok() {
                    self.acknowledged = self.commits.len();
                }
            }
        }
    }

    /// Collects further acknowledgements.
    fn take(&mut self) {
        for (at, (commit, expected)) in self.commits.iter_mut().enumerate() {
            match commit.try_take() {
                None | Some(Err(StoreError::Failed { .. } | StoreError::Closed)) => {}
                Some(outcome) => {
                    assert_eq!(outcome, *expected);
                    if outcome.is_ok() {
                        self.acknowledged = self.acknowledged.max(at + 1);
                    }
                }
            }
        }
    }

    /// The state of the store after the failure, which must be one of those that may survive.
    fn survivor(self, subject: &Subject<'_>) -> Model {
        let (state, next) = subject.recover();
        let plain = without_claims(&state);
        let must_survive = if subject.is_asynchronous() { 0 } else { self.acknowledged };
        let mut possible = self.states.into_iter().skip(must_survive);
        let mut model = possible
            .find(|model| without_claims(&model.state) == plain)
            .expect("what was acknowledged is there, and batches are there whole");
        model.recovered(&state);
        assert!(next.session.value() > model.highest_session && next.lsn.value() > model.highest_lsn);
        for lsn in 1..=model.highest_lsn {
            assert_eq!(subject.message(lsn), model.messages.get(&Lsn::new(lsn)).cloned(), "message {lsn}");
        }
        model
    }
}

fn batch(rng: &mut Rng, model: &Model, claims: &[(usize, Claim)]) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..=rng.below(6) {
        add(rng, model, claims, &mut changes);
    }
    changes
}

/// Adds a change: mostly one that a broker could make, sometimes an invalid one.
fn add(rng: &mut Rng, model: &Model, claims: &[(usize, Claim)], changes: &mut Vec<Change>) {
    let session = session(rng, model);
    let fresh = model.highest_lsn + 1 + rng.below(2) as u64;
    let recent = 1 + (model.highest_lsn + 2).saturating_sub(rng.below(8) as u64);
    let entry = entry(rng, model, session).unwrap_or(recent);
    let packet_id = 1 + u16::try_from(rng.below(3)).unwrap_or(0);
    // No two entries of a session are in flight with one identifier.
    let sent_as =
        u16::try_from(entry).map_or(packet_id, |entry| entry.wrapping_mul(4).wrapping_add(packet_id));
    let topic = TOPICS[rng.below(TOPICS.len())];
    let claim = claim(rng, model, session, claims);
    let change = match rng.below(20) {
        0 | 1 => match claims.len() {
            0 => return,
            // Mostly a new claim, otherwise an old one.
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
            // A publish: stored once, queued for several sessions, perhaps retained.
            changes.push(stored_on(fresh, topic));
            for other in model.state.sessions.keys() {
                if rng.below(2) == 0 {
                    changes.push(queued_at(other.value(), fresh, fresh));
                }
            }
            if rng.below(2) == 0 { retained(fresh) } else { queued_at(session, fresh, fresh) }
        }
        13 => {
            // A message that is queued again, under a number of its own.
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

/// Mostly a session that exists.
fn session(rng: &mut Rng, model: &Model) -> u64 {
    let known: Vec<_> = model.state.sessions.keys().collect();
    match known.len() {
        0 => 1,
        _ if rng.below(8) == 0 => 1 + rng.below(20) as u64,
        count => known[rng.below(count)].value(),
    }
}

/// Mostly the current claim.
fn claim(rng: &mut Rng, model: &Model, session: u64, claims: &[(usize, Claim)]) -> Claim {
    match model.state.sessions.get(&id(session)) {
        Some(session) if rng.below(4) > 0 => session.claim,
        _ if claims.is_empty() => Claim::new(0),
        _ => claims[rng.below(claims.len())].1,
    }
}

fn entry(rng: &mut Rng, model: &Model, session: u64) -> Option<u64> {
    let queue = &model.state.sessions.get(&id(session))?.queue;
    if queue.is_empty() { None } else { Some(queue[rng.below(queue.len())].0.value()) }
}

fn known_message(rng: &mut Rng, model: &Model) -> Option<u64> {
    let count = model.messages.len();
    if count == 0 { None } else { model.messages.keys().nth(rng.below(count)).map(|lsn| lsn.value()) }
}

/// SplitMix64 (Steele, Lea, Flood 2014): the suite is part of the crate and must not need another for this.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }
}
