//! Writes of a link, and FINs of its streams.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::stream::{Priority, StreamKey};
use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::datagrams::DatagramCounts;
use super::send_limit::{MIN_LIMIT, RESERVE};
use super::state::ConnectionState;
use super::stream::{CloseReason, WriteFailure};
use super::stream_finish::{PathCapacity, PendingFinish, Progress};
use super::write_scheduler::Turn;
use crate::quic::codes::{CLOSE_ABNORMAL, code};
use crate::quic::early::Early;
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
        if let Some(reason @ CloseReason::EarlyDataRejected) = &self.close_reason {
            return Poll::Ready(Err(reason.clone().into()));
        }
        let Some(stream) = self.stream_mut(key).filter(|stream| stream.is_writable()) else {
            return Poll::Ready(Err(ended(key)));
        };
        let priority = stream.priority();
        let is_first = stream.written == 0 && !key.is_control();
        if let Some(error) = self.connection.error() {
            return Poll::Ready(Err(CloseReason::Connection(error.clone()).into()));
        }
        let max = match self.writes.scheduler.turn(key, priority) {
            Turn::Blocked => return Poll::Pending,
            Turn::AfterOthers => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Turn::Now(max) => max,
        };
        self.writes.limit.end_watch(&mut self.connection);
        match self.write(key, priority, slices, max) {
            Poll::Ready(Ok(written)) => {
                self.writes.scheduler.remove(key);
                if self.writes.unsent.handle_written(written, priority, is_first) {
                    self.update_unsent();
                }
                if is_first && written > 0 {
                    self.writes.active.insert(key, priority);
                }
                self.note_urgency(key, priority, written);
                if let Some(datagrams) = &mut self.datagrams {
                    datagrams.note_written(key, priority, written);
                }
                Poll::Ready(Ok(written))
            }
            Poll::Pending => {
                self.writes.scheduler.handle_refused(key, priority);
                self.writes.refused += 1;
                let progress = self.progress();
                self.writes.unsent.set_full(progress, self.writes.limit.bytes());
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
        let Some(gate) = self.gate.as_ref().filter(|gate| !gate.is_passthrough()) else { return };
        let now = Instant::now();
        let datagrams = self.datagrams.as_ref();
        let has_lower = self.writes.active.count_below(priority) > 0
            || datagrams.is_some_and(|datagrams| datagrams.is_used_below(priority, now));
        if has_lower && (key.is_control() || self.writes.urgency.handle_written(priority, now)) {
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
        let mut outcome = stream.poll_write(connection, slices, max);
        if outcome.is_pending() {
            let window = || Some(connection.congestion_window()?.saturating_mul(2).max(MIN_LIMIT));
            let limit = gate.as_ref().and_then(|gate| gate.pending_limit()).or_else(window);
            if limit.is_some_and(|limit| writes.limit.update(connection, limit)) {
                outcome = stream.poll_write(connection, slices, max);
            }
        }
        let lower = if outcome.is_pending() { writes.active.count_below(priority) } else { 0 };
        if let Poll::Ready(Ok(_)) = outcome {
            writes.limit.note_room();
        }
        if lower > 0 {
            writes.limit.widen(connection, lower);
            outcome = stream.poll_write(connection, slices, max);
            writes.limit.narrow(connection);
        }
        outcome
    }

    // -- Datagrams ---------------------------------------------------------------------------------

    /// Largest datagram that may be sent now; `None` if either end takes none.
    pub(crate) fn datagram_size(&mut self) -> Option<usize> {
        self.connection.datagram_size()
    }

    /// Queues a datagram.
    pub(crate) fn send_datagram(&mut self, priority: Priority, datagram: Bytes) {
        if self.datagram_size().is_none_or(|size| size < datagram.len()) {
            return;
        }
        let Self { datagrams: Some(datagrams), writes, connection, gate, .. } = self else { return };
        let (priority, bytes, now) = (i32::from(priority.value()), datagram.len(), Instant::now());
        let has_lower = writes.active.count_below(priority) > 0 || datagrams.is_used_below(priority, now);
        let mut has_lost_urgent = false;
        datagrams.push(priority, datagram, now, |of| {
            has_lost_urgent |= writes.urgency.handle_refused(of, now);
        });
        connection.note_datagram(bytes);
        let Some(gate) = gate.as_ref().filter(|gate| !gate.is_passthrough()) else { return };
        if has_lost_urgent {
            gate.forget_urgent();
        }
        if has_lower && writes.urgency.handle_written(priority, now) {
            gate.handle_urgent(bytes);
        }
    }

    /// Number of datagrams that wait to be sent.
    pub(crate) fn unsent_datagrams(&self) -> usize {
        self.datagrams.as_ref().map_or(0, |datagrams| datagrams.unsent())
    }

    pub(crate) fn datagram_counts(&self) -> DatagramCounts {
        let (sent, dropped_unsent) = self.datagrams.as_ref().map_or((0, 0), |datagrams| datagrams.counts());
        let (received, dropped_unread) =
            self.connection.datagrams().map_or((0, 0), |frames| frames.received());
        DatagramCounts { sent, received, dropped_unsent, dropped_unread }
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
        self.update_unsent();
        let active = self.writes.active.count(priority);
        self.finish_later(key, PendingFinish::new(self.writes.unsent.mark(priority, written, active)));
    }

    fn finish_now(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.finish(&mut self.connection);
            self.handle_send_ended(key);
        }
    }

    fn finish_later(&mut self, key: StreamKey, finish: PendingFinish) {
        let capacity = self.capacity();
        let Some(stream) = self.streams.get(&key) else { return };
        let contention = self.writes.scheduler.contention(stream.priority(), self.blocked_limit(&capacity));
        // Equals are sent in turns with it.
        let before = stream.written.min(self.writes.limit.bytes()).saturating_mul(1 + contention.equals);
        let due = (Instant::now() + capacity.delivery_time(before)).min(finish.latest());
        self.writes.finishes.by_due.insert((due, key), finish);
    }

    /// Handles room for a stream: everything is acknowledged, if it is the one that is watched.
    pub(super) fn handle_room(&mut self, key: StreamKey) {
        if self.writes.limit.is_watched(key) {
            self.writes.limit.end_watch(&mut self.connection);
            while let Some(((_, key), _)) = self.writes.finishes.by_due.pop_first() {
                self.finish_now(key);
            }
        }
    }

    /// Sends the FINs and the allowance that are due, looks for a new address of the peer, and sets the timer for the
    /// rest. True if there is something to send.
    pub(super) fn poll_finishes(&mut self, cx: &mut Context<'_>) -> bool {
        let mut has_more = false;
        loop {
            self.watch_acknowledgement();
            let finish = self.next_finish().map(|(due, _)| due);
            let wait = self.early.as_ref().and_then(Early::until);
            let address = self.role.next_poll(&self.connection);
            let allowance = self.window.next_allowance();
            let retry = self.datagrams.as_ref().and_then(|datagrams| datagrams.retry_at());
            let due = finish.into_iter().chain(wait).chain(address).chain(allowance).chain(retry).min();
            let Some(due) = due else {
                self.writes.finishes.timer = None;
                return has_more;
            };
            let timer = self.writes.finishes.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if due < timer.deadline() {
                timer.as_mut().reset(due);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return has_more;
            }
            self.writes.finishes.timer = None;
            has_more |= self.datagrams.as_mut().is_some_and(|datagrams| datagrams.take_retry());
            if wait.is_some_and(|until| until <= Instant::now()) {
                self.end_wait();
                self.connection.close(code(CLOSE_ABNORMAL));
                has_more = true;
                cx.waker().wake_by_ref();
            }
            if let Some(address) = self.role.take_new_address(&mut self.connection) {
                self.reads.notices.push_back(Read::Moved(address));
                cx.waker().wake_by_ref();
            }
            if self.window.handle_timeout() {
                // Sends, and tells of an end.
                cx.waker().wake_by_ref();
            }
            has_more |= self.finish_due();
        }
    }

    /// Sends the FINs that are due. One waits on behind a higher priority that fills the connection, while its bytes
    /// may be unsent, and while nothing was written since and not everything is acknowledged: some of it was lost. True
    /// if one was sent.
    fn finish_due(&mut self) -> bool {
        let mut has_sent = false;
        let now = Instant::now();
        let progress = self.progress();
        let capacity = self.capacity();
        let is_retransmitting = self.writes.limit.is_quiet_for(capacity.delivery_time(0) / 2);
        while let Some((due, key)) = self.next_finish().filter(|(due, _)| *due <= now) {
            let Some(finish) = self.writes.finishes.by_due.remove(&(due, key)) else { break };
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
                has_sent = true;
            }
        }
        has_sent
    }

    /// The FIN that is due first without an acknowledgement.
    fn next_finish(&mut self) -> Option<(Instant, StreamKey)> {
        while let Some(first) = self.writes.finishes.by_due.first_entry() {
            let (due, key) = *first.key();
            if self.streams.get(&key).is_some_and(|stream| stream.is_finishing && stream.is_sending) {
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
        let capacity = self.capacity();
        if !self.writes.scheduler.is_any_blocked(self.blocked_limit(&capacity)) {
            self.writes.limit.begin_watch(&mut self.connection, key);
        }
    }

    fn progress(&mut self) -> Progress {
        Progress::from(self.connection.stats())
    }

    fn update_unsent(&mut self) {
        let progress = self.progress();
        self.writes.unsent.update(progress, self.writes.limit.bytes());
    }

    pub(super) fn capacity(&mut self) -> PathCapacity {
        // Where a gate decides, the window of the congestion controller is open or closed and says nothing about the
        // path: the gate is asked for its own limit.
        let window = self.gate.as_ref().and_then(|gate| gate.pending_limit());
        let window = window.or_else(|| self.connection.congestion_window());
        match (self.connection.rtt(), window) {
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
