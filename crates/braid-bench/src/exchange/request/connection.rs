use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::{Close, Dir, Link, Read, quic::codes};
use bytes::{Buf, BytesMut};
use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep, sleep_until};

use super::source::{ScheduledRequest, Source};
use super::{Failure, RequestLoad};
use crate::exchange::counters::Counters;
use crate::exchange::wire::{Part, ResponseReader};
use crate::exchange::{READ_AT_ONCE, Request, TURNS};

/// Connection to the server.
pub(super) struct Connection {
    link: Link,
    lanes: Vec<Lane>,
    buffer: Box<[u8]>,
    /// Lane of the next request, if it has room.
    turn: usize,
    /// True once there are no more requests.
    is_exhausted: bool,
    is_closed: bool,
    has_answered: bool,
    has_unflushed: bool,
    tally: Arc<Counters>,
    /// Requests to send before those of the source.
    first: VecDeque<ScheduledRequest>,
    /// Start of the time limit of the first requests.
    begun: Instant,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
}

/// A stream and its unanswered requests.
struct Lane {
    stream: StreamKey,
    /// Number in reports: 0 for the control stream.
    number: u64,
    /// Most unanswered requests.
    depth: usize,
    unwritten: BytesMut,
    waiting: VecDeque<Waiting>,
    reader: ResponseReader,
}

struct Waiting {
    scheduled: ScheduledRequest,
    /// Start of its time limit.
    since: Instant,
}

impl Connection {
    /// Opens the streams of the load: one with several unanswered requests, or on QUIC as many streams with one each.
    /// The time limit of the first requests began with the connection.
    pub(super) async fn open(
        mut link: Link,
        load: &RequestLoad,
        begun: Instant,
        tally: Arc<Counters>,
    ) -> Result<Self, Failure> {
        let mut lanes = Vec::new();
        if link.is_multi() {
            for number in 1..=load.streams {
                let stream = poll_fn(|cx| link.poll_open(cx, Dir::Bidi)).await?;
                lanes.push(Lane::new(stream, number as u64, 1));
            }
        } else {
            lanes.push(Lane::new(StreamKey::CONTROL, 0, load.streams));
        }
        Ok(Self {
            link,
            lanes,
            buffer: vec![0; READ_AT_ONCE].into(),
            turn: 0,
            is_exhausted: false,
            is_closed: false,
            has_answered: false,
            has_unflushed: false,
            tally,
            first: VecDeque::new(),
            begun,
            patience: load.patience,
            timer: Box::pin(sleep_until(begun + load.patience)),
        })
    }

    /// Sends the requests `first` and then those of `source`, until there are no more, or until the server closes the
    /// connection while none is unanswered.
    pub(super) async fn run(
        &mut self,
        first: VecDeque<ScheduledRequest>,
        mut source: Option<&mut Source>,
    ) -> Result<(), Failure> {
        self.first = first;
        poll_fn(|cx| self.poll(cx, source.as_deref_mut())).await
    }

    /// Closes the connection in order.
    pub(super) async fn close(mut self) {
        let close = Close { code: codes::CLOSE_NORMAL, stop: None };
        let _ = poll_fn(|cx| self.link.poll_close(cx, close)).await;
    }

    /// Requests without a response.
    pub(super) fn unanswered(&mut self) -> VecDeque<ScheduledRequest> {
        let waiting = self.lanes.iter_mut().flat_map(|lane| lane.waiting.drain(..));
        self.first.drain(..).chain(waiting.map(|waiting| waiting.scheduled)).collect()
    }

    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    fn poll(&mut self, cx: &mut Context<'_>, mut source: Option<&mut Source>) -> Poll<Result<(), Failure>> {
        for _ in 0..TURNS {
            let has_read = self.read(cx)?;
            let is_idle = self.lanes.iter().all(|lane| lane.waiting.is_empty());
            if self.is_closed {
                let is_done = is_idle && self.first.is_empty();
                return Poll::Ready(if is_done { Ok(()) } else { Err(Failure::Ended) });
            }
            let has_enqueued = self.enqueue(cx, source.as_deref_mut());
            if self.is_exhausted && is_idle && !has_enqueued {
                return Poll::Ready(Ok(()));
            }
            let has_written = self.write(cx)?;
            if !(has_read || has_enqueued || has_written) {
                return self.poll_patience(cx);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads responses; true if there were bytes.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let mut buffer = ReadBuf::new(&mut self.buffer);
        let Poll::Ready(read) = self.link.poll_read(cx, &mut buffer, &mut |_| true)? else {
            return Ok(false);
        };
        match read {
            Read::Bytes(key) => {
                if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.stream == key) {
                    self.has_answered |= lane.take(buffer.filled(), &self.tally)?;
                }
            }
            Read::Finished(_) | Read::Reset(..) | Read::Stopped(..) => return Err(Failure::Ended),
            Read::Closed => self.is_closed = true,
            Read::Opened(_) | Read::Confirmed | Read::Moved(_) | Read::Path(_) | Read::Datagram => {}
        }
        Ok(true)
    }

    /// Encodes requests on the lanes with room; true if there was one.
    fn enqueue(&mut self, cx: &mut Context<'_>, mut source: Option<&mut Source>) -> bool {
        let mut has_enqueued = false;
        while !self.is_exhausted
            && let Some(place) = self.free_lane()
        {
            let (scheduled, since) = if let Some(scheduled) = self.first.pop_front() {
                (scheduled, self.begun)
            } else {
                let next = source.as_mut().map_or(Poll::Ready(None), |source| source.poll_next(cx));
                let Poll::Ready(next) = next else { break };
                let Some(scheduled) = next else {
                    self.is_exhausted = true;
                    break;
                };
                self.tally.requested(scheduled.request.size);
                (scheduled, Instant::now())
            };
            has_enqueued = true;
            self.turn = place + 1;
            let lane = &mut self.lanes[place];
            lane.unwritten.extend_from_slice(&scheduled.request.encode());
            lane.waiting.push_back(Waiting { scheduled, since });
        }
        has_enqueued
    }

    /// Next lane with room, in turn.
    fn free_lane(&self) -> Option<usize> {
        let count = self.lanes.len();
        let mut places = (0..count).map(|step| (self.turn + step) % count);
        places.find(|place| self.lanes[*place].waiting.len() < self.lanes[*place].depth)
    }

    /// Writes requests; true if bytes were taken.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let mut has_written = false;
        for lane in &mut self.lanes {
            while !lane.unwritten.is_empty() {
                let slices = [IoSlice::new(&lane.unwritten)];
                match self.link.poll_write(cx, lane.stream, &slices) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(taken)) => {
                        lane.unwritten.advance(taken);
                        (has_written, self.has_unflushed) = (true, true);
                    }
                    // The stream or the link has ended.
                    Poll::Ready(Err(error)) => {
                        let is_end =
                            [io::ErrorKind::NotConnected, io::ErrorKind::BrokenPipe].contains(&error.kind());
                        return Err(if is_end { Failure::Ended } else { Failure::Link(error) });
                    }
                }
            }
        }
        if (self.has_unflushed || self.link.is_multi()) && self.link.poll_flush(cx)?.is_ready() {
            self.has_unflushed = false;
        }
        Ok(has_written)
    }

    /// Waits for the earliest time limit of a request.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        // The timer is set again only after it fired: most requests are answered long before.
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let oldest =
                self.lanes.iter().filter_map(|lane| lane.waiting.front()).map(|waiting| waiting.since);
            let end = oldest.min().unwrap_or(now) + self.patience;
            if end <= now {
                return Poll::Ready(Err(Failure::Silence(self.patience)));
            }
            self.timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl Lane {
    fn new(stream: StreamKey, number: u64, depth: usize) -> Self {
        let (unwritten, waiting) = (BytesMut::new(), VecDeque::new());
        Self { stream, number, depth, unwritten, waiting, reader: ResponseReader::new() }
    }

    /// Parses received bytes; true if a response has ended in them.
    fn take(&mut self, mut bytes: &[u8], tally: &Counters) -> Result<bool, Failure> {
        tally.received(self.number, bytes.len());
        let mut has_ended = false;
        while let Some(part) = self.reader.next(&mut bytes)? {
            match part {
                Part::Head(head) => {
                    let next = self.waiting.front().map(|waiting| waiting.scheduled.request);
                    if next != Some(head) {
                        return Err(Failure::Stray { id: head.id, size: head.size });
                    }
                }
                Part::Body(_) => {}
                Part::End => {
                    if let Some(waiting) = self.waiting.pop_front() {
                        let Request { size, .. } = waiting.scheduled.request;
                        tally.answered(size, size, waiting.scheduled.due);
                        has_ended = true;
                    }
                }
            }
        }
        Ok(has_ended)
    }
}
