//! Bytes and deliveries between the link and the protocol machine.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::connection::{Event, Sent, StreamAction};
use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, Priority, StreamKey};
use braid_transport::Read;
use bytes::Buf;
use tokio::io::ReadBuf;

use super::Driver;
use super::connect::peer_name;
use super::delivery_sender::{Room, has_room, next_delivery};
use super::read_gate::ReadInput;
use super::stream_scheduler::OpenedStream;
use crate::limit::Limit;
use crate::statistics::Counter;

/// Size of the read buffer. Many packets fit, and the next connection finds the buffer in the cache.
const READ_BUFFER: usize = 64 * 1024;

/// Reads in one turn of a connection with many streams. Their messages are dispatched as one batch.
const MAX_READS: usize = 32;

/// Events after which a connection with many streams reads no more in its turn.
const MAX_EVENTS: usize = 16 * 1024;

/// Deliveries that one turn drops because they are too old or denied, or sends as datagrams.
const DROPS_AT_ONCE: usize = 256;

/// Slices of one vectored write.
const SLICES: usize = 16;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUFFER]);
}

/// Lends the read buffer of this thread: a connection with nothing to read owns none.
fn with_buffer<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => read(&mut buffer),
        // Only if a read led to another read on the same thread.
        Err(_) => read(&mut vec![0; READ_BUFFER]),
    })
}

impl Driver {
    // -- Reading -----------------------------------------------------------------------------------

    /// True when a stream that was refused may be read by now.
    pub(super) fn has_reopened(&self, now: Instant) -> bool {
        self.gate.has_reopened(&self.read_input(now))
    }

    /// State that the read gate decides on.
    pub(super) fn read_input(&self, now: Instant) -> ReadInput<'_> {
        let Self { server, acks, ingress, .. } = self;
        let (pressure, has_events) = (&ingress.pressure, server.has_events());
        ReadInput { server, acks, pressure, memory: &self.core.memory, has_events, now }
    }

    /// Reads once from a link of one stream, and from a link of many until it has nothing more or the turn has read
    /// enough; true if something was read.
    pub(super) fn poll_read(&mut self, now: Instant, context: &mut Context<'_>) -> bool {
        let mut has_read = false;
        // Events of the last turn come first: nothing is read until they are answered.
        let has_events = self.server.has_events();
        let is_limited = self.gate.is_limited(&self.core.memory);
        let reads = if self.link.is_multi() && !is_limited { MAX_READS } else { 1 };
        let mut seen = self.server.pending_events().len();
        for _ in 0..reads {
            match self.read_once(has_events, now, context) {
                Poll::Pending => break,
                Poll::Ready(()) => has_read = true,
            }
            let is_enough = self.server.is_closed() || self.gate.has_read_enough();
            if is_enough || self.has_events_for_a_turn(&mut seen) {
                break;
            }
        }
        has_read
    }

    /// True when what was read is as much as one turn answers: many events, or a SUBSCRIBE or UNSUBSCRIBE, each of
    /// which may be as large as a packet. `seen`: events of earlier reads.
    fn has_events_for_a_turn(&self, seen: &mut usize) -> bool {
        let mut events = self.server.pending_events();
        let count = events.len();
        let mut new = events.by_ref().skip(std::mem::replace(seen, count));
        count > MAX_EVENTS || new.any(|event| matches!(event, Event::Subscribe(..) | Event::Unsubscribe(..)))
    }

    fn read_once(&mut self, has_events: bool, now: Instant, context: &mut Context<'_>) -> Poll<()> {
        with_buffer(|buffer| {
            let memory = &self.core.memory;
            let size = self.ingress.pressure.read_size(memory, self.gate.read_size(buffer.len()));
            let mut buffer = ReadBuf::new(&mut buffer[..size]);
            let (server, acks, pressure) = (&self.server, &self.acks, &self.ingress.pressure);
            let input = ReadInput { server, acks, pressure, memory, has_events, now };
            let mut filter = self.gate.filter(input, &self.core.statistics);
            let outcome = ready!(self.link.poll_read(context, &mut buffer, &mut filter));
            drop(filter);
            match outcome {
                Ok(read) => self.handle_read(read, buffer.filled(), now),
                Err(error) => self.end_link(Some(error)),
            }
            Poll::Ready(())
        })
    }

    fn handle_read(&mut self, read: Read, bytes: &[u8], now: Instant) {
        match read {
            Read::Bytes(stream) => {
                self.core.statistics.add(Counter::BytesReceived, bytes.len() as u64);
                self.gate.note_read(stream, bytes.len(), now);
                self.ingress.pressure.note_read(stream);
                self.server.handle_bytes(stream, bytes, now);
                // Before anything that answers the bytes is written.
                self.acks.note_progress(&mut self.server);
            }
            Read::Datagram => self.handle_datagram(bytes, now),
            Read::Opened(stream) => {
                let limit = self.core.config.limits.streams_per_second;
                if self.streams.as_mut().is_some_and(|streams| streams.open(stream, limit, now)) {
                    self.begin_stream(OpenedStream { stream, is_stopped: false });
                } else {
                    self.core.statistics.reach(Limit::StreamRate);
                }
            }
            Read::Finished(stream) => self.server.handle_stream_finished(stream),
            Read::Reset(stream, code) => {
                self.link.abort(stream, code); // [BQ-32]
                self.server.handle_stream_reset(stream, now);
                self.forget_stream(stream);
            }
            Read::Stopped(stream, _) => {
                // The transport has answered with RESET_STREAM. [BQ-33]
                if !self.streams.as_mut().is_some_and(|streams| streams.stop_waiting(stream)) {
                    self.server.handle_stream_stopped(stream);
                }
            }
            Read::Confirmed => {
                self.timer.confirm_by = None;
                self.server.handle_confirmed(now);
                self.acks.note_progress(&mut self.server);
            }
            Read::Moved(address) => {
                // [BQ-70]
                tracing::info!(client = self.session.client(), %address, "the client moved to another address");
                self.observer().note_move(address);
                self.end_if_banned();
            }
            // A server has none of its own.
            Read::Path(_) => {}
            Read::Closed => self.end_link(None),
        }
    }

    /// Reads and drops bytes until the peer ends the link.
    pub(super) fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        with_buffer(|buffer| {
            loop {
                let mut buffer = ReadBuf::new(buffer);
                match ready!(self.link.poll_read(context, &mut buffer, &mut |_| true)) {
                    Ok(Read::Closed) | Err(_) => return Poll::Ready(()),
                    Ok(_) => {}
                }
            }
        })
    }

    // -- Streams -----------------------------------------------------------------------------------

    fn begin_stream(&mut self, OpenedStream { stream, is_stopped }: OpenedStream) {
        self.ingress.pressure.handle_stream_opened(stream);
        self.link.set_priority(stream, Priority::HIGHEST);
        self.server.handle_stream_opened(stream);
        if is_stopped {
            self.server.handle_stream_stopped(stream); // [BQ-33]
        }
    }

    /// Begins the waiting streams whose turn has come. [BQ-45]
    pub(super) fn open_waiting_streams(&mut self, now: Instant) {
        let limit = self.core.config.limits.streams_per_second;
        while let Some(opened) = self.streams.as_mut().and_then(|streams| streams.poll_opening(limit, now)) {
            self.begin_stream(opened);
        }
    }

    /// Ends the streams that the protocol machine is done with.
    fn end_streams(&mut self) {
        while let Some(action) = self.server.poll_stream() {
            let stream = match action {
                StreamAction::Finish(stream) => {
                    self.link.finish(stream); // [BQ-30], [BQ-31]
                    stream
                }
                StreamAction::Abort(stream, reason) => {
                    self.link.abort(stream, u64::from(reason.value())); // [BQ-34]
                    stream
                }
            };
            self.forget_stream(stream);
        }
    }

    fn forget_stream(&mut self, stream: StreamKey) {
        self.ingress.pressure.handle_stream_ended(stream);
        self.gate.forget(stream);
        if let Some(streams) = &mut self.streams {
            streams.forget(stream);
        }
        if let Some(progress) = self.acks.progress() {
            progress.forget(stream);
        }
    }

    // -- Deliveries --------------------------------------------------------------------------------

    /// Encodes deliveries into the outboxes of their streams while these, the peer and the queue allow it. True when it
    /// stopped after [`DROPS_AT_ONCE`]: no outbox bounds a turn with these.
    pub(super) fn deliver(&mut self, now: Instant) -> bool {
        let (mut sent, mut dropped, mut aged) = (0, 0, 0);
        self.server.continue_resend(now, self.session.access.permitted_deliveries(&mut dropped));
        if self.egress.is_empty() {
            self.note_dropped(dropped);
            return false;
        }
        self.egress.note_begin(now);
        let mut drops_left = DROPS_AT_ONCE;
        let (owns, datagrams) = (self.core.lifecycle.owns_sessions(now), self.datagram_limit());
        let mut room = Room { unwritten: self.server.unwritten(), datagrams };
        while drops_left > 0
            && let Some((lane, next)) =
                next_delivery(&mut self.egress, &self.server, room, owns, self.streams.as_deref_mut())
        {
            let (queue_lsn, qos) = (next.queue_lsn, next.qos);
            if self.core.queues.policy.is_too_old(next.enqueued_at, now) {
                self.core.queues.note_aged(1);
                aged += 1;
                self.acks.note_dropped(queue_lsn);
                drops_left -= 1;
                continue;
            }
            if !self.session.access.may_receive(&next.message.topic) {
                dropped += 1;
                self.acks.note_dropped(queue_lsn);
                drops_left -= 1;
                continue;
            }
            if let Some(limit) = room.datagrams
                && self.deliver_datagram(lane, &next, limit, now)
            {
                sent += 1;
                drops_left -= 1;
                continue;
            }
            let stream = self.server.resolve(next.stream);
            let before = self.server.unwritten_on(stream);
            match self.server.deliver(next, now) {
                Sent::Out(packet_id) => {
                    sent += 1;
                    self.egress.note_sent(stream, packet_id, now);
                    let after = self.server.unwritten_on(stream);
                    room.unwritten += after - before;
                    if let Some(streams) = &mut self.streams
                        && let Some(to) = streams.note_delivery(stream, lane.priority, (before, after), now)
                    {
                        self.link.set_priority(stream, to); // [BQ-50]
                    }
                    if let (Some(queue_lsn), Some(packet_id)) = (queue_lsn, packet_id)
                        && let Some(progress) = self.acks.progress()
                    {
                        progress.note_sent(queue_lsn, qos, packet_id, (stream, before));
                    }
                }
                Sent::Expired | Sent::TooLarge => {
                    dropped += 1;
                    self.acks.note_dropped(queue_lsn);
                }
                Sent::Blocked(delivery) => {
                    self.egress.put_back(lane, *delivery);
                    break;
                }
            }
        }
        if sent > 0 {
            self.egress.note_end(now);
        }
        if let Some(streams) = &mut self.streams {
            let link = &mut self.link;
            streams.note_waiting(&self.server, now, |stream, to| link.set_priority(stream, to));
        }
        self.core.statistics.add(Counter::MessagesSent, sent);
        self.note_dropped(dropped);
        if let Some(entry) = &self.session.entry {
            entry.note_dropped(aged);
        }
        drops_left == 0
    }

    // -- Datagrams ---------------------------------------------------------------------------------

    /// Handles a datagram of the client. One that is no message has no effect, and the connection goes on. [BQ-85]
    fn handle_datagram(&mut self, datagram: &[u8], now: Instant) {
        self.core.statistics.add(Counter::BytesReceived, datagram.len() as u64);
        self.gate.note_read(StreamKey::CONTROL, datagram.len(), now);
        self.ingress.pressure.note_read(StreamKey::CONTROL);
        let handled = self.server.handle_datagram(datagram, now);
        let Some(streams) = &mut self.streams else { return };
        streams.datagrams.note_used();
        if let Err(cause) = handled {
            let (client, peer) = (self.session.client(), peer_name(self.link.peer()));
            streams.datagrams.refuse(cause, client, &peer, &self.core.statistics);
        }
    }

    /// Largest datagram for deliveries; `None` if the client gets none. [BQ-83]
    fn datagram_limit(&mut self) -> Option<usize> {
        if self.server.sends_datagrams() { self.link.datagram_size() } else { None }
    }

    /// Sends a delivery as a datagram of at most `limit` bytes. False: it is to be sent on its stream. [BQ-83]
    fn deliver_datagram(&mut self, lane: Lane, delivery: &Delivery, limit: usize, now: Instant) -> bool {
        let Some(packet) = self.server.datagram(delivery, limit, now) else {
            let falls_back = delivery.qos == QoS::AtMostOnce && !delivery.retain;
            self.core.statistics.add(Counter::DatagramsFallenBack, falls_back.into());
            return false;
        };
        if let Some(streams) = &mut self.streams {
            streams.datagrams.note_used();
        }
        self.core.statistics.add(Counter::BytesSent, packet.len() as u64);
        self.egress.note_sent(self.server.resolve(lane.stream), None, now);
        self.link.send_datagram(lane.priority, packet);
        true
    }

    /// Brings the counts of the link into the statistics.
    pub(super) fn count_link(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        streams.load.count(&mut self.link, &self.core.statistics);
        let dropped = streams.datagrams.count(&mut self.link, &self.core.statistics);
        self.note_dropped(dropped);
    }

    /// Counts deliveries that were dropped instead of being sent.
    fn note_dropped(&self, dropped: u64) {
        self.core.statistics.add(Counter::MessagesDropped, dropped);
        if let Some(entry) = &self.session.entry {
            entry.note_dropped(dropped);
        }
    }

    /// Adds a batch of retained messages to the queue; false when no subscription is ready for one.
    pub(super) fn send_retained(&mut self, now: Instant) -> bool {
        let (core, server, egress) = (&self.core, &self.server, &self.egress);
        let Some(entry) = &self.session.entry else { return false };
        let batch = self.retained.next_batch(
            &core.retained,
            core.queues.policy.limits,
            now,
            |stream| has_room(egress, server, stream),
            |topic| core.routing.priority_of(topic),
            &core.access,
        );
        let Some(mut batch) = batch else { return false };
        core.dispatcher.take_directly(entry, &mut batch);
        batch.into_iter().for_each(|delivery| self.egress.push(delivery));
        true
    }

    // -- Writing -----------------------------------------------------------------------------------

    /// Writes until the link takes no more; true when it took something. The control stream comes first, then data
    /// streams by priority.
    pub(super) fn poll_write(&mut self, now: Instant, context: &mut Context<'_>) -> bool {
        let mut written = self.write_stream(StreamKey::CONTROL, now, context);
        if let Some(streams) = &mut self.streams {
            let link = &mut self.link;
            let changed = |stream, to| link.set_priority(stream, to);
            let order = streams.take_write_order(&self.server, now, changed); // [BQ-50]
            for stream in &order {
                written += self.write_stream(*stream, now, context);
            }
            if let Some(streams) = &mut self.streams {
                streams.keep_write_order(order);
            }
            self.end_streams();
        }
        self.core.statistics.add(Counter::BytesSent, written as u64);
        self.ingress.pressure.note_written(written);
        written > 0
    }

    /// Sends what the link holds back: encrypted and framed bytes, and on QUIC all packets. False when the link has
    /// failed.
    pub(super) fn flush(&mut self, context: &mut Context<'_>) -> bool {
        if !self.close.link_ended
            && let Poll::Ready(Err(error)) = self.link.poll_flush(context)
        {
            self.end_link(Some(error));
            return false;
        }
        true
    }

    /// Writes one stream until it takes no more; returns the bytes that it took.
    fn write_stream(&mut self, stream: StreamKey, now: Instant, context: &mut Context<'_>) -> usize {
        let mut written = 0;
        let has_ended = |stream| self.server.resolve(stream) != stream;
        let writable = self.acks.writable(stream, has_ended);
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
                // The stream has ended; the next read reports it.
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
            if let Some(streams) = self.streams.as_mut().filter(|_| !stream.is_control())
                && let Some(to) = streams.note_written(stream, written, now)
            {
                self.link.set_priority(stream, to);
            }
            if let Some(progress) = self.acks.progress() {
                progress.note_written(stream, written);
            }
        }
        written
    }
}
