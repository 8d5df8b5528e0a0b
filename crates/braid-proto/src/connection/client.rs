//! The client's end of a Network Connection.

mod closing;
mod commands;
mod early;
mod event;
mod grants;
mod handshake;
mod options;
mod packets;
#[cfg(test)]
mod pair;
mod resends;
mod streams;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cause;
use super::exchange::Exchange;
use super::timer::{Timer, Timers};
use crate::decoder::Decoder;
use crate::error::Violation;
use crate::packet::Packet;
use crate::session::Session;
use crate::stream::StreamKey;

use closing::Closed;
pub use event::{ClientEvent, Connected, Incoming};
use grants::Grants;
pub use grants::Unsendable;
use handshake::Connecting;
pub use options::ClientOptions;

/// The client's protocol machine.
///
/// ```text
///            CONNACK of success                 violation, DISCONNECT, disconnect()
/// Connecting ------------------> Established --------------------------------------> Closed
///     |                                                                                ^
///     +--------------------------------------------------------------------------------+
///            CONNACK of refusal, violation, disconnect()
/// ```
#[derive(Debug)]
pub struct Client {
    options: Arc<ClientOptions>,
    decoder: Decoder,
    state: State,
    timers: Timers,
    events: VecDeque<ClientEvent>,
}

#[derive(Debug)]
enum State {
    /// CONNECT is sent or in the outbox.
    Connecting(Box<Connecting>),
    Established(Box<Established>),
    /// Only what is in the outbox is still to be sent.
    Closed(Box<Closed>),
}

#[derive(Debug)]
struct Established {
    exchange: Exchange,
    grants: Grants,
    /// `None` turns it off.
    keep_alive: Option<Duration>,
    last_sent: Instant,
    last_received: Instant,
    /// The PINGREQ that waits for its answer.
    pinged: Option<Instant>,
    /// When the first PINGREQ was made that has no answer yet, and how long the last one waited for its answer.
    asked: Option<Instant>,
    round_trip: Option<Duration>,
    /// What is ahead of that PINGREQ on the control stream.
    ahead: Ahead,
    /// The application takes no more messages, so nothing is read, not even a PINGRESP.
    paused: bool,
    authenticates: bool,
    session_expires_with_connection: bool,
}

/// The bytes that leave before a PINGREQ does: while they go, the server is there, and cannot answer yet.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    /// Where the PINGREQ begins on its stream.
    until: u64,
    /// What had left of the stream when it was last looked at.
    taken: u64,
}

impl Ahead {
    /// Whether some of them have left since the last look.
    fn shrinks(&mut self, taken: u64) -> bool {
        let was_behind = self.taken < self.until;
        let before = std::mem::replace(&mut self.taken, taken);
        was_behind && taken > before
    }
}

impl Client {
    // -- Getters -----------------------------------------------------------------------------------

    /// Whether CONNACK has come and nothing has ended the connection.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// Whether the connection is to be closed as soon as the outbox is written.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Why the connection is closed.
    pub fn cause(&self) -> Option<Cause> {
        if let State::Closed(closed) = &self.state { Some(closed.cause) } else { None }
    }

    /// The session, while the connection is established.
    pub fn session(&self) -> Option<&Session> {
        if let State::Established(established) = &self.state {
            Some(&established.exchange.session)
        } else {
            None
        }
    }

    /// How many received messages have no acknowledgement in the outbox yet.
    pub fn unacknowledged(&self) -> usize {
        if let State::Established(established) = &self.state { established.exchange.waiting.len() } else { 0 }
    }

    // -- Input -------------------------------------------------------------------------------------

    /// Handles bytes of a stream: whole packets, parts of packets, or both.
    pub fn handle_bytes(&mut self, stream: StreamKey, input: &[u8], now: Instant) {
        if let State::Established(established) = &mut self.state {
            established.last_received = now; // [BQ-44]
        }
        let unsent = self.unwritten();
        if stream.is_control() {
            self.handle_control(input, now);
        } else {
            self.handle_data(stream, input, now);
        }
        if let State::Established(established) = &mut self.state {
            established.exchange.handle_persisted(None);
            if established.exchange.streams.unwritten() > unsent {
                established.last_sent = now;
            }
        }
    }

    fn handle_control(&mut self, mut input: &[u8], now: Instant) {
        while !input.is_empty() && !self.is_closed() {
            match self.decoder.decode(&mut input) {
                Ok(Some(packet)) => {
                    if let Err(violation) = self.handle_packet(StreamKey::CONTROL, packet, now) {
                        self.handle_violation(violation);
                    }
                }
                Ok(None) => break,
                Err(violation) => self.handle_violation(violation),
            }
        }
    }

    /// Handles the time that [`Client::poll_timeout`] named.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timers.is_due(Timer::Handshake, now) {
            self.close(Cause::Violation(Violation::ConnackTimeout));
        }
        if self.timers.is_due(Timer::Peer, now) {
            self.handle_peer_timer(now);
        }
        if self.timers.is_due(Timer::Ping, now) {
            self.handle_ping_timer(now);
        }
    }

    fn handle_peer_timer(&mut self, now: Instant) {
        self.timers.set(Timer::Peer, None);
        let State::Established(established) = &mut self.state else { return };
        let Some(pinged) = established.pinged else { return };
        let (taken, _) = established.exchange.streams.control_progress();
        let is_leaving = established.ahead.shrinks(taken);
        if established.paused || is_leaving || established.last_received > pinged {
            // A large packet may be what keeps the PINGRESP from arriving, or the PINGREQ from leaving.
            established.pinged = Some(now);
            self.timers.set(Timer::Peer, Some(now + self.options.ping_timeout));
        } else {
            self.close(Cause::Violation(Violation::PingrespTimeout));
        }
    }

    fn handle_ping_timer(&mut self, now: Instant) {
        self.timers.set(Timer::Ping, None);
        let State::Established(established) = &mut self.state else { return };
        let Some(keep_alive) = established.keep_alive else { return };
        // Silence of the server is no reason of the standard's, but the only way to notice that it is gone
        // while we send nothing which it acknowledges.
        let idle_since = if established.paused {
            established.last_sent
        } else {
            established.last_sent.min(established.last_received)
        };
        if idle_since + keep_alive > now {
            self.timers.set(Timer::Ping, Some(idle_since + keep_alive));
            return;
        }
        self.send_pingreq(now); // [MQTT-3.1.2-20]
        self.timers.set(Timer::Ping, Some(now + keep_alive));
    }

    fn send_pingreq(&mut self, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        let (taken, until) = established.exchange.streams.control_progress();
        established.exchange.send_packet(&Packet::Pingreq);
        established.last_sent = now;
        established.asked.get_or_insert(now);
        if established.pinged.is_none() {
            established.ahead = Ahead { until, taken };
            established.pinged = Some(now);
            self.timers.set(Timer::Peer, Some(now + self.options.ping_timeout));
        }
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// Says that nothing is read from the link, because the application takes no more messages, or that it is
    /// read again. The server cannot be blamed for silence meanwhile.
    pub fn pause(&mut self, paused: bool, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        if established.paused && !paused {
            established.last_received = now;
        }
        established.paused = paused;
    }

    /// Sends a PINGREQ, whether Keep Alive asks for one or not, unless one waits for its answer.
    pub fn ping(&mut self, now: Instant) {
        if matches!(&self.state, State::Established(established) if established.asked.is_none()) {
            self.send_pingreq(now);
        }
    }

    /// How long the last PINGREQ that was answered waited for its PINGRESP. Told once.
    pub fn take_round_trip(&mut self) -> Option<Duration> {
        if let State::Established(established) = &mut self.state {
            established.round_trip.take()
        } else {
            None
        }
    }

    // -- Output ------------------------------------------------------------------------------------

    /// The next thing to answer or know.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// When to call [`Client::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }
}
