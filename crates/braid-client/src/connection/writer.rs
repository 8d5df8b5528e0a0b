//! Link writer: writes the outboxes of the streams to the link, by priority.

use std::cmp::Reverse;
use std::io::{Error, ErrorKind, IoSlice};
use std::task::{Context, Poll};

use braid_proto::connection::Client as Protocol;
use braid_proto::stream::StreamKey;
use braid_transport::Link;
use braid_transport::quic::DatagramCounts;
use bytes::Buf;

use super::streams::Streams;

/// Maximum number of slices of one vectored write.
const SLICES: usize = 64;

/// Writer of one connection.
#[derive(Debug, Default)]
pub(super) struct LinkWriter {
    /// Streams of one turn; kept for its allocation.
    to_write: Vec<StreamKey>,
    /// Error of a write, after which the link takes nothing more. The connection ends once everything received is read.
    error: Option<Error>,
    /// Counts of datagrams that the statistics have.
    counted: DatagramCounts,
}

impl LinkWriter {
    /// Whether a write has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Replaces the counts of datagrams that the statistics have.
    pub(super) fn replace_counted(&mut self, now: DatagramCounts) -> DatagramCounts {
        std::mem::replace(&mut self.counted, now)
    }

    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Writes until the link takes no more, the stream with the highest priority first. True: the connection has to
    /// repeat its loop, because bytes were written or the link has failed.
    pub(super) fn poll(
        &mut self,
        link: &mut Link,
        protocol: &mut Protocol,
        streams: &mut Streams,
        cx: &mut Context<'_>,
    ) -> bool {
        let mut to_write = std::mem::take(&mut self.to_write);
        to_write.clear();
        protocol.streams_to_write(&mut to_write);
        to_write.sort_by_key(|stream| Reverse(streams.write_order(*stream))); // [BQ-50]
        let mut has_written = false;
        for stream in &to_write {
            has_written |= self.write_stream(link, protocol, streams, cx, *stream);
        }
        self.to_write = to_write;
        has_written || self.has_failed()
    }

    fn write_stream(
        &mut self,
        link: &mut Link,
        protocol: &mut Protocol,
        streams: &mut Streams,
        cx: &mut Context<'_>,
        stream: StreamKey,
    ) -> bool {
        let mut has_written = false;
        while let Some(outbox) = protocol.outbox(stream)
            && !outbox.is_empty()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = outbox.chunks_vectored(&mut slices);
            match link.poll_write(cx, stream, &slices[..count]) {
                Poll::Ready(Ok(len)) if len > 0 => {
                    outbox.advance(len);
                    if let Some(stream) = streams.get_mut(stream) {
                        stream.handle_written(len);
                    }
                    has_written = true;
                }
                Poll::Pending => break,
                // The stream has ended; a read reports how.
                Poll::Ready(Err(error))
                    if error.kind() == ErrorKind::NotConnected && !stream.is_control() =>
                {
                    break;
                }
                Poll::Ready(taken) => {
                    self.error = Some(taken.err().unwrap_or_else(|| ErrorKind::WriteZero.into()));
                    break;
                }
            }
        }
        has_written
    }
}
