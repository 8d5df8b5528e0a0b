//! Commands of the application: messages, requests and retransmissions.

use std::num::NonZeroU32;
use std::time::Instant;

use bytes::Bytes;
use thiserror::Error;

use super::{Client, ClientEvent, Established, State};
use crate::connection::datagram;
use crate::connection::exchange::Exchange;
use crate::connection::stream::Outbox;
use crate::connection::{Resent, Sent, Token};
use crate::message::Delivery;
use crate::packet::{ConnackProperties, Packet, Subscribe, SubscribeEntry, Unsubscribe, UserProperties};
use crate::session::{Outbound, Session};
use crate::types::{PacketId, QoS, ReasonCode, StreamKey, TopicFilter};

/// Capabilities that the server announced in CONNACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grants {
    maximum_qos: QoS,
    retain: bool,
    wildcards: bool,
    subscription_ids: bool,
    shared: bool,
}

/// Reason why a packet is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// No connection.
    #[error("there is no connection")]
    NotConnected,
    /// All 65,535 Packet Identifiers are in use.
    #[error("all packet identifiers are in use: wait for an acknowledgement")]
    NoPacketId,
    /// Larger than the server's Maximum Packet Size.
    #[error("the packet is larger than the server's maximum packet size: send less at once")]
    TooLarge,
    /// The server's Maximum QoS is lower. [MQTT-3.2.2-11]
    #[error("the maximum QoS of the server is {0}: publish with that")]
    QosNotSupported(QoS),
    /// The server keeps no retained messages. [MQTT-3.2.2-14]
    #[error("the server keeps no retained messages: publish without retain")]
    RetainNotSupported,
    /// The server has no wildcard subscriptions.
    #[error("the server has no wildcard subscriptions: subscribe to the topics by name")]
    WildcardsNotSupported,
    /// The server has no Subscription Identifiers.
    #[error("the server has no subscription identifiers: subscribe without one")]
    SubscriptionIdsNotSupported,
    /// The server has no shared subscriptions.
    #[error("the server has no shared subscriptions: subscribe without $share")]
    SharedNotSupported,
    /// No Local on a shared subscription. [MQTT-3.8.3-4]
    #[error("no local is not allowed on a shared subscription: leave it out")]
    NoLocalOnShared,
}

impl Grants {
    /// Capabilities of a CONNACK with these properties; an absent one is available.
    pub(super) fn of(properties: &ConnackProperties) -> Self {
        Self {
            maximum_qos: properties.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            retain: properties.retain_available.unwrap_or(true),
            wildcards: properties.wildcard_subscription_available.unwrap_or(true),
            subscription_ids: properties.subscription_identifiers_available.unwrap_or(true),
            shared: properties.shared_subscription_available.unwrap_or(true),
        }
    }

    pub(super) fn check_publish(&self, delivery: &Delivery) -> Result<(), SendError> {
        if delivery.qos > self.maximum_qos {
            return Err(SendError::QosNotSupported(self.maximum_qos)); // [MQTT-3.2.2-11]
        }
        if delivery.retain && !self.retain {
            return Err(SendError::RetainNotSupported); // [MQTT-3.2.2-14]
        }
        Ok(())
    }

    pub(super) fn check_subscribe(
        &self,
        entries: &[SubscribeEntry],
        id: Option<NonZeroU32>,
    ) -> Result<(), SendError> {
        if id.is_some() && !self.subscription_ids {
            return Err(SendError::SubscriptionIdsNotSupported);
        }
        for entry in entries {
            let Ok(filter) = &entry.filter else { continue };
            if filter.is_shared() && !self.shared {
                return Err(SendError::SharedNotSupported);
            }
            if filter.is_shared() && entry.no_local {
                return Err(SendError::NoLocalOnShared); // [MQTT-3.8.3-4]
            }
            if filter.has_wildcard() && !self.wildcards {
                return Err(SendError::WildcardsNotSupported);
            }
        }
        Ok(())
    }
}

impl Client {
    /// Whether QoS 1 and 2 messages can be sent now.
    pub fn has_send_quota(&self) -> bool {
        self.exchange().is_some_and(Exchange::has_send_quota)
    }

    /// Whether this message can be sent now.
    pub fn takes(&self, delivery: &Delivery) -> bool {
        self.exchange().is_some_and(|exchange| exchange.takes(delivery))
    }

    /// Sends a message. [`Sent::Blocked`] also before the connection is established [MQTT-3.1.2-30] and after its
    /// end.
    ///
    /// # Errors
    /// The server announced in CONNACK that it does not accept such a message.
    pub fn publish(&mut self, delivery: Delivery, now: Instant) -> Result<Sent, SendError> {
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

    /// Whether the server and this side have agreed on datagrams. [BQ-81]
    pub fn sends_datagrams(&self) -> bool {
        let State::Established(established) = &self.state else { return false };
        established.datagrams.as_ref().is_some_and(|datagrams| datagrams.may_send())
    }

    /// Whether a message is for a datagram of at most `limit` bytes, as far as its size is known without its
    /// properties. [BQ-83]
    pub fn takes_datagram(&self, delivery: &Delivery, limit: usize) -> bool {
        self.sends_datagrams() && datagram::fits(delivery, limit)
    }

    /// Packet of a message for a datagram of at most `limit` bytes, if both sides have agreed on datagrams. `None`: it
    /// is to be sent by [`Client::publish`]. [BQ-83]
    pub fn datagram(&self, delivery: &Delivery, limit: usize, now: Instant) -> Option<Bytes> {
        self.exchange().filter(|_| self.sends_datagrams())?.datagram(delivery, limit, now)
    }

    /// Continues retransmission, a limited number of bytes at a time; to be called after every write.
    pub fn continue_resend(&mut self, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        for (id, reason) in established.exchange.flush_resends(now, |_| true) {
            self.events.push_back(ClientEvent::Published(id, reason));
        }
    }

    /// Subscribes on a stream, which then carries the messages [BQ-15]. [`ClientEvent::Subscribed`] has the same
    /// identifier.
    ///
    /// # Errors
    /// The server announced in CONNACK that it does not offer this, or nothing can be sent now.
    pub fn subscribe(
        &mut self,
        on: StreamKey,
        entries: Vec<SubscribeEntry>,
        id: Option<NonZeroU32>,
        user: UserProperties,
        now: Instant,
    ) -> Result<PacketId, SendError> {
        let State::Established(established) = &mut self.state else { return Err(SendError::NotConnected) };
        established.grants.check_subscribe(&entries, id)?;
        established.request(on, now, |packet_id| {
            Packet::Subscribe(Box::new(Subscribe { packet_id, id, user, entries }))
        })
    }

    /// Ends subscriptions on any stream [BQ-17]. [`ClientEvent::Unsubscribed`] has the same identifier.
    ///
    /// # Errors
    /// Nothing can be sent now.
    pub fn unsubscribe(
        &mut self,
        on: StreamKey,
        filters: Vec<TopicFilter>,
        user: UserProperties,
        now: Instant,
    ) -> Result<PacketId, SendError> {
        let State::Established(established) = &mut self.state else { return Err(SendError::NotConnected) };
        established.request(on, now, |packet_id| {
            let filters = filters.into_iter().map(Ok).collect();
            Packet::Unsubscribe(Box::new(Unsubscribe { packet_id, user, filters }))
        })
    }

    /// Sends the acknowledgements of this message and of all before it, which the application has taken.
    pub fn acknowledge(&mut self, token: Token, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        established.exchange.handle_persisted(Some(token));
        established.last_sent = now;
    }
}

impl Established {
    /// Sends a packet whose answer has the same identifier.
    fn request(
        &mut self,
        on: StreamKey,
        now: Instant,
        packet: impl FnOnce(PacketId) -> Packet,
    ) -> Result<PacketId, SendError> {
        let on = self.exchange.streams.resolve(on);
        let outbound = &mut self.exchange.session.outbound;
        let id = outbound.send_request(on).ok_or(SendError::NoPacketId)?; // [MQTT-2.2.1-3]
        if !self.exchange.send_packet_on(on, &packet(id)) {
            self.exchange.session.outbound.handle_answer(id);
            return Err(SendError::TooLarge); // [MQTT-3.2.2-15]
        }
        self.last_sent = now;
        Ok(id)
    }
}

impl Client {
    /// Lets the driver choose the streams of retransmissions [BQ-21]; to be called before CONNACK. The driver takes the
    /// messages with [`Client::take_resends`] and sends each with [`Client::resend`]. Messages that it never sends stay
    /// in the session.
    pub fn place_resends(&mut self) {
        if let State::Connecting(connecting) = &mut self.state {
            connecting.places_resends = true;
        }
    }

    /// Messages to retransmit, in the order of their first transmission, which must be kept within each lane. To be
    /// called after [`ClientEvent::Connected`] and [`ClientEvent::StreamEnded`] by a driver that chooses the streams.
    /// [MQTT-4.4.0-1], [MQTT-4.6.0-1], [BQ-42]
    pub fn take_resends(&mut self) -> Vec<(PacketId, Delivery)> {
        self.exchange_mut().map(Exchange::take_resends).unwrap_or_default()
    }

    /// Whether [`Client::resend`] of this message would not be [`Resent::Blocked`].
    pub fn takes_resend(&self, id: PacketId, on: StreamKey) -> bool {
        self.exchange().is_some_and(|exchange| exchange.takes_resend(id, on))
    }

    /// Retransmits a message of [`Client::take_resends`], with DUP and under its identifier. One that is too large now
    /// is reported by [`ClientEvent::Published`]. [`Resent::Blocked`] also without a connection.
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

/// Maximum bytes that a client sends before CONNACK: a server need not buffer more. [BQ-13]
const EARLY_BYTES: u64 = 64 * 1024;

/// Requests sent before CONNACK, with the first flight. [BQ-13], [BQ-61]
#[derive(Debug, Default)]
pub(super) struct EarlyRequests {
    /// Data streams in the order of opening.
    streams: Vec<(StreamKey, Outbox)>,
    requests: Vec<(PacketId, StreamKey)>,
    /// Bytes of streams that have ended.
    gone: u64,
    /// Packet Identifiers of a client without a session.
    ids: Outbound,
}

impl EarlyRequests {
    fn open(&mut self, stream: StreamKey) {
        if !stream.is_control() && self.streams.iter().all(|(other, _)| *other != stream) {
            self.streams.push((stream, Outbox::default()));
        }
    }

    /// Ends a stream; returns its requests, which will not be answered. `None`: it is not known.
    fn remove(&mut self, stream: StreamKey) -> Option<Vec<PacketId>> {
        let at = self.streams.iter().position(|(other, _)| *other == stream)?;
        self.gone += self.streams.remove(at).1.end();
        Some(self.requests.extract_if(.., |(_, on)| *on == stream).map(|(id, _)| id).collect())
    }

    pub(super) fn outbox_mut(&mut self, stream: StreamKey) -> Option<&mut Outbox> {
        self.streams.iter_mut().find(|(other, _)| *other == stream).map(|(_, outbox)| outbox)
    }

    /// Streams with unwritten bytes.
    pub(super) fn to_write(&self) -> impl Iterator<Item = StreamKey> {
        self.streams.iter().filter(|(_, outbox)| !outbox.is_empty()).map(|(stream, _)| *stream)
    }

    pub(super) fn unwritten(&self) -> usize {
        self.streams.iter().map(|(_, outbox)| outbox.len()).sum()
    }

    /// Bytes of data streams, written or not.
    fn sent(&self) -> u64 {
        self.gone + self.streams.iter().map(|(_, outbox)| outbox.end()).sum::<u64>()
    }

    fn allocate(&mut self, session: Option<&mut Session>, on: StreamKey) -> Option<PacketId> {
        let id = session.map_or(&mut self.ids, |session| &mut session.outbound).send_request(on)?;
        self.requests.push((id, on));
        Some(id)
    }

    /// Moves streams and requests into the session that CONNACK brought.
    pub(super) fn restore_into(self, exchange: &mut Exchange) {
        for (stream, written) in self.streams {
            exchange.streams.open(stream);
            if let Some(outbox) = exchange.streams.outbox_mut(stream) {
                *outbox = written;
            }
        }
        for (id, stream) in self.requests {
            exchange.session.outbound.restore_request(id, stream);
        }
    }
}

impl Client {
    /// Whether [`Client::subscribe_early`] accepts this: CONNACK has not arrived, CONNECT named no Authentication
    /// Method, and CONNECT and all streams together stay within 64 KiB. [BQ-13], [MQTT-3.1.2-30]
    pub fn takes_early(&self, entries: &[SubscribeEntry], user: &UserProperties) -> bool {
        let State::Connecting(connecting) = &self.state else { return false };
        let sent = connecting.outbox.end() + connecting.early.sent();
        connecting.authentication.is_none() && sent + size_at_most(entries, user) <= EARLY_BYTES
    }

    /// Subscribes before CONNACK, on the assumption that the server offers what it offered before. The answer comes
    /// after CONNACK; bytes that arrive on data streams before it must wait.
    ///
    /// # Errors
    /// No identifier is free. [`SendError::NotConnected`]: CONNACK has arrived, or [`Client::takes_early`] is false.
    pub fn subscribe_early(
        &mut self,
        on: StreamKey,
        entries: Vec<SubscribeEntry>,
        id: Option<NonZeroU32>,
        user: UserProperties,
    ) -> Result<PacketId, SendError> {
        if !self.takes_early(&entries, &user) {
            return Err(SendError::NotConnected);
        }
        let State::Connecting(connecting) = &mut self.state else { return Err(SendError::NotConnected) };
        let early = &mut connecting.early;
        let on = if early.outbox_mut(on).is_some() { on } else { StreamKey::CONTROL };
        let packet_id = early.allocate(connecting.session.as_mut(), on).ok_or(SendError::NoPacketId)?;
        let outbox = early.outbox_mut(on).unwrap_or(&mut connecting.outbox);
        let subscribe = Packet::Subscribe(Box::new(Subscribe { packet_id, id, user, entries }));
        subscribe.encode(connecting.version, outbox.open());
        Ok(packet_id)
    }

    pub(super) fn open_early(&mut self, stream: StreamKey) {
        if let State::Connecting(connecting) = &mut self.state {
            connecting.early.open(stream);
        }
    }

    pub(super) fn reset_early(&mut self, stream: StreamKey) {
        if let State::Connecting(connecting) = &mut self.state
            && let Some(requests) = connecting.early.remove(stream)
        {
            self.events.push_back(ClientEvent::StreamEnded(stream, requests));
        }
    }
}

/// Upper bound of the bytes of a SUBSCRIBE.
fn size_at_most(entries: &[SubscribeEntry], user: &UserProperties) -> u64 {
    let filter_len = |entry: &SubscribeEntry| entry.filter.as_ref().map_or(0, |filter| filter.as_str().len());
    let filters: usize = entries.iter().map(|entry| 2 + filter_len(entry) + 1).sum();
    let user: usize = user.encoded_len();
    // Header, Packet Identifier, length of the properties, Subscription Identifier.
    (5 + 2 + 4 + 5 + filters + user) as u64
}
