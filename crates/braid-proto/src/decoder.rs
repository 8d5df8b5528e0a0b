//! Incremental decoder of packets, with a limit of their size, and the spool for large ones.

mod partial;

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::packet::{BorrowedPacket, Packet, Publish, TopicCache, packet_type_of};
pub use crate::types::SpoolError;
use crate::types::{PacketType, Payload, PayloadSlice, ProtocolVersion, Violation};
use crate::wire::{PACKET_SIZE_MAX, Reader, Source, check_minimal, variable};
use partial::PartialHead;
pub(crate) use partial::PartialMessage;
pub use partial::{OffsetProblem, PartialMessages};

/// Minimum bytes of a packet that arrived in parts of which the payload shares the allocation instead of being copied.
const SHARE_FROM: usize = 4096;

/// Maximum bytes of a packet other than PUBLISH. Parsed entries take many times their size on the wire, and a SUBSCRIBE
/// of common clients is far smaller.
const CONTROL_SIZE_MAX: usize = 1024 * 1024;

/// Bytes of a large packet that must have arrived before it is spooled: a header alone can announce any length.
const SPOOL_FROM: usize = 64 * 1024;

/// Incremental decoder of the packets of one stream.
///
/// Whole packets are read from the caller's buffer. A packet that ends beyond it is kept: it takes memory for the bytes
/// that have arrived, not for the announced length. A large PUBLISH is received into the spool, if there is one.
#[derive(Debug)]
pub struct Decoder {
    version: ProtocolVersion,
    maximum_packet_size: usize,
    partial: BytesMut,
    /// Incomplete packet in the spool, instead of in `partial`.
    spooled: Option<Box<Spooled>>,
    spool: Option<Arc<dyn Spool>>,
    topics: TopicCache,
    /// Version that a CONNECT named.
    offered: Option<ProtocolVersion>,
}

/// Fixed header of a packet.
#[derive(Clone, Copy, Debug)]
struct FixedHeader {
    packet_type: PacketType,
    /// Bytes of the fixed header.
    len: usize,
    /// Bytes of the packet, fixed header included.
    packet_len: usize,
}

/// Incomplete packet in the spool.
#[derive(Debug)]
struct Spooled {
    packet: Box<dyn SpooledPacket>,
    header: FixedHeader,
    /// Bytes that have not arrived.
    missing: usize,
    /// Head of the packet, if it may be continued on another connection.
    head: Option<Box<PartialHead>>,
}

impl Decoder {
    /// Decoder that refuses packets above `maximum_packet_size` bytes, fixed header included.
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

    /// Sets the spool for large packets that begin from now on; without one they stay in the heap.
    pub fn set_spool(&mut self, spool: Option<Arc<dyn Spool>>) {
        self.spool = spool;
    }

    /// Version that a CONNECT named, even if the rest of it was invalid.
    pub fn offered_version(&self) -> Option<ProtocolVersion> {
        self.offered
    }

    /// Sets the version and the limit that CONNECT decided, for the packets that begin from now on.
    pub fn configure(&mut self, version: ProtocolVersion, maximum_packet_size: usize) {
        self.version = version;
        self.maximum_packet_size = maximum_packet_size;
    }

    /// Bytes of an incomplete packet in the heap.
    pub fn partial_len(&self) -> usize {
        self.partial.len()
    }

    /// Whether a packet is incomplete, in the heap or in the spool.
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty() || self.spooled.is_some()
    }

    /// Decodes the next packet and moves `input` behind it. `None`: all of `input` is consumed, and more is needed.
    ///
    /// # Errors
    /// The first [`Violation`]; the stream must not be decoded any further.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        let packet = self.decode_borrowed(input)?;
        Ok(packet.map(|packet| packet.map_payload(Payload::from)))
    }

    /// Decodes the next packet, as [`Decoder::decode`], whose payload may be in `input`.
    pub(crate) fn decode_borrowed<'i>(
        &mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<BorrowedPacket<'i>>, Violation> {
        self.decode_next(input, &mut PartialMessages::default())
    }

    /// Decodes the next packet, as [`Decoder::decode_borrowed`]; a PUBLISH may continue one of `parts`. [BQ-99]
    pub(crate) fn decode_with<'i>(
        &mut self,
        input: &mut &'i [u8],
        parts: &mut PartialMessages,
    ) -> Result<Option<BorrowedPacket<'i>>, Violation> {
        let mut packet = self.decode_next(input, parts);
        if let Ok(Some(Packet::Publish(publish))) = &mut packet
            && let Err(violation) = parts.complete(publish)
        {
            return Err(violation);
        }
        packet
    }

    /// Takes the incomplete message in the spool at the end of the connection, if it can be continued on another one.
    pub(crate) fn take_partial(&mut self) -> Option<PartialMessage> {
        let Spooled { packet, missing, head, .. } = *self.spooled.take()?;
        let head = *head?;
        Some(PartialMessage { received: head.length.saturating_sub(missing), head, packet })
    }

    fn decode_next<'i>(
        &mut self,
        input: &mut &'i [u8],
        parts: &mut PartialMessages,
    ) -> Result<Option<BorrowedPacket<'i>>, Violation> {
        if self.spooled.is_some() {
            return self.decode_spooled(input);
        }
        if !self.partial.is_empty() {
            return self.decode_partial(input, parts);
        }
        if let Some(header) = self.fixed_header(input)? {
            if let Some((whole, rest)) = input.split_at_checked(header.packet_len) {
                *input = rest;
                return self.decode_whole(header, whole, Source::Borrowed);
            }
            if self.begin_spooled(header, input, parts)? {
                return self.decode_spooled(input);
            }
        }
        self.partial.extend_from_slice(input);
        *input = &[];
        Ok(None)
    }

    /// Continues the packet whose first part is kept.
    fn decode_partial(
        &mut self,
        input: &mut &[u8],
        parts: &mut PartialMessages,
    ) -> Result<Option<BorrowedPacket<'static>>, Violation> {
        let header = loop {
            if let Some(header) = self.fixed_header(&self.partial)? {
                break header;
            }
            let Some((&next, rest)) = input.split_first() else { return Ok(None) };
            self.partial.extend_from_slice(&[next]);
            *input = rest;
        };
        if self.begin_spooled(header, input, parts)? {
            return self.decode_spooled(input);
        }
        let missing = header.packet_len - self.partial.len();
        let (now, rest) = input.split_at(missing.min(input.len()));
        self.partial.extend_from_slice(now);
        *input = rest;
        if self.partial.len() < header.packet_len {
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.partial);
        if header.packet_len >= SHARE_FROM {
            let whole = whole.freeze();
            return self.decode_detached(header, &whole, Source::Shared(&whole));
        }
        self.decode_detached(header, &whole, Source::Borrowed)
    }

    /// Decodes a packet that is not in the caller's buffer.
    fn decode_detached(
        &mut self,
        header: FixedHeader,
        whole: &[u8],
        source: Source<'_>,
    ) -> Result<Option<BorrowedPacket<'static>>, Violation> {
        let packet = self.decode_whole(header, whole, source)?;
        Ok(packet.map(|packet| packet.map_payload(PayloadSlice::detached)))
    }

    /// Moves an incomplete packet to the spool, once enough of it has arrived, if it is a large PUBLISH or continues
    /// one of `parts`.
    fn begin_spooled(
        &mut self,
        header: FixedHeader,
        input: &mut &[u8],
        parts: &mut PartialMessages,
    ) -> Result<bool, Violation> {
        let Some(spool) = &self.spool else { return Ok(false) };
        let is_large = header.packet_len > spool.threshold();
        let is_wanted = header.packet_type == PacketType::Publish && (is_large || !parts.is_empty());
        // Asked once for each packet: a head of many properties must not be read with each of its bytes.
        let is_due = self.partial.len() < SPOOL_FROM && self.partial.len() + input.len() >= SPOOL_FROM;
        if !is_wanted || !is_due {
            return Ok(false);
        }
        let mut head = if parts.is_enabled() { self.read_head(header, input) } else { None };
        if let Some(PartialHead { publish, payload_at, length, .. }) = &mut head
            && let Some(part) = parts.take_continued(publish, *length)
        {
            let PartialMessage { head: before, mut packet, .. } = part;
            packet.append(&self.partial[*payload_at..])?;
            let publish = publish.clone();
            let head = PartialHead { publish, is_continued: true, ..before };
            self.set_spooled(header, packet, Some(head));
            return Ok(true);
        }
        if !is_large {
            return Ok(false);
        }
        let Some(spool) = &self.spool else { return Ok(false) };
        let mut packet = spool.begin()?;
        packet.append(&self.partial)?;
        // A part is found by its Topic Name, not by an alias, and one that could not be joined cannot be continued.
        let head = head.filter(|head| head.publish.topic.is_some() && !parts.is_rest(&head.publish));
        self.set_spooled(header, packet, head);
        Ok(true)
    }

    fn set_spooled(
        &mut self,
        header: FixedHeader,
        packet: Box<dyn SpooledPacket>,
        head: Option<PartialHead>,
    ) {
        let missing = header.packet_len - self.partial.len();
        self.partial = BytesMut::new();
        self.spooled = Some(Box::new(Spooled { packet, header, missing, head: head.map(Box::new) }));
    }

    /// Reads the head of an incomplete PUBLISH, after all that has arrived of it is in `partial`. `None`: the head is
    /// not complete or not valid, or there is no Packet Identifier.
    fn read_head(&mut self, header: FixedHeader, input: &mut &[u8]) -> Option<PartialHead> {
        let missing = header.packet_len - self.partial.len();
        let (now, rest) = input.split_at(missing.min(input.len()));
        self.partial.extend_from_slice(now);
        *input = rest;
        let mut reader = Reader::new(self.partial.get(header.len..)?, Source::Borrowed);
        let first = *self.partial.first()?;
        let publish = Publish::decode_head(first, &mut reader, self.version, &mut self.topics).ok()?;
        let payload_at = self.partial.len() - reader.len();
        Some(PartialHead {
            packet_id: publish.packet_id?,
            publish,
            payload_at,
            length: header.packet_len - payload_at,
            is_continued: false,
            kept_at: None,
        })
    }

    fn decode_spooled(&mut self, input: &mut &[u8]) -> Result<Option<BorrowedPacket<'static>>, Violation> {
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
        if let Some(head) = spooled.head.filter(|head| head.is_continued) {
            let payload = whole.slice(head.payload_at..).into();
            let publish = Publish { spooled: true, ..head.publish }.map_payload(|()| payload);
            return Ok(Some(Packet::Publish(publish)));
        }
        let mut packet = self.decode_detached(spooled.header, &whole, Source::Shared(&whole));
        if let Ok(Some(Packet::Publish(publish))) = &mut packet {
            publish.spooled = true;
        }
        packet
    }

    // With all that it calls for a PUBLISH, and without taking its result apart: each move of the packet waits for its
    // fields to be written.
    #[inline]
    fn decode_whole<'a>(
        &mut self,
        header: FixedHeader,
        whole: &'a [u8],
        source: Source<'a>,
    ) -> Result<Option<BorrowedPacket<'a>>, Violation> {
        let mut reader = Reader::new(&whole[header.len..], source);
        let (topics, offered) = (&mut self.topics, &mut self.offered);
        let packet = Packet::decode(header.packet_type, whole[0], &mut reader, self.version, topics, offered);
        if matches!(&packet, Ok(Some(Packet::Connect(connect))) if connect.version.is_v5()) {
            check_minimal(header.packet_len - header.len, header.len - 1)?; // Not known before.
        }
        packet
    }

    /// Fixed header at the start of `bytes`; `None` when it is not complete.
    #[inline]
    fn fixed_header(&self, bytes: &[u8]) -> Result<Option<FixedHeader>, Violation> {
        let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
        // A wrong type or flag is a violation from the first byte on.
        let packet_type = packet_type_of(first, self.version)?;
        if packet_type == PacketType::Connect && self.offered.is_some() {
            return Err(Violation::SecondConnect); // Regardless of its content. [MQTT-3.1.0-2]
        }
        let Some((remaining, width)) = variable(rest)? else { return Ok(None) };
        if self.version.is_v5() {
            check_minimal(remaining, width)?;
        }
        let len = 1 + width;
        let packet_len = len + remaining;
        let is_publish = packet_type == PacketType::Publish;
        let limit = if is_publish { PACKET_SIZE_MAX } else { CONTROL_SIZE_MAX }.min(self.maximum_packet_size);
        if packet_len > limit {
            return Err(Violation::PacketTooLarge { size: packet_len, limit });
        }
        Ok(Some(FixedHeader { packet_type, len, packet_len }))
    }
}

impl Default for Decoder {
    /// Decoder for 3.1.1 and the largest packets of MQTT.
    fn default() -> Self {
        Self::new(ProtocolVersion::default(), PACKET_SIZE_MAX)
    }
}

/// Storage for large PUBLISH packets while they are received and delivered.
pub trait Spool: fmt::Debug + Send + Sync {
    /// Size in bytes, fixed header included, above which packets are spooled.
    fn threshold(&self) -> usize;

    /// Begins a packet, which takes space as it grows.
    ///
    /// # Errors
    /// No space is left, or the storage failed.
    fn begin(&self) -> Result<Box<dyn SpooledPacket>, SpoolError>;

    /// Begins a payload of `length` bytes that was acknowledged before this process started. Such a payload may use
    /// space that is reserved from new packets.
    ///
    /// # Errors
    /// No space is left, reserved or not, or the storage failed.
    fn begin_reserved(&self, length: u64) -> Result<Box<dyn SpooledPacket>, SpoolError> {
        let _ = length;
        self.begin()
    }

    /// Bytes of all packets in the spool, complete or not.
    fn used(&self) -> u64;

    /// Number of packets refused for lack of space since the start.
    fn refused(&self) -> u64;
}

/// Incomplete packet in a spool. Dropping it frees its space.
pub trait SpooledPacket: fmt::Debug + Send + Sync {
    /// Appends bytes.
    ///
    /// # Errors
    /// The packet is lost: no other method may be called.
    fn append(&mut self, bytes: &[u8]) -> Result<(), SpoolError>;

    /// Asks whether the incomplete packet may be kept without a connection. A spool bounds their number and bytes.
    fn keep(&mut self) -> bool {
        true
    }

    /// Complete packet as one buffer. Its space is freed with the last slice of it.
    ///
    /// # Errors
    /// The packet is lost.
    fn finish(self: Box<Self>) -> Result<Bytes, SpoolError>;
}
