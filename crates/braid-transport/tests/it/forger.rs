//! Client of the noq library that lies to its server, in right packets.

use std::any::Any;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use noq::crypto::rustls::QuicClientConfig;
use noq::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use noq::{ConnectError, ConnectionId, PathId, Side};
use noq_proto::TransportError;
use noq_proto::transport_parameters::TransportParameters;

use crate::initial::{parameter, varint};
use crate::support::Pki;
use crate::tls::client_config;

/// Cryptography of a client that changes its transport parameters, and puts other frames into its packets.
pub(crate) struct Forger {
    inner: QuicClientConfig,
    /// Parameters in place of the usual ones, by id.
    parameters: Vec<(u64, u64)>,
    pub(crate) frames: Arc<Frames>,
}

/// Frames in place of the usual ones, in all packets that follow.
#[derive(Default)]
pub(crate) struct Frames(Mutex<Option<Write>>);

/// Writes the frames of a packet; they are PADDING before.
type Write = Box<dyn Fn(&mut [u8]) + Send>;

impl Frames {
    pub(crate) fn set(&self, write: impl Fn(&mut [u8]) + Send + 'static) {
        *self.0.lock().expect("not poisoned") = Some(Box::new(write));
    }

    fn forge(&self, payload: &mut [u8]) {
        if let Some(write) = &*self.0.lock().expect("not poisoned") {
            payload.fill(0);
            write(payload);
        }
    }
}

impl Forger {
    pub(crate) fn new(pki: &Pki, parameters: Vec<(u64, u64)>) -> Self {
        let mut config = rustls::ClientConfig::clone(&*client_config(pki, &[&rustls::version::TLS13]));
        config.alpn_protocols = vec![b"mqtt".to_vec()];
        let inner = QuicClientConfig::try_from(config).expect("TLS 1.3");
        Self { inner, parameters, frames: Arc::default() }
    }
}

impl ClientConfig for Forger {
    fn start_session(
        &self,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let mut bytes = Vec::new();
        params.write(&mut bytes);
        let ids: Vec<_> = self.parameters.iter().map(|(id, _)| *id).collect();
        let mut bytes = without(&bytes, &ids);
        bytes.extend(self.parameters.iter().flat_map(|(id, value)| parameter(*id, &varint(*value))));
        let params =
            TransportParameters::read(Side::Server, &mut bytes.as_slice()).expect("right parameters");
        let inner = self.inner.start_session(version, server_name, &params)?;
        Ok(Box::new(ForgedSession { inner, keys: 0, frames: Arc::clone(&self.frames) }))
    }
}

/// Transport parameters but those with these ids.
fn without(mut bytes: &[u8], ids: &[u64]) -> Vec<u8> {
    fn number(bytes: &mut &[u8]) -> u64 {
        let length = 1 << (bytes[0] >> 6);
        let (value, rest) = bytes.split_at(length);
        *bytes = rest;
        value.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)) & !(3 << (8 * length - 2))
    }
    let mut kept = Vec::new();
    while !bytes.is_empty() {
        let id = number(&mut bytes);
        let length = usize::try_from(number(&mut bytes)).expect("short");
        let (value, rest) = bytes.split_at(length);
        bytes = rest;
        if !ids.contains(&id) {
            kept.extend(parameter(id, value));
        }
    }
    kept
}

struct ForgedSession {
    inner: Box<dyn Session>,
    /// Sets of keys so far.
    keys: usize,
    frames: Arc<Frames>,
}

impl ForgedSession {
    fn forged(&self, inner: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        Box::new(ForgedKey { inner, frames: Arc::clone(&self.frames) })
    }
}

impl Session for ForgedSession {
    fn initial_keys(&self, dst_cid: ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(dst_cid, side)
    }
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }
    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }
    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }
    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(buf)
    }
    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }
    /// The second keys are those of packets with a short header.
    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let mut keys = self.inner.write_handshake(buf)?;
        self.keys += 1;
        if self.keys == 2 {
            keys.packet.local = self.forged(keys.packet.local);
        }
        Some(keys)
    }
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let mut keys = self.inner.next_1rtt_keys()?;
        keys.local = self.forged(keys.local);
        Some(keys)
    }
    fn is_valid_retry(&self, orig_dst_cid: ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }
    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

struct ForgedKey {
    inner: Box<dyn PacketKey>,
    frames: Arc<Frames>,
}

impl PacketKey for ForgedKey {
    fn encrypt(&self, path_id: PathId, packet: u64, buf: &mut [u8], header_len: usize) {
        let end = buf.len() - self.tag_len();
        self.frames.forge(&mut buf[header_len..end]);
        self.inner.encrypt(path_id, packet, buf, header_len);
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
