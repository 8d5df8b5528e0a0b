//! From the link to the protocol machine.

use std::task::{Context, Poll, ready};

use braid_proto::stream::StreamKey;
use braid_transport::Read;
use tokio::io::ReadBuf;

use super::{Driver, held, now, pace, scratch};

/// A client that does not take its acknowledgements is not read any further, on the stream that they are for. Large
/// payloads do not count: its PINGREQ must be heard.
const OUTBOX_LIMIT: usize = 256 * 1024;

/// Reads of one round where a connection has many streams: what they brought is dispatched as one batch.
const READS: usize = 32;

impl Driver {
    /// Whether more input of a stream can be dealt with.
    pub(super) fn may_read(&self, stream: StreamKey) -> bool {
        self.server.is_reading(stream)
            && !self.server.has_events()
            && self.server.unwritten_packets_on(stream) <= OUTBOX_LIMIT
            && !held::is_paused(self.held.as_ref(), stream)
            && !pace::is_too_fast(self.pace.as_deref(), stream)
            && !self.pressure.stops(&self.core.memory, stream)
    }

    /// Reads as far as there is something, and not too much for one round; true if there was something.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_read = false;
        let has_events = self.server.has_events();
        // What came is counted before more is read, where that is limited.
        let is_limited = self.pace.is_some() || self.core.memory.is_pressed();
        let reads = if self.link.is_multi() && !is_limited { READS } else { 1 };
        for _ in 0..reads {
            match self.read_once(context, has_events) {
                Poll::Pending => break,
                Poll::Ready(()) => has_read = true,
            }
            if self.server.is_closed() {
                break;
            }
        }
        has_read
    }

    /// `has_events`: those of the round before are to be dealt with first.
    fn read_once(&mut self, context: &mut Context<'_>, has_events: bool) -> Poll<()> {
        scratch::with(|buffer| {
            let (server, held, pace) = (&self.server, self.held.as_ref(), self.pace.as_deref());
            let (pressure, memory) = (&self.pressure, &*self.core.memory);
            let size = pressure.read_size(memory, pace::read_size(pace, buffer.len()));
            let mut buffer = ReadBuf::new(&mut buffer[..size]);
            let refused = &mut self.refused;
            refused.clear();
            let mut wants = |stream| {
                let wanted = !has_events
                    && server.is_reading(stream)
                    && server.unwritten_packets_on(stream) <= OUTBOX_LIMIT
                    && !held::is_paused(held, stream)
                    && !pace::is_too_fast(pace, stream)
                    && !pressure.stops(memory, stream);
                if !wanted {
                    refused.push(stream);
                }
                wanted
            };
            match ready!(self.link.poll_read(context, &mut buffer, &mut wants)) {
                Ok(read) => self.handle_read(read, buffer.filled()),
                Err(error) => self.end_link(Some(error)),
            }
            Poll::Ready(())
        })
    }

    fn handle_read(&mut self, read: Read, bytes: &[u8]) {
        let now = now();
        match read {
            Read::Bytes(stream) => {
                self.core.statistics.read(bytes.len() as u64);
                self.pay_for_bytes(stream, bytes.len(), now);
                self.note_reading(stream);
                self.handle_bytes(stream, bytes, now);
            }
            Read::Opened(stream) => self.open_stream(stream, now),
            Read::Finished(stream) => self.server.handle_stream_finished(stream, now),
            Read::Reset(stream, code) => {
                self.link.abort(stream, code); // [BQ-32]
                self.server.handle_stream_reset(stream, now);
                self.forget_stream(stream);
            }
            // The transport has answered with RESET_STREAM. [BQ-33]
            Read::Stopped(stream, _) if self.stop_waiting(stream) => {}
            Read::Stopped(stream, _) => self.server.handle_stream_stopped(stream, now),
            Read::Confirmed => {
                self.confirm_by = None;
                self.server.handle_confirmed(now);
            }
            Read::Moved(address) => {
                // [BQ-70]
                let client = self.entry.as_ref().map(|entry| entry.client_id.as_str());
                tracing::info!(client, %address, "the client moved to another address");
            }
            Read::Closed => self.end_link(None),
        }
    }

    /// Reads what nobody will look at, until the peer ends the link.
    pub(super) fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        scratch::with(|buffer| {
            loop {
                let mut buffer = ReadBuf::new(buffer);
                match ready!(self.link.poll_read(context, &mut buffer, &mut |_| true)) {
                    Ok(Read::Closed) | Err(_) => return Poll::Ready(()),
                    Ok(_) => {}
                }
            }
        })
    }
}
