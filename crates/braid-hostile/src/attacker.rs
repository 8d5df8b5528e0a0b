//! The attacker: tasks of one process with the lowest priority of the scheduler.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use braid_transport::ClientTls;
use serde::{Deserialize, Serialize};
use tokio::task::{JoinSet, LocalSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::target::Target;

/// Nice value of the process: beside one of 0 it gets 15 of 1,039 parts of a core (sched(7)). A real attacker has
/// machines of its own, so its processor time must not count as an effect of the attack.
const NICE: i32 = 19;
/// Pause of a worker that the broker has refused.
const AFTER_REFUSAL: Duration = Duration::from_millis(10);

/// An attack that runs until the end of its attacker.
pub(crate) type Attack = fn(Rc<Attacker>) -> Pin<Box<dyn Future<Output = ()>>>;

/// State of an attack.
pub(crate) struct Attacker {
    pub(crate) target: Target,
    /// Shared by connections that do not resume sessions of TLS.
    pub(crate) tls: ClientTls,
    end: Instant,
    /// Time of the next step of [`Attacker::pace`].
    next_step: Cell<Instant>,
    done: Cell<u64>,
    refused: Cell<u64>,
    fault: RefCell<Option<String>>,
}

/// Counters of an attack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// Units of the attack that were carried out, of the kind that the row names.
    pub(crate) done: u64,
    /// Connections that the broker closed or refused, or that failed otherwise.
    pub(crate) refused: u64,
    /// Rule that the broker broke towards the attacker.
    pub(crate) fault: Option<String>,
}

/// Runs an attack for `seconds`.
///
/// # Errors
/// The process cannot lower its priority, or has no runtime.
pub(crate) fn run(attack: Attack, target: Target, seconds: Duration) -> Result<Counters, String> {
    rustix::process::setpriority_process(None, NICE)
        .map_err(|error| format!("cannot set the nice value {NICE}: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let tasks = LocalSet::new();
    let counters = tasks.block_on(&runtime, async {
        let now = Instant::now();
        let attacker = Rc::new(Attacker {
            tls: target.tls(),
            target,
            end: now + seconds,
            next_step: Cell::new(now),
            done: Cell::new(0),
            refused: Cell::new(0),
            fault: RefCell::new(None),
        });
        // Attacks end at `end`, those that prepare something too.
        let _ = timeout_at(attacker.end, attack(Rc::clone(&attacker))).await;
        attacker.counters()
    });
    // Tasks that close connections in the background are not waited for.
    runtime.shutdown_background();
    Ok(counters)
}

impl Attacker {
    fn counters(&self) -> Counters {
        let (done, refused) = (self.done.get(), self.refused.get());
        Counters { done, refused, fault: self.fault.borrow().clone() }
    }

    /// Counts units of the attack.
    pub(crate) fn count(&self, units: u64) {
        self.done.set(self.done.get() + units);
    }

    /// Reports a rule that the broker broke.
    pub(crate) fn fault(&self, fault: impl Into<String>) {
        self.fault.borrow_mut().get_or_insert(fault.into());
    }

    /// Result of a step without which the attack has no effect; its failure is a fault.
    pub(crate) fn prepared<T>(&self, what: &str, step: io::Result<T>) -> Option<T> {
        step.inspect_err(|error| self.fault(format!("{what} failed before the attack: {error}"))).ok()
    }

    /// Waits for the next of `rate` steps per second of all workers together.
    pub(crate) async fn pace(&self, rate: f64) {
        // Steps that were missed for longer than this are left out.
        let earliest = Instant::now() - Duration::from_millis(50);
        let due = self.next_step.get().max(earliest);
        self.next_step.set(due + Duration::from_secs_f64(1.0 / rate));
        sleep_until(due).await;
        yield_now().await;
    }

    /// Runs `number` workers, each of which repeats `work` with its own number until the end of the attack. An error
    /// of `work` counts as a refusal.
    pub(crate) async fn workers<F>(
        self: &Rc<Self>,
        number: usize,
        work: impl Fn(Rc<Self>, usize) -> F + 'static,
    ) where
        F: Future<Output = io::Result<()>> + 'static,
    {
        let work = Rc::new(work);
        let mut workers = JoinSet::new();
        for at in 0..number {
            let (attacker, work) = (Rc::clone(self), Rc::clone(&work));
            workers.spawn_local(async move {
                loop {
                    if work(Rc::clone(&attacker), at).await.is_err() {
                        attacker.refused.set(attacker.refused.get() + 1);
                        sleep(AFTER_REFUSAL).await;
                    }
                    yield_now().await;
                }
            });
        }
        sleep_until(self.end).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_preparation_is_a_fault() {
        let home = tempfile::tempdir().expect("a directory");
        let target = Target::free(home.path()).expect("free ports");
        let now = Instant::now();
        let attacker = Attacker {
            tls: target.tls(),
            target,
            end: now,
            next_step: Cell::new(now),
            done: Cell::new(0),
            refused: Cell::new(0),
            fault: RefCell::new(None),
        };
        assert_eq!(attacker.prepared("a step", Ok(7)), Some(7));
        assert_eq!(attacker.counters(), Counters::default());
        assert_eq!(attacker.prepared::<u8>("a step", Err(io::ErrorKind::UnexpectedEof.into())), None);
        let fault = attacker.counters().fault.expect("a fault");
        assert!(fault.starts_with("a step failed before the attack: "), "{fault}");
    }
}
