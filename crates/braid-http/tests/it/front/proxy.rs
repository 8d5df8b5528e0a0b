//! Reverse proxy beyond single requests: upgrades, upstreams that are dead or slow.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use braid_http::Limits;

use super::support::{ANY, Ask, Front, Upstream, VERSIONS, block_on};

#[test]
fn a_websocket_passes_through() {
    let listener = TcpListener::bind(ANY).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = read_head(&mut stream).to_ascii_lowercase();
        assert!(head.contains("connection: upgrade") && head.contains("upgrade: websocket"), "{head}");
        assert!(head.contains("sec-websocket-key: x"), "{head}");
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            )
            .unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        bytes.reverse();
        stream.write_all(&bytes).unwrap();
    });
    let front = Front::plain(Limits::default(), Some(address));
    let mut client = TcpStream::connect(front.address).unwrap();
    client
        .write_all(
            b"GET /app HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
              Sec-WebSocket-Key: x\r\n\r\n",
        )
        .unwrap();
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    client.write_all(b"ping").unwrap();
    let mut echo = String::new();
    client.read_to_string(&mut echo).unwrap();
    assert_eq!(echo, "gnip");
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn upstreams_that_are_dead_or_silent_have_their_status() {
    let dead = TcpListener::bind(ANY).unwrap().local_addr().unwrap();
    let front = Front::start(Limits::default(), Some(dead));
    block_on(async {
        for version in VERSIONS {
            assert_eq!(front.send(version, &Ask::get("/app")).await.unwrap().status.as_u16(), 502);
        }
    });
    // The system accepts for it, and it never answers.
    let silent = TcpListener::bind(ANY).unwrap();
    let limits = Limits { upstream_timeout: Duration::from_millis(50), ..Limits::default() };
    let front = Front::start(limits, Some(silent.local_addr().unwrap()));
    block_on(async {
        for version in VERSIONS {
            assert_eq!(front.send(version, &Ask::get("/app")).await.unwrap().status.as_u16(), 504);
        }
    });
}

#[test]
fn ports_that_an_upstream_advertises_are_not_passed_on() {
    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nalt-svc: h3=\":443\"\r\nx-kept: 1\r\n\r\n";
    let upstream = Upstream::start(|_| response.to_vec());
    let front = Front::start(Limits::default(), Some(upstream.address));
    block_on(async {
        for version in VERSIONS {
            let answer = front.send(version, &Ask::get("/app")).await.unwrap();
            assert_eq!((answer.header("alt-svc"), answer.header("x-kept")), ("", "1"), "{version}");
        }
    });
}

#[test]
fn an_upstream_that_stops_within_its_response_breaks_it_off() {
    let listener = TcpListener::bind(ANY).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            read_head(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegin").unwrap();
            open.push(stream);
        }
    });
    let limits = Limits { upstream_timeout: Duration::from_millis(50), ..Limits::default() };
    let front = Front::start(limits, Some(address));
    block_on(async {
        for version in VERSIONS {
            assert!(front.send(version, &Ask::get("/app")).await.is_err(), "{version}");
        }
    });
}

/// The shape that smuggles a second request past a proxy: only one arrives, and the connection ends.
#[test]
fn two_lengths_are_one_request() {
    let upstream = Upstream::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec());
    let front = Front::plain(Limits::default(), Some(upstream.address));
    for lengths in
        ["Content-Length: 6\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 6"]
    {
        let request = format!(
            "POST /app HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n\r\n0\r\n\r\nGET /app/smuggled HTTP/1.1\r\nHost: \
             localhost\r\n\r\n"
        );
        let answer = front.raw(request.as_bytes());
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        let received = upstream.request();
        assert!(received.starts_with("post /app ") && !received.contains("content-length: 6"), "{received}");
        assert!(upstream.requests.try_recv().is_err());
    }
}
