//! Streams that are read without order: their pieces are taken out of the library after each datagram.
//!
//! A stream with many pieces behind a gap has to be read so, since the library ends a connection that holds too many.
//! But it makes fragments compact when they take much more memory than they have bytes, and loses bytes of such a
//! stream then, as it takes their number for an offset. That takes more frames than [`MAX_FRAMES`] at a time.

use std::collections::VecDeque;
use std::task::Poll;

use noq_proto::{Chunk, ReadError, StreamId};

use super::event::{Event, Received};

/// Frames of one stream in one datagram at most. Each may seem to take a whole packet of 1,472 bytes, and the library
/// makes them compact above 32 KiB. Senders merge bytes that follow each other.
const MAX_FRAMES: usize = 22;

/// The streams of a connection that are read so.
#[derive(Default)]
pub(super) struct Unordered {
    streams: Vec<Stream>,
    /// Events of the library that came before pieces were taken.
    events: VecDeque<Event>,
}

struct Stream {
    id: StreamId,
    pieces: Vec<Chunk>,
    end: Option<Received>,
    /// Frames since pieces were taken.
    frames: usize,
}

impl Unordered {
    pub(super) fn insert(&mut self, id: StreamId) {
        // There are pieces of it.
        self.streams.push(Stream { id, pieces: Vec::new(), end: None, frames: 1 });
    }

    /// Tests whether there are streams that are read so, or events that wait.
    pub(super) fn is_used(&self) -> bool {
        !(self.streams.is_empty() && self.events.is_empty())
    }

    pub(super) fn remove(&mut self, id: StreamId) {
        self.streams.retain(|stream| stream.id != id);
    }

    pub(super) fn push_event(&mut self, event: Event) {
        if let Event::Readable(id) = event
            && let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id)
        {
            stream.frames += 1;
        }
        self.events.push_back(event);
    }

    pub(super) fn pop_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes the pieces out of the library; false if some may be lost.
    pub(super) fn empty(&mut self, library: &mut noq_proto::Connection) -> bool {
        let mut is_complete = true;
        self.streams.retain_mut(|stream| {
            let frames = std::mem::take(&mut stream.frames);
            is_complete &= frames <= MAX_FRAMES;
            frames == 0 || stream.end.is_some() || stream.empty(library)
        });
        is_complete
    }

    /// Takes the pieces of a stream. Pending: an event tells of more.
    pub(super) fn take(&mut self, id: StreamId, handle_piece: impl FnMut(Chunk)) -> Poll<Received> {
        // The stream was stopped.
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return Poll::Pending };
        let stream = &mut self.streams[at];
        std::mem::take(&mut stream.pieces).into_iter().for_each(handle_piece);
        let Some(end) = stream.end else { return Poll::Pending };
        self.streams.swap_remove(at);
        Poll::Ready(end)
    }
}

impl Stream {
    /// False if the stream was stopped.
    fn empty(&mut self, library: &mut noq_proto::Connection) -> bool {
        let mut stream = library.recv_stream(self.id);
        let Ok(mut chunks) = stream.read(false) else { return false };
        self.end = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(piece)) => self.pieces.push(piece),
                Ok(None) => break Some(Received::Finished),
                Err(ReadError::Reset(code)) => break Some(Received::Reset(code)),
                Err(ReadError::Blocked) => break None,
            }
        };
        // Credit leaves with the next packets.
        let _ = chunks.finalize();
        true
    }
}
