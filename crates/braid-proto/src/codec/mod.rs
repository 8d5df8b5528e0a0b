//! Bytes to packets: an incremental decoder which is limited in size. Packets encode themselves.

pub(crate) mod topics;
pub(crate) mod wire;

use bytes::BytesMut;

use crate::error::Violation;
use crate::packet::{Packet, PacketType, ProtocolVersion, Publish};
use topics::TopicCache;
use wire::{PACKET_SIZE_MAX, Reader, Source, variable};

/// From here on a packet that came in parts keeps its own allocation and its payload is a slice of it.
const SHARE_FROM: usize = 4096;

/// The most bytes of a packet other than PUBLISH. What they hold is parsed into many times their size, and no
/// honest SUBSCRIBE comes near.
const CONTROL_SIZE_MAX: usize = 1024 * 1024;

/// Decodes the packets of one stream.
///
/// Whole packets are read straight from the caller's buffer. Only a packet that ends beyond it is kept, and it
/// grows with what has arrived, never with what its header announces.
#[derive(Debug)]
pub struct Decoder {
    version: ProtocolVersion,
    maximum_packet_size: usize,
    partial: BytesMut,
    topics: TopicCache,
    offered: Option<ProtocolVersion>,
}

impl Decoder {
    /// A decoder that refuses packets above `maximum_packet_size` bytes, fixed header included.
    pub fn new(version: ProtocolVersion, maximum_packet_size: usize) -> Self {
        let partial = BytesMut::new();
        Self { version, maximum_packet_size, partial, topics: TopicCache::default(), offered: None }
    }

    /// The version that a CONNECT named, even if the rest of it was no good.
    pub fn offered_version(&self) -> Option<ProtocolVersion> {
        self.offered
    }

    /// Sets what CONNECT decided. Affects the packets that start after it.
    pub fn configure(&mut self, version: ProtocolVersion, maximum_packet_size: usize) {
        self.version = version;
        self.maximum_packet_size = maximum_packet_size;
    }

    /// Bytes of a packet which has not ended yet.
    pub fn partial_len(&self) -> usize {
        self.partial.len()
    }

    /// Decodes the next packet and moves `input` behind it. `None`: all of `input` is taken, more is needed.
    ///
    /// # Errors
    /// The first [`Violation`]; the stream cannot be read any further after one.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        if !self.partial.is_empty() {
            return self.decode_partial(input);
        }
        let Some(total) = self.packet_len(input)? else {
            return self.keep(input);
        };
        let Some((whole, rest)) = input.split_at_checked(total) else {
            return self.keep(input);
        };
        let packet = self.decode_whole(whole, Source::Borrowed)?;
        *input = rest;
        Ok(Some(packet))
    }

    fn keep(&mut self, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        self.partial.extend_from_slice(input);
        *input = &[];
        Ok(None)
    }

    /// Completes the packet whose first part is kept.
    fn decode_partial(&mut self, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        let total = loop {
            if let Some(total) = self.packet_len(&self.partial)? {
                break total;
            }
            let Some((&next, rest)) = input.split_first() else { return Ok(None) };
            self.partial.extend_from_slice(&[next]);
            *input = rest;
        };
        let missing = total - self.partial.len();
        let (now, rest) = input.split_at(missing.min(input.len()));
        self.partial.extend_from_slice(now);
        *input = rest;
        if self.partial.len() < total {
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.partial);
        let packet = if total >= SHARE_FROM {
            let whole = whole.freeze();
            self.decode_whole(&whole, Source::Shared(&whole))?
        } else {
            self.decode_whole(&whole, Source::Borrowed)?
        };
        Ok(Some(packet))
    }

    fn decode_whole(&mut self, whole: &[u8], source: Source<'_>) -> Result<Packet, Violation> {
        let first = whole[0];
        let width = variable(&whole[1..])?.map_or(1, |(_, width)| width);
        let mut reader = Reader::new(&whole[1 + width..], source);
        if first >> 4 == PacketType::Publish as u8 {
            return Publish::decode(first, &mut reader, self.version, Some(&mut self.topics))
                .map(Packet::Publish);
        }
        Packet::decode(first, &mut reader, self.version, &mut self.offered)
    }

    /// The length of the packet that starts `bytes`; `None` when its fixed header is not complete.
    fn packet_len(&self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
        // A wrong type or flag is known from the first byte on: no need to wait for the rest.
        let packet_type = PacketType::from_first_byte(first, self.version)?;
        if packet_type == PacketType::Connect && self.offered.is_some() {
            return Err(Violation::SecondConnect); // Whatever is in it. [MQTT-3.1.0-2]
        }
        let Some((remaining, width)) = variable(rest)? else { return Ok(None) };
        let total = 1 + width + remaining;
        let is_publish = first >> 4 == PacketType::Publish as u8;
        let limit = if is_publish { PACKET_SIZE_MAX } else { CONTROL_SIZE_MAX }.min(self.maximum_packet_size);
        if total > limit {
            return Err(Violation::PacketTooLarge { size: total, limit });
        }
        Ok(Some(total))
    }
}

impl Default for Decoder {
    /// For 3.1.1 and the largest packets that MQTT has.
    fn default() -> Self {
        Self::new(ProtocolVersion::default(), PACKET_SIZE_MAX)
    }
}
