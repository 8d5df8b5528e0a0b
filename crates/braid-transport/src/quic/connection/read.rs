//! Reads of a link: the order of the streams, and events of the connection.

use std::io;
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use noq_proto::{Dir, StreamId};
use tokio::io::ReadBuf;

use super::state::{ConnectionState, Role, UnreadEstimate};
use super::stream::{self, CloseReason, Inbound, MAX_TAKEN, Stream};
use crate::quic::codes::{STREAM_NOT_SERVED, code};
use crate::quic::io::Connection;
use crate::transport::Read;

impl ConnectionState {
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        loop {
            if let Some(read) = self.next_read(buffer, wants) {
                return Poll::Ready(Ok(read));
            }
            if !self.receive(cx) {
                break;
            }
        }
        if self.reads.is_empty() {
            self.unread.handle_empty(|| self.connection.stats());
        }
        self.end()
    }

    /// The next of what was taken in.
    fn next_read(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Option<Read> {
        loop {
            if let Some(read) = self.reads.notices.pop_front() {
                return Some(read);
            }
            // The control stream comes first, and has at most every other turn while others wait.
            let was_first = std::mem::take(&mut self.reads.control_had_turn);
            if !was_first && let Some(read) = self.read_control(buffer, wants) {
                self.reads.control_had_turn = true;
                return Some(read);
            }
            if let Some(read) = self.accept_next().or_else(|| self.read_data(buffer, wants)) {
                return Some(read);
            }
            if !(self.reads.is_control_queued && wants(StreamKey::CONTROL)) {
                return None;
            }
        }
    }

    /// STREAM frames received on all streams.
    pub(crate) fn stream_frames(&mut self) -> u64 {
        self.connection.stats().frame_rx.stream
    }

    /// Upper estimate of the bytes that were received and not read.
    pub(crate) fn unread_bytes(&mut self) -> usize {
        let streams = self.reads.queue.len() + usize::from(self.reads.is_control_queued);
        if streams == 0 { 0 } else { self.unread.bytes(&self.connection.stats(), streams) }
    }

    /// Reads a stream, of which a piece has come or which has ended, in its turn.
    pub(super) fn enqueue(&mut self, key: StreamKey) {
        let Self { control, streams, reads, connection, unread, role, .. } = self;
        let stream = if key.is_control() {
            reads.is_control_queued = control.is_receiving;
            control
        } else {
            let Some(stream) = streams.get_mut(&key) else {
                reads.pieces_of_incoming += 1;
                return;
            };
            if !std::mem::replace(&mut stream.is_queued, true) {
                reads.queue.push_back(key);
            }
            stream
        };
        // Taken pieces give credit, and a peer that is not trusted has little of that.
        let is_trusted = !matches!(role, Role::Server { is_trusted: false, .. });
        if stream.has_too_many_pieces() && is_trusted && unread.taken() < MAX_TAKEN {
            let taken = stream.taken();
            stream.take_pieces(connection, unread.stream_window());
            unread.handle_taken(taken, stream.taken());
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
        match read(&mut self.control, &mut self.connection, &mut self.unread, buffer) {
            Poll::Ready(Inbound::Bytes) => {
                self.handle_bytes(buffer.filled().len() - before);
                return Some(Read::Bytes(StreamKey::CONTROL));
            }
            Poll::Ready(Inbound::Finished) => self.reads.is_control_finished = true,
            Poll::Ready(Inbound::Reset(code)) => self.close_reason = Some(CloseReason::ControlReset(code)),
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

    /// Accepts the next stream that the peer has opened.
    fn accept_next(&mut self) -> Option<Read> {
        for (slot, dir) in [Dir::Bi, Dir::Uni].into_iter().enumerate() {
            while self.reads.are_incoming[slot] {
                match self.connection.accept(dir) {
                    Some(id) => {
                        if let Some(read) = self.accept(id) {
                            return Some(read);
                        }
                    }
                    None => self.reads.are_incoming[slot] = false,
                }
            }
        }
        self.reads.pieces_of_incoming = 0;
        None
    }

    /// Takes in a stream that the peer has opened.
    fn accept(&mut self, id: StreamId) -> Option<Read> {
        let is_bidi = id.dir() == Dir::Bi;
        let (Role::Server { .. }, Some(key)) = (&self.role, stream::key(id)) else {
            // [BQ-4]
            tracing::debug!(stream = %id, "a stream of the server is refused");
            if is_bidi {
                self.connection.reset(id, code(STREAM_NOT_SERVED));
            }
            self.connection.stop(id, code(STREAM_NOT_SERVED));
            return None;
        };
        self.insert(key, is_bidi, true);
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
            if stream.is_receiving && !wants(key) {
                self.reads.queue.push_back(key);
                continue;
            }
            let before = buffer.filled().len();
            let read = match read(stream, &mut self.connection, &mut self.unread, buffer) {
                Poll::Ready(Inbound::Bytes) => {
                    self.handle_bytes(buffer.filled().len() - before);
                    self.reads.queue.push_back(key);
                    return Some(Read::Bytes(key));
                }
                Poll::Ready(Inbound::Finished) => Some(Read::Finished(key)),
                Poll::Ready(Inbound::Reset(code)) => Some(Read::Reset(key, code)),
                Poll::Pending => None,
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

/// Reads a stream, and counts what is left of it outside of the library.
fn read(
    stream: &mut Stream,
    connection: &mut Connection,
    unread: &mut UnreadEstimate,
    buffer: &mut ReadBuf<'_>,
) -> Poll<Inbound> {
    let taken = stream.taken();
    let read = stream.poll_read(connection, buffer, unread.stream_window());
    unread.handle_taken(taken, stream.taken());
    read
}
