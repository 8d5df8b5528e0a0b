//! Streams and datagrams of a connection.

use std::io::IoSlice;
use std::task::Poll;

use bytes::Bytes;
use noq_proto::{Chunk, Dir, FinishError, ReadError, StreamId, VarInt, WriteError};
use tokio::io::ReadBuf;

use super::{Connection, DISCARD_WINDOW};
use crate::quic::io::datagram_frames::DatagramFrames;
use crate::quic::io::event::{Received, Refused};

impl Connection {
    /// The next stream that the peer has opened.
    pub(in crate::quic) fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.library.streams().accept(dir)
    }

    /// Opens a stream, if the peer permits one.
    pub(in crate::quic) fn open(&mut self, dir: Dir) -> Option<StreamId> {
        self.library.streams().open(dir)
    }

    /// Reads the next bytes of a stream. Pending: an event tells of more. `handle_piece` gets the length of each piece,
    /// and whether it was all that the library had of it.
    pub(in crate::quic) fn read(
        &mut self,
        id: StreamId,
        buffer: &mut ReadBuf<'_>,
        mut handle_piece: impl FnMut(usize, bool),
    ) -> Poll<Received> {
        let before = buffer.filled().len();
        let mut stream = self.library.recv_stream(id);
        // The last read has met the end behind its bytes.
        let Ok(mut chunks) = stream.read(true) else { return Poll::Ready(Received::Finished) };
        let end = loop {
            match chunks.next(buffer.remaining()) {
                Ok(Some(chunk)) => {
                    handle_piece(chunk.bytes.len(), chunk.bytes.len() < buffer.remaining());
                    buffer.put_slice(&chunk.bytes);
                }
                end => break end,
            }
            if buffer.remaining() == 0 {
                let _ = chunks.finalize();
                return Poll::Ready(Received::Bytes { is_drained: false });
            }
        };
        // Credit leaves with the next packets.
        let _ = chunks.finalize();
        match end {
            _ if buffer.filled().len() > before => {
                Poll::Ready(Received::Bytes { is_drained: end == Err(ReadError::Blocked) })
            }
            Ok(_) => Poll::Ready(Received::Finished),
            Err(ReadError::Reset(code)) => Poll::Ready(Received::Reset(code)),
            Err(ReadError::Blocked) => Poll::Pending,
        }
    }

    /// Has a stream read without order from now on: by [`Self::take_pieces`], after events of it.
    pub(in crate::quic) fn read_unordered(&mut self, id: StreamId) {
        let mut unordered = self.unordered.take().unwrap_or_default();
        // Before frames are counted: those were in order.
        self.collect_events(&mut unordered);
        unordered.insert(id);
        self.unordered = Some(unordered);
        self.empty_unordered();
    }

    /// Takes the pieces of such a stream that have come, each byte once. Pending: an event tells of more.
    pub(in crate::quic) fn take_pieces(
        &mut self,
        id: StreamId,
        handle_piece: impl FnMut(Chunk),
    ) -> Poll<Received> {
        self.unordered.as_mut().map_or(Poll::Pending, |unordered| unordered.take(id, handle_piece))
    }

    /// Drops all bytes that come from now on, and gives next to no credit.
    pub(in crate::quic) fn discard_all(&mut self) {
        self.is_discarding = true;
        self.unordered = None;
        self.set_receive_window(DISCARD_WINDOW);
    }

    pub(super) fn discard(&mut self, id: StreamId) {
        if let Ok(mut chunks) = self.library.recv_stream(id).read(false) {
            while let Ok(Some(_)) = chunks.next(usize::MAX) {}
        }
    }

    /// Writes as much of `slices` as is taken now, at most `max` bytes. Pending: an event tells of room.
    pub(in crate::quic) fn write(
        &mut self,
        id: StreamId,
        slices: &[IoSlice<'_>],
        max: usize,
    ) -> Poll<Result<usize, Refused>> {
        if let Some(error) = &self.error {
            return Poll::Ready(Err(Refused::Lost(error.clone())));
        }
        let mut stream = self.library.send_stream(id);
        let mut total = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            let slice = &slice[..slice.len().min(max - total)];
            match stream.write(slice) {
                Ok(written) => total += written,
                // Bytes taken so far count; the error comes back with the next write.
                Err(_) if total > 0 => break,
                Err(error) => return refused(&error),
            }
            if total == max {
                break;
            }
        }
        self.answers.handle_written(total);
        Poll::Ready(Ok(total))
    }

    /// Reads the next chunk of a stream, at most `max` bytes; `None` at its end.
    pub(in crate::quic) fn read_chunk(
        &mut self,
        id: StreamId,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, VarInt>> {
        let mut stream = self.library.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Poll::Ready(Ok(None)) };
        let next = chunks.next(max);
        let _ = chunks.finalize();
        match next {
            Ok(chunk) => Poll::Ready(Ok(chunk.map(|chunk| chunk.bytes))),
            Err(ReadError::Reset(code)) => Poll::Ready(Err(code)),
            Err(ReadError::Blocked) => Poll::Pending,
        }
    }

    /// Writes from the begin of `chunk`, and removes what was taken.
    pub(in crate::quic) fn write_chunk(
        &mut self,
        id: StreamId,
        chunk: &mut Bytes,
    ) -> Poll<Result<usize, Refused>> {
        if let Some(error) = &self.error {
            return Poll::Ready(Err(Refused::Lost(error.clone())));
        }
        match self.library.send_stream(id).write_chunks(&mut std::slice::from_mut(chunk)) {
            Ok(written) => {
                self.answers.handle_written(written);
                Poll::Ready(Ok(written))
            }
            Err(error) => refused(&error),
        }
    }

    /// Tells whether there is room for a write, without one: an empty write that is taken would send an empty frame.
    /// Pending: an event tells of room, unless the connection has ended. To be called while the send window is 0.
    pub(in crate::quic) fn poll_room(&mut self, id: StreamId) -> Poll<()> {
        match self.library.send_stream(id).write(&[]) {
            Err(WriteError::Blocked) if self.error.is_none() => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Sends FIN. An error means that the stream has ended.
    pub(in crate::quic) fn finish(&mut self, id: StreamId) -> Result<(), FinishError> {
        self.library.send_stream(id).finish()
    }

    /// Sends RESET_STREAM, if the half is open.
    pub(in crate::quic) fn reset(&mut self, id: StreamId, code: VarInt) {
        let _ = self.library.send_stream(id).reset(code);
    }

    /// Sends STOP_SENDING, if the half is open.
    pub(in crate::quic) fn stop(&mut self, id: StreamId, code: VarInt) {
        let _ = self.library.recv_stream(id).stop(code);
        if let Some(unordered) = &mut self.unordered {
            unordered.remove(id);
        }
    }

    /// Code of the peer's STOP_SENDING for a stream that is not reset, if one has come.
    pub(in crate::quic) fn stop_code(&mut self, id: StreamId) -> Option<VarInt> {
        self.library.send_stream(id).stopped().ok().flatten()
    }

    /// True once the peer has acknowledged all of a stream that was finished, or has stopped it, or the connection has
    /// ended.
    pub(in crate::quic) fn is_send_over(&mut self, id: StreamId) -> bool {
        self.error.is_some() || !matches!(self.library.send_stream(id).stopped(), Ok(None))
    }

    pub(in crate::quic) fn set_priority(&mut self, id: StreamId, priority: i32) {
        // An error means that the stream has ended, and the next write says so.
        let _ = self.library.send_stream(id).set_priority(priority);
    }

    /// Sets the bytes that may be written and unacknowledged over all streams.
    pub(in crate::quic) fn set_send_window(&mut self, bytes: u64) {
        self.library.set_send_window(bytes);
    }

    /// Sets the unread bytes that the peer may send over all streams.
    pub(in crate::quic) fn set_receive_window(&mut self, bytes: VarInt) {
        self.library.set_receive_window(bytes);
    }

    /// Tests whether streams are read without order.
    pub(in crate::quic) fn is_unordered(&self) -> bool {
        self.unordered.is_some()
    }

    /// Number of datagrams that have come.
    pub(in crate::quic) fn received(&self) -> u64 {
        self.received
    }

    /// Takes in DATAGRAM frames, and sends them, from now on.
    pub(in crate::quic) fn permit_datagrams(&mut self) {
        let mut datagrams = Box::new(DatagramFrames::new(&mut self.library));
        // Those that came before are read first, and not behind what was sent after them.
        datagrams.take_received(&mut self.library);
        self.datagrams = Some(datagrams);
    }

    /// Largest datagram that the path takes now; `None` if either end permits none.
    pub(in crate::quic) fn datagram_size(&mut self) -> Option<usize> {
        self.datagrams.as_ref().and_then(|_| self.library.datagrams().max_size())
    }

    pub(in crate::quic) fn datagrams(&self) -> Option<&DatagramFrames> {
        self.datagrams.as_deref()
    }

    pub(in crate::quic) fn datagrams_mut(&mut self) -> Option<&mut DatagramFrames> {
        self.datagrams.as_deref_mut()
    }

    /// A datagram is to be sent: acknowledgements do not wait any longer.
    pub(in crate::quic) fn note_datagram(&mut self, bytes: usize) {
        self.answers.handle_written(bytes);
    }
}

fn refused(error: &WriteError) -> Poll<Result<usize, Refused>> {
    match error {
        WriteError::Blocked => Poll::Pending,
        WriteError::Stopped(code) => Poll::Ready(Err(Refused::Stopped(*code))),
        WriteError::ClosedStream => Poll::Ready(Err(Refused::Closed)),
    }
}
