//! Packets of an established connection: what the client sends, what the shell answers and delivers.

use std::time::Instant;

use super::{Event, Server, State};
use crate::connection::acks::{Token, Waiting};
use crate::connection::exchange::{Acknowledged, Sent};
use crate::error::Violation;
use crate::message::Delivery;
use crate::packet::{Packet, PacketId, PacketType, Suback, Unsuback};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;

impl Server {
    pub(super) fn handle_packet(
        &mut self,
        on: StreamKey,
        packet: Packet,
        now: Instant,
    ) -> Result<(), Violation> {
        let established = match &mut self.state {
            State::Established(established) => established,
            State::Listening => return self.handle_first_packet(packet),
            State::Deciding(_) | State::Closed(_) => return Ok(()),
        };
        established.last_received = now; // [MQTT-3.1.2-22]
        let exchange = &mut established.exchange;
        match packet {
            Packet::Publish(publish) => {
                if !publish.subscription_ids.is_empty() {
                    return Err(Violation::SubscriptionIdFromClient); // [MQTT-3.3.4-6]
                }
                if let Some(received) = exchange.handle_publish(on, publish, now)? {
                    self.emit(Event::Publish(received.message, received.token));
                }
            }
            Packet::Ack(ack) => match exchange.handle_ack(on, &ack) {
                Acknowledged::Complete(id, reason) => {
                    self.emit(Event::Complete(id, reason));
                    self.flush_resend(now);
                }
                Acknowledged::Released(token) => self.emit(Event::Release(token)),
                Acknowledged::Nothing => {}
            },
            Packet::Subscribe(subscribe) => {
                exchange.owe(on, Waiting::Unanswered(subscribe.packet_id));
                self.emit(Event::Subscribe(on, subscribe));
            }
            Packet::Unsubscribe(unsubscribe) => {
                exchange.owe(on, Waiting::Unanswered(unsubscribe.packet_id));
                self.emit(Event::Unsubscribe(on, unsubscribe));
            }
            Packet::Pingreq => {
                exchange.send_packet(&Packet::Pingresp); // [MQTT-3.12.4-1], [BQ-11]
            }
            Packet::Disconnect(disconnect) => return self.handle_disconnect(&disconnect),
            // Whoever named an Authentication Method was refused. [MQTT-4.12.0-7]
            Packet::Auth(_) => return Err(Violation::AuthNotNegotiated),
            Packet::Connect(_) => return Err(Violation::SecondConnect), // [MQTT-3.1.0-2]
            Packet::Connack(_) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Pingresp => {
                return Err(Violation::UnexpectedPacket(packet.packet_type()));
            }
        }
        Ok(())
    }

    /// Everything up to and including `token` is durable: its acknowledgements go out.
    pub fn handle_persisted(&mut self, token: Token) {
        if let State::Established(established) = &mut self.state {
            established.exchange.handle_persisted(Some(token));
        }
    }

    /// Sets the Reason Code for the acknowledgement of a PUBLISH before its token is persisted.
    pub fn set_reason(&mut self, token: Token, reason: ReasonCode) {
        if let State::Established(established) = &mut self.state {
            established.exchange.set_reason(token, reason);
        }
    }

    /// Answers a SUBSCRIBE, one code per entry; it waits for the token. `None` when the connection has ended or
    /// nothing is to be answered. Answer events in their order: a token stands for all before it.
    pub fn suback(&mut self, on: StreamKey, packet_id: PacketId, codes: Vec<ReasonCode>) -> Option<Token> {
        let codes = codes.into_iter().map(|code| code.allowed_in(PacketType::Suback)).collect(); // [MQTT-3.8.4-7], [MQTT-3.9.3-2]
        let suback = Suback { packet_id, codes, reason_string: None, user: Vec::new() };
        self.answer(on, packet_id, Waiting::Suback(Box::new(suback))) // [MQTT-2.2.1-6], [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5], [MQTT-3.8.4-6]
    }

    /// Answers an UNSUBSCRIBE, one code per filter; it waits for the token. `None` when the connection has ended.
    pub fn unsuback(&mut self, on: StreamKey, packet_id: PacketId, codes: Vec<ReasonCode>) -> Option<Token> {
        let codes = codes.into_iter().map(|code| code.allowed_in(PacketType::Unsuback)).collect(); // [MQTT-3.11.3-2]
        let unsuback = Unsuback { packet_id, codes, reason_string: None, user: Vec::new() };
        self.answer(on, packet_id, Waiting::Unsuback(Box::new(unsuback))) // [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6]
    }

    fn answer(&mut self, on: StreamKey, packet_id: PacketId, answer: Waiting) -> Option<Token> {
        let State::Established(established) = &mut self.state else { return None };
        established.exchange.waiting.answer(on, packet_id, answer)
    }

    // -- Deliveries --------------------------------------------------------------------------------

    /// Whether this message can be sent now.
    pub fn takes(&self, delivery: &Delivery) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.takes(delivery))
    }

    /// Whether QoS 1 and 2 messages can be sent now.
    pub fn has_send_quota(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.has_send_quota())
    }

    /// Sends a message.
    pub fn deliver(&mut self, delivery: Delivery, now: Instant) -> Sent {
        match &mut self.state {
            State::Established(established) => established.exchange.send(delivery, now),
            _ => Sent::Blocked(Box::new(delivery)),
        }
    }

    /// Whether something must be sent again.
    pub fn is_resending(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.is_resending())
    }

    /// Goes on with what must be sent again, which goes out a little at a time: after every write.
    pub fn continue_resend(&mut self, now: Instant) {
        self.flush_resend(now);
    }

    pub(super) fn flush_resend(&mut self, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        for id in established.exchange.flush_resend(now) {
            self.events.push_back(Event::Complete(id, ReasonCode::PacketTooLarge));
        }
    }
}
