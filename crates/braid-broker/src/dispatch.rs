//! Messages to mailboxes: a batch at a time, each subscriber woken once.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use braid_proto::message::{Delivery, Message};
use braid_router::{route, route_shared};

use crate::hub::Hub;
use crate::mailbox::Mailbox;
use crate::routes::{Route, Routes, SharedTarget, shared_target};
use crate::slot::{SessionKey, Slot};

/// Gives a batch of messages to everybody who subscribed, in order, and tells through `reached` whether each
/// had a subscriber. Returns a session that cannot keep up with what it gets, if there is one.
///
/// Whoever is away finds it in the mailbox [MQTT-4.5.0-1]. A mailbox is a queue that one publisher fills in the
/// order of its messages. [MQTT-4.6.0-5], [MQTT-4.6.0-6]
///
/// Messages of one topic that follow each other go to each mailbox under one lock. Everybody is woken after the
/// last message, outside of every lock: whoever wakes up finds all of it.
pub(crate) fn publish(
    hub: &Hub,
    routes: &mut Routes,
    publisher: Option<SessionKey>,
    messages: &[Arc<Message>],
    mut reached: impl FnMut(usize, bool),
) -> Option<Arc<Slot>> {
    let mut pushing = Pushing::new(hub);
    let mut index = 0;
    for run in messages.chunk_by(|a, b| a.topic.same_allocation(&b.topic)) {
        let route = routes.find(hub, &run[0].topic);
        for _ in run {
            reached(index, !route.is_empty());
            index += 1;
        }
        pushing.push_run(&route, publisher, run);
    }
    pushing.finish()
}

/// Gives what a session had got from shared subscriptions, and was not done with when it ended, to other members.
pub(crate) fn redistribute(hub: &Hub, deliveries: impl Iterator<Item = Delivery>) {
    let mut pushing = Pushing::new(hub);
    for delivery in deliveries {
        let Some(group) = delivery.shared.as_ref().and_then(|filter| hub.find_group(filter)) else {
            continue;
        };
        pushing.push_shared(&shared_target(hub, &group), &delivery.message);
    }
    pushing.finish();
}

/// Gives a session what is for it alone.
pub(crate) fn deliver(hub: &Hub, slot: &Arc<Slot>, deliveries: Vec<Delivery>) {
    let mut pushing = Pushing::new(hub);
    pushing.push(slot, deliveries.into_iter());
    pushing.finish();
}

/// Pushes of one batch, and what they add up to.
struct Pushing<'a> {
    hub: &'a Hub,
    now: Instant,
    wakers: Vec<Waker>,
    dropped: u64,
    congested: Option<Arc<Slot>>,
}

impl<'a> Pushing<'a> {
    fn new(hub: &'a Hub) -> Self {
        let now = tokio::time::Instant::now().into_std();
        Self { hub, now, wakers: Vec::new(), dropped: 0, congested: None }
    }

    fn push(&mut self, slot: &Arc<Slot>, deliveries: impl Iterator<Item = Delivery>) {
        let pushed = slot.mailbox.push(deliveries, self.hub.capacity, self.now, &mut self.wakers);
        self.dropped += pushed.dropped;
        if pushed.congested {
            self.congested = Some(slot.clone());
        }
    }

    fn push_run(&mut self, to: &Route, publisher: Option<SessionKey>, run: &[Arc<Message>]) {
        let mut start = 0;
        let mut deliveries = Vec::with_capacity(run.len());
        for (slot, end) in &to.targets {
            let matches = &to.matches[start..*end];
            start = *end;
            let overlap = slot.overlap();
            for message in run {
                route(message, publisher, matches, overlap, &mut deliveries);
            }
            self.push(slot, deliveries.drain(..));
        }
        for shared in &to.groups {
            for message in run {
                self.push_shared(shared, message);
            }
        }
    }

    /// Gives a message to the member whose turn it is: to one who is online and has room, else to anyone whose
    /// session keeps it.
    fn push_shared(&mut self, shared: &SharedTarget, message: &Arc<Message>) {
        let capacity = self.hub.capacity;
        let mailbox = |key: &SessionKey| shared.slot(*key).map(|slot| &slot.mailbox);
        let ready = |key: &SessionKey| mailbox(key).is_some_and(|mailbox| mailbox.is_ready(capacity));
        let open = |key: &SessionKey| mailbox(key).is_some_and(Mailbox::is_open);
        let member = shared.group.select(ready).or_else(|| shared.group.select(open));
        let slot = member.and_then(|member| shared.slot(member.key));
        match (member, slot) {
            (Some(member), Some(slot)) => {
                self.push(slot, std::iter::once(route_shared(message, &shared.group, member)));
            }
            _ => self.dropped += 1,
        }
    }

    fn finish(self) -> Option<Arc<Slot>> {
        self.hub.statistics.dropped(self.dropped);
        for waker in self.wakers {
            waker.wake();
        }
        self.congested
    }
}
