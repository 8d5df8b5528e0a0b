//! Outbox and Topic Aliases of one stream.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::num::NonZeroU16;

use bytes::{Buf, Bytes, BytesMut};
use hashbrown::HashMap;

use crate::types::{TopicName, Violation};

/// Capacity in bytes above which an empty buffer is freed: ten thousand receivers of one burst must not keep it.
const KEEP_CAPACITY: usize = 8 * 1024;

/// Bytes to send on one stream: small packets copied into one buffer, large payloads by reference.
///
/// Through [`Buf`] a driver writes it with vectored writes and advances it by the bytes that the transport took.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Parts before `open`, oldest first.
    closed: VecDeque<Part>,
    closed_len: usize,
    /// Bytes of `closed` that are payloads by reference.
    shared_len: usize,
    /// Buffer to which packets are appended.
    open: BytesMut,
    /// Largest capacity of `open` since it was made: advancing and splitting hide it.
    peak_capacity: usize,
    /// Bytes that the transport took since the stream began.
    taken: u64,
}

/// Immutable run of bytes in an [`Outbox`].
#[derive(Debug)]
struct Part {
    bytes: Bytes,
    /// Whether it is a payload by reference.
    is_shared: bool,
}

impl Outbox {
    /// Buffer to append encoded packets to.
    pub(crate) fn open(&mut self) -> &mut BytesMut {
        &mut self.open
    }

    /// Appends a payload by reference.
    pub(crate) fn push_shared(&mut self, bytes: Bytes) {
        self.closed_len += self.open.len() + bytes.len();
        if !self.open.is_empty() {
            self.peak_capacity = self.peak_capacity.max(self.open.capacity());
            self.closed.push_back(Part { bytes: self.open.split().freeze(), is_shared: false });
        }
        self.shared_len += bytes.len();
        self.closed.push_back(Part { bytes, is_shared: true });
    }

    /// Unwritten bytes.
    pub fn len(&self) -> usize {
        self.closed_len + self.open.len()
    }

    /// Unwritten bytes without payloads by reference: acknowledgements and small messages.
    pub fn packets_len(&self) -> usize {
        self.len() - self.shared_len
    }

    /// Bytes that the transport took since the stream began.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Offset on the stream behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.taken + self.len() as u64
    }

    /// Whether all bytes are written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the unwritten bytes.
    pub(crate) fn clear(&mut self) {
        *self = Self { taken: self.taken, ..Self::default() };
    }
}

impl Buf for Outbox {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.closed.front().map_or(&self.open, |part| &part.bytes)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.closed.iter().map(|part| &part.bytes[..]).chain([&self.open[..]]);
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.taken += count as u64;
        while let Some(front) = self.closed.front_mut() {
            let taken = count.min(front.bytes.len());
            self.closed_len -= taken;
            if front.is_shared {
                self.shared_len -= taken;
            }
            count -= taken;
            if taken < front.bytes.len() {
                front.bytes.advance(taken);
                return;
            }
            self.closed.pop_front();
        }
        self.peak_capacity = self.peak_capacity.max(self.open.capacity());
        self.open.advance(count);
        if self.open.is_empty() && (self.peak_capacity > KEEP_CAPACITY || self.closed.capacity() > 64) {
            *self = Self { taken: self.taken, ..Self::default() };
        }
    }
}

/// Bytes of the property Topic Alias.
const ALIAS_LEN: usize = 3;

/// Most bytes of all Topic Aliases that the peer of a connection defines, on all streams together.
const MOST_ALIAS_BYTES: usize = 4 * 1024 * 1024;

/// Topic Aliases that the peer defines (MQTT 5, 3.3.2.3.4).
#[derive(Debug, Default)]
pub(crate) struct InboundAliases {
    /// Topic Alias Maximum that this side announced.
    maximum: u16,
    /// Topic Names by alias, from 1.
    names: Vec<Option<TopicName>>,
}

impl InboundAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self { maximum, names: Vec::new() }
    }

    /// Topic Name of an alias.
    pub(crate) fn find(&self, alias: NonZeroU16) -> Option<&TopicName> {
        self.names.get(usize::from(alias.get()) - 1)?.as_ref()
    }

    /// Bytes of the Topic Names and of the table.
    pub(crate) fn bytes(&self) -> usize {
        let names: usize = self.names.iter().flatten().map(|name| name.as_str().len()).sum();
        names + self.names.len() * size_of::<Option<TopicName>>()
    }

    /// Topic Name of a PUBLISH, which may define or use an alias. `all`: bytes of the aliases of all streams.
    pub(crate) fn resolve(
        &mut self,
        topic: Option<TopicName>,
        alias: Option<NonZeroU16>,
        all: &mut usize,
    ) -> Result<TopicName, Violation> {
        let Some(alias) = alias else { return topic.ok_or(Violation::NoTopic) };
        if alias.get() > self.maximum {
            return Err(Violation::TopicAlias(alias.get())); // [MQTT-3.3.2-9]
        }
        let index = usize::from(alias.get()) - 1;
        match topic {
            Some(name) => {
                let len = self.names.len().max(index + 1);
                let slots = (len - self.names.len()) * size_of::<Option<TopicName>>();
                let replaced = self.find(alias).map_or(0, |name| name.as_str().len());
                let bytes = *all + slots + name.as_str().len() - replaced;
                if bytes > MOST_ALIAS_BYTES {
                    return Err(Violation::TopicAliasBytes);
                }
                *all = bytes;
                self.names.resize(len, None);
                self.names[index] = Some(name.clone());
                Ok(name) // [MQTT-3.3.2-10], [MQTT-3.3.2-12]
            }
            None => self.find(alias).cloned().ok_or(Violation::NoTopic),
        }
    }
}

/// Topic Aliases that this side defines, for one connection. [MQTT-3.3.2-7]
///
/// Topic Names get an alias in the order of their first use, until none is left; an alias is never reassigned.
#[derive(Debug)]
pub(crate) struct OutboundAliases {
    /// Lower of the peer's Topic Alias Maximum and the limit of this side. [MQTT-3.1.2-26], [MQTT-3.2.2-17]
    maximum: u16,
    aliases: HashMap<TopicName, u16>,
}

impl OutboundAliases {
    /// `None` where no alias is permitted.
    pub(crate) fn new(maximum: u16) -> Option<Self> {
        (maximum > 0).then(|| Self { maximum, aliases: HashMap::new() })
    }

    /// Alias for a PUBLISH of this topic, and whether the Topic Name must be sent with it. `len`: bytes of the name
    /// that is sent.
    pub(crate) fn assign(&mut self, topic: &TopicName, len: usize) -> Option<(u16, bool)> {
        // The alias of a shorter name would not be shorter. [MQTT-3.1.2-27], [MQTT-3.2.2-18]
        if len <= ALIAS_LEN {
            return None;
        }
        if let Some(alias) = self.aliases.get(topic) {
            return Some((*alias, false));
        }
        let next = u16::try_from(self.aliases.len()).unwrap_or(u16::MAX);
        if next >= self.maximum {
            return None; // [MQTT-3.3.2-9], [MQTT-3.3.2-11]
        }
        self.aliases.insert(topic.clone(), next + 1);
        Some((next + 1, true))
    }

    /// Revokes the alias that was assigned last, because its PUBLISH was not sent.
    pub(crate) fn revoke(&mut self, topic: &TopicName) {
        self.aliases.remove(topic); // Numbers stay dense: it was the highest.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_no_memory_behind() {
        for step in [1, 1000, 65_536] {
            let mut outbox = Outbox::default();
            outbox.open().extend_from_slice(&vec![0; 65_536]);
            while !outbox.is_empty() {
                outbox.advance(step.min(outbox.len()));
            }
            assert!(!outbox.open.try_reclaim(KEEP_CAPACITY + 1), "written in steps of {step}");
        }
        let mut outbox = Outbox::default();
        (0..100).for_each(|_| outbox.push_shared(Bytes::from_static(&[0; 2000])));
        outbox.advance(200_000);
        assert!(outbox.is_empty() && outbox.closed.capacity() <= 64);
    }

    #[test]
    fn parts_keep_their_order_and_their_length() {
        let mut outbox = Outbox::default();
        outbox.push_shared(Bytes::from_static(b"ab"));
        outbox.open().extend_from_slice(b"cd");
        outbox.push_shared(Bytes::from_static(b"ef"));
        outbox.open().extend_from_slice(b"gh");
        assert_eq!(outbox.len(), 8);
        outbox.advance(3);
        assert_eq!((outbox.len(), outbox.chunk()), (5, &b"d"[..]));
        assert_eq!((outbox.taken(), outbox.end()), (3, 8));
        assert_eq!(outbox.copy_to_bytes(5), &b"defgh"[..]);
        assert!(outbox.is_empty() && outbox.taken() == 8);
    }
}
