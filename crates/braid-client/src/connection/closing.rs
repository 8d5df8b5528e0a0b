//! How a connection ends from this side.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_proto::connection::Cause;
use braid_proto::packet::Disconnect;
use braid_proto::reason::ReasonCode;
use braid_transport::quic::codes::{CLOSE_ABNORMAL, CLOSE_NORMAL};
use braid_transport::{Close, Read};
use tokio::io::ReadBuf;
use tracing::debug;

use super::Connection;
use crate::driver::Driver;

/// How long a closed connection may take to send what it still has.
const LINGER: Duration = Duration::from_secs(2);
/// Reads of one poll, while a closed connection waits for the server's end: one that sends without end must not hold
/// the thread, nor the deadline.
const LAST_READS: usize = 32;

impl Connection {
    /// Ends the connection once the application wants it and everything it asked for before is answered.
    pub(super) fn close_if_wanted(&mut self, driver: &mut Driver, cx: &mut Context<'_>, now: Instant) {
        if !driver.inbox.is_closing() || self.protocol.is_closed() {
            return;
        }
        if self.deadline.is_none() {
            // What came until now is still sent.
            driver.take_requests(cx);
            driver.close_requests();
            self.deadline = Some(now + driver.settings.disconnect_timeout);
        }
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        let is_answered = driver.lanes.is_empty() && driver.ledger.is_settled();
        if is_answered && !is_late {
            self.confirm_streams(driver);
        }
        if is_late || (is_answered && self.streams.is_settled()) {
            debug!("sending DISCONNECT");
            self.protocol.disconnect(Disconnect::new(ReasonCode::Success));
            let limit = self.deadline.filter(|_| self.awaits_end());
            self.deadline = Some(limit.map_or(now, |limit| limit.max(now)) + LINGER);
        }
    }

    /// Ready when the connection is closed and has sent what it had, or had its time to.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<()> {
        if !self.protocol.is_closed() {
            return Poll::Pending;
        }
        if *self.deadline.get_or_insert(now + LINGER) <= now {
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
        // Its failure changes nothing any more.
        self.link.poll_close(cx, Close { code, stop: None }).map(drop)
    }

    /// Whether only the server's end of the connection tells that it has everything: QUIC holds what the control
    /// stream has taken, QoS 0 is not acknowledged, and DISCONNECT is handled behind it.
    fn awaits_end(&self) -> bool {
        self.link.is_multi() && self.streams.has_unconfirmed_on_control()
    }

    /// Ready when the server has ended the connection. What it still sends is for nobody.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut rest = [0; 1024];
        poll_last(cx, |cx| self.link.poll_read(cx, &mut ReadBuf::new(&mut rest), &mut |_| true))
    }
}

/// Reads until the end, a little at a time. Pending has a wake-up to come: the caller looks at its deadline then.
fn poll_last(
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
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How the wait for the end of a server that does `what` again and again goes on: its outcome, reads and
    /// wake-ups.
    fn wait(what: impl Fn() -> Poll<std::io::Result<Read>>) -> (Poll<()>, usize, usize) {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let mut reads = 0;
        let polled = poll_last(&mut Context::from_waker(&waker), |_| {
            reads += 1;
            assert!(reads < 1000, "this goes on for ever");
            what()
        });
        (polled, reads, bell.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_server_that_sends_without_end_gets_a_few_reads_at_a_time() {
        let endless = || Poll::Ready(Ok(Read::Bytes(StreamKey::CONTROL)));
        assert_eq!(wait(endless), (Poll::Pending, LAST_READS, 1));
        assert_eq!(wait(|| Poll::Pending), (Poll::Pending, 1, 0), "the link wakes");
        assert_eq!(wait(|| Poll::Ready(Ok(Read::Closed))), (Poll::Ready(()), 1, 0));
    }
}
