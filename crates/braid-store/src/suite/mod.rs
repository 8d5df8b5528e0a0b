//! Conformance suite of stores: each obligation of [`Store`], [`Change`](crate::Change) and
//! [`Recover`](crate::Recover) is a case, and random operations are compared with a naive model.
//!
//! A store's tests implement [`Fixture`] and call [`run`]; a failing case panics and prints its name, a failing
//! random run its seed.

/// Lists functions of a module as cases, by their names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(super) const CASES: &[crate::suite::Case] =
            &[$(crate::suite::Case { name: stringify!($name), run: $name }),*];
    };
}

mod batches;
mod example;
mod messages;
mod model;
mod random;
mod sessions;
mod subject;

use crate::store::Store;
use subject::Subject;

/// Factory of the stores under test.
pub trait Fixture {
    /// A new, empty store; earlier ones are no longer used.
    fn open(&mut self) -> Box<dyn Store>;

    /// Closes the store as its owner would, or lets it crash, and opens its content again.
    fn reopen(&mut self, store: Box<dyn Store>) -> Box<dyn Store>;

    /// Simulates a power failure and opens the content that survived: all acknowledged batches, and a prefix of the
    /// others. `seed` seeds its random choices. A fixture whose store loses nothing reopens it.
    fn crash(&mut self, store: Box<dyn Store>, seed: u64) -> Box<dyn Store> {
        let _ = seed;
        self.reopen(store)
    }

    /// True for a store that acknowledges batches before they are durable, so that a power failure may lose the last
    /// ones.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Schedules a power failure of the last store after `calls` further calls that change its device, if it has one.
    fn fail_after(&mut self, calls: u64) {
        let _ = calls;
    }

    /// Another value over the same stored state, as another node of a cluster has it; `None` where a store has only one
    /// writer.
    fn beside(&mut self) -> Option<Box<dyn Store>> {
        None
    }
}

/// Test of one obligation.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The obligation.
    pub name: &'static str,
    run: fn(&mut Subject<'_>),
}

impl Case {
    /// Runs the test on a new store.
    ///
    /// # Panics
    /// When the store does not meet the obligation.
    pub fn run(&self, fixture: &mut dyn Fixture) {
        let _name = PrintOnPanic(format!("the case `{}`", self.name));
        (self.run)(&mut Subject::new(fixture));
    }
}

/// Every case.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [sessions::CASES, messages::CASES, batches::CASES].into_iter().flatten()
}

/// Runs every case, and `runs` random runs with the seeds from 0.
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

/// Compares the store with a naive model over random operations.
///
/// # Panics
/// When the store and the model differ.
pub fn run_random(fixture: &mut dyn Fixture, seed: u64) {
    let _seed = PrintOnPanic(format!("the random run with seed {seed}"));
    random::run(&mut Subject::new(fixture), seed);
}

/// Random operations, most without waiting, with power failures among them: every acknowledged batch survives, and
/// batches survive whole and in their order.
///
/// # Panics
/// When the store's content is no such state.
pub fn run_crashes(fixture: &mut dyn Fixture, seed: u64) {
    let _seed = PrintOnPanic(format!("the run of crashes with seed {seed}"));
    random::run_crashes(&mut Subject::new(fixture), seed);
}

/// Prints the name of the running test if it panics.
struct PrintOnPanic(String);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the store failed {}", self.0);
        }
    }
}
