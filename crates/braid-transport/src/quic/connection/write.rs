//! Writing a link.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use tokio::time::Instant;

use super::close_reason::CloseReason;
use super::state::ConnectionState;
use super::stream::Refusal;
use super::write_scheduler::Turn;

impl ConnectionState {
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        key: StreamKey,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.answer_bells();
        let Some(stream) = self.stream_mut(key).filter(|stream| stream.is_writable()) else {
            return Poll::Ready(Err(ended(key)));
        };
        let priority = stream.priority();
        let is_first = stream.written == 0 && !key.is_control();
        let most = match self.write_scheduler.turn(key, priority) {
            Turn::Blocked => return Poll::Pending,
            Turn::AfterOthers => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Turn::Now(most) => most,
        };
        self.window.open(&self.connection);
        let outcome = self.write(key, priority, slices, most);
        match outcome {
            Poll::Ready(Ok(written)) => {
                self.write_scheduler.forget(key);
                if self.unsent_bytes.wrote(written, priority) {
                    self.unsent_bytes.look(self.progress(), self.window.size());
                }
                if is_first && written > 0 {
                    self.active_priorities.insert(key, priority);
                }
                if self.is_urgent(key, priority) {
                    self.gating.handle_urgent(written);
                }
                Poll::Ready(Ok(written))
            }
            Poll::Pending => {
                self.write_scheduler.refused(key, priority);
                self.unsent_bytes.fill(self.progress(), self.window.size());
                if !key.is_control() && self.urgency.refused(priority, Instant::now()) {
                    self.gating.forget_urgent();
                }
                Poll::Pending
            }
            Poll::Ready(Err(Refusal::Lost(close_reason))) => Poll::Ready(Err(close_reason.into())),
            Poll::Ready(Err(Refusal::Ended)) => Poll::Ready(Err(ended(key))),
            Poll::Ready(Err(Refusal::Stopped(code))) if key.is_control() => {
                // The peer is about to end the connection. What it said before is read first, so
                // the end is told by a read.
                self.close_reason.get_or_insert(CloseReason::control_stopped(code));
                self.write_scheduler.refused(key, priority);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Err(Refusal::Stopped(code))) => {
                self.stopped_by_peer(key, code);
                cx.waker().wake_by_ref();
                Poll::Ready(Err(ended(key)))
            }
        }
    }

    /// Whether the gate has to keep room for what was written now. The control stream carries what keeps the connection
    /// alive.
    fn is_urgent(&mut self, key: StreamKey, priority: i32) -> bool {
        self.gating.wants_urgent()
            && self.active_priorities.lower(priority) > 0
            && (key.is_control() || self.urgency.wrote(priority, Instant::now()))
    }

    fn write(
        &mut self,
        key: StreamKey,
        priority: i32,
        slices: &[IoSlice<'_>],
        most: usize,
    ) -> Poll<Result<usize, Refusal>> {
        let Some(stream) = self.stream_mut(key) else { return Poll::Ready(Err(Refusal::Ended)) };
        let mut outcome = stream.poll_write(slices, most);
        if outcome.is_pending() && self.window.follow(&self.connection, self.gating.backlog()) {
            let Some(stream) = self.stream_mut(key) else { return Poll::Ready(Err(Refusal::Ended)) };
            outcome = stream.poll_write(slices, most);
        }
        if outcome.is_ready() {
            return outcome;
        }
        let lower = self.active_priorities.lower(priority);
        if lower == 0 {
            return Poll::Pending;
        }
        let stream = match key.is_control() {
            true => &mut self.control,
            false => match self.streams.get_mut(&key) {
                Some(stream) => stream.as_mut(),
                None => return Poll::Ready(Err(Refusal::Ended)),
            },
        };
        self.window.write_beyond(&self.connection, lower, || stream.poll_write(slices, most))
    }
}

/// The stream has ended; the link lives.
fn ended(key: StreamKey) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, format!("{key} has ended"))
}
