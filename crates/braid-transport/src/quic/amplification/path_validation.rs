//! Anti-amplification limit of the path validation of a connection that is up (RFC 9000, 8.2 and 9).
//!
//! The library pads each datagram with a PATH_CHALLENGE or a PATH_RESPONSE to 1200 bytes. It sends one to a new address
//! as soon as a single byte has come from there, another to the address before that one, and one in answer to each
//! probe: a client with one connection could have thirty bytes sent to forged addresses for each of its own. The others
//! leave for addresses that are validated, but for that of a close, which the library counts.
//!
//! Here an address gets at most three times the bytes that came from it on this connection. A packet above that leaves
//! with less padding, as RFC 9000 (8.2.1) permits: it is shortened before it is encrypted, since a packet with a short
//! header ends with its datagram. To the library it has its full length. One that is too long even so, or goes to
//! another address than the connection is at, is lost above the limit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use noq_proto::PathId;
use noq_proto::crypto::{CryptoError, PacketKey};
use noq_udp::Transmit;

/// RFC 9000, 8.1.
const FACTOR: u64 = 3;

/// Addresses of a connection that are known, the last ones.
const MAX_ADDRESSES: usize = 32;

/// Bytes of a datagram that the library pads.
const FULL: usize = 1200;

/// Frame types (RFC 9000, 19, and draft-ietf-quic-ack-frequency), and the length of a frame with eight bytes of data.
const PADDING: u8 = 0x00;
const PING: u8 = 0x01;
const PATH_CHALLENGE: u8 = 0x1a;
const PATH_RESPONSE: u8 = 0x1b;
const IMMEDIATE_ACK: u8 = 0x1f;
const VALIDATION_FRAME: usize = 9;

/// [`PacketLength::omitted`] of a packet that validates no path.
const NONE: usize = usize::MAX;

/// Limit of one connection.
pub(in crate::quic) struct PathValidationLimit {
    packet: Arc<PacketLength>,
    /// The one that something came from last is first.
    budgets: Vec<AddressBudget>,
}

struct AddressBudget {
    address: SocketAddr,
    received: u64,
    /// Bytes of the packets that validate a path.
    sent: u64,
}

/// Length of the packet that is being built: of the connection for its keys, and back.
pub(in crate::quic) struct PacketLength {
    /// Longest packet that validates a path.
    limit: AtomicUsize,
    /// Bytes of padding that the last packet was built without.
    omitted: AtomicUsize,
}

impl PathValidationLimit {
    /// `validated`: address of the handshake. Before it is validated no path is.
    pub(in crate::quic) fn new(validated: SocketAddr) -> Self {
        let packet = PacketLength { limit: AtomicUsize::new(usize::MAX), omitted: AtomicUsize::new(NONE) };
        let budget = AddressBudget { address: validated, received: u64::MAX, sent: 0 };
        Self { packet: Arc::new(packet), budgets: vec![budget] }
    }

    /// Length for the keys of the connection.
    pub(super) fn packet(&self) -> Arc<PacketLength> {
        Arc::clone(&self.packet)
    }

    /// Counts bytes that came from an address.
    pub(in crate::quic) fn handle_received(&mut self, from: SocketAddr, bytes: usize) {
        let known = self.budgets.iter().position(|budget| budget.address == from);
        match known {
            Some(0) => {}
            Some(at) => self.budgets[..=at].rotate_right(1),
            None => {
                self.budgets.truncate(MAX_ADDRESSES - 1);
                self.budgets.insert(0, AddressBudget { address: from, received: 0, sent: 0 });
            }
        }
        if let Some(budget) = self.budgets.first_mut() {
            budget.received = budget.received.saturating_add(bytes as u64);
        }
    }

    /// Begins a packet for one of these addresses. True: it has to be the only one of its batch.
    pub(in crate::quic) fn begin(&self, addresses: impl Iterator<Item = SocketAddr>) -> bool {
        let limit = addresses.map(|address| self.left(address)).min().unwrap_or(usize::MAX);
        self.packet.limit.store(limit, Ordering::Relaxed);
        self.packet.omitted.store(NONE, Ordering::Relaxed);
        limit < FULL
    }

    /// Drops the batch that was built last.
    pub(in crate::quic) fn discard(&mut self) {
        self.packet.omitted.store(NONE, Ordering::Relaxed);
    }

    /// Returns what leaves of the batch that was built last.
    pub(in crate::quic) fn pass<'a>(&mut self, batch: &Transmit<'a>) -> Option<Transmit<'a>> {
        let omitted = self.packet.omitted.swap(NONE, Ordering::Relaxed);
        // A batch of several was built while nothing had to be shortened.
        if omitted == NONE || batch.segment_size.is_some() {
            return Some(batch.clone());
        }
        let contents = batch.contents.get(..batch.contents.len().checked_sub(omitted)?)?;
        if contents.len() > self.left(batch.destination) {
            tracing::debug!(to = %batch.destination, bytes = contents.len(), "a probe of a path is lost");
            return None;
        }
        let budget = self.budgets.iter_mut().find(|budget| budget.address == batch.destination)?;
        budget.sent = budget.sent.saturating_add(contents.len() as u64);
        Some(Transmit { contents, ..batch.clone() })
    }

    /// Bytes that an address may still be sent.
    fn left(&self, address: SocketAddr) -> usize {
        let budget = self.budgets.iter().find(|budget| budget.address == address);
        let left =
            budget.map_or(0, |budget| budget.received.saturating_mul(FACTOR).saturating_sub(budget.sent));
        usize::try_from(left).unwrap_or(usize::MAX)
    }
}

impl PacketLength {
    /// The key of a server's packets with short headers, which shortens those that validate a path.
    pub(super) fn key(self: &Arc<Self>, inner: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        Box::new(ShorteningKey { inner, packet: Arc::clone(self) })
    }

    /// Length of a packet that takes `full` bytes, and `least` without padding.
    fn shorten(&self, full: usize, least: usize) -> usize {
        let length = full.min(self.limit.load(Ordering::Relaxed)).max(least);
        self.omitted.store(full - length, Ordering::Relaxed);
        length
    }
}

struct ShorteningKey {
    inner: Box<dyn PacketKey>,
    packet: Arc<PacketLength>,
}

impl PacketKey for ShorteningKey {
    fn encrypt(&self, path_id: PathId, packet: u64, buf: &mut [u8], header_len: usize) {
        let tag_len = self.inner.tag_len();
        let payload = buf.get(header_len..buf.len().saturating_sub(tag_len)).unwrap_or_default();
        let length = match validation_frames(payload) {
            Some(frames) => self.packet.shorten(buf.len(), header_len + frames + tag_len),
            None => {
                self.packet.omitted.store(NONE, Ordering::Relaxed);
                buf.len()
            }
        };
        if let Some(buf) = buf.get_mut(..length) {
            self.inner.encrypt(path_id, packet, buf, header_len);
        }
    }

    fn decrypt(
        &self,
        path_id: PathId,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.inner.decrypt(path_id, packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}

/// Length of the frames of a packet that validates a path, in front of its padding. `None`: it does not, or carries
/// something else, too.
fn validation_frames(payload: &[u8]) -> Option<usize> {
    let (mut length, mut validates) = (0, false);
    loop {
        length += match payload.get(length) {
            Some(&(PING | IMMEDIATE_ACK)) => 1,
            Some(&(PATH_CHALLENGE | PATH_RESPONSE)) => {
                validates = true;
                VALIDATION_FRAME
            }
            Some(&PADDING) if validates => break,
            None if validates && length == payload.len() => break,
            _ => return None,
        };
    }
    let padding = payload.get(length..)?;
    padding.iter().all(|byte| *byte == PADDING).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: usize = 16;
    const HEADER: usize = 11;

    /// Key that writes ones in place of the tag.
    struct PlainKey;

    impl PacketKey for PlainKey {
        fn encrypt(&self, _: PathId, _: u64, buf: &mut [u8], _: usize) {
            let end = buf.len() - TAG;
            buf[end..].fill(1);
        }

        fn decrypt(&self, _: PathId, _: u64, _: &[u8], _: &mut BytesMut) -> Result<(), CryptoError> {
            Ok(())
        }

        fn tag_len(&self) -> usize {
            TAG
        }

        fn confidentiality_limit(&self) -> u64 {
            0
        }

        fn integrity_limit(&self) -> u64 {
            0
        }
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// Bytes that leave of a packet with these frames and padding, built for the connection at one address and sent
    /// to another.
    fn sent(limit: &mut PathValidationLimit, at: u16, to: u16, frames: &[u8]) -> Option<usize> {
        let mut buf = vec![0; FULL];
        buf[HEADER..HEADER + frames.len()].copy_from_slice(frames);
        limit.begin([address(at)].into_iter());
        limit.packet().key(Box::new(PlainKey)).encrypt(PathId::ZERO, 0, &mut buf, HEADER);
        let destination = address(to);
        let batch = Transmit { destination, ecn: None, contents: &buf, segment_size: None, src_ip: None };
        let passed = limit.pass(&batch)?;
        assert!(passed.contents.ends_with(&[1; TAG]));
        Some(passed.contents.len())
    }

    const CHALLENGE: [u8; 9] = [PATH_CHALLENGE, 1, 2, 3, 4, 5, 6, 0, 0];

    #[test]
    fn a_new_address_gets_three_times_its_bytes() {
        let mut limit = PathValidationLimit::new(address(1));
        assert_eq!(sent(&mut limit, 1, 1, &CHALLENGE), Some(FULL), "validated");
        assert_eq!(sent(&mut limit, 2, 2, &CHALLENGE), None, "nothing came from there");
        limit.handle_received(address(2), 40);
        assert!(limit.begin([address(2)].into_iter()), "alone in its batch");
        assert_eq!(sent(&mut limit, 2, 2, &CHALLENGE), Some(120));
        assert_eq!(sent(&mut limit, 2, 2, &CHALLENGE), None, "it is spent");
        limit.handle_received(address(2), 400);
        assert_eq!(sent(&mut limit, 2, 2, &CHALLENGE), Some(FULL));
        limit.handle_received(address(3), 11);
        assert_eq!(sent(&mut limit, 3, 3, &CHALLENGE), None, "36 bytes are the least");
        limit.handle_received(address(3), 1);
        assert_eq!(sent(&mut limit, 3, 3, &CHALLENGE), Some(HEADER + 9 + TAG));
    }

    #[test]
    fn a_probe_to_an_address_that_is_not_in_use_is_lost_above_the_limit() {
        let mut limit = PathValidationLimit::new(address(1));
        limit.handle_received(address(2), 399);
        assert_eq!(sent(&mut limit, 1, 2, &CHALLENGE), None);
        limit.handle_received(address(2), 1);
        assert_eq!(sent(&mut limit, 1, 2, &CHALLENGE), Some(FULL));
    }

    #[test]
    fn an_address_that_was_forgotten_begins_with_nothing() {
        let mut limit = PathValidationLimit::new(address(1));
        for port in 2..=34 {
            limit.handle_received(address(port), 1000);
        }
        assert_eq!(sent(&mut limit, 34, 34, &CHALLENGE), Some(FULL));
        for port in [1, 2] {
            assert_eq!(sent(&mut limit, port, port, &CHALLENGE), None, "{port}");
        }
        assert_eq!(limit.budgets.len(), MAX_ADDRESSES);
    }

    #[test]
    fn other_packets_keep_their_length() {
        let mut limit = PathValidationLimit::new(address(1));
        let mut response = [[PING, IMMEDIATE_ACK].as_slice(), &CHALLENGE, &CHALLENGE].concat();
        response[11] = PATH_RESPONSE;
        assert_eq!(validation_frames(&response), Some(20));
        response.push(0x08);
        for frames in [&response[..], &[PING], &[], &CHALLENGE[..8]] {
            assert_eq!(validation_frames(frames), None, "{frames:?}");
        }
        // STREAM, from an address that may be sent nothing.
        assert_eq!(sent(&mut limit, 2, 2, &[0x08, 0, 0, 0]), Some(FULL));
        response.pop();
        limit.handle_received(address(2), 20);
        assert_eq!(sent(&mut limit, 2, 2, &response), Some(60));
    }
}
