//! Messages to mailboxes: a batch at a time, each subscriber woken once.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use braid_proto::message::{Delivery, Message};
use braid_proto::stream::Priority;
use braid_proto::topic::TopicFilter;
use braid_router::{route, route_shared};
use braid_store::{Change, Commit};
use hashbrown::HashMap;

use crate::core::Core;
use crate::persist;
use crate::queue::session_queue::SessionQueue;
use crate::routes::{Route, Routes, SharedTarget, shared_target};
use crate::session_entry::{SessionEntry, SessionKey};

/// Gives a batch of messages to everybody who subscribed, in order, and tells through `reached` whether each
/// had a subscriber.
///
/// `changes` are committed together with what the messages cause, before anybody sees anything of it: whatever
/// a subscriber's task tells the store of a delivery comes after the delivery itself.
///
/// Whoever is away finds it in the mailbox [MQTT-4.5.0-1]. A mailbox is a queue that one publisher fills in the
/// order of its messages. [MQTT-4.6.0-5], [MQTT-4.6.0-6]
///
/// Messages of one topic that follow each other go to each mailbox under one lock. Everybody is woken after the
/// last message, outside of every lock: whoever wakes up finds all of it.
pub(crate) fn publish(
    core: &Core,
    routes: &mut Routes,
    publisher: Option<SessionKey>,
    messages: &[Arc<Message>],
    changes: Vec<Change>,
    mut reached: impl FnMut(usize, bool),
) -> Dispatched {
    let mut pushing = Pushing::new(core, changes);
    let mut index = 0;
    for run in messages.chunk_by(|a, b| a.topic.same_allocation(&b.topic)) {
        let route = routes.find(core, &run[0].topic);
        pushing.run = index..index + run.len();
        for _ in run {
            reached(index, !route.is_empty());
            index += 1;
        }
        pushing.push_run(&route, publisher, run);
    }
    pushing.finish()
}

/// Gives what a session had got from shared subscriptions, and was not done with when it ended, to other members;
/// what is left of it in the store goes with `end`. The commit of all that, if there is any.
pub(crate) fn redistribute(
    core: &Core,
    deliveries: impl Iterator<Item = Delivery>,
    end: Option<Change>,
) -> Option<Commit> {
    let mut pushing = Pushing::new(core, Vec::new());
    // A hundred thousand deliveries are of a handful of groups.
    let mut targets: HashMap<Arc<TopicFilter>, Option<SharedTarget>> = HashMap::new();
    for delivery in deliveries {
        let Some(filter) = &delivery.shared else { continue };
        let find = || core.find_group(filter).map(|group| shared_target(core, &group));
        if let Some(shared) = targets.entry(filter.clone()).or_insert_with(find) {
            let (message, waits_since) = (&delivery.message, delivery.waits_since);
            pushing.push_shared(shared, core.priority_of(&message.topic), message, waits_since);
        }
    }
    pushing.durable.changes.extend(end);
    pushing.finish().commit
}

/// Tells the store, if it knows the session, of what its own connection takes without a mailbox between. Nobody
/// waits for the commit.
pub(crate) fn take_directly(core: &Core, entry: &SessionEntry, deliveries: &mut [Delivery]) {
    if !entry.is_durable() {
        return;
    }
    let mut changes = Vec::new();
    for delivery in deliveries {
        core.persist.queue(&mut changes, entry.id(), delivery, &core.queues.policy);
    }
    if !changes.is_empty() {
        drop(core.persist.commit(changes));
    }
}

/// What a batch led to.
pub(crate) struct Dispatched {
    /// Who cannot keep up with what they get.
    pub(crate) congested: Vec<Congested>,
    /// How many deliveries it was.
    pub(crate) deliveries: usize,
    /// What the acknowledgements wait for; `None` when the store had nothing to be told.
    pub(crate) commit: Option<Commit>,
    /// Each of its topics has a priority above the usual.
    pub(crate) is_urgent: bool,
}

/// A session that cannot keep up with what it gets.
pub(crate) struct Congested {
    pub(crate) entry: Arc<SessionEntry>,
    /// It is worth waiting for until then, if it has no room before.
    pub(crate) until: Instant,
    /// Which messages of the batch it was given.
    pub(crate) messages: Range<usize>,
}

/// Pushes of one batch, and what they add up to.
struct Pushing<'a> {
    core: &'a Core,
    now: Instant,
    wakers: Vec<Waker>,
    dropped: u64,
    deliveries: usize,
    /// Which messages of the batch are being pushed.
    run: Range<usize>,
    congested: Vec<Congested>,
    is_urgent: bool,
    /// Of shared subscriptions, for members whose sessions ended since they were chosen.
    orphans: Vec<Delivery>,
    durable: Durable,
}

/// What the store must be told before it is pushed. Without sessions that the store knows, nothing ever is in it.
struct Durable {
    changes: Vec<Change>,
    /// With which messages of the batch they are.
    deliveries: Vec<(Arc<SessionEntry>, Range<usize>, Vec<Delivery>)>,
    /// What of it had no room: it has gone into the store, as its place in the order was not known before.
    lost: Vec<Change>,
}

impl<'a> Pushing<'a> {
    fn new(core: &'a Core, changes: Vec<Change>) -> Self {
        let now = tokio::time::Instant::now().into_std();
        let durable = Durable { changes, deliveries: Vec::new(), lost: Vec::new() };
        Self {
            core,
            now,
            wakers: Vec::new(),
            dropped: 0,
            deliveries: 0,
            run: 0..0,
            congested: Vec::new(),
            is_urgent: true,
            orphans: Vec::new(),
            durable,
        }
    }

    fn push(&mut self, entry: &Arc<SessionEntry>, deliveries: impl Iterator<Item = Delivery>) {
        if entry.is_durable() {
            self.keep(entry, deliveries.collect());
        } else {
            self.push_now(entry, deliveries);
        }
    }

    /// Holds deliveries back until the store was told of them.
    fn keep(&mut self, entry: &Arc<SessionEntry>, mut deliveries: Vec<Delivery>) {
        let Durable { changes, deliveries: kept, .. } = &mut self.durable;
        for delivery in &mut deliveries {
            self.core.persist.queue(changes, entry.id(), delivery, &self.core.queues.policy);
        }
        if kept.is_empty() && deliveries.iter().all(|delivery| delivery.stored.is_none()) {
            self.push_now(entry, deliveries.into_iter());
        } else {
            kept.push((entry.clone(), self.run.clone(), deliveries));
        }
    }

    fn push_now(&mut self, entry: &Arc<SessionEntry>, deliveries: impl Iterator<Item = Delivery>) {
        let pushed = self.core.queues.push(entry, deliveries, self.now, &mut self.wakers);
        if let Some(until) = pushed.congested_until {
            // One of those who get the same is enough.
            if self.congested.last().is_none_or(|last| last.messages != self.run) {
                self.congested.push(Congested { entry: entry.clone(), until, messages: self.run.clone() });
            }
        }
        self.orphans.extend(pushed.orphans);
        self.durable.lost.extend(persist::completed(entry.id(), pushed.lost));
    }

    fn push_run(&mut self, to: &Route, publisher: Option<SessionKey>, run: &[Arc<Message>]) {
        self.is_urgent &= to.priority.is_some_and(|priority| priority > Priority::DEFAULT);
        let mut start = 0;
        let mut deliveries = Vec::with_capacity(run.len());
        for (entry, end) in &to.targets {
            let matches = &to.matches[start..*end];
            start = *end;
            let overlap = entry.overlap();
            for message in run {
                route(message, publisher, matches, overlap, &mut deliveries);
            }
            self.deliveries += deliveries.len();
            self.push(entry, deliveries.drain(..));
        }
        for shared in &to.groups {
            for message in run {
                self.push_shared(shared, to.priority, message, None);
            }
        }
    }

    /// Gives a message to the member whose turn it is: to one who is online and has room, else to anyone whose
    /// session keeps it. `priority` is for a member that asked for none; `waits_since` if it has waited for another.
    fn push_shared(
        &mut self,
        shared: &SharedTarget,
        priority: Option<Priority>,
        message: &Arc<Message>,
        waits_since: Option<NonZeroU32>,
    ) {
        let limits = self.core.queues.policy.limits;
        let queue = |key: &SessionKey| shared.entry(*key).map(|entry| &entry.queue);
        let ready = |key: &SessionKey| queue(key).is_some_and(|queue| queue.is_ready(message, limits));
        let open = |key: &SessionKey| queue(key).is_some_and(SessionQueue::is_open);
        let member = shared.group.select(ready).or_else(|| shared.group.select(open));
        let entry = member.and_then(|member| shared.entry(member.key));
        match (member, entry) {
            (Some(member), Some(entry)) => {
                let mut delivery = route_shared(message, &shared.group, member);
                delivery.priority = member.subscription.priority.or(priority).unwrap_or_default(); // [BQ-52]
                delivery.waits_since = waits_since;
                self.push(entry, std::iter::once(delivery));
            }
            _ => self.dropped += 1,
        }
    }

    fn finish(mut self) -> Dispatched {
        let Durable { changes, deliveries, .. } = &mut self.durable;
        let (changes, deliveries) = (std::mem::take(changes), std::mem::take(deliveries));
        let commit = (!changes.is_empty()).then(|| self.core.persist.commit(changes));
        for (entry, run, deliveries) in deliveries {
            self.run = run;
            self.push_now(&entry, deliveries.into_iter());
        }
        self.core.persist.commit_late(self.durable.lost);
        self.core.statistics.dropped(self.dropped);
        for waker in std::mem::take(&mut self.wakers) {
            waker.wake();
        }
        let Self { core, congested, deliveries, is_urgent, orphans, .. } = self;
        // What their sessions left has gone to other members by now. A later commit is not done before an earlier one.
        let again = if orphans.is_empty() { None } else { redistribute(core, orphans.into_iter(), None) };
        Dispatched { congested, deliveries, commit: again.or(commit), is_urgent }
    }
}

#[cfg(test)]
mod tests {
    use braid_proto::packet::{ClientId, QoS};
    use braid_proto::session::Subscription;
    use braid_proto::topic::TopicName;
    use braid_store::{Claim, MemoryStore, NextIds};

    use super::*;
    use crate::auth::Anonymous;
    use crate::config::BrokerConfig;
    use crate::memory::Memory;

    /// [MQTT-4.8.2-4]: a member whose session ends after it was chosen is not the only one that could have had it.
    #[tokio::test]
    async fn a_shared_message_finds_another_member_if_the_first_one_ends_meanwhile() {
        let (config, rule) = (BrokerConfig::default(), Box::new(Anonymous::default()));
        let memory = Arc::new(Memory::new(&config.limits));
        let core = Core::new(config, rule, Arc::new(MemoryStore::new()), None, NextIds::FIRST, memory);
        let filter = TopicFilter::parse("$share/group/t").unwrap();
        let subscription = Subscription { qos: QoS::AtLeastOnce, ..Subscription::default() };
        for (client, claim) in [("a", Claim::new(1)), ("b", Claim::new(2))] {
            let connection = core.registry.next_connection();
            let entry = core.registry.claim(&ClientId::from(client), false, connection).await.entry;
            entry.set_durable(claim);
            core.with_router(|router| router.subscribe(entry.key, &filter, subscription));
        }
        let topic = TopicName::parse("t").unwrap();
        let message = Arc::new(Message::new(topic, "x".into(), QoS::AtLeastOnce, false));
        let mut routes = Routes::default();
        let route = routes.find(&core, &message.topic);
        let push = || {
            let mut pushing = Pushing::new(&core, Vec::new());
            pushing.push_run(&route, None, std::slice::from_ref(&message));
            if let Some((chosen, ..)) = pushing.durable.deliveries.first() {
                chosen.queue.close();
            }
            let has_commit = pushing.finish().commit.is_some();
            let holders = core.registry.entries().values().filter(|entry| entry.used() > 0).count();
            (has_commit, holders, core.statistics.messages_dropped())
        };
        assert_eq!(push(), (true, 1, 0), "the other one has it");
        assert_eq!(push(), (true, 0, 1), "there is nobody else");
        assert_eq!(push(), (false, 0, 2), "there is nobody");
    }
}
