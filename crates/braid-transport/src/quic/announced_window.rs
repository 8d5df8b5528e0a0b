//! Receive window of streams as the handshake announces it, smaller than the one that the library has.
//!
//! The library has one window for all streams of a connection, for good. A peer that was told of less gets the whole
//! one with the first MAX_STREAM_DATA, which the library sends when an eighth of the window was read: a stream of
//! which nothing is read stays small.

use std::sync::Arc;

use bytes::{Buf, BufMut};
use noq_proto::coding::{Decodable, Encodable, UnexpectedEnd};
use noq_proto::crypto::{ClientConfig, Keys, ServerConfig, Session, UnsupportedVersion};
use noq_proto::transport_parameters::TransportParameters;
use noq_proto::{ConnectError, ConnectionId, Side, VarInt};

/// Bytes that are announced beyond an eighth of the window, so that credit comes in time. The library holds more of
/// full packets, so that what is taken out of it unread is less than the eighth.
const BEYOND: u64 = 3 << 19;

/// `initial_max_stream_data_bidi_local`, `_bidi_remote` and `_uni` (RFC 9000, 18.2).
const WINDOWS: std::ops::RangeInclusive<u64> = 0x05..=0x07;

/// Cryptography of one end that announces it.
pub(super) struct AnnouncedWindow<C: ?Sized>(pub(super) Arc<C>);

impl ServerConfig for AnnouncedWindow<dyn ServerConfig> {
    fn initial_keys(&self, version: u32, dst_cid: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.0.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.0.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(&self, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        self.0.start_session(version, smaller(Side::Server, params).as_ref().unwrap_or(params))
    }
}

impl<C: ClientConfig> ClientConfig for AnnouncedWindow<C> {
    fn start_session(
        &self,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let own = smaller(Side::Client, params);
        Arc::clone(&self.0).start_session(version, server_name, own.as_ref().unwrap_or(params))
    }
}

/// Window of a stream that the handshake announces, where the library has one of so many bytes.
pub(super) fn announced(window: u64) -> u64 {
    window.min(window / 8 + BEYOND)
}

/// The parameters of one side with smaller windows. The library has no setters for them.
fn smaller(side: Side, params: &TransportParameters) -> Option<TransportParameters> {
    let mut encoded = Vec::new();
    params.write(&mut encoded);
    let patched = patch(&encoded).ok()?;
    // The peer reads them.
    TransportParameters::read(!side, &mut &patched[..]).ok()
}

fn patch(mut rest: &[u8]) -> Result<Vec<u8>, UnexpectedEnd> {
    let mut patched = Vec::new();
    while rest.has_remaining() {
        let (id, length) = (VarInt::decode(&mut rest)?, VarInt::decode(&mut rest)?);
        let length = usize::try_from(length.into_inner()).map_err(|_| UnexpectedEnd)?;
        let (mut value, after) = rest.split_at_checked(length).ok_or(UnexpectedEnd)?;
        rest = after;
        id.encode(&mut patched);
        let mut own = Vec::new();
        if WINDOWS.contains(&id.into_inner()) {
            let window = announced(VarInt::decode(&mut value)?.into_inner());
            VarInt::from_u64(window).unwrap_or(VarInt::MAX).encode(&mut own);
        } else {
            own.put_slice(value);
        }
        VarInt::from_u64(own.len() as u64).unwrap_or(VarInt::MAX).encode(&mut patched);
        patched.put_slice(&own);
    }
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_window_has_less_beyond_its_eighth() {
        let windows = [1 << 20, 2 << 20, 8 << 20, 16 << 20].map(announced);
        assert_eq!(windows, [1 << 20, 7 << 18, 5 << 19, 7 << 19]);
    }

    /// Parameters with an unknown one, two windows, and one of zero length.
    #[test]
    fn only_windows_of_streams_become_smaller() {
        let encode = |params: &[(u64, &[u8])]| {
            let mut encoded = Vec::new();
            for (id, value) in params {
                VarInt::from_u64(*id).expect("small").encode(&mut encoded);
                VarInt::from_u64(value.len() as u64).expect("small").encode(&mut encoded);
                encoded.extend_from_slice(value);
            }
            encoded
        };
        let (large, small) = ([0x81, 0, 0, 0], [0x80, 0x38, 0, 0]);
        let params = |window| {
            [
                (0x04, &large[..]),
                (0x05, window),
                (0x06, &[7]),
                (0x07, window),
                (0x3fff, b"grease"),
                (0x0c, b""),
            ]
        };
        let (before, after) = (params(&large), params(&small));
        assert_eq!(patch(&encode(&before)), Ok(encode(&after)));
        for cut in 1..12 {
            let encoded = encode(&before);
            let _ = patch(&encoded[..cut]);
        }
        assert_eq!(patch(&[0x05, 0x04, 0x81]), Err(UnexpectedEnd));
    }
}
