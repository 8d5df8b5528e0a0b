//! Client end of a Network Connection.

mod authentication;
mod commands;
mod handshake;
mod streams;

use std::collections::VecDeque;
use std::mem;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::datagram::DatagramDecoder;
use super::exchange::{Acknowledged, Continued, Exchange};
use super::{Cause, Resent, Timer, Timers, Token};
use crate::decoder::Decoder;
use crate::message::{Delivery, SharedMessage};
use crate::packet::{
    Auth, BorrowedPacket, BorrowedPublish, Connack, ConnackProperties, Disconnect, Packet, Publish, Suback,
    Unsuback,
};
use crate::session::Session;
use crate::types::{PacketId, ReasonCode, StreamKey, Violation};

use authentication::Authentication;
pub use authentication::ServerProof;
use commands::Grants;
pub use commands::SendError;
pub use handshake::ClientOptions;
use handshake::{Closed, Connecting};

/// Event that the driver must answer or know.
#[derive(Debug)]
pub enum ClientEvent {
    /// The server accepted the CONNECT.
    Connected(Box<Connected>),
    /// The server refused the CONNECT; the connection is closed. [MQTT-3.2.2-7]
    Refused(Box<Connack>),
    /// Large message that goes on where the server has its first part; follows [`ClientEvent::Connected`]. [BQ-98]
    Continued(Continued),
    /// Message for the application.
    Message(Incoming),
    /// Last acknowledgement of a message to the server: the exchange of this identifier is over.
    Published(PacketId, ReasonCode),
    /// Answer to [`Client::subscribe`].
    Subscribed(Box<Suback>),
    /// Answer to [`Client::unsubscribe`]; without codes before MQTT 5.
    Unsubscribed(Box<Unsuback>),
    /// AUTH of the server: a challenge, to be answered by [`Client::answer_challenge`], or with Success the end of a
    /// re-authentication.
    Auth(Box<Auth>),
    /// DISCONNECT of the server; the connection is closed.
    Disconnected(Box<Disconnect>),
    /// Violation by the server on a data stream, which has ended for it.
    StreamViolated(StreamKey, Violation),
    /// End of a data stream. Its unacknowledged messages continue on the control stream, or on the streams that the
    /// driver chooses ([`Client::take_resends`]). These requests have no answer and must be repeated.
    StreamEnded(StreamKey, Vec<PacketId>),
}

/// Content of a CONNACK of success.
#[derive(Debug)]
pub struct Connected {
    /// Whether the server has the session, and so its subscriptions.
    pub session_present: bool,
    /// Properties of the CONNACK; empty before MQTT 5.
    pub properties: ConnackProperties,
    /// Inflight messages of a session that the server no longer has, in the order of sending. `None` for a QoS 2
    /// message whose PUBREC had arrived: the server has received it. [MQTT-3.2.2-5]
    pub lost: Vec<(PacketId, Option<Delivery>)>,
}

/// Received message.
#[derive(Debug)]
pub struct Incoming {
    /// Message with the QoS and RETAIN of this PUBLISH.
    pub message: SharedMessage,
    /// DUP flag: the server may have sent it before.
    pub dup: bool,
    /// Packet Identifier; `None` with QoS 0.
    pub packet_id: Option<PacketId>,
    /// Topic Alias that the PUBLISH used or defined.
    pub topic_alias: Option<u16>,
    /// Subscription Identifiers of the matching subscriptions.
    pub subscription_ids: Vec<NonZeroU32>,
    /// For [`Client::acknowledge`], once the application has taken the message. `None` with QoS 0.
    pub token: Option<Token>,
}

/// Protocol machine of a client.
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
    /// Only the outbox is still written.
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
    /// Start of the wait for the PINGRESP; moved while the link makes progress.
    pingresp_wait_start: Option<Instant>,
    /// Instant of the oldest PINGREQ without an answer, and the round trip of the last one that was answered.
    first_ping_at: Option<Instant>,
    round_trip: Option<Duration>,
    /// Bytes before that PINGREQ on the control stream.
    bytes_before: BytesBeforePing,
    /// The application takes no more messages, so that nothing is read, not even a PINGRESP.
    paused: bool,
    /// Boxed: most clients have none.
    authentication: Option<Box<Authentication>>,
    session_expires_with_connection: bool,
    /// `None` unless CONNECT asks for datagrams. [BQ-81]
    datagrams: Option<Box<DatagramDecoder>>,
}

/// Bytes before a PINGREQ on its stream: the server cannot answer while they leave.
#[derive(Clone, Copy, Debug, Default)]
struct BytesBeforePing {
    /// Offset of the PINGREQ on its stream.
    until: u64,
    /// Bytes that had left the stream at the last comparison.
    taken: u64,
}

impl BytesBeforePing {
    /// Whether some of them have left since the last comparison.
    fn has_progress(&mut self, taken: u64) -> bool {
        let was_behind = self.taken < self.until;
        let before = mem::replace(&mut self.taken, taken);
        was_behind && taken > before
    }
}

impl Client {
    fn exchange(&self) -> Option<&Exchange> {
        if let State::Established(established) = &self.state { Some(&established.exchange) } else { None }
    }

    fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        let State::Established(established) = &mut self.state else { return None };
        Some(&mut established.exchange)
    }

    // -- Getters -----------------------------------------------------------------------------------

    /// Whether CONNACK has arrived and the connection has not ended.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// Whether the connection is closed as soon as the outbox is written.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Reason for the end of a closed connection.
    pub fn cause(&self) -> Option<Cause> {
        if let State::Closed(closed) = &self.state { Some(closed.cause) } else { None }
    }

    /// Session, while the connection is established.
    pub fn session(&self) -> Option<&Session> {
        self.exchange().map(|exchange| &exchange.session)
    }

    /// Number of received messages whose acknowledgement is not in the outbox yet.
    pub fn unacknowledged(&self) -> usize {
        self.exchange().map_or(0, |exchange| exchange.acks.len())
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
            match self.decoder.decode_borrowed(&mut input) {
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

    /// Handles a datagram of the transport: one message of QoS 0.
    ///
    /// # Errors
    /// The datagram has no effect, and the connection goes on. [BQ-85]
    pub fn handle_datagram(&mut self, datagram: &[u8], now: Instant) -> Result<(), Violation> {
        let State::Established(established) = &mut self.state else {
            return Err(Violation::DatagramNotAgreed);
        };
        established.last_received = now; // [BQ-44]
        let Some(decoder) = &mut established.datagrams else { return Err(Violation::DatagramNotAgreed) };
        let publish = decoder.decode(established.exchange.streams.agreement(), datagram)?;
        self.handle_publish(StreamKey::CONTROL, publish, now)
    }

    /// Handles the instant of [`Client::poll_timeout`].
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
        let Some(pingresp_wait_start) = established.pingresp_wait_start else { return };
        let (taken, _) = established.exchange.streams.control_progress();
        let is_leaving = established.bytes_before.has_progress(taken);
        if established.paused || is_leaving || established.last_received > pingresp_wait_start {
            // A large packet may delay the PINGRESP, or the PINGREQ.
            established.pingresp_wait_start = Some(now);
            self.timers.set_after(Timer::Peer, now, self.options.ping_timeout);
        } else {
            self.close(Cause::Violation(Violation::PingrespTimeout));
        }
    }

    fn handle_ping_timer(&mut self, now: Instant) {
        self.timers.set(Timer::Ping, None);
        let State::Established(established) = &mut self.state else { return };
        let Some(keep_alive) = established.keep_alive else { return };
        // The standard asks for a PINGREQ only where the client is silent. A silent server is probed too: a client of
        // QoS 0 would not notice its death.
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
        established.first_ping_at.get_or_insert(now);
        if established.pingresp_wait_start.is_none() {
            established.bytes_before = BytesBeforePing { until, taken };
            established.pingresp_wait_start = Some(now);
            self.timers.set_after(Timer::Peer, now, self.options.ping_timeout);
        }
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// Declares that the link is not read, because the application takes no more messages, or that it is read again.
    /// Silence of the server is no failure meanwhile.
    pub fn pause(&mut self, paused: bool, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        if established.paused && !paused {
            established.last_received = now;
        }
        established.paused = paused;
    }

    /// Sends a PINGREQ independently of the Keep Alive, unless one is unanswered.
    pub fn ping(&mut self, now: Instant) {
        if matches!(&self.state, State::Established(established) if established.first_ping_at.is_none()) {
            self.send_pingreq(now);
        }
    }

    /// Takes the time from the last answered PINGREQ to its PINGRESP.
    pub fn take_round_trip(&mut self) -> Option<Duration> {
        let State::Established(established) = &mut self.state else { return None };
        established.round_trip.take()
    }

    // -- Output ------------------------------------------------------------------------------------

    /// Next event.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Next instant for [`Client::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }
}

impl Client {
    pub(super) fn handle_packet(
        &mut self,
        on: StreamKey,
        packet: BorrowedPacket<'_>,
        now: Instant,
    ) -> Result<(), Violation> {
        let established = match &mut self.state {
            State::Established(established) => established,
            State::Connecting(_) => return self.handle_first_packet(packet, now),
            State::Closed(_) => return Ok(()),
        };
        let exchange = &mut established.exchange;
        match packet {
            Packet::Publish(publish) => return self.handle_publish(on, publish, now),
            Packet::Ack(ack) => match exchange.handle_ack(on, &ack) {
                Acknowledged::Complete(id, reason) => {
                    // Only a PUBCOMP has this code, when an earlier PUBCOMP was lost with its connection: the server
                    // has the message. "This is not an error during recovery" (MQTT 5, table 3-13).
                    let is_drained = reason == ReasonCode::PacketIdentifierNotFound;
                    let reason = if is_drained { ReasonCode::Success } else { reason };
                    self.events.push_back(ClientEvent::Published(id, reason));
                    self.continue_resend(now);
                }
                // The release of the identifier is in memory only: PUBCOMP need not wait for a store.
                Acknowledged::Released(token) => exchange.acks.waive(token),
                Acknowledged::OffsetRefused(id) => {
                    let resent = exchange.resend_whole(id, now); // [BQ-99]
                    established.last_sent = now;
                    self.events.extend(exchange.continued(id, 0).map(ClientEvent::Continued));
                    if resent == Resent::TooLarge {
                        self.events.push_back(ClientEvent::Published(id, ReasonCode::PacketTooLarge));
                    }
                }
                Acknowledged::Nothing => {}
            },
            Packet::Suback(suback) => {
                if exchange.session.outbound.handle_answer(suback.packet_id) {
                    self.events.push_back(ClientEvent::Subscribed(suback));
                }
            }
            Packet::Unsuback(unsuback) => {
                if exchange.session.outbound.handle_answer(unsuback.packet_id) {
                    self.events.push_back(ClientEvent::Unsubscribed(unsuback));
                }
            }
            Packet::Pingresp => {
                established.pingresp_wait_start = None;
                established.round_trip = established
                    .first_ping_at
                    .take()
                    .map(|first_ping_at| now.saturating_duration_since(first_ping_at));
                self.timers.set(Timer::Peer, None);
            }
            Packet::Disconnect(disconnect) => return self.handle_disconnect(disconnect),
            Packet::Auth(auth) => return self.handle_auth(auth),
            Packet::Connect(_)
            | Packet::Connack(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::Pingreq => return Err(Violation::UnexpectedPacket(packet.packet_type())),
        }
        Ok(())
    }

    fn handle_publish(
        &mut self,
        on: StreamKey,
        mut publish: BorrowedPublish<'_>,
        now: Instant,
    ) -> Result<(), Violation> {
        let State::Established(established) = &mut self.state else { return Ok(()) };
        let Publish { dup, packet_id, topic_alias, .. } = publish;
        let topic_alias = topic_alias.map(NonZeroU16::get);
        let subscription_ids = mem::take(&mut publish.subscription_ids);
        if let Some((message, token)) = established.exchange.handle_publish(on, publish, now)? {
            let incoming = Incoming { message, dup, packet_id, topic_alias, subscription_ids, token };
            self.events.push_back(ClientEvent::Message(incoming));
        }
        Ok(())
    }
}
