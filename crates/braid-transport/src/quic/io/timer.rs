//! Clock, and timer of a connection.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};

/// Clock of the runtime.
pub(in crate::quic) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Timer whose deadline moves with most packets.
#[derive(Default)]
pub(super) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Ready at `at` or before: an end that moves back is not set again until the earlier one has come, because that
    /// costs a lock of the runtime's timers with each packet.
    pub(super) fn poll(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = at.map(tokio::time::Instant::from_std) else {
            // An idle connection keeps no timer.
            self.sleep = None;
            return Poll::Pending;
        };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.is_elapsed() || at < sleep.deadline() {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx)
    }
}
