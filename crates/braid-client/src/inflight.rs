//! Inflight tracker: unanswered requests, and granted subscriptions, across connections.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;
use braid_proto::stream::{LogicalStream, Priority, StreamKey};
use braid_proto::topic::TopicFilter;

use crate::error::Error;
use crate::lanes::LaneScheduler;
use crate::send_queue::{Control, Request, Waiter, answer};
use crate::subscribe::Subscribe;

/// Maximum number of filters of one SUBSCRIBE that restores subscriptions: servers limit the size of packets.
const FILTERS_PER_SUBSCRIBE: usize = 64;

/// Unanswered requests, and granted subscriptions, of one client.
#[derive(Debug, Default)]
pub(crate) struct InflightTracker {
    /// Inflight messages of QoS 1 and 2.
    sent: HashMap<PacketId, Sent>,
    /// Number of inflight messages by priority, without zeros.
    counts: BTreeMap<Priority, usize>,
    /// Unanswered SUBSCRIBE and UNSUBSCRIBE packets, in the order of sending.
    controls: VecDeque<(PacketId, Control)>,
    /// Granted subscriptions, one filter each, in the order of subscribing.
    subscriptions: Vec<Subscribe>,
}

/// Inflight message of QoS 1 or 2.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Logical stream of its lane.
    pub(crate) stream: LogicalStream,
    pub(crate) priority: Priority,
    /// Stream of its last PUBLISH; the control stream once that has ended.
    pub(crate) on: StreamKey,
    /// Whether its stream is being reset because it has expired.
    pub(crate) is_expiring: bool,
    /// Caller that waits for the last acknowledgement.
    pub(crate) waiter: Option<Waiter<ReasonCode>>,
}

impl InflightTracker {
    /// Whether every request is answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.sent.is_empty() && self.controls.is_empty()
    }

    // -- Messages and control requests -------------------------------------------------------------

    pub(crate) fn note_sent(&mut self, id: PacketId, sent: Sent) {
        *self.counts.entry(sent.priority).or_default() += 1;
        self.sent.insert(id, sent);
    }

    pub(crate) fn note_control(&mut self, id: PacketId, control: Control) {
        self.controls.push_back((id, control));
    }

    /// Number of inflight messages with this priority.
    pub(crate) fn count(&self, priority: Priority) -> usize {
        self.counts.get(&priority).copied().unwrap_or_default()
    }

    /// Begins the retransmission of a message. Returns the logical stream of its lane.
    pub(crate) fn begin_resend(&mut self, id: PacketId) -> LogicalStream {
        let Some(sent) = self.sent.get_mut(&id) else { return LogicalStream::default() };
        sent.on = StreamKey::CONTROL;
        sent.is_expiring = false;
        sent.stream
    }

    pub(crate) fn note_resent(&mut self, id: PacketId, on: StreamKey) {
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.on = on;
        }
    }

    /// Handles the last acknowledgement of a message. Returns the stream of its last PUBLISH.
    pub(crate) fn handle_published(&mut self, id: PacketId, reason: ReasonCode) -> Option<StreamKey> {
        let sent = self.take_sent(id)?;
        let result = match reason.is_error() {
            true if sent.is_expiring => Err(Error::Expired),
            true => Err(Error::PublishRefused(reason)),
            false => Ok(reason),
        };
        if let Some(waiter) = sent.waiter {
            answer(waiter, result);
        }
        Some(sent.on)
    }

    /// Notes that the message on this stream has expired, and that the stream is reset for that.
    pub(crate) fn expire(&mut self, stream: StreamKey) {
        for sent in self.sent.values_mut().filter(|sent| sent.on == stream) {
            sent.is_expiring = true;
        }
    }

    fn take_sent(&mut self, id: PacketId) -> Option<Sent> {
        let sent = self.sent.remove(&id)?;
        if let Some(count) = self.counts.get_mut(&sent.priority) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&sent.priority);
            }
        }
        Some(sent)
    }

    pub(crate) fn take_control(&mut self, id: PacketId) -> Option<Control> {
        let at = self.controls.iter().position(|(other, _)| *other == id)?;
        self.controls.remove(at).map(|(_, control)| control)
    }

    // -- Subscriptions -----------------------------------------------------------------------------

    /// Adds the granted filters of a SUBSCRIBE, to be restored when the server has lost them.
    pub(crate) fn add_subscriptions(&mut self, subscribe: &Subscribe, codes: &[ReasonCode]) {
        for (entry, code) in subscribe.entries.iter().zip(codes) {
            self.remove_subscription(subscribe.stream, entry);
            if !code.is_error() {
                let (entries, user) = (vec![entry.clone()], subscribe.user.clone());
                self.subscriptions.push(Subscribe { entries, user, ..*subscribe });
            }
        }
    }

    /// Removes filters that were refused when they were to be restored. Granted ones keep the options of the
    /// application: the packet that restored them may have had others.
    pub(crate) fn remove_refused(&mut self, subscribe: &Subscribe, codes: &[ReasonCode]) {
        for (entry, code) in subscribe.entries.iter().zip(codes) {
            if code.is_error() {
                self.remove_subscription(subscribe.stream, entry);
            }
        }
    }

    fn remove_subscription(&mut self, stream: u32, entry: &SubscribeEntry) {
        self.subscriptions.retain(|kept| kept.stream != stream || kept.entries[0].filter != entry.filter);
    }

    /// Removes unsubscribed filters, on whichever stream they were. [BQ-17]
    pub(crate) fn remove_subscriptions(&mut self, filters: &[TopicFilter]) {
        self.subscriptions.retain(|kept| !filters.iter().any(|filter| kept.is_for(filter)));
    }

    /// Logical stream on which a filter was subscribed; the control stream for an unknown one.
    pub(crate) fn stream_of(&self, filter: &TopicFilter) -> LogicalStream {
        self.subscriptions.iter().find(|kept| kept.is_for(filter)).map(Subscribe::logical).unwrap_or_default()
    }

    /// Requests that restore the subscriptions of a session that the server has lost, except those already requested.
    pub(crate) fn resubscribe(&self) -> Vec<Subscribe> {
        let requested = self.requested();
        in_packets(self.subscriptions.iter().filter(|kept| !is_in(kept, &requested)).cloned())
    }

    /// Requests that move subscriptions from the control stream back to their logical streams, for each stream that
    /// `is_gone` says has ended. The server knows these subscriptions and sends no retained messages again. [BQ-43]
    pub(crate) fn rebind(&self, is_gone: impl Fn(LogicalStream) -> bool) -> Vec<Subscribe> {
        let requested = self.requested();
        let gone = |kept: &&Subscribe| kept.stream > 0 && is_gone(kept.logical()) && !is_in(kept, &requested);
        in_packets(self.subscriptions.iter().filter(gone).cloned().map(retained_if_new))
    }

    /// Requests that restore subscriptions before CONNACK says whether the server has kept them. Retained messages are
    /// sent only for those that it has not. If the server may have kept the session, subscriptions on the control
    /// stream are left out: they need no request then.
    pub(crate) fn resubscribe_early(&self, may_be_kept: bool) -> Vec<Subscribe> {
        let needed = |kept: &&Subscribe| kept.stream > 0 || !may_be_kept;
        in_packets(self.subscriptions.iter().filter(needed).cloned().map(retained_if_new))
    }

    /// Subscriptions that unanswered packets restore.
    fn requested(&self) -> HashSet<(u32, &TopicFilter)> {
        let restoring = self.controls.iter().filter_map(|(_, control)| match control {
            Control::Resubscribe(subscribe) => Some(subscribe),
            _ => None,
        });
        restoring.flat_map(|subscribe| subscribe.filters().map(|filter| (subscribe.stream, filter))).collect()
    }

    /// Whether a packet that restores subscriptions is unanswered.
    pub(crate) fn is_resubscribing(&self) -> bool {
        self.controls.iter().any(|(_, control)| matches!(control, Control::Resubscribe(_)))
    }

    // -- The end of a connection -------------------------------------------------------------------

    /// Handles the end of a connection: unanswered requests are queued again for the next one.
    pub(crate) fn handle_connection_end(&mut self, lanes: &mut LaneScheduler) {
        for sent in self.sent.values_mut() {
            sent.on = StreamKey::CONTROL; // [BQ-42]
            sent.is_expiring = false;
        }
        lanes.drop_resends();
        lanes.drop_resubscribes();
        while let Some((_, control)) = self.controls.pop_back() {
            self.retry(control, lanes);
        }
    }

    /// Queues an unanswered request again, at the front of its lane. Requests that restore subscriptions are made anew
    /// from the subscriptions instead.
    pub(crate) fn retry(&self, control: Control, lanes: &mut LaneScheduler) {
        if !matches!(control, Control::Resubscribe(_)) {
            lanes.push_front(self.stream_for(&control), Request::Control(control));
        }
    }

    /// Logical stream for a request: for UNSUBSCRIBE, that on which its first filter was subscribed.
    pub(crate) fn stream_for(&self, control: &Control) -> LogicalStream {
        match control {
            Control::Subscribe { subscribe, .. } | Control::Resubscribe(subscribe) => subscribe.logical(),
            Control::Unsubscribe(unsubscribe) => {
                unsubscribe.filters.first().map(|filter| self.stream_of(filter)).unwrap_or_default()
            }
        }
    }

    /// Handles the loss of the session with these messages: they are published again, before all queued requests.
    ///
    /// A QoS 2 message may then arrive twice; otherwise it could be lost.
    pub(crate) fn handle_session_lost(
        &mut self,
        lost: Vec<(PacketId, Option<Delivery>)>,
        lanes: &mut LaneScheduler,
    ) {
        for (id, delivery) in lost.into_iter().rev() {
            let (stream, waiter) = match self.take_sent(id) {
                Some(sent) => (sent.stream, sent.waiter),
                None => (LogicalStream::default(), None),
            };
            match (delivery, waiter) {
                (Some(delivery), waiter) => {
                    debug_assert!(delivery.qos > QoS::AtMostOnce, "QoS 0 has no packet identifier");
                    lanes.push_front(
                        stream,
                        Request::Publish { delivery, stream, waiter, is_unreliable: false },
                    );
                }
                // PUBREC had arrived: the server has the message.
                (None, Some(waiter)) => answer(waiter, Ok(ReasonCode::Success)),
                (None, None) => {}
            }
        }
    }

    /// Fails every unanswered request with `error`.
    pub(crate) fn fail(&mut self, error: &Error) {
        for (_, sent) in self.sent.drain() {
            if let Some(waiter) = sent.waiter {
                answer(waiter, Err(error.clone()));
            }
        }
        for (_, control) in self.controls.drain(..) {
            control.fail(error.clone());
        }
    }
}

/// Whether a subscription, which has one filter, is in `requested`. [BQ-16]
fn is_in(kept: &Subscribe, requested: &HashSet<(u32, &TopicFilter)>) -> bool {
    kept.filters().all(|filter| requested.contains(&(kept.stream, filter)))
}

/// Changes a subscription to request retained messages only if it is new to the server.
fn retained_if_new(mut kept: Subscribe) -> Subscribe {
    for entry in &mut kept.entries {
        if entry.retain_handling == RetainHandling::SendAlways {
            entry.retain_handling = RetainHandling::SendIfNew;
        }
    }
    kept
}

/// Joins neighbours with equal options into packets.
fn in_packets(subscriptions: impl Iterator<Item = Subscribe>) -> Vec<Subscribe> {
    let mut all: Vec<Subscribe> = Vec::new();
    for kept in subscriptions {
        match all.last_mut() {
            Some(last)
                if last.stream == kept.stream
                    && last.id == kept.id
                    && last.user == kept.user
                    && last.entries.len() < FILTERS_PER_SUBSCRIBE =>
            {
                last.entries.extend(kept.entries);
            }
            _ => all.push(kept),
        }
    }
    all
}
