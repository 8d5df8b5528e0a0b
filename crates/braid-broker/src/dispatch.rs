//! Messages to mailboxes: a batch at a time, each subscriber woken once.

use std::sync::Arc;
use std::task::Waker;

use braid_proto::message::{Delivery, Message};
use braid_router::{route, route_shared};

use crate::hub::Hub;
use crate::mailbox::Mailbox;
use crate::routes::{Route, Routes, SharedTarget};
use crate::slot::SessionKey;

/// Gives a batch of messages to everybody who subscribed, in order, and returns through `reached` whether each
/// had a subscriber.
///
/// Messages of one topic that follow each other go to each mailbox under one lock. Everybody is woken after the
/// last message, outside of every lock: whoever wakes up finds all of it.
pub(crate) fn publish(
    hub: &Hub,
    routes: &mut Routes,
    publisher: Option<SessionKey>,
    messages: &[Arc<Message>],
    mut reached: impl FnMut(usize, bool),
) {
    let mut wakers = Vec::new();
    let mut index = 0;
    for run in messages.chunk_by(|a, b| a.topic.same_allocation(&b.topic)) {
        let route = routes.find(hub, &run[0].topic);
        for _ in run {
            reached(index, !route.is_empty());
            index += 1;
        }
        push_run(hub, &route, publisher, run, &mut wakers);
    }
    for waker in wakers {
        waker.wake();
    }
}

fn push_run(
    hub: &Hub,
    to: &Route,
    publisher: Option<SessionKey>,
    run: &[Arc<Message>],
    wakers: &mut Vec<Waker>,
) {
    let mut start = 0;
    let mut dropped = 0;
    let mut deliveries = Vec::with_capacity(run.len());
    for (slot, end) in &to.targets {
        let matches = &to.matches[start..*end];
        start = *end;
        let overlap = slot.overlap();
        for message in run {
            route(message, publisher, matches, overlap, &mut deliveries);
        }
        dropped += slot.mailbox.push(deliveries.drain(..), hub.capacity, wakers);
    }
    for shared in &to.groups {
        for message in run {
            dropped += push_shared(hub, shared, message, wakers);
        }
    }
    hub.statistics.dropped(dropped);
}

/// Gives a message to the member whose turn it is: to one who is online and has room, else to anyone whose
/// session keeps it.
fn push_shared(hub: &Hub, shared: &SharedTarget, message: &Arc<Message>, wakers: &mut Vec<Waker>) -> u64 {
    let mailbox = |key: &SessionKey| shared.slot(*key).map(|slot| &slot.mailbox);
    let ready = |key: &SessionKey| mailbox(key).is_some_and(|mailbox| mailbox.is_ready(hub.capacity));
    let open = |key: &SessionKey| mailbox(key).is_some_and(Mailbox::is_open);
    let Some(member) = shared.group.select(ready).or_else(|| shared.group.select(open)) else { return 1 };
    let Some(mailbox) = mailbox(&member.key) else { return 1 };
    mailbox.push(std::iter::once(route_shared(message, &shared.group, member)), hub.capacity, wakers)
}

/// Gives what a session had got from shared subscriptions, and was not done with when it ended, to other members.
pub(crate) fn redistribute(hub: &Hub, unacknowledged: impl Iterator<Item = Delivery>) {
    let mut wakers = Vec::new();
    for delivery in unacknowledged {
        let Some(filter) = &delivery.shared else { continue };
        let Some(group) = hub.find_group(filter) else { continue };
        let shared = crate::routes::shared_target(hub, &group);
        let dropped = push_shared(hub, &shared, &delivery.message, &mut wakers);
        hub.statistics.dropped(dropped);
    }
    for waker in wakers {
        waker.wake();
    }
}
