//! Bytes to packets: an incremental decoder which is limited in size. Packets encode themselves.

mod spool;
pub(crate) mod topics;
pub(crate) mod wire;

use std::sync::Arc;

use bytes::BytesMut;

use crate::error::Violation;
use crate::packet::{Packet, PacketType, ProtocolVersion, Publish};
pub use spool::{Spool, SpoolError, SpooledPacket};
use topics::TopicCache;
use wire::{PACKET_SIZE_MAX, Reader, Source, variable};

/// From here on a packet that came in parts keeps its own allocation and its payload is a slice of it.
const SHARE_FROM: usize = 4096;

/// The most bytes of a packet other than PUBLISH. What they hold is parsed into many times their size, and no
/// honest SUBSCRIBE comes near.
const CONTROL_SIZE_MAX: usize = 1024 * 1024;

/// What a large packet must bring before it is worth a place in a spool: a header alone can promise anything.
const SPOOL_FROM: usize = 64 * 1024;

/// Decodes the packets of one stream.
///
/// Whole packets are read straight from the caller's buffer. Only a packet that ends beyond it is kept, and it
/// grows with what has arrived, never with what its header announces; in a spool, if there is one and it is large.
#[derive(Debug)]
pub struct Decoder {
    version: ProtocolVersion,
    maximum_packet_size: usize,
    partial: BytesMut,
    /// The packet that is in the spool instead of in `partial`.
    spooled: Option<Box<Spooled>>,
    spool: Option<Arc<dyn Spool>>,
    topics: TopicCache,
    offered: Option<ProtocolVersion>,
}

/// A packet that has begun and is too large for the heap.
#[derive(Debug)]
struct Spooled {
    packet: Box<dyn SpooledPacket>,
    /// Bytes that are still to come.
    missing: usize,
}

impl Decoder {
    /// A decoder that refuses packets above `maximum_packet_size` bytes, fixed header included.
    pub fn new(version: ProtocolVersion, maximum_packet_size: usize) -> Self {
        Self {
            version,
            maximum_packet_size,
            partial: BytesMut::new(),
            spooled: None,
            spool: None,
            topics: TopicCache::default(),
            offered: None,
        }
    }

    /// Where large packets go that start from now on; without one they stay in the heap.
    pub fn set_spool(&mut self, spool: Option<Arc<dyn Spool>>) {
        self.spool = spool;
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

    /// Bytes in the heap of a packet which has not ended yet.
    pub fn partial_len(&self) -> usize {
        self.partial.len()
    }

    /// Whether a packet has begun and not ended, wherever it is.
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty() || self.spooled.is_some()
    }

    /// Decodes the next packet and moves `input` behind it. `None`: all of `input` is taken, more is needed.
    ///
    /// # Errors
    /// The first [`Violation`]; the stream cannot be read any further after one.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        if self.spooled.is_some() {
            return self.decode_spooled(input);
        }
        if !self.partial.is_empty() {
            return self.decode_partial(input);
        }
        let Some(total) = self.packet_len(input)? else {
            return self.keep(input);
        };
        let Some((whole, rest)) = input.split_at_checked(total) else {
            if self.begin_spooled(total, input)? {
                return self.decode_spooled(input);
            }
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
        if self.begin_spooled(total, input)? {
            return self.decode_spooled(input);
        }
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

    /// Moves a packet of `total` bytes that has begun to the spool, if it belongs there and enough of it has come.
    fn begin_spooled(&mut self, total: usize, input: &[u8]) -> Result<bool, Violation> {
        let Some(spool) = &self.spool else { return Ok(false) };
        let first = self.partial.first().or(input.first()).copied().unwrap_or_default();
        let is_publish = first >> 4 == PacketType::Publish as u8;
        if !is_publish || total <= spool.threshold() || self.partial.len() + input.len() < SPOOL_FROM {
            return Ok(false);
        }
        let mut packet = spool.begin()?;
        packet.append(&self.partial)?;
        let missing = total - self.partial.len();
        self.partial = BytesMut::new();
        self.spooled = Some(Box::new(Spooled { packet, missing }));
        Ok(true)
    }

    fn decode_spooled(&mut self, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        let Some(mut spooled) = self.spooled.take() else { return Ok(None) };
        let (now, rest) = input.split_at(spooled.missing.min(input.len()));
        spooled.packet.append(now)?;
        spooled.missing -= now.len();
        *input = rest;
        if spooled.missing > 0 {
            self.spooled = Some(spooled);
            return Ok(None);
        }
        let whole = spooled.packet.finish()?;
        let mut packet = self.decode_whole(&whole, Source::Shared(&whole))?;
        if let Packet::Publish(publish) = &mut packet {
            publish.spooled = true;
        }
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
