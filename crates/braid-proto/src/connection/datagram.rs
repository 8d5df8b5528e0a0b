//! PUBLISH packets of QoS 0 in datagrams of the transport. [BQ-82]
//!
//! Both ends agree on datagrams by a User Property of CONNECT and CONNACK. [BQ-81]

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::Agreement;
use super::exchange::Exchange;
use crate::decoder::Decoder;
use crate::message::{Delivery, put_delivery};
use crate::packet::{BorrowedPublish, Packet, UserProperties};
use crate::types::{QoS, Violation};

/// Name of the User Property of CONNECT and CONNACK that asks for datagrams, and permits them. [BQ-81]
pub const DATAGRAMS_PROPERTY: &str = "braid-datagrams";

/// Value of the property. Others have no effect.
pub const DATAGRAMS_VALUE: &str = "1";

/// Bytes of a PUBLISH of QoS 0 beside its topic, its payload and its properties, at most.
const OVERHEAD: usize = 8;

/// Whether User Properties of CONNECT or CONNACK have that of datagrams.
pub(super) fn is_agreed(user: &UserProperties) -> bool {
    user.iter().any(|pair| pair == (DATAGRAMS_PROPERTY, DATAGRAMS_VALUE))
}

/// Decoder of the datagrams of one connection whose client has asked for them.
#[derive(Debug)]
pub(super) struct DatagramDecoder {
    decoder: Decoder,
    may_send: bool,
}

impl DatagramDecoder {
    /// `may_send`: the peer has asked for datagrams, or permitted them.
    pub(super) fn new(agreement: &Agreement, may_send: bool) -> Box<Self> {
        let decoder = Decoder::new(agreement.version, agreement.maximum_packet_size);
        Box::new(Self { decoder, may_send })
    }

    pub(super) fn may_send(&self) -> bool {
        self.may_send
    }

    /// Decodes a datagram: exactly one PUBLISH of QoS 0 without RETAIN and without Topic Alias. [BQ-82]
    pub(super) fn decode<'a>(
        &mut self,
        agreement: &Agreement,
        datagram: &'a [u8],
    ) -> Result<BorrowedPublish<'a>, Violation> {
        let mut rest = datagram;
        let decoded = self.decoder.decode_borrowed(&mut rest);
        if !matches!(decoded, Ok(Some(_))) {
            // Without a part of a packet, which the next datagram does not continue.
            *self = *Self::new(agreement, self.may_send);
        }
        let Packet::Publish(publish) = decoded?.ok_or(Violation::Truncated)? else {
            return Err(Violation::NotInDatagram);
        };
        let is_plain = publish.qos == QoS::AtMostOnce && !publish.retain && publish.topic_alias.is_none();
        if is_plain && rest.is_empty() { Ok(publish) } else { Err(Violation::NotInDatagram) }
    }
}

/// Whether a delivery can go in a datagram of at most `limit` bytes. Its properties are not counted.
pub(super) fn fits(delivery: &Delivery, limit: usize) -> bool {
    let message = &*delivery.message;
    let bytes = message.payload_len().saturating_add(message.topic.as_str().len() + OVERHEAD);
    delivery.qos == QoS::AtMostOnce && !delivery.retain && bytes <= limit
}

impl Exchange {
    /// Packet of a delivery for a datagram of at most `limit` bytes. `None`: it belongs on a stream. [BQ-83]
    pub(super) fn datagram(&self, delivery: &Delivery, limit: usize, now: Instant) -> Option<Bytes> {
        if !fits(delivery, limit) || delivery.message.is_expired(now) {
            return None;
        }
        let limit = limit.min(self.streams.agreement().peer_maximum_packet_size);
        let mut packet = BytesMut::with_capacity(limit);
        put_delivery(&mut packet, delivery, &self.transmission(now), limit)?;
        delivery.message.shared_parts().for_each(|part| packet.extend_from_slice(part));
        Some(packet.freeze())
    }
}
