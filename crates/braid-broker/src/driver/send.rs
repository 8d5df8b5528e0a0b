//! From the mailbox to the link: deliveries into outboxes, outboxes into streams.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use braid_proto::connection::Sent;
use braid_proto::message::Delivery;
use braid_proto::stream::{Lane, StreamKey};
use bytes::Buf;

use super::{Driver, now};

/// Deliveries are encoded only up to here: what waits longer waits as a message, where its order and its cap are.
pub(super) const OUTBOX_TARGET: usize = 64 * 1024;

/// The same where deliveries of several lanes wait: what is encoded cannot be overtaken any more. [BQ-53]
const MIXED_TARGET: usize = 16 * 1024;

/// The same for all streams of a connection; one that has nothing encoded may always have one delivery. [BQ-56]
const CONNECTION_TARGET: usize = 1024 * 1024;

/// Slices of one vectored write.
const SLICES: usize = 16;

impl Driver {
    // -- Deliveries --------------------------------------------------------------------------------

    /// Moves deliveries into the outboxes as far as these, the peer and the inbox go: the most urgent first, and past
    /// streams that are stuck. [BQ-53], [BQ-55]
    pub(super) fn deliver(&mut self) {
        if self.server.is_resending() {
            self.server.continue_resend(now());
        }
        if self.egress.is_empty() {
            return;
        }
        let now = now();
        self.egress.note_begin(now);
        let (mut sent, mut dropped) = (0, 0);
        let mut unwritten = self.server.unwritten();
        while let Some((lane, next)) = self.next_delivery(unwritten) {
            let (stored, qos) = (next.stored, next.qos);
            if self.core.queues.policy.is_too_old(next.waits_since, now) {
                self.core.queues.note_aged(1);
                self.note_dropped(stored);
                continue;
            }
            if !self.access.may_receive(&next.message.topic) {
                dropped += 1;
                self.note_dropped(stored);
                continue;
            }
            let stream = self.server.resolve(next.stream);
            let before = self.server.unwritten_on(stream);
            match self.server.deliver(next, now) {
                Sent::Out(packet_id) => {
                    sent += 1;
                    self.egress.note_progress(stream, now);
                    unwritten += self.server.unwritten_on(stream) - before;
                    self.rank_delivery(stream, lane.priority, before, now);
                    if let Some(packet_id) = packet_id {
                        self.ack_rtt.note_sent(packet_id, now);
                    }
                    if let (Some(place), Some(packet_id)) = (stored, packet_id) {
                        self.note_sent(place, qos, packet_id, (stream, before));
                    }
                }
                Sent::Expired | Sent::TooLarge => {
                    dropped += 1;
                    self.note_dropped(stored);
                }
                Sent::Blocked(delivery) => {
                    self.egress.put_back(lane, *delivery);
                    break;
                }
            }
        }
        if sent > 0 {
            self.ack_rtt.note_progress(now);
        }
        self.rank_waiting(now);
        self.core.statistics.sent(sent);
        self.core.statistics.dropped(dropped);
    }

    fn next_delivery(&mut self, unwritten: usize) -> Option<(Lane, Delivery)> {
        let target = if self.egress.is_mixed() { MIXED_TARGET } else { OUTBOX_TARGET };
        let is_crowded = unwritten >= CONNECTION_TARGET;
        let server = &self.server;
        let mut full = self.streams.as_mut().map(|streams| &mut streams.full);
        self.egress.pop(|lane, delivery| {
            let own = server.unwritten_on(server.resolve(lane.stream));
            let has_room = own < target && (own == 0 || !is_crowded);
            if let Some(full) = &mut full
                && !has_room
                && server.takes(delivery)
            {
                full.push(lane);
            }
            has_room && server.takes(delivery)
        })
    }

    // -- Bytes -------------------------------------------------------------------------------------

    /// Writes until the link takes no more; true when it took something.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>) -> bool {
        let mut written = self.write_stream(StreamKey::CONTROL, context);
        if let Some(mut streams) = self.streams.as_mut().map(|streams| std::mem::take(&mut streams.to_write))
        {
            self.server.streams_to_write(&mut streams);
            streams.retain(|stream| !stream.is_control());
            if !streams.is_empty() {
                self.order(&mut streams);
            }
            for stream in streams.drain(..) {
                written += self.write_stream(stream, context);
            }
            if let Some(own) = &mut self.streams {
                own.to_write = streams;
            }
            self.end_streams();
        }
        if !self.link_ended
            && let Poll::Ready(Err(error)) = self.link.poll_flush(context)
        {
            self.end_link(Some(error));
        }
        self.core.statistics.written(written as u64);
        self.note_written(written);
        written > 0
    }

    /// Puts streams with something to write into the order of their urgency. [BQ-50]
    fn order(&mut self, streams: &mut [StreamKey]) {
        let now = now();
        streams.iter().for_each(|stream| self.rank_acknowledgements(*stream, now));
        if let Some(own) = &self.streams {
            own.sort(streams);
        }
    }

    /// Writes one stream until it takes no more; how many bytes it took.
    fn write_stream(&mut self, stream: StreamKey, context: &mut Context<'_>) -> usize {
        let mut written = 0;
        let has_ended = |stream| self.server.resolve(stream) != stream;
        let writable = self.progress.as_ref().and_then(|progress| progress.writable(stream, has_ended));
        while let Some(outbox) = self.server.outbox(stream)
            && outbox.has_remaining()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = match writable {
                None => outbox.chunks_vectored(&mut slices),
                Some(writable) if writable > written => {
                    let chunk = outbox.chunk();
                    slices[0] = IoSlice::new(&chunk[..chunk.len().min(writable - written)]);
                    1
                }
                Some(_) => break,
            };
            match self.link.poll_write(context, stream, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(taken)) if taken > 0 => {
                    written += taken;
                    outbox.advance(taken);
                }
                // The stream has ended, which a read is about to tell.
                Poll::Ready(Err(error))
                    if !stream.is_control() && error.kind() == io::ErrorKind::NotConnected =>
                {
                    break;
                }
                Poll::Ready(outcome) => {
                    self.end_link(outcome.err());
                    break;
                }
            }
        }
        if written > 0 {
            self.rank_written(stream, written);
            if let Some(progress) = &mut self.progress {
                progress.note_written(stream, written);
            }
        }
        written
    }
}
