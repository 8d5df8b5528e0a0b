//! What every store must pass: each obligation of [`Store`], [`Change`](crate::Change) and [`Recover`](crate::Recover) is a
//! case, and random operations are compared with a naive model.
//!
//! A store's tests give a [`Fixture`] and call [`run`]; a failing case panics and prints its name, a failing
//! random run its seed.

/// Names the functions of a module as cases.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(super) const CASES: &[crate::suite::Case] =
            &[$(crate::suite::Case { name: stringify!($name), run: $name }),*];
    };
}

mod batches;
mod claims;
mod crash;
mod example;
mod model;
mod queues;
mod random;
mod retained;
mod sessions;
mod subject;

use crate::store::Store;
use subject::Subject;

/// Makes the stores that the suite tries.
pub trait Fixture {
    /// A new, empty store; what was made before is not used any more.
    fn open(&mut self) -> Box<dyn Store>;

    /// Closes the store as its owner would and opens it again over what it holds. A fixture may as well let
    /// it crash.
    fn reopen(&mut self, store: Box<dyn Store>) -> Box<dyn Store>;

    /// Takes the power from the store at this moment, and opens again what survived: everything that was
    /// acknowledged, and of the rest a beginning of whole batches. Chance goes by `seed`. A fixture whose store
    /// loses nothing opens it again.
    fn crash(&mut self, store: Box<dyn Store>, seed: u64) -> Box<dyn Store> {
        let _ = seed;
        self.reopen(store)
    }

    /// Whether the store says that a batch is done before it is durable. Then a power failure may take the last of those
    /// too.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Takes the power from the last store after `calls` further calls that change its device, if it has one.
    fn doom(&mut self, calls: u64) {
        let _ = calls;
    }

    /// Another value beside the last one, over the same stored state, as another node of a cluster has it.
    /// `None` where a store has one writer only.
    fn beside(&mut self) -> Option<Box<dyn Store>> {
        None
    }
}

/// One obligation and how it is tried.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The obligation.
    pub name: &'static str,
    run: fn(&mut Subject<'_>),
}

impl Case {
    /// Tries it on a new store.
    ///
    /// # Panics
    /// When the store does not meet the obligation.
    pub fn run(&self, fixture: &mut dyn Fixture) {
        let _name = Shown(format!("the case `{}`", self.name));
        (self.run)(&mut Subject::new(fixture));
    }
}

/// Every case.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [sessions::CASES, queues::CASES, retained::CASES, claims::CASES, batches::CASES].into_iter().flatten()
}

/// Tries every case, and `runs` random ones with the seeds from 0.
///
/// # Panics
/// When the store does not meet an obligation.
pub fn run(fixture: &mut dyn Fixture, runs: u64) {
    for case in cases() {
        case.run(fixture);
    }
    for seed in 0..runs {
        run_random(fixture, seed);
    }
}

/// Random operations against a naive model.
///
/// # Panics
/// When the store and the model differ.
pub fn run_random(fixture: &mut dyn Fixture, seed: u64) {
    let _seed = Shown(format!("the random run with seed {seed}"));
    random::run(&mut Subject::new(fixture), seed);
}

/// Random operations, most of them not waited for, with power failures among them: what was acknowledged is
/// there, batches are there whole and in their order.
///
/// # Panics
/// When the store lost or invented something.
pub fn run_crashes(fixture: &mut dyn Fixture, seed: u64) {
    let _seed = Shown(format!("the run of crashes with seed {seed}"));
    crash::run(&mut Subject::new(fixture), seed);
}

/// Says what was tried when it fails.
struct Shown(String);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the store failed {}", self.0);
        }
    }
}
