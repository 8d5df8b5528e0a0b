//! The server's end of a Network Connection.

#[cfg(test)]
mod bounded;
mod closing;
mod early;
mod event;
mod handshake;
mod options;
mod packets;
mod streams;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cause;
use super::exchange::{Exchange, Progress};
use super::timer::{Timer, Timers};
use crate::decoder::Decoder;
use crate::error::Violation;
use crate::packet::{ProtocolVersion, Will};
use crate::session::{Session, SessionExpiry};
use crate::stream::StreamKey;

use closing::Closed;
pub use closing::End;
use early::Early;
pub use early::EarlyPublish;
pub use event::Event;
pub use handshake::Acceptance;
use handshake::Deciding;
pub(super) use handshake::wanted_expiry;
pub use options::ServerOptions;
use streams::Opened;

/// The server's protocol machine.
///
/// ```text
///            CONNECT            accept                 violation, DISCONNECT, disconnect()
/// Listening ---------> Deciding ------> Established ------------------------------------> Closed
///     |                   | reject                                                          ^
///     +-------------------+-----------------------------------------------------------------+
/// ```
#[derive(Debug)]
pub struct Server {
    options: Arc<ServerOptions>,
    decoder: Decoder,
    state: State,
    timers: Timers,
    events: VecDeque<Event>,
    /// Data streams that were opened before the CONNECT was accepted.
    opened: BTreeMap<StreamKey, Opened>,
    /// Until the handshake is confirmed, if anything comes before.
    early: Option<Box<Early>>,
}

#[derive(Debug)]
enum State {
    /// Waiting for CONNECT.
    Listening,
    /// CONNECT is with the shell; what came behind it is held.
    Deciding(Box<Deciding>),
    Established(Box<Established>),
    /// Only what is in the outbox is still to be sent.
    Closed(Box<Closed>),
}

#[derive(Debug)]
struct Established {
    exchange: Exchange,
    will: Option<Will>,
    /// One and a half times the Keep Alive; `None` turns it off.
    patience: Option<Duration>,
    last_received: Instant,
    wants_problem_information: bool,
    /// What CONNECT asked for, whatever was granted.
    wanted_expiry: SessionExpiry,
}

impl Server {
    /// A connection that was accepted at `now`.
    pub fn new(options: Arc<ServerOptions>, now: Instant) -> Self {
        let mut timers = Timers::default();
        timers.set(Timer::Handshake, now.checked_add(options.connect_timeout));
        let mut decoder = Decoder::new(ProtocolVersion::V311, options.connect_maximum_size);
        decoder.set_spool(options.spool.clone());
        Self {
            options,
            decoder,
            state: State::Listening,
            timers,
            events: VecDeque::new(),
            opened: BTreeMap::new(),
            early: None,
        }
    }

    // -- Getters -----------------------------------------------------------------------------------

    /// Whether more bytes of a stream may be handled. False while the shell decides about a CONNECT, while as many
    /// acknowledgements wait as the Receive Maximum allows [BQ-23], and at the end; on a data stream also before the
    /// CONNECT is accepted [BQ-13] and while incomplete packets are too large [BQ-45].
    pub fn is_reading(&self, stream: StreamKey) -> bool {
        match &self.state {
            State::Listening => stream.is_control(), // [BQ-3]
            State::Deciding(_) | State::Closed(_) => false,
            State::Established(established) => {
                let exchange = &established.exchange;
                exchange.is_reading(stream)
                    && !self.holds_early()
                    && (stream.is_control() || exchange.streams.is_reading(stream))
            }
        }
    }

    /// Where something for this stream goes: there, or on the control stream when it has ended. [BQ-42]
    pub fn resolve(&self, stream: StreamKey) -> StreamKey {
        if let State::Established(established) = &self.state {
            established.exchange.streams.resolve(stream)
        } else {
            StreamKey::CONTROL
        }
    }

    /// Whether the connection is to be closed as soon as the outbox is written.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// The session, while the connection is established.
    pub fn session(&self) -> Option<&Session> {
        if let State::Established(established) = &self.state {
            Some(&established.exchange.session)
        } else {
            None
        }
    }

    /// Whether events wait to be answered.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The version that the client speaks, once it is known.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.decoder.offered_version()
    }

    /// Bytes in the heap of packets which have not ended yet, on all streams.
    pub fn partial_len(&self) -> usize {
        let data = match &self.state {
            State::Established(established) => established.exchange.streams.partial_len(),
            _ => 0,
        };
        self.decoder.partial_len() + data
    }

    // -- Input -------------------------------------------------------------------------------------

    /// Handles bytes of a stream: whole packets, parts of packets, or both.
    pub fn handle_bytes(&mut self, stream: StreamKey, input: &[u8], now: Instant) {
        self.note_bytes(now);
        if stream.is_control() {
            self.handle_control(input, now);
        } else {
            self.handle_data(stream, input, now);
        }
        if let State::Established(established) = &mut self.state {
            established.exchange.handle_persisted(None);
        }
    }

    /// Bytes came on some stream, read or not. Each is a sign of life, so that a packet which takes longer than the Keep
    /// Alive to arrive does not end its connection; unless the server is strict. [BQ-44]
    pub fn note_bytes(&mut self, now: Instant) {
        if !self.options.strict_keep_alive {
            self.reset_keep_alive(now);
        }
    }

    /// Begins the Keep Alive anew, also where the server is strict: it did not read what the peer sends, by its own choice.
    pub fn reset_keep_alive(&mut self, now: Instant) {
        if let State::Established(established) = &mut self.state {
            established.last_received = now;
        }
    }

    fn handle_control(&mut self, mut input: &[u8], now: Instant) {
        while !input.is_empty() {
            if let State::Deciding(deciding) = &mut self.state {
                deciding.held.extend_from_slice(input);
                return;
            }
            if self.is_closed() {
                return; // What follows a DISCONNECT is not for us. [MQTT-3.14.4-1], [MQTT-3.14.4-2]
            }
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

    /// Handles the time that [`Server::poll_timeout`] named.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timers.is_due(Timer::Handshake, now) {
            self.timers.set(Timer::Handshake, None);
            self.close(Cause::Violation(Violation::ConnectTimeout));
        }
        if self.timers.is_due(Timer::Hoarder, now) {
            self.handle_hoarder_timer(now);
        }
        if self.timers.is_due(Timer::Partial, now) {
            self.handle_partial_timer(now);
        }
        if !self.timers.is_due(Timer::Peer, now) {
            return;
        }
        self.timers.set(Timer::Peer, None);
        if let State::Established(established) = &self.state
            && let Some(patience) = established.patience
        {
            // The timer is not moved with every read: it looks back instead.
            let deadline = established.last_received + patience;
            if deadline <= now {
                self.handle_violation(Violation::KeepAliveTimeout); // [MQTT-3.1.2-22]
            } else {
                self.timers.set(Timer::Peer, Some(deadline));
            }
        }
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// The session, to keep its subscriptions. Also when the connection has ended, until [`Server::take_end`]: what
    /// was received before its end counts, however the bytes were cut.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            State::Established(established) => Some(&mut established.exchange.session),
            State::Closed(closed) => closed.end.as_mut()?.session.as_mut(),
            State::Listening | State::Deciding(_) => None,
        }
    }

    // -- Output ------------------------------------------------------------------------------------

    /// The next thing to answer.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() && self.events.capacity() > 64 {
            self.events = VecDeque::new(); // Ten thousand idle connections must not keep a burst's memory.
        }
        event
    }

    /// The next thing that a store must know of deliveries that have a place in one ([`Delivery::queue_lsn`]). What
    /// came before the end of the connection is told after it, too.
    pub fn poll_progress(&mut self) -> Option<Progress> {
        match &mut self.state {
            State::Established(established) => established.exchange.progress.pop_front(),
            State::Closed(closed) => closed.progress.pop_front(),
            State::Listening | State::Deciding(_) => None,
        }
    }

    /// When to call [`Server::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }
}
