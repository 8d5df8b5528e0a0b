//! HTTP of the attacker: connections to the front, frames written by hand, and fresh requests.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::http::{ALPN_H3, connect_http};
use braid_transport::{ByteStream, ClientTls, ClientTlsOptions, ConnectOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::quic::QuicClient;
use crate::stream::LOCAL;
use crate::target::{HOST, Target};

/// Version of HTTP that TLS agrees on (ALPN).
pub(crate) const HTTP1: &str = "http/1.1";
pub(crate) const HTTP2: &str = "h2";
pub(crate) const HTTP3: &str = ALPN_H3;

/// Types of frames, on HTTP/2 and 3.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;

/// A file of 16 MiB that the front serves: the journal of the broker's store.
pub(crate) const LARGE_FILE: &str = "/files/data/store.journal";

/// Time limit of a fresh request.
const ANSWER: Duration = Duration::from_secs(10);

/// TLS that offers a version of HTTP.
pub(crate) fn tls(target: &Target, version: &str) -> ClientTls {
    ClientTls::new(ClientTlsOptions { alpn: vec![version.to_owned()], ..target.tls_options() })
}

/// Options of a connection from an address of this machine.
fn options(local: Ipv4Addr) -> ConnectOptions {
    let quic = braid_transport::quic::QuicOptions::http3_client();
    ConnectOptions { quic, local: Some(local.into()), ..ConnectOptions::default() }
}

/// Connects over TCP and TLS from an address of this machine.
///
/// # Errors
/// No connection.
pub(crate) async fn connect(
    target: &Target,
    tls: &ClientTls,
    local: Ipv4Addr,
) -> io::Result<Box<dyn ByteStream>> {
    let connected = connect_http(HOST, &[target.http()], Some(tls), &options(local)).await;
    connected.map(|stream| stream.io).map_err(io::Error::other)
}

/// Connects over QUIC from an address of this machine to that of the front, or of a relay. The control stream is that
/// of the first request.
///
/// # Errors
/// No connection.
pub(crate) async fn connect_http3(
    address: SocketAddr,
    tls: &ClientTls,
    local: Ipv4Addr,
) -> io::Result<QuicClient> {
    QuicClient::dial_with(address, tls, &options(local)).await
}

/// Frame of HTTP/2.
pub(crate) fn frame2(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = length_of(payload).to_be_bytes();
    [&length, &[kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// Frame of HTTP/3, with a length in four bytes.
pub(crate) fn frame3(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = 0x8000_0000 | length_of(payload);
    [&[kind], &length.to_be_bytes()[..], payload].concat()
}

fn length_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Integer of HPACK behind a prefix of seven bits, whose first bit is not set (RFC 7541, 5.1).
pub(crate) fn integer7(value: usize) -> Vec<u8> {
    let mut bytes = vec![0x7f];
    let mut rest = value.saturating_sub(0x7f);
    while rest >= 0x80 {
        bytes.push(0x80 | low_bits(rest));
        rest >>= 7;
    }
    bytes.push(low_bits(rest));
    bytes
}

/// The lowest seven bits.
fn low_bits(value: usize) -> u8 {
    (value & 0x7f).to_le_bytes()[0]
}

/// Field block of a request on HTTP/2.
pub(crate) fn block2(is_get: bool, path: &str) -> Vec<u8> {
    let method = if is_get { 0x82 } else { 0x83 };
    [&[method, 0x87, 0x04, low_bits(path.len())], path.as_bytes(), &[0x41, 9], HOST.as_bytes()].concat()
}

/// Field section of GET on HTTP/3.
pub(crate) fn section3(path: &str) -> Vec<u8> {
    let path_length = low_bits(path.len());
    [&[0, 0, 0xd1, 0xd7, 0x51, path_length], path.as_bytes(), &[0x50, 9], HOST.as_bytes()].concat()
}

/// Checks that a path is served with bytes, without which requests for it would attack nothing.
///
/// # Errors
/// No answer in time, another status than 200, or an empty body.
pub(crate) async fn expect_body(target: &Target, path: &str) -> io::Result<()> {
    let ask = async {
        let mut stream = connect(target, &tls(target, HTTP1), LOCAL).await?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        while !is_ok_with_body(&answer) && answer.len() < buffer.len() {
            match stream.read(&mut buffer).await? {
                0 => break,
                length => answer.extend_from_slice(&buffer[..length]),
            }
        }
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(ANSWER, ask).await??;
    if is_ok_with_body(&answer) {
        return Ok(());
    }
    let status = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
    Err(io::Error::other(format!("{path} is answered with {status:?}, and 200 with a body is needed")))
}

/// Whether the beginning of a response of HTTP/1.1 has status 200 and a byte behind its head.
fn is_ok_with_body(answer: &[u8]) -> bool {
    let head = answer.windows(4).position(|part| part == b"\r\n\r\n");
    answer.starts_with(b"HTTP/1.1 200 ") && head.is_some_and(|at| at + 4 < answer.len())
}

/// Asks whether the broker is ready, on a fresh connection; returns how long that took.
///
/// # Errors
/// The broker does not answer in time, or is not ready.
pub(crate) async fn serve_fresh_request(target: &Target, version: &str) -> Result<Duration, String> {
    let began = Instant::now();
    let ask = async {
        let (tls, local) = (tls(target, version), Ipv4Addr::LOCALHOST);
        if version == HTTP3 {
            let mut client = connect_http3(target.http(), &tls, local).await?;
            // Its body is empty, so the stream need not end.
            let section = [&section3("/health/ready")[..], &[0xc4]].concat();
            client.write(StreamKey::CONTROL, &frame3(HEADERS, &section)).await?;
            return Ok(is_ok3(client.answer(6).await?));
        }
        let mut stream = connect(target, &tls, local).await?;
        let head = format!("GET /health/ready HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await?;
        Ok(&status == b"HTTP/1.1 200")
    };
    match timeout(ANSWER, ask).await {
        Ok(Ok(true)) => Ok(began.elapsed()),
        Ok(Ok(false)) => Err(format!("a fresh request over {version} has another status than 200")),
        Ok(Err(error)) => Err(fault(version, &error)),
        Err(_) => Err(format!("a fresh request over {version} is not answered within {ANSWER:?}")),
    }
}

fn fault(version: &str, error: &io::Error) -> String {
    format!("a fresh request over {version} is not answered: {error}")
}

/// True if a response of HTTP/3 begins with status 200, whose index is 25.
fn is_ok3(answer: &[u8]) -> bool {
    let section = match answer {
        [HEADERS, length, section @ ..] if *length < 0x40 => section,
        [HEADERS, 0x40..0x80, _, section @ ..] => section,
        _ => return false,
    };
    section.starts_with(&[0, 0, 0xd9])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_integers_are_those_of_the_documents() {
        assert_eq!(frame2(8, 0, 5, &[0, 0, 0, 1]), [0, 0, 4, 8, 0, 0, 0, 0, 5, 0, 0, 0, 1]);
        assert_eq!(frame3(HEADERS, b"ab"), [1, 0x80, 0, 0, 2, b'a', b'b']);
        // RFC 7541, C.1.2, with a prefix of seven bits.
        assert_eq!(integer7(1337), [0x7f, 0xba, 0x09]);
        assert_eq!(block2(true, "/live"), b"\x82\x87\x04\x05/live\x41\x09127.0.0.1");
        assert_eq!(section3("/live"), b"\0\0\xd1\xd7\x51\x05/live\x50\x09127.0.0.1");
    }

    #[test]
    fn a_response_needs_status_200_and_a_byte_of_its_body() {
        assert!(is_ok_with_body(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"));
        for wrong in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\na",
        ] {
            assert!(!is_ok_with_body(wrong), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_response_of_http3_is_recognised() {
        assert!(is_ok3(&[1, 5, 0, 0, 0xd9, 0]) && is_ok3(&[1, 0x40, 90, 0, 0, 0xd9]));
        assert!(!is_ok3(&[1, 5, 0, 0, 0xdc, 0]) && !is_ok3(&[0, 5, 0, 0, 0xd9, 0]) && !is_ok3(&[]));
    }
}
