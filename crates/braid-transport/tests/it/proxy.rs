//! PROXY protocol on every kind of listener over TCP, behind a forwarder of the test.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use braid_transport::proxy::{ProxyError, ProxyHeaderError, ProxyOptions};
use braid_transport::{
    ConnectOptions, HandshakeError, Incoming, ListenOptions, Listener, ListenerKind, connect,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::driven::Link;
use crate::proxy_header::proxy_header;
use crate::support::{Pki, Wire, address, carry, loopback, target};

const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 203.0.113.1 56324 1883\r\n";
const LINE_V6: &[u8] = b"PROXY TCP6 2001:db8::7 ::1 56324 1883\r\n";
const LINE_MAPPED: &[u8] = b"PROXY TCP6 ::ffff:192.0.2.7 ::1 56324 1883\r\n";
const UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";
const BINARY: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0F\xC0\0\x02\x07\xCB\0\x71\x01\xDC\x04\x07\x5B\x04\0\0";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

fn behind(trusted: &str) -> ListenOptions {
    let trusted = vec![trusted.parse().expect("a network")];
    ListenOptions { proxy: Some(ProxyOptions { trusted }), ..ListenOptions::default() }
}

fn listen(kind: ListenerKind) -> Listener {
    Listener::bind(kind, loopback(), &behind("127.0.0.0/8")).expect("bind")
}

/// Forwards one connection to `to`, behind this header. Returns its own address, and the one that `to` will see.
async fn forward(to: SocketAddr, header: &'static [u8]) -> (SocketAddr, SocketAddr) {
    let listener = TcpListener::bind(loopback()).await.expect("bind");
    let own = listener.local_addr().expect("address");
    let mut out = TcpStream::connect(to).await.expect("connect");
    let seen = out.local_addr().expect("address");
    tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.expect("accept");
        // The client's first bytes stand right behind the header, often in one segment.
        let mut first = vec![0; 64 * 1024];
        let count = io.read(&mut first).await.expect("read");
        out.write_all(&[header, &first[..count]].concat()).await.expect("write");
        let _ = copy_bidirectional(&mut io, &mut out).await;
    });
    (own, seen)
}

#[tokio::test]
async fn a_client_behind_a_proxy_keeps_its_address() {
    let pki = Pki::new();
    let tls = pki.server();
    let client = Some("192.0.2.7:56324");
    let headers = [
        (LINE, client),
        (LINE_V6, Some("[2001:db8::7]:56324")),
        (LINE_MAPPED, client),
        (BINARY, client),
        (UNKNOWN, None),
        (LOCAL, None),
    ];
    for kind in
        [ListenerKind::Tcp, ListenerKind::Ws, ListenerKind::Tls(tls.clone()), ListenerKind::Wss(tls.clone())]
    {
        let mut listener = listen(kind);
        for (header, client) in headers {
            let (own, seen) = forward(address(&listener), header).await;
            let (target, tls) = (target(listener.transport(), own), pki.client());
            let client_side = tokio::spawn(async move {
                let link =
                    Link::from(connect(&target, &tls, &ConnectOptions::default()).await.expect("connect"));
                let mut wire = Wire::from(link);
                wire.io.write_all(b"!").await.expect("first byte");
                wire.io.flush().await.expect("flush");
                wire
            });
            let incoming = listener.accept().await.expect("accept");
            assert_eq!(incoming.peer_address(), Some(seen));
            let mut server = Wire::from(incoming.handshake().await.expect("handshake"));
            assert_eq!(server.io.read_u8().await.expect("first byte"), b'!');
            let mut client_side = client_side.await.expect("join");
            assert_eq!(server.peer.proxy, Some(seen));
            let expected = client.map_or(seen, |client| client.parse().expect("an address"));
            assert_eq!(server.peer.address, Some(expected), "{}", header.escape_ascii());
            carry(&mut client_side, &mut server, &[7; 100_000]).await;
            carry(&mut server, &mut client_side, &[8; 100_000]).await;
        }
    }
}

/// A connection of a client that has not sent anything, and its accepted side.
async fn pair(listener: &mut Listener) -> (TcpStream, Incoming) {
    let socket = TcpStream::connect(address(listener)).await.expect("connect");
    socket.set_nodelay(true).expect("option");
    (socket, listener.accept().await.expect("accept"))
}

#[tokio::test]
async fn a_header_may_be_cut_at_each_byte() {
    let mut listener = listen(ListenerKind::Tcp);
    for header in [LINE, BINARY, LOCAL] {
        for cut in 0..=header.len() {
            let (mut socket, incoming) = pair(&mut listener).await;
            let server = tokio::spawn(incoming.handshake());
            socket.write_all(&header[..cut]).await.expect("write");
            tokio::task::yield_now().await;
            socket.write_all(&[&header[cut..], b"behind"].concat()).await.expect("write");
            let mut link = Wire::from(server.await.expect("join").expect("handshake"));
            let mut behind = [0; 6];
            link.io.read_exact(&mut behind).await.expect("read");
            assert_eq!(&behind, b"behind", "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn a_header_may_come_byte_by_byte() {
    let mut listener = listen(ListenerKind::Tcp);
    for header in [LINE, BINARY] {
        let (mut socket, incoming) = pair(&mut listener).await;
        let server = tokio::spawn(incoming.handshake());
        for byte in header {
            socket.write_all(&[*byte]).await.expect("write");
            tokio::task::yield_now().await;
        }
        let link = server.await.expect("join").expect("handshake");
        assert_eq!(link.peer().address, Some("192.0.2.7:56324".parse().expect("an address")));
    }
}

/// The server's error for a connection that begins so.
async fn refusal(listener: &mut Listener, bytes: &[u8]) -> HandshakeError {
    let (mut socket, incoming) = pair(listener).await;
    socket.write_all(bytes).await.expect("write");
    socket.shutdown().await.expect("shutdown");
    let error = incoming.handshake().await.expect_err("a connection that must be refused");
    // Closed, or reset because of bytes that were not read: nothing was answered.
    assert_eq!(socket.read(&mut [0; 1]).await.unwrap_or(0), 0);
    error
}

#[tokio::test]
async fn a_trusted_proxy_must_send_a_right_header() {
    const CONNECT: &[u8] = b"\x10\x10\0\x04MQTT\x04\x02\0\x3c\0\x04test";
    let pki = Pki::new();
    let tls = pki.server();
    let long = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
    let large = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xFF\xFF"[..], &[0; 5000]].concat();
    let cases: [(&[u8], ProxyHeaderError); _] = [
        (CONNECT, ProxyHeaderError::Missing),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xFC\x03\x03", ProxyHeaderError::Missing),
        (b"GET /mqtt HTTP/1.1\r\n", ProxyHeaderError::Missing),
        (&long, ProxyHeaderError::LineTooLong),
        (&large, ProxyHeaderError::TooLong(0xFFFF)),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 56324\r\n", ProxyHeaderError::Port),
    ];
    for kind in [ListenerKind::Tcp, ListenerKind::Ws, ListenerKind::Tls(tls.clone()), ListenerKind::Wss(tls)]
    {
        let mut listener = listen(kind);
        for (bytes, expected) in &cases {
            let error = refusal(&mut listener, bytes).await;
            let text = error.to_string();
            let HandshakeError::Proxy(ProxyError::Header { proxy, error }) = error else { panic!("{text}") };
            assert_eq!((proxy, error), (loopback().ip(), *expected));
            assert!(text.starts_with("PROXY protocol: header of the proxy 127.0.0.1: "), "{text}");
        }
        for end in 0..LINE.len() {
            let error = refusal(&mut listener, &LINE[..end]).await;
            assert!(matches!(error, HandshakeError::Io(_)), "{end} bytes: {error}");
        }
    }
}

#[tokio::test]
async fn other_addresses_are_refused_with_a_header_and_without() {
    for trusted in ["127.0.0.2", "10.0.0.0/8", "::1"] {
        let mut listener = Listener::bind(ListenerKind::Tcp, loopback(), &behind(trusted)).expect("bind");
        for bytes in [LINE, BINARY, LOCAL, b"\x10\x10"] {
            let error = refusal(&mut listener, bytes).await;
            assert!(matches!(error, HandshakeError::Proxy(ProxyError::Untrusted(_))), "{error}");
            let expected = "PROXY protocol: 127.0.0.1 is not a trusted proxy: ";
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
    let options = ListenOptions { proxy: Some(ProxyOptions::default()), ..ListenOptions::default() };
    let mut listener = Listener::bind(ListenerKind::Tcp, loopback(), &options).expect("bind");
    let error = refusal(&mut listener, LINE).await;
    assert!(matches!(error, HandshakeError::Proxy(ProxyError::Untrusted(_))), "an empty list: {error}");
}

#[tokio::test]
async fn without_the_option_a_header_is_nothing_but_bytes() {
    let mut listener =
        Listener::bind(ListenerKind::Tcp, loopback(), &ListenOptions::default()).expect("bind");
    let (mut socket, incoming) = pair(&mut listener).await;
    let mut link = Wire::from(incoming.handshake().await.expect("handshake"));
    socket.write_all(LINE).await.expect("write");
    let mut bytes = vec![0; LINE.len()];
    link.io.read_exact(&mut bytes).await.expect("read");
    assert_eq!((bytes.as_slice(), link.peer.proxy), (LINE, None));
}

#[tokio::test]
async fn a_quic_listener_cannot_have_the_proxy_protocol() {
    let kind = ListenerKind::Quic(Pki::new().server());
    let error = Listener::bind(kind, loopback(), &behind("127.0.0.1")).expect_err("QUIC").to_string();
    assert_eq!(error, "the PROXY protocol needs TCP: switch it off for QUIC listeners");
}

/// The corpus of the fuzz target.
#[test]
fn the_corpus_of_headers_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/proxy_header");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("corpus") {
        let path = entry.expect("entry").path();
        println!("{}", path.display());
        let bytes = fs::read(path).expect("read");
        for end in 0..=bytes.len() {
            proxy_header(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                proxy_header(&changed);
            }
        }
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}
