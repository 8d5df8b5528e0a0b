//! Dispatcher: publishes batches of messages into the queues of sessions.

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use braid_proto::connection::Token;
use braid_proto::message::{Delivery, Message, SharedMessage, SubscriptionIds};
use braid_proto::packet::{ClientId, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Match, Readiness, route, route_shared};
use braid_store::{Change, Commit};
use hashbrown::HashMap;

use crate::auth::{Access, ClientAccess, Permitted, is_broker_topic};
use crate::clock;
use crate::cluster::{ArrivedMessage, Forwarded, Publication};
use crate::limit::Limit;
use crate::lock_order;
use crate::memory::Memory;
use crate::persist::{self, Persist};
use crate::queue::session_queue::Capacity;
use crate::queue::usage::{QueueUsage, message_cost};
use crate::registry::{SessionEntry, SessionKey};
use crate::retained::{RetainedMessages, Retaining};
use crate::routing::{Route, RouteCache, RoutingTable, SharedTarget};
use crate::session_queues::SessionQueues;
use crate::statistics::{Counter, Statistics};
use crate::view::MessageTaps;

/// Nodes of the trie of all patterns whose visit takes about as long as a match.
const NODES_OF_A_MATCH: usize = 8;

/// Publishes batches: admits them, changes what is retained, commits what is durable, pushes into queues.
pub(crate) struct Dispatcher {
    access: Arc<Access>,
    routing: Arc<RoutingTable>,
    queues: Arc<SessionQueues>,
    retained: Arc<RetainedMessages>,
    persist: Arc<Persist>,
    memory: Arc<Memory>,
    statistics: Arc<Statistics>,
    /// Taps of what is published.
    pub(crate) taps: Arc<MessageTaps>,
}

impl Dispatcher {
    pub(crate) fn new(
        access: Arc<Access>,
        routing: Arc<RoutingTable>,
        queues: Arc<SessionQueues>,
        retained: Arc<RetainedMessages>,
        persist: Arc<Persist>,
        memory: Arc<Memory>,
        statistics: Arc<Statistics>,
    ) -> Self {
        let taps = Arc::default();
        Self { access, routing, queues, retained, persist, memory, statistics, taps }
    }

    /// Messages that are retained.
    pub(crate) fn retained(&self) -> &RetainedMessages {
        &self.retained
    }

    /// Removes from a client's batch the messages that it may not publish, and retains those with RETAIN.
    ///
    /// Every PUBLISH of a client passes here: each reason to refuse one is a call of [`refuse`]. Wills are published by
    /// the broker and do not pass here.
    pub(crate) fn admit(
        &self,
        client: &mut ClientAccess,
        messages: &mut Vec<SharedMessage>,
        tokens: &mut Vec<Option<Token>>,
        mut set_reason: impl FnMut(Token, ReasonCode),
    ) -> Retention {
        let received = messages.len();
        // Before the rules are asked, which a reload may replace between two messages.
        let generation = self.access.generation();
        // Publishers of the messages with RETAIN, in their order. Like the authorizer, which may be slow, they are
        // asked for before the lock of all retained messages.
        let mut publishers = VecDeque::new();
        refuse(messages, tokens, &mut set_reason, |message| {
            if !client.may_publish(&message.topic) {
                // The acknowledgement of MQTT 3 cannot say that it was not allowed. [MQTT3-3.3.5-2]
                return Some(ReasonCode::NotAuthorized);
            }
            let reason = self.check(message).err();
            // Those of refused messages would be taken for those of the messages behind them.
            if reason.is_none() && message.retain {
                publishers.push_back(client.publisher(&message.topic, generation));
            }
            reason
        });
        let mut retention = Retention::default();
        // The lock is held from the first message with RETAIN on.
        let mut retaining = None;
        refuse(messages, tokens, &mut set_reason, |message| {
            // Without RETAIN nothing that is retained changes. [MQTT-3.3.1-8]
            if !message.retain {
                return None;
            }
            let publisher = publishers.pop_front().flatten();
            if self.has_log() {
                let has_room = self.retained.check_room(message).map_err(|limit| self.refuse_retained(limit));
                retention.publishers.extend(has_room.is_ok().then(|| encoded(publisher)));
                return has_room.err();
            }
            let retaining = retaining.get_or_insert_with(|| self.retained.change(&self.persist));
            self.retain(retaining, message, publisher).err()
        });
        self.statistics.add(Counter::MessagesDropped, (received - messages.len()) as u64);
        retention.commit = retaining.and_then(Retaining::commit);
        retention
    }

    /// See [`Cluster::check`](crate::cluster::Cluster::check).
    pub(crate) fn check(&self, message: &Message) -> Result<(), ReasonCode> {
        self.routing.cluster().check(message)
    }

    /// Retains a message.
    ///
    /// # Errors
    /// The Reason Code of its acknowledgement: a limit is reached, which is counted.
    fn retain(
        &self,
        retaining: &mut Retaining<'_>,
        message: &SharedMessage,
        publisher: Option<Permitted>,
    ) -> Result<(), ReasonCode> {
        retaining.set(message, publisher).map_err(|limit| self.refuse_retained(limit))
    }

    fn refuse_retained(&self, limit: Limit) -> ReasonCode {
        self.statistics.reach(limit);
        ReasonCode::QuotaExceeded
    }

    /// Publishes a batch to every subscriber, in order, and tells through `reached` whether each message had one here.
    ///
    /// `changes` are committed together with what the messages cause, before any of it is visible: a change to a
    /// delivery that a subscriber's connection commits comes after the delivery itself.
    ///
    /// Sessions without a connection keep it in their queue [MQTT-4.5.0-1]. One publisher fills a queue in the order of
    /// its messages. [MQTT-4.6.0-5], [MQTT-4.6.0-6]
    pub(crate) fn publish(
        &self,
        routes: &mut RouteCache,
        publisher: Option<&SessionEntry>,
        messages: &[SharedMessage],
        retained_by: &[Option<Arc<str>>],
        mut changes: Vec<Change>,
        reached: impl FnMut(usize, bool),
    ) -> Dispatched {
        lock_order::assert_none_held();
        let publication = Publication {
            publisher: publisher.map(|entry| (&entry.client_id, entry.id())),
            messages,
            retained_by,
            is_urgent: &|topic| self.is_urgent(topic),
        };
        let key = publisher.map(|entry| entry.key);
        let (here, commit) = match self.routing.cluster().forward(&publication, &mut changes) {
            Forwarded::Here => return self.deliver(routes, key, messages, changes, reached),
            Forwarded::Split { here, commit } => (here, commit),
        };
        let kept: Vec<_> =
            messages.iter().zip(here).filter(|(_, is_here)| *is_here).map(|(one, _)| one.clone()).collect();
        let delivered = self.deliver(routes, key, &kept, changes, |_, _| {});
        let urgent = self.urgent_part(messages);
        // Messages for which an acknowledgement would wait are not among those that were delivered here.
        Dispatched { congested: Vec::new(), urgent, forwarded: commit, ..delivered }
    }

    /// Removes the retained message of a topic at all nodes, without a word to subscribers. `None`: there are no
    /// others.
    pub(crate) fn remove_retained_everywhere(&self, topic: &TopicName) -> Option<Commit> {
        // Each node has topics of its broker for itself.
        let is_own = is_broker_topic(topic);
        if is_own { None } else { self.routing.cluster().remove_retained(topic, self.is_urgent(topic)) }
    }

    /// See [`Cluster::has_log`](crate::cluster::Cluster::has_log).
    fn has_log(&self) -> bool {
        self.routing.cluster().has_log()
    }

    fn is_urgent(&self, topic: &TopicName) -> bool {
        self.routing.priority_of(topic).is_some_and(|priority| priority > Priority::DEFAULT)
    }

    fn urgent_part(&self, messages: &[SharedMessage]) -> UrgentPart {
        let mut urgent = UrgentPart { is_all: true, bytes: 0 };
        for message in messages {
            urgent.note(self.is_urgent(&message.topic), std::slice::from_ref(message));
        }
        urgent
    }

    /// Delivers a batch to the sessions of this node.
    ///
    /// Consecutive messages of one topic go into each queue under one lock. Subscribers are woken after the last
    /// message and outside of every lock: a connection that wakes finds all of it.
    fn deliver(
        &self,
        routes: &mut RouteCache,
        publisher: Option<SessionKey>,
        messages: &[SharedMessage],
        changes: Vec<Change>,
        mut reached: impl FnMut(usize, bool),
    ) -> Dispatched {
        self.taps.record(messages);
        let mut push = BatchPush::new(self, changes);
        let mut index = 0;
        for run in messages.chunk_by(|a, b| a.topic.same_allocation(&b.topic)) {
            let route = routes.find(&self.routing, &run[0].topic);
            push.run = index..index + run.len();
            for _ in run {
                reached(index, !route.is_empty());
                index += 1;
            }
            push.push_run(&route, publisher, run);
        }
        push.work += routes.take_visited() / NODES_OF_A_MATCH;
        push.finish()
    }

    /// Delivers messages that come from other nodes or from the log to the sessions of this node, and retains those
    /// with RETAIN. `find`: the session of a publisher, if this node has it.
    pub(crate) fn deliver_arrived(
        &self,
        routes: &mut RouteCache,
        arrived: Vec<ArrivedMessage>,
        find: impl Fn(&ClientId) -> Option<SessionKey>,
    ) {
        let (mut messages, mut rest) = (Vec::with_capacity(arrived.len()), Vec::with_capacity(arrived.len()));
        let mut withheld = Vec::new();
        for ArrivedMessage { message, publisher, retained_by, is_withheld } in arrived {
            withheld.extend(is_withheld.then_some(messages.len()));
            messages.push(SharedMessage::new(message));
            rest.push((publisher, retained_by));
        }
        self.memory.charge(&self.memory.account(), &mut messages);
        // First: a SUBSCRIBE finds a message here, or gets it as one that is published, or both.
        let mut retaining = None;
        for (message, (_, retained_by)) in messages.iter().zip(&mut rest).filter(|(one, _)| one.retain) {
            let retaining = retaining.get_or_insert_with(|| self.retained.change(&self.persist));
            let is_later = |arrived, known| self.routing.cluster().is_later(arrived, known);
            retaining.set_arrived(message, retained_by.take(), is_later);
        }
        drop(retaining.and_then(Retaining::commit));
        for index in withheld.into_iter().rev() {
            drop(messages.remove(index));
            drop(rest.remove(index));
        }
        let mut start = 0;
        for of_one in rest.chunk_by(|(a, _), (b, _)| a == b) {
            let publisher = of_one.first().and_then(|(publisher, _)| publisher.as_ref()).and_then(&find);
            let end = start + of_one.len();
            drop(self.deliver(routes, publisher, &messages[start..end], Vec::new(), |_, _| {}));
            start = end;
        }
    }

    /// Delivers a message to a member of a shared subscription, with the QoS that is returned; `None` if there is none.
    pub(crate) fn deliver_shared(&self, filter: &TopicFilter, message: Message) -> Option<QoS> {
        let group = self.routing.group(filter)?;
        let mut message = [SharedMessage::new(message)];
        self.memory.charge(&self.memory.account(), &mut message);
        let mut push = BatchPush::new(self, Vec::new());
        let priority = self.routing.priority_of(&message[0].topic);
        let qos = push.push_shared(&group, priority, &message[0], None);
        // Another node may have a member: it does not count as dropped.
        push.dropped = 0;
        drop(push.finish());
        qos
    }

    /// Publishes a message of the broker itself.
    pub(crate) fn publish_own(&self, message: Message) {
        drop(self.publish_one(None, None, message, Vec::new()));
    }

    /// Publishes a message for an operator.
    pub(crate) fn publish_for_operator(&self, message: Message) -> PublishedOne {
        self.publish_one(None, None, message, Vec::new())
    }

    /// Publishes a Will as a message of its session, if the client still may: No Local applies to it. [MQTT-3.8.3-3]
    pub(crate) fn publish_will(&self, entry: &SessionEntry, will: Will) {
        let (generation, identity) = (self.access.generation(), entry.identity());
        if !self.access.may_publish_will(&entry.client_id, identity.as_ref(), &will.topic) {
            self.statistics.add(Counter::MessagesDropped, 1);
            if entry.take_stored_will() {
                self.persist.commit_unwatched(vec![Change::WillCleared { session: entry.id() }]);
            }
            return;
        }
        let permitted = self.access.publisher(&entry.client_id, identity.as_ref(), &will.topic, generation);
        let message = Message::from_will(will, clock::now());
        let cleared = entry.take_stored_will().then(|| Change::WillCleared { session: entry.id() });
        // [MQTT-3.1.2-14], [MQTT-3.1.2-15]
        drop(self.publish_one(Some(entry), permitted, message, cleared.into_iter().collect()));
    }

    fn publish_one(
        &self,
        publisher: Option<&SessionEntry>,
        permitted: Option<Permitted>,
        message: Message,
        changes: Vec<Change>,
    ) -> PublishedOne {
        let mut message = [SharedMessage::new(message)];
        let account = self.memory.account();
        self.memory.charge(&account, &mut message);
        let (mut is_retained, mut retained) = (true, None);
        let mut retained_by = None;
        if message[0].retain && self.has_log() && !is_broker_topic(&message[0].topic) {
            is_retained = self.retained.check_room(&message[0]).is_ok();
            retained_by = Some(encoded(permitted));
        } else if message[0].retain {
            let mut retaining = self.retained.change(&self.persist);
            // One that is not retained is published all the same.
            is_retained = self.retain(&mut retaining, &message[0], permitted).is_ok();
            retained = retaining.commit();
        }
        let mut routes = RouteCache::default();
        let receivers = routes.find(&self.routing, &message[0].topic).receivers();
        let retained_by: Vec<_> = retained_by.into_iter().collect();
        let Dispatched { commit, forwarded, .. } =
            self.publish(&mut routes, publisher, &message, &retained_by, changes, |_, _| {});
        PublishedOne { receivers, is_retained, commits: [retained, forwarded, commit] }
    }

    /// Gives deliveries of shared subscriptions that an ended session had not completed to other members. What is left
    /// of the session in the store is removed with `end`, in the commit that is returned.
    pub(crate) fn redistribute(
        &self,
        deliveries: impl Iterator<Item = Delivery>,
        end: Option<Change>,
    ) -> Option<Commit> {
        let mut push = BatchPush::new(self, Vec::new());
        // Another node may have the next member.
        let deliveries = deliveries.filter(|_| !self.has_log());
        // A hundred thousand deliveries are of a handful of groups.
        let mut targets: HashMap<Arc<TopicFilter>, Option<Arc<SharedTarget>>> = HashMap::new();
        for delivery in deliveries {
            let Some(filter) = &delivery.shared else { continue };
            let group = targets.entry(filter.clone()).or_insert_with(|| self.routing.group(filter));
            if let Some(shared) = group {
                let (message, enqueued_at) = (&delivery.message, delivery.enqueued_at);
                push.push_shared(shared, self.routing.priority_of(&message.topic), message, enqueued_at);
            }
        }
        push.changes.extend(end);
        push.finish().commit
    }

    /// Tells the store, if it knows the session, of deliveries that its own connection takes without the queue. The
    /// commit is not awaited.
    pub(crate) fn take_directly(&self, entry: &SessionEntry, deliveries: &mut [Delivery]) {
        if !entry.is_durable() {
            return;
        }
        let mut changes = Vec::new();
        for delivery in deliveries {
            self.persist.queue(&mut changes, entry.id(), delivery, &self.queues.policy);
        }
        self.persist.commit_unwatched(changes);
    }
}

/// Removes the messages for which there is a reason, and their tokens, to which the reason is passed on.
fn refuse(
    messages: &mut Vec<SharedMessage>,
    tokens: &mut Vec<Option<Token>>,
    set_reason: &mut impl FnMut(Token, ReasonCode),
    mut reason_for: impl FnMut(&SharedMessage) -> Option<ReasonCode>,
) {
    let mut kept = 0;
    for index in 0..messages.len() {
        let Some(reason) = reason_for(&messages[index]) else {
            if kept < index {
                messages.swap(kept, index);
                tokens.swap(kept, index);
            }
            kept += 1;
            continue;
        };
        if let Some(token) = tokens[index] {
            set_reason(token, reason);
        }
    }
    messages.truncate(kept);
    tokens.truncate(kept);
}

/// Publisher of a retained message in the encoding of the store.
fn encoded(permitted: Option<Permitted>) -> Option<Arc<str>> {
    permitted.map(|permitted| permitted.publisher.encoded().clone())
}

/// Result of a message that no client has published.
pub(crate) struct PublishedOne {
    /// Sessions that receive it: one member of each shared subscription.
    pub(crate) receivers: usize,
    /// False if it should be retained and there was no room for another topic.
    pub(crate) is_retained: bool,
    /// Commits of the retained message, of the log, and of the deliveries.
    pub(crate) commits: [Option<Commit>; 3],
}

/// Result of a batch.
pub(crate) struct Dispatched {
    /// Sessions that cannot keep up.
    pub(crate) congested: Vec<Congested>,
    /// Matches of its messages with subscriptions, those that are merged into one delivery included, members of shared
    /// subscriptions that were asked for their capacity, and one for each [`NODES_OF_A_MATCH`] of the search.
    pub(crate) work: usize,
    /// Commit that the acknowledgements wait for; `None` when the store had nothing to be told.
    pub(crate) commit: Option<Commit>,
    /// Commit of the log, which the acknowledgements wait for too.
    pub(crate) forwarded: Option<Commit>,
    pub(crate) urgent: UrgentPart,
}

/// Publishers of retained messages that were admitted, and the commit of those that are retained by now.
#[derive(Default)]
pub(crate) struct Retention {
    pub(crate) commit: Option<Commit>,
    /// In the encoding of the store, for messages that are retained when they come back from the log.
    pub(crate) publishers: Vec<Option<Arc<str>>>,
}

/// Part of a batch on topics with a priority above the default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UrgentPart {
    /// The part is the whole batch.
    pub(crate) is_all: bool,
    /// Bytes of its messages, as a queue counts them.
    pub(crate) bytes: usize,
}

impl UrgentPart {
    fn note(&mut self, is_urgent: bool, messages: &[SharedMessage]) {
        self.is_all &= is_urgent;
        if is_urgent {
            self.bytes += messages.iter().map(|message| message_cost(message)).sum::<usize>();
        }
    }
}

/// Session that cannot keep up with its deliveries.
pub(crate) struct Congested {
    pub(crate) entry: Arc<SessionEntry>,
    /// Time until which acknowledgements wait for room in its queue.
    pub(crate) until: Instant,
    /// Messages of the batch that it received.
    pub(crate) messages: Range<usize>,
    /// The messages were urgent for the session: acknowledgements wait only if their publisher sends too many.
    pub(crate) is_urgent: bool,
}

/// Pushes of one batch, and their result.
struct BatchPush<'a> {
    dispatcher: &'a Dispatcher,
    now: Instant,
    wakers: Vec<Waker>,
    dropped: u64,
    /// See [`Dispatched::work`].
    work: usize,
    /// Messages of the batch that are being pushed.
    run: Range<usize>,
    congested: Vec<Congested>,
    urgent: UrgentPart,
    /// Deliveries of shared subscriptions whose member's session ended after it was selected.
    orphans: Vec<Delivery>,
    /// Changes that the store must be told of before `deferred` are pushed. Empty unless a session is durable.
    changes: Vec<Change>,
    deferred: DeferredPushes,
    /// Completion of deliveries that found no room: they are in the store, as their sequence numbers were needed first.
    lost: Vec<Change>,
}

/// Pushes that wait until the store was told of them.
#[derive(Default)]
struct DeferredPushes {
    /// Deliveries with their messages of the batch.
    pushes: Vec<(Arc<SessionEntry>, Range<usize>, Vec<Delivery>)>,
    /// Number of `pushes` that `reserved` includes.
    counted: usize,
    /// Usage of the deliveries of each session, which its queue does not have yet.
    reserved: HashMap<SessionKey, QueueUsage>,
}

impl DeferredPushes {
    /// Counts the deliveries that were added since the last call.
    fn count(&mut self) {
        for (entry, _, deliveries) in &self.pushes[self.counted..] {
            let reserved = self.reserved.entry(entry.key).or_default();
            deliveries.iter().for_each(|delivery| reserved.add(&QueueUsage::of(delivery)));
        }
        self.counted = self.pushes.len();
    }
}

impl<'a> BatchPush<'a> {
    fn new(dispatcher: &'a Dispatcher, changes: Vec<Change>) -> Self {
        Self {
            dispatcher,
            now: clock::now(),
            wakers: Vec::new(),
            dropped: 0,
            work: 0,
            run: 0..0,
            congested: Vec::new(),
            urgent: UrgentPart { is_all: true, bytes: 0 },
            orphans: Vec::new(),
            changes,
            deferred: DeferredPushes::default(),
            lost: Vec::new(),
        }
    }

    fn push(&mut self, entry: &Arc<SessionEntry>, deliveries: impl Iterator<Item = Delivery>) {
        if entry.is_durable() {
            self.defer(entry, deliveries.collect());
        } else {
            self.push_now(entry, deliveries);
        }
    }

    /// Defers deliveries until the store was told of them.
    fn defer(&mut self, entry: &Arc<SessionEntry>, mut deliveries: Vec<Delivery>) {
        let Dispatcher { persist, queues, .. } = self.dispatcher;
        let is_logged = self.dispatcher.has_log();
        let mut before = None;
        for delivery in &mut deliveries {
            // The first delivery of a message of the log has its number there; copies have numbers of their own.
            let is_first = |lsn: &NonZeroU64| is_logged && before != Some(*lsn) && delivery.shared.is_none();
            delivery.queue_lsn = delivery.message.lsn().filter(is_first);
            before = delivery.message.lsn();
            persist.queue(&mut self.changes, entry.id(), delivery, &queues.policy);
        }
        if self.deferred.pushes.is_empty() && deliveries.iter().all(|delivery| delivery.queue_lsn.is_none()) {
            self.push_now(entry, deliveries.into_iter());
        } else {
            self.deferred.pushes.push((entry.clone(), self.run.clone(), deliveries));
        }
    }

    fn push_now(&mut self, entry: &Arc<SessionEntry>, deliveries: impl Iterator<Item = Delivery>) {
        let pushed = self.dispatcher.queues.push(entry, deliveries, self.now, &mut self.wakers);
        if let Some(until) = pushed.congested_until.or(pushed.urgent_congested_until) {
            let is_urgent = pushed.congested_until.is_none();
            // One of the sessions that receive these messages is enough, for which acknowledgements wait in any case.
            let same = self.congested.pop_if(|last| last.messages == self.run);
            let congested = same.filter(|last| !last.is_urgent || is_urgent).unwrap_or_else(|| Congested {
                entry: entry.clone(),
                until,
                messages: self.run.clone(),
                is_urgent,
            });
            self.congested.push(congested);
        }
        self.orphans.extend(pushed.orphans);
        self.lost.extend(persist::completed(entry.id(), pushed.lost));
    }

    fn push_run(&mut self, to: &Route, publisher: Option<SessionKey>, run: &[SharedMessage]) {
        self.urgent.note(to.priority.is_some_and(|priority| priority > Priority::DEFAULT), run);
        self.work += run.len() * to.matches.len();
        let mut start = 0;
        let mut deliveries = Vec::with_capacity(run.len());
        for (entry, end) in &to.targets {
            let matches = &to.matches[start..*end];
            start = *end;
            let overlap = entry.overlap();
            for message in run {
                route(message, publisher, matches, overlap, &mut deliveries);
            }
            self.push(entry, deliveries.drain(..));
        }
        // Members are selected among all nodes, but for what only this node has.
        let has_members = !self.dispatcher.has_log() || is_broker_topic(&run[0].topic);
        for shared in to.groups.iter().filter(|_| has_members) {
            for message in run {
                self.push_shared(shared, to.priority, message, None);
            }
        }
    }

    /// Gives a message to one member, and returns the QoS of the delivery. `priority` is for a member that asked for
    /// none; `enqueued_at` if it has waited for another member.
    fn push_shared(
        &mut self,
        shared: &SharedTarget,
        priority: Option<Priority>,
        message: &SharedMessage,
        enqueued_at: Option<NonZeroU32>,
    ) -> Option<QoS> {
        self.deferred.count();
        let member = self.select(shared, message);
        let entry = member.and_then(|member| shared.entry(member.key));
        match (member, entry) {
            (Some(member), Some(entry)) => {
                let mut delivery = route_shared(message, &shared.group, member);
                delivery.priority = member.subscription.priority.or(priority).unwrap_or_default(); // [BQ-52]
                delivery.enqueued_at = enqueued_at;
                let qos = delivery.qos;
                self.push(entry, std::iter::once(delivery));
                Some(qos)
            }
            _ => {
                self.dropped += 1;
                None
            }
        }
    }

    /// Selects the member for a message: the next in turn that is connected and has room, else the next whose session
    /// keeps it, else the next whose full queue has to drop something.
    ///
    /// A member that may not receive the message is passed over, as its connection would drop it; the authorizer is
    /// asked only about a member that would be selected.
    fn select<'s>(&mut self, shared: &'s SharedTarget, message: &Message) -> Option<&'s Match<SessionKey>> {
        let Dispatcher { access, queues, .. } = self.dispatcher;
        let more = QueueUsage::of_message(message, &SubscriptionIds::None, message.qos);
        let capacity = |entry: &SessionEntry| {
            let reserved = self.deferred.reserved.get(&entry.key).copied().unwrap_or_default();
            entry.queue.capacity(&reserved, &more, &queues.policy)
        };
        let may_receive =
            |entry: &SessionEntry| access.may_receive(&entry.client_id, || entry.identity(), &message.topic);
        // No subscription of a session without a connection is on another stream.
        let is_kept = |key| {
            let subscription = shared.group.subscription(key, StreamKey::CONTROL);
            queues.policy.keeps_qos0 || subscription.is_none_or(|one| one.qos > QoS::AtMostOnce)
        };
        let (mut has_fallback, mut has_full, mut asked) = (false, false, 0);
        let mut member = shared.group.select(|ahead, key| {
            asked += 1;
            if ahead == 0 {
                (has_fallback, has_full) = (false, false);
            }
            let Some(entry) = shared.entry(*key) else { return Readiness::Unfit };
            let readiness = match capacity(entry) {
                Capacity::Connected => Readiness::Ready,
                Capacity::Offline if has_fallback => return Readiness::Fallback,
                Capacity::Offline if is_kept(*key) => Readiness::Fallback,
                Capacity::Offline | Capacity::Full => {
                    has_full = true;
                    return Readiness::Unfit;
                }
                Capacity::Closed => return Readiness::Unfit,
            };
            if !may_receive(entry) {
                return Readiness::Unfit;
            }
            has_fallback = true;
            readiness
        });
        if member.is_none() && has_full {
            member = shared.group.select(|_, key| {
                asked += 1;
                let entry = shared.entry(*key);
                entry.is_some_and(|one| capacity(one) != Capacity::Closed && may_receive(one)).into()
            });
        }
        self.work += asked;
        member
    }

    fn finish(mut self) -> Dispatched {
        let dispatcher = self.dispatcher;
        let (changes, deferred) = (std::mem::take(&mut self.changes), std::mem::take(&mut self.deferred));
        let commit = (!changes.is_empty()).then(|| dispatcher.persist.commit(changes));
        for (entry, run, deliveries) in deferred.pushes {
            self.run = run;
            self.push_now(&entry, deliveries.into_iter());
        }
        let Self { wakers, dropped, congested, work, urgent, orphans, lost, .. } = self;
        dispatcher.persist.commit_late(lost);
        dispatcher.statistics.add(Counter::MessagesDropped, dropped);
        wakers.into_iter().for_each(Waker::wake);
        // The deliveries that those sessions left have gone to other members by now. A later commit is not done before
        // an earlier one.
        let again =
            if orphans.is_empty() { None } else { dispatcher.redistribute(orphans.into_iter(), None) };
        Dispatched { congested, work, commit: again.or(commit), forwarded: None, urgent }
    }
}

/// Subscribes to all patterns of so many levels of `+` and `a`, each with `z` at its end.
#[cfg(test)]
pub(crate) fn subscribe_to_combinations(core: &crate::core::Core, levels: u32) {
    use braid_proto::session::Subscription;

    for number in 0..1_usize << levels {
        let level = |level| if number >> level & 1 == 0 { "+/" } else { "a/" };
        let text: String = (0..levels).map(level).chain(["z"]).collect();
        let filter = TopicFilter::parse(&text).expect("a filter");
        core.routing.change(|router| router.subscribe(SessionKey(1), &filter, Subscription::default()));
    }
}

#[cfg(test)]
mod tests {
    use braid_auth::acl::{Acl, Decision};
    use braid_auth::identity::{Attributes, Identity};
    use braid_proto::session::Subscription;
    use braid_proto::topic::TopicName;
    use braid_store::{Claim, Lsn, MemoryStore, NextIds, RecoveredSession, SessionId};

    use super::*;
    use crate::auth::{Action, Anonymous, Authorize};
    use crate::cluster::{Answer, Cluster, RemoteSession, ReplayLimits, Replayed, SingleNode, Storage};
    use crate::config::{BrokerConfig, LimitsConfig};
    use crate::core::Core;

    const GROUP: &str = "$share/group/t";

    async fn member(core: &Core, client: &str) -> Arc<SessionEntry> {
        let filter = TopicFilter::parse(GROUP).unwrap();
        let subscription = Subscription { qos: QoS::AtLeastOnce, ..Subscription::default() };
        let (client_id, access) = (ClientId::from(client), ClientAccess::default());
        let connection = core.sessions.registry.next_connection();
        let claim = core.sessions.claim(&client_id, &access, false, connection);
        let entry = claim.await.unwrap().entry;
        core.routing.change(|router| router.subscribe(entry.key, &filter, subscription));
        entry
    }

    fn message() -> SharedMessage {
        let topic = TopicName::parse("t").unwrap();
        SharedMessage::new(Message::new(topic, "x", QoS::AtLeastOnce, false))
    }

    /// A turn is bounded by them: overlapping subscriptions cost their matches, however few deliveries there are.
    #[tokio::test]
    async fn overlapping_subscriptions_count_one_by_one() {
        let core = Core::in_memory(BrokerConfig::default());
        let entry = member(&core, "a").await;
        for filter in ["t", "+", "#", "other"] {
            let filter = TopicFilter::parse(filter).unwrap();
            core.routing.change(|router| router.subscribe(entry.key, &filter, Subscription::default()));
        }
        let mut routes = RouteCache::default();
        let messages = [message(), message()];
        let dispatched =
            core.dispatcher
                .publish(&mut routes, None, &messages, &[], Vec::new(), |_, is_reached| assert!(is_reached));
        assert_eq!(dispatched.work, 2 * (3 + 1), "three of its own and the group, for each message");
    }

    /// Nor are they free: a search may visit many patterns of which none matches.
    #[tokio::test]
    async fn the_nodes_of_a_search_count() {
        let core = Core::in_memory(BrokerConfig::default());
        subscribe_to_combinations(&core, 8);
        let message = SharedMessage::new(Message::new(
            TopicName::parse("a/a/a/a/a/a/a/a/n").unwrap(),
            "",
            QoS::AtMostOnce,
            false,
        ));
        let mut routes = RouteCache::default();
        let mut publish = || {
            core.dispatcher.publish(
                &mut routes,
                None,
                std::slice::from_ref(&message),
                &[],
                Vec::new(),
                |_, _| {},
            )
        };
        assert_eq!(publish().work, 511 / NODES_OF_A_MATCH);
        assert_eq!(publish().work, 0, "the route is cached");
    }

    #[tokio::test]
    async fn members_without_room_count_one_by_one() {
        let core = core(LimitsConfig { queued_messages: 1, ..LimitsConfig::default() });
        for number in 0..200 {
            let entry = member(&core, &number.to_string()).await;
            fill(&core, &entry, 1);
        }
        let dispatched = core.dispatcher.publish(
            &mut RouteCache::default(),
            None,
            &[message()],
            &[],
            Vec::new(),
            |_, _| {},
        );
        assert_eq!(dispatched.work, 200 + 1, "each of them, and the one that is selected in the end");
    }

    /// [MQTT-4.8.2-4]: a member whose session ends after it was selected is not the only one that could receive it.
    #[tokio::test]
    async fn a_shared_message_goes_to_another_member_if_the_selected_one_ends_meanwhile() {
        let core = Core::in_memory(BrokerConfig::default());
        for (client, claim) in [("a", Claim::new(1)), ("b", Claim::new(2))] {
            member(&core, client).await.set_durable(claim);
        }
        let message = message();
        let mut routes = RouteCache::default();
        let route = routes.find(&core.routing, &message.topic);
        let push = || {
            let mut push = BatchPush::new(&core.dispatcher, Vec::new());
            push.push_run(&route, None, std::slice::from_ref(&message));
            if let Some((chosen, ..)) = push.deferred.pushes.first() {
                chosen.queue.close();
            }
            let has_commit = push.finish().commit.is_some();
            let holders = core.sessions.registry.pieces().flatten().filter(|entry| entry.used() > 0).count();
            (has_commit, holders, core.statistics.get(Counter::MessagesDropped))
        };
        assert_eq!(push(), (true, 1, 0), "the other one has it");
        assert_eq!(push(), (true, 0, 1), "there is no other member");
        assert_eq!(push(), (false, 0, 2), "there is no member");
    }

    /// Cluster with a log that refuses one topic.
    struct Picky;

    impl Cluster for Picky {
        fn forward(&self, publication: &Publication<'_>, changes: &mut Vec<Change>) -> Forwarded {
            SingleNode.forward(publication, changes)
        }

        fn remove_retained(&self, topic: &TopicName, is_urgent: bool) -> Option<Commit> {
            SingleNode.remove_retained(topic, is_urgent)
        }

        fn check(&self, message: &Message) -> Result<(), ReasonCode> {
            if message.topic.as_str() == "refused" { Err(ReasonCode::QuotaExceeded) } else { Ok(()) }
        }

        fn takes_filter(&self, filter: &TopicFilter) -> bool {
            SingleNode.takes_filter(filter)
        }

        fn takes_subscriptions(&self, count: usize, bytes: usize) -> bool {
            SingleNode.takes_subscriptions(count, bytes)
        }

        fn takes_client(&self, client_id: &ClientId) -> bool {
            SingleNode.takes_client(client_id)
        }

        fn find<'a>(&'a self, client_id: &'a ClientId) -> Option<Answer<'a, Option<RemoteSession>>> {
            SingleNode.find(client_id)
        }

        fn take(&self, found: RemoteSession, id: SessionId) -> Answer<'_, Option<RecoveredSession>> {
            SingleNode.take(found, id)
        }

        fn replay(&self, session: SessionId, limits: ReplayLimits) -> Answer<'_, Vec<Replayed>> {
            SingleNode.replay(session, limits)
        }

        fn forget(&self, _: SessionId) {}

        fn abandon(&self, _: SessionId) {}

        fn note_interest(&self, _: &TopicFilter, _: bool) {}

        fn is_later(&self, arrived: Lsn, known: Lsn) -> bool {
            arrived > known
        }

        fn has_log(&self) -> bool {
            true
        }
    }

    /// Authorizer that permits all that the rules of the client say nothing about.
    struct Others;

    impl Authorize for Others {
        fn decide(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision {
            let list = Acl::parse(b"allow all topic #\n", "list").unwrap();
            action.decide(identity, client_id.as_str(), Some(&list))
        }
    }

    /// A topic that rules of the client permit has another publisher than one that those of the broker permit.
    #[tokio::test]
    async fn a_refused_message_leaves_no_publisher_to_the_next_one() {
        let access = Access::new(Box::new(Anonymous::default()), Arc::new(Others));
        let storage = Storage { cluster: Arc::new(Picky), ..Storage::of(Arc::new(MemoryStore::new())) };
        let memory = Arc::new(Memory::new(&LimitsConfig::default()));
        let core = Core::new(BrokerConfig::default(), access, storage, NextIds::FIRST, memory);
        let rules = Some("allow publish topic refused\nallow publish topic own\n".into());
        let identity = Identity::new(Attributes { rules, ..Attributes::default() }).unwrap();
        let mut client = core.access.client(identity, &ClientId::from("client"));
        let retained = |topic: &str| {
            SharedMessage::new(Message::new(TopicName::parse(topic).unwrap(), "x", QoS::AtMostOnce, true))
        };
        let mut publishers = |topics: &[&str]| {
            let mut messages: Vec<_> = topics.iter().map(|topic| retained(topic)).collect();
            let mut tokens = vec![None; messages.len()];
            core.dispatcher.admit(&mut client, &mut messages, &mut tokens, |_, _| {}).publishers
        };
        let [own, other] = [publishers(&["own"]), publishers(&["other"])];
        assert!(own != other && own[0].is_some() && other[0].is_some());
        assert_eq!(publishers(&["refused", "other", "refused", "own"]), [other, own].concat());
    }

    fn core(limits: LimitsConfig) -> Core {
        Core::in_memory(BrokerConfig { limits, ..BrokerConfig::default() })
    }

    fn publish(core: &Core, messages: usize) {
        let messages: Vec<_> = std::iter::repeat_with(message).take(messages).collect();
        let mut routes = RouteCache::default();
        core.dispatcher.publish(&mut routes, None, &messages, &[], Vec::new(), |_, _| {});
    }

    /// Adds messages that do not come by the shared subscription.
    fn fill(core: &Core, entry: &SessionEntry, messages: usize) {
        let deliveries = std::iter::repeat_with(|| Delivery::of(message())).take(messages);
        core.queues.push(entry, deliveries, clock::now(), &mut Vec::new());
    }

    /// Ends the connection of a member whose session is in the store.
    fn leave(core: &Core, entry: &SessionEntry, claim: u64) {
        entry.set_durable(Claim::new(claim));
        entry.set_disconnect_epoch(1);
        core.queues.restore(entry, VecDeque::new(), &core.persist);
    }

    #[tokio::test]
    async fn a_shared_message_goes_past_full_queues_to_a_member_with_room() {
        let core = core(LimitsConfig { queued_messages: 2, ..LimitsConfig::default() });
        for number in 0..100 {
            let entry = member(&core, &number.to_string()).await;
            fill(&core, &entry, if number < 60 { 2 } else { 0 });
        }
        for _ in 0..80 {
            publish(&core, 1);
            assert_eq!(core.statistics.get(Counter::MessagesDropped), 0);
        }
        publish(&core, 1);
        assert_eq!(core.statistics.get(Counter::MessagesDropped), 1, "all of them are full");
    }

    /// The queue of a durable session gets its part after the whole batch.
    #[tokio::test]
    async fn a_shared_message_for_clients_that_are_away_is_dropped_by_no_full_queue_while_another_has_room() {
        let core = core(LimitsConfig { queued_messages: 4, ..LimitsConfig::default() });
        let (full, other) = (member(&core, "full").await, member(&core, "other").await);
        leave(&core, &full, 1);
        leave(&core, &other, 2);
        fill(&core, &full, 3);
        publish(&core, 5);
        let queued = || [&full, &other].map(|entry| entry.queue.usage().messages());
        assert_eq!((queued(), core.statistics.get(Counter::MessagesDropped)), ([4, 4], 0));
        publish(&core, 1);
        assert_eq!((queued(), core.statistics.get(Counter::MessagesDropped)), ([4, 4], 1));
    }

    #[tokio::test]
    async fn a_shared_message_goes_to_a_member_whose_session_keeps_it() {
        let core = core(LimitsConfig::default());
        let (unkept, keeping) = (member(&core, "unkept").await, member(&core, "keeping").await);
        let filter = TopicFilter::parse(GROUP).unwrap();
        let qos0 = Subscription { qos: QoS::AtMostOnce, ..Subscription::default() };
        core.routing.change(|router| router.subscribe(unkept.key, &filter, qos0));
        leave(&core, &unkept, 1);
        leave(&core, &keeping, 2);
        publish(&core, 2);
        assert_eq!(keeping.queue.usage().messages(), 2);
        assert_eq!(core.statistics.get(Counter::MessagesDropped), 0);
    }

    #[cfg(debug_assertions)]
    #[tokio::test]
    async fn a_shared_message_locks_one_queue_however_many_members_there_are() {
        for queued_messages in [10_000, 0] {
            let core = core(LimitsConfig { queued_messages, ..LimitsConfig::default() });
            for number in 0..500 {
                member(&core, &number.to_string()).await;
            }
            let before = lock_order::queue_locks();
            publish(&core, 1);
            assert_eq!(lock_order::queue_locks() - before, 1);
        }
    }
}
