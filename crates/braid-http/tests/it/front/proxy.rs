//! Reverse proxy beyond single requests: upgrades, upstreams that are dead or slow.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use braid_http::{FrontCounters, Limits};

use super::same::same;
use super::support::{ANY, Ask, Client, Front, Upstream, VERSIONS, block_on};

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
fn there_are_as_many_requests_to_upstreams_as_connections_are_permitted() {
    let total = Limits { connections: 3, ..Limits::default() };
    let of_address = Limits { connections_per_address: 3, ..Limits::default() };
    requests_above_three_are_refused(total, "upstream_requests");
    requests_above_three_are_refused(of_address, "upstream_requests_per_address");
}

fn requests_above_three_are_refused(limits: Limits, reason: &'static str) {
    let mut counters = FrontCounters::default();
    let silent = TcpListener::bind(ANY).unwrap();
    let front = Front::with(limits, Some(silent.local_addr().unwrap()), |options| {
        counters = options.counters.clone();
    });
    block_on(async {
        let Client::H2(send) = Client::connect(&front, "h2").await else { unreachable!("HTTP/2") };
        let ask = || {
            let mut client = Client::H2(send.clone());
            async move { client.send(&Ask::get("/app")).await }
        };
        let waiting = [(); 3].map(|()| tokio::spawn(ask()));
        let _open = [(); 3].map(|()| silent.accept().unwrap());
        assert_eq!(ask().await.unwrap().status.as_u16(), 503);
        let refused = counters.values().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(refused, [(reason, 1)]);
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

#[test]
fn ports_that_an_upstream_advertises_are_not_passed_on() {
    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nalt-svc: h3=\":443\"\r\nService-Worker-Allowed: /\r\nx-kept: 1\r\n\r\n";
    let upstream = Upstream::start(|_| response.to_vec());
    let front = Front::start(Limits::default(), Some(upstream.address));
    block_on(async {
        for version in VERSIONS {
            let answer = front.send(version, &Ask::get("/app")).await.unwrap();
            let dropped = ["alt-svc", "service-worker-allowed"].map(|name| answer.header(name));
            assert_eq!((dropped, answer.header("x-kept")), (["", ""], "1"), "{version}");
        }
    });
}

#[test]
fn references_to_the_upstream_are_those_of_the_route() {
    let own = Arc::new(OnceLock::<SocketAddr>::new());
    let address = Arc::clone(&own);
    let upstream = Upstream::start(move |_| {
        let to = address.get().unwrap();
        format!(
            "HTTP/1.1 302 Found\r\nlocation: http://{to}/app/next?a\r\ncontent-location: http://{to}\r\n\
             content-length: 0\r\n\r\n"
        )
        .into_bytes()
    });
    own.set(upstream.address).unwrap();
    let front = Front::start(Limits::default(), Some(upstream.address));
    block_on(async {
        for version in VERSIONS {
            let answer = front.send(version, &Ask::get("/app")).await.unwrap();
            let said = (answer.header("location"), answer.header("content-location"));
            assert_eq!(said, ("/app/next?a", "/"), "{version}");
        }
    });
}

#[test]
fn what_a_client_says_about_itself_is_dropped() {
    let upstream = Upstream::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec());
    let front = Front::start(Limits::default(), Some(upstream.address));
    block_on(async {
        for version in VERSIONS {
            let mut ask = Ask::get("/app").header("x-kept", "mallory");
            for name in [
                "forwarded",
                "x-real-ip",
                "x-forwarded-for",
                "x-forwarded-port",
                "x-forwarded-prefix",
                "x_forwarded_for",
                "x-forwarded_host",
                "x_real_ip",
            ] {
                ask = ask.header(name, "mallory");
            }
            front.send(version, &ask).await.unwrap();
            let request = upstream.request();
            assert_eq!(request.matches("mallory").count(), 1, "{version}: {request}");
            assert!(request.contains("x-forwarded-for: 127.0.0.1\r\n"), "{request}");
        }
    });
}

#[test]
fn an_upstream_gets_the_host_of_a_target_in_absolute_form() {
    let upstream = Upstream::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec());
    let front = Front::plain(Limits::default(), Some(upstream.address));
    // HTTP/1.0 has no need of Host.
    let answer = front.raw(b"GET http://localhost:1/app HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.0 200 ") || answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let request = upstream.request();
    assert!(request.contains("\r\nhost: localhost:1\r\n"), "{request}");
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

/// Upstream that sends these bytes for each request of a connection, which stays open.
fn patient(response: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(ANY).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                while stream.peek(&mut [0]).is_ok_and(|n| n > 0) {
                    read_head(&mut stream);
                    // The front may have closed it.
                    let _ = stream.write_all(response.as_bytes());
                }
            });
        }
    });
    address
}

#[test]
fn more_than_a_response_is_of_no_other_request() {
    const ONE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    for behind in [
        "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npoisoned",
        "poisoned",
        "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\npoisoned",
    ] {
        let front = Front::start(Limits::default(), Some(patient(format!("{ONE}{behind}").leak())));
        block_on(async {
            for _ in 0..10 {
                for version in VERSIONS {
                    let answer = front.send(version, &Ask::get("/app")).await.unwrap();
                    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"hello"[..]), "{behind}");
                }
            }
        });
    }
}

#[test]
fn responses_that_lie_are_cut_or_refused() {
    const HELLO: &str = "\r\n\r\nhello";
    let large = format!("HTTP/1.1 200 OK\r\na: {}\r\ncontent-length: 5{HELLO}", "b".repeat(400_000));
    let fields = format!("HTTP/1.1 200 OK\r\n{}content-length: 5{HELLO}", "a: b\r\n".repeat(200));
    let interim = format!(
        "{}HTTP/1.1 200 OK\r\ncontent-length: 5{HELLO}",
        "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(50)
    );
    // Status and body of the client, or 0 for a response that breaks off.
    let cases = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello and more", 200, "hello"),
        ("HTTP/1.1 200 OK\r\n\r\nhello", 200, "hello"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello", 200, "hello"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 100\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            200,
            "hello",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            200,
            "hello",
        ),
        // Trailers of a connection would end a stream of HTTP/2.
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\
             transfer-encoding: chunked\r\nconnection: x\r\nx-sum: 1\r\n\r\n",
            200,
            "hello",
        ),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 502, "*"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n\
             5\r\nhello\r\n0\r\n\r\n",
            502,
            "*",
        ),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello", 204, ""),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\nhello", 304, ""),
        (&interim, 200, "hello"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!", 502, "*"),
        ("HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello", 502, "*"),
        ("HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello", 502, "*"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5, 6\r\n\r\nhello!", 502, "*"),
        ("HTTP/1.1 200 OK\r\na: b\r\n c\r\ncontent-length: 5\r\n\r\nhello", 502, "*"),
        ("HTTP/1.1 200 OK\r\na b\r\ncontent-length: 5\r\n\r\nhello", 502, "*"),
        ("HTTP/1.1 200 OK\r\na: b\0c\r\ncontent-length: 5\r\n\r\nhello", 502, "*"),
        ("HTTP/1.1 099 Low\r\ncontent-length: 5\r\n\r\nhello", 502, "*"),
        ("HTTP/1.1 2000 OK\r\ncontent-length: 5\r\n\r\nhello", 502, "*"),
        ("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nhello", 502, "*"),
        ("HTTP/3.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", 502, "*"),
        ("hello", 502, "*"),
        ("HTTP/1.1 200 OK\r\na: b", 502, "*"),
        ("HTTP/1.1 100 Continue\r\n\r\n", 502, "*"),
        (&large, 502, "*"),
        (&fields, 502, "*"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello", 0, "*"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", 0, "*"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\nhello\r\n0\r\n\r\n", 0, "*"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello\r\n0\r\n\r\n", 0, "*"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello", 0, "*"),
    ];
    let texts = cases.map(|(text, ..)| text.to_owned());
    let upstream = Upstream::start(move |line| {
        let index = line.split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
        texts[index.parse::<usize>().unwrap()].clone().into_bytes()
    });
    let front = Front::start(Limits::default(), Some(upstream.address));
    block_on(async {
        for (index, (text, status, body)) in cases.into_iter().enumerate() {
            let ask = Ask::get(&format!("/app/{index}"));
            if status == 0 {
                for version in VERSIONS {
                    let broken = front.send(version, &ask).await;
                    assert!(broken.is_err(), "{version} {text:.200} {broken:?}");
                }
                continue;
            }
            let answer = same(&front, &ask).await;
            assert_eq!(answer.status.as_u16(), status, "{text:.200} {answer:?}");
            assert!(body == "*" || answer.body == body, "{text:.200} {answer:?}");
            let length = answer.header("content-length");
            assert!(
                length.is_empty() || length == answer.body.len().to_string() || body.is_empty(),
                "{text:.200} {answer:?}"
            );
        }
        assert_eq!(same(&front, &Ask::new("HEAD", "/app/0")).await.body, "");
    });
}

#[test]
fn paths_do_not_leave_their_route() {
    let upstream = Upstream::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec());
    let front = Front::start(Limits::default(), Some(upstream.address));
    block_on(async {
        for path in [
            "/app/../secret",
            "/app/%2e%2e/secret",
            "/app/a/..%2f..%2fsecret",
            "/app/%252e%252e/secret",
            "/app/..%5csecret",
            "/app/..;/secret",
        ] {
            assert_eq!(same(&front, &Ask::get(path)).await.status.as_u16(), 400, "{path}");
        }
        for path in ["/apple", "/%61pp", "//app", "/"] {
            assert_eq!(same(&front, &Ask::get(path)).await.status.as_u16(), 404, "{path}");
        }
    });
    assert!(upstream.requests.try_recv().is_err());
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
