//! What goes into the link.

use std::cmp::Reverse;
use std::io::{ErrorKind, IoSlice};
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use bytes::Buf;

use super::Connection;

/// Parts of one vectored write.
const SLICES: usize = 64;

impl Connection {
    /// Writes what the streams take, the most urgent first. Whether they took anything.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut to_write = std::mem::take(&mut self.to_write);
        to_write.clear();
        self.protocol.streams_to_write(&mut to_write);
        if to_write.is_empty() {
            // Encrypted and framed links hold bytes back until they are told that no more come.
            if self.is_unflushed && self.link.poll_flush(cx).is_ready() {
                self.is_unflushed = false;
            }
        }
        to_write.sort_by_key(|stream| Reverse(self.streams.rank(*stream))); // [BQ-50]
        let mut has_written = false;
        for stream in &to_write {
            has_written |= self.write_stream(cx, *stream);
        }
        self.to_write = to_write;
        // What came before is read first.
        has_written || self.unwritable.is_some()
    }

    /// Writes on one stream until it takes no more or has no more.
    fn write_stream(&mut self, cx: &mut Context<'_>, stream: StreamKey) -> bool {
        let mut has_written = false;
        while let Some(outbox) = self.protocol.outbox(stream)
            && !outbox.is_empty()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = outbox.chunks_vectored(&mut slices);
            match self.link.poll_write(cx, stream, &slices[..count]) {
                Poll::Ready(Ok(len)) if len > 0 => {
                    outbox.advance(len);
                    if let Some(known) = self.streams.get_mut(stream) {
                        known.handle_written(len);
                    }
                    has_written = true;
                    self.is_unflushed = true;
                }
                Poll::Pending => break,
                // A read tells how.
                Poll::Ready(Err(error))
                    if error.kind() == ErrorKind::NotConnected && !stream.is_control() =>
                {
                    break;
                }
                Poll::Ready(taken) => {
                    let error = taken.err().unwrap_or_else(|| ErrorKind::WriteZero.into());
                    self.unwritable = Some(error);
                    break;
                }
            }
        }
        has_written
    }
}
