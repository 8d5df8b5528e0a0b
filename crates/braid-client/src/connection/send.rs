//! From what waits to packets on streams.

use std::task::Context;
use std::time::Instant;

use braid_proto::connection::{Client as Protocol, Resent, Sent as Outcome, Unsendable};
use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{LogicalStream, Priority, StreamKey};
use tracing::{debug, warn};

use super::Connection;
use crate::dispatch;
use crate::driver::Driver;
use crate::error::Error;
use crate::ledger::Sent;
use crate::request::{Control, Request, Waiter, answer};

/// Above this many bytes in the outbox of a stream no more is put there: it waits in its lane, where what is more
/// urgent overtakes it. [BQ-56]
const OUTBOX_IS_FULL: usize = 32 * 1024;
/// Below this Receive Maximum nothing of it is kept for what is more urgent.
const SHARED_FROM: usize = 4;

impl Connection {
    /// Puts what may go now on its streams. Whether that was anything.
    pub(super) fn poll_requests(&mut self, driver: &mut Driver, cx: &mut Context<'_>, now: Instant) -> bool {
        driver.take_requests(cx);
        self.rebind(driver);
        if !self.protocol.is_established() && !self.link.is_early() {
            return false;
        }
        let mut has_sent = false;
        loop {
            while let Some((slot, request)) = self.next(driver) {
                has_sent = true;
                if !self.send(driver, slot, request, now) {
                    return has_sent;
                }
            }
            if !self.poll_open(driver, cx, now) {
                return has_sent;
            }
        }
    }

    /// The next request that can be sent, the most urgent first. What is stuck stops its own lane alone. [BQ-55]
    fn next(&mut self, driver: &mut Driver) -> Option<(usize, Request)> {
        let Self { protocol, send_maximum, .. } = self;
        let (lanes, ledger) = (&mut driver.lanes, &driver.ledger);
        let is_established = protocol.is_established();
        lanes.pop(|slot, priority, request| {
            if !is_established && !may_be_early(protocol, request) {
                return false;
            }
            let Some(stream) = slot.stream_for(priority) else { return false };
            if protocol.outbox(stream).is_some_and(|outbox| outbox.len() >= OUTBOX_IS_FULL) {
                return false;
            }
            if matches!(request, Request::Control(_)) {
                return true;
            }
            let Some(outbound) = protocol.session().map(|session| &session.outbound) else { return false };
            let (unacknowledged, on_their_way) = (outbound.unacknowledged(), ledger.on_their_way(priority));
            match request {
                Request::Publish { delivery, .. } if delivery.qos > QoS::AtMostOnce => {
                    leaves_room(on_their_way, unacknowledged, *send_maximum)
                        && protocol.takes(&Delivery { stream, ..delivery.clone() })
                }
                // Of those on their way some are only to be sent again, as this one. It may have its place already.
                Request::Resend { id, .. } => {
                    let here = on_their_way.min(unacknowledged);
                    outbound.counts(*id)
                        || leaves_room(here, unacknowledged, *send_maximum)
                            && protocol.takes_resend(*id, stream)
                }
                Request::Publish { .. } | Request::Control(_) => true,
            }
        })
    }

    /// Sends a request on the stream of its lane. False: it has to wait after all.
    fn send(&mut self, driver: &mut Driver, slot: usize, request: Request, now: Instant) -> bool {
        let at = driver.lanes.slot_mut(slot);
        let Some(mut stream) = at.stream_for(Priority::HIGHEST) else { return false };
        if self.protocol.outbox(stream).is_none() {
            stream = StreamKey::CONTROL; // [BQ-42]
        }
        let is_last = at.is_own() && !stream.is_control();
        match request {
            Request::Publish { delivery, stream: lane, waiter } => {
                let delivery = Delivery { stream, ..delivery };
                if !self.publish(driver, delivery, lane, waiter, now) {
                    return false;
                }
                if is_last {
                    self.begin_end(driver, stream);
                }
            }
            Request::Resend { id, delivery, stream: lane } => {
                if !self.resend(driver, id, &delivery, stream, now) {
                    driver.lanes.push_front(lane, Request::Resend { id, delivery, stream: lane });
                    return false;
                }
                if is_last {
                    self.begin_end(driver, stream);
                }
            }
            Request::Control(control) => self.send_control(driver, stream, slot, control, now),
        }
        driver.lanes.settle(slot);
        true
    }

    /// Sends a message, or puts it back if it must wait: then the answer is false.
    fn publish(
        &mut self,
        driver: &mut Driver,
        delivery: Delivery,
        lane: LogicalStream,
        waiter: Option<Waiter<ReasonCode>>,
        now: Instant,
    ) -> bool {
        let Delivery { stream: on, priority, .. } = delivery;
        let (topic, expires_at) = (delivery.message.topic.clone(), delivery.message.expires_at);
        self.prioritise(on, priority);
        let error = match self.protocol.publish(delivery, now) {
            Ok(Outcome::Out(id)) => {
                debug!(id = id.map(tracing::field::display), %topic, %on, "sending PUBLISH");
                let waiting = self.protocol.outbox(on).map_or(0, |outbox| outbox.len());
                let mut known = self.streams.get_mut(on);
                if let Some(known) = &mut known {
                    known.used = now;
                    known.exchanges += usize::from(id.is_some());
                }
                match (id, known) {
                    (Some(id), _) => {
                        let sent = Sent { stream: lane, priority, on, is_expiring: false, waiter };
                        driver.ledger.note_sent(id, sent);
                    }
                    (None, Some(known)) => known.note_unwritten(waiting, waiter),
                    (None, None) => {}
                }
                if lane == LogicalStream::Own && !on.is_control() {
                    self.streams.set_expiry(on, expires_at);
                }
                return true;
            }
            Ok(Outcome::Blocked(delivery)) => {
                let request = Request::Publish { delivery: *delivery, stream: lane, waiter };
                driver.lanes.push_front(lane, request);
                return false;
            }
            Ok(Outcome::Expired) => Error::Expired,
            Ok(Outcome::TooLarge) => Error::Unsendable(Unsendable::TooLarge),
            Err(unsendable) => Error::Unsendable(unsendable),
        };
        match waiter {
            Some(waiter) => answer(waiter, Err(error)),
            None => warn!(%error, "a message was not sent"),
        }
        true
    }

    /// Sends a message again, if that is still needed. False: it must wait.
    fn resend(
        &mut self,
        driver: &mut Driver,
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
                    known.used = now;
                    known.exchanges += 1;
                }
                driver.ledger.note_resent(id, on);
            }
            Resent::Over => {}
            Resent::TooLarge => self.drain_events(driver, now),
            Resent::Blocked => return false,
        }
        true
    }

    fn send_control(
        &mut self,
        driver: &mut Driver,
        on: StreamKey,
        slot: usize,
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
                // Some servers end a subscription only where it was made.
                let lane = driver.lanes.logical(slot);
                let is_here = |filter: &&_| driver.ledger.stream_of(filter) == lane;
                unsubscribe.asked = unsubscribe.filters.iter().take_while(is_here).count().max(1);
                let filters: Vec<_> = unsubscribe.filters.iter().take(unsubscribe.asked).cloned().collect();
                debug!(?filters, %on, "sending UNSUBSCRIBE");
                protocol.unsubscribe(on, filters, unsubscribe.user.clone(), now)
            }
        };
        match sent {
            Ok(id) => {
                if let Some(known) = self.streams.get_mut(on) {
                    known.is_subscribed = true;
                }
                driver.ledger.note_control(id, control);
            }
            Err(unsendable) => dispatch::handle_unsendable(driver, control, unsendable),
        }
    }

    /// A data stream is as urgent as the most urgent of what it still has to write. [BQ-51]
    fn prioritise(&mut self, stream: StreamKey, priority: Priority) {
        let is_idle = self.protocol.outbox(stream).is_some_and(|outbox| outbox.is_empty());
        let Some(known) = self.streams.get_mut(stream).filter(|_| !stream.is_control()) else { return };
        if known.priority < Some(priority) || (is_idle && known.priority > Some(priority)) {
            known.priority = Some(priority);
            self.link.set_priority(stream, priority);
        }
    }
}

/// Whether something may be sent before CONNACK: only what brings subscriptions back, and not too much of it.
/// The rest follows CONNACK. [BQ-13], [BQ-61]
fn may_be_early(protocol: &Protocol, request: &Request) -> bool {
    let Request::Control(Control::Resubscribe(subscribe)) = request else { return false };
    protocol.takes_early(&subscribe.entries, &subscribe.user)
}

/// Whether one more message of QoS 1 or 2 leaves some of the Receive Maximum to other priorities: so that bulk on
/// a slow way never holds all of it when something urgent comes.
///
/// A priority may have eight times as many messages on their way as it leaves free.
fn leaves_room(on_their_way: usize, unacknowledged: usize, maximum: usize) -> bool {
    let free = maximum.saturating_sub(unacknowledged);
    maximum < SHARED_FROM || on_their_way == 0 || on_their_way < free.saturating_sub(1).saturating_mul(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_leaves_some_of_the_receive_maximum_to_others() {
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
