//! What a client asks for before CONNACK, so that it rides with the first flight. [BQ-13], [BQ-61]

use std::num::NonZeroU32;

use super::{Client, ClientEvent, State, Unsendable};
use crate::connection::exchange::Exchange;
use crate::connection::outbox::Outbox;
use crate::packet::{Packet, PacketId, ProtocolVersion, Subscribe, SubscribeEntry, UserProperties};
use crate::session::{Outbound, Phase, Session};
use crate::stream::StreamKey;

/// Requests that wait for CONNACK as well as for their own answers.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The data streams, in the order of opening.
    streams: Vec<(StreamKey, Outbox)>,
    requests: Vec<(PacketId, StreamKey)>,
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
        self.streams.remove(at);
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
            let outbound = &mut exchange.session.outbound;
            outbound.restore(id, Phase::Control);
            outbound.continue_on(id, stream);
        }
    }
}

impl Client {
    /// The same as [`Client::subscribe`] before CONNACK: what the server will say of itself there is not known, so this
    /// is for what it has granted before. Nothing is answered before CONNACK; bytes that come on data streams must wait
    /// until then.
    ///
    /// # Errors
    /// No identifier is free, or CONNACK is here.
    pub fn subscribe_early(
        &mut self,
        on: StreamKey,
        entries: Vec<SubscribeEntry>,
        id: Option<NonZeroU32>,
        user: UserProperties,
    ) -> Result<PacketId, Unsendable> {
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
