//! HTTP server: one address for HTTP/1.1 and 2 on TCP and HTTP/3 on UDP, on threads of its own.

mod body;
mod count;
mod guard;
mod head;
mod http3;
mod idle;
mod poll_first;
mod tcp;
mod unread;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{ALT_SVC, CONTENT_LENGTH, HOST};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use braid_transport::http::{Http3Listener, HttpListener};
use braid_transport::quic::QuicOptions;
use braid_transport::{BindError, ServerTls};
use bytes::Bytes;
use hyper::body::Body as _;
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

pub(crate) use self::count::PermitRef;

pub(crate) use self::body::BodyOutcome;
use self::body::LimitedBody;
use self::count::{Activity, ConnectionCount, Permit};
use self::guard::Guard;
use self::unread::{Unread, discard};
use crate::counters::{FrontCounters, FrontRefusal, HttpVersion, OpenConnection};
use crate::limits::Limits;
use crate::problem::problem;
use crate::request::Client;
use crate::route::Routes;
use crate::upgrade::{Link, NoUpgrade, Observer, Probe, Upgrade};

/// TCP connections that the system queues for `accept`.
const ACCEPT_QUEUE: u32 = 1024;

/// Time that a connection which gives way has to end: no request of it is in flight.
const EVICTED: Duration = Duration::from_millis(100);

/// Pause after a failed accept, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Ports that the system chooses for TCP until one is free on UDP too.
const PORT_TRIES: usize = 16;

/// Failure to start the server.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address is in use, or does not belong to this host.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The address is not on loopback, and there is no TLS.
    #[error(
        "HTTP without TLS listens on loopback addresses only, and {address} is none: use 127.0.0.1 or [::1], or turn \
         TLS on"
    )]
    Plain {
        /// The address.
        address: SocketAddr,
    },
    /// HTTP/3 is asked for, and there is no TLS.
    #[error("HTTP/3 on {address} needs TLS: turn TLS on, or HTTP/3 off")]
    Http3WithoutTls {
        /// The address.
        address: SocketAddr,
    },
    /// The operating system refused threads.
    #[error("the system refuses threads for HTTP: {0}")]
    Threads(#[from] io::Error),
}

/// Options of the server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Addresses for TCP and, with HTTP/3, UDP.
    pub listen: Vec<SocketAddr>,
    /// Certificates; `None` for plain HTTP, on loopback addresses only.
    pub tls: Option<ServerTls>,
    /// Whether HTTP/3 is served; needs TLS.
    pub http3: bool,
    /// Directory for a qlog of each connection of HTTP/3.
    pub qlog_dir: Option<PathBuf>,
    /// Limits.
    pub limits: Limits,
    /// Host names that requests to loopback addresses may have, beside `localhost` and loopback addresses.
    pub hosts: Vec<String>,
    /// Threads.
    pub threads: usize,
    /// Policy of the automatic upgrade.
    pub upgrade: Arc<dyn Upgrade>,
    /// Counters and listeners, which the API shows.
    pub counters: FrontCounters,
}

impl ServerOptions {
    /// Options of a server without TLS.
    #[must_use]
    pub fn new(listen: Vec<SocketAddr>) -> Self {
        Self {
            listen,
            tls: None,
            http3: false,
            qlog_dir: None,
            limits: Limits::default(),
            hosts: Vec::new(),
            threads: 1,
            upgrade: Arc::new(NoUpgrade),
            counters: FrontCounters::default(),
        }
    }
}

/// HTTP server, from its start until [`Server::stop`].
pub struct Server {
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    drain: Duration,
    /// Taken when it ends.
    runtime: Option<Runtime>,
}

impl Server {
    /// Listens on all addresses and answers by `routes`, on threads of its own: busy threads of MQTT clients do not
    /// delay it, nor does it delay them.
    ///
    /// # Errors
    /// Every [`StartError`]; then no address is listened on.
    pub fn start(options: &ServerOptions, routes: impl Into<Routes>) -> Result<Self, StartError> {
        let exposed = options.listen.iter().find(|address| !is_loopback(address));
        if let (Some(address), None) = (exposed, &options.tls) {
            return Err(StartError::Plain { address: *address });
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .thread_name("http")
            .enable_all()
            .build()?;
        let inside = runtime.enter();
        let bound = options.listen.iter().map(|address| bind(*address, options));
        let bound = bound.collect::<Result<Vec<_>, _>>();
        drop(inside);
        let bound = match bound {
            Ok(bound) => bound,
            Err(error) => {
                // The caller may be a task, which must not wait for threads.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let (stop, stopped) = watch::channel(false);
        let front = Arc::new(Front {
            routes: routes.into(),
            guard: Guard { hosts: options.hosts.clone() },
            count: ConnectionCount::new(&options.limits, options.counters.clone()),
            counters: options.counters.clone(),
            limits: options.limits.clone(),
            upgrade: Arc::clone(&options.upgrade),
            date: http3::CachedDate::default(),
            stopped,
        });
        let mut addresses = Vec::with_capacity(bound.len());
        for (tcp, quic) in bound {
            addresses.push(tcp.local_addr());
            let kind = if options.tls.is_some() { "https" } else { "http" };
            let state = options.counters.listen(kind, tcp.local_addr());
            let h3 = quic.as_ref().map(|_| options.counters.listen("h3", tcp.local_addr()));
            runtime.spawn(tcp::accept(tcp, state, Arc::clone(&front)));
            if let (Some(quic), Some(state)) = (quic, h3) {
                runtime.spawn(http3::accept(quic, state, Arc::clone(&front)));
            }
        }
        tracing::debug!(?addresses, "listening for HTTP");
        Ok(Self { addresses, stop, drain: options.limits.drain, runtime: Some(runtime) })
    }

    /// The addresses on which it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends gracefully: no new connections, GOAWAY on those that exist, and time for requests in flight. Blocks, so it
    /// must not be called in a task.
    pub fn stop(mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(true);
        runtime.block_on(async {
            // Every task of a connection holds a receiver.
            let _ = tokio::time::timeout(self.drain + ACCEPT_PAUSE, self.stop.closed()).await;
        });
        runtime.shutdown_background();
    }
}

/// Ends without grace.
impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

type Bound = (HttpListener, Option<Http3Listener>);

/// Binds the same port on TCP and UDP.
fn bind(address: SocketAddr, options: &ServerOptions) -> Result<Bound, StartError> {
    let listen = || HttpListener::bind(address, options.tls.clone(), ACCEPT_QUEUE);
    if !options.http3 {
        return Ok((listen()?, None));
    }
    let Some(tls) = &options.tls else { return Err(StartError::Http3WithoutTls { address }) };
    let quic = QuicOptions {
        qlog_dir: options.qlog_dir.clone(),
        ..QuicOptions::http3_server(options.limits.streams, options.limits.idle_timeout)
    };
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        let tcp = listen()?;
        match Http3Listener::bind(tcp.local_addr(), tls.clone(), &quic) {
            Ok(quic) => return Ok((tcp, Some(quic))),
            Err(error) if tries == 1 => return Err(error.into()),
            Err(_) => tries -= 1,
        }
    }
}

/// Shared state of all connections.
struct Front {
    routes: Routes,
    guard: Guard,
    count: ConnectionCount,
    counters: FrontCounters,
    limits: Limits,
    upgrade: Arc<dyn Upgrade>,
    /// `Date` of responses on HTTP/3.
    date: http3::CachedDate,
    stopped: watch::Receiver<bool>,
}

/// One connection.
struct Connection {
    front: Arc<Front>,
    client: SocketAddr,
    /// Its address, or that of the listener, is one of loopback.
    is_loopback: bool,
    is_encrypted: bool,
    /// Requests in flight, and its end for the sake of another connection.
    activity: Arc<Activity>,
    _open: OpenConnection,
    /// Policy of the upgrade for this connection.
    observer: Box<dyn Observer>,
    /// Signalled when the policy wants it to end.
    goaway: Notify,
}

impl Connection {
    fn new(
        front: &Arc<Front>,
        permit: &Permit,
        version: HttpVersion,
        client: SocketAddr,
        listener: SocketAddr,
        is_encrypted: bool,
        probe: Arc<dyn Probe>,
    ) -> Arc<Self> {
        Arc::new(Self {
            front: Arc::clone(front),
            client,
            // A client of loopback is on this host, whatever address it used.
            is_loopback: is_loopback(&listener) || is_loopback(&client),
            is_encrypted,
            activity: Arc::clone(permit.activity()),
            _open: front.counters.opened(version),
            observer: front.upgrade.connected(Link { client, listener, is_encrypted, probe }),
            goaway: Notify::new(),
        })
    }

    /// Resolves when the connection has to end gracefully: returns how long its responses may take, `None` for any
    /// time.
    async fn ending(&self) -> Option<Duration> {
        tokio::select! {
            biased;
            () = self.stopped() => Some(self.front.limits.drain),
            () = self.activity.evicted() => Some(EVICTED),
            () = self.goaway.notified() => None,
        }
    }

    /// Resolves when the responses of an ending connection have had their time, `None` for any until the server stops.
    async fn drained(&self, drain: Option<Duration>) {
        let drain = match drain {
            Some(drain) => drain,
            None => {
                self.stopped().await;
                self.front.limits.drain
            }
        };
        sleep(drain).await;
    }

    /// Resolves when the server stops.
    async fn stopped(&self) {
        // An error: the server is gone.
        let _ = self.front.stopped.clone().wait_for(|stopped| *stopped).await;
    }

    /// Answers a request. What needs no waiting is done in this call.
    fn answer<B>(
        self: &Arc<Self>,
        request: Request<B>,
    ) -> impl Future<Output = Response<Body>> + Send + use<B>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (front, version) = (&*self.front, HttpVersion::from(request.version()));
        let is_head = request.method() == Method::HEAD;
        let is_cross_origin = |path: &str| front.routes.is_cross_origin(path);
        let checked = front.guard.check(&request, self.is_loopback, is_cross_origin, &front.limits);
        let answer = match checked {
            Ok(authority) => self.route(request, authority),
            Err((status, detail)) => {
                front.counters.count(status.into());
                refusal(request, status, detail)
            }
        };
        let connection = Arc::clone(self);
        async move {
            let counters = &connection.front.counters;
            let response = match answer {
                Answer::Ready(response) => {
                    counters.took(None);
                    response
                }
                Answer::Waiting(response) => {
                    let began = Instant::now();
                    let response = response.await;
                    counters.took(Some(began.elapsed()));
                    response
                }
            };
            counters.request(version, response.status());
            let response = connection.finish(response);
            if is_head && version != HttpVersion::One { without_body(response) } else { response }
        }
    }

    /// Adds what the policy of the upgrade advises.
    fn finish(&self, mut response: Response<Body>) -> Response<Body> {
        let advice = self.observer.advise();
        if matches!(response.status(), StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT) {
            // axum says 0, which would be the length of the content that is not sent.
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        if let Some(alt_svc) = advice.alt_svc {
            response.headers_mut().insert(ALT_SVC, alt_svc);
        }
        if advice.goaway {
            self.goaway.notify_one();
        }
        response
    }

    fn route<B>(&self, request: Request<B>, authority: Option<Authority>) -> Answer
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (mut parts, body) = request.into_parts();
        if let Some(response) = self.front.routes.answer_at_once(&parts) {
            return Answer::Ready(response);
        }
        let declared = guard::content_length(&parts.headers).unwrap_or_default();
        let (body, unread) = Unread::of(body, parts.version);
        let (body, outcome) = LimitedBody::new(body, declared, &self.front.limits);
        // One form for all versions: routes find the host in `Host` and in `Client`.
        if let Some(host) = authority.as_ref().and_then(|host| HeaderValue::try_from(host.as_str()).ok())
            && (parts.version >= Version::HTTP_2 || !parts.headers.contains_key(HOST))
        {
            parts.headers.insert(HOST, host);
        }
        parts.extensions.insert(Client { address: self.client, authority, is_encrypted: self.is_encrypted });
        parts.extensions.insert(outcome.clone());
        let response = self.front.routes.answer(Request::from_parts(parts, Body::new(body)));
        let counters = self.front.counters.clone();
        Answer::Waiting(Box::pin(async move {
            let mut response = response.await;
            if let Some(refusal) = response.extensions_mut().remove::<FrontRefusal>() {
                counters.count(refusal);
            }
            unread.discard().await;
            match outcome.failure() {
                // The reason for the route's error.
                Some(failure) if !response.status().is_success() => {
                    counters.count(failure.status().into());
                    problem(failure.status(), &failure.to_string())
                }
                _ => response,
            }
        }))
    }
}

/// Response to HEAD with the length of its body alone. hyper leaves the body out on HTTP/1.1 only; on HTTP/2 it is an
/// error of the stream.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        head.headers.entry(CONTENT_LENGTH).or_insert(length.into());
    }
    Response::from_parts(head, Body::empty())
}

/// Response to a request.
enum Answer {
    Ready(Response<Body>),
    Waiting(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

/// Refusal of a request, on HTTP/2 after the rest of a small body.
fn refusal<B>(request: Request<B>, status: StatusCode, detail: &str) -> Answer
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
{
    let response = problem(status, detail);
    if request.version() != Version::HTTP_2 {
        return Answer::Ready(response);
    }
    Answer::Waiting(Box::pin(async move {
        discard(request.into_body()).await;
        response
    }))
}
