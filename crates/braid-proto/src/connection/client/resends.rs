//! What a shell with several streams sends again where it sees fit.

use std::time::Instant;

use super::{Client, ClientEvent, State};
use crate::connection::exchange::Resent;
use crate::message::Delivery;
use crate::packet::PacketId;
use crate::reason::ReasonCode;
use crate::stream::StreamKey;

impl Client {
    /// Before CONNACK: this shell places what must be sent again itself, so that it need not all go on the control
    /// stream [BQ-21]. It takes the messages with [`Client::take_resends`] and sends each with [`Client::resend`]. What
    /// it never sends stays in the session.
    pub fn place_resends(&mut self) {
        if let State::Connecting(connecting) = &mut self.state {
            connecting.places_resends = true;
        }
    }

    /// After [`ClientEvent::Connected`] and [`ClientEvent::StreamEnded`], if the shell places them: the messages that
    /// must be sent again, in the order in which they were first sent, which must be kept within each lane.
    /// [MQTT-4.4.0-1], [MQTT-4.6.0-1], [BQ-42]
    pub fn take_resends(&mut self) -> Vec<(PacketId, Delivery)> {
        match &mut self.state {
            State::Established(established) => established.exchange.take_resends(),
            _ => Vec::new(),
        }
    }

    /// Whether [`Client::resend`] of this message would not be [`Resent::Blocked`].
    pub fn takes_resend(&self, id: PacketId, on: StreamKey) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.takes_resend(id, on))
    }

    /// Sends a message of [`Client::take_resends`] again, with DUP and under its identifier.
    /// [`ClientEvent::Published`] tells of one that is too large now. [`Resent::Blocked`] also without a connection.
    pub fn resend(&mut self, id: PacketId, on: StreamKey, now: Instant) -> Resent {
        let State::Established(established) = &mut self.state else { return Resent::Blocked };
        let resent = established.exchange.resend(id, on, now);
        match resent {
            Resent::Out(_) => established.last_sent = now,
            Resent::TooLarge => {
                self.events.push_back(ClientEvent::Published(id, ReasonCode::PacketTooLarge));
            }
            Resent::Over | Resent::Blocked => {}
        }
        resent
    }
}
