//! What the server sends on an established connection.

use std::mem;
use std::time::Instant;

use super::{Client, ClientEvent, Incoming, State};
use crate::connection::exchange::Acknowledged;
use crate::connection::timer::Timer;
use crate::error::Violation;
use crate::packet::{Packet, Publish};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;

impl Client {
    pub(super) fn handle_packet(
        &mut self,
        on: StreamKey,
        packet: Packet,
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
                    for id in exchange.flush_resend(now) {
                        self.events.push_back(ClientEvent::Published(id, ReasonCode::PacketTooLarge));
                    }
                    // Only PUBCOMP says so, when the PUBCOMP before it was lost with its connection: the server
                    // has the message. "This is not an error during recovery" (MQTT 5, table 3-13).
                    let is_done = reason == ReasonCode::PacketIdentifierNotFound;
                    let reason = if is_done { ReasonCode::Success } else { reason };
                    self.events.push_back(ClientEvent::Published(id, reason));
                }
                // Forgetting the identifier is in memory and done: PUBCOMP only waits for its turn.
                Acknowledged::Released(token) => exchange.waiting.waive(token),
                Acknowledged::Nothing => {}
            },
            Packet::Suback(suback) => {
                if exchange.session.outbound.handle_control(suback.packet_id) {
                    self.events.push_back(ClientEvent::Subscribed(suback));
                }
            }
            Packet::Unsuback(unsuback) => {
                if exchange.session.outbound.handle_control(unsuback.packet_id) {
                    self.events.push_back(ClientEvent::Unsubscribed(unsuback));
                }
            }
            Packet::Pingresp => {
                established.pinged = None;
                established.round_trip =
                    established.asked.take().map(|asked| now.saturating_duration_since(asked));
                self.timers.set(Timer::Peer, None);
            }
            Packet::Disconnect(disconnect) => return self.handle_disconnect(disconnect),
            Packet::Auth(auth) if established.authenticates => {
                self.events.push_back(ClientEvent::Auth(auth));
            }
            Packet::Auth(_) => return Err(Violation::AuthNotNegotiated), // [MQTT-4.12.0-6]
            Packet::Connect(_)
            | Packet::Connack(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::Pingreq => return Err(Violation::UnexpectedPacket(packet.packet_type())),
        }
        Ok(())
    }

    fn handle_publish(&mut self, on: StreamKey, mut publish: Publish, now: Instant) -> Result<(), Violation> {
        let State::Established(established) = &mut self.state else { return Ok(()) };
        let Publish { dup, packet_id, topic_alias, .. } = publish;
        let subscription_ids = mem::take(&mut publish.subscription_ids);
        if let Some(received) = established.exchange.handle_publish(on, publish, now)? {
            let (message, token) = (received.message, received.token);
            let incoming = Incoming { message, dup, packet_id, topic_alias, subscription_ids, token };
            self.events.push_back(ClientEvent::Message(incoming));
        }
        Ok(())
    }
}
