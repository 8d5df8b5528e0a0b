//! Cryptography of a server that reports the first packet protected with Handshake keys: its sender has got the keys
//! from an answer, so its address is validated (RFC 9000, 8.1).

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use noq_proto::crypto::{
    CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use noq_proto::transport_parameters::TransportParameters;
use noq_proto::{ConnectionId, PathId, Side, TransportError};

use super::Connection;
use super::path_validation::{PacketLength, PathValidationLimit};
use crate::quic::offered_protocols::OfferedProtocols;

/// Configuration of one connection.
pub(in crate::quic) struct ValidatingCrypto {
    inner: Arc<dyn ServerConfig>,
    connection: Arc<Connection>,
    offered: Arc<OfferedProtocols>,
    packet: Arc<PacketLength>,
}

impl ValidatingCrypto {
    /// `connection`: the limit of its handshake, `paths`: that of its path validation. `offered`: told of a ClientHello
    /// that was refused.
    pub(in crate::quic) fn new(
        inner: Arc<dyn ServerConfig>,
        connection: Connection,
        paths: &PathValidationLimit,
        offered: Arc<OfferedProtocols>,
    ) -> Self {
        Self { inner, connection: Arc::new(connection), offered, packet: paths.packet() }
    }
}

impl ServerConfig for ValidatingCrypto {
    fn initial_keys(&self, version: u32, dst_cid: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(&self, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        let inner = self.inner.start_session(version, params);
        let (connection, offered) = (Arc::clone(&self.connection), Arc::clone(&self.offered));
        let packet = Arc::clone(&self.packet);
        Box::new(ValidatingSession { inner, connection, offered, packet, has_handshake_keys: false })
    }
}

/// A session that lives as long as the library's connection, until its last packet is sent.
struct ValidatingSession {
    inner: Box<dyn Session>,
    connection: Arc<Connection>,
    offered: Arc<OfferedProtocols>,
    packet: Arc<PacketLength>,
    has_handshake_keys: bool,
}

impl Session for ValidatingSession {
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
        let read = self.inner.read_handshake(buf);
        if !self.has_handshake_keys {
            self.offered.handle_hello(buf, read.is_err());
        }
        read
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    /// The first keys are those of the Handshake, the second those of packets with short headers.
    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let mut keys = self.inner.write_handshake(buf)?;
        if std::mem::replace(&mut self.has_handshake_keys, true) {
            keys.packet.local = self.packet.key(keys.packet.local);
        } else {
            self.offered.forget();
            let connection = Arc::clone(&self.connection);
            keys.packet.remote = Box::new(ValidatingKey { inner: keys.packet.remote, connection });
        }
        Some(keys)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let mut keys = self.inner.next_1rtt_keys()?;
        keys.local = self.packet.key(keys.local);
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

/// Key of the client's Handshake packets.
struct ValidatingKey {
    inner: Box<dyn PacketKey>,
    connection: Arc<Connection>,
}

impl PacketKey for ValidatingKey {
    fn encrypt(&self, path_id: PathId, packet: u64, buf: &mut [u8], header_len: usize) {
        self.inner.encrypt(path_id, packet, buf, header_len);
    }

    fn decrypt(
        &self,
        path_id: PathId,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.inner.decrypt(path_id, packet, header, payload)?;
        self.connection.validate();
        Ok(())
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
