//! Reads of a link: the order of the streams, and events of the connection.

use std::io;
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use noq_proto::{Dir, StreamId};
use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::receive_half::Inbound;
use super::receive_window::ReceiveWindow;
use super::state::{ConnectionState, Role};
use super::stream::{self, CloseReason, Stream};
use crate::quic::codes::{CLOSE_ABNORMAL, STREAM_NOT_SERVED, code};
use crate::quic::io::Connection;
use crate::transport::Read;

/// Datagrams that a server reads before streams have a turn.
const MAX_DATAGRAM_TURNS: usize = 64;

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
        if self.reads.is_empty() && self.window.held() == 0 {
            self.unread.handle_empty(|| self.connection.stats());
            self.window.handle_empty();
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
            // At a server datagrams that came with a DISCONNECT are read before it, at a client those that came with
            // CONNACK behind it.
            let turns = std::mem::take(&mut self.reads.datagram_turns);
            let is_server = matches!(self.role, Role::Server { .. });
            if is_server
                && turns < MAX_DATAGRAM_TURNS
                && let Some(read) = self.read_datagram(buffer, wants)
            {
                self.reads.datagram_turns = turns + 1;
                return Some(read);
            }
            // The control stream comes first, and has at most every other turn while others wait.
            let was_first = std::mem::take(&mut self.reads.control_had_turn);
            if !was_first && let Some(read) = self.read_control(buffer, wants) {
                self.reads.control_had_turn = true;
                return Some(read);
            }
            if !is_server
                && turns == 0
                && let Some(read) = self.read_datagram(buffer, wants)
            {
                self.reads.datagram_turns = 1;
                return Some(read);
            }
            if let Some(read) = self.accept_next().or_else(|| self.read_data(buffer, wants)) {
                return Some(read);
            }
            if turns > 0
                && let Some(read) = self.read_datagram(buffer, wants)
            {
                return Some(read);
            }
            if !(self.reads.is_control_queued && wants(StreamKey::CONTROL)) {
                return None;
            }
        }
    }

    /// STREAM and DATAGRAM frames received.
    pub(crate) fn stream_frames(&mut self) -> u64 {
        let frames = self.connection.stats().frame_rx;
        frames.stream + frames.datagram
    }

    /// Upper estimate of the bytes that were received and not read.
    pub(crate) fn unread_bytes(&mut self) -> usize {
        let Self { control, streams, reads, unread, window, connection, .. } = self;
        let queued = reads.queue.iter().filter_map(|key| streams.get(key)).map(Box::as_ref);
        let queued = queued.chain(reads.is_control_queued.then_some(&*control));
        let limit: u64 = queued.map(|stream| stream.window(unread.stream_window() as u64)).sum();
        let received = if limit == 0 { 0 } else { unread.received(&connection.stats()).min(limit) };
        let datagrams = connection.datagrams().map_or(0, |frames| frames.unread_bytes());
        usize::try_from(received.max(window.held())).unwrap_or(usize::MAX).saturating_add(datagrams)
    }

    /// Bytes of them that were taken out of the library.
    pub(crate) fn held_bytes(&self) -> usize {
        let held = usize::try_from(self.window.held()).unwrap_or(usize::MAX);
        held.saturating_add(self.connection.datagrams().map_or(0, |frames| frames.unread_bytes()))
    }

    /// Sets the receive window after what is read and what is not. True if the connection was closed instead.
    pub(super) fn update_window(&mut self) -> bool {
        if self.connection.is_unordered() && self.has_lost_bytes() {
            return self.refuse_pieces("the QUIC library has lost bytes of a stream");
        }
        if !self.window.is_due(self.connection.received()) {
            return false;
        }
        let unread = self.unread_bytes() as u64;
        self.window.update(&mut self.connection, unread);
        self.window.is_exceeded()
            && self.refuse_pieces("a peer has sent more bytes of streams than may be held")
    }

    fn has_lost_bytes(&mut self) -> bool {
        let now = Instant::now();
        let mut streams = self.streams.values_mut().map(Box::as_mut).chain([&mut self.control]);
        streams.any(|stream| stream.has_lost_bytes(now))
    }

    /// Closes the connection, since pieces of its streams cannot be taken any more. True unless it has ended before.
    fn refuse_pieces(&mut self, reason: &str) -> bool {
        let is_open = self.connection.error().is_none();
        if is_open {
            tracing::debug!(reason, "a connection is closed");
            self.connection.close(code(CLOSE_ABNORMAL));
        }
        is_open
    }

    /// Reads a stream, of which a piece has come or which has ended, in its turn.
    pub(super) fn enqueue(&mut self, key: StreamKey) {
        let Self { control, streams, reads, window, .. } = self;
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
        if stream.has_too_many_pieces()
            && window.is_open()
            && !std::mem::replace(&mut stream.is_crowded, true)
        {
            reads.crowded.push(key);
        }
    }

    /// Takes pieces of streams that may have too many out of the library. Each is looked at once for all that has come,
    /// as frames without a new byte count as pieces, too.
    pub(super) fn take_pieces(&mut self) {
        while let Some(key) = self.reads.crowded.pop() {
            let Self { control, streams, connection, unread, window, .. } = self;
            let stream = match key.is_control() {
                true => Some(control),
                false => streams.get_mut(&key).map(Box::as_mut),
            };
            let Some(stream) = stream else { continue };
            stream.is_crowded = false;
            let held = stream.held();
            let is_taken = stream.take_pieces(connection, unread);
            window.handle_held(connection, held, stream.held());
            if !is_taken {
                self.refuse_pieces("a peer has sent a stream with too many gaps");
            }
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
        match read(&mut self.control, &mut self.connection, &mut self.window, buffer) {
            Poll::Ready(Inbound::Bytes { is_drained }) => {
                self.reads.is_control_queued = !is_drained;
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

    /// Reads the next datagram. Datagrams are wanted if the control stream is.
    fn read_datagram(
        &mut self,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Option<Read> {
        let frames = self.connection.datagrams_mut().filter(|frames| frames.has_unread())?;
        if !wants(StreamKey::CONTROL) {
            return None;
        }
        buffer.put_slice(&frames.read(buffer.remaining())?);
        Some(Read::Datagram)
    }

    fn handle_bytes(&mut self, bytes: usize) {
        self.unread.handle_read(bytes);
        self.window.handle_read(bytes);
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
        // Told before the stream was known, if it came with the first frame.
        if is_bidi && let Some(code) = self.connection.stop_code(id) {
            self.handle_stop(key, code);
        }
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
            let read = match read(stream, &mut self.connection, &mut self.window, buffer) {
                Poll::Ready(Inbound::Bytes { is_drained }) => {
                    stream.is_queued = !is_drained;
                    self.handle_bytes(buffer.filled().len() - before);
                    if !is_drained {
                        self.reads.queue.push_back(key);
                    }
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
    window: &mut ReceiveWindow,
    buffer: &mut ReadBuf<'_>,
) -> Poll<Inbound> {
    let (held, before) = (stream.held(), buffer.filled().len());
    let read = stream.poll_read(connection, buffer);
    if stream.held() == held {
        window.handle_credit(buffer.filled().len() - before);
    }
    window.handle_held(connection, held, stream.held());
    read
}
