//! Data streams of a client, which opens them; both ends may end them.

use std::time::Instant;

use super::handshake::Connecting;
use super::{Client, ClientEvent, State};
use crate::connection::StreamAction;
use crate::connection::stream::Outbox;
use crate::connection::streams::Streams;
use crate::decoder::PartialMessages;
use crate::packet::{AckKind, BorrowedPacket, Packet};
use crate::types::{QoS, ReasonCode, StreamKey, Violation};

impl Client {
    /// Handles the opening of a data stream: messages and requests may be sent on it. [BQ-13]
    pub fn handle_stream_opened(&mut self, stream: StreamKey) {
        if let State::Established(established) = &mut self.state {
            established.exchange.streams.open(stream);
        } else {
            self.open_early(stream);
        }
    }

    /// Handles FIN on a data stream.
    pub fn handle_stream_finished(&mut self, stream: StreamKey, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        match established.exchange.streams.finish(stream) {
            Ok(true) => self.detach_stream(stream, now),
            Ok(false) => {}
            Err(violation) => self.fail_stream(stream, violation, now),
        }
    }

    /// Handles RESET_STREAM or STOP_SENDING on a data stream.
    pub fn handle_stream_reset(&mut self, stream: StreamKey, now: Instant) {
        let State::Established(established) = &mut self.state else { return self.reset_early(stream) };
        let is_reported = established.exchange.streams.has_reported_end(stream);
        if established.exchange.streams.remove(stream) && !is_reported {
            self.detach_stream(stream, now);
        }
    }

    /// Handles RESET_STREAM or STOP_SENDING on a data stream with a code about its messages: those that the server has
    /// not received are over ([`ClientEvent::Published`] with this reason) and never retransmitted.
    pub fn handle_stream_refused(&mut self, stream: StreamKey, reason: ReasonCode, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        let is_reported = established.exchange.streams.has_reported_end(stream);
        if !established.exchange.streams.remove(stream) || is_reported {
            return;
        }
        let refused = established.exchange.refuse_stream(stream);
        self.events.extend(refused.into_iter().map(|id| ClientEvent::Published(id, reason)));
        self.detach_stream(stream, now);
    }

    fn detach_stream(&mut self, stream: StreamKey, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        let requests = established.exchange.session.outbound.take_requests(stream);
        established.exchange.end_stream(stream);
        self.events.push_back(ClientEvent::StreamEnded(stream, requests));
        self.continue_resend(now);
    }

    /// Ends a stream after a violation on it. [BQ-34]
    fn fail_stream(&mut self, stream: StreamKey, violation: Violation, now: Instant) {
        self.events.push_back(ClientEvent::StreamViolated(stream, violation));
        self.abort_stream(stream, violation.reason(), now);
    }

    /// Handles bytes of a data stream.
    pub(super) fn handle_data(&mut self, stream: StreamKey, mut input: &[u8], now: Instant) {
        while !input.is_empty() {
            let State::Established(established) = &mut self.state else { return };
            let mut none = PartialMessages::default(); // Only servers keep parts.
            let handled = match established.exchange.streams.decode(stream, &mut input, &mut none) {
                Ok(Some(packet)) if is_repeated(&established.exchange.streams, stream, &packet) => continue,
                Ok(Some(packet)) => {
                    check_packet(&packet).and_then(|()| self.handle_packet(stream, packet, now))
                }
                Ok(None) => break,
                Err(violation) => Err(violation),
            };
            if let Err(violation) = handled {
                return self.fail_stream(stream, violation, now);
            }
        }
    }

    /// Ends a data stream once everything on it is written. Packets of the server on it are still handled; its FIN ends
    /// the stream ([`ClientEvent::StreamEnded`]). [BQ-30]
    pub fn finish_stream(&mut self, stream: StreamKey) {
        let State::Established(established) = &mut self.state else { return };
        if established.exchange.streams.close(stream) && stream.is_uni() {
            self.events.push_back(ClientEvent::StreamEnded(stream, Vec::new()));
        }
    }

    /// Ends a data stream at once and drops its unwritten bytes. An expired message that was written in part is over
    /// ([`ClientEvent::Published`] with [`ReasonCode::UnspecifiedError`]). Others continue on the control stream,
    /// except a written message of QoS 2: only the next connection may retransmit it.
    pub fn abort_stream(&mut self, stream: StreamKey, reason: ReasonCode, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        let exchange = &mut established.exchange;
        let Some(taken) = exchange.streams.outbox(stream).map(Outbox::taken) else {
            return;
        };
        let is_reported = exchange.streams.has_reported_end(stream);
        if !exchange.streams.abort(stream, reason) || is_reported {
            return; // The control stream, or a stream whose end was reported.
        }
        let requests = exchange.session.outbound.take_requests(stream);
        let expired = exchange.abort_stream(stream, taken, now);
        self.events.push_back(ClientEvent::StreamEnded(stream, requests));
        let over = |id| ClientEvent::Published(id, ReasonCode::UnspecifiedError);
        self.events.extend(expired.into_iter().map(over));
        self.continue_resend(now);
    }

    /// Next instruction about a data stream. To be polled after every write, until there is none.
    pub fn poll_stream(&mut self) -> Option<StreamAction> {
        self.exchange_mut()?.streams.poll_action()
    }

    // -- Bytes to send -----------------------------------------------------------------------------

    /// Outbox of a stream; `None` when it has ended.
    pub fn outbox(&mut self, stream: StreamKey) -> Option<&mut Outbox> {
        match &mut self.state {
            State::Connecting(connecting) => {
                let Connecting { outbox, early, .. } = &mut **connecting;
                if stream.is_control() { Some(outbox) } else { early.outbox_mut(stream) }
            }
            State::Established(established) => established.exchange.streams.outbox_mut(stream),
            State::Closed(closed) => stream.is_control().then_some(&mut closed.outbox),
        }
    }

    /// Appends the streams with unwritten bytes to `streams`, the control stream first.
    pub fn streams_to_write(&self, streams: &mut Vec<StreamKey>) {
        match &self.state {
            State::Established(established) => streams.extend(established.exchange.streams.to_write()),
            State::Connecting(connecting) => {
                streams.extend((!connecting.outbox.is_empty()).then_some(StreamKey::CONTROL));
                streams.extend(connecting.early.to_write());
            }
            State::Closed(closed) => {
                streams.extend((!closed.outbox.is_empty()).then_some(StreamKey::CONTROL));
            }
        }
    }

    /// Unwritten bytes on all streams.
    pub fn unwritten(&self) -> usize {
        match &self.state {
            State::Connecting(connecting) => connecting.outbox.len() + connecting.early.unwritten(),
            State::Established(established) => established.exchange.streams.unwritten(),
            State::Closed(closed) => closed.outbox.len(),
        }
    }
}

/// Whether the server will send this packet again on the control stream, because this side ends the stream [BQ-42]. If
/// it counted here too, the repetition could arrive after the exchange is over and begin another one.
fn is_repeated(streams: &Streams, stream: StreamKey, packet: &BorrowedPacket<'_>) -> bool {
    match packet {
        Packet::Publish(publish) => publish.qos > QoS::AtMostOnce && streams.is_ending(stream),
        Packet::Ack(ack) => ack.kind == AckKind::Pubrel && streams.is_finished(stream),
        _ => false,
    }
}

/// Checks that a server may send this packet on a data stream. [BQ-11]
fn check_packet(packet: &BorrowedPacket<'_>) -> Result<(), Violation> {
    match packet {
        Packet::Publish(_) | Packet::Ack(_) | Packet::Suback(_) | Packet::Unsuback(_) => Ok(()),
        other => Err(Violation::NotOnDataStream(other.packet_type())),
    }
}
