//! Datagrams as IP packets, as the emulator knows them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::link::HEADERS;

/// A datagram on its way: the time at which it was sent, and an IPv4 packet of UDP without checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// Since the start of the network.
    pub(super) sent_at: Duration,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The two bits of the IP header.
    pub(super) ecn: Option<u8>,
    pub(super) payload: &'a [u8],
}

/// Bytes before the IP header: the time of sending.
pub(super) const SENT_AT: usize = 8;

/// Protocol number of UDP.
const UDP: u8 = 17;

impl<'a> Frame<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(SENT_AT + HEADERS + self.payload.len());
        let nanos = u64::try_from(self.sent_at.as_nanos()).unwrap_or(u64::MAX);
        frame.extend(nanos.to_be_bytes());
        let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
        frame.extend([0x45, self.ecn.unwrap_or_default()]);
        frame.extend(length(HEADERS + self.payload.len()));
        frame.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
        for address in [self.from, self.to] {
            let IpAddr::V4(address) = address.ip() else { return Vec::new() };
            frame.extend(address.octets());
        }
        frame.extend(self.from.port().to_be_bytes());
        frame.extend(self.to.port().to_be_bytes());
        frame.extend(length(8 + self.payload.len()));
        frame.extend([0, 0]);
        frame.extend(self.payload);
        frame
    }

    /// Reads what [`encode`](Self::encode) has written; `None` for other bytes.
    pub(super) fn decode(frame: &'a [u8]) -> Option<Self> {
        let (sent_at, packet) = frame.split_first_chunk::<SENT_AT>()?;
        let (headers, payload) = packet.split_first_chunk::<HEADERS>()?;
        let address = |ip: usize, port: usize| {
            let ip = Ipv4Addr::new(headers[ip], headers[ip + 1], headers[ip + 2], headers[ip + 3]);
            SocketAddr::from((ip, u16::from_be_bytes([headers[port], headers[port + 1]])))
        };
        let ecn = headers[1] & 0b11;
        Some(Self {
            sent_at: Duration::from_nanos(u64::from_be_bytes(*sent_at)),
            from: address(12, 20),
            to: address(16, 22),
            ecn: (ecn != 0).then_some(ecn),
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for (ecn, payload) in [(None, &b"x"[..]), (Some(2), &[7; 1472]), (Some(3), b"")] {
            let frame = Frame {
                sent_at: Duration::new(3, 5),
                from: SocketAddr::from(([10, 0, 0, 1], 50_000)),
                to: SocketAddr::from(([100, 64, 0, 2], 14567)),
                ecn,
                payload,
            };
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Some(frame));
            assert_eq!(bytes.len(), SENT_AT + HEADERS + payload.len());
        }
        assert_eq!(Frame::decode(&[0; 30]), None);
    }
}
