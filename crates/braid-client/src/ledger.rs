//! What the client owes and is owed, across connections: requests on their way and subscriptions.

use std::collections::{HashMap, VecDeque};

use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;

use crate::error::Error;
use crate::request::{Control, Request, Waiter, answer};
use crate::subscribe::Subscribe;

/// Filters of one SUBSCRIBE when subscriptions are restored: brokers limit the size of packets.
const RESUBSCRIBE_AT_ONCE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// To be sent before anything new.
    first: VecDeque<Request>,
    /// QoS 1 and 2 on their way, with who waits.
    publishes: HashMap<PacketId, Option<Waiter<ReasonCode>>>,
    /// SUBSCRIBE and UNSUBSCRIBE on their way, in the order of sending.
    controls: VecDeque<(PacketId, Control)>,
    /// QoS 0 on its way into the link: the count of bytes after it.
    unwritten: VecDeque<(u64, Waiter<ReasonCode>)>,
    /// What was granted, one filter each, in the order of subscribing.
    subscriptions: Vec<Subscribe>,
}

impl Ledger {
    // -- Requests to send --------------------------------------------------------------------------

    pub(crate) fn next(&mut self) -> Option<Request> {
        self.first.pop_front()
    }

    /// Takes a request back that cannot be sent now.
    pub(crate) fn put_back(&mut self, request: Request) {
        self.first.push_front(request);
    }

    /// Whether nothing is to be sent, to be written or to be answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.first.is_empty()
            && self.publishes.is_empty()
            && self.controls.is_empty()
            && self.unwritten.is_empty()
    }

    // -- Requests on their way ---------------------------------------------------------------------

    pub(crate) fn note_publish(&mut self, id: PacketId, waiter: Option<Waiter<ReasonCode>>) {
        self.publishes.insert(id, waiter);
    }

    pub(crate) fn note_unwritten(&mut self, bytes: u64, waiter: Waiter<ReasonCode>) {
        self.unwritten.push_back((bytes, waiter));
    }

    pub(crate) fn note_control(&mut self, id: PacketId, control: Control) {
        self.controls.push_back((id, control));
    }

    /// The link took `bytes` since it came up.
    pub(crate) fn handle_written(&mut self, bytes: u64) {
        while let Some((at, _)) = self.unwritten.front()
            && *at <= bytes
            && let Some((_, waiter)) = self.unwritten.pop_front()
        {
            answer(waiter, Ok(ReasonCode::Success));
        }
    }

    pub(crate) fn handle_published(&mut self, id: PacketId, reason: ReasonCode) {
        let Some(Some(waiter)) = self.publishes.remove(&id) else { return };
        answer(waiter, if reason.is_error() { Err(Error::PublishRefused(reason)) } else { Ok(reason) });
    }

    pub(crate) fn take_control(&mut self, id: PacketId) -> Option<Control> {
        let at = self.controls.iter().position(|(other, _)| *other == id)?;
        self.controls.remove(at).map(|(_, control)| control)
    }

    // -- Subscriptions -----------------------------------------------------------------------------

    /// Keeps what was granted of a SUBSCRIBE, to be restored when the server forgets it.
    pub(crate) fn keep(&mut self, subscribe: &Subscribe, codes: &[ReasonCode]) {
        for (entry, code) in subscribe.entries.iter().zip(codes) {
            self.subscriptions.retain(|kept| kept.entries[0].filter != entry.filter);
            if !code.is_error() {
                let entries = vec![entry.clone()];
                self.subscriptions.push(Subscribe {
                    entries,
                    id: subscribe.id,
                    user: subscribe.user.clone(),
                });
            }
        }
    }

    pub(crate) fn forget(&mut self, filters: &[braid_proto::topic::TopicFilter]) {
        self.subscriptions
            .retain(|kept| !kept.entries[0].filter.as_ref().is_ok_and(|filter| filters.contains(filter)));
    }

    /// What brings all subscriptions back: neighbours with the same options of the packet share one.
    pub(crate) fn resubscribe(&self) -> Vec<Subscribe> {
        let mut all: Vec<Subscribe> = Vec::new();
        for kept in &self.subscriptions {
            match all.last_mut() {
                Some(last)
                    if last.id == kept.id
                        && last.user == kept.user
                        && last.entries.len() < RESUBSCRIBE_AT_ONCE =>
                {
                    last.entries.extend_from_slice(&kept.entries);
                }
                _ => all.push(kept.clone()),
            }
        }
        all
    }

    // -- The end of a connection -------------------------------------------------------------------

    /// The connection ended: what was not answered is asked again on the next one, QoS 0 is lost.
    pub(crate) fn handle_connection_end(&mut self, error: &Error) {
        for (_, waiter) in self.unwritten.drain(..) {
            answer(waiter, Err(error.clone()));
        }
        while let Some((_, control)) = self.controls.pop_back() {
            // The next CONNACK decides anew what must be restored.
            if !matches!(control, Control::Resubscribe(_)) {
                self.first.push_front(Request::Control(control));
            }
        }
    }

    /// The server has lost the session with these messages: they are published anew, before anything else.
    ///
    /// A QoS 2 message may then arrive twice; the other choice would be to lose it.
    pub(crate) fn handle_lost(&mut self, lost: Vec<(PacketId, Option<Delivery>)>) {
        for (id, delivery) in lost.into_iter().rev() {
            let waiter = self.publishes.remove(&id).flatten();
            match (delivery, waiter) {
                (Some(delivery), waiter) => {
                    debug_assert!(delivery.qos > QoS::AtMostOnce, "QoS 0 has no packet identifier");
                    self.first.push_front(Request::Publish { delivery, waiter });
                }
                // PUBREC had come: the server took it.
                (None, Some(waiter)) => answer(waiter, Ok(ReasonCode::Success)),
                (None, None) => {}
            }
        }
    }

    /// The client ends: whoever waits learns why.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.handle_connection_end(error);
        for (_, waiter) in self.publishes.drain() {
            if let Some(waiter) = waiter {
                answer(waiter, Err(error.clone()));
            }
        }
        for request in self.first.drain(..) {
            request.fail(error.clone());
        }
    }
}
