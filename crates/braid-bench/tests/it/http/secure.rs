//! Over TLS, and HTTP/3 over QUIC.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_bench::http::{Counts, Expectation, HttpLoad, Protocol, Request, Route, Timeouts};
use braid_transport::http::{Http3Connection, Http3Listener, HttpListener};
use braid_transport::quic::QuicOptions;
use braid_transport::{
    CertificateFiles, ClientAuth, ClientTls, ClientTlsOptions, ConnectOptions, ServerTls, self_signed,
};
use bytes::Bytes;
use h3::error::Code;
use http::Response;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::rig::{counts, load, measure};

/// Server's certificate, for `localhost`, and another one that did not sign it.
pub(super) struct Pki {
    files: CertificateFiles,
    other: CertificateFiles,
    _directories: [TempDir; 2],
}

impl Pki {
    pub(super) fn new() -> Self {
        let directories =
            [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
        let [files, other] = [0, 1]
            .map(|at| self_signed(directories[at].path(), &["localhost".to_owned()]).expect("a certificate"));
        Self { files, other, _directories: directories }
    }

    pub(super) fn server(&self) -> ServerTls {
        ServerTls::load(self.files.clone(), ClientAuth::None).expect("the certificate is there")
    }

    /// Server that clients do not trust.
    pub(super) fn other_server(&self) -> ServerTls {
        ServerTls::load(self.other.clone(), ClientAuth::None).expect("the certificate is there")
    }

    /// Ten requests, five at a time.
    pub(super) fn load(&self, server: SocketAddr, protocols: &[Protocol], is_trusting: bool) -> HttpLoad {
        let authority = if is_trusting { &self.files } else { &self.other };
        let tls = ClientTls::new(ClientTlsOptions {
            ca_files: vec![authority.certificate.clone()],
            alpn: protocols.iter().map(|protocol| protocol.alpn().to_owned()).collect(),
            ..ClientTlsOptions::default()
        });
        let options = ConnectOptions { quic: QuicOptions::http3_client(), ..ConnectOptions::default() };
        let (addresses, protocols) = (vec![server], protocols.to_vec());
        HttpLoad {
            route: Route { addresses, protocols, tls: Some(tls), options },
            request: Request::get("https://localhost/").expect("a URL"),
            ..load(server, Protocol::Http1, 10)
        }
    }
}

/// Server over TLS that answers whatever comes in HTTP/1.1, or over HTTP/2 if that was agreed on.
async fn over_tls(tls: ServerTls) -> SocketAddr {
    let listener =
        HttpListener::bind((Ipv4Addr::LOCALHOST, 0).into(), Some(tls), 16).expect("an open connection");
    let address = listener.local_addr();
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let Ok(mut stream) = incoming.handshake().await else { continue };
            if stream.peer.alpn.as_deref() == Some("h2") {
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream.io).await.expect("an open connection");
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        respond.send_response(Response::new(()), true).expect("an open connection");
                    }
                });
            } else {
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = stream.io.read(&mut buffer).await {
                        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                        let answers = text.matches("\r\n\r\n").count();
                        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(answers);
                        stream.io.write_all(answer.as_bytes()).await.expect("an open connection");
                    }
                });
            }
        }
    });
    address
}

#[tokio::test]
async fn tls_agrees_on_the_version() {
    use Protocol::{Http1, Http2};
    let pki = Pki::new();
    let server = over_tls(pki.server()).await;
    for (protocols, expected) in [(&[Http2, Http1][..], "h2"), (&[Http1], "http/1.1")] {
        let summary = measure(pki.load(server, protocols, true)).await;
        assert_eq!(
            (summary.requests, &*summary.protocol),
            (counts(10, 0, 0), expected),
            "{:?}",
            summary.errors
        );
    }
    let summary = measure(pki.load(server, &[Http1], false)).await;
    assert_eq!(summary.requests, Counts { started: 0, connections: 0, ..counts(0, 0, 10) });
    assert!(summary.errors[0].what.contains("is not trusted"), "{:?}", summary.errors);
}

/// Server of HTTP/3, which handles each connection by a future.
pub(super) fn over_quic<F>(
    tls: ServerTls,
    handle: impl Fn(Http3Connection) -> F + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let options = QuicOptions::http3_server(100, Duration::from_secs(30));
    let mut listener =
        Http3Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), tls, &options).expect("an open connection");
    let address = listener.local_addr().expect("an open connection");
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            if let Ok(connection) = incoming.handshake().await {
                tokio::spawn(handle(connection));
            }
        }
    });
    address
}

/// Answers the first `answers` requests of a connection, whose length is said to be `length`, and nothing more. Before
/// the last of them it sends GOAWAY, if there is to be one.
async fn http3(connection: Http3Connection, answers: usize, length: &'static str, goes_away: bool) {
    let mut server = h3::server::Connection::<_, Bytes>::new(connection).await.expect("an open connection");
    let (mut number, mut open) = (0, Vec::new());
    while let Ok(Some(resolver)) = server.accept().await {
        let (request, mut stream) = resolver.resolve_request().await.expect("an open connection");
        number += 1;
        if number > answers {
            open.push(stream);
            continue;
        }
        while stream.recv_data().await.expect("an open connection").is_some() {}
        if request.uri().path() == "/reset" && number % 2 == 0 {
            stream.stop_stream(Code::H3_INTERNAL_ERROR);
            continue;
        }
        if number == answers && goes_away {
            server.shutdown(0).await.expect("an open connection");
        }
        let response =
            Response::builder().header("content-length", length).body(()).expect("an open connection");
        stream.send_response(response).await.expect("an open connection");
        stream.send_data(Bytes::from_static(b"abc")).await.expect("an open connection");
        stream.finish().await.expect("an open connection");
        if number == answers && goes_away {
            // A connection that is dropped closes, and what was not read yet is lost.
            pending::<()>().await;
        }
    }
}

#[tokio::test]
async fn http3_counts_responses_and_bytes() {
    let pki = Pki::new();
    let server = over_quic(pki.server(), |connection| http3(connection, usize::MAX, "3", false));
    let mut all = pki.load(server, &[Protocol::Http3], true);
    all.expectation = Expectation { bytes: Some(3), sha256: None };
    let summary = measure(all.clone()).await;
    let answered = Counts { over_quic: 10, ..counts(10, 0, 0) };
    assert_eq!((summary.requests, &*summary.protocol), (answered, "h3"), "{:?}", summary.errors);
    let traffic = summary.traffic;
    assert_eq!((traffic.body_bytes, traffic.header_bytes), (30, 10 * (10 + 15)));
    assert!(traffic.bytes > 1200, "with the handshake: {traffic:?}");
    assert!(summary.connect_us.max > 0.0 && summary.first_byte_us.min >= summary.connect_us.min);
    all.request = all.request.post(vec![b'x'; 100_000].into());
    all.expectation.bytes = Some(4);
    assert_eq!(measure(all.clone()).await.requests, Counts { wrong_bodies: 10, ..answered });
    all.request = Request::get("https://localhost/reset").unwrap();
    let found =
        measure(HttpLoad { concurrent: 1, expectation: Expectation::default(), ..all }).await.requests;
    assert_eq!(found, Counts { done: 10, over_quic: 5, ..counts(5, 0, 5) });
    let summary = measure(pki.load(server, &[Protocol::Http3], false)).await;
    assert_eq!((summary.requests.started, summary.requests.errored), (0, 10));
    assert!(summary.errors[0].what.contains("is not trusted"), "{:?}", summary.errors);
}

#[tokio::test]
async fn http3_fails_what_is_not_answered() {
    let pki = Pki::new();
    let lying = over_quic(pki.server(), |connection| http3(connection, usize::MAX, "9", false));
    let found = measure(pki.load(lying, &[Protocol::Http3], true)).await.requests;
    assert_eq!(found, Counts { done: 10, ..counts(0, 0, 10) }, "of another length than the server says");

    let silent = over_quic(pki.server(), |connection| http3(connection, 2, "3", false));
    let timeouts = Timeouts { active: None, inactive: Some(Duration::from_millis(200)) };
    let found = measure(HttpLoad { timeouts, ..pki.load(silent, &[Protocol::Http3], true) }).await.requests;
    assert_eq!(found, Counts { started: 7, timed_out: 5, over_quic: 2, ..counts(2, 0, 8) });

    let leaving = over_quic(pki.server(), |connection| http3(connection, 4, "3", true));
    let summary = measure(HttpLoad { timeouts, ..pki.load(leaving, &[Protocol::Http3], true) }).await;
    let found = summary.requests;
    assert_eq!((found.succeeded, found.errored), (4, 6), "{:?}", summary.errors);
    let one_by_one = HttpLoad { concurrent: 1, ..pki.load(leaving, &[Protocol::Http3], true) };
    let summary = measure(one_by_one).await;
    assert_eq!(summary.requests.succeeded, 4, "{:?}", summary.errors);
    assert!(summary.errors.iter().any(|error| error.what.contains("GOAWAY")), "{:?}", summary.errors);
}
