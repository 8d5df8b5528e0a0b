//! What the client owes and is owed, across connections: requests on their way and subscriptions.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;
use braid_proto::stream::{LogicalStream, Priority, StreamKey};
use braid_proto::topic::TopicFilter;

use crate::error::Error;
use crate::lanes::Lanes;
use crate::request::{Control, Request, Waiter, answer};
use crate::subscribe::Subscribe;

/// Filters of one SUBSCRIBE when subscriptions are restored: brokers limit the size of packets.
const RESUBSCRIBE_AT_ONCE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// QoS 1 and 2 on their way.
    sent: HashMap<PacketId, Sent>,
    /// How many of each priority.
    counts: BTreeMap<Priority, usize>,
    /// SUBSCRIBE and UNSUBSCRIBE on their way, in the order of sending.
    controls: VecDeque<(PacketId, Control)>,
    /// What was granted, one filter each, in the order of subscribing.
    subscriptions: Vec<Subscribe>,
}

/// A message of QoS 1 or 2 on its way.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Its lane.
    pub(crate) stream: LogicalStream,
    pub(crate) priority: Priority,
    /// Where its PUBLISH went last; the control stream if that has ended.
    pub(crate) on: StreamKey,
    /// Its stream is ended because it has expired.
    pub(crate) is_expiring: bool,
    /// Who waits.
    pub(crate) waiter: Option<Waiter<ReasonCode>>,
}

impl Ledger {
    /// Whether nothing is to be answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.sent.is_empty() && self.controls.is_empty()
    }

    // -- Requests on their way ---------------------------------------------------------------------

    pub(crate) fn note_sent(&mut self, id: PacketId, sent: Sent) {
        *self.counts.entry(sent.priority).or_default() += 1;
        self.sent.insert(id, sent);
    }

    pub(crate) fn note_control(&mut self, id: PacketId, control: Control) {
        self.controls.push_back((id, control));
    }

    /// How many messages of QoS 1 and 2 with this priority are on their way.
    pub(crate) fn on_their_way(&self, priority: Priority) -> usize {
        self.counts.get(&priority).copied().unwrap_or_default()
    }

    /// A message must be sent again. Returns its lane.
    pub(crate) fn begin_again(&mut self, id: PacketId) -> LogicalStream {
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

    /// A message is done. Returns the stream that its PUBLISH was last sent on.
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

    /// The message on this stream of its own has expired, and what of it is not written will not be.
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

    /// Keeps what was granted of a SUBSCRIBE, to be restored when the server forgets it.
    pub(crate) fn keep(&mut self, subscribe: &Subscribe, codes: &[ReasonCode]) {
        for (entry, code) in subscribe.entries.iter().zip(codes) {
            self.subscriptions
                .retain(|kept| kept.stream != subscribe.stream || kept.entries[0].filter != entry.filter);
            if !code.is_error() {
                let (user, stream) = (subscribe.user.clone(), subscribe.stream);
                let entries = vec![entry.clone()];
                self.subscriptions.push(Subscribe { entries, id: subscribe.id, user, stream });
            }
        }
    }

    /// Drops what was not granted again. What was keeps its options: it may have been asked for with others.
    pub(crate) fn drop_refused(&mut self, subscribe: &Subscribe, codes: &[ReasonCode]) {
        for (entry, code) in subscribe.entries.iter().zip(codes) {
            let is_it = |kept: &Subscribe| {
                kept.stream == subscribe.stream
                    && kept.entries.first().map(|kept| &kept.filter) == Some(&entry.filter)
            };
            if code.is_error() {
                self.subscriptions.retain(|kept| !is_it(kept));
            }
        }
    }

    /// Drops what was unsubscribed, on whatever stream it was. [BQ-17]
    pub(crate) fn forget(&mut self, filters: &[TopicFilter]) {
        self.subscriptions.retain(|kept| !filters.iter().any(|filter| kept.is_for(filter)));
    }

    /// The stream on which a filter was subscribed.
    pub(crate) fn stream_of(&self, filter: &TopicFilter) -> LogicalStream {
        self.subscriptions.iter().find(|kept| kept.is_for(filter)).map(Subscribe::logical).unwrap_or_default()
    }

    /// What brings back subscriptions that the server has lost, but for those that were asked for already.
    pub(crate) fn resubscribe(&self) -> Vec<Subscribe> {
        let asked = self.asked();
        in_packets(self.subscriptions.iter().filter(|kept| !is_in(kept, &asked)).cloned())
    }

    /// What brings subscriptions back to the streams that `is_gone` says have ended, while the server keeps them
    /// on the control stream: no retained message comes again. [BQ-43]
    pub(crate) fn rebind(&self, is_gone: impl Fn(LogicalStream) -> bool) -> Vec<Subscribe> {
        let asked = self.asked();
        let gone = |kept: &&Subscribe| kept.stream > 0 && is_gone(kept.logical()) && !is_in(kept, &asked);
        in_packets(self.subscriptions.iter().filter(gone).cloned().map(without_known))
    }

    /// The same without knowing whether the server keeps them: there is no retained message of those that it does
    /// keep, and of the others there is. Those on the control stream are left out if they need not be asked for.
    pub(crate) fn resubscribe_early(&self, may_be_kept: bool) -> Vec<Subscribe> {
        let needed = |kept: &&Subscribe| kept.stream > 0 || !may_be_kept;
        in_packets(self.subscriptions.iter().filter(needed).cloned().map(without_known))
    }

    /// The subscriptions whose restoring is not answered yet.
    fn asked(&self) -> HashSet<(u32, &TopicFilter)> {
        let restoring = self.controls.iter().filter_map(|(_, control)| match control {
            Control::Resubscribe(subscribe) => Some(subscribe),
            _ => None,
        });
        restoring.flat_map(|subscribe| subscribe.filters().map(|filter| (subscribe.stream, filter))).collect()
    }

    /// Whether the server still has to answer what restores subscriptions.
    pub(crate) fn is_restoring(&self) -> bool {
        self.controls.iter().any(|(_, control)| matches!(control, Control::Resubscribe(_)))
    }

    // -- The end of a connection -------------------------------------------------------------------

    /// The connection ended: what was not answered is asked again on the next one.
    pub(crate) fn handle_connection_end(&mut self, lanes: &mut Lanes) {
        for sent in self.sent.values_mut() {
            sent.on = StreamKey::CONTROL; // There they go on. [BQ-42]
            sent.is_expiring = false;
        }
        lanes.drop_resends();
        lanes.drop_restoring();
        while let Some((_, control)) = self.controls.pop_back() {
            self.ask_again(control, lanes);
        }
    }

    /// Nobody will answer this: it is asked again, before what waits. What was to be restored is not: it is found
    /// anew.
    pub(crate) fn ask_again(&self, control: Control, lanes: &mut Lanes) {
        if !matches!(control, Control::Resubscribe(_)) {
            lanes.push_front(self.lane_of(&control), Request::Control(control));
        }
    }

    /// Where a request goes: UNSUBSCRIBE where its first filter was subscribed.
    pub(crate) fn lane_of(&self, control: &Control) -> LogicalStream {
        match control {
            Control::Subscribe { subscribe, .. } | Control::Resubscribe(subscribe) => subscribe.logical(),
            Control::Unsubscribe(unsubscribe) => {
                unsubscribe.filters.first().map(|filter| self.stream_of(filter)).unwrap_or_default()
            }
        }
    }

    /// The server has lost the session with these messages: they are published anew, before anything else.
    ///
    /// A QoS 2 message may then arrive twice; the other choice would be to lose it.
    pub(crate) fn handle_lost(&mut self, lost: Vec<(PacketId, Option<Delivery>)>, lanes: &mut Lanes) {
        for (id, delivery) in lost.into_iter().rev() {
            let (stream, waiter) = match self.take_sent(id) {
                Some(sent) => (sent.stream, sent.waiter),
                None => (LogicalStream::default(), None),
            };
            match (delivery, waiter) {
                (Some(delivery), waiter) => {
                    debug_assert!(delivery.qos > QoS::AtMostOnce, "QoS 0 has no packet identifier");
                    lanes.push_front(stream, Request::Publish { delivery, stream, waiter });
                }
                // PUBREC had come: the server took it.
                (None, Some(waiter)) => answer(waiter, Ok(ReasonCode::Success)),
                (None, None) => {}
            }
        }
    }

    /// The client ends: whoever waits learns why.
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

/// Whether a subscription, which has one filter, is among these. [BQ-16]
fn is_in(kept: &Subscribe, asked: &HashSet<(u32, &TopicFilter)>) -> bool {
    kept.filters().all(|filter| asked.contains(&(kept.stream, filter)))
}

/// Asks for no retained message where the server knows the subscription.
fn without_known(mut kept: Subscribe) -> Subscribe {
    for entry in &mut kept.entries {
        if entry.retain_handling == RetainHandling::SendAlways {
            entry.retain_handling = RetainHandling::SendIfNew;
        }
    }
    kept
}

/// Neighbours with the same options of the packet share one.
fn in_packets(subscriptions: impl Iterator<Item = Subscribe>) -> Vec<Subscribe> {
    let mut all: Vec<Subscribe> = Vec::new();
    for kept in subscriptions {
        match all.last_mut() {
            Some(last)
                if last.stream == kept.stream
                    && last.id == kept.id
                    && last.user == kept.user
                    && last.entries.len() < RESUBSCRIBE_AT_ONCE =>
            {
                last.entries.extend(kept.entries);
            }
            _ => all.push(kept),
        }
    }
    all
}
