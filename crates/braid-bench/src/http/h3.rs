use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;

use ::h3::client::SendRequest;
use ::h3::error::{Code, StreamError};
use braid_transport::http::{Http3Connection, Http3Open, PathProbe, TailProbes};
use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::account::Answer;
use super::body::ReceivedBody;
use super::failure::{Ended, Failure};
use super::h2::plain_header_bytes;
use super::link::Link;
use super::streams::{self, Exchange, StreamFailure};

/// Sends the requests of the client, `depth` in flight at most, until all have a response or the connection ends.
pub(super) async fn run(
    connection: Http3Connection,
    link: &Rc<Link>,
    depth: usize,
) -> Result<Ended, Failure> {
    let request = &link.worker().load().request;
    let head = request.head().map_err(Failure::Request)?;
    let meter = Rc::new(PathMeter { probe: connection.probe(), seen: Cell::new(0) });
    let tail = Rc::new(Tail::new(connection.probe()));
    let (mut driver, send) = ::h3::client::builder().send_grease(false).build(connection).await?;
    let exchange = || Http3Exchange {
        send: send.clone(),
        link: Rc::clone(link),
        head: head.clone(),
        body: request.body().clone(),
        meter: Rc::clone(&meter),
        tail: Rc::clone(&tail),
    };
    let driving = async {
        tokio::select! {
            error = poll_fn(|cx| driver.poll_close(cx)) => Err(error.into()),
            never = tail.follow() => match never {},
        }
    };
    streams::run(link, depth, exchange, driving).await
}

struct Http3Exchange {
    send: SendRequest<Http3Open, Bytes>,
    link: Rc<Link>,
    head: http::Request<()>,
    body: Bytes,
    meter: Rc<PathMeter>,
    tail: Rc<Tail>,
}

impl Exchange for Http3Exchange {
    async fn exchange(&mut self) -> Result<Answer, StreamFailure> {
        let mut stream = self.send.send_request(self.head.clone()).await?;
        if !self.body.is_empty() {
            stream.send_data(self.body.clone()).await?;
        }
        stream.finish().await?;
        self.tail.begin();
        let response = stream.recv_response().await?;
        self.link.account().responded(Instant::now());
        self.link.account().learn_from(response.headers(), Instant::now());
        let mut body = ReceivedBody::new(&self.link.worker().load().expectation);
        while let Some(mut bytes) = stream.recv_data().await? {
            while bytes.has_remaining() {
                let chunk = bytes.chunk();
                body.push(chunk);
                let len = chunk.len();
                bytes.advance(len);
            }
        }
        stream.recv_trailers().await?;
        self.link.received(self.meter.received(), Instant::now());
        // A message of another length than it says is malformed [RFC 9114, 4.1.2]; the `h3` crate leaves that to us.
        if !is_whole(response.headers(), body.len()) && !self.link.worker().load().request.is_head() {
            return Err(StreamFailure::Stream);
        }
        let bytes = plain_header_bytes(response.headers());
        let status = response.status().as_u16();
        Ok(Answer { status, header_bytes: bytes, plain_header_bytes: bytes, body })
    }
}

fn is_whole(headers: &HeaderMap, received: u64) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    length.is_none_or(|length| length.to_str().is_ok_and(|text| text.parse() == Ok(received)))
}

/// Probes behind the requests of a connection.
struct Tail {
    probes: RefCell<TailProbes>,
    begun: Notify,
}

impl Tail {
    fn new(path: PathProbe) -> Self {
        Self { probes: RefCell::new(TailProbes::new(path)), begun: Notify::new() }
    }

    /// A request was sent, maybe the last of a burst.
    fn begin(&self) {
        if self.probes.borrow_mut().begin(Instant::now()) {
            self.begun.notify_one();
        }
    }

    async fn follow(&self) -> Infallible {
        loop {
            let due = self.probes.borrow().due();
            tokio::select! {
                () = due => self.probes.borrow_mut().send(Instant::now()),
                () = self.begun.notified() => {}
            }
        }
    }
}

/// Counter of the bytes of datagrams that a connection has received.
struct PathMeter {
    probe: PathProbe,
    seen: Cell<u64>,
}

impl PathMeter {
    /// Bytes since the last call.
    fn received(&self) -> usize {
        // A connection that is closed has no figures.
        let total = self.probe.sample().map_or(self.seen.get(), |path| path.received_bytes);
        usize::try_from(total.saturating_sub(self.seen.replace(total))).unwrap_or_default()
    }
}

impl From<StreamError> for StreamFailure {
    fn from(error: StreamError) -> Self {
        match error {
            // [RFC 9114, 5.2]: the server has not processed the request.
            StreamError::RemoteTerminate { code: Code::H3_REQUEST_REJECTED, .. } => {
                Self::Connection(Failure::Going)
            }
            StreamError::RemoteTerminate { .. }
            | StreamError::StreamError { .. }
            | StreamError::HeaderTooBig { .. } => Self::Stream,
            error if is_closing(&error) => Self::Connection(Failure::Going),
            error => Self::Connection(Failure::Http3(error.to_string())),
        }
    }
}

/// Whether the server sent GOAWAY. The `h3` crate keeps the variant of that error to itself.
fn is_closing(error: &StreamError) -> bool {
    matches!(error.to_string().as_str(), "Remote is closing the connection")
}
