//! HTTP servers of the tests: one that speaks HTTP, and one that sends raw bytes.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_access::http::{Endpoint, HttpClient, HttpOptions};
use braid_transport::{
    Link, ListenOptions, Listener, ListenerKind, ServerTls, ServerTlsOptions, self_signed,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

pub(crate) const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Request that a server has received.
pub(crate) struct Received {
    pub(crate) method: Method,
    pub(crate) uri: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Server that is ended when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    received: mpsc::UnboundedReceiver<Received>,
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Answers every request with what `answer` returns for it.
    pub(crate) async fn start<F, A>(answer: F) -> Self
    where
        F: Fn() -> A + Clone + Send + 'static,
        A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        Self::listen(ListenerKind::Tcp, answer)
    }

    /// As [`start`](Self::start), on TLS with a certificate for `localhost` in `folder`.
    pub(crate) fn secure(folder: &Path) -> Self {
        let files = self_signed(folder, &["localhost".to_owned()]).expect("certificate");
        let options = ServerTlsOptions::new(files);
        let tls = ServerTls::new(options).expect("TLS");
        Self::listen(ListenerKind::Tls(tls), || async { reply(200, "secure") })
    }

    fn listen<F, A>(kind: ListenerKind, answer: F) -> Self
    where
        F: Fn() -> A + Clone + Send + 'static,
        A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let mut listener = Listener::bind(kind, LOOPBACK, &ListenOptions::default()).expect("bind");
        let address = listener.local_addr().expect("address");
        let (sender, received) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            loop {
                let incoming = listener.accept().await.expect("accept");
                count.fetch_add(1, Ordering::Relaxed);
                let (sender, answer) = (sender.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(Link::Single(single)) = incoming.handshake().await else { return };
                    let service = service_fn(move |request| respond(request, sender.clone(), answer.clone()));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(single.io), service).await;
                });
            }
        });
        Self { address, connections, received, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/auth", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The next request, waited for.
    pub(crate) async fn next(&mut self) -> Received {
        self.received.recv().await.expect("the server runs")
    }

    /// The number of requests since the last call.
    pub(crate) fn count(&mut self) -> usize {
        std::iter::from_fn(|| self.received.try_recv().ok()).count()
    }
}

async fn respond<A: Future<Output = Response<Full<Bytes>>>>(
    request: Request<Incoming>,
    sender: mpsc::UnboundedSender<Received>,
    answer: impl Fn() -> A,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let received = Received { method: head.method, uri: head.uri.to_string(), headers: head.headers, body };
    // The test may have ended.
    let _ = sender.send(received);
    Ok(answer().await)
}

pub(crate) fn reply(status: u16, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(body.as_bytes())));
    *response.status_mut() = status.try_into().expect("status");
    response
}

/// Starts a server that gives each connection, with its number, to `serve`.
pub(crate) async fn raw<F, S>(serve: F) -> String
where
    F: Fn(usize, TcpStream) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(LOOPBACK).await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.expect("accept");
            tokio::spawn(serve(number, stream));
        }
    });
    format!("http://{address}/auth")
}

pub(crate) fn options(url: &str) -> HttpOptions {
    HttpOptions::new(Endpoint::parse(url, false).expect("a URL"))
}

/// A client whose time limit does not end on a busy machine.
pub(crate) fn client(url: &str) -> HttpClient {
    patient(options(url))
}

pub(crate) fn patient(options: HttpOptions) -> HttpClient {
    let timeout = std::time::Duration::from_secs(600);
    HttpClient::new(HttpOptions { timeout, ..options }).expect("options")
}
