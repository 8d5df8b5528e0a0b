//! What bounds the loss of an asynchronous store.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::group::Waiting;
use crate::commit::{Completer, Completion};
use crate::error::StoreError;

/// Through it batches are done that are not durable, as long as the oldest that is not is young enough: what a crash
/// loses of what was done was then done within one window. While the device is slower than that, it is closed, and
/// whoever comes waits until it is open again or what they handed over is durable.
pub(super) struct Window {
    at_risk: Duration,
    /// In the order of the calls, which nobody overtakes.
    held: VecDeque<Held>,
}

struct Held {
    /// The number of the group that the batch is in.
    group: u64,
    completer: Completer<()>,
    outcome: Result<(), StoreError>,
}

impl Window {
    pub(super) const fn new(at_risk: Duration) -> Self {
        Self { at_risk, held: VecDeque::new() }
    }

    /// A batch of the group with this number, handed over now; `oldest`: when the oldest that is not durable was.
    pub(super) fn pass(
        &mut self,
        outcome: Result<(), StoreError>,
        group: u64,
        oldest: Option<Instant>,
        now: Instant,
    ) -> Completion<()> {
        if self.held.is_empty() && self.is_open(oldest, now) {
            return Completion::Done(outcome);
        }
        let (completer, completion) = Completion::pending();
        self.held.push_back(Held { group, completer, outcome });
        completion
    }

    /// Who may be told by now: everybody if it is open, otherwise those in groups before the one with this number, which
    /// are durable.
    pub(super) fn let_go(&mut self, group: u64, oldest: Option<Instant>, now: Instant) -> Waiting {
        let count = if self.is_open(oldest, now) {
            self.held.len()
        } else {
            self.held.iter().take_while(|held| held.group < group).count()
        };
        self.held.drain(..count).map(|held| (held.completer, held.outcome)).collect()
    }

    /// What of the acknowledged survives a failure of the device.
    pub(super) fn safe(&self) -> String {
        if self.at_risk.is_zero() {
            return "what was acknowledged is safe".to_owned();
        }
        let milliseconds = self.at_risk.as_secs_f64() * 1000.0;
        format!(
            "what was acknowledged is safe but for the last {milliseconds} ms before the device stopped (durability is async)"
        )
    }

    /// Everybody, for the store has failed.
    pub(super) fn give_up(&mut self) -> Waiting {
        self.held.drain(..).map(|held| (held.completer, held.outcome)).collect()
    }

    fn is_open(&self, oldest: Option<Instant>, now: Instant) -> bool {
        oldest.is_none_or(|oldest| now.saturating_duration_since(oldest) < self.at_risk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(100);

    fn tell(waiting: Waiting) -> usize {
        let count = waiting.len();
        waiting.into_iter().for_each(|(completer, outcome)| completer.complete(outcome));
        count
    }

    #[test]
    fn it_is_closed_while_the_oldest_is_too_old_and_nobody_overtakes() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut window = Window::new(WINDOW);
        // Group 1 began at 0 and is being written from 50 on, group 2 begins then.
        for now in [0, 50, 99] {
            assert!(
                matches!(window.pass(Ok(()), 2, Some(at(0)), at(now)), Completion::Done(Ok(()))),
                "{now}"
            );
        }
        let refused = Err(StoreError::Closed);
        let mut first = window.pass(refused.clone(), 2, Some(at(0)), at(100));
        let mut second = window.pass(Ok(()), 2, Some(at(50)), at(120));
        assert_eq!((first.try_take(), second.try_take()), (None, None), "the second came later");
        // Group 1 is durable in time: nothing of group 2 is, and everybody is told.
        assert_eq!(tell(window.let_go(2, Some(at(50)), at(149))), 2);
        assert_eq!((first.try_take(), second.try_take()), (Some(refused), Some(Ok(()))));
    }

    #[test]
    fn what_was_passed_and_not_written_is_not_called_safe() {
        assert_eq!(Window::new(Duration::ZERO).safe(), "what was acknowledged is safe");
        let safe = Window::new(WINDOW).safe();
        assert!(safe.contains("safe but for the last 100 ms"), "{safe}");
    }

    #[test]
    fn while_the_device_is_slower_who_is_durable_is_told() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut window = Window::new(WINDOW);
        let mut commits: Vec<_> =
            [2, 2, 3].map(|group| window.pass(Ok(()), group, Some(at(0)), at(5000))).into();
        let mut told = || commits.iter_mut().map(|commit| commit.try_take().is_some()).collect::<Vec<_>>();
        assert_eq!(tell(window.let_go(2, Some(at(50)), at(5050))), 0, "group 1 is durable");
        assert_eq!(told(), [false, false, false]);
        assert_eq!(tell(window.let_go(3, Some(at(5000)), at(10_000))), 2, "group 2 is");
        assert_eq!(told(), [true, true, false]);
        assert_eq!(tell(window.let_go(4, None, at(15_000))), 1, "nothing is on its way");
        assert!(matches!(window.pass(Ok(()), 4, None, at(15_000)), Completion::Done(Ok(()))));
    }
}
