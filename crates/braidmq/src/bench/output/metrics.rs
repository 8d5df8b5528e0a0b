//! HTTP server for metrics of Prometheus.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use braid_bench::emqtt::exposition;
use braid_bench::generator::RunStatistics;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::bench::Failure;

/// Pause after a failed accept, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers `GET /metrics`.
#[derive(Debug)]
pub(in crate::bench) struct Metrics {
    listener: TcpListener,
    address: SocketAddr,
}

impl Metrics {
    /// Listens.
    ///
    /// # Errors
    /// [`Failure::Metrics`]: the address is in use, or not this machine's.
    pub(in crate::bench) async fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await;
        let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|source| Failure::Metrics { address, source })?;
        Ok(Self { listener, address })
    }

    /// Address on which it listens.
    pub(in crate::bench) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until it is dropped.
    pub(in crate::bench) async fn serve(self, statistics: RunStatistics) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let statistics = statistics.clone();
            let service = service_fn(move |request| {
                let response = answer(&request, &statistics);
                async { Ok::<_, Infallible>(response) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new());
            // A client that leaves early disturbs no other.
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    }
}

fn answer(request: &Request<Incoming>, statistics: &RunStatistics) -> Response<Full<Bytes>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match (request.uri().path(), is_read) {
        ("/metrics", true) => {
            let mut response =
                Response::new(exposition(&statistics.counters(), &statistics.histograms()).into());
            let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, text);
            response
        }
        ("/metrics", false) => {
            let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        _ => refuse(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    }
}

fn refuse(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Bytes::from_static(text.as_bytes()).into());
    *response.status_mut() = status;
    response
}
