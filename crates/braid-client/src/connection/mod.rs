//! One connection: the protocol machine, its link and its timer in one poll loop.

mod closing;
mod life;
mod read;
mod send;
mod streams;
mod write;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use braid_proto::connection::{Cause, Client as Protocol};
use braid_proto::session::Session;
use braid_proto::stream::StreamKey;
use braid_transport::Link;
use tokio::time::{Sleep, sleep_until};
use tracing::debug;

use self::streams::Streams;
use crate::driver::{Driver, now};
use crate::error::Error;
use crate::messages::Received;

/// Rounds of one poll before other tasks of the runtime get their turn.
const ROUNDS: usize = 32;

pub(crate) struct Connection {
    link: Link,
    protocol: Protocol,
    number: u64,
    streams: Streams,
    timer: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    /// When the connection ends even if something is still to be sent or answered.
    deadline: Option<Instant>,
    /// The most messages of QoS 1 and 2 that the server takes unacknowledged.
    send_maximum: usize,
    /// The messages of one read.
    arrived: Vec<Received>,
    /// The streams of one round of writing.
    to_write: Vec<StreamKey>,
    /// What the server said about the end.
    reported: Option<Error>,
    /// The server did not take the early data: nothing that was sent has reached it.
    is_early_rejected: bool,
    is_paused: bool,
    is_unflushed: bool,
    /// Why nothing can be written any more.
    unwritable: Option<std::io::Error>,
}

/// What a connection leaves.
pub(crate) struct End {
    pub(crate) result: Result<(), Error>,
    pub(crate) session: Option<Session>,
    /// Nothing that was sent has reached the server, because it went as early data. [BQ-62]
    pub(crate) is_early_rejected: bool,
}

impl Connection {
    pub(crate) fn new(link: Link, mut protocol: Protocol, number: u64) -> Self {
        if link.is_multi() {
            protocol.place_resends(); // What goes on the control stream stands before everything.
        }
        Self {
            link,
            protocol,
            number,
            streams: Streams::new(now()),
            timer: Box::pin(sleep_until(tokio::time::Instant::now())),
            armed: None,
            deadline: None,
            send_maximum: usize::MAX,
            arrived: Vec::new(),
            to_write: Vec::new(),
            reported: None,
            is_early_rejected: false,
            is_paused: false,
            is_unflushed: false,
            unwritable: None,
        }
    }

    /// Runs the connection as far as it goes. Ready when it has ended.
    ///
    /// Each round: acknowledgements of the application, one read, requests, one write, the timer.
    /// Acknowledgements and requests so ride in the same write as answers to what was read.
    pub(crate) fn poll(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..ROUNDS {
            let now = now();
            self.poll_acknowledged(driver, cx, now);
            self.protocol.continue_resend(now);
            let was_unwritable = self.unwritable.is_some();
            let has_read = self.poll_read(driver, cx, now);
            let has_taken = self.poll_requests(driver, cx, now);
            self.close_if_wanted(driver, cx, now);
            let has_written = self.poll_write(cx);
            let has_ended = self.end_streams(driver, now);
            driver.unwritten.store(self.protocol.unwritten(), Ordering::Relaxed);
            if self.poll_closed(cx, now).is_ready() {
                return Poll::Ready(self.end());
            }
            if was_unwritable && !has_read {
                self.give_up_unwritable();
            }
            let is_due = self.poll_timer(driver, cx, now);
            if !(has_read || has_taken || has_written || has_ended || is_due) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A link that takes nothing more is lost, now that everything that came on it is read.
    fn give_up_unwritable(&mut self) {
        if let Some(error) = self.unwritable.take() {
            self.handle_link_lost(&error);
        }
    }

    fn poll_acknowledged(&mut self, driver: &Driver, cx: &mut Context<'_>, now: Instant) {
        if let Some(receipt) = driver.inbox.poll_acknowledged(cx)
            && receipt.connection == self.number
        {
            self.protocol.acknowledge(receipt.token, now);
        }
    }

    fn end(&mut self) -> End {
        let cause = self.protocol.cause().unwrap_or(Cause::Lost);
        debug!(%cause, "connection ended");
        let session = self.protocol.take_session();
        let result = match (self.reported.take(), cause) {
            (Some(error), _) => Err(error),
            (None, Cause::Closed(_)) => Ok(()),
            (None, cause) => Err(Error::from_cause(cause)),
        };
        let lost = result.as_ref().err().cloned().unwrap_or(Error::Closed);
        self.streams.fail(&lost);
        End { result, session, is_early_rejected: self.is_early_rejected }
    }

    /// Moves to another local port for everybody who asked for it.
    fn rebind(&mut self, driver: &Driver) {
        for waiter in driver.requests.take_rebinds() {
            let moved = self.link.rebind(None);
            debug!(?moved, "moving to another local port");
            let result = moved.map_err(|error| Error::Rebind { reason: Arc::from(error.to_string()) });
            let _ = waiter.send(result);
        }
    }

    // -- Timer -------------------------------------------------------------------------------------

    /// Arms the timer for what comes next. Whether it was due already.
    fn poll_timer(&mut self, driver: &mut Driver, cx: &mut Context<'_>, now: Instant) -> bool {
        let streams = self.stream_deadline(driver);
        let deadlines = [self.protocol.poll_timeout(), self.deadline, streams];
        let Some(next) = deadlines.into_iter().flatten().min() else { return false };
        if self.armed != Some(next) {
            self.armed = Some(next);
            self.timer.as_mut().reset(next.into());
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.armed = None;
        let now = now.max(next);
        self.protocol.handle_timeout(now);
        self.handle_stream_deadlines(driver, now);
        true
    }
}
