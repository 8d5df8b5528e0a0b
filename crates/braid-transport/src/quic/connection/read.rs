//! Reading a link: who gets a turn.

use std::io;
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use noq::{RecvStream, SendStream};
use tokio::io::ReadBuf;

use super::close_reason::CloseReason;
use super::incoming::IncomingEvent;
use super::state::ConnectionState;
use super::stream::Inbound;
use super::wakers::Event;
use crate::link::Read;
use crate::quic::codes::{STREAM_NOT_SERVED, code};

impl ConnectionState {
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        self.answer_bells();
        loop {
            if let Some(read) = self.told.pop_front() {
                return Poll::Ready(Ok(read));
            }
            // The control stream comes first, and has at most every other turn while others wait.
            let skipped = std::mem::take(&mut self.control_had_turn);
            if !skipped && let Some(read) = self.read_control(buffer, wants) {
                self.control_had_turn = true;
                return Poll::Ready(Ok(read));
            }
            if let Some(read) = self.next_arrival().or_else(|| self.read_data(buffer, wants)) {
                return Poll::Ready(Ok(read));
            }
            if self.control_is_queued && wants(StreamKey::CONTROL) {
                continue;
            }
            if let Some(read) = self.settle(cx) {
                return Poll::Ready(Ok(read));
            }
            return self.end();
        }
    }

    /// Looks at what rang, and at nothing else.
    pub(super) fn answer_bells(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.wakers.take(&mut events);
        let has_rung = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Connection => self.has_arrivals = true,
                Event::Readable(StreamKey::CONTROL) => self.control_is_queued = true,
                Event::Readable(key) => self.enqueue(key),
                Event::Writable(key) => self.write_scheduler.told(key),
                Event::Stopped(key) => self.look_for_stop(key),
                Event::Acknowledged(number) => self.acknowledged(number),
            }
        }
        self.events = events;
        if has_rung && let Some(address) = self.migration.as_mut().and_then(|peer| peer.moved()) {
            self.told.push_back(Read::Moved(address));
        }
    }

    fn enqueue(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key)
            && !stream.is_queued
        {
            stream.is_queued = true;
            self.queue.push_back(key);
        }
    }

    fn read_control(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Option<Read> {
        if !self.control_is_queued || !wants(StreamKey::CONTROL) {
            return None;
        }
        let Poll::Ready(inbound) = self.control.poll_read(buffer) else {
            self.control_is_queued = false;
            return None;
        };
        match inbound {
            Inbound::Bytes => {
                self.gating.handle_received();
                return Some(Read::Bytes(StreamKey::CONTROL));
            }
            Inbound::Finished => self.is_over = true,
            Inbound::Reset(code) => self.close_reason = Some(CloseReason::ControlReset(code)),
            Inbound::Lost(close_reason) => {
                self.close_reason.get_or_insert(close_reason);
            }
        }
        self.control_is_queued = false;
        None
    }

    fn next_arrival(&mut self) -> Option<Read> {
        while self.has_arrivals {
            if let Some(read) = self.poll_arrival() {
                return Some(read);
            }
        }
        None
    }

    /// One thing that came with the connection's bell.
    fn poll_arrival(&mut self) -> Option<Read> {
        let mut cx = Context::from_waker(&self.connection_bell);
        if let Some(confirmed) = self.confirmed.as_mut()
            && confirmed.as_mut().poll(&mut cx).is_ready()
        {
            self.confirmed = None;
            self.gating.set_established();
            return Some(Read::Confirmed);
        }
        let event = match self.incoming.as_mut().map(|incoming| incoming.as_mut().poll_next(&mut cx)) {
            Some(Poll::Ready(Some(event))) => event,
            Some(Poll::Pending) | None => {
                self.has_arrivals = false;
                return None;
            }
            Some(Poll::Ready(None)) => {
                self.incoming = None;
                return None;
            }
        };
        match event {
            IncomingEvent::Bidi(send, recv) => return self.begin(Some(send), recv),
            IncomingEvent::Uni(recv) => return self.begin(None, recv),
            // If it was this connection, the next look at it panics; whoever called catches that.
            IncomingEvent::Failure => {}
            IncomingEvent::Lost(error) => {
                self.close_reason.get_or_insert(CloseReason::Connection(error));
                // What came before it is read, and their bells may not have been heard yet.
                self.control_is_queued |= self.control.recv.is_some();
                let keys: Vec<StreamKey> = self.streams.keys().copied().collect();
                keys.into_iter().for_each(|key| self.enqueue(key));
            }
        }
        None
    }

    /// A stream of the peer.
    fn begin(&mut self, send: Option<SendStream>, mut recv: RecvStream) -> Option<Read> {
        let index = u32::try_from(recv.id().index()).ok().filter(|index| *index < StreamKey::COUNT_MAX);
        let (None, Some(index)) = (&self.endpoint, index) else {
            // [BQ-4]
            tracing::debug!(stream = %recv.id(), "a stream of the server is refused");
            if let Some(mut send) = send {
                let _ = send.reset(code(STREAM_NOT_SERVED));
            }
            let _ = recv.stop(code(STREAM_NOT_SERVED));
            return None;
        };
        let key = if send.is_some() { StreamKey::bidi(index) } else { StreamKey::uni(index) };
        self.insert(key, send, Some(recv));
        Some(Read::Opened(key))
    }

    /// One buffer from the next stream that is wanted. Those that are not wanted keep their places.
    fn read_data(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Option<Read> {
        for _ in 0..self.queue.len() {
            let key = self.queue.pop_front()?;
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            if stream.recv.is_some() && !wants(key) {
                self.queue.push_back(key);
                continue;
            }
            let Poll::Ready(inbound) = stream.poll_read(buffer) else {
                stream.is_queued = false;
                continue;
            };
            let read = match inbound {
                Inbound::Bytes => {
                    self.gating.handle_received();
                    self.queue.push_back(key);
                    return Some(Read::Bytes(key));
                }
                Inbound::Finished => Some(Read::Finished(key)),
                Inbound::Reset(code) => Some(Read::Reset(key, code)),
                Inbound::Lost(_) => None,
            };
            stream.is_queued = false;
            self.retire(key);
            if read.is_some() {
                return read;
            }
        }
        None
    }

    /// Whether it is over, after everything that is wanted was read.
    fn end(&self) -> Poll<io::Result<Read>> {
        match &self.close_reason {
            _ if self.is_over => Poll::Ready(Ok(Read::Closed)),
            None => Poll::Pending,
            // In order: the last bytes of the control stream count, so they have to be wanted first.
            Some(close_reason) if close_reason.is_in_order() && self.control_is_queued => Poll::Pending,
            Some(close_reason) if close_reason.is_in_order() => Poll::Ready(Ok(Read::Closed)),
            Some(close_reason) => Poll::Ready(Err(close_reason.clone().into())),
        }
    }
}
