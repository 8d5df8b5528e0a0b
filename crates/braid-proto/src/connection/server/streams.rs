//! Data streams of a server. Their end does not end the connection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Event, Server, State};
use crate::connection::exchange::Exchange;
use crate::connection::stream::Outbox;
use crate::connection::streams::Streams;
use crate::connection::{StreamAction, Timer};
use crate::packet::{BorrowedPacket, Packet};
use crate::types::{QoS, StreamKey, Violation};

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Data stream that was opened before the CONNECT is accepted.
#[derive(Debug, Default)]
pub(super) struct UnacceptedStream {
    is_finished: bool,
    is_stopped: bool,
}

impl Server {
    /// Opens the streams that were opened before the CONNECT was accepted. [BQ-13]
    pub(super) fn begin_streams(opened: BTreeMap<StreamKey, UnacceptedStream>, streams: &mut Streams) {
        for (stream, UnacceptedStream { is_finished, is_stopped }) in opened {
            streams.open(stream);
            if is_finished {
                streams.close_by_peer(stream);
            }
            if is_stopped {
                streams.stop_sending(stream);
            }
        }
    }

    /// Handles a data stream that the client has opened. Nothing is read from it before the CONNECT is
    /// accepted [BQ-13].
    pub fn handle_stream_opened(&mut self, stream: StreamKey) {
        match &mut self.state {
            State::Established(established) => established.exchange.streams.open(stream),
            State::Listening | State::Deciding(_) => {
                self.opened.entry(stream).or_default();
            }
            State::Closed(_) => {}
        }
    }

    /// Handles FIN on a data stream. [BQ-30]
    pub fn handle_stream_finished(&mut self, stream: StreamKey) {
        if let Some(opened) = self.opened.get_mut(&stream) {
            opened.is_finished = true; // Nothing was read from it before, so it has no partial packet.
        }
        let State::Established(established) = &mut self.state else { return };
        match established.exchange.streams.finish(stream) {
            Ok(true) => self.detach_stream(stream),
            Ok(false) => {}
            Err(violation) => self.fail_stream(stream, violation),
        }
    }

    /// Handles STOP_SENDING on a data stream, which the transport has answered with RESET_STREAM. Packets of the client
    /// on it are still handled; deliveries go to the control stream. [BQ-33]
    pub fn handle_stream_stopped(&mut self, stream: StreamKey) {
        if let Some(opened) = self.opened.get_mut(&stream) {
            opened.is_stopped = true;
        }
        let State::Established(established) = &mut self.state else { return };
        if established.exchange.streams.stop_sending(stream) {
            self.detach_stream(stream);
        }
    }

    /// Handles RESET_STREAM on a data stream, which the driver has answered with the same code.
    /// [BQ-32]
    pub fn handle_stream_reset(&mut self, stream: StreamKey, now: Instant) {
        self.opened.remove(&stream);
        let State::Established(established) = &mut self.state else { return };
        let streams = &mut established.exchange.streams;
        let was_oldest = streams.oldest_large_partial() == Some(stream);
        if streams.remove(stream) {
            self.detach_stream(stream);
        }
        if was_oldest {
            self.arm_partial_memory_timer(now);
        }
    }

    /// Moves the session's subscriptions and exchanges away from a stream.
    fn detach_stream(&mut self, stream: StreamKey) {
        self.emit(Event::StreamEnded(stream));
        if let State::Established(established) = &mut self.state {
            established.exchange.end_stream(stream);
        }
    }

    /// Ends a stream after a violation on it. The connection and its Will stay. [BQ-34]
    pub(super) fn fail_stream(&mut self, stream: StreamKey, violation: Violation) {
        let State::Established(established) = &mut self.state else { return };
        if established.exchange.streams.abort(stream, violation.reason()) {
            self.emit(Event::StreamViolated(stream, violation));
            self.detach_stream(stream);
        }
    }

    /// Handles bytes of a data stream.
    pub(super) fn handle_data(&mut self, stream: StreamKey, mut input: &[u8], now: Instant) {
        while !input.is_empty() {
            let State::Established(established) = &mut self.state else { return };
            let Exchange { streams, session, .. } = &mut established.exchange;
            let packet = streams.decode(stream, &mut input, &mut session.partials);
            let handled = match packet {
                Ok(Some(packet)) => {
                    check_packet(stream, &packet).and_then(|()| self.handle_packet(stream, packet, now))
                }
                Ok(None) => break,
                Err(violation) => Err(violation),
            };
            if let Err(violation) = handled {
                return self.fail_stream(stream, violation);
            }
        }
        self.check_partial_memory(stream, now);
        self.check_partial_idle(stream, now);
    }

    /// Bounds the time without progress of an incomplete packet. [BQ-45]
    fn check_partial_idle(&mut self, stream: StreamKey, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        let is_partial = established.exchange.streams.note_progress(stream, now);
        // The timer is not moved with every read: its expiry compares with the last one.
        if is_partial && !self.timers.is_set(Timer::Partial) {
            self.timers.set(Timer::Partial, Some(now + self.partial_idle()));
        }
    }

    /// Limit of the time without progress. At least 1 ms, or the timer would expire for ever on a stream that is not
    /// read; at most a year, or instants would overflow.
    fn partial_idle(&self) -> Duration {
        self.options.partial_idle.clamp(Duration::from_millis(1), YEAR)
    }

    pub(super) fn handle_partial_idle_timer(&mut self, now: Instant) {
        let idle = self.partial_idle();
        self.timers.set(Timer::Partial, None);
        while let State::Established(established) = &mut self.state
            && let exchange = &mut established.exchange
            && let Some((heard, stream)) = exchange.streams.longest_idle_partial()
        {
            if heard + idle > now {
                return self.timers.set(Timer::Partial, Some(heard + idle));
            }
            if exchange.is_reading(stream) && exchange.streams.is_reading(stream) {
                self.fail_stream(stream, Violation::PartialPacketStalled);
            } else {
                exchange.streams.note_progress(stream, now); // Flow control stopped it: its time begins now.
            }
        }
    }

    /// Bounds the time in which the oldest large packet holds back the others. [BQ-45]
    fn check_partial_memory(&mut self, stream: StreamKey, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        match established.exchange.streams.oldest_large_partial() {
            None => self.timers.set(Timer::PartialMemory, None),
            Some(oldest_large_partial)
                if oldest_large_partial == stream || !self.timers.is_set(Timer::PartialMemory) =>
            {
                self.timers.set_after(Timer::PartialMemory, now, self.options.partial_timeout);
            }
            Some(_) => {}
        }
    }

    pub(super) fn handle_partial_memory_timer(&mut self, now: Instant) {
        let State::Established(established) = &self.state else { return };
        if let Some(oldest_large_partial) = established.exchange.streams.oldest_large_partial() {
            self.fail_stream(oldest_large_partial, Violation::PartialPacketStalled);
        }
        self.arm_partial_memory_timer(now);
    }

    /// Gives the next oldest large packet, which could not grow before, its full time.
    fn arm_partial_memory_timer(&mut self, now: Instant) {
        let State::Established(established) = &self.state else { return };
        let next = established.exchange.streams.oldest_large_partial();
        self.timers
            .set(Timer::PartialMemory, next.and_then(|_| now.checked_add(self.options.partial_timeout)));
    }

    /// Next instruction about a data stream. To be polled after every write, until there is none.
    pub fn poll_stream(&mut self) -> Option<StreamAction> {
        self.exchange_mut()?.streams.poll_action()
    }

    // -- Bytes to send -----------------------------------------------------------------------------

    /// Outbox of a stream.
    pub fn outbox(&mut self, stream: StreamKey) -> Option<&mut Outbox> {
        match &mut self.state {
            State::Established(established) => established.exchange.streams.outbox_mut(stream),
            State::Closed(closed) => stream.is_control().then_some(&mut closed.outbox),
            State::Deciding(deciding) => stream.is_control().then_some(&mut deciding.outbox),
            State::Listening => None,
        }
    }

    /// Appends the streams with unwritten bytes to `streams`, the control stream first.
    pub fn streams_to_write(&self, streams: &mut Vec<StreamKey>) {
        match &self.state {
            State::Established(established) => streams.extend(established.exchange.streams.to_write()),
            State::Closed(closed) if !closed.outbox.is_empty() => streams.push(StreamKey::CONTROL),
            State::Deciding(deciding) if !deciding.outbox.is_empty() => streams.push(StreamKey::CONTROL),
            _ => {}
        }
    }

    /// Unwritten bytes on all streams.
    pub fn unwritten(&self) -> usize {
        match &self.state {
            State::Established(established) => established.exchange.streams.unwritten(),
            State::Closed(closed) => closed.outbox.len(),
            State::Deciding(deciding) => deciding.outbox.len(),
            State::Listening => 0,
        }
    }

    /// Unwritten bytes on a stream.
    pub fn unwritten_on(&self, stream: StreamKey) -> usize {
        self.outbox_of(stream).map_or(0, Outbox::len)
    }

    /// Unwritten bytes on a stream without payloads by reference: acknowledgements and small messages.
    pub fn unwritten_packets_on(&self, stream: StreamKey) -> usize {
        self.outbox_of(stream).map_or(0, Outbox::packets_len)
    }

    fn outbox_of(&self, stream: StreamKey) -> Option<&Outbox> {
        match &self.state {
            State::Established(established) => established.exchange.streams.outbox(stream),
            State::Closed(closed) => stream.is_control().then_some(&closed.outbox),
            State::Deciding(deciding) => stream.is_control().then_some(&deciding.outbox),
            State::Listening => None,
        }
    }
}

/// Checks that a client may send this packet on a data stream. [BQ-10], [BQ-12]
fn check_packet(stream: StreamKey, packet: &BorrowedPacket<'_>) -> Result<(), Violation> {
    match packet {
        Packet::Publish(publish) if stream.is_uni() && publish.qos > QoS::AtMostOnce => {
            Err(Violation::QosOnUnidirectional)
        }
        Packet::Publish(_) => Ok(()),
        Packet::Ack(_) | Packet::Subscribe(_) | Packet::Unsubscribe(_) | Packet::Pingreq
            if !stream.is_uni() =>
        {
            Ok(())
        }
        other => Err(Violation::NotOnDataStream(other.packet_type())),
    }
}
