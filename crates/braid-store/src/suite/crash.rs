use super::model::Model;
use super::random::{self, CLIENTS, Rng};
use super::subject::{Subject, without_claims};
use crate::batch::Batch;
use crate::commit::Commit;
use crate::error::StoreError;
use crate::identity::{Claim, Lsn};

/// Power failures in one run.
const CRASHES: usize = 8;
const BATCHES: usize = 40;

pub(super) fn run(subject: &mut Subject<'_>, seed: u64) {
    let mut rng = Rng(seed);
    let mut model = Model::default();
    let mut claims = Vec::new();
    for _ in 0..CRASHES {
        // A group is some ten calls: some die at once, some live on.
        subject.doom(rng.below(200) as u64);
        let mut life = Life { states: vec![model], commits: Vec::new(), acknowledged: 0 };
        for _ in 0..rng.below(BATCHES) {
            life.step(subject, &mut rng, &mut claims);
        }
        life.take();
        subject.crash(rng.next());
        model = life.survivor(subject);
    }
}

/// From one power failure to the next.
struct Life {
    /// What there is before every batch, and after the last.
    states: Vec<Model>,
    /// One for each state but the first, and what the store must say if it can write.
    commits: Vec<(Commit, Result<(), StoreError>)>,
    /// The last state that must survive.
    acknowledged: usize,
}

impl Life {
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
        let changes = random::batch(rng, &model, claims);
        if changes.is_empty() {
            // Done at once, whatever is on its way.
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
                // A refusal says nothing about the batches before.
                if outcome.is_ok() {
                    self.acknowledged = self.commits.len();
                }
            }
        }
    }

    /// Looks what else was acknowledged.
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

    /// The state that the store is in again, which is one of those that may be.
    fn survivor(self, subject: &Subject<'_>) -> Model {
        let (image, next) = subject.recover();
        let plain = without_claims(&image);
        let must_survive = if subject.is_asynchronous() { 0 } else { self.acknowledged };
        let mut possible = self.states.into_iter().skip(must_survive);
        let mut model = possible
            .find(|model| without_claims(&model.image) == plain)
            .expect("what was acknowledged is there, and batches are there whole");
        model.recovered(&image);
        assert!(next.session.value() > model.highest_session && next.lsn.value() > model.highest_lsn);
        for lsn in 1..=model.highest_lsn {
            assert_eq!(subject.message(lsn), model.messages.get(&Lsn::new(lsn)).cloned(), "message {lsn}");
        }
        model
    }
}
