//! Writes of a link, and FINs of its streams.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use noq::PathId;
use tokio::time::{Instant, sleep_until};

use super::send_limit::{MIN_LIMIT, RESERVE};
use super::state::ConnectionState;
use super::stream::{CloseReason, WriteFailure};
use super::stream_finish::{PathCapacity, PendingFinish, Progress};
use super::write_scheduler::Turn;
use crate::transport::Read;

/// Round trip where none was measured.
const DEFAULT_RTT: Duration = Duration::from_millis(333);

/// Granularity of timers.
const MIN_RTT: Duration = Duration::from_millis(1);

impl ConnectionState {
    // -- Writes ------------------------------------------------------------------------------------

    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        key: StreamKey,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.handle_events();
        let Some(stream) = self.stream_mut(key).filter(|stream| stream.is_writable()) else {
            return Poll::Ready(Err(ended(key)));
        };
        let priority = stream.priority();
        let is_first = stream.written == 0 && !key.is_control();
        let max = match self.writes.scheduler.turn(key, priority) {
            Turn::Blocked => return Poll::Pending,
            Turn::AfterOthers => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Turn::Now(max) => max,
        };
        self.writes.limit.end_watch(&self.connection);
        match self.write(key, priority, slices, max) {
            Poll::Ready(Ok(written)) => {
                self.writes.scheduler.remove(key);
                if self.writes.unsent.handle_written(written, priority) {
                    self.writes.unsent.update(self.progress(), self.writes.limit.bytes());
                }
                if is_first && written > 0 {
                    self.writes.active.insert(key, priority);
                }
                self.note_urgency(key, priority, written);
                Poll::Ready(Ok(written))
            }
            Poll::Pending => {
                self.writes.scheduler.handle_refused(key, priority);
                self.writes.unsent.set_full(self.progress(), self.writes.limit.bytes());
                if !key.is_control()
                    && self.writes.urgency.handle_refused(priority, Instant::now())
                    && let Some(gate) = &self.gate
                {
                    gate.forget_urgent();
                }
                Poll::Pending
            }
            Poll::Ready(Err(WriteFailure::Lost(reason))) => Poll::Ready(Err(reason.into())),
            Poll::Ready(Err(WriteFailure::Ended)) => Poll::Ready(Err(ended(key))),
            Poll::Ready(Err(WriteFailure::Stopped(code))) if key.is_control() => {
                // The peer is about to end the connection. What it sent before is read first, so a read reports the
                // end.
                self.close_reason.get_or_insert(CloseReason::ControlStopped(code.into_inner()));
                self.writes.scheduler.handle_refused(key, priority);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Err(WriteFailure::Stopped(code))) => {
                self.handle_stop(key, code);
                cx.waker().wake_by_ref();
                Poll::Ready(Err(ended(key)))
            }
        }
    }

    /// Has the gate keep room for an urgent write. The control stream carries what keeps the connection alive.
    fn note_urgency(&mut self, key: StreamKey, priority: i32, written: usize) {
        if let Some(gate) = self.gate.as_ref().filter(|gate| gate.wants_urgent())
            && self.writes.active.count_below(priority) > 0
            && (key.is_control() || self.writes.urgency.handle_written(priority, Instant::now()))
        {
            gate.handle_urgent(written);
        }
    }

    fn write(
        &mut self,
        key: StreamKey,
        priority: i32,
        slices: &[IoSlice<'_>],
        max: usize,
    ) -> Poll<Result<usize, WriteFailure>> {
        let Self { control, streams, connection, writes, gate, .. } = self;
        let stream = match key.is_control() {
            true => control,
            false => match streams.get_mut(&key) {
                Some(stream) => stream.as_mut(),
                None => return Poll::Ready(Err(WriteFailure::Ended)),
            },
        };
        let mut outcome = stream.poll_write(slices, max);
        if outcome.is_pending() {
            let window = || Some(connection.path_stats(PathId::ZERO)?.cwnd.saturating_mul(2).max(MIN_LIMIT));
            let limit = gate.as_ref().and_then(|gate| gate.pending_limit()).or_else(window);
            if limit.is_some_and(|limit| writes.limit.update(connection, limit)) {
                outcome = stream.poll_write(slices, max);
            }
        }
        let lower = if outcome.is_pending() { writes.active.count_below(priority) } else { 0 };
        if lower > 0 {
            outcome = writes.limit.write_beyond(connection, lower, || stream.poll_write(slices, max));
        }
        outcome
    }

    // -- FINs --------------------------------------------------------------------------------------

    pub(crate) fn finish(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| stream.is_writable()) else { return };
        if stream.written == 0 {
            return self.finish_now(key);
        }
        stream.is_finishing = true;
        let (priority, written) = (stream.priority(), stream.written);
        self.writes.scheduler.remove(key);
        self.writes.unsent.update(self.progress(), self.writes.limit.bytes());
        self.finish_later(key, PendingFinish::new(self.writes.unsent.mark(priority, written)));
        // The next read sees to it.
        self.events.waker.wake_by_ref();
    }

    fn finish_now(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.finish();
            self.handle_send_ended(key);
        }
    }

    fn finish_later(&mut self, key: StreamKey, finish: PendingFinish) {
        let Some(stream) = self.streams.get(&key) else { return };
        let capacity = self.capacity();
        let contention = self.writes.scheduler.contention(stream.priority(), self.blocked_limit(&capacity));
        // Equals are sent in turns with it.
        let before = stream.written.min(self.writes.limit.bytes()).saturating_mul(1 + contention.equals);
        let due = (Instant::now() + capacity.delivery_time(before)).min(finish.latest());
        self.writes.finishes.by_due.insert((due, key), finish);
    }

    /// Everything is acknowledged, if the number is that of the present watch.
    pub(super) fn handle_acknowledged(&mut self, number: u32) {
        if self.writes.limit.is_watch(number) {
            self.writes.limit.end_watch(&self.connection);
            while let Some(((_, key), _)) = self.writes.finishes.by_due.pop_first() {
                self.finish_now(key);
            }
        }
    }

    /// Sends the FINs that are due, reports a new address of the peer, and sets the timer for the rest.
    pub(super) fn poll_finishes(&mut self, cx: &mut Context<'_>) -> Option<Read> {
        loop {
            self.watch_acknowledgement();
            let finish = self.next_finish().map(|(due, _)| due);
            let Some(due) = finish.into_iter().chain(self.role.next_poll()).min() else {
                self.writes.finishes.timer = None;
                return None;
            };
            let timer = self.writes.finishes.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if due < timer.deadline() {
                timer.as_mut().reset(due);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return None;
            }
            self.writes.finishes.timer = None;
            if let Some(address) = self.role.take_new_address() {
                return Some(Read::Moved(address));
            }
            self.finish_due();
        }
    }

    /// Sends the FINs that are due. One waits on behind a higher priority that fills the connection, while its bytes
    /// may be unsent, and while nothing was written since and not everything is acknowledged: some of it was lost.
    fn finish_due(&mut self) {
        let now = Instant::now();
        let (progress, capacity) = (self.progress(), self.capacity());
        let is_retransmitting = self.writes.limit.is_quiet_for(capacity.delivery_time(0) / 2);
        while let Some((due, key)) = self.next_finish().filter(|(due, _)| *due <= now) {
            let Some(finish) = self.writes.finishes.by_due.remove(&(due, key)) else { return };
            let is_outranked = || {
                let priority = self.streams.get(&key).map(|stream| stream.priority())?;
                Some(self.writes.scheduler.contention(priority, self.blocked_limit(&capacity)).is_outranked)
            };
            let has_to_wait = is_retransmitting
                || finish.may_be_unsent(&self.writes.unsent, progress)
                || is_outranked().unwrap_or(false);
            if now < finish.latest() && has_to_wait {
                self.finish_later(key, finish);
            } else {
                self.finish_now(key);
            }
        }
    }

    /// The FIN that is due first without an acknowledgement.
    fn next_finish(&mut self) -> Option<(Instant, StreamKey)> {
        while let Some(first) = self.writes.finishes.by_due.first_entry() {
            let (due, key) = *first.key();
            if self.streams.get(&key).is_some_and(|stream| stream.is_finishing && stream.send.is_some()) {
                return Some((due, key));
            }
            first.remove();
        }
        None
    }

    /// Watches for the acknowledgement of everything, if FINs wait for it.
    fn watch_acknowledgement(&mut self) {
        if self.writes.limit.is_watching() {
            return;
        }
        let Some((_, key)) = self.next_finish() else { return };
        if self.writes.scheduler.is_any_blocked(self.blocked_limit(&self.capacity())) {
            return;
        }
        if let Some(send) = self.streams.get_mut(&key).and_then(|stream| stream.send.as_mut()) {
            self.writes.limit.begin_watch(&self.connection, key, send, &self.wakers);
        }
    }

    fn progress(&self) -> Progress {
        Progress::from(self.connection.stats())
    }

    pub(super) fn capacity(&self) -> PathCapacity {
        // Where a gate decides, the window of the congestion controller is open or closed and says nothing about the
        // path: the gate is asked for its own limit.
        let window = self.gate.as_ref().and_then(|gate| gate.pending_limit());
        let window = window.or_else(|| self.connection.path_stats(PathId::ZERO).map(|path| path.cwnd));
        match (self.connection.rtt(PathId::ZERO), window) {
            (Some(rtt), Some(window)) => PathCapacity { rtt: rtt.max(MIN_RTT), window },
            _ => PathCapacity { rtt: DEFAULT_RTT, window: self.writes.limit.bytes() },
        }
    }

    /// Time after which a stream without room is one that its receiver does not read.
    pub(super) fn blocked_limit(&self, capacity: &PathCapacity) -> Duration {
        capacity.delivery_time(self.writes.limit.bytes() + RESERVE)
    }
}

/// The stream has ended; the link lives.
fn ended(key: StreamKey) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, format!("{key} has ended"))
}
