//! Reverse proxy to another HTTP server.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{Request, Response, StatusCode, Uri, Version};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use percent_encoding::percent_decode;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::counters::{FrontCounters, FrontRefusal, UpstreamFailure};
use crate::fields::remove_hop_by_hop;
use crate::front::BodyOutcome;
use crate::limits::Limits;
use crate::problem::problem;
use crate::quota::{Quota, QuotaExceeded, QuotaPermit};
use crate::request::Client;

/// Time for the TCP connection to an upstream.
const CONNECT: Duration = Duration::from_secs(5);

/// Idle connections to an upstream that are kept, and for how long: a little less than the 5 s of Apache and Node.js. A
/// request that meets the close of its connection fails, as it may have been carried out.
const IDLE_CONNECTIONS: usize = 32;
const IDLE_TIME: Duration = Duration::from_secs(4);

/// Decodings of a path after which it must not be encoded any more.
const DECODINGS: usize = 4;

/// Bytes of the head of an upstream's response.
const HEAD: usize = 64 << 10;

/// Address of another HTTP server, such as `http://127.0.0.1:8080`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream(Authority);

/// Text that is no upstream.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no upstream: write http://HOST:PORT, without a path")]
pub struct UpstreamError(String);

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, UpstreamError> {
        let refused = || UpstreamError(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let has_path = uri.path_and_query().is_some_and(|path| path.as_str() != "/");
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        match authority {
            Some(authority) if uri.scheme() == Some(&Scheme::HTTP) && !has_path => {
                Ok(Self(authority.clone()))
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

impl Upstream {
    /// Reference without the address of the upstream, which clients cannot reach, for one that begins with it.
    fn local(&self, location: &HeaderValue) -> Option<HeaderValue> {
        let text = location.to_str().ok()?;
        let uri: Uri = text.parse().ok()?;
        let authority = uri.authority()?;
        let port = |authority: &Authority| authority.port_u16().unwrap_or(80);
        let is_own = uri.scheme() == Some(&Scheme::HTTP)
            && authority.host().eq_ignore_ascii_case(self.0.host())
            && port(authority) == port(&self.0)
            && !authority.as_str().contains('@');
        let (_, rest) = text.split_once("://").filter(|_| is_own)?;
        let rest = rest.get(authority.as_str().len()..)?;
        let local = match rest.as_bytes() {
            // Two slashes would begin the address of another host.
            [b'/', b'/' | b'\\', ..] => format!("/.{rest}"),
            [b'/', ..] => rest.to_owned(),
            _ => format!("/{rest}"),
        };
        HeaderValue::try_from(local).ok()
    }
}

/// Tests for a transfer coding other than `chunked`, which hyper passes on as the plain body.
fn has_other_coding(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    codings.flat_map(|codings| codings.as_bytes().split(|byte| *byte == b',')).any(|coding| {
        let coding = coding.trim_ascii();
        !coding.is_empty() && !coding.eq_ignore_ascii_case(b"chunked")
    })
}

/// Fields that a trailer section must not have: those of the connection, and of framing and routing. RFC 9110, 6.5.1
fn remove_forbidden_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    for name in [header::CONTENT_LENGTH, header::HOST, header::ALT_SVC, header::CONTENT_ENCODING] {
        trailers.remove(name);
    }
}

/// Reverse proxy. Clones share the connections to the upstream.
#[derive(Clone)]
pub(super) struct Proxy {
    upstream: Upstream,
    client: HttpClient<HttpConnector, Body>,
    time: Duration,
    /// Time for one direction of a tunnel after the end of the other.
    tunnel_end: Duration,
    /// Requests in flight to all upstreams.
    places: Quota,
    counters: FrontCounters,
}

impl Proxy {
    pub(super) fn new(upstream: Upstream, limits: &Limits, places: Quota, counters: FrontCounters) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT.min(limits.upstream_timeout)));
        connector.set_nodelay(true);
        let client = HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_max_buf_size(HEAD)
            .build(connector);
        let (time, tunnel_end) = (limits.upstream_timeout, limits.idle_timeout);
        Self { upstream, client, time, tunnel_end, places, counters }
    }

    pub(super) async fn answer(self, mut request: Request<Body>) -> Response<Body> {
        if has_parent_segment(request.uri().path()) {
            let detail = "the path has .. in it, by which a server may leave the route";
            return problem(StatusCode::BAD_REQUEST, detail);
        }
        // Each has a connection of its own: HTTP/2 and 3 would make a hundred of one.
        let address = request.extensions().get::<Client>().map(|client| client.address.ip());
        let place = match self.places.take(address, 1) {
            Ok(place) => place,
            Err(reason) => return no_place(reason),
        };
        let upgrade = websocket(&request).then(|| request.extensions_mut().remove::<OnUpgrade>()).flatten();
        let received = request.extensions().get::<BodyOutcome>().cloned();
        let Some(request) = self.forwarded(request, upgrade.is_some()) else {
            return problem(StatusCode::BAD_REQUEST, "the target of the request cannot be forwarded");
        };
        let moved = Arc::new(Notify::new());
        let request = request.map(|body| Body::new(NotedBody { body, moved: Arc::clone(&moved) }));
        let mut response = match within(self.time, &moved, self.client.request(request)).await {
            Some(Ok(response)) => response,
            Some(Err(error)) => {
                let upstream = &self.upstream;
                // Else the client broke off, and the front tells it why.
                if received.is_none_or(|body| body.failure().is_none()) {
                    self.counters.upstream_failed(UpstreamFailure::Failed);
                }
                tracing::debug!(error = &error as &dyn Error, %upstream, "an upstream gives no response");
                return problem(
                    StatusCode::BAD_GATEWAY,
                    "the server behind this path gives no valid response",
                );
            }
            None => {
                self.counters.upstream_failed(UpstreamFailure::Timeout);
                return problem(StatusCode::GATEWAY_TIMEOUT, "the server behind this path is too slow");
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = upgrade else {
                self.counters.upstream_failed(UpstreamFailure::Failed);
                let detail = "the server behind this path changes the protocol unasked";
                return problem(StatusCode::BAD_GATEWAY, detail);
            };
            let upstream = hyper::upgrade::on(&mut response);
            tokio::spawn(tunnel(client, upstream, self.tunnel_end, place));
            return response.map(|_| Body::empty());
        }
        let headers = response.headers_mut();
        if has_other_coding(headers) {
            self.counters.upstream_failed(UpstreamFailure::Failed);
            let detail = "the server behind this path sends a transfer coding other than chunked";
            return problem(StatusCode::BAD_GATEWAY, detail);
        }
        // hyper has read one length, however often it is there, or none beside a transfer coding.
        let length = headers.remove(header::CONTENT_LENGTH);
        if let Some(length) = length.filter(|_| !headers.contains_key(header::TRANSFER_ENCODING)) {
            headers.insert(header::CONTENT_LENGTH, length);
        }
        remove_hop_by_hop(headers);
        // A port of another server. [RFC 7838, 2]
        headers.remove(header::ALT_SVC);
        // Would let a service worker of this route intercept requests for others.
        headers.remove("service-worker-allowed");
        for name in [header::LOCATION, header::CONTENT_LOCATION] {
            if let Some(local) = headers.get(&name).and_then(|location| self.upstream.local(location)) {
                headers.insert(name, local);
            }
        }
        let time = self.time;
        response.map(|body| Body::new(TimedBody { body, time, timer: None, _place: place }))
    }

    /// The request for the upstream: HTTP/1.1, without fields of the client's connection.
    fn forwarded(&self, request: Request<Body>, is_upgrade: bool) -> Option<Request<Body>> {
        let (mut parts, body) = request.into_parts();
        let client = parts.extensions.get::<Client>().cloned();
        let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut uri = axum::http::uri::Parts::default();
        (uri.scheme, uri.authority, uri.path_and_query) =
            (Some(Scheme::HTTP), Some(self.upstream.0.clone()), Some(path));
        parts.uri = Uri::from_parts(uri).ok()?;
        let received = std::mem::replace(&mut parts.version, Version::HTTP_11);
        parts.extensions.clear();
        remove_hop_by_hop(&mut parts.headers);
        // The server has answered it already.
        parts.headers.remove(header::EXPECT);
        if is_upgrade {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        add_forwarded(&mut parts.headers, client.as_ref(), received);
        Some(Request::from_parts(parts, body))
    }
}

/// Refusal of a request above the number of those in flight.
fn no_place(reason: QuotaExceeded) -> Response<Body> {
    let (refusal, detail) = match reason {
        QuotaExceeded::Total => {
            (FrontRefusal::UpstreamRequests, "too many requests wait for the servers behind this one")
        }
        QuotaExceeded::Client => (
            FrontRefusal::UpstreamRequestsPerAddress,
            "too many requests of this address wait for the servers behind this one",
        ),
    };
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    response.extensions_mut().insert(refusal);
    response
}

/// Tests whether a path has a segment `..` for a server that decodes it, once or more often, takes a backslash for a
/// slash, or ignores parameters behind a semicolon.
fn has_parent_segment(path: &str) -> bool {
    let mut path = Cow::Borrowed(path.as_bytes());
    for _ in 0..DECODINGS {
        let mut segments = path.split(|byte| matches!(byte, b'/' | b'\\'));
        if segments.any(|segment| segment.split(|byte| *byte == b';').next() == Some(b"..")) {
            return true;
        }
        let decoded: Cow<'_, [u8]> = percent_decode(&path).into();
        match decoded {
            Cow::Borrowed(_) => return false,
            Cow::Owned(decoded) => path = Cow::Owned(decoded),
        }
    }
    true
}

/// Tests for a WebSocket handshake. RFC 6455, 4.2.1
fn websocket(request: &Request<Body>) -> bool {
    let has = |name: HeaderName, token: &str| {
        let values = request.headers().get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(token))
    };
    request.version() == Version::HTTP_11
        && has(header::CONNECTION, "upgrade")
        && has(header::UPGRADE, "websocket")
}

/// Replaces what the client says about itself by what is known. RFC 7239, and `Via` of RFC 9110, 7.6.3
fn add_forwarded(headers: &mut HeaderMap, client: Option<&Client>, received: Version) {
    // CGI and its like take an underscore for a hyphen.
    let is_about_client = |name: &HeaderName| {
        let name = name.as_str().replace('_', "-");
        matches!(name.as_str(), "forwarded" | "x-real-ip") || name.starts_with("x-forwarded-")
    };
    let names: Vec<_> = headers.keys().filter(|name| is_about_client(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    let version = match received {
        Version::HTTP_2 => "2.0",
        Version::HTTP_3 => "3.0",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    let mut put = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    };
    put("via", &format!("{version} braidmq"));
    let Some(client) = client else { return };
    let (ip, proto) = (client.address.ip(), if client.is_encrypted { "https" } else { "http" });
    let node = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("\"[{ip}]\""),
    };
    let host = client.authority.as_ref().map(Authority::as_str).unwrap_or_default();
    put("forwarded", &format!("for={node};host=\"{host}\";proto={proto}"));
    put("x-forwarded-for", &ip.to_string());
    put("x-forwarded-host", host);
    put("x-forwarded-proto", proto);
}

/// Carries bytes between client and upstream after the change of the protocol.
async fn tunnel(client: OnUpgrade, upstream: OnUpgrade, end: Duration, _place: QuotaPermit) {
    let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return };
    // An error ends both.
    let _ = carry(TokioIo::new(client), TokioIo::new(upstream), end).await;
}

/// Carries bytes both ways. The second direction ends `limit` after the first at the latest: an upstream may never
/// close its end for a client that has left.
async fn carry<C, U>(client: C, upstream: U, limit: Duration) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    U: AsyncRead + AsyncWrite,
{
    async fn one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        copy(&mut from, &mut to).await?;
        to.shutdown().await
    }
    let (from_client, to_client) = split(client);
    let (from_upstream, to_upstream) = split(upstream);
    let (there, back) = (one_way(from_client, to_upstream), one_way(from_upstream, to_client));
    tokio::pin!(there, back);
    let other = tokio::select! {
        ended = &mut there => {
            ended?;
            timeout(limit, back).await
        }
        ended = &mut back => {
            ended?;
            timeout(limit, there).await
        }
    };
    other.unwrap_or(Ok(()))
}

/// The response, if it begins in time, which runs anew with each part of the request's body that has `moved`: a client
/// may be slow, and has a limit of its own.
async fn within<T>(time: Duration, moved: &Notify, response: impl Future<Output = T>) -> Option<T> {
    let timer = sleep(time);
    tokio::pin!(response, timer);
    loop {
        tokio::select! {
            biased;
            response = &mut response => return Some(response),
            () = moved.notified() => timer.as_mut().reset(Instant::now() + time),
            () = &mut timer => return None,
        }
    }
}

/// Body of a request, which signals each part that leaves.
struct NotedBody {
    body: Body,
    moved: Arc<Notify>,
}

impl HttpBody for NotedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.moved.notify_one();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Body of an upstream's response, with a time limit between its parts.
struct TimedBody {
    body: Incoming,
    time: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    _place: QuotaPermit,
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let end = Instant::now() + self.time;
            if let Some(timer) = &mut self.timer {
                timer.as_mut().reset(end);
            }
            return Poll::Ready(frame.map(|frame| match frame {
                Ok(mut frame) => {
                    frame.trailers_mut().map(remove_forbidden_trailers);
                    Ok(frame)
                }
                Err(error) => Err(error.into()),
            }));
        }
        let time = self.time;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(time)));
        timer.as_mut().poll(cx).map(|()| Some(Err("the upstream is too slow".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_request_has_its_place_until_the_end_of_its_response() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.read_u8().await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na").await.unwrap();
                open.push(stream);
            }
        });
        let proxy = Proxy::new(upstream, &Limits::default(), Quota::new(1, 1), FrontCounters::default());
        let ask = || proxy.clone().answer(Request::new(Body::empty()));
        let first = ask().await;
        assert_eq!((first.status(), ask().await.status()), (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
        drop(first);
        assert_eq!(ask().await.status(), StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_a_while_after_its_first_direction() {
        let limit = Duration::from_secs(75);
        for is_client in [true, false] {
            let (mut one, client) = tokio::io::duplex(64);
            let (mut other, upstream) = tokio::io::duplex(64);
            if !is_client {
                std::mem::swap(&mut one, &mut other);
            }
            let tunnel = tokio::spawn(carry(client, upstream, limit));
            one.write_all(b"to").await.unwrap();
            let mut received = [0; 2];
            other.read_exact(&mut received).await.unwrap();
            // Both stay open for as long as they like.
            sleep(limit * 10).await;
            assert!(!tunnel.is_finished());
            one.shutdown().await.unwrap();
            assert_eq!(other.read(&mut received).await.unwrap(), 0);
            let began = Instant::now();
            other.write_all(b"of").await.unwrap();
            one.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"of", "the other direction goes on");
            tunnel.await.unwrap().unwrap();
            assert_eq!(began.elapsed(), limit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_longer_than_the_upstream() {
        let (limit, began) = (Duration::from_secs(60), Instant::now());
        let moved = Arc::new(Notify::new());
        let parts = Arc::clone(&moved);
        let response = async move {
            for _ in 0..3 {
                sleep(Duration::from_secs(50)).await;
                parts.notify_one();
            }
            sleep(Duration::from_secs(59)).await;
        };
        assert_eq!(within(limit, &moved, response).await, Some(()));
        assert_eq!(began.elapsed().as_secs(), 3 * 50 + 59);
        assert_eq!(within(limit, &moved, std::future::pending::<()>()).await, None);
        assert_eq!(began.elapsed().as_secs(), 3 * 50 + 59 + 60);
    }

    #[test]
    fn parent_segments_are_found_in_any_spelling() {
        for path in [
            "/app",
            "/app/a..b",
            "/app/...",
            "/app/..a",
            "/app/%20",
            "/app/%",
            "/app/%2",
            "/app/%ff",
            "/a;..",
            "/.;a",
        ] {
            assert!(!has_parent_segment(path), "{path}");
        }
        for path in [
            "/app/..",
            "/app/../b",
            "/app/%2e%2E/b",
            "/app/.%2e",
            "/app%2f..%2fb",
            "/app/..%5cb",
            "/app/..\\b",
            "/app/..;a/b",
            "/app/%252e%252e/b",
            "/app/%25252e./b",
            "/app/..%3b/b",
            "/app/%2525252525252e",
        ] {
            assert!(has_parent_segment(path), "{path}");
        }
    }

    #[test]
    fn upstreams_are_origins() {
        for text in ["http://127.0.0.1:8080", "http://localhost/", "http://[::1]:80"] {
            assert!(text.parse::<Upstream>().is_ok(), "{text}");
        }
        for text in
            ["127.0.0.1:8080", "https://a", "http://a/b", "http://a?b", "http://u:p@a", "http://", "a b", ""]
        {
            assert_eq!(text.parse::<Upstream>(), Err(UpstreamError(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn references_to_the_upstream_become_local() {
        for (upstream, location, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/app/a?b=c#d", Some("/app/a?b=c#d")),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", Some("/")),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080?a", Some("/?a")),
            ("http://Inner", "http://inner:80/a", Some("/a")),
            ("http://inner:80", "http://INNER/a", Some("/a")),
            // Never the address of another host.
            ("http://inner", "http://inner//evil.example/a", Some("/.//evil.example/a")),
            ("http://127.0.0.1:8080", "http://127.0.0.1:80801/a", None),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8081/a", None),
            ("http://127.0.0.1:8080", "https://127.0.0.1:8080/a", None),
            ("http://inner", "http://user@inner/a", None),
            ("http://inner", "http://inner.example/a", None),
            ("http://inner", "/a", None),
            ("http://inner", "a b", None),
        ] {
            let upstream: Upstream = upstream.parse().unwrap();
            let local = upstream.local(&HeaderValue::try_from(location).unwrap());
            assert_eq!(local.as_ref().map(|local| local.to_str().unwrap()), expected, "{location}");
        }
    }
}
