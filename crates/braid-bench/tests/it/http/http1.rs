use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_bench::http::{
    ConnectionRate, Counts, Expectation, Extent, HttpLoad, HttpSummary, Progress, Protocol, Timeouts, run,
};
use tokio::net::TcpListener;

use super::rig::{Reply, counts, http1, load, measure};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";

fn bytes(text: &str) -> Reply {
    Reply::Bytes(text.as_bytes().to_vec())
}

/// Result of ten requests, five of them pipelined.
async fn ten(reply: fn(usize) -> Reply) -> HttpSummary {
    measure(load(http1(reply).await, Protocol::Http1, 10)).await
}

fn error(summary: &HttpSummary) -> (&str, u64) {
    summary.errors.first().map(|error| (&*error.what, error.clients)).unwrap_or_default()
}

#[tokio::test]
async fn responses_are_counted_by_their_status_and_bytes() {
    let summary = ten(|_| bytes(OK)).await;
    assert_eq!((summary.requests, &*summary.protocol), (counts(10, 0, 0), "http/1.1"));
    let traffic = summary.traffic;
    assert_eq!((traffic.bytes, traffic.header_bytes, traffic.body_bytes), (10 * OK.len() as u64, 150, 30));
    assert_eq!((summary.request_quantiles_us.unwrap().count, summary.errors.len()), (10, 0));
    assert!(summary.connect_us.max > 0.0 && summary.first_byte_us.min >= summary.connect_us.min);
    assert!(summary.requests_per_second > 0.0 && summary.client_requests_per_second.within_sd > 99.0);
    let summary = ten(|_| Reply::Dribble(OK)).await;
    assert_eq!(summary.requests, counts(10, 0, 0));
    let summary = ten(|_| bytes("HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n")).await;
    assert_eq!((summary.requests, summary.requests.completed()), (counts(0, 10, 0), 10));
    let redirect = ten(|_| bytes("HTTP/1.1 304 Same\r\n\r\n")).await.requests;
    assert_eq!((redirect.succeeded, redirect.status), (10, [0, 10, 0, 0]));
    let refusal = ten(|_| bytes("HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n")).await.requests;
    assert_eq!((refusal.failed, refusal.errored, refusal.status), (10, 0, [0, 0, 10, 0]));
}

/// Answers of a server, the number of whole ones, and the begin of the error.
type Case = (fn(usize) -> Reply, u64, &'static str);

#[tokio::test]
async fn a_lost_connection_fails_the_rest() {
    let cases: [Case; 7] = [
        (|n| if n < 5 { Reply::Silence } else { Reply::Close }, 0, "the server closed the connection before"),
        (|_| bytes("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), 1, "the response is no HTTP"),
        (|_| bytes("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc"), 1, "the response is no HTTP"),
        (
            |n| if n < 5 { Reply::Silence } else { bytes(&OK.repeat(6)) },
            5,
            "there is a response without a request",
        ),
        (
            |n| if n == 1 { bytes("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc") } else { Reply::Close },
            0,
            "the connection ended within",
        ),
        (|_| bytes("SMTP\r\n\r\n"), 0, "the response is no HTTP"),
        (
            |_| bytes("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            0,
            "the response has no clear",
        ),
    ];
    for (at, (reply, done, what)) in cases.into_iter().enumerate() {
        let summary = ten(reply).await;
        let found = summary.requests;
        assert_eq!(
            (found.done, found.succeeded, found.failed, found.errored),
            (done, done, 10 - done, 10 - done),
            "{at}"
        );
        assert!(error(&summary).0.starts_with(what) && error(&summary).1 == 1, "{at}: {:?}", summary.errors);
    }
}

#[tokio::test]
async fn a_server_that_announces_its_close_gets_another_connection() {
    const LAST: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na";
    // All five requests have arrived before four of them are answered at once: one is lost with the connection.
    let pipelined =
        ten(|n| if n < 5 { Reply::Silence } else { bytes(&(OK.repeat(3) + LAST)) }).await.requests;
    assert_eq!(pipelined, Counts { connections: 2, ..counts(8, 0, 2) });
    let one = load(http1(|_| bytes(LAST)).await, Protocol::Http1, 10);
    let single = measure(HttpLoad { concurrent: 1, ..one }).await.requests;
    assert_eq!(single, Counts { connections: 10, ..counts(10, 0, 0) });
}

#[tokio::test]
async fn no_connection_fails_all_at_once() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let mut refused = load(closed, Protocol::Http1, 10);
    (refused.clients, refused.threads) = (3, 2);
    let summary = measure(refused.clone()).await;
    assert_eq!(summary.requests, Counts { started: 0, connections: 0, ..counts(0, 0, 10) });
    assert!(error(&summary).0.contains("nothing listens on") && error(&summary).1 == 3);
    // The next address of the host is tried.
    refused.route.addresses.push(http1(|_| bytes(OK)).await);
    assert_eq!(measure(refused).await.requests, Counts { connections: 3, ..counts(10, 0, 0) });
}

#[tokio::test]
async fn silence_ends_at_a_time_limit() {
    let server = http1(|_| Reply::Silence).await;
    let limit = Some(Duration::from_millis(20));
    let cases = [
        (Timeouts { active: limit, inactive: None }, "the connection was open for 0.02 s"),
        (Timeouts { active: None, inactive: limit }, "no byte was received or sent for 0.02 s"),
    ];
    for (timeouts, what) in cases {
        let summary = measure(HttpLoad { timeouts, ..load(server, Protocol::Http1, 10) }).await;
        assert_eq!(summary.requests, Counts { started: 5, timed_out: 5, ..counts(0, 0, 10) });
        assert_eq!(error(&summary), (what, 1));
    }
}

#[tokio::test]
async fn wrong_bodies_are_counted() {
    let server = http1(|n| if n % 5 == 0 { bytes(&OK.replace("abc", "abd")) } else { bytes(OK) }).await;
    // `printf abc | sha256sum`
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let sha256 = Expectation::digest(digest).ok();
    for (expectation, wrong) in [
        (Expectation { bytes: Some(3), sha256: None }, 0),
        (Expectation { bytes: Some(4), sha256: None }, 10),
        (Expectation { bytes: None, sha256 }, 2),
    ] {
        let found = measure(HttpLoad { expectation, ..load(server, Protocol::Http1, 10) }).await.requests;
        assert_eq!(found, Counts { wrong_bodies: wrong, ..counts(10, 0, 0) });
    }
    let broken = http1(|_| bytes("HTTP/1.1 500 x\r\nContent-Length: 1\r\n\r\nx")).await;
    let expectation = Expectation { bytes: Some(4), sha256: None };
    let found = measure(HttpLoad { expectation, ..load(broken, Protocol::Http1, 10) }).await.requests;
    assert_eq!(found.wrong_bodies, 0, "a failed request is none of a wrong body");
}

#[tokio::test]
async fn bodies_are_posted_one_after_the_other() {
    // The next head ends after the body, which has no empty line.
    let server = http1(|_| bytes(OK)).await;
    let mut posts = load(server, Protocol::Http1, 10);
    posts.request = posts.request.post(vec![b'x'; 100_000].into());
    assert_eq!(measure(posts).await.requests, counts(10, 0, 0));
}

#[tokio::test]
async fn a_duration_counts_what_began_in_it() {
    let server = http1(|_| bytes(OK)).await;
    let (main, warm_up) = (Duration::from_millis(200), Duration::from_millis(100));
    let mut timed =
        HttpLoad { extent: Extent::Duration { main, warm_up }, ..load(server, Protocol::Http1, 1) };
    (timed.clients, timed.threads) = (2, 2);
    let summary = measure(timed).await;
    let found = summary.requests;
    assert!(found.done > 0 && found.total == found.done && found.succeeded == found.done, "{found:?}");
    assert!((found.done..=found.done + 10).contains(&found.started) && found.failed == 0, "{found:?}");
    assert!((0.2..5.0).contains(&summary.measured_seconds) && summary.seconds >= 0.3, "{summary:?}");
    assert_eq!(summary.request_quantiles_us.unwrap().count, found.done);
}

#[tokio::test]
async fn a_warm_up_counts_nothing() {
    static ANSWERED: AtomicUsize = AtomicUsize::new(0);
    let server = http1(|_| {
        ANSWERED.fetch_add(1, Ordering::Relaxed);
        bytes(OK)
    })
    .await;
    let (main, warm_up) = (Duration::from_secs(60), Duration::from_secs(60));
    let timed = HttpLoad { extent: Extent::Duration { main, warm_up }, ..load(server, Protocol::Http1, 1) };
    let stop = async {
        while ANSWERED.load(Ordering::Relaxed) < 50 {
            tokio::task::yield_now().await;
        }
    };
    let summary = run(timed, Progress::new(1), stop).await.unwrap();
    assert_eq!(summary.requests, Counts { connections: 1, ..Counts::default() });
    assert_eq!((summary.traffic.bytes, summary.request_quantiles_us), (0, None));
}

#[tokio::test]
async fn connections_begin_at_their_rate() {
    let server = http1(|_| bytes(OK)).await;
    let rate = Some(ConnectionRate { connections: 1, period: Duration::from_millis(30) });
    let summary = measure(HttpLoad { clients: 4, rate, ..load(server, Protocol::Http1, 10) }).await;
    assert_eq!(summary.requests, Counts { connections: 4, ..counts(10, 0, 0) });
    assert!(summary.seconds >= 0.09, "{}", summary.seconds);
}

#[tokio::test]
async fn a_stopped_run_leaves_requests_open() {
    let server: SocketAddr = http1(|n| if n < 3 { bytes(OK) } else { Reply::Silence }).await;
    let progress = Progress::new(1);
    let stop = async {
        while progress.done() < 2 {
            tokio::task::yield_now().await;
        }
    };
    let summary = run(load(server, Protocol::Http1, 10), progress.clone(), stop).await.unwrap();
    assert_eq!(summary.requests, Counts { total: 10, started: 7, ..counts(2, 0, 0) });
}
