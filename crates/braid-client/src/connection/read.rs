//! What comes from the link.

use std::cell::RefCell;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::connection::{Client as Protocol, ClientEvent, Incoming};
use braid_proto::error::Violation;
use braid_proto::packet::{Disconnect, PacketId};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::Read;
use braid_transport::quic::is_early_data_rejected;
use tokio::io::ReadBuf;
use tracing::debug;

use super::Connection;
use super::streams::Life;
use crate::dispatch;
use crate::driver::Driver;
use crate::error::Error;
use crate::inbox::Receipt;
use crate::messages::Received;

/// One read takes this many bytes at most.
const READ_AT_ONCE: usize = 64 * 1024;

thread_local! {
    /// One for all connections of a thread: an idle connection has no read buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_AT_ONCE].into());
}

impl Connection {
    pub(super) fn poll_read(&mut self, driver: &mut Driver, cx: &mut Context<'_>, now: Instant) -> bool {
        if self.protocol.is_closed() {
            return false;
        }
        // Of a link that takes nothing more the rest is read, however much waits: the server may have said why.
        let is_full = driver.inbox.is_full() && self.unwritable.is_none();
        if is_full != self.is_paused {
            self.is_paused = is_full;
            self.protocol.pause(is_full, now);
        }
        let Poll::Ready(read) = self.poll_link(cx, now) else { return false };
        match read {
            Ok(Read::Bytes(_) | Read::Confirmed) => {}
            Ok(Read::Finished(stream)) => self.handle_finished(driver, stream, now),
            Ok(Read::Reset(stream, code) | Read::Stopped(stream, code)) => {
                self.handle_broken_off(driver, stream, code, now);
            }
            // Both are told to servers.
            Ok(Read::Opened(_) | Read::Moved(_)) => {}
            Ok(Read::Closed) => self.protocol.handle_link_closed(),
            Err(error) => self.handle_link_lost(&error),
        }
        self.drain_events(driver, now);
        true
    }

    /// Bytes go straight to the protocol.
    fn poll_link(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<std::io::Result<Read>> {
        let Self { link, protocol, streams, is_paused, .. } = self;
        // Messages come only where there was a SUBSCRIBE: elsewhere acknowledgements do, and nobody has to wait
        // for those.
        let carries_messages =
            |stream: StreamKey| stream.is_control() || streams.get(stream).is_some_and(|s| s.is_subscribed);
        // An answer to what was early may overtake CONNACK, which comes first.
        let is_established = protocol.is_established();
        let mut wants = |stream: StreamKey| {
            (is_established || stream.is_control()) && (!*is_paused || !carries_messages(stream))
        };
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            let read = ready!(link.poll_read(cx, &mut buffer, &mut wants));
            if let Ok(Read::Bytes(stream)) = read {
                protocol.handle_bytes(stream, buffer.filled(), now);
            }
            Poll::Ready(read)
        })
    }

    pub(super) fn handle_link_lost(&mut self, error: &std::io::Error) {
        self.is_early_rejected |= is_early_data_rejected(error);
        debug!(%error, "link lost");
        self.protocol.handle_link_closed();
    }

    /// FIN of the server: the answer to ours, or it wants no more of this stream.
    fn handle_finished(&mut self, driver: &mut Driver, stream: StreamKey, now: Instant) {
        self.protocol.handle_stream_finished(stream, now);
        if self.streams.get(stream).is_some_and(|known| known.life == Life::Ended) {
            self.forget_stream(driver, stream, &Error::StreamEnded { code: None });
        }
    }

    /// RESET_STREAM or STOP_SENDING of the server.
    fn handle_broken_off(&mut self, driver: &mut Driver, stream: StreamKey, code: u64, now: Instant) {
        debug!(%stream, code, "the server ended a stream");
        match self.refused_message(driver, stream, code) {
            Some(reason) => {
                self.streams.end(stream, None); // The message is to blame, not the lane.
                self.protocol.handle_stream_refused(stream, reason, now);
            }
            None => self.protocol.handle_stream_reset(stream, now),
        }
        self.link.abort(stream, code);
        self.drain_events(driver, now);
        self.forget_stream(driver, stream, &Error::StreamEnded { code: Some(code) });
    }

    /// Why the server will never take the message of this stream, which carries no other.
    fn refused_message(&self, driver: &Driver, stream: StreamKey, code: u64) -> Option<ReasonCode> {
        let slot = self.streams.get(stream)?.slot?;
        let reason = u8::try_from(code).ok().and_then(ReasonCode::from_u8)?;
        let is_about_message = matches!(
            reason,
            ReasonCode::TopicNameInvalid
                | ReasonCode::PacketTooLarge
                | ReasonCode::QuotaExceeded
                | ReasonCode::PayloadFormatInvalid
                | ReasonCode::QosNotSupported
        );
        (is_about_message && driver.lanes.is_own(slot)).then_some(reason)
    }

    // -- Events ------------------------------------------------------------------------------------

    pub(super) fn drain_events(&mut self, driver: &mut Driver, now: Instant) {
        while let Some(event) = self.protocol.poll_event() {
            match event {
                ClientEvent::Message(incoming) => {
                    let message = &incoming.message;
                    debug!(topic = %message.topic, qos = %message.qos, bytes = message.payload.len(), "received PUBLISH");
                    self.arrived.push(received(incoming, self.number));
                }
                ClientEvent::Published(id, reason) => {
                    debug!(%id, %reason, "published");
                    self.handle_published(driver, id, reason, now);
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
                ClientEvent::Connected(connected) => {
                    let own = usize::from(driver.settings.protocol.maximum_inflight);
                    let theirs = connected.properties.receive_maximum.unwrap_or(u16::MAX);
                    self.send_maximum = own.min(theirs.into());
                    dispatch::handle_connected(driver, *connected, self.link.is_multi());
                    driver.line_up_resends(self.protocol.take_resends());
                }
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
                    self.protocol.disconnect(Disconnect::new(ReasonCode::ProtocolError));
                }
                ClientEvent::StreamViolated(stream, violation) => {
                    debug!(%stream, %violation, "the server broke the specification on a data stream");
                }
                ClientEvent::StreamEnded(stream, unanswered) => {
                    // Before its lane is looked at: it is not idle.
                    driver.line_up_resends(self.protocol.take_resends());
                    self.handle_stream_ended(driver, stream, unanswered);
                }
            }
        }
        hand_over(&mut self.arrived, driver, &mut self.protocol, now);
    }

    fn handle_published(&mut self, driver: &mut Driver, id: PacketId, reason: ReasonCode, now: Instant) {
        let on = driver.ledger.handle_published(id, reason);
        if let Some(stream) = on.and_then(|on| self.streams.get_mut(on)) {
            stream.exchanges = stream.exchanges.saturating_sub(1);
            stream.used = now;
        }
    }
}

/// Gives the messages of one read to the application.
fn hand_over(arrived: &mut Vec<Received>, driver: &Driver, protocol: &mut Protocol, now: Instant) {
    if !arrived.is_empty()
        && let Some(unheard) = driver.inbox.put(arrived)
    {
        protocol.acknowledge(unheard.token, now);
    }
}

fn received(incoming: Incoming, connection: u64) -> Received {
    let Incoming { message, dup, packet_id, topic_alias, subscription_ids, token } = incoming;
    let receipt = token.map(|token| Receipt { connection, token });
    Received { message, dup, packet_id, topic_alias, subscription_ids, receipt }
}
