//! How data streams begin and end.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_proto::connection::StreamAction;
use braid_proto::packet::PacketId;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::Dir;
use tracing::debug;

use super::Connection;
use super::streams::{Due, Life, Stream};
use crate::driver::Driver;
use crate::error::Error;
use crate::lanes::State;

/// How long a lane waits for a stream before it makes do with the control stream.
const CREDIT_PATIENCE: Duration = Duration::from_secs(1);
/// The same for a large message, which would stand before everything there.
const OWN_CREDIT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a lane waits until the server has ended a stream too that this end has ended.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// The same where QoS 0 went: nobody acknowledges that, so what QUIC holds of it may still be on its way. It is
/// what the server's window lets a stream have (2 MiB of ours): behind less than 35 kB/s that takes longer, and the
/// lane goes on without it.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(60);
/// The code of a stream whose message is worth nothing any more. Of MQTT's codes it is the one for "none of the
/// other Reason Codes apply" (MQTT 5, 3.14.2.1): no other speaks of expiry.
const EXPIRED: ReasonCode = ReasonCode::UnspecifiedError;

impl Connection {
    // -- Opening -----------------------------------------------------------------------------------

    /// Opens streams for lanes that want one. Whether a lane can go on.
    pub(super) fn poll_open(&mut self, driver: &mut Driver, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut has_news = false;
        while let Some(slot) = driver.lanes.next_to_open() {
            match self.link.poll_open(cx, Dir::Bidi) {
                Poll::Ready(Ok(stream)) => {
                    debug!(%stream, lane = ?driver.lanes.logical(slot), "opened");
                    self.protocol.handle_stream_opened(stream);
                    self.streams.insert(stream, slot, now);
                    driver.lanes.slot_mut(slot).state = State::Open(stream);
                    has_news = true;
                }
                Poll::Ready(Err(error)) => {
                    self.handle_link_lost(&error);
                    return false;
                }
                Poll::Pending if !self.streams.has_opened => {
                    debug!("the server takes no data streams");
                    driver.lanes.give_up_streams();
                    return true;
                }
                Poll::Pending => {
                    if let State::Wanted { refused, .. } = &mut driver.lanes.slot_mut(slot).state {
                        refused.get_or_insert(now);
                    }
                    self.make_room(driver);
                    return has_news;
                }
            }
        }
        has_news
    }

    /// Ends the stream that has not been used for the longest time, if there is one that nobody would miss.
    fn make_room(&mut self, driver: &mut Driver) {
        if self.streams.iter().any(|stream| stream.life != Life::Open && stream.slot.is_some()) {
            return;
        }
        let lanes = &driver.lanes;
        let is_idle =
            |stream: &&Stream| stream.is_idle() && stream.slot.is_some_and(|slot| lanes.has_nothing(slot));
        let longest = self.streams.iter().filter(is_idle).min_by_key(|stream| stream.used);
        if let Some(stream) = longest.map(|stream| stream.key) {
            self.begin_end(driver, stream);
        }
    }

    // -- Ending ------------------------------------------------------------------------------------

    /// Nothing more goes on this stream: it ends once everything on it is done.
    pub(super) fn begin_end(&mut self, driver: &mut Driver, stream: StreamKey) {
        if let Some(slot) = self.streams.begin_end(stream) {
            driver.lanes.slot_mut(slot).state = State::Ending(stream);
        }
    }

    /// Begins to end the streams of which only the server's FIN tells that it has everything.
    pub(super) fn confirm_streams(&mut self, driver: &mut Driver) {
        let is_unconfirmed = |stream: &&Stream| stream.has_unconfirmed && stream.life == Life::Open;
        let keys: Vec<_> = self.streams.iter().filter(is_unconfirmed).map(|stream| stream.key).collect();
        for stream in keys {
            self.begin_end(driver, stream);
        }
    }

    /// Ends streams that have said all. Whether there were any.
    pub(super) fn end_streams(&mut self, driver: &mut Driver, now: Instant) -> bool {
        let mut has_news = false;
        let mut next = 0;
        while let Some(stream) = self.streams.ending().get(next).copied() {
            let is_written = self.protocol.outbox(stream).is_none_or(|outbox| outbox.is_empty());
            match self.streams.get(stream) {
                Some(known) if known.exchanges == 0 && is_written => {
                    let patience = if known.has_unconfirmed { ARRIVAL_PATIENCE } else { END_PATIENCE };
                    self.streams.end(stream, Some(now + patience));
                    self.protocol.finish_stream(stream);
                    has_news = true;
                }
                _ => next += 1,
            }
        }
        while let Some(action) = self.protocol.poll_stream() {
            has_news = true;
            match action {
                StreamAction::Finish(stream) => {
                    self.link.finish(stream);
                    // The server's FIN came first.
                    if self.streams.get(stream).is_some_and(|known| known.life != Life::Ended) {
                        self.forget_stream(driver, stream, &Error::StreamEnded { code: None });
                    }
                }
                StreamAction::Abort(stream, reason) => {
                    self.link.abort(stream, reason.value().into());
                    self.forget_stream(driver, stream, &Error::StreamEnded { code: None });
                }
            }
        }
        if has_news {
            self.drain_events(driver, now);
        }
        has_news
    }

    /// A data stream is gone in both directions.
    pub(super) fn forget_stream(&mut self, driver: &mut Driver, stream: StreamKey, error: &Error) {
        let Some(mut known) = self.streams.remove(stream) else { return };
        known.fail(error);
        if let Some(slot) = known.slot {
            driver.lanes.stream_ended(slot, false);
        }
    }

    /// The protocol is done with a stream. Where this end did not want that, its lane goes on on another one.
    pub(super) fn handle_stream_ended(
        &mut self,
        driver: &mut Driver,
        stream: StreamKey,
        unanswered: Vec<PacketId>,
    ) {
        for id in unanswered.into_iter().rev() {
            if let Some(control) = driver.ledger.take_control(id) {
                driver.ledger.ask_again(control, &mut driver.lanes);
            }
        }
        let Some(known) = self.streams.get_mut(stream) else { return };
        if known.life == Life::Ended {
            return;
        }
        let Some(slot) = known.slot.take() else { return };
        let logical = driver.lanes.logical(slot);
        driver.lanes.stream_ended(slot, true);
        if known.is_subscribed && self.protocol.is_established() {
            driver.restore_streams(|gone| gone == logical);
        }
    }

    // -- Deadlines ---------------------------------------------------------------------------------

    pub(super) fn stream_deadline(&self, driver: &Driver) -> Option<Instant> {
        let refused = driver.lanes.refused().map(|(_, is_own, since)| since + patience(is_own)).min();
        refused.into_iter().chain(self.streams.deadline()).min()
    }

    pub(super) fn handle_stream_deadlines(&mut self, driver: &mut Driver, now: Instant) {
        while let Some(due) = self.streams.pop_due(now) {
            match due {
                Due::Expiry(stream) => self.expire(driver, stream, now),
                Due::End(stream) => self.let_go(driver, stream),
            }
        }
        let refused: Vec<_> = driver.lanes.refused().collect();
        for (slot, is_own, since) in refused {
            if since + patience(is_own) <= now {
                driver.lanes.slot_mut(slot).state = State::OnControl;
            }
        }
    }

    /// The lane goes on without the end of this stream. `disconnect` still waits for it, if only that tells whether
    /// everything has arrived.
    fn let_go(&mut self, driver: &mut Driver, stream: StreamKey) {
        debug!(%stream, "the server does not end it");
        match self.streams.get_mut(stream) {
            Some(known) if known.has_unconfirmed => {
                if let Some(slot) = known.slot.take() {
                    driver.lanes.stream_ended(slot, false);
                }
            }
            _ => self.forget_stream(driver, stream, &Error::StreamEnded { code: None }),
        }
    }

    /// The message of a stream of its own has expired. What of it is not written never will be.
    fn expire(&mut self, driver: &mut Driver, stream: StreamKey, now: Instant) {
        if self.protocol.outbox(stream).is_none_or(|outbox| outbox.is_empty()) {
            return; // The server may have all of it.
        }
        debug!(%stream, "the message expired while it was sent");
        if let Some(known) = self.streams.get_mut(stream) {
            known.fail(&Error::Expired);
        }
        self.streams.end(stream, None);
        driver.ledger.expire(stream);
        self.protocol.abort_stream(stream, EXPIRED, now);
        self.end_streams(driver, now);
    }
}

fn patience(is_own: bool) -> Duration {
    if is_own { OWN_CREDIT_PATIENCE } else { CREDIT_PATIENCE }
}
