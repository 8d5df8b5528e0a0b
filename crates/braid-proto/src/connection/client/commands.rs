//! What the application sends on an established connection.

use std::num::NonZeroU32;
use std::time::Instant;

use super::{Client, ClientEvent, Established, State, Unsendable};
use crate::connection::acks::Token;
use crate::connection::exchange::Sent;
use crate::message::Delivery;
use crate::packet::{Auth, Packet, PacketId, Subscribe, SubscribeEntry, Unsubscribe, UserProperties};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;
use crate::topic::TopicFilter;

impl Client {
    /// Whether QoS 1 and 2 messages can be sent now.
    pub fn has_send_quota(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.has_send_quota())
    }

    /// Whether this message can be sent now.
    pub fn takes(&self, delivery: &Delivery) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.takes(delivery))
    }

    /// Sends a message. [`Sent::Blocked`] also before the connection is established [MQTT-3.1.2-30] and after its
    /// end.
    ///
    /// # Errors
    /// What the server said in CONNACK that it does not take.
    pub fn publish(&mut self, delivery: Delivery, now: Instant) -> Result<Sent, Unsendable> {
        let State::Established(established) = &mut self.state else {
            return Ok(Sent::Blocked(Box::new(delivery)));
        };
        established.grants.check_publish(&delivery)?;
        let sent = established.exchange.send(delivery, now);
        if matches!(sent, Sent::Out(_)) {
            established.last_sent = now;
        }
        Ok(sent)
    }

    /// Goes on with what must be sent again, which goes out a little at a time: after every write.
    pub fn continue_resend(&mut self, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        for id in established.exchange.flush_resend(now) {
            self.events.push_back(ClientEvent::Published(id, ReasonCode::PacketTooLarge));
        }
    }

    /// Asks for messages on a stream, which carries them then [BQ-15]; [`ClientEvent::Subscribed`] answers under the
    /// same identifier.
    ///
    /// # Errors
    /// What the server said in CONNACK that it does not take, or nothing can be sent now.
    pub fn subscribe(
        &mut self,
        on: StreamKey,
        entries: Vec<SubscribeEntry>,
        id: Option<NonZeroU32>,
        user: UserProperties,
        now: Instant,
    ) -> Result<PacketId, Unsendable> {
        let State::Established(established) = &mut self.state else { return Err(Unsendable::NotConnected) };
        established.grants.check_subscribe(&entries, id)?;
        established.request(on, now, |packet_id| {
            Packet::Subscribe(Box::new(Subscribe { packet_id, id, user, entries }))
        })
    }

    /// Ends subscriptions, on whatever stream they are [BQ-17]; [`ClientEvent::Unsubscribed`] answers under the same identifier.
    ///
    /// # Errors
    /// Nothing can be sent now.
    pub fn unsubscribe(
        &mut self,
        on: StreamKey,
        filters: Vec<TopicFilter>,
        user: UserProperties,
        now: Instant,
    ) -> Result<PacketId, Unsendable> {
        let State::Established(established) = &mut self.state else { return Err(Unsendable::NotConnected) };
        established.request(on, now, |packet_id| {
            let filters = filters.into_iter().map(Ok).collect();
            Packet::Unsubscribe(Box::new(Unsubscribe { packet_id, user, filters }))
        })
    }

    /// The application took this message and every one before it: their acknowledgements go out.
    pub fn acknowledge(&mut self, token: Token, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        established.exchange.handle_persisted(Some(token));
        established.last_sent = now;
    }

    /// Sends AUTH: the next step of enhanced authentication, or the first of a new one (`ReAuthenticate`).
    pub fn authenticate(&mut self, auth: Auth) {
        let packet = Packet::Auth(Box::new(auth));
        match &mut self.state {
            // [MQTT-4.12.0-3]
            State::Connecting(connecting) if connecting.authenticates => {
                packet.encode(connecting.version, connecting.outbox.open());
            }
            State::Established(established) if established.authenticates => {
                established.exchange.send_packet(&packet); // [MQTT-4.12.1-1]
            }
            _ => {}
        }
    }
}

impl Established {
    /// Sends a packet that is answered under its own identifier.
    fn request(
        &mut self,
        on: StreamKey,
        now: Instant,
        packet: impl FnOnce(PacketId) -> Packet,
    ) -> Result<PacketId, Unsendable> {
        let on = self.exchange.streams.resolve(on);
        let outbound = &mut self.exchange.session.outbound;
        let id = outbound.send_control(on).ok_or(Unsendable::NoPacketId)?; // [MQTT-2.2.1-3]
        if !self.exchange.send_packet_on(on, &packet(id)) {
            self.exchange.session.outbound.handle_control(id);
            return Err(Unsendable::TooLarge); // [MQTT-3.2.2-15]
        }
        self.last_sent = now;
        Ok(id)
    }
}
