//! Changes of the addresses of this machine, as the system reports them.

use std::task::{Context, Poll};

use if_watch::tokio::IfWatcher;
use tracing::debug;

/// Watcher of the addresses of this machine. Where the system has none, nothing is ever reported: changes then show as
/// silence.
#[derive(Default)]
pub(super) struct NetworkChanges {
    watcher: Option<IfWatcher>,
    has_failed: bool,
}

impl std::fmt::Debug for NetworkChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetworkChanges").field("has_failed", &self.has_failed).finish_non_exhaustive()
    }
}

impl NetworkChanges {
    /// Ready when addresses have come or gone.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
