//! Requests that break or exhaust: right status, and the server answers the next client.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use braid_http::Limits;

use super::support::{ANY, Ask, Client, Front, VERSIONS, block_on, is_problem, status};

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
        ("GET http://localhost/live HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), 400),
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
        assert!(expected == 200 || is_problem(&answer), "{request:.80} {answer}");
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
        // One that has begun is told why; a connection that was opened for later is closed in silence.
        assert_eq!(
            (status(&answer), is_problem(&answer)),
            if head.is_empty() { (0, false) } else { (408, true) }
        );
    }
    let mut stream = TcpStream::connect(front.address).unwrap();
    stream.write_all(b"POST /app HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nbegin").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!((status(&answer), is_problem(&answer)), (408, true), "{answer}");
}

#[test]
fn connections_of_an_address_are_limited() {
    // The system accepts for it, and it never answers.
    let silent = TcpListener::bind(ANY).unwrap();
    let limits = Limits { connections_per_address: 2, ..Limits::default() };
    let front = Front::plain(limits, Some(silent.local_addr().unwrap()));
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(front.address).unwrap();
        stream.write_all(b"GET /app HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        busy.push((stream, silent.accept().unwrap()));
    }
    let mut third = TcpStream::connect(front.address).unwrap();
    assert!(matches!(third.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
}

#[test]
fn idle_connections_give_way_to_new_ones() {
    let limits = Limits { connections_per_address: 2, ..Limits::default() };
    let front = Front::start(limits, None);
    block_on(async {
        let mut open = Vec::new();
        for version in [VERSIONS, VERSIONS].concat() {
            let mut client = Client::connect(&front, version).await;
            assert_eq!(client.send(&Ask::get("/live")).await.unwrap().status, 200, "{version}");
            open.push(client);
        }
        for client in &mut open[..4] {
            assert!(client.send(&Ask::get("/live")).await.is_err(), "it has ended");
        }
        for client in &mut open[4..] {
            assert_eq!(client.send(&Ask::get("/live")).await.unwrap().status, 200);
        }
    });
}
