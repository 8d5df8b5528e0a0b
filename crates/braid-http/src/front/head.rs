//! Refusals of heads on HTTP/1.1: a body for those that hyper writes, and 408 for slow heads.
//!
//! hyper refuses a head that it cannot parse, or that is too large, without asking the service: it writes a head
//! without a body and closes. A slow head it closes in silence. [`HeadRefusals`] is between hyper and the socket, and
//! knows from [`Exchanges`] which bytes are none of the service's: it never searches responses.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::StatusCode;
use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::count::InFlight;
use crate::counters::FrontRefusal;
use crate::problem;

/// First bytes of HTTP/2. RFC 9113, 3.4
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Time and bytes that are read and discarded after a refusal. Closing a socket with unread bytes resets the
/// connection, which may destroy the response on its way. RFC 9112, 9.6
const LINGER: (Duration, usize) = (Duration::from_secs(1), 4 << 20);

/// Requests and responses of a connection of HTTP/1.1, counted by its service.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    /// Requests that the service got.
    begun: AtomicU32,
    /// Responses that hyper has read to their end.
    ended: AtomicU32,
}

impl Exchanges {
    /// Notes a request. It ends when what is returned is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Exchange {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Exchange(Some(Arc::clone(self)))
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.begun() == self.ended.load(Ordering::Relaxed)
    }
}

/// One request with its response.
#[derive(Debug)]
pub(super) struct Exchange(Option<Arc<Exchanges>>);

impl Exchange {
    /// Ends it never: the connection has another protocol from now on.
    pub(super) fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(exchanges) = &self.0 {
            exchanges.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Body of a response, whose end is that of its exchange.
pub(super) struct ExchangeBody {
    pub(super) body: Body,
    /// `None` on HTTP/2.
    pub(super) _exchange: Option<Exchange>,
    /// `None` in tests.
    pub(super) _in_flight: Option<InFlight>,
}

impl hyper::body::Body for ExchangeBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Version of HTTP on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Bytes of HTTP/2's [`PREFACE`] that have arrived.
    Unknown(usize),
    Http1,
    Http2,
}

/// Reason for a refusal that the service does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadRefusal {
    Malformed,
    TooLarge,
    TooSlow,
}

impl HeadRefusal {
    fn of(status: u16) -> Option<Self> {
        match status {
            400 => Some(Self::Malformed),
            // hyper has 414 above 65,534 bytes only: one limit, one status.
            414 | 431 => Some(Self::TooLarge),
            _ => None,
        }
    }

    /// The whole response, which closes the connection.
    fn response(self) -> Bytes {
        let (status, detail) = match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "the head of the request is not valid HTTP/1.1"),
            Self::TooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the head of the request is larger than this server accepts, or has too many fields",
            ),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "the head of the request took too long"),
        };
        let (body, date) = (problem::text(status, detail), httpdate::fmt_http_date(SystemTime::now()));
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\nconnection: \
             close\r\ncontent-length: {}\r\ndate: {date}\r\n\r\n",
            body.len()
        );
        (head + &body).into()
    }
}

impl From<HeadRefusal> for FrontRefusal {
    fn from(refusal: HeadRefusal) -> Self {
        match refusal {
            HeadRefusal::Malformed => Self::Head,
            HeadRefusal::TooLarge => Self::HeadSize,
            HeadRefusal::TooSlow => Self::HeadTime,
        }
    }
}

/// Byte stream of a connection, between hyper and its socket.
pub(super) struct HeadRefusals<T, F> {
    io: T,
    exchanges: Arc<Exchanges>,
    version: Version,
    /// Time for a head from its first byte.
    limit: Duration,
    /// Number of exchanges before the head that arrives, and the time of its first byte.
    head: Option<(u32, Instant)>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Number of exchanges whose responses are written completely.
    flushed: u32,
    /// Rest of a refusal; then the connection closes.
    refusal: Option<Bytes>,
    /// The refusal is written and the connection closed for writing.
    is_ending: bool,
    /// Bytes to read and discard then.
    linger: usize,
    /// Told of each refusal.
    refused: F,
}

impl<T, F: Fn(HeadRefusal)> HeadRefusals<T, F> {
    /// `alpn`: version that TLS agreed on.
    pub(super) fn new(io: T, alpn: Option<&str>, limit: Duration, refused: F) -> Self {
        let version = match alpn {
            Some("h2") => Version::Http2,
            Some(_) => Version::Http1,
            None => Version::Unknown(0),
        };
        let exchanges = Arc::default();
        let (head, timer, flushed, refusal, is_ending) = (None, None, 0, None, false);
        let linger = LINGER.1;
        Self { io, exchanges, version, limit, head, timer, flushed, refusal, is_ending, linger, refused }
    }

    pub(super) fn exchanges(&self) -> Arc<Exchanges> {
        Arc::clone(&self.exchanges)
    }

    /// Notes bytes of the client.
    fn receive(&mut self, bytes: &[u8]) {
        if let Version::Unknown(matched) = self.version {
            let expected = &PREFACE[matched..];
            let compared = expected.len().min(bytes.len());
            self.version = match (expected[..compared] == bytes[..compared], matched + compared) {
                (false, _) => Version::Http1,
                (true, 24) => Version::Http2,
                (true, matched) => Version::Unknown(matched),
            };
        }
        let begun = self.exchanges.begun();
        let is_known = self.head.is_some_and(|(before, _)| before == begun);
        if !bytes.is_empty() && !is_known && self.exchanges.is_idle() {
            self.head = Some((begun, Instant::now()));
        }
    }

    /// Ready when a head has taken too long.
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let begun = self.exchanges.begun();
        let Some((_, since)) = self.head.filter(|(before, _)| *before == begun) else { return Poll::Pending };
        if self.version == Version::Http2 {
            return Poll::Pending;
        }
        // That of an earlier head ends earlier.
        let end = since + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        while timer.as_mut().poll(cx).is_ready() {
            if end <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }

    /// Reason of the refusal that hyper writes by itself; `None` if these bytes are the service's.
    fn own(&self, head: &[u8]) -> Option<HeadRefusal> {
        let is_own = self.version == Version::Http1 && self.flushed == self.exchanges.begun();
        let status = head.strip_prefix(b"HTTP/1.").filter(|_| is_own)?.get(2..5)?;
        HeadRefusal::of(std::str::from_utf8(status).ok()?.parse().ok()?)
    }

    fn refuse(&mut self, refusal: HeadRefusal) {
        (self.refused)(refusal);
        self.refusal = Some(refusal.response());
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin, F> HeadRefusals<T, F> {
    /// Writes the refusal, if there is one.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.refusal.as_mut().filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => rest.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Closes the connection after a refusal, when the client has closed it or has had its time.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        if !self.is_ending {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.is_ending = true;
            self.timer = Some(Box::pin(sleep(LINGER.0)));
        }
        let mut scratch = [0; 4096];
        while self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_pending()) {
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            let read = buffer.filled().len();
            self.linger = self.linger.saturating_sub(read);
            if read == 0 || self.linger == 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin, F: Fn(HeadRefusal) + Unpin> AsyncRead for HeadRefusals<T, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.refusal.is_none() {
            match Pin::new(&mut self.io).poll_read(cx, buffer) {
                Poll::Ready(Ok(())) => {
                    self.receive(&buffer.filled()[before..]);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => ready!(self.poll_slow(cx)),
            }
            self.refuse(HeadRefusal::TooSlow);
        }
        ready!(self.poll_end(cx))?;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin, F: Fn(HeadRefusal) + Unpin> AsyncWrite for HeadRefusals<T, F> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(refusal) = self.own(bytes) {
            self.refuse(refusal);
        }
        if self.refusal.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(refusal) = slices.first().and_then(|first| self.own(first)) {
            self.refuse(refusal);
        }
        if self.refusal.is_some() {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// hyper calls it when all its bytes are written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.exchanges.is_idle() {
            self.flushed = self.exchanges.begun();
        }
        ready!(self.poll_refusal(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refusal.is_some() {
            return self.poll_end(cx);
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use futures_util::stream;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Text of hyper's own refusals.
    const BARE: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

    type Refused = Arc<Mutex<Vec<HeadRefusal>>>;

    /// A client of a server that answers `/bare` with the text of a refusal, in parts, and else 400 without a body.
    fn client() -> (DuplexStream, Refused) {
        let (client, server) = duplex(1 << 16);
        let refused = Refused::default();
        let told = Arc::clone(&refused);
        let io = HeadRefusals::new(server, None, LIMIT, move |refusal| told.lock().unwrap().push(refusal));
        let exchanges = io.exchanges();
        let service = service_fn(move |request: Request<Incoming>| {
            let exchange = exchanges.begin();
            async move {
                let mut response = Response::builder().status(400);
                let mut body = Body::empty();
                if request.uri().path() == "/bare" {
                    response = Response::builder().header("content-length", 3 * BARE.len());
                    // Each part is flushed before the next one.
                    body = Body::from_stream(stream::unfold(3, async |left| {
                        tokio::task::yield_now().await;
                        (left > 0).then(|| (Ok::<_, Infallible>(BARE), left - 1))
                    }));
                }
                let body = ExchangeBody { body, _exchange: Some(exchange), _in_flight: None };
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.header_read_timeout(None).max_buf_size(8192);
            http.serve_connection(TokioIo::new(io), service).await
        });
        (client, refused)
    }

    /// Everything that the server sends until it closes.
    async fn rest(client: &mut DuplexStream) -> String {
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_hyper_get_a_body() {
        let large = format!("GET / HTTP/1.1\r\nA: {}", "b".repeat(10_000));
        for (head, status, refusal) in [
            ("nonsense\r\n\r\n", "400 Bad Request", HeadRefusal::Malformed),
            (&large, "431 Request Header Fields Too Large", HeadRefusal::TooLarge),
        ] {
            let (mut client, refused) = client();
            client.write_all(head.as_bytes()).await.unwrap();
            let text = rest(&mut client).await;
            assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{text}");
            let (fields, body) = text.split_once("\r\n\r\n").unwrap();
            let body_field = format!("\r\ncontent-length: {}\r\n", body.len());
            for field in
                ["\r\ncontent-type: application/problem+json\r\n", "\r\nconnection: close\r\n", &body_field]
            {
                assert!(fields.contains(field), "{field} {text}");
            }
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["status"].as_u64().map(|status| status.to_string()).as_deref(), status.get(..3));
            assert_eq!(*refused.lock().unwrap(), [refusal]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn responses_of_the_service_stay_as_they_are() {
        let (mut client, refused) = client();
        client
            .write_all(b"GET /bare HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let text = rest(&mut client).await;
        assert!(text.contains(&format!("\r\n\r\n{}HTTP/1.1 400 ", BARE.repeat(3))), "{text}");
        assert!(text.ends_with("\r\n\r\n") && !text.contains("problem"), "{text}");
        assert!(refused.lock().unwrap().is_empty());
        // The next head on the connection of a response is refused as the first one.
        let (mut client, refused) = self::client();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut first = vec![0; 19];
        client.read_exact(&mut first).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nA b\r\n\r\n").await.unwrap();
        let text = rest(&mut client).await;
        assert_eq!(text.matches("application/problem+json").count(), 1, "{text}");
        assert_eq!(*refused.lock().unwrap(), [HeadRefusal::Malformed]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_from_its_first_byte() {
        for (parts, pause) in [
            (&["G"][..], 1),
            (&["PRI"], 1),
            (&["GET / HTTP/1.1\r\n", "A: b\r\n", "A: b\r\n", "A: b\r\n"], 3),
            // After a response, and a pause that is longer than the limit.
            (&["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n"], 25),
        ] {
            let (mut client, refused) = client();
            let mut began = Instant::now();
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    sleep(Duration::from_secs(pause)).await;
                }
                if part.starts_with("GET") {
                    began = Instant::now();
                }
                client.write_all(part.as_bytes()).await.unwrap();
            }
            let text = rest(&mut client).await;
            assert_eq!(began.elapsed(), LIMIT, "{parts:?}");
            assert_eq!(text.matches("HTTP/1.1 408 Request Timeout\r\n").count(), 1, "{text}");
            assert!(text.contains("\"status\":408"), "{text}");
            assert_eq!(*refused.lock().unwrap(), [HeadRefusal::TooSlow]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_arrives_before_the_connection_is_closed() {
        let (mut client, _) = client();
        let began = Instant::now();
        client.write_all(b"nonsense\r\n\r\n").await.unwrap();
        assert!(rest(&mut client).await.contains("\"status\":400"));
        // The client may still be sending: it is read for a while, and no longer.
        while client.write_all(&[0; 100]).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
        assert!((LINGER.0..LINGER.0 * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}
