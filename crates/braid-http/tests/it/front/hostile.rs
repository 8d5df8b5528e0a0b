//! Requests that break or exhaust: right status, and the server answers the next client.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use braid_http::Limits;
use bytes::Bytes;
use h3::error::Code;
use h3::quic::{RecvStream, SendStreamUnframed};

use super::support::{Ask, Client, Front, block_on, open_bidi};

fn status(answer: &str) -> u16 {
    answer.strip_prefix("HTTP/1.1 ").map_or(0, |rest| rest[..3].parse().unwrap())
}

#[test]
fn malformed_heads_are_refused() {
    let front = Front::plain(Limits::default(), None);
    let long_url = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(1 << 20));
    let uri = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "a".repeat(9000));
    let fields = format!("GET /live HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(100));
    let large = format!("GET /live HTTP/1.1\r\nHost: localhost\r\na: {}\r\n\r\n", "b".repeat(40_000));
    let with =
        |line: &str| format!("POST /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{line}\r\n\r\n");
    for (request, expected) in [
        (long_url, 431),
        (uri, 414),
        (fields, 431),
        (large, 431),
        (with("Content-Length: 1\r\nContent-Length: 2"), 400),
        (with("Content-Length: -1"), 400),
        (with("Content-Length: 1,1"), 400),
        (with("Transfer-Encoding: gzip"), 400),
        (with("Transfer-Encoding: chunked, identity"), 400),
        (with("Transfer-Encoding : chunked"), 400),
        (with("A: b\r\n folded"), 400),
        (with("A\0: b"), 400),
        (with("Host: other"), 400),
        ("GET /live HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), 400),
        ("GET /live HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 400),
        ("GET /live\r\n\r\n".to_owned(), 400),
        (
            "GET http://evil.example/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                .to_owned(),
            400,
        ),
        ("CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n\r\n".to_owned(), 501),
        ("\u{10}\u{c}\0\u{4}MQTT\u{4}\u{2}\0\0\0\0".to_owned(), 400),
        ("GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), 200),
    ] {
        let answer = front.raw(request.as_bytes());
        assert_eq!(status(&answer), expected, "{request:.80} {answer}");
    }
}

#[test]
fn slow_heads_and_bodies_time_out() {
    let short = Duration::from_millis(50);
    let limits = Limits { head_timeout: short, body_timeout: short, ..Limits::default() };
    let upstream = super::support::Upstream::start(|_| Vec::new());
    let front = Front::plain(limits, Some(upstream.address));
    for head in ["", "GET /live HTTP/1.1\r\nA: b\r\n"] {
        let mut stream = TcpStream::connect(front.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "", "{head}");
    }
    let mut stream = TcpStream::connect(front.address).unwrap();
    stream.write_all(b"POST /app HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nbegin").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 408, "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
}

#[test]
fn connections_of_an_address_are_limited() {
    let limits = Limits { connections_per_address: 2, ..Limits::default() };
    let front = Front::start(limits, None);
    block_on(async {
        let mut open = [Client::connect(&front, "h2").await, Client::connect(&front, "h3").await];
        for client in &mut open {
            assert_eq!(client.send(&Ask::get("/live")).await.unwrap().status, 200);
        }
        let mut third = TcpStream::connect(front.address).unwrap();
        assert!(matches!(third.read(&mut [0]), Ok(0) | Err(_)), "it is closed before TLS");
        for client in &mut open {
            assert_eq!(client.send(&Ask::get("/live")).await.unwrap().status, 200);
        }
    });
}

// === HTTP/2 by hand ===

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Field block of `GET /live` at localhost.
const GET: &[u8] = b"\x82\x86\x04\x05/live\x41\x09localhost";

/// Sends frames, and returns those of the server as type, stream and payload until it closes.
fn http2(front: &Front, frames: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut stream = TcpStream::connect(front.address).unwrap();
    let mut writing = stream.try_clone().unwrap();
    let bytes = [PREFACE, frames].concat();
    // The server reads and writes at the same time, and may close before it has read all.
    let writer = std::thread::spawn(move || drop(writing.write_all(&bytes)));
    let mut received = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let (kind, is_end) = (head[3], head[3] == 7);
        received.push((kind, id, payload));
        if is_end {
            break;
        }
    }
    drop(stream);
    writer.join().unwrap();
    received
}

/// Error code of GOAWAY.
fn goaway(received: &[(u8, u32, Vec<u8>)]) -> Option<u32> {
    let (_, _, payload) = received.iter().find(|(kind, ..)| *kind == 7)?;
    Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()))
}

#[test]
fn floods_on_http2_end_the_connection() {
    let front = Front::plain(Limits::default(), None);
    let rapid_reset: Vec<u8> = (0..2000)
        .flat_map(|n| [frame(1, 5, 2 * n + 1, GET), frame(3, 0, 2 * n + 1, &[0, 0, 0, 8])].concat())
        .collect();
    let received = http2(&front, &rapid_reset);
    assert_eq!(goaway(&received), Some(11), "ENHANCE_YOUR_CALM: {received:?}");

    let field = b"\x40\x01a\x7f\x87\x01".iter().copied().chain([b'b'; 262]).collect::<Vec<_>>();
    let mut continuations = frame(1, 1, 1, GET);
    for _ in 0..5000 {
        continuations.extend(frame(9, 0, 1, &field));
    }
    let received = http2(&front, &continuations);
    assert!(goaway(&received).is_some_and(|code| code != 0), "{received:?}");

    assert_eq!(
        status(&front.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")),
        200
    );
}

// === HTTP/3 by hand ===

#[test]
fn large_and_wrong_field_sections_on_http3_are_refused() {
    let front = Front::start(Limits::default(), None);
    block_on(async {
        // Before SETTINGS arrive the client knows no limit. The second frame is too long for `h3`.
        for size in [40_000, 100_000] {
            let (mut driver, mut send) = h3::client::new(front.quic().await).await.unwrap();
            let ask = Ask::get("/live").header("a", &"b".repeat(size));
            let sent = send.send_request(ask.request("h3", ())).await;
            tokio::spawn(async move { driver.wait_idle().await });
            match sent {
                Ok(mut stream) => assert_eq!(stream.recv_response().await.unwrap().status(), 431, "{size}"),
                // The server has answered before all was sent, and stopped the rest.
                Err(error) => assert!(error.to_string().contains("H3_NO_ERROR"), "{size}: {error}"),
            }
            let mut again = send.send_request(Ask::get("/live").request("h3", ())).await.unwrap();
            again.finish().await.unwrap();
            assert_eq!(again.recv_response().await.unwrap().status(), 200);
        }
        // A field of the dynamic table, which has no entry: Required Insert Count 1.
        for block in [&b"\x02\x00\x80"[..], b"\x00\x00\x80", b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            let mut connection = front.quic().await;
            let mut opener = h3::quic::Connection::<Bytes>::opener(&connection);
            let mut stream = open_bidi(&mut opener).await;
            let mut bytes = Bytes::from([&[1, block.len() as u8], block].concat());
            poll_fn(|cx| stream.poll_send(cx, &mut bytes)).await.unwrap();
            // The stream ends with the connection or before it.
            drop(poll_fn(|cx| stream.poll_data(cx)).await);
            let closed = loop {
                let accepted: Result<braid_transport::http::Http3Recv, _> =
                    poll_fn(|cx| h3::quic::Connection::<Bytes>::poll_accept_recv(&mut connection, cx)).await;
                if let Err(error) = accepted {
                    break format!("{error:?}");
                }
            };
            assert!(closed.contains("QPACK_DECOMPRESSION_FAILED"), "{block:?} {closed}");
        }
    });
}

#[test]
fn rapid_reset_on_http3_ends_the_connection() {
    let front = Front::start(Limits::default(), None);
    block_on(async {
        let (mut driver, mut send) = h3::client::new(front.quic().await).await.unwrap();
        let closed = tokio::spawn(async move { driver.wait_idle().await.to_string() });
        let mut open = Vec::new();
        while let Ok(mut stream) = send.send_request(Ask::get("/live").request("h3", ())).await {
            stream.stop_sending(Code::H3_REQUEST_CANCELLED);
            stream.stop_stream(Code::H3_REQUEST_CANCELLED);
            open.push(stream);
        }
        let closed = closed.await.unwrap();
        assert!(closed.contains("H3_EXCESSIVE_LOAD"), "{closed}");
        assert_eq!(front.send("h3", &Ask::get("/live")).await.unwrap().status, 200);
    });
}
