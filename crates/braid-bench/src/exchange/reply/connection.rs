use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use braid_transport::{Link, Read};
use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::{ALL, ServiceQueue};
use crate::exchange::counters::Counters;
use crate::exchange::wire::{RESPONSE_HEAD_LEN, Request, RequestReader};
use crate::exchange::{READ_AT_ONCE, TURNS};
use crate::timer::{Timer, TimerService};

/// Responses queued on a stream from which on it is not read.
const WAITING: usize = 1024;
/// Content of bodies.
static BLOCK: [u8; 16 * 1024] = [b'o'; 16 * 1024];
/// Blocks of one vectored write.
const BLOCKS: usize = 15;

/// Connection of a client.
pub(super) struct Connection<'a> {
    link: Link,
    lanes: BTreeMap<StreamKey, Lane>,
    buffer: Box<[u8]>,
    /// Timer of the next response.
    timer: Option<Timer>,
    /// True once the client has made a request.
    is_trusted: bool,
    /// True once the peer sends no more.
    is_closed: bool,
    has_unflushed: bool,
    service: &'a ServiceQueue,
    tally: &'a Counters,
    timers: &'a TimerService,
}

/// Stream with requests.
struct Lane {
    reader: RequestReader,
    responses: VecDeque<Response>,
    /// True once the peer sends no more on it.
    is_finished: bool,
}

struct Response {
    due: Instant,
    head: [u8; RESPONSE_HEAD_LEN],
    size: u64,
    /// Bytes of head and body written.
    written: u64,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        link: Link,
        service: &'a ServiceQueue,
        tally: &'a Counters,
        timers: &'a TimerService,
    ) -> Self {
        let buffer = vec![0; READ_AT_ONCE / 16].into();
        Self {
            link,
            lanes: BTreeMap::new(),
            buffer,
            timer: None,
            is_trusted: false,
            is_closed: false,
            has_unflushed: false,
            service,
            tally,
            timers,
        }
    }

    /// Answers until the connection ends.
    pub(super) async fn run(mut self) -> io::Result<()> {
        match poll_fn(|cx| self.poll(cx)).await {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            Err(error) if !(self.is_idle() || has_gone(&error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn is_idle(&self) -> bool {
        self.lanes.values().all(|lane| lane.responses.is_empty())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..TURNS {
            let has_read = self.read(cx)?;
            let now = Instant::now();
            let has_written = self.write(cx, now)?;
            if self.is_closed && self.is_idle() {
                return Poll::Ready(Ok(()));
            }
            if !(has_read || has_written || self.has_rung(cx, now)) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads requests; true if there was one.
    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.is_closed {
            return Ok(false);
        }
        let Self { link, lanes, buffer, .. } = self;
        let mut buffer = ReadBuf::new(buffer);
        let mut wants =
            |key: StreamKey| lanes.get(&key).is_none_or(|lane: &Lane| lane.responses.len() < WAITING);
        let Poll::Ready(read) = link.poll_read(cx, &mut buffer, &mut wants)? else { return Ok(false) };
        match read {
            Read::Bytes(key) => {
                let lane = lanes.entry(key).or_insert_with(Lane::new);
                let (now, mut bytes) = (Instant::now(), buffer.filled());
                while let Some(request) = lane.reader.next(&mut bytes).map_err(invalid)? {
                    self.tally.requested(ALL);
                    lane.responses.push_back(Response::to(request, self.service.response_start(now)));
                }
                if !self.is_trusted && !lane.responses.is_empty() {
                    // A client that speaks the protocol may send as much as its streams hold.
                    self.is_trusted = true;
                    link.set_trusted();
                }
            }
            Read::Finished(key) => {
                if let Some(lane) = lanes.get_mut(&key) {
                    lane.is_finished = true;
                }
            }
            Read::Reset(key, code) | Read::Stopped(key, code) => {
                lanes.remove(&key);
                link.abort(key, code);
            }
            Read::Closed => self.is_closed = true,
            Read::Opened(_) | Read::Confirmed | Read::Moved(_) | Read::Path(_) | Read::Datagram => {}
        }
        Ok(true)
    }

    /// Writes due responses; true if bytes were taken.
    fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> io::Result<bool> {
        let Self { link, lanes, tally, .. } = self;
        let mut has_written = false;
        let mut ended = Vec::new();
        for (key, lane) in lanes.iter_mut() {
            while let Some(response) = lane.responses.front_mut().filter(|response| response.due <= now) {
                let taken = match response.poll_write(cx, link, *key) {
                    Poll::Ready(Ok(taken)) => taken,
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => {
                        ended.push(*key);
                        break;
                    }
                    Poll::Ready(Err(error)) => return Err(error),
                    Poll::Pending => break,
                };
                (has_written, self.has_unflushed) = (true, true);
                response.written += taken as u64;
                if response.missing() == 0 {
                    tally.answered(ALL, response.size, response.due);
                    lane.responses.pop_front();
                }
            }
            if lane.is_finished && lane.responses.is_empty() {
                link.finish(*key);
                ended.push(*key);
            }
        }
        for key in ended {
            lanes.remove(&key);
        }
        if (self.has_unflushed || self.link.is_multi()) && self.link.poll_flush(cx)?.is_ready() {
            self.has_unflushed = false;
        }
        Ok(has_written)
    }

    /// True if a response has become due since `now`, when the others were written.
    fn has_rung(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let fronts = self.lanes.values().filter_map(|lane| lane.responses.front());
        let Some(due) = fronts.map(|response| response.due).filter(|due| *due > now).min() else {
            return false;
        };
        let timer = self.timer.get_or_insert_with(|| self.timers.at(due));
        timer.set(due);
        Pin::new(timer).poll(cx).is_ready()
    }
}

impl Lane {
    fn new() -> Self {
        Self { reader: RequestReader::new(), responses: VecDeque::new(), is_finished: false }
    }
}

impl Response {
    fn to(request: Request, due: Instant) -> Self {
        Self { due, head: request.encode_response(), size: request.size, written: 0 }
    }

    /// Bytes of head and body that are not written.
    fn missing(&self) -> u64 {
        RESPONSE_HEAD_LEN as u64 + self.size - self.written
    }

    /// Writes as much as the link takes now.
    fn poll_write(&self, cx: &mut Context<'_>, link: &mut Link, key: StreamKey) -> Poll<io::Result<usize>> {
        let at = usize::try_from(self.written).unwrap_or(usize::MAX).min(RESPONSE_HEAD_LEN);
        let head = &self.head[at..];
        let mut body = self.missing() - head.len() as u64;
        let mut slices = [IoSlice::new(&[]); BLOCKS + 1];
        slices[0] = IoSlice::new(head);
        let mut count = 1;
        while body > 0 && count < slices.len() {
            let len = usize::try_from(body).map_or(BLOCK.len(), |body| body.min(BLOCK.len()));
            slices[count] = IoSlice::new(&BLOCK[..len]);
            body -= len as u64;
            count += 1;
        }
        link.poll_write(cx, key, &slices[..count])
    }
}

/// True if the peer has closed the connection; its requests are unfinished.
fn has_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn invalid(error: crate::exchange::WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
