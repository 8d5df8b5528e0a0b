//! Changes of the addresses of this machine, as the system reports them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use if_watch::tokio::IfWatcher;
use tokio::time::{Sleep, sleep};
use tracing::debug;

/// Watcher of the addresses of this machine. Where the system has none, nothing is ever reported: changes then show as
/// silence.
#[derive(Default)]
pub(super) struct NetworkChanges {
    watcher: Option<IfWatcher>,
    has_failed: bool,
    /// Looks that are still to come after the latest change, and the time of the next one.
    looks: Option<(usize, Pin<Box<Sleep>>)>,
}

/// Pauses before further looks at the routes after a change of addresses: routes are set after them, and of these the
/// watcher tells nothing.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3)];

impl std::fmt::Debug for NetworkChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetworkChanges").field("has_failed", &self.has_failed).finish_non_exhaustive()
    }
}

impl NetworkChanges {
    /// Ready when addresses have come or gone, and some more times after that.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.poll_addresses(cx).is_ready() {
            self.look_again(0);
            return Poll::Ready(());
        }
        let Some((number, sleep)) = &mut self.looks else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        let next = *number + 1;
        self.look_again(next);
        Poll::Ready(())
    }

    fn look_again(&mut self, number: usize) {
        self.looks = LOOKS.get(number).map(|pause| (number, Box::pin(sleep(*pause))));
    }

    fn poll_addresses(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_failed {
            return Poll::Pending;
        }
        if self.watcher.is_none() {
            match IfWatcher::new() {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(error) => return self.fail(&error),
            }
        }
        let Some(watcher) = &mut self.watcher else { return Poll::Pending };
        let mut has_changed = false;
        loop {
            match watcher.poll_if_event(cx) {
                Poll::Ready(Ok(event)) => {
                    debug!(?event, "the addresses of this machine have changed");
                    has_changed = true;
                }
                Poll::Ready(Err(error)) => return self.fail(&error),
                Poll::Pending if has_changed => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn fail(&mut self, error: &std::io::Error) -> Poll<()> {
        debug!(%error, "the system does not report changes of addresses");
        self.has_failed = true;
        self.watcher = None;
        Poll::Pending
    }
}
