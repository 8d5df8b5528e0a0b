//! What a client asks for before CONNACK, so that it rides with the first flight. [BQ-13], [BQ-61]

use std::num::NonZeroU32;

use super::{Client, ClientEvent, State, Unsendable};
use crate::connection::exchange::Exchange;
use crate::connection::outbox::Outbox;
use crate::packet::{Packet, PacketId, ProtocolVersion, Subscribe, SubscribeEntry, UserProperties};
use crate::session::{Outbound, Session};
use crate::stream::StreamKey;

/// The most that a client sends before CONNACK, bytes: a server need not have room for more. [BQ-13]
const EARLY_BYTES: u64 = 64 * 1024;

/// Requests that wait for CONNACK as well as for their own answers.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The data streams, in the order of opening.
    streams: Vec<(StreamKey, Outbox)>,
    requests: Vec<(PacketId, StreamKey)>,
    /// Bytes that were put on streams that have ended.
    gone: u64,
    /// Identifiers of a client without a session.
    ids: Outbound,
}

impl Early {
    fn open(&mut self, stream: StreamKey) {
        if !stream.is_control() && self.streams.iter().all(|(other, _)| *other != stream) {
            self.streams.push((stream, Outbox::default()));
        }
    }

    /// Ends a stream: the requests on it, which nobody will answer. `None`: it is not known.
    fn remove(&mut self, stream: StreamKey) -> Option<Vec<PacketId>> {
        let at = self.streams.iter().position(|(other, _)| *other == stream)?;
        self.gone += self.streams.remove(at).1.end();
        Some(self.requests.extract_if(.., |(_, on)| *on == stream).map(|(id, _)| id).collect())
    }

    pub(super) fn outbox_mut(&mut self, stream: StreamKey) -> Option<&mut Outbox> {
        self.streams.iter_mut().find(|(other, _)| *other == stream).map(|(_, outbox)| outbox)
    }

    /// The streams that have bytes to send.
    pub(super) fn to_write(&self) -> impl Iterator<Item = StreamKey> {
        self.streams.iter().filter(|(_, outbox)| !outbox.is_empty()).map(|(stream, _)| *stream)
    }

    pub(super) fn unwritten(&self) -> usize {
        self.streams.iter().map(|(_, outbox)| outbox.len()).sum()
    }

    /// Bytes that were put on data streams, written or not.
    fn sent(&self) -> u64 {
        self.gone + self.streams.iter().map(|(_, outbox)| outbox.end()).sum::<u64>()
    }

    fn allocate(&mut self, session: Option<&mut Session>, on: StreamKey) -> Option<PacketId> {
        let id = session.map_or(&mut self.ids, |session| &mut session.outbound).send_control(on)?;
        self.requests.push((id, on));
        Some(id)
    }

    /// CONNACK is here: streams and requests go on in the session that it brought.
    pub(super) fn go_on(self, exchange: &mut Exchange) {
        for (stream, written) in self.streams {
            exchange.streams.open(stream);
            if let Some(outbox) = exchange.streams.outbox_mut(stream) {
                *outbox = written;
            }
        }
        for (id, stream) in self.requests {
            exchange.session.outbound.restore_control(id, stream);
        }
    }
}

impl Client {
    /// Whether [`Client::subscribe_early`] takes this: CONNACK is not here, and with it not more than 64 KiB are sent
    /// before, CONNECT and all streams together. [BQ-13]
    pub fn takes_early(&self, entries: &[SubscribeEntry], user: &UserProperties) -> bool {
        let State::Connecting(connecting) = &self.state else { return false };
        let sent = connecting.outbox.end() + connecting.early.sent();
        sent + size_at_most(entries, user) <= EARLY_BYTES
    }

    /// The same as [`Client::subscribe`] before CONNACK: what the server will say of itself there is not known, so this
    /// is for what it has granted before. Nothing is answered before CONNACK; bytes that come on data streams must wait
    /// until then.
    ///
    /// # Errors
    /// No identifier is free. [`Unsendable::NotConnected`]: CONNACK is here, or this has to wait for it
    /// ([`Client::takes_early`]).
    pub fn subscribe_early(
        &mut self,
        on: StreamKey,
        entries: Vec<SubscribeEntry>,
        id: Option<NonZeroU32>,
        user: UserProperties,
    ) -> Result<PacketId, Unsendable> {
        if !self.takes_early(&entries, &user) {
            return Err(Unsendable::NotConnected);
        }
        let State::Connecting(connecting) = &mut self.state else { return Err(Unsendable::NotConnected) };
        let early = &mut connecting.early;
        let on = if early.outbox_mut(on).is_some() { on } else { StreamKey::CONTROL };
        let packet_id = early.allocate(connecting.session.as_mut(), on).ok_or(Unsendable::NoPacketId)?;
        let outbox = early.outbox_mut(on).unwrap_or(&mut connecting.outbox);
        encode(
            &Packet::Subscribe(Box::new(Subscribe { packet_id, id, user, entries })),
            connecting.version,
            outbox,
        );
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

fn encode(packet: &Packet, version: ProtocolVersion, outbox: &mut Outbox) {
    packet.encode(version, outbox.open());
}

/// Bytes of a SUBSCRIBE, a few too many for a small one.
fn size_at_most(entries: &[SubscribeEntry], user: &UserProperties) -> u64 {
    let filter_len = |entry: &SubscribeEntry| entry.filter.as_ref().map_or(0, |filter| filter.as_str().len());
    let filters: usize = entries.iter().map(|entry| 2 + filter_len(entry) + 1).sum();
    let user: usize = user.iter().map(|(name, value)| 5 + name.len() + value.len()).sum();
    // Header, Packet Identifier, length of the properties, Subscription Identifier.
    (5 + 2 + 4 + 5 + filters + user) as u64
}
