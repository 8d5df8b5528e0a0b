//! Shapes of requests that may be read in two ways: a route to an upstream forwards one request or none.

use braid_http::Limits;

use super::floods::{DATA, GOAWAY, HEADERS, OK, RST_STREAM, frame, http2, http3};
use super::support::{Front, Upstream, block_on, is_problem, status};

/// Upstream that answers each request with 200 and no content, and a plain front before it.
fn plain() -> (Upstream, Front) {
    let upstream = Upstream::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec());
    let front = Front::plain(Limits::default(), Some(upstream.address));
    (upstream, front)
}

/// Request with these lines after its `Host`, and what follows the empty line.
fn post(lines: &str, rest: &str) -> String {
    format!("POST /app HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n{rest}")
}

/// Request that a body smuggles.
const SECOND: &str = "GET /app/second HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn ambiguous_requests_are_refused() {
    let (upstream, front) = plain();
    let chunked = |rest: &str| post("Transfer-Encoding: chunked", &format!("{rest}{SECOND}"));
    let extension = format!("2;{}\r\nok\r\n0\r\n\r\n", "x".repeat(20_000));
    for (request, expected) in [
        (post("Content-Length: 0\r\nContent-Length: 46", SECOND), 400),
        (post("Content-Length: 46\r\nContent-Length: 0", SECOND), 400),
        (post("Content-Length: 0, 46", SECOND), 400),
        (post("Content-Length: +46", SECOND), 400),
        (post("Content-Length: 0x2e", SECOND), 400),
        (post("Content-Length: 4 6", SECOND), 400),
        (post("Content-Length: ", SECOND), 400),
        (post("Content-Length: 18446744073709551662", SECOND), 400),
        (post("Content-Length : 46", SECOND), 400),
        (post("Content-Length\t: 46", SECOND), 400),
        (post(" Content-Length: 46", SECOND), 400),
        (post("A: b\r\n Content-Length: 46", SECOND), 400),
        (post("A: b\r\n\tc", SECOND), 400),
        (post("A: b\rContent-Length: 46", SECOND), 400),
        (post("A: b\0Content-Length: 46", SECOND), 400),
        (post("A", SECOND), 400),
        (post(": b", SECOND), 400),
        (post("Transfer-Encoding: xchunked", SECOND), 400),
        (post("Transfer-Encoding: chunkedx", SECOND), 400),
        (post("Transfer-Encoding: \x0bchunked", SECOND), 400),
        (post("Transfer-Encoding:", SECOND), 400),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", SECOND), 400),
        (post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", SECOND), 501),
        (post("Transfer-Encoding: gzip, chunked", SECOND), 501),
        (post("Transfer-Encoding: chunked, chunked", SECOND), 501),
        ("POST /app HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 400),
        (chunked("2;a\nok\r\n0\r\n\r\n"), 400),
        (chunked("2\nok\r\n0\r\n\r\n"), 400),
        (chunked("0x2\r\nok\r\n0\r\n\r\n"), 400),
        (chunked("+2\r\nok\r\n0\r\n\r\n"), 400),
        (chunked("-2\r\nok\r\n0\r\n\r\n"), 400),
        (chunked("\r\nok\r\n0\r\n\r\n"), 400),
        (chunked("2\r\nokX\r\n0\r\n\r\n"), 400),
        (chunked("10000000000000002\r\nok\r\n0\r\n\r\n"), 400),
        (chunked("2\r\nok\r\n0\r\nA b\r\n\r\n"), 400),
        (chunked(&extension), 400),
        ("GET  /app HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        ("GET /app b HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        ("GET /app\x7f HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        ("GET app HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), 400),
        ("GET /app HTTP/2.0\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        ("GET /app HTTP/1.2\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        ("GET /app HTTP/1.1\r\nHost: localhost, evil.example\r\nConnection: close\r\n\r\n".to_owned(), 400),
        ("G\tT /app HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 400),
    ] {
        // Another request behind each of them must not be answered, as nothing tells where it begins.
        let answer = front.raw(format!("{request}{SECOND}").as_bytes());
        assert_eq!(status(&answer), expected, "{request:.200} {answer}");
        assert!(is_problem(&answer), "{request:.200} {answer}");
        assert!(upstream.requests.try_recv().is_err(), "{request:.200}");
    }
}

#[test]
fn forwarded_requests_are_framed_anew() {
    let (upstream, front) = plain();
    for (request, line, body) in [
        (post("Content-Length: 2\r\nContent-Length: 2", "ok"), "content-length: 2", "ok"),
        (post("Transfer-Encoding:\tchunked", "2;a=b\r\nok\r\n0\r\n\r\n"), "transfer-encoding: chunked", "ok"),
        (
            post("TRANSFER-ENCODING: CHUNKED", "02\r\nok\r\n0\r\nContent-Length: 9\r\n\r\n"),
            "transfer-encoding: chunked",
            "ok",
        ),
        // Lines that end with LF alone are lines. RFC 9112, 2.2
        (
            "POST /app HTTP/1.1\nHost: localhost\nContent-Length: 2\nA: b\n\nok".to_owned(),
            "content-length: 2",
            "ok",
        ),
        // Fields that a client must not declare its connection's own.
        (
            post("Connection: content-length, host, x-forwarded-for\r\nContent-Length: 2", "ok"),
            "content-length: 2",
            "ok",
        ),
        (
            post("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk", ""),
            "host: localhost",
            "",
        ),
        (
            "POST http://localhost/app HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nok".to_owned(),
            "content-length: 2",
            "ok",
        ),
    ] {
        let close = "GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = front.raw(format!("{request}{close}").as_bytes());
        assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{request} {answer}");
        let received = upstream.request();
        let (head, received_body) = received.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("post /app http/1.1\r\n"), "{received}");
        assert!(!head.replace("\r\n", "").contains(['\r', '\n']), "{received:?}");
        for line in [line, "host: localhost", "x-forwarded-for: 127.0.0.1"] {
            assert_eq!(head.lines().filter(|found| *found == line).count(), 1, "{line} {received}");
        }
        let framing = head
            .lines()
            .filter(|line| line.starts_with("content-length:") || line.starts_with("transfer-encoding:"));
        assert!(framing.count() <= 1 && !head.contains("upgrade"), "{received}");
        assert_eq!(received_body, body, "{received}");
        assert!(upstream.requests.try_recv().is_err(), "{request}");
    }
}

/// Field with a literal name, of HPACK. RFC 7541, 6.2.2
fn field2(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// Field line of QPACK with a literal name. RFC 9204, 4.5.6
fn field3(name: &str, value: &str) -> Vec<u8> {
    let length = match name.len() {
        length @ ..7 => vec![0x20 | length as u8],
        length => vec![0x27, (length - 7) as u8],
    };
    [&length, name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// H3_MESSAGE_ERROR, with which the server resets a stream.
const MESSAGE_ERROR: &str = "StreamTerminated { error_code: 270 }";

/// Fields that no request of HTTP/2 and 3 has, or that mean another request on HTTP/1.1.
const WRONG: [(&str, &str); 22] = [
    ("transfer-encoding", "chunked"),
    ("connection", "x-forwarded-for"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "close"),
    ("upgrade", "websocket"),
    ("te", "gzip"),
    ("content-length", "3"),
    ("content-length", "+2"),
    ("content-length", "2, 2"),
    ("host", "evil.example"),
    (":path", "/app/second"),
    (":unknown", "a"),
    ("Upper", "a"),
    ("a b", "c"),
    ("a:", "c"),
    ("a\r\nb", "c"),
    ("", "c"),
    ("a", "b\r\nc: d"),
    ("a", "b\nc"),
    ("a", "b\0c"),
    ("content-length ", "2"),
    (" a", "b"),
];

/// Request of HTTP/2 with a body, and the field that a test adds.
fn ask2(front: &Front, path: &str, added: Option<(&str, &str)>) -> Vec<(u8, u32, Vec<u8>)> {
    let mut block =
        [&b"\x83\x86\x04"[..], &[path.len() as u8], path.as_bytes(), b"\x41\x09localhost"].concat();
    block.extend(added.map(|(name, value)| field2(name, value)).unwrap_or_default());
    let request = [frame(HEADERS, 4, 1, &block), frame(DATA, 1, 1, b"ok")].concat();
    let ends_stream =
        |kind, flags: u8| kind == RST_STREAM || (matches!(kind, HEADERS | DATA) && flags & 1 == 1);
    http2(front, &request, ends_stream)
}

/// Request of HTTP/3 with a body, and the field that a test adds.
async fn ask3(front: &Front, path: &str, added: Option<(&str, &str)>) -> Result<Vec<u8>, String> {
    let mut block =
        [&b"\0\0\xd4\xd7\x51"[..], &[path.len() as u8], path.as_bytes(), b"\x50\x09localhost"].concat();
    block.extend(added.map(|(name, value)| field3(name, value)).unwrap_or_default());
    let head = [&[1, 0x40 | (block.len() >> 8) as u8, block.len() as u8], &block[..]].concat();
    http3(front, &[&head, &b"\0\x02ok"[..]].concat()).await
}

#[test]
fn requests_of_other_versions_cannot_break_out_of_their_fields() {
    let upstream = Upstream::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec());
    let front = Front::plain(Limits::default(), Some(upstream.address));
    let encrypted = Front::start(Limits::default(), Some(upstream.address));
    let paths = ["/app b", "/app\r\nA: b", "/app\0", "app", "", "//evil.example/app\t"];
    let cases = WRONG.map(|field| (Some(field), "/app"));
    let cases = cases.into_iter().chain(paths.map(|path| (None, path))).collect::<Vec<_>>();
    // A request with nothing wrong in it reaches the upstream, as one request: before and after the others.
    let accepted = async || {
        for added in [None, Some(("a", "b")), Some(("content-length", "2")), Some(("te", "trailers"))] {
            let received = ask2(&front, "/app", added);
            assert!(
                received.iter().any(|(kind, _, block)| *kind == HEADERS && block[0] == OK),
                "{received:?}"
            );
            let answer = ask3(&encrypted, "/app", added).await.unwrap();
            // HEADERS with `:status` 200 of the static table of QPACK.
            assert!(answer[0] == 1 && answer.windows(3).any(|bytes| bytes == b"\0\0\xd9"), "{answer:x?}");
            for _ in 0..2 {
                let request = upstream.request();
                assert!(
                    request.starts_with("post /app http/1.1\r\n") && request.ends_with("ok"),
                    "{request}"
                );
            }
        }
        assert!(upstream.requests.try_recv().is_err());
    };
    block_on(async {
        accepted().await;
        for (wrong, path) in &cases {
            let received = ask2(&front, path, *wrong);
            let is_refused = received.iter().any(|(kind, _, payload)| match *kind {
                RST_STREAM | GOAWAY => true,
                DATA => String::from_utf8_lossy(payload).contains("\"status\":4"),
                _ => false,
            });
            assert!(is_refused, "{wrong:?} {path:?} {received:?}");
        }
        // `h3` takes the last one of two, as the only one.
        for (wrong, path) in cases.iter().filter(|(wrong, _)| *wrong != Some((":path", "/app/second"))) {
            let answer = ask3(&encrypted, path, *wrong).await;
            let is_refused = match &answer {
                Ok(answer) => String::from_utf8_lossy(answer).contains("\"status\":4"),
                Err(error) => error == MESSAGE_ERROR,
            };
            assert!(is_refused, "{wrong:?} {path:?} {answer:?}");
        }
        // A body that is shorter or longer than it says may have begun to be forwarded, but was not complete.
        let complete: Vec<_> = upstream.requests.try_iter().collect();
        assert!(complete.is_empty(), "{complete:?}");
        accepted().await;
    });
}
