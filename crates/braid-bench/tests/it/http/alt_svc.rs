//! Clients that obey `Alt-Svc`, between a server over TLS and one of HTTP/3.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use braid_bench::http::{Counts, HttpLoad, HttpSummary, Protocol};
use braid_transport::ServerTls;
use braid_transport::http::{Http3Connection, HttpListener};
use bytes::Bytes;
use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::rig::measure;
use super::secure::{Pki, over_quic};

/// Requests of a run, five in flight.
const REQUESTS: u64 = 300;

/// Behaviour of the server of HTTP/3.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// Answers.
    Serves,
    /// Answers with `Alt-Svc: clear`.
    Clears,
    /// Answers ten requests and closes the connection.
    Breaks,
    /// Answers ten requests and sends GOAWAY.
    Leaves,
}

/// Serves HTTP/3; `answered` gets a permit for the first response of each connection.
async fn http3(connection: Http3Connection, behaviour: Behaviour, answered: Arc<Semaphore>) {
    let mut server = h3::server::Connection::<_, Bytes>::new(connection).await.expect("an open connection");
    let mut number = 0;
    while let Ok(Some(resolver)) = server.accept().await {
        let Ok((_, mut stream)) = resolver.resolve_request().await else { return };
        number += 1;
        let mut response = Response::builder().header("content-length", 0);
        if behaviour == Behaviour::Clears {
            response = response.header("alt-svc", "clear");
        }
        // A client that is gone has its counts already.
        let _ = stream.send_response(response.body(()).expect("a response")).await;
        let _ = stream.finish().await;
        answered.add_permits(usize::from(number == 1));
        match behaviour {
            Behaviour::Breaks if number == 10 => return,
            Behaviour::Leaves if number == 10 => {
                server.shutdown(0).await.expect("an open connection");
                // A connection that is dropped closes, and what was not read yet is lost.
                while let Ok(Some(_)) = server.accept().await {}
                pending::<()>().await;
            }
            _ => {}
        }
    }
}

/// Serves HTTP/1.1 over TLS. The first response of a connection advertises HTTP/3 at `port`; the others wait for a
/// response over QUIC, if they `wait`.
async fn over_tls(tls: ServerTls, port: u16, wait: Option<Arc<Semaphore>>) -> SocketAddr {
    let listener =
        HttpListener::bind((Ipv4Addr::LOCALHOST, 0).into(), Some(tls), 16).expect("an open connection");
    let address = listener.local_addr();
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let Ok(mut stream) = incoming.handshake().await else { continue };
            let wait = wait.clone();
            tokio::spawn(async move {
                let (mut buffer, mut is_first) = ([0; 4096], true);
                while let Ok(read @ 1..) = stream.io.read(&mut buffer).await {
                    // Requests of less than a buffer arrive whole: the client writes them at once.
                    let answers = String::from_utf8_lossy(&buffer[..read]).matches("\r\n\r\n").count();
                    for _ in 0..answers {
                        if !is_first && let Some(answered) = &wait {
                            let _permit = answered.acquire().await;
                        }
                        let field = format!("Alt-Svc: h2=\":1\", h3=\":{port}\"; ma=60\r\n");
                        let field = if is_first { field.as_str() } else { "" };
                        let answer = format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 0\r\n\r\n");
                        let _ = stream.io.write_all(answer.as_bytes()).await;
                        is_first = false;
                    }
                }
            });
        }
    });
    address
}

/// Runs a client that obeys `Alt-Svc`. `is_trusted`: the certificate of the server of HTTP/3.
async fn run(behaviour: Behaviour, is_trusted: bool) -> HttpSummary {
    let pki = Pki::new();
    let answered = Arc::new(Semaphore::new(0));
    let at_quic = Arc::clone(&answered);
    let quic = over_quic(if is_trusted { pki.server() } else { pki.other_server() }, move |connection| {
        http3(connection, behaviour, Arc::clone(&at_quic))
    });
    let server = over_tls(pki.server(), quic.port(), is_trusted.then_some(answered)).await;
    let alternative = pki.load(server, &[Protocol::Http3], true).route.tls;
    let extent = braid_bench::http::Extent::Requests(REQUESTS);
    measure(HttpLoad { alternative, extent, ..pki.load(server, &[Protocol::Http1], true) }).await
}

/// Checks that all requests were answered; returns the counts.
fn whole(summary: &HttpSummary) -> Counts {
    let counts = summary.requests;
    assert_eq!((counts.succeeded, counts.failed), (REQUESTS, 0), "{:?}", summary.errors);
    assert_eq!((counts.started, counts.done), (REQUESTS, REQUESTS));
    counts
}

#[tokio::test]
async fn http3_is_used_once_it_is_advertised() {
    let counts = whole(&run(Behaviour::Serves, true).await);
    assert_eq!((counts.switches, counts.connections), (1, 2));
    assert_eq!((counts.repeated, counts.quic_failures), (0, 0));
    assert!((1..=20).contains(&(REQUESTS - counts.over_quic)), "those before it was connected: {counts:?}");
}

#[tokio::test]
async fn clear_leads_back_to_tcp() {
    let counts = whole(&run(Behaviour::Clears, true).await);
    assert!(counts.switches >= 2 && counts.over_quic > 0 && counts.over_quic < REQUESTS, "{counts:?}");
    assert_eq!((counts.repeated, counts.quic_failures), (0, 0));
}

#[tokio::test]
async fn quic_that_cannot_be_connected_leaves_all_to_tcp() {
    let counts = whole(&run(Behaviour::Serves, false).await);
    assert_eq!((counts.over_quic, counts.switches, counts.connections), (0, 0, 1));
    assert_eq!(counts.quic_failures, 1, "it is not tried again for five minutes");
}

#[tokio::test]
async fn requests_of_a_lost_connection_go_over_tcp() {
    let counts = whole(&run(Behaviour::Breaks, true).await);
    assert_eq!((counts.switches, counts.connections), (2, 3));
    assert!(counts.over_quic <= 10 && counts.repeated >= 1, "{counts:?}");
}

#[tokio::test]
async fn a_graceful_end_is_no_failure_of_quic() {
    let counts = whole(&run(Behaviour::Leaves, true).await);
    assert_eq!((counts.switches, counts.quic_failures), (1, 0), "{counts:?}");
    assert!(counts.connections > 3 && counts.over_quic > REQUESTS / 2, "{counts:?}");
}
