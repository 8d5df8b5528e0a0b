//! Ends of data streams, and of the connection.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_proto::connection::{Cause, StreamAction};
use braid_proto::packet::{Disconnect, PacketId};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::quic::codes::{CLOSE_ABNORMAL, CLOSE_NORMAL};
use braid_transport::{Close, Read};
use tokio::io::ReadBuf;
use tracing::debug;

use super::Connection;
use super::streams::{Phase, StreamDeadline};
use crate::error::Error;
use crate::lanes::LaneStream;
use crate::state::ClientState;

/// Time for which a lane waits for stream credit before it uses the control stream.
const CREDIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Credit timeout for a lane of large messages, which would delay everything on the control stream.
const OWN_CREDIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a lane waits for the server's FIN after that of this side.
const FIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a lane waits for the server's FIN on a stream that carried QoS 0: QUIC may still buffer a window of
/// it, 2 MiB with the broker of this workspace, which takes longer than this below 35 kB/s. The lane then goes on
/// without it.
const UNCONFIRMED_TIMEOUT: Duration = Duration::from_secs(60);
/// Error code of a stream that is reset because its message has expired. MQTT has no Reason Code for that; this one
/// stands for "none of the other Reason Codes apply" (MQTT 5, 3.14.2.1).
const EXPIRED: ReasonCode = ReasonCode::UnspecifiedError;
/// Time limit for the last bytes of a closed connection.
const LINGER: Duration = Duration::from_secs(2);
/// Longest wait for the answers to an application that closes: some clocks cannot tell a time that is further away.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum number of reads of one poll while a closed connection waits for the end by the server: a server that never
/// stops sending must not hold the thread past the deadline.
const LAST_READS: usize = 32;

impl Connection {
    // -- Streams -----------------------------------------------------------------------------------

    /// Takes no further request on a stream, which ends once its messages are acknowledged.
    pub(super) fn begin_end(&mut self, state: &mut ClientState, stream: StreamKey) {
        if let Some(lane) = self.streams.begin_end(stream) {
            state.lanes.set_stream(lane, LaneStream::Ending(stream));
        }
    }

    /// Begins to end the open streams that carried QoS 0, which only the server's FIN confirms.
    pub(super) fn confirm_streams(&mut self, state: &mut ClientState) {
        for stream in self.streams.unconfirmed() {
            self.begin_end(state, stream);
        }
    }

    /// Ends streams whose messages are acknowledged and written. True: there were some.
    pub(super) fn end_streams(&mut self, state: &mut ClientState, now: Instant) -> bool {
        let mut has_ended = false;
        let mut next = 0;
        while let Some(stream) = self.streams.ending().get(next).copied() {
            let is_written = self.protocol.outbox(stream).is_none_or(|outbox| outbox.is_empty());
            match self.streams.get(stream) {
                Some(known) if !known.has_inflight() && is_written => {
                    let timeout = if known.has_unconfirmed() { UNCONFIRMED_TIMEOUT } else { FIN_TIMEOUT };
                    self.streams.end(stream, Some(now + timeout));
                    self.protocol.finish_stream(stream);
                    has_ended = true;
                }
                _ => next += 1,
            }
        }
        while let Some(action) = self.protocol.poll_stream() {
            has_ended = true;
            match action {
                StreamAction::Finish(stream) => {
                    self.link.finish(stream);
                    // The server's FIN came first.
                    if self.streams.get(stream).is_some_and(|known| known.phase() != Phase::Ended) {
                        self.remove_stream(state, stream, &Error::StreamEnded { code: None });
                    }
                }
                StreamAction::Abort(stream, reason) => {
                    self.link.abort(stream, reason.value().into());
                    self.remove_stream(state, stream, &Error::StreamEnded { code: None });
                }
            }
        }
        if has_ended {
            self.drain_events(state, now);
        }
        has_ended
    }

    /// Removes a data stream that has ended in both directions.
    pub(super) fn remove_stream(&mut self, state: &mut ClientState, stream: StreamKey, error: &Error) {
        let Some(mut known) = self.streams.remove(stream) else { return };
        known.fail(error);
        if let Some(lane) = known.lane() {
            state.lanes.stream_ended(lane, false);
        }
    }

    /// Handles the end of a stream in the protocol. If this side did not end it, its lane goes on with another one.
    pub(super) fn handle_stream_ended(
        &mut self,
        state: &mut ClientState,
        stream: StreamKey,
        unanswered: Vec<PacketId>,
    ) {
        for id in unanswered.into_iter().rev() {
            if let Some(control) = state.inflight.take_control(id) {
                state.inflight.retry(control, &mut state.lanes);
            }
        }
        let Some(known) = self.streams.get_mut(stream) else { return };
        if known.phase() == Phase::Ended {
            return;
        }
        let Some(lane) = known.take_lane() else { return };
        let logical = state.lanes.logical(lane);
        state.lanes.stream_ended(lane, true);
        if known.is_subscribed() && self.protocol.is_established() {
            state.rebind_subscriptions(|gone| gone == logical);
        }
    }

    /// Next deadline of a stream or of a lane without stream credit.
    pub(super) fn stream_deadline(&self, state: &ClientState) -> Option<Instant> {
        let refused = state.lanes.refused().map(|(_, is_own, since)| since + credit_timeout(is_own)).min();
        refused.into_iter().chain(self.streams.deadline()).min()
    }

    pub(super) fn handle_stream_deadlines(&mut self, state: &mut ClientState, now: Instant) {
        while let Some(deadline) = self.streams.pop_deadline(now) {
            match deadline {
                StreamDeadline::Expiry(stream) => self.expire(state, stream, now),
                StreamDeadline::Fin(stream) => self.release_lane(state, stream),
            }
        }
        let refused: Vec<_> = state.lanes.refused().collect();
        for (lane, is_own, since) in refused {
            if since + credit_timeout(is_own) <= now {
                state.lanes.set_stream(lane, LaneStream::OnControl);
            }
        }
    }

    /// Releases the lane of a stream without the server's FIN. `disconnect` still waits for the FIN of a stream that
    /// carried QoS 0.
    fn release_lane(&mut self, state: &mut ClientState, stream: StreamKey) {
        debug!(%stream, "the server has not ended the stream in time");
        match self.streams.get_mut(stream) {
            Some(known) if known.has_unconfirmed() => {
                if let Some(lane) = known.take_lane() {
                    state.lanes.stream_ended(lane, false);
                }
            }
            _ => self.remove_stream(state, stream, &Error::StreamEnded { code: None }),
        }
    }

    /// Resets a stream whose only message has expired, unless all of it is written.
    fn expire(&mut self, state: &mut ClientState, stream: StreamKey, now: Instant) {
        if self.protocol.outbox(stream).is_none_or(|outbox| outbox.is_empty()) {
            return;
        }
        debug!(%stream, "the message expired while it was sent");
        if let Some(known) = self.streams.get_mut(stream) {
            known.fail(&Error::Expired);
        }
        self.streams.end(stream, None);
        state.inflight.expire(stream);
        self.protocol.abort_stream(stream, EXPIRED, now);
        self.end_streams(state, now);
    }

    // -- Connection --------------------------------------------------------------------------------

    /// Sends DISCONNECT once the application wants to close and its requests are answered, or at the deadline.
    pub(super) fn close_if_wanted(&mut self, state: &mut ClientState, cx: &mut Context<'_>, now: Instant) {
        if !state.channels.received.is_closing() || self.protocol.is_closed() {
            return;
        }
        if self.timer.deadline.is_none() {
            state.take_requests(cx);
            state.close_requests();
            let limit = state.settings.timeouts.disconnect.min(LONGEST);
            self.timer.deadline = Some(now + limit);
        }
        let is_late = self.timer.deadline.is_some_and(|deadline| deadline <= now);
        let is_answered = state.lanes.is_empty() && state.inflight.is_settled();
        if is_answered && !is_late {
            self.confirm_streams(state);
        }
        let is_settled = is_answered && self.streams.is_settled() && self.link.unsent_datagrams() == 0;
        if is_late || is_settled {
            debug!("sending DISCONNECT");
            let session_expiry = state.settings.ends_session.then_some(0);
            self.protocol.disconnect(Disconnect { session_expiry, ..Disconnect::new(ReasonCode::Success) });
            let limit = self.timer.deadline.filter(|_| self.awaits_end());
            self.timer.deadline = Some(limit.map_or(now, |limit| limit.max(now)) + LINGER);
        }
    }

    /// Ready when the connection is closed and everything is sent, or at the deadline.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<()> {
        if !self.protocol.is_closed() {
            return Poll::Pending;
        }
        if *self.timer.deadline.get_or_insert(now + LINGER) <= now {
            return Poll::Ready(());
        }
        if self.protocol.unwritten() > 0 || (self.awaits_end() && self.poll_end(cx).is_pending()) {
            return Poll::Pending;
        }
        let code = match self.protocol.cause() {
            Some(Cause::Lost) => return Poll::Ready(()),
            Some(Cause::Closed(_) | Cause::Disconnected(_)) => CLOSE_NORMAL, // [BQ-40]
            _ => CLOSE_ABNORMAL,
        };
        self.link.poll_close(cx, Close { code, stop: None }).map(drop)
    }

    /// Whether only the end of the connection by the server confirms that all messages arrived: QUIC buffers the
    /// control stream, QoS 0 is not acknowledged, and the server handles DISCONNECT after it.
    fn awaits_end(&self) -> bool {
        self.link.is_multi() && self.streams.has_unconfirmed_on_control()
    }

    /// Ready when the server has ended the connection. Discards what it still sends.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut rest = [0; 1024];
        poll_until_closed(cx, |cx| self.link.poll_read(cx, &mut ReadBuf::new(&mut rest), &mut |_| true))
    }
}

fn credit_timeout(is_own: bool) -> Duration {
    if is_own { OWN_CREDIT_TIMEOUT } else { CREDIT_TIMEOUT }
}

/// Reads until the end of the connection, [`LAST_READS`] at a time. The caller checks its deadline at each wake-up.
fn poll_until_closed(
    cx: &mut Context<'_>,
    mut read: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<Read>>,
) -> Poll<()> {
    for _ in 0..LAST_READS {
        match read(cx) {
            Poll::Ready(Ok(Read::Closed) | Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(_)) => {}
            Poll::Pending => return Poll::Pending,
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use braid_proto::stream::StreamKey;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the end of a connection of which every read is `read`: outcome, number of reads, number of wake-ups.
    fn wait(read: impl Fn() -> Poll<std::io::Result<Read>>) -> (Poll<()>, usize, usize) {
        let counter = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut reads = 0;
        let polled = poll_until_closed(&mut Context::from_waker(&waker), |_| {
            reads += 1;
            assert!(reads < 1000, "the number of reads is unbounded");
            read()
        });
        (polled, reads, counter.0.load(Ordering::Relaxed))
    }

    #[test]
    fn bounds_the_reads_of_one_poll_after_the_close() {
        let endless = || Poll::Ready(Ok(Read::Bytes(StreamKey::CONTROL)));
        assert_eq!(wait(endless), (Poll::Pending, LAST_READS, 1));
        assert_eq!(wait(|| Poll::Pending), (Poll::Pending, 1, 0), "the link wakes the task");
        assert_eq!(wait(|| Poll::Ready(Ok(Read::Closed))), (Poll::Ready(()), 1, 0));
    }
}
