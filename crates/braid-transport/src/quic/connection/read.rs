//! Reads of a link: the order of the streams, and events of the connection.

use std::io;
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use noq::{RecvStream, SendStream};
use tokio::io::ReadBuf;

use super::events::{ConnectionEvent, Event};
use super::state::{ConnectionState, Role};
use super::stream::{CloseReason, Inbound};
use crate::quic::codes::{STREAM_NOT_SERVED, code};
use crate::transport::Read;

impl ConnectionState {
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        self.handle_events();
        loop {
            if let Some(read) = self.reads.notices.pop_front() {
                return Poll::Ready(Ok(read));
            }
            // Before the bytes that arrived with it, which are no early data.
            if self.events.poll_confirmed() {
                if let Some(gate) = &self.gate {
                    gate.set_established();
                }
                return Poll::Ready(Ok(Read::Confirmed));
            }
            // The control stream comes first, and has at most every other turn while others wait.
            let was_first = std::mem::take(&mut self.reads.control_had_turn);
            if !was_first && let Some(read) = self.read_control(buffer, wants) {
                self.reads.control_had_turn = true;
                return Poll::Ready(Ok(read));
            }
            if let Some(read) = self.next_connection_event().or_else(|| self.read_data(buffer, wants)) {
                return Poll::Ready(Ok(read));
            }
            if self.reads.is_control_queued && wants(StreamKey::CONTROL) {
                continue;
            }
            if self.reads.is_empty() {
                self.unread.handle_empty(|| self.connection.stats());
            }
            if let Some(read) = self.poll_finishes(cx) {
                return Poll::Ready(Ok(read));
            }
            return self.end();
        }
    }

    /// Looks at the objects whose wakers were woken, and at no others.
    pub(super) fn handle_events(&mut self) {
        let mut events = std::mem::take(&mut self.woken);
        self.wakers.take(&mut events);
        let is_woken = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Connection => self.events.is_ready = true,
                Event::Readable(StreamKey::CONTROL) => self.reads.is_control_queued = true,
                Event::Readable(key) => self.enqueue(key),
                Event::Writable(key) => self.writes.scheduler.handle_woken(key),
                Event::Stopped(key) => self.poll_stop(key),
                Event::Acknowledged(number) => self.handle_acknowledged(number),
            }
        }
        self.woken = events;
        if is_woken && let Some(address) = self.role.take_new_address() {
            self.reads.notices.push_back(Read::Moved(address));
        }
    }

    /// STREAM frames received on all streams.
    pub(crate) fn stream_frames(&self) -> u64 {
        self.connection.stats().frame_rx.stream
    }

    /// Upper estimate of the bytes that were received and not read.
    pub(crate) fn unread_bytes(&mut self) -> usize {
        let streams = self.reads.queue.len() + usize::from(self.reads.is_control_queued);
        if streams == 0 { 0 } else { self.unread.bytes(&self.connection.stats(), streams) }
    }

    fn enqueue(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key)
            && !stream.is_queued
        {
            stream.is_queued = true;
            self.reads.queue.push_back(key);
        }
    }

    fn read_control(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Option<Read> {
        if !self.reads.is_control_queued || !wants(StreamKey::CONTROL) {
            return None;
        }
        let before = buffer.filled().len();
        match self.control.poll_read(buffer) {
            Poll::Ready(Inbound::Bytes) => {
                self.handle_bytes(buffer.filled().len() - before);
                return Some(Read::Bytes(StreamKey::CONTROL));
            }
            Poll::Ready(Inbound::Finished) => self.reads.is_control_finished = true,
            Poll::Ready(Inbound::Reset(code)) => self.close_reason = Some(CloseReason::ControlReset(code)),
            Poll::Ready(Inbound::Lost(reason)) => {
                self.close_reason.get_or_insert(reason);
            }
            Poll::Pending => {}
        }
        self.reads.is_control_queued = false;
        None
    }

    fn handle_bytes(&mut self, bytes: usize) {
        self.unread.handle_read(bytes);
        if let Some(gate) = &self.gate {
            gate.handle_received();
        }
    }

    fn next_connection_event(&mut self) -> Option<Read> {
        while let Some(event) = self.events.poll_next() {
            match event {
                ConnectionEvent::Bidi(send, recv) => {
                    if let Some(read) = self.accept(Some(send), recv) {
                        return Some(read);
                    }
                }
                ConnectionEvent::Uni(recv) => {
                    if let Some(read) = self.accept(None, recv) {
                        return Some(read);
                    }
                }
                // If it was this connection, the next call of the library panics, and that is caught.
                ConnectionEvent::Failure => {}
                ConnectionEvent::Lost(error) => {
                    self.close_reason.get_or_insert(CloseReason::Connection(error));
                    // Bytes before it are read, and their wakers may not have been woken yet.
                    self.reads.is_control_queued |= self.control.recv.is_some();
                    let keys: Vec<StreamKey> = self.streams.keys().copied().collect();
                    keys.into_iter().for_each(|key| self.enqueue(key));
                }
            }
        }
        None
    }

    /// Accepts a stream that the peer opened.
    fn accept(&mut self, send: Option<SendStream>, mut recv: RecvStream) -> Option<Read> {
        let index = u32::try_from(recv.id().index()).ok().filter(|index| *index < StreamKey::COUNT_MAX);
        let (Role::Server { .. }, Some(index)) = (&self.role, index) else {
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

    /// Reads one buffer from the next stream that is wanted. The others keep their order.
    fn read_data(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Option<Read> {
        for _ in 0..self.reads.queue.len() {
            let key = self.reads.queue.pop_front()?;
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            if stream.recv.is_some() && !wants(key) {
                self.reads.queue.push_back(key);
                continue;
            }
            let before = buffer.filled().len();
            let read = match stream.poll_read(buffer) {
                Poll::Ready(Inbound::Bytes) => {
                    self.handle_bytes(buffer.filled().len() - before);
                    self.reads.queue.push_back(key);
                    return Some(Read::Bytes(key));
                }
                Poll::Ready(Inbound::Finished) => Some(Read::Finished(key)),
                Poll::Ready(Inbound::Reset(code)) => Some(Read::Reset(key, code)),
                Poll::Ready(Inbound::Lost(_)) | Poll::Pending => None,
            };
            stream.is_queued = false;
            self.remove_if_over(key);
            if read.is_some() {
                return read;
            }
        }
        None
    }

    /// The end of the link, after everything that is wanted was read.
    fn end(&self) -> Poll<io::Result<Read>> {
        match &self.close_reason {
            _ if self.reads.is_control_finished => Poll::Ready(Ok(Read::Closed)),
            None => Poll::Pending,
            // The last bytes of the control stream count, so they have to be wanted first.
            Some(reason) if reason.is_in_order() && self.reads.is_control_queued => Poll::Pending,
            Some(reason) if reason.is_in_order() => Poll::Ready(Ok(Read::Closed)),
            Some(reason) => Poll::Ready(Err(reason.clone().into())),
        }
    }
}
