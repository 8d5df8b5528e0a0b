//! First packets of QUIC clients, made by hand: any size, and any transport parameters.

use std::sync::atomic::{AtomicU64, Ordering};

use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, Version};

use crate::support::Pki;
use crate::tls::client_config;

/// Connection ID of the client. The one of the server differs from packet to packet.
const CONNECTION_ID: [u8; 8] = [7; 8];
const PACKET_NUMBER: [u8; 4] = [0; 4];
const TAG: usize = 16;

/// The smallest that a server takes (RFC 9000, 14.1).
pub(crate) const MIN_SIZE: usize = 1200;

/// A transport parameter (RFC 9000, 18).
pub(crate) fn parameter(id: u64, value: &[u8]) -> Vec<u8> {
    [&varint(id), &varint(value.len() as u64), value].concat()
}

/// RFC 9000, 16.
pub(crate) fn varint(value: u64) -> Vec<u8> {
    match value {
        0..64 => vec![value.to_be_bytes()[7]],
        64..16384 => (value | 1 << 14).to_be_bytes()[6..].to_vec(),
        16384..1_073_741_824 => (value | 2 << 30).to_be_bytes()[4..].to_vec(),
        _ => (value | 3 << 62).to_be_bytes().to_vec(),
    }
}

/// The one that a server needs: `initial_source_connection_id`.
pub(crate) fn source_connection_id() -> Vec<u8> {
    parameter(0x0F, &CONNECTION_ID)
}

/// A datagram of `size` bytes with one Initial packet with a whole `ClientHello`, padded.
///
/// `parameters`: the transport parameters as they are sent.
pub(crate) fn initial(pki: &Pki, size: usize, parameters: Vec<u8>) -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let destination = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut config = rustls::ClientConfig::clone(&*client_config(pki, &[&rustls::version::TLS13]));
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    let name = ServerName::try_from("localhost").expect("name");
    let mut tls = ClientConnection::new(config.into(), Version::V1, name, parameters).expect("client");
    let mut hello = Vec::new();
    tls.write_hs(&mut hello);
    // CRYPTO from offset 0, then PADDING.
    let mut payload = [&[6, 0], &*varint(hello.len() as u64), &*hello].concat();

    // RFC 9000, 17.2.2: type 0, and a packet number of four bytes. The length has two.
    let mut header = vec![0xC3, 0, 0, 0, 1, 8];
    header.extend(destination);
    header.push(8);
    header.extend(CONNECTION_ID);
    header.push(0);
    let rest = size - header.len() - 2;
    header.extend(varint(rest as u64));
    header.extend(PACKET_NUMBER);
    payload.resize(rest - PACKET_NUMBER.len() - TAG, 0);

    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite()).expect("suite");
    let keys = suite.keys(&destination, Side::Client, Version::V1).local;
    let tag = keys.packet.encrypt_in_place(0, &header, &mut payload).expect("encrypt");
    payload.extend(tag.as_ref());
    let (first, number) = header.split_at_mut(1);
    let at = number.len() - PACKET_NUMBER.len();
    keys.header.encrypt_in_place(&payload[..TAG], &mut first[0], &mut number[at..]).expect("protect");
    let datagram = [header, payload].concat();
    assert_eq!(datagram.len(), size);
    datagram
}
