use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::account::Answer;
use super::body::ReceivedBody;
use super::failure::{Ended, Failure};
use super::link::{Link, Started};
use super::request::RepeatedBytes;
use super::response::{Part, ResponseError, ResponseParser};

/// Sends the requests of the client, `depth` in flight at most, until all have a response or the connection ends.
pub(super) async fn run<T>(io: T, link: &Link, depth: usize) -> Result<Ended, Failure>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    link.account().connected();
    let worker = link.worker();
    let mut session = Session {
        io,
        link,
        request: worker.http1(),
        depth,
        position: 0,
        unsent: 0,
        waiting: VecDeque::new(),
        parser: ResponseParser::new(worker.load().request.is_head()),
        response: None,
        writes: Writes::Open,
    };
    poll_fn(|cx| session.poll(cx)).await
}

struct Session<'a, T> {
    io: T,
    link: &'a Link,
    request: &'a RepeatedBytes,
    /// Most requests in flight.
    depth: usize,
    /// Bytes of the request that was begun last which are sent.
    position: usize,
    /// Bytes of the requests in flight which are not sent.
    unsent: usize,
    /// Requests in flight, in order.
    waiting: VecDeque<Started>,
    parser: ResponseParser,
    /// Response that is being received.
    response: Option<Answer>,
    writes: Writes,
}

/// Direction to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Open,
    /// Bytes may wait in a buffer of the transport.
    Unflushed,
    /// The server takes no more; there may be responses to read.
    Closed,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Session<'_, T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Ended, Failure>> {
        loop {
            self.submit();
            self.write(cx);
            if self.waiting.is_empty() {
                return Poll::Ready(Ok(Ended::Complete));
            }
            let Poll::Ready(read) = self.read(cx) else { return Poll::Pending };
            if let Some(ended) = read? {
                return Poll::Ready(Ok(ended));
            }
        }
    }

    /// Starts requests while there is room for them.
    fn submit(&mut self) {
        if self.writes == Writes::Closed || self.waiting.len() >= self.depth || self.link.is_over() {
            return;
        }
        let now = Instant::now();
        while self.waiting.len() < self.depth
            && let Some(started) = self.link.begin(now)
        {
            self.waiting.push_back(started);
            self.unsent += self.request.len();
        }
    }

    /// Writes what the transport takes. An error is that of the next read, after the responses before it.
    fn write(&mut self, cx: &mut Context<'_>) {
        while self.unsent > 0 && self.writes != Writes::Closed {
            let bytes = self.request.from(self.position, self.unsent);
            match Pin::new(&mut self.io).poll_write(cx, bytes) {
                Poll::Pending => break,
                Poll::Ready(Ok(taken @ 1..)) => {
                    self.unsent -= taken;
                    self.position = (self.position + taken) % self.request.len();
                    self.link.sent(Instant::now());
                    self.writes = Writes::Unflushed;
                }
                Poll::Ready(Ok(0) | Err(_)) => self.writes = Writes::Closed,
            }
        }
        if self.writes == Writes::Unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.io).poll_flush(cx)
        {
            self.writes = if flushed.is_ok() { Writes::Open } else { Writes::Closed };
        }
    }

    /// Reads once.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Ended>, Failure>> {
        let link = self.link;
        let mut buffer = link.worker().buffer();
        let mut buffer = ReadBuf::new(&mut buffer);
        match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Lost(error))),
        }
        let (mut bytes, now) = (buffer.filled(), Instant::now());
        if bytes.is_empty() {
            let end = self.parser.finish().map_err(Failure::Response)?;
            return Poll::Ready(match end {
                Some(part) => self.take(part, now),
                None => Err(Failure::Closed),
            });
        }
        link.received(bytes.len(), now);
        while let Some(part) = self.parser.next(&mut bytes).map_err(Failure::Response)? {
            if let Some(ended) = self.take(part, now)? {
                return Poll::Ready(Ok(Some(ended)));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn take(&mut self, part: Part<'_>, now: Instant) -> Result<Option<Ended>, Failure> {
        match part {
            Part::Head { status, header_bytes } => {
                if self.waiting.is_empty() {
                    return Err(Failure::Response(ResponseError::Unrequested));
                }
                self.link.account().responded(now);
                if let Some(value) = self.parser.take_alt_svc() {
                    self.link.account().learn(&value, now);
                }
                let body = ReceivedBody::new(&self.link.worker().load().expectation);
                let plain_header_bytes = header_bytes;
                self.response = Some(Answer { status, header_bytes, plain_header_bytes, body });
            }
            Part::Body(bytes) => {
                if let Some(response) = &mut self.response {
                    response.body.push(bytes);
                }
            }
            Part::End { keeps_alive } => {
                if let (Some(started), Some(response)) = (self.waiting.pop_front(), self.response.take()) {
                    self.link.finish(started, response, now);
                }
                if !keeps_alive {
                    let is_done = self.waiting.is_empty() && self.link.is_over();
                    return Ok(Some(if is_done { Ended::Complete } else { Ended::Closing }));
                }
            }
        }
        Ok(None)
    }
}
