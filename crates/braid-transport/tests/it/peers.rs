//! QUIC clients that were made to break servers: the advisories of docs/advisories.md.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::Network;
use braid_transport::{HandshakeError, ListenOptions, Listener, Read};
use bytes::BytesMut;
use noq::crypto::rustls::QuicClientConfig;
use noq::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use noq::{ConnectError, ConnectionId, PathId, Side};
use noq_proto::TransportError;
use noq_proto::transport_parameters::TransportParameters;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::driven::Link;
use crate::ends::{next, read, write};
use crate::initial::{MIN_SIZE, initial, parameter, source_connection_id, varint};
use crate::noq_peer;
use crate::support::{Pki, address};
use crate::tls::client_config;

const LIMIT: Duration = Duration::from_secs(120);

/// Shakes hands with all clients, and hands over what came of it.
fn serve(mut listener: Listener) -> mpsc::UnboundedReceiver<Result<Link, HandshakeError>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(incoming.handshake().await.map(Link::from)) });
        }
    });
    receiver
}

/// RUSTSEC-2026-0037 (CVE-2026-31812): transport parameters of one Initial caused a panic.
#[tokio::test(start_paused = true)]
async fn no_transport_parameters_of_an_initial_cause_a_panic() {
    const IDS: [u64; 24] = [
        0x00,
        0x01,
        0x02,
        0x03,
        0x04,
        0x05,
        0x06,
        0x07,
        0x08,
        0x09,
        0x0A,
        0x0B,
        0x0C,
        0x0D,
        0x0E,
        0x0F,
        0x10,
        0x11,
        0x20,
        0x3E,
        0x2AB2,
        0xFF04_DE1B,
        0x9F81_A176,
        0x3D7F_9112_0401,
    ];
    let values: [&[u8]; 12] = [
        &[],
        &[0],
        &[1],
        &[0x40],
        &[0x80, 0, 0],
        &[0xC0],
        &[0x3F],
        &[0x7F, 0xFF],
        &[0xFF; 8],
        &[0xBF, 0xFF, 0xFF, 0xFF],
        &[0xFF; 21],
        &[0; 64],
    ];
    let (pki, network) = (Pki::new(), Network::new(1));
    let quic = QuicOptions { retry_above: usize::MAX, ..QuicOptions::server() };
    let listener =
        network.listen(pki.server(), &ListenOptions { quic, ..ListenOptions::default() }).expect("listen");
    let to = address(&listener);
    let mut outcomes = serve(listener);
    let own = source_connection_id();
    let usual = [
        &own,
        &parameter(0x0B, &varint(25)),
        &parameter(0x0E, &varint(8)),
        &parameter(0x01, &varint(30_000)),
    ]
    .map(Vec::as_slice)
    .concat();
    let mut cases: Vec<Vec<u8>> = (0..=usual.len()).map(|end| usual[..end].to_vec()).collect();
    for id in IDS {
        for value in values {
            cases.push([own.as_slice(), &parameter(id, value)].concat());
            // Its length is that of more bytes than there are.
            cases.push([own.as_slice(), &varint(id), &varint(value.len() as u64 + 1), value].concat());
        }
        cases.push([own.as_slice(), &parameter(id, &[1]), &parameter(id, &[1])].concat());
    }
    let count = cases.len();
    for parameters in cases {
        // From a port of its own each, that does not answer.
        network.host("attacker").send(to, &initial(&pki, MIN_SIZE, parameters));
    }
    let (mut failed, mut refused) = (0, 0);
    for _ in 0..count {
        match timeout(LIMIT * 30, outcomes.recv()).await.expect("an outcome").expect("a server") {
            Ok(_) => panic!("a client that has never answered"),
            Err(HandshakeError::Quic(text)) if text.contains("transport parameter") => refused += 1,
            Err(HandshakeError::Quic(_)) => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    println!("{refused} of {count} were refused, {failed} never answered");
    assert!(refused > count / 3 && failed > 0, "{refused} of {count}");
    let connector = network.host("device").connector(to, pki.client(), QuicOptions::client());
    let mut link = Link::from(connector.connect().await.expect("connect"));
    write(&mut link, b"!").await.expect("write");
    let mut server = outcomes.recv().await.expect("an outcome").expect("a usual client");
    assert_eq!(read(&mut server).await.expect("read"), b'!');
}

/// RUSTSEC-2026-0340: a `min_ack_delay` above the delay that the path suggests caused a panic.
#[tokio::test(start_paused = true)]
async fn a_large_min_ack_delay_on_a_short_path_is_harmless() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let listener = network.listen(pki.server(), &ListenOptions::default()).expect("listen");
    let to = address(&listener);
    let mut outcomes = serve(listener);
    let parameters = |mut parameters: Vec<u8>| {
        // In ms, and in us.
        parameters.extend(parameter(0x0B, &varint(200)));
        parameters.extend(parameter(0xFF04_DE1B, &varint(100_000)));
        parameters
    };
    let forger = Forger { parameters: Some(parameters), ..Forger::new(&pki) };
    let endpoint = noq_peer::endpoint(&network.host("device"), None);
    let config = noq::ClientConfig::new(Arc::new(forger));
    let connection =
        endpoint.connect_with(config, to, "localhost").expect("connect").await.expect("handshake");
    let (mut send, mut receive) = connection.open_bi().await.expect("stream");
    send.write_all(b"!").await.expect("write");
    let mut server = outcomes.recv().await.expect("an outcome").expect("handshake");
    for _ in 0..200 {
        assert_eq!(read(&mut server).await.expect("read"), b'!');
        write(&mut server, &[7; 3000]).await.expect("write");
        let mut answer = vec![0; 3000];
        receive.read_exact(&mut answer).await.expect("read");
        send.write_all(b"!").await.expect("write");
    }
}

/// RUSTSEC-2026-0185: fragments with gaps between them cost far more memory than their bytes.
#[tokio::test(start_paused = true)]
async fn fragments_of_one_byte_with_gaps_end_the_connection() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let listener = network.listen(pki.server(), &ListenOptions::default()).expect("listen");
    let to = address(&listener);
    let mut outcomes = serve(listener);
    let forger = Forger::new(&pki);
    let (forges, fragments) = (Arc::clone(&forger.forges), Arc::clone(&forger.fragments));
    let endpoint = noq_peer::endpoint(&network.host("device"), None);
    let config = noq::ClientConfig::new(Arc::new(forger));
    let connection =
        endpoint.connect_with(config, to, "localhost").expect("connect").await.expect("handshake");
    let (mut send, _receive) = connection.open_bi().await.expect("stream");
    send.write_all(b"!").await.expect("write");
    let mut server = outcomes.recv().await.expect("an outcome").expect("handshake");
    assert_eq!(read(&mut server).await.expect("read"), b'!');
    forges.store(true, Ordering::Relaxed);
    let sending = tokio::spawn(async move {
        let piece = vec![0; 1 << 16];
        while send.write_all(&piece).await.is_ok() {}
    });
    let error = timeout(LIMIT, async {
        loop {
            match next(&mut server).await {
                Ok((Read::Closed, _)) => panic!("an end in order"),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    });
    let error = error.await.expect("an end");
    let fragments = fragments.load(Ordering::Relaxed);
    println!("{error} after {fragments} fragments");
    assert!((1_000..20_000).contains(&fragments), "{fragments}");
    timeout(LIMIT, connection.closed()).await.expect("closed by the server");
    sending.await.expect("join");
}

/// Cryptography of a client that changes its transport parameters, and puts other frames into its packets.
struct Forger {
    inner: QuicClientConfig,
    parameters: Option<fn(Vec<u8>) -> Vec<u8>>,
    /// Each packet consists of fragments of one byte of the first data stream, with gaps between them.
    forges: Arc<AtomicBool>,
    fragments: Arc<AtomicUsize>,
}

impl Forger {
    fn new(pki: &Pki) -> Self {
        let mut config = rustls::ClientConfig::clone(&*client_config(pki, &[&rustls::version::TLS13]));
        config.alpn_protocols = vec![b"mqtt".to_vec()];
        let inner = QuicClientConfig::try_from(config).expect("TLS 1.3");
        Self { inner, parameters: None, forges: Arc::default(), fragments: Arc::default() }
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
        let params = match self.parameters {
            Some(change) => {
                // Those that are given anew are left out.
                let bytes = change(without(&bytes, &[0x0B, 0xFF04_DE1B]));
                TransportParameters::read(Side::Server, &mut bytes.as_slice()).expect("right parameters")
            }
            None => *params,
        };
        let inner = self.inner.start_session(version, server_name, &params)?;
        let (forges, fragments) = (Arc::clone(&self.forges), Arc::clone(&self.fragments));
        Ok(Box::new(ForgedSession { inner, keys: 0, forges, fragments }))
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
    forges: Arc<AtomicBool>,
    fragments: Arc<AtomicUsize>,
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
            let (forges, fragments) = (Arc::clone(&self.forges), Arc::clone(&self.fragments));
            keys.packet.local = Box::new(ForgedKey { inner: keys.packet.local, forges, fragments });
        }
        Some(keys)
    }
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.inner.next_1rtt_keys()
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
    forges: Arc<AtomicBool>,
    fragments: Arc<AtomicUsize>,
}

impl PacketKey for ForgedKey {
    fn encrypt(&self, path_id: PathId, packet: u64, buf: &mut [u8], header_len: usize) {
        if self.forges.load(Ordering::Relaxed) {
            let end = buf.len() - self.tag_len();
            let frames = &mut buf[header_len..end];
            // PADDING where no more fits.
            frames.fill(0);
            for frame in frames.chunks_exact_mut(8) {
                let offset = 1 + 2 * self.fragments.fetch_add(1, Ordering::Relaxed);
                let offset = u32::try_from(offset).expect("few") | 2 << 30;
                // STREAM with offset and length, stream 4, one byte.
                frame[..2].copy_from_slice(&[0x0E, 4]);
                frame[2..6].copy_from_slice(&offset.to_be_bytes());
                frame[6..].copy_from_slice(&[1, 7]);
            }
        }
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
