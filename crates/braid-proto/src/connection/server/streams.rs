//! Data streams: they open, bring packets and end; the connection does not care.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Event, Server, State};
use crate::connection::outbox::Outbox;
use crate::connection::streams::{StreamAction, Streams};
use crate::connection::timer::Timer;
use crate::error::Violation;
use crate::packet::{Packet, QoS};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A data stream that was opened before the CONNECT was accepted.
#[derive(Debug, Default)]
pub(super) struct Opened {
    is_finished: bool,
    is_stopped: bool,
}

impl Server {
    /// The streams that were opened before begin. [BQ-13]
    pub(super) fn begin_streams(opened: BTreeMap<StreamKey, Opened>, streams: &mut Streams) {
        for (stream, Opened { is_finished, is_stopped }) in opened {
            streams.open(stream);
            if is_finished {
                streams.close_by_peer(stream);
            }
            if is_stopped {
                streams.mute(stream);
            }
        }
    }

    /// Handles a data stream that the client has opened. Before the CONNECT is accepted it is only noted: nothing is
    /// read from it [BQ-13].
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
    pub fn handle_stream_finished(&mut self, stream: StreamKey, now: Instant) {
        if let Some(opened) = self.opened.get_mut(&stream) {
            opened.is_finished = true; // Nothing was read from it before, so nothing came on it.
        }
        let State::Established(established) = &mut self.state else { return };
        match established.exchange.streams.finish(stream) {
            Ok(true) => self.forsake(stream, now),
            Ok(false) => {}
            Err(violation) => self.break_stream(stream, violation, now),
        }
    }

    /// Handles STOP_SENDING on a data stream, which the transport has answered with RESET_STREAM: what the client still
    /// says there counts, what it should hear goes elsewhere. [BQ-33]
    pub fn handle_stream_stopped(&mut self, stream: StreamKey, now: Instant) {
        if let Some(opened) = self.opened.get_mut(&stream) {
            opened.is_stopped = true;
        }
        let State::Established(established) = &mut self.state else { return };
        if established.exchange.streams.mute(stream) {
            self.forsake(stream, now);
        }
    }

    /// Handles RESET_STREAM on a data stream, which the shell has answered with the same code: the stream is gone.
    /// [BQ-32]
    pub fn handle_stream_reset(&mut self, stream: StreamKey, now: Instant) {
        self.opened.remove(&stream);
        let State::Established(established) = &mut self.state else { return };
        let streams = &mut established.exchange.streams;
        let was_hoarder = streams.hoarder() == Some(stream);
        if streams.remove(stream) {
            self.forsake(stream, now);
        }
        if was_hoarder {
            self.watch_next_hoarder(now);
        }
    }

    /// What the session had on a stream goes on elsewhere.
    fn forsake(&mut self, stream: StreamKey, now: Instant) {
        self.emit(Event::StreamEnded(stream));
        if let State::Established(established) = &mut self.state {
            for id in established.exchange.end_stream(stream, now) {
                self.events.push_back(Event::Complete(id, ReasonCode::PacketTooLarge));
            }
        }
    }

    /// Ends one stream for what came on it. The connection lives, and so does its Will. [BQ-34]
    pub(super) fn break_stream(&mut self, stream: StreamKey, violation: Violation, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        if established.exchange.streams.abort(stream, violation.reason()) {
            self.emit(Event::StreamViolated(stream, violation));
            self.forsake(stream, now);
        }
    }

    /// Handles bytes of a data stream.
    pub(super) fn handle_data(&mut self, stream: StreamKey, mut input: &[u8], now: Instant) {
        while !input.is_empty() {
            let State::Established(established) = &mut self.state else { return };
            let packet = established.exchange.streams.decode(stream, &mut input);
            let handled = match packet {
                Ok(Some(packet)) => {
                    check_packet(stream, &packet).and_then(|()| self.handle_packet(stream, packet, now))
                }
                Ok(None) => break,
                Err(violation) => Err(violation),
            };
            if let Err(violation) = handled {
                return self.break_stream(stream, violation, now);
            }
        }
        self.watch_hoarder(stream, now);
        self.watch_partial(stream, now);
    }

    /// No packet may stand still for ever. [BQ-45]
    fn watch_partial(&mut self, stream: StreamKey, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        let is_partial = established.exchange.streams.note_heard(stream, now);
        // The timer is not moved with every read: it looks back instead.
        if is_partial && !self.timers.is_set(Timer::Partial) {
            self.timers.set(Timer::Partial, Some(now + self.partial_idle()));
        }
    }

    /// Never nothing, or a stream that is not read would be looked at for ever; never beyond what clocks can tell.
    fn partial_idle(&self) -> Duration {
        self.options.partial_idle.clamp(Duration::from_millis(1), YEAR)
    }

    pub(super) fn handle_partial_timer(&mut self, now: Instant) {
        let idle = self.partial_idle();
        self.timers.set(Timer::Partial, None);
        while let State::Established(established) = &mut self.state
            && let exchange = &mut established.exchange
            && let Some((heard, stream)) = exchange.streams.stillest()
        {
            if heard + idle > now {
                return self.timers.set(Timer::Partial, Some(heard + idle));
            }
            if exchange.is_reading(stream) && exchange.streams.is_reading(stream) {
                self.break_stream(stream, Violation::PartialPacketStalled, now);
            } else {
                exchange.streams.note_heard(stream, now); // It could not go on: its time begins now.
            }
        }
    }

    /// One packet may be growing while others wait for its memory: not for ever. [BQ-45]
    fn watch_hoarder(&mut self, stream: StreamKey, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        match established.exchange.streams.hoarder() {
            None => self.timers.set(Timer::Hoarder, None),
            Some(hoarder) if hoarder == stream || !self.timers.is_set(Timer::Hoarder) => {
                self.timers.set(Timer::Hoarder, Some(now + self.options.partial_timeout));
            }
            Some(_) => {}
        }
    }

    pub(super) fn handle_hoarder_timer(&mut self, now: Instant) {
        let State::Established(established) = &self.state else { return };
        if let Some(hoarder) = established.exchange.streams.hoarder() {
            self.break_stream(hoarder, Violation::PartialPacketStalled, now);
        }
        self.watch_next_hoarder(now);
    }

    /// The next one could not go on before: its time begins now.
    fn watch_next_hoarder(&mut self, now: Instant) {
        let State::Established(established) = &self.state else { return };
        let next = established.exchange.streams.hoarder();
        self.timers.set(Timer::Hoarder, next.map(|_| now + self.options.partial_timeout));
    }

    /// The next thing to do with a data stream; after every write, and until there is none.
    pub fn poll_stream(&mut self) -> Option<StreamAction> {
        match &mut self.state {
            State::Established(established) => established.exchange.streams.poll_action(),
            _ => None,
        }
    }

    // -- Bytes to send -----------------------------------------------------------------------------

    /// The bytes to send on a stream.
    pub fn outbox(&mut self, stream: StreamKey) -> Option<&mut Outbox> {
        match &mut self.state {
            State::Established(established) => established.exchange.streams.outbox_mut(stream),
            State::Closed(closed) => stream.is_control().then_some(&mut closed.outbox),
            State::Listening | State::Deciding(_) => None,
        }
    }

    /// Appends to `streams` those that have bytes to send, the control stream first.
    pub fn streams_to_write(&self, streams: &mut Vec<StreamKey>) {
        match &self.state {
            State::Established(established) => streams.extend(established.exchange.streams.to_write()),
            State::Closed(closed) if !closed.outbox.is_empty() => streams.push(StreamKey::CONTROL),
            _ => {}
        }
    }

    /// Bytes to send on all streams.
    pub fn unwritten(&self) -> usize {
        match &self.state {
            State::Established(established) => established.exchange.streams.unwritten(),
            State::Closed(closed) => closed.outbox.len(),
            State::Listening | State::Deciding(_) => 0,
        }
    }

    /// Bytes to send on a stream.
    pub fn unwritten_on(&self, stream: StreamKey) -> usize {
        self.outbox_of(stream).map_or(0, Outbox::len)
    }

    /// The same without payloads by reference: acknowledgements and small messages.
    pub fn unwritten_packets_on(&self, stream: StreamKey) -> usize {
        self.outbox_of(stream).map_or(0, Outbox::packets_len)
    }

    fn outbox_of(&self, stream: StreamKey) -> Option<&Outbox> {
        match &self.state {
            State::Established(established) => established.exchange.streams.outbox(stream),
            State::Closed(closed) => stream.is_control().then_some(&closed.outbox),
            State::Listening | State::Deciding(_) => None,
        }
    }
}

/// What a client may send on a data stream. [BQ-10], [BQ-12]
fn check_packet(stream: StreamKey, packet: &Packet) -> Result<(), Violation> {
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
