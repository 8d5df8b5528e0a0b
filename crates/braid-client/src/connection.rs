//! One connection: the protocol machine, its link and its timer in one poll loop.

use std::cell::RefCell;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_proto::connection::{Cause, Client as Protocol, ClientEvent, Incoming};
use braid_proto::error::Violation;
use braid_proto::packet::Disconnect;
use braid_proto::reason::ReasonCode;
use braid_proto::session::Session;
use braid_transport::ByteStream;
use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};
use tracing::debug;

use crate::dispatch;
use crate::driver::{Driver, now};
use crate::error::Error;
use crate::inbox::Receipt;
use crate::messages::Received;
use crate::request::Request;

/// One read takes this many bytes at most.
const READ_AT_ONCE: usize = 64 * 1024;
/// Above this many bytes in the outbox no more requests are taken: they wait in their queue, which has a cap.
const OUTBOX_IS_FULL: usize = 256 * 1024;
/// Parts of one vectored write.
const SLICES: usize = 64;
/// Rounds of one poll before other tasks of the runtime get their turn.
const ROUNDS: usize = 32;
/// How long a closed connection may take to send what it still has.
const LINGER: Duration = Duration::from_secs(2);

thread_local! {
    /// One for all connections of a thread: an idle connection has no read buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_AT_ONCE].into());
}

pub(crate) struct Connection {
    io: Box<dyn ByteStream>,
    protocol: Protocol,
    number: u64,
    timer: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    /// Bytes that the link took.
    written: u64,
    /// When the connection ends even if something is still to be sent or answered.
    deadline: Option<Instant>,
    /// The messages of one read.
    arrived: Vec<Received>,
    /// What the server said about the end.
    reported: Option<Error>,
    is_paused: bool,
    is_unflushed: bool,
}

type End = (Result<(), Error>, Option<Session>);

impl Connection {
    pub(crate) fn new(io: Box<dyn ByteStream>, protocol: Protocol, number: u64) -> Self {
        Self {
            io,
            protocol,
            number,
            timer: Box::pin(sleep_until(tokio::time::Instant::now())),
            armed: None,
            written: 0,
            deadline: None,
            arrived: Vec::new(),
            reported: None,
            is_paused: false,
            is_unflushed: false,
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
            let has_read = self.poll_read(driver, cx, now);
            let has_taken = self.poll_requests(driver, cx, now);
            self.close_if_wanted(driver, now);
            let has_written = self.poll_write(driver, cx);
            driver.unwritten.store(self.protocol.outbox().len(), Ordering::Relaxed);
            if self.poll_closed(cx, now).is_ready() {
                return Poll::Ready(self.end());
            }
            let is_due = self.poll_timer(cx, now);
            if !(has_read || has_taken || has_written || is_due) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
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
        (result, session)
    }

    /// Ready when the connection is closed and has sent what it had, or had its time to.
    fn poll_closed(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<()> {
        if !self.protocol.is_closed() {
            return Poll::Pending;
        }
        if *self.deadline.get_or_insert(now + LINGER) <= now {
            return Poll::Ready(());
        }
        if !self.protocol.outbox().is_empty() {
            return Poll::Pending;
        }
        // Its failure changes nothing any more.
        Pin::new(&mut self.io).poll_shutdown(cx).map(drop)
    }

    // -- Timer -------------------------------------------------------------------------------------

    /// Arms the timer for what comes next. Whether it was due already.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(next) = self.protocol.poll_timeout().into_iter().chain(self.deadline).min() else {
            return false;
        };
        if self.armed != Some(next) {
            self.armed = Some(next);
            self.timer.as_mut().reset(next.into());
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.armed = None;
        self.protocol.handle_timeout(now.max(next));
        true
    }

    // -- Reading -----------------------------------------------------------------------------------

    fn poll_read(&mut self, driver: &mut Driver, cx: &mut Context<'_>, now: Instant) -> bool {
        let protocol = &mut self.protocol;
        if protocol.is_closed() {
            return false;
        }
        let is_full = driver.inbox.is_full();
        if is_full != self.is_paused {
            self.is_paused = is_full;
            protocol.pause(is_full, now);
        }
        if is_full {
            return false;
        }
        let io = &mut self.io;
        let is_ready = SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(io).poll_read(cx, &mut buffer) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    protocol.handle_bytes(buffer.filled(), now);
                }
                Poll::Ready(_) => protocol.handle_link_closed(),
            }
            true
        });
        if is_ready {
            self.drain_events(driver, now);
        }
        is_ready
    }

    fn drain_events(&mut self, driver: &mut Driver, now: Instant) {
        let protocol = &mut self.protocol;
        let mut connected = None;
        while let Some(event) = protocol.poll_event() {
            match event {
                ClientEvent::Message(incoming) => {
                    let message = &incoming.message;
                    debug!(topic = %message.topic, qos = %message.qos, bytes = message.payload.len(), "received PUBLISH");
                    self.arrived.push(received(incoming, self.number));
                }
                ClientEvent::Published(id, reason) => {
                    debug!(%id, %reason, "published");
                    driver.ledger.handle_published(id, reason);
                }
                ClientEvent::Subscribed(suback) => {
                    debug!(id = %suback.packet_id, codes = ?suback.codes, "received SUBACK");
                    if let Some(control) = driver.ledger.take_control(suback.packet_id) {
                        dispatch::handle_suback(driver, control, suback.codes);
                    }
                }
                ClientEvent::Unsubscribed(unsuback) => {
                    debug!(id = %unsuback.packet_id, "received UNSUBACK");
                    if let Some(control) = driver.ledger.take_control(unsuback.packet_id) {
                        dispatch::handle_unsuback(driver, control, unsuback.codes);
                    }
                }
                ClientEvent::Connected(accepted) => connected = Some(accepted),
                ClientEvent::Refused(connack) => {
                    let text = connack.properties.reason_string.map(Into::into);
                    self.reported = Some(Error::Refused { reason: connack.reason, text });
                }
                ClientEvent::Disconnected(disconnect) => {
                    let text = disconnect.reason_string.map(Into::into);
                    self.reported = Some(Error::Disconnected { reason: disconnect.reason, text });
                }
                // No method is known here, so nothing but an end can follow.
                ClientEvent::Auth(_) => {
                    self.reported = Some(Error::Violation(Violation::AuthNotNegotiated));
                    protocol.disconnect(Disconnect::new(ReasonCode::ProtocolError));
                }
            }
            if let Some(connected) = connected.take() {
                dispatch::handle_connected(protocol, driver, *connected, now);
            }
        }
        if !self.arrived.is_empty()
            && let Some(unheard) = driver.inbox.put(&mut self.arrived)
        {
            protocol.acknowledge(unheard.token, now);
        }
    }

    // -- Requests ----------------------------------------------------------------------------------

    fn poll_requests(&mut self, driver: &mut Driver, cx: &mut Context<'_>, now: Instant) -> bool {
        let protocol = &mut self.protocol;
        let mut has_taken = false;
        while protocol.is_established() && protocol.outbox().len() < OUTBOX_IS_FULL {
            let request = match driver.ledger.next() {
                Some(request) => request,
                None => match driver.requests.poll_recv(cx) {
                    Poll::Ready(Some(request)) => request,
                    Poll::Ready(None) | Poll::Pending => break,
                },
            };
            let blocked = match request {
                Request::Publish { delivery, waiter } => {
                    dispatch::publish(protocol, driver, delivery, waiter, self.written, now)
                }
                Request::Control(control) => {
                    dispatch::send_control(protocol, driver, control, now);
                    None
                }
            };
            if let Some(request) = blocked {
                driver.ledger.put_back(request);
                break;
            }
            has_taken = true;
        }
        has_taken
    }

    /// Ends the connection once the application wants it and everything it asked for before is answered.
    fn close_if_wanted(&mut self, driver: &mut Driver, now: Instant) {
        let protocol = &mut self.protocol;
        if !driver.inbox.is_closing() || protocol.is_closed() {
            return;
        }
        driver.requests.close();
        let deadline = *self.deadline.get_or_insert(now + driver.settings.disconnect_timeout);
        let is_settled = driver.ledger.is_settled() && driver.requests.is_empty();
        if is_settled || deadline <= now {
            debug!("sending DISCONNECT");
            protocol.disconnect(Disconnect::new(ReasonCode::Success));
            self.deadline = Some(now + LINGER);
        }
    }

    // -- Writing -----------------------------------------------------------------------------------

    /// One vectored write. Whether it took anything.
    fn poll_write(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> bool {
        let protocol = &mut self.protocol;
        let outbox = protocol.outbox();
        if outbox.is_empty() {
            // Encrypted and framed links hold bytes back until they are told that no more come.
            if self.is_unflushed && Pin::new(&mut self.io).poll_flush(cx).is_ready() {
                self.is_unflushed = false;
            }
            return false;
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = outbox.chunks_vectored(&mut slices);
        let io = Pin::new(&mut self.io);
        match io.poll_write_vectored(cx, &slices[..count]) {
            Poll::Pending => false,
            Poll::Ready(Ok(len)) if len > 0 => {
                outbox.advance(len);
                self.written += len as u64;
                driver.ledger.handle_written(self.written);
                self.is_unflushed = true;
                true
            }
            Poll::Ready(_) => {
                protocol.handle_link_closed();
                false
            }
        }
    }
}

fn received(incoming: Incoming, connection: u64) -> Received {
    let Incoming { message, dup, packet_id, topic_alias, subscription_ids, token } = incoming;
    let receipt = token.map(|token| Receipt { connection, token });
    Received { message, dup, packet_id, topic_alias, subscription_ids, receipt }
}
