use std::net::SocketAddr;
use std::time::Duration;

use braid_bench::http::{Counts, Expectation, HttpLoad, HttpSummary, Protocol, Timeouts};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderValue, Response, StatusCode};

use super::rig::{counts, load, measure, serve};

/// Answer to a stream.
#[derive(Clone, Copy)]
enum Reply {
    Status(u16),
    /// A body of three bytes, and a length.
    Length(u64),
    Reset,
    /// GOAWAY without error before the response; streams that are opened after it are not answered.
    Leave,
    /// The TCP connection is closed.
    Close,
    Silence,
}

/// Server whose answer to stream `n` of a connection, from 1, is `reply(n)`.
async fn server(reply: fn(usize) -> Reply) -> SocketAddr {
    serve(move |io| async move {
        let mut connection = h2::server::handshake(io).await.expect("HTTP/2");
        let (mut number, mut open) = (0, Vec::new());
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            number += 1;
            let mut response = Response::new(());
            match reply(number) {
                Reply::Status(status) => {
                    *response.status_mut() = StatusCode::from_u16(status).expect("a status")
                }
                Reply::Length(length) => {
                    response.headers_mut().insert("content-length", HeaderValue::from(length));
                }
                Reply::Leave => connection.graceful_shutdown(),
                Reply::Reset => {
                    respond.send_reset(Reason::INTERNAL_ERROR);
                    continue;
                }
                Reply::Silence => {
                    open.push(respond);
                    continue;
                }
                Reply::Close => return,
            }
            tokio::spawn(answer(request.into_body(), respond, response));
        }
    })
    .await
}

async fn answer(mut body: RecvStream, mut respond: SendResponse<Bytes>, response: Response<()>) {
    while let Some(bytes) = body.data().await {
        let _ = body.flow_control().release_capacity(bytes.expect("a body").len());
    }
    let mut body = respond.send_response(response, false).expect("an open stream");
    body.send_data(Bytes::from_static(b"abc"), true).expect("an open stream");
}

/// Result of ten requests, five of them at a time.
async fn ten(reply: fn(usize) -> Reply) -> HttpSummary {
    measure(load(server(reply).await, Protocol::Http2, 10)).await
}

#[tokio::test]
async fn responses_are_counted_by_their_status_and_bytes() {
    let summary = ten(|_| Reply::Length(3)).await;
    assert_eq!((summary.requests, &*summary.protocol), (counts(10, 0, 0), "h2c"));
    let traffic = summary.traffic;
    // `:status 200` and `content-length 3`; afterwards two indexed fields [RFC 7541, 6.1].
    assert_eq!((traffic.body_bytes, traffic.plain_header_bytes), (30, 250));
    assert!((20..80).contains(&traffic.header_bytes) && traffic.space_savings() > 60.0, "{traffic:?}");
    assert!(traffic.bytes >= traffic.header_bytes + 30 + 20 * 9, "{traffic:?}");
    let summary = ten(|n| Reply::Status(if n % 2 == 0 { 200 } else { 500 })).await;
    assert_eq!(summary.requests, counts(5, 5, 0));
}

#[tokio::test]
async fn a_reset_stream_is_done_and_errored() {
    let found = ten(|n| if n % 2 == 0 { Reply::Reset } else { Reply::Status(200) }).await.requests;
    assert_eq!(found, Counts { done: 10, ..counts(5, 0, 5) });
    let lies = ten(|_| Reply::Length(9)).await.requests;
    assert_eq!(lies, Counts { done: 10, ..counts(0, 0, 10) });
}

#[tokio::test]
async fn goaway_fails_what_is_not_answered_and_the_rest() {
    let summary = ten(|n| if n == 4 { Reply::Leave } else { Reply::Status(200) }).await;
    let found = summary.requests;
    // Streams that were open before the GOAWAY came are answered.
    assert!((4..10).contains(&found.succeeded), "{found:?}");
    assert_eq!(
        (found.done, found.failed, found.errored),
        (found.succeeded, 10 - found.done, 10 - found.done)
    );
    assert_eq!((summary.errors.len(), summary.errors[0].clients), (1, 1), "{:?}", summary.errors);
}

#[tokio::test]
async fn a_lost_or_silent_connection_fails_the_rest() {
    let closed = ten(|n| if n < 5 { Reply::Silence } else { Reply::Close }).await;
    let expected = Counts { started: 5, ..counts(0, 0, 10) };
    assert_eq!(closed.requests, expected);
    let inactive = Some(Duration::from_millis(50));
    let silent = server(|_| Reply::Silence).await;
    let timeouts = Timeouts { active: None, inactive };
    let found = measure(HttpLoad { timeouts, ..load(silent, Protocol::Http2, 10) }).await.requests;
    assert_eq!(found, Counts { timed_out: 5, ..expected });
    // No HTTP/2 at all.
    let other = super::rig::http1(|_| super::rig::Reply::Bytes(b"HTTP/1.1 400 x\r\n\r\n".to_vec())).await;
    let summary = measure(load(other, Protocol::Http2, 10)).await;
    assert_eq!((summary.requests.done, summary.requests.errored), (0, 10), "{:?}", summary.errors);
}

#[tokio::test]
async fn bodies_are_posted_and_compared() {
    let mut posts = load(server(|_| Reply::Status(201)).await, Protocol::Http2, 10);
    posts.request = posts.request.post(vec![b'x'; 10_000].into());
    posts.expectation = Expectation { bytes: Some(4), sha256: None };
    (posts.clients, posts.threads) = (2, 2);
    assert_eq!(
        measure(posts).await.requests,
        Counts { wrong_bodies: 10, connections: 2, ..counts(10, 0, 0) }
    );
}
