//! Sender: queued requests become packets in the outboxes of streams.

use std::task::{Context, Poll};
use std::time::Instant;

use braid_proto::connection::{Client as Protocol, Resent, SendError, Sent as Outcome};
use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{LogicalStream, Priority, StreamKey};
use braid_transport::Dir;
use braid_transport::quic::DatagramCounts;
use tracing::{debug, warn};

use super::Connection;
use super::datagrams::is_for_datagram;
use crate::error::Error;
use crate::inflight::Sent;
use crate::lanes::LaneStream;
use crate::send_queue::{Control, Request, Waiter, answer};
use crate::state::ClientState;

/// Bytes in the outbox of a stream from which on further messages wait in their lane, where a message of a higher
/// priority overtakes them. [BQ-56]
const OUTBOX_LIMIT: usize = 32 * 1024;
/// Minimum Receive Maximum of which a part is reserved for other priorities.
const SHARED_FROM: usize = 4;

impl Connection {
    /// Sends all requests that can be sent. True: at least one was sent.
    pub(super) fn poll_requests(
        &mut self,
        state: &mut ClientState,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> bool {
        if self.ending.replacement.is_some() {
            return false; // The next connection takes them.
        }
        state.take_requests(cx);
        self.handle_connection_requests(state);
        if !self.protocol.is_established() && !self.link.is_early() {
            return false;
        }
        let mut has_sent = false;
        loop {
            while let Some((lane, request)) = self.next(state) {
                has_sent = true;
                if !self.send(state, lane, request, now) {
                    return has_sent;
                }
            }
            if !self.poll_open(state, cx, now) {
                return has_sent;
            }
        }
    }

    /// Takes the next request that can be sent, highest priority first, with its lane. A blocked request delays its own
    /// lane only. [BQ-55]
    fn next(&mut self, state: &mut ClientState) -> Option<(usize, Request)> {
        let datagrams = self.datagram_limit();
        let Self { protocol, send_maximum, .. } = self;
        let (lanes, inflight) = (&mut state.lanes, &state.inflight);
        let is_established = protocol.is_established();
        lanes.pop(|lane, priority, request| {
            if !is_established && !may_be_early(protocol, request) {
                return false;
            }
            if is_for_datagram(protocol, request, datagrams) {
                return true; // [BQ-83]
            }
            let Some(stream) = lane.stream_for(priority) else { return false };
            if protocol.outbox(stream).is_some_and(|outbox| outbox.len() >= OUTBOX_LIMIT) {
                return false;
            }
            if matches!(request, Request::Control(_)) {
                return true;
            }
            let Some(outbound) = protocol.session().map(|session| &session.outbound) else { return false };
            let (unacknowledged, of_priority) = (outbound.unacknowledged(), inflight.count(priority));
            match request {
                Request::Publish { delivery, .. } if delivery.qos > QoS::AtMostOnce => {
                    leaves_room(of_priority, unacknowledged, *send_maximum)
                        && protocol.takes(&Delivery { stream, ..delivery.clone() })
                }
                // The inflight tracker also counts messages whose retransmission is queued, such as this one. The
                // session may count this one as unacknowledged already.
                Request::Resend { id, .. } => {
                    let sent = of_priority.min(unacknowledged);
                    outbound.uses_quota(*id)
                        || leaves_room(sent, unacknowledged, *send_maximum)
                            && protocol.takes_resend(*id, stream)
                }
                Request::Publish { .. } | Request::Control(_) => true,
            }
        })
    }

    /// Sends a request on the stream of its lane. False: the request went back to its lane.
    fn send(&mut self, state: &mut ClientState, lane: usize, request: Request, now: Instant) -> bool {
        let Some(request) = self.send_datagram(state, request, now) else {
            state.lanes.remove_if_unused(lane);
            return true;
        };
        let at = state.lanes.lane_mut(lane);
        let Some(mut stream) = at.stream() else {
            // A message that went in no datagram waits for a stream of its lane, which is asked for with the next look.
            let logical = state.lanes.logical(lane);
            state.lanes.push_front(logical, request);
            return true;
        };
        if self.protocol.outbox(stream).is_none() {
            stream = StreamKey::CONTROL; // [BQ-42]
        }
        let is_last = at.is_own() && !stream.is_control();
        match request {
            Request::Publish { delivery, stream: logical, waiter, .. } => {
                let delivery = Delivery { stream, ..delivery };
                if !self.publish(state, delivery, logical, waiter, now) {
                    return false;
                }
                if is_last {
                    self.begin_end(state, stream);
                }
            }
            Request::Resend { id, delivery, stream: logical } => {
                if !self.resend(state, id, &delivery, stream, now) {
                    state.lanes.push_front(logical, Request::Resend { id, delivery, stream: logical });
                    return false;
                }
                if is_last {
                    self.begin_end(state, stream);
                }
            }
            Request::Control(control) => self.send_control(state, stream, lane, control, now),
        }
        state.lanes.remove_if_unused(lane);
        true
    }

    /// Sends a message. False: the message went back to its lane.
    fn publish(
        &mut self,
        state: &mut ClientState,
        delivery: Delivery,
        logical: LogicalStream,
        waiter: Option<Waiter<ReasonCode>>,
        now: Instant,
    ) -> bool {
        let Delivery { stream: on, priority, .. } = delivery;
        let (topic, expires_at) = (delivery.message.topic.clone(), delivery.message.expires_at);
        self.prioritise(on, priority);
        let error = match self.protocol.publish(delivery, now) {
            Ok(Outcome::Out(id)) => {
                debug!(id = id.map(tracing::field::display), %topic, %on, "sending PUBLISH");
                let queued = self.protocol.outbox(on).map_or(0, |outbox| outbox.len());
                let mut known = self.streams.get_mut(on);
                if let Some(known) = &mut known {
                    known.note_publish(id.is_some(), now);
                }
                match (id, known) {
                    (Some(id), _) => {
                        let sent = Sent { stream: logical, priority, on, is_expiring: false, waiter };
                        state.inflight.note_sent(id, sent);
                    }
                    (None, Some(known)) => known.note_unwritten(queued, waiter),
                    (None, None) => {}
                }
                if logical == LogicalStream::Own && !on.is_control() {
                    self.streams.set_expiry(on, expires_at);
                }
                return true;
            }
            Ok(Outcome::Blocked(delivery)) => {
                let (delivery, is_unreliable) = (*delivery, false);
                let request = Request::Publish { delivery, stream: logical, waiter, is_unreliable };
                state.lanes.push_front(logical, request);
                return false;
            }
            Ok(Outcome::Expired) => Error::Expired,
            Ok(Outcome::TooLarge) => Error::Send(SendError::TooLarge),
            Err(error) => Error::Send(error),
        };
        match waiter {
            Some(waiter) => answer(waiter, Err(error)),
            None => warn!(%error, "a message was not sent"),
        }
        true
    }

    /// Retransmits a message, if that is still needed. False: it has to wait.
    fn resend(
        &mut self,
        state: &mut ClientState,
        id: PacketId,
        delivery: &Delivery,
        on: StreamKey,
        now: Instant,
    ) -> bool {
        self.prioritise(on, delivery.priority);
        match self.protocol.resend(id, on, now) {
            Resent::Out(on) => {
                debug!(%id, topic = %delivery.message.topic, %on, "sending PUBLISH again");
                if let Some(known) = self.streams.get_mut(on) {
                    known.note_publish(true, now);
                }
                state.inflight.note_resent(id, on);
            }
            Resent::Over => {}
            Resent::TooLarge => self.drain_events(state, now),
            Resent::Blocked => return false,
        }
        true
    }

    // -- Datagrams ---------------------------------------------------------------------------------

    /// Largest datagram for messages; `None` if they go on streams.
    pub(super) fn datagram_limit(&mut self) -> Option<usize> {
        if self.protocol.sends_datagrams() { self.link.datagram_size() } else { None }
    }

    /// Sends an unreliable message as a datagram. Returns a request that is to be sent on a stream. [BQ-83]
    pub(super) fn send_datagram(
        &mut self,
        state: &ClientState,
        request: Request,
        now: Instant,
    ) -> Option<Request> {
        let Request::Publish { delivery, stream, waiter, is_unreliable: true } = request else {
            return Some(request);
        };
        let limit = self.datagram_limit();
        let packet = limit.and_then(|limit| self.protocol.datagram(&delivery, limit, now));
        let Some(packet) = packet else {
            state.channels.datagrams.note_streamed();
            return Some(Request::Publish { delivery, stream, waiter, is_unreliable: false });
        };
        debug!(topic = %delivery.message.topic, bytes = packet.len(), "sending PUBLISH in a datagram");
        self.link.send_datagram(delivery.priority, packet);
        if let Some(waiter) = waiter {
            answer(waiter, Ok(ReasonCode::Success));
        }
        None
    }

    /// Brings the counts of the link into the statistics.
    pub(super) fn count_datagrams(&mut self, state: &ClientState) {
        let Some(now) = self.link.datagram_counts().filter(|now| *now != DatagramCounts::default()) else {
            return;
        };
        state.channels.datagrams.add(now.since(self.writer.replace_counted(now)));
    }

    // -- Requests ----------------------------------------------------------------------------------

    fn send_control(
        &mut self,
        state: &mut ClientState,
        on: StreamKey,
        lane: usize,
        mut control: Control,
        now: Instant,
    ) {
        self.prioritise(on, Priority::HIGHEST);
        let protocol = &mut self.protocol;
        let sent = match &mut control {
            Control::Subscribe { subscribe, .. } | Control::Resubscribe(subscribe) => {
                debug!(filters = ?subscribe.entries.len(), %on, "sending SUBSCRIBE");
                let (entries, user) = (subscribe.entries.clone(), subscribe.user.clone());
                match protocol.is_established() {
                    true => protocol.subscribe(on, entries, subscribe.id, user, now),
                    false => protocol.subscribe_early(on, entries, subscribe.id, user),
                }
            }
            Control::Unsubscribe(unsubscribe) => {
                // Some servers end a subscription only on the stream on which it was made.
                let logical = state.lanes.logical(lane);
                let is_here = |filter: &&_| state.inflight.stream_of(filter) == logical;
                unsubscribe.asked = unsubscribe.filters.iter().take_while(is_here).count().max(1);
                let filters: Vec<_> = unsubscribe.filters.iter().take(unsubscribe.asked).cloned().collect();
                debug!(?filters, %on, "sending UNSUBSCRIBE");
                protocol.unsubscribe(on, filters, unsubscribe.user.clone(), now)
            }
        };
        match sent {
            Ok(id) => {
                if let Some(known) = self.streams.get_mut(on) {
                    known.note_subscribe();
                }
                state.inflight.note_control(id, control);
            }
            Err(error) => state.handle_send_error(control, error),
        }
    }

    /// Opens streams for lanes that want one. True: a lane can send now.
    pub(super) fn poll_open(&mut self, state: &mut ClientState, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut has_progress = false;
        while let Some(lane) = state.lanes.next_to_open() {
            match self.link.poll_open(cx, Dir::Bidi) {
                Poll::Ready(Ok(stream)) => {
                    debug!(%stream, lane = ?state.lanes.logical(lane), "opened");
                    self.protocol.handle_stream_opened(stream);
                    self.streams.insert(stream, lane, now);
                    state.lanes.set_stream(lane, LaneStream::Open(stream));
                    has_progress = true;
                }
                Poll::Ready(Err(error)) => {
                    self.handle_link_lost(&error);
                    return false;
                }
                Poll::Pending if !self.streams.has_opened() => {
                    debug!("the server takes no data streams");
                    state.lanes.begin(false);
                    return true;
                }
                Poll::Pending => {
                    state.lanes.handle_refused(lane, now);
                    self.end_idle_stream(state);
                    return has_progress;
                }
            }
        }
        has_progress
    }

    /// Ends the least recently used idle stream, so that the server gives credit for another. One at a time.
    fn end_idle_stream(&mut self, state: &mut ClientState) {
        if self.streams.is_any_ending() {
            return;
        }
        if let Some(stream) = self.streams.longest_idle(|lane| state.lanes.is_queue_empty(lane)) {
            self.begin_end(state, stream);
        }
    }

    /// Gives a data stream the highest priority of the messages that it has to write. [BQ-51]
    fn prioritise(&mut self, stream: StreamKey, priority: Priority) {
        let is_idle = self.protocol.outbox(stream).is_some_and(|outbox| outbox.is_empty());
        let Some(known) = self.streams.get_mut(stream).filter(|_| !stream.is_control()) else { return };
        if known.raise_priority(priority, is_idle) {
            self.link.set_priority(stream, priority);
        }
    }
}

/// Whether a request may be sent before CONNACK: only requests that restore subscriptions may, up to a limit.
/// [BQ-13], [BQ-61]
fn may_be_early(protocol: &Protocol, request: &Request) -> bool {
    let Request::Control(Control::Resubscribe(subscribe)) = request else { return false };
    protocol.takes_early(&subscribe.entries, &subscribe.user)
}

/// Whether one more message of QoS 1 or 2 leaves a part of the Receive Maximum to other priorities, so that bulk on a
/// slow path never takes all of it.
///
/// A priority may have eight times as many inflight messages, `of_priority`, as it leaves free.
fn leaves_room(of_priority: usize, unacknowledged: usize, maximum: usize) -> bool {
    let free = maximum.saturating_sub(unacknowledged);
    maximum < SHARED_FROM || of_priority == 0 || of_priority < free.saturating_sub(1).saturating_mul(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_leaves_part_of_the_receive_maximum_to_others() {
        let fill = |maximum: usize| {
            let mut total = 0;
            let mut one = || {
                let before = total;
                while total < maximum && leaves_room(total - before, total, maximum) {
                    total += 1;
                }
                total - before
            };
            [one(), one()]
        };
        assert_eq!(fill(100), [88, 10]);
        assert_eq!(fill(20), [17, 2]);
        assert_eq!(fill(4), [3, 1]);
        assert_eq!(fill(2), [2, 0], "too few to share");
    }
}
