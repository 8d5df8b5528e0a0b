//! HTTP client: requests, hostile servers, limits of time and number, TLS, keep-alive.

use std::sync::Arc;
use std::time::Duration;

use braid_access::http::{
    DEFAULT_TIMEOUT, Endpoint, HttpClient, HttpError, HttpOptions, HttpOptionsError, HttpProblem,
    SecretHeader,
};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, advance, pause, resume, sleep};

use crate::server::{LOOPBACK, Server, client, options, patient, raw, reply};

fn header(name: &str, value: &str) -> SecretHeader {
    SecretHeader { name: name.to_owned(), value: value.to_owned() }
}

#[tokio::test]
async fn requests_are_complete_and_reuse_a_connection() {
    let mut server = Server::start(|| async { reply(418, "body") }).await;
    let headers = vec![header("Authorization", "Bearer s3cret"), header("X-A", "1"), header("x-a", "2")];
    let options = HttpOptions { headers, ..options(&format!("{}?key=s3cret", server.url())) };
    assert!(!format!("{options:?}").contains("s3cret"), "{options:?}");
    let client = patient(options);
    assert_eq!(format!("{client:?}"), format!("HttpClient({})", server.url()));
    for body in [None, Some(Bytes::from_static(b"{}")), None] {
        let response = match body.clone() {
            None => client.get().await,
            Some(body) => client.post_json(body).await,
        };
        let response = response.expect("a response");
        assert_eq!((response.status, &response.body[..]), (418, &b"body"[..]));
        assert_eq!(format!("{response:?}"), "status 418, 4 bytes");
        let received = server.next().await;
        let text = |name| {
            received
                .headers
                .get_all(name)
                .iter()
                .map(|value| value.to_str().expect("text"))
                .collect::<Vec<_>>()
        };
        assert_eq!(received.method.as_str(), if body.is_some() { "POST" } else { "GET" });
        assert_eq!(received.uri, "/auth?key=s3cret");
        assert_eq!(text("host"), [server.address.to_string()]);
        assert_eq!(text("authorization"), ["Bearer s3cret"]);
        assert_eq!(text("x-a"), ["1", "2"]);
        assert_eq!(text("accept"), ["application/json"]);
        assert_eq!(text("user-agent"), ["braidmq"]);
        let kind: &[&str] = if body.is_some() { &["application/json"] } else { &[] };
        assert_eq!(text("content-type"), kind);
        assert_eq!(received.body, body.unwrap_or_default());
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn wrong_headers_are_refused_without_their_values() {
    let cases = [
        ("bad name", "s3cret", "\"bad name\" cannot be the name of a header"),
        ("", "s3cret", "\"\" cannot be the name of a header"),
        ("X-Key", "s3cret\r\nX: y", "the value of the header X-Key has characters"),
        ("X-Key", "s3cret\0", "the value of the header X-Key has characters"),
        ("Content-Length", "5", "the header Content-Length is set by the client itself"),
        ("transfer-encoding", "chunked", "the header transfer-encoding is set by the client itself"),
        ("Host", "s3cret", "the header Host is set by the client itself"),
    ];
    for (name, value, expected) in cases {
        let headers = vec![header(name, value)];
        let error = HttpClient::new(HttpOptions { headers, ..options("http://localhost/") }).expect_err(name);
        let text = error.to_string();
        assert!(text.starts_with(expected) && !text.contains("s3cret") && !text.contains('\n'), "{text}");
    }
}

/// Reads until the end of the head of a request.
async fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a request"));
    }
}

/// Error of a request to a server that sends `response`, repeats `tail` until the client leaves, or else closes.
async fn failure(response: Vec<u8>, tail: &'static [u8]) -> HttpError {
    let url = raw(move |_, mut stream| {
        let response = response.clone();
        async move {
            read_head(&mut stream).await;
            let mut sent = stream.write_all(&response).await;
            while sent.is_ok() && !tail.is_empty() {
                sent = stream.write_all(tail).await;
            }
        }
    });
    let url = url.await;
    let error = client(&format!("{url}?key=s3cret")).get().await.expect_err("no valid answer");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("{url}: ")) && !text.contains('\n') && !text.contains("s3cret"),
        "{text}"
    );
    error
}

#[tokio::test]
async fn malformed_and_large_responses_are_errors() {
    let head = |head: &str| format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes();
    let chunk = vec![b's'; 1 << 16];
    let chunk: &'static [u8] = [b"10000\r\n", &chunk[..], b"\r\n"].concat().leak();
    let early_end =
        HttpProblem::Broken("the server closed the connection before the end of its answer".to_owned());
    let not_http =
        HttpProblem::Broken("the answer is not HTTP/1.1; is this the port of another service?".to_owned());
    let too_large = HttpProblem::BodyTooLarge { limit: 64 << 10 };
    let cases: Vec<(Vec<u8>, &'static [u8], HttpProblem)> = vec![
        (Vec::new(), b"", early_end.clone()),
        (b"HTTP/1.1 200 OK\r\nContent-Le".to_vec(), b"", early_end),
        (b"220 mail s3cret ready\r\n\r\n".to_vec(), b"", not_http.clone()),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), b"", not_http.clone()),
        (b"\x15\x03\x01\0\x02\x02\x46".to_vec(), b"", not_http.clone()),
        (head("Content-Length: 1\r\nContent-Length: 2\r\n"), b"", not_http.clone()),
        (head("Content-Length: s3cret\r\n"), b"", not_http.clone()),
        (head("A B\r\n"), b"", not_http),
        (head("Content-Length: 104857600\r\n"), b"s3cret", too_large.clone()),
        (head("Content-Length: 65537\r\n"), b"", too_large.clone()),
        (head("Transfer-Encoding: chunked\r\n"), chunk, too_large.clone()),
        (head(""), b"s3cret", too_large),
        (b"HTTP/1.1 200 OK\r\nA: ".to_vec(), b"s3cret", HttpProblem::HeadTooLarge),
        (b"HTTP/1.1 200 OK\r\n".to_vec(), b"A: s3cret\r\n", HttpProblem::HeadTooLarge),
        (head(&"A: b\r\n".repeat(200)), b"", HttpProblem::HeadTooLarge),
    ];
    for (response, tail, expected) in cases {
        let text = String::from_utf8_lossy(&response[..response.len().min(60)]).into_owned();
        assert_eq!(failure(response, tail).await.problem, expected, "{text}");
    }
    for (response, expected) in [
        (head("Content-Length: 10\r\n\r\nabc"), "the connection broke"),
        (head("Transfer-Encoding: chunked\r\n\r\nzz\r\nabc"), "the connection broke"),
    ] {
        let text = failure(response, b"").await.problem.to_string();
        assert!(text.starts_with(expected), "{text}");
    }
}

#[tokio::test]
async fn body_may_be_as_large_as_its_limit() {
    let server = Server::start(|| async { reply(200, &"x".repeat(64 << 10)) }).await;
    assert_eq!(client(&server.url()).get().await.expect("a response").body.len(), 64 << 10);
    let small = patient(HttpOptions { max_body: (64 << 10) - 1, ..options(&server.url()) });
    let problem = small.get().await.expect_err("too large").problem;
    assert_eq!(problem, HttpProblem::BodyTooLarge { limit: (64 << 10) - 1 });
}

/// Slow servers, with a byte every second: the limit is one for the whole request.
#[tokio::test(start_paused = true)]
async fn slow_servers_time_out() {
    let cases: [(&str, &[u8], &[u8]); 5] = [
        ("http", b"", b""),
        ("http", b"HTTP/1.1 200 OK\r\nA: ", b"b"),
        ("http", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" "),
        // No TLS handshake.
        ("https", b"", b""),
    ];
    let folder = tempfile::tempdir().expect("folder");
    let ca = braid_transport::self_signed(folder.path(), &["localhost".to_owned()]).expect("certificate");
    for (scheme, first, drip) in cases {
        let url = raw(move |_, mut stream| async move {
            let mut sent = stream.write_all(first).await;
            while sent.is_ok() {
                sleep(Duration::from_secs(1)).await;
                sent = stream.write_all(drip).await;
            }
        });
        let mut options = options(&url.await.replace("http", scheme));
        options.tls.ca_files = vec![ca.certificate.clone()];
        let began = Instant::now();
        let error = HttpClient::new(options).expect("options").get().await.expect_err("too slow");
        assert_eq!(error.problem, HttpProblem::Timeout(DEFAULT_TIMEOUT), "{first:?}");
        assert!(error.to_string().ends_with(": no complete answer within 5s"), "{error}");
        assert_eq!(began.elapsed().as_secs(), 5, "{first:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_other_requests_is_part_of_the_time() {
    let url = raw(|_, stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let client = HttpClient::new(HttpOptions { max_concurrent: 1, ..options(&url.await) }).expect("options");
    let began = Instant::now();
    let (first, second) = tokio::join!(client.get(), client.get());
    for result in [first, second] {
        assert_eq!(result.expect_err("no answer").problem, HttpProblem::Timeout(DEFAULT_TIMEOUT));
    }
    assert_eq!(began.elapsed().as_secs(), 5);
}

#[tokio::test]
async fn requests_beyond_the_limits_fail_at_once_and_dropped_ones_make_room() {
    let answers = Arc::new(Semaphore::new(0));
    let permits = Arc::clone(&answers);
    let mut server = Server::start(move || {
        let permits = Arc::clone(&permits);
        async move {
            permits.acquire().await.expect("open").forget();
            reply(200, "")
        }
    })
    .await;
    let options = HttpOptions { max_concurrent: 2, max_waiting: 1, ..options(&server.url()) };
    let client = Arc::new(patient(options));
    let spawn = || {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.get().await.map(|response| response.status) })
    };
    let (first, second) = (spawn(), spawn());
    server.next().await;
    server.next().await;
    let third = spawn();
    // The third waits from its first poll on.
    tokio::task::yield_now().await;
    let busy = client.get().await.expect_err("too many");
    assert_eq!(busy.problem, HttpProblem::Busy);
    assert_eq!(server.count(), 0);
    first.abort();
    assert!(first.await.expect_err("aborted").is_cancelled());
    // The place of the first is the third's now.
    server.next().await;
    assert_eq!(server.connections(), 3);
    let fourth = spawn();
    tokio::task::yield_now().await;
    assert_eq!(client.get().await.expect_err("too many").problem, HttpProblem::Busy);
    answers.add_permits(10);
    for task in [second, third, fourth] {
        assert_eq!(task.await.expect("no panic"), Ok(200));
    }
}

#[tokio::test]
async fn dropped_requests_and_clients_close_their_connections() {
    let (sender, mut ends) = mpsc::unbounded_channel();
    let url = raw(move |_, mut stream| {
        let sender = sender.clone();
        async move {
            read_head(&mut stream).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            // The second request of a connection, and then its end.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            let _ = sender.send(rest.len());
        }
    });
    let client = client(&url.await);
    client.get().await.expect("a response");
    {
        let mut second = Box::pin(client.get());
        assert!((&mut second).now_or_never().is_none());
    }
    assert!(ends.recv().await.expect("the server runs") > 0, "the second request was sent");
    client.get().await.expect("a response");
    drop(client);
    assert_eq!(ends.recv().await, Some(0));
}

#[tokio::test]
async fn connections_that_the_server_closes_are_replaced() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    const LAST: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    // Answers on each connection; behind them the server closes it, or reads one more request before.
    let cases = [
        (ANSWER, false, true),
        (ANSWER, true, true),
        (LAST, false, true),
        (b"nonsense\r\n\r\n", false, false),
    ];
    for (answer, reads_more, is_valid) in cases {
        let url = raw(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(answer).await.expect("the client reads");
            if reads_more {
                read_head(&mut stream).await;
            }
        });
        let client = client(&url.await);
        for _ in 0..3 {
            assert_eq!(client.get().await.is_ok(), is_valid, "{answer:?}");
        }
    }
    // A new connection is not tried again, and neither is one whose bytes are not HTTP.
    let (sender, mut numbers) = mpsc::unbounded_channel();
    let url = raw(move |number, mut stream| {
        let _ = sender.send(number);
        async move {
            read_head(&mut stream).await;
            if number == 0 {
                stream.write_all(ANSWER).await.expect("the client reads");
                read_head(&mut stream).await;
                stream.write_all(b"nonsense\r\n\r\n").await.expect("the client reads");
            }
        }
    });
    let client = client(&url.await);
    assert!(client.get().await.is_ok());
    assert!(client.get().await.expect_err("nonsense").to_string().contains("not HTTP"));
    assert!(client.get().await.expect_err("closed").to_string().contains("closed the connection"));
    let seen: Vec<_> = std::iter::from_fn(|| numbers.try_recv().ok()).collect();
    assert_eq!(seen, [0, 1]);
}

#[tokio::test]
async fn connections_are_not_reused_after_four_seconds() {
    let server = Server::start(|| async { reply(200, "") }).await;
    let client = client(&server.url());
    for (seconds, connections) in [(0, 1), (3, 1), (4, 2)] {
        pause();
        advance(Duration::from_secs(seconds)).await;
        resume();
        client.get().await.expect("a response");
        assert_eq!(server.connections(), connections, "{seconds} s");
    }
}

#[tokio::test]
async fn https_needs_a_trusted_certificate_for_the_host() {
    let (folder, other) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let server = Server::secure(folder.path());
    let plain = Server::start(|| async { reply(200, "") }).await;
    braid_transport::self_signed(other.path(), &["localhost".to_owned()]).expect("certificate");
    let port = server.address.port();
    let get = async |host: &str, port: u16, ca: &std::path::Path| {
        let mut options = options(&format!("https://{host}:{port}/"));
        options.tls.ca_files = vec![ca.join("cert.pem")];
        let body = patient(options).get().await.map(|response| response.body);
        body.map_err(|error| error.to_string())
    };
    assert_eq!(get("localhost", port, folder.path()).await, Ok(Bytes::from_static(b"secure")));
    let cases = [
        (
            "localhost",
            port,
            other.path(),
            "the certificate of localhost is not trusted: configure the file with its CA",
        ),
        ("127.0.0.1", port, folder.path(), "the certificate of 127.0.0.1 is for another name"),
        ("localhost", plain.address.port(), folder.path(), "TLS with localhost failed: "),
    ];
    for (host, port, ca, expected) in cases {
        let error = get(host, port, ca).await.expect_err("no TLS");
        assert!(error.starts_with(&format!("https://{host}:{port}/: {expected}")), "{error}");
    }
    let mut options = options("https://localhost/");
    options.tls.ca_files = vec![folder.path().join("missing.pem")];
    let error = HttpClient::new(options).expect_err("no file");
    assert!(
        matches!(error, HttpOptionsError::Certificate(_)) && error.to_string().contains("missing.pem"),
        "{error}"
    );
}

#[tokio::test]
async fn refused_connections_and_unknown_hosts_are_errors() {
    let listener = TcpListener::bind(LOOPBACK).await.expect("bind");
    let address = listener.local_addr().expect("address");
    drop(listener);
    let error = client(&format!("http://{address}/")).get().await.expect_err("refused").to_string();
    let expected =
        format!("http://{address}/: cannot connect to 127.0.0.1:{}: nothing listens", address.port());
    assert!(error.starts_with(&expected), "{error}");
    // RFC 6761 reserves this domain for names that never exist.
    let endpoint = Endpoint::parse("http://auth.invalid/", true).expect("a URL");
    let error = patient(HttpOptions::new(endpoint)).get().await.expect_err("no host").to_string();
    assert!(error.starts_with("http://auth.invalid/: cannot find the address of auth.invalid: "), "{error}");
}
