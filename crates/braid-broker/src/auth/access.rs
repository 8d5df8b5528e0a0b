//! Access of the broker and of one client: the questions to the authenticator and the authorizer.

use std::fmt;
use std::sync::Arc;

use braid_auth::acl::{self, Decision};
use braid_auth::identity::Identity;
use braid_auth::publisher::Publisher;
use braid_proto::message::Delivery;
use braid_proto::packet::ClientId;
use braid_proto::topic::{Mountpoint, TopicFilter, TopicName};
use hashbrown::HashMap;

use super::audit::{Audit, SecurityAction, SecurityEvent};
use super::authenticate::{Authenticate, Authentication, Credentials};
use super::authorize::{Action, Authorize};
use super::publisher::{OwnPublishers, Permitted, is_granted};
use crate::admission::AdmissionControl;
use crate::config::LimitsConfig;
use crate::lock_order;
use crate::mountpoint::Tenant;

/// Latest answers that a connection caches at least, unless their topics are long; it caches twice as many at most.
const CACHED_ANSWERS: usize = 256;

/// Bytes of the topics of half of the cache, above which it takes no more.
const CACHED_BYTES: usize = 16 << 10;

/// Tests whether a topic is the broker's own.
pub(crate) fn is_broker_topic(topic: &TopicName) -> bool {
    acl::is_broker_topic(topic.as_str())
}

/// Tests whether a client may not publish to a topic by any rule: it is the broker's own, by the name that the client
/// has for it, or the client has no name for it.
fn is_unpublishable(tenant: Option<&Tenant>, topic: &TopicName) -> bool {
    match tenant {
        None => is_broker_topic(topic),
        Some(tenant) => tenant.mountpoint.own_name(topic).is_none_or(acl::is_broker_topic),
    }
}

/// Asks the authorizer about an action, in the names that the client has for its identifier and topics. `tenant` is
/// that of the session `client_id`. Topics that the client has no name for are denied.
fn decide(
    authorize: &dyn Authorize,
    identity: &Identity,
    client_id: &ClientId,
    tenant: Option<&Tenant>,
    action: Action<'_>,
) -> Decision {
    lock_order::assert_none_held();
    let Some(Tenant { mountpoint, client_id }) = tenant else {
        return authorize.decide(identity, client_id, action);
    };
    let own_name = |topic| mountpoint.own_name(topic).and_then(|own| TopicName::parse(own).ok());
    let ask = |action: Action<'_>| authorize.decide(identity, client_id, action);
    let decision = match action {
        Action::Publish(topic) => own_name(topic).map(|own| ask(Action::Publish(&own))),
        Action::Receive(topic) => own_name(topic).map(|own| ask(Action::Receive(&own))),
        Action::Subscribe(filter) => mountpoint.own_filter(filter).map(|own| ask(Action::Subscribe(&own))),
        Action::Prioritize(filter) => mountpoint.own_filter(filter).map(|own| ask(Action::Prioritize(&own))),
    };
    decision.unwrap_or(Decision { allowed: false, line: None, list: 0 })
}

/// Tests whether a client has a name for a topic. A filter of a tenant may match a topic of another publisher that the
/// tenant cannot name, as `acme`.
fn can_name(tenant: Option<&Tenant>, topic: &TopicName) -> bool {
    tenant.is_none_or(|tenant| tenant.mountpoint.own_name(topic).is_some())
}

/// Asks [`Authorize::withdraws`] as [`decide`] asks about an action. A topic that the client has no name for is
/// withdrawn.
fn withdraws(
    authorize: &dyn Authorize,
    identity: &Identity,
    client_id: &ClientId,
    tenant: Option<&Tenant>,
    topic: &TopicName,
) -> bool {
    lock_order::assert_none_held();
    let Some(Tenant { mountpoint, client_id }) = tenant else {
        return authorize.withdraws(identity, client_id, topic);
    };
    let own = mountpoint.own_name(topic).and_then(|own| TopicName::parse(own).ok());
    own.is_none_or(|own| authorize.withdraws(identity, client_id, &own))
}

/// Authenticator and authorizer of a broker.
pub(crate) struct Access {
    authenticate: Box<dyn Authenticate>,
    /// `None` if it permits everything.
    authorize: Option<Arc<dyn Authorize>>,
    pub(crate) audit: Audit,
    /// Limits of addresses, and bans.
    pub(crate) admission: AdmissionControl,
}

impl Access {
    pub(crate) fn new(authenticate: Box<dyn Authenticate>, authorize: Arc<dyn Authorize>) -> Self {
        let authorize = Some(authorize).filter(|authorize| !authorize.permits_everything());
        let admission = AdmissionControl::new(&LimitsConfig::default());
        Self { authenticate, authorize, audit: Audit::default(), admission }
    }

    pub(crate) fn with_limits(self, limits: &LimitsConfig) -> Self {
        Self { admission: AdmissionControl::new(limits), ..self }
    }

    pub(crate) fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        self.authenticate.authenticate(credentials)
    }

    /// Access of a client that was authenticated. `client_id` is that of its session. Topics and filters in the
    /// questions to it are the broker's, with the mountpoint of the client; the authorizer is asked about those of the
    /// client.
    pub(crate) fn client(self: &Arc<Self>, identity: Identity, client_id: &ClientId) -> ClientAccess {
        let tenant = Tenant::of_session(client_id).map(Box::new);
        let client = Client { access: self.clone(), client_id: client_id.clone(), tenant };
        let answers = self
            .authorize
            .as_ref()
            .map(|authorize| Box::new(Answers { generation: authorize.generation(), ..Answers::default() }));
        ClientAccess { identity, client: Some(client), answers }
    }

    /// Tests whether the client of a session may receive a message, for a caller that is not its connection. The answer
    /// is not cached. `identity`: the one that claimed the session last; a session of an older store has none, and its
    /// client is asked about when it has returned.
    pub(crate) fn may_receive(
        &self,
        client_id: &ClientId,
        identity: impl FnOnce() -> Option<Identity>,
        topic: &TopicName,
    ) -> bool {
        let tenant = Tenant::of_session(client_id);
        if !can_name(tenant.as_ref(), topic) {
            return false;
        }
        let Some(authorize) = &self.authorize else { return true };
        let identity = identity();
        lock_order::assert_none_held();
        let Some(identity) = identity else { return true };
        decide(&**authorize, &identity, client_id, tenant.as_ref(), Action::Receive(topic)).allowed
    }

    /// Tests whether a Will may be published now, by the identity that claimed its session last.
    pub(crate) fn may_publish_will(
        &self,
        client_id: &ClientId,
        identity: Option<&Identity>,
        topic: &TopicName,
    ) -> bool {
        let tenant = Tenant::of_session(client_id);
        if is_unpublishable(tenant.as_ref(), topic) {
            return false;
        }
        let Some((authorize, identity)) = self.authorize.as_ref().zip(identity) else { return true };
        let decision = decide(&**authorize, identity, client_id, tenant.as_ref(), Action::Publish(topic));
        if !decision.allowed {
            let what = SecurityAction::Will(topic.clone());
            self.audit.record(SecurityEvent::denied(client_id, identity, what, decision));
        }
        decision.allowed
    }

    /// Generation of the rules; `None` if everything is permitted.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.authorize.as_ref().map(|authorize| authorize.generation())
    }

    /// Publisher of a Will that was permitted by this generation of the rules or a later one. Unknown in a session of
    /// an older store, and where everything is permitted.
    pub(crate) fn publisher(
        &self,
        client_id: &ClientId,
        identity: Option<&Identity>,
        topic: &TopicName,
        generation: Option<u64>,
    ) -> Option<Permitted> {
        let (identity, generation) = identity.zip(generation)?;
        let is_granted = is_granted(identity, client_id, Tenant::of_session(client_id).as_ref(), topic);
        let publisher = Arc::new(Publisher::new(identity, client_id.clone(), is_granted));
        Some(Permitted { publisher, generation })
    }

    /// Tests whether the publisher of a retained message could publish it now. The answer is not cached.
    ///
    /// A user that is not known any more could not. The rules of a token end with it: a message that they had permitted
    /// stays permitted until a rule withdraws it.
    pub(crate) fn may_still_publish(&self, publisher: &Publisher, topic: &TopicName) -> bool {
        let Some(authorize) = &self.authorize else { return true };
        let (identity, client_id) = (publisher.identity(), publisher.client_id());
        let refused = |event: SecurityEvent| {
            self.audit.record(event);
            false
        };
        let what = || SecurityAction::Retained(topic.clone());
        if authorize.is_revoked(identity) {
            let cause = "its publisher is not known any more";
            return refused(SecurityEvent::refused(Some(client_id), Some(identity), what(), cause));
        }
        let tenant = Tenant::of_session(client_id);
        if publisher.is_granted() {
            let is_withdrawn = withdraws(&**authorize, identity, client_id, tenant.as_ref(), topic);
            let cause = "a rule denies it to its publisher by name";
            let event = || SecurityEvent::refused(Some(client_id), Some(identity), what(), cause);
            return !is_withdrawn || refused(event());
        }
        let action = Action::Publish(topic);
        let decision = decide(&**authorize, identity, client_id, tenant.as_ref(), action);
        decision.allowed || refused(SecurityEvent::denied(client_id, identity, what(), decision))
    }

    /// Tests whether a client that was accepted with this identity would not be accepted any more.
    pub(crate) fn is_revoked(&self, identity: &Identity) -> bool {
        self.authorize.as_ref().is_some_and(|authorize| authorize.is_revoked(identity))
    }
}

/// Identity of a connected client, and what it may do.
#[derive(Debug, Default)]
pub(crate) struct ClientAccess {
    identity: Identity,
    /// `None` on a connection that has not sent CONNECT, which the protocol machine keeps from doing anything.
    client: Option<Client>,
    /// `None` if it may do everything.
    answers: Option<Box<Answers>>,
}

struct Client {
    access: Arc<Access>,
    /// Client Identifier of its session.
    client_id: ClientId,
    /// Boxed: most clients are none.
    tenant: Option<Box<Tenant>>,
}

/// Latest answers to the questions of one connection.
#[derive(Default)]
struct Answers {
    generation: u64,
    cache: AnswerCache,
    publishers: OwnPublishers,
}

/// Cache of answers that drops those which were not used lately: the older half goes when the newer half is full. A
/// connection that uses more topics in turn asks the authorizer about each message.
#[derive(Default)]
struct AnswerCache {
    /// Latest answer of each direction: most topics follow themselves.
    latest: [Option<(TopicName, bool)>; 2],
    newer: HashMap<(Direction, TopicName), bool>,
    /// Bytes of the topics of the newer half.
    bytes: usize,
    older: HashMap<(Direction, TopicName), bool>,
}

impl AnswerCache {
    fn answer(&mut self, direction: Direction, topic: &TopicName, ask: impl FnOnce() -> bool) -> bool {
        if let Some((_, answer)) =
            self.latest[direction as usize].as_ref().filter(|(latest, _)| latest == topic)
        {
            return *answer;
        }
        let answer = self.find(direction, topic, ask);
        self.latest[direction as usize] = Some((topic.clone(), answer));
        answer
    }

    fn find(&mut self, direction: Direction, topic: &TopicName, ask: impl FnOnce() -> bool) -> bool {
        let question = (direction, topic.clone());
        if let Some(answer) = self.newer.get(&question) {
            return *answer;
        }
        if self.newer.len() >= CACHED_ANSWERS || self.bytes >= CACHED_BYTES {
            self.older = std::mem::take(&mut self.newer);
            self.bytes = 0;
        }
        let answer = self.older.get(&question).copied().unwrap_or_else(ask);
        self.bytes += topic.as_str().len();
        self.newer.insert(question, answer);
        answer
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    Publish,
    Receive,
}

impl Client {
    /// Asks the authorizer, and records a denial.
    fn is_permitted(
        &self,
        identity: &Identity,
        action: Action<'_>,
        what: impl FnOnce() -> SecurityAction,
    ) -> bool {
        let Some(authorize) = &self.access.authorize else { return true };
        let decision = decide(&**authorize, identity, &self.client_id, self.tenant.as_deref(), action);
        if !decision.allowed {
            self.access.audit.record(SecurityEvent::denied(&self.client_id, identity, what(), decision));
        }
        decision.allowed
    }

    fn record(&self, identity: &Identity, what: SecurityAction) {
        let event =
            SecurityEvent::refused(Some(&self.client_id), Some(identity), what, "a rule of the broker");
        self.access.audit.record(event);
    }
}

impl ClientAccess {
    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Tests whether there is anything that the client may not do, beside what the broker itself refuses.
    pub(crate) const fn has_rules(&self) -> bool {
        self.answers.is_some()
    }

    /// Sets the identity after a re-authentication. Answers that were cached are asked again.
    pub(crate) fn set_identity(&mut self, identity: Identity) {
        self.identity = identity;
        if let Some(answers) = &mut self.answers {
            (answers.cache, answers.publishers) = (AnswerCache::default(), OwnPublishers::default());
        }
    }

    /// Publisher of a message of this client that was permitted by this generation of the rules or a later one. Unknown
    /// where everything is permitted.
    pub(crate) fn publisher(&mut self, topic: &TopicName, generation: Option<u64>) -> Option<Permitted> {
        lock_order::assert_none_held();
        let Self { identity, client, answers } = self;
        let (client, answers, generation) = (client.as_ref()?, answers.as_mut()?, generation?);
        let is_granted = is_granted(identity, &client.client_id, client.tenant.as_deref(), topic);
        let publisher = answers.publishers.get(identity, &client.client_id, is_granted);
        Some(Permitted { publisher, generation })
    }

    fn tenant(&self) -> Option<&Tenant> {
        self.client.as_ref()?.tenant.as_deref()
    }

    /// Mountpoint of the client.
    pub(crate) fn mountpoint(&self) -> Option<&Mountpoint> {
        self.tenant().map(|tenant| &tenant.mountpoint)
    }

    /// Client Identifier that the client knows; `None` before it is connected.
    pub(crate) fn client_id(&self) -> Option<&ClientId> {
        let client = self.client.as_ref()?;
        Some(client.tenant.as_ref().map_or(&client.client_id, |tenant| &tenant.client_id))
    }

    pub(crate) fn may_publish(&mut self, topic: &TopicName) -> bool {
        if is_unpublishable(self.tenant(), topic) {
            self.record(|| SecurityAction::Publish(topic.clone()));
            return false;
        }
        self.is_permitted_cached(Direction::Publish, topic)
    }

    /// A Will is a PUBLISH that the broker sends later.
    pub(crate) fn may_set_will(&self, topic: &TopicName) -> bool {
        let what = || SecurityAction::Will(topic.clone());
        if is_unpublishable(self.tenant(), topic) {
            self.record(what);
            return false;
        }
        self.is_permitted(Action::Publish(topic), what)
    }

    pub(crate) fn may_subscribe(&self, filter: &TopicFilter) -> bool {
        self.is_permitted(Action::Subscribe(filter), || SecurityAction::Subscribe(filter.clone()))
    }

    /// Tests whether the deliveries of a filter may have a priority above the default.
    pub(crate) fn may_prioritize(&self, filter: &TopicFilter) -> bool {
        self.is_permitted(Action::Prioritize(filter), || SecurityAction::Prioritize(filter.clone()))
    }

    /// Asked for each delivery: a filter covers topics that the client may not read, and a subscription may be older
    /// than the rules.
    pub(crate) fn may_receive(&mut self, topic: &TopicName) -> bool {
        if !can_name(self.tenant(), topic) {
            return false;
        }
        self.is_permitted_cached(Direction::Receive, topic)
    }

    /// Filter of deliveries that are sent again, which counts those that are denied by now.
    pub(crate) fn permitted_deliveries<'a>(
        &'a mut self,
        denied: &'a mut u64,
    ) -> impl FnMut(&Delivery) -> bool + 'a {
        |delivery| {
            let is_permitted = self.may_receive(&delivery.message.topic);
            *denied += u64::from(!is_permitted);
            is_permitted
        }
    }

    /// Tests whether a session is the client's own. One of an older store, whose owner is not known, is.
    pub(crate) fn owns(&self, owner: Option<&Identity>) -> bool {
        let is_owner = owner.is_none_or(|owner| owner.is_same_user(&self.identity));
        if !is_owner {
            self.record(|| SecurityAction::Session);
        }
        is_owner
    }

    fn record(&self, what: impl FnOnce() -> SecurityAction) {
        if let Some(client) = &self.client {
            client.record(&self.identity, what());
        }
    }

    fn is_permitted(&self, action: Action<'_>, what: impl FnOnce() -> SecurityAction) -> bool {
        self.client.as_ref().is_none_or(|client| client.is_permitted(&self.identity, action, what))
    }

    fn is_permitted_cached(&mut self, direction: Direction, topic: &TopicName) -> bool {
        let Self { identity, client, answers } = self;
        let (Some(client), Some(answers)) = (client, answers) else { return true };
        let generation = client.access.authorize.as_ref().map_or(0, |authorize| authorize.generation());
        if answers.generation != generation {
            answers.generation = generation;
            answers.cache = AnswerCache::default();
        }
        answers.cache.answer(direction, topic, || match direction {
            Direction::Publish => client
                .is_permitted(identity, Action::Publish(topic), || SecurityAction::Publish(topic.clone())),
            Direction::Receive => client
                .is_permitted(identity, Action::Receive(topic), || SecurityAction::Receive(topic.clone())),
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.client_id.as_str())
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("generation", &self.generation).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::auth::{Anonymous, PermitAll};

    #[derive(Default)]
    struct Reloaded {
        generation: AtomicU64,
        asked: AtomicU64,
    }

    impl Authorize for Reloaded {
        fn decide(&self, _identity: &Identity, _client_id: &ClientId, _action: Action<'_>) -> Decision {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Decision { allowed: self.generation() == 0, line: None, list: 0 }
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn answers_are_cached_until_the_generation_changes() {
        let rules = Arc::new(Reloaded::default());
        let access = Arc::new(Access::new(Box::new(Anonymous::default()), rules.clone()));
        let mut client = access.client(Identity::named("u"), &ClientId::from("client"));
        let topic = TopicName::parse("t").unwrap();
        for _ in 0..3 {
            assert!(client.may_publish(&topic) && client.may_receive(&topic));
        }
        assert_eq!(rules.asked.load(Ordering::Relaxed), 2);
        rules.generation.store(1, Ordering::Relaxed);
        assert!(!client.may_publish(&topic) && !client.may_receive(&topic));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_asked_often() {
        let (mut answers, mut asked) = (AnswerCache::default(), 0);
        let hot = TopicName::parse("hot").unwrap();
        for number in 0..5 * CACHED_ANSWERS {
            let cold = TopicName::parse(&format!("cold/{number}")).unwrap();
            assert!(!answers.answer(Direction::Publish, &hot, || false));
            answers.answer(Direction::Receive, &cold, || true);
            answers.answer(Direction::Receive, &hot, || {
                asked += 1;
                true
            });
            assert!(answers.newer.len() <= CACHED_ANSWERS && answers.older.len() <= CACHED_ANSWERS);
        }
        assert_eq!(asked, 1);
    }

    #[test]
    fn topics_in_turn_are_asked_about_once_and_long_ones_take_little_memory() {
        let asked = |count: usize, len: usize| {
            let (mut answers, mut asked) = (AnswerCache::default(), 0);
            for number in (0..count).cycle().take(3 * count) {
                let topic = TopicName::parse(&format!("{number:0len$}")).unwrap();
                answers.answer(Direction::Receive, &topic, || {
                    asked += 1;
                    true
                });
                let bytes = [&answers.newer, &answers.older].map(|half| half.len() * len);
                assert!(bytes.iter().all(|bytes| *bytes < CACHED_BYTES + len), "{bytes:?}");
            }
            asked
        };
        assert_eq!(asked(CACHED_ANSWERS, 40), CACHED_ANSWERS);
        assert_eq!(asked(CACHED_ANSWERS, 4000), 3 * CACHED_ANSWERS);
    }

    #[test]
    fn nothing_is_asked_or_cached_where_everything_is_permitted() {
        let access = Arc::new(Access::new(Box::new(Anonymous::default()), Arc::new(PermitAll)));
        let mut client = access.client(Identity::anonymous(), &ClientId::from("client"));
        assert!(client.may_receive(&TopicName::parse("$SYS/broker/uptime").unwrap()));
        assert!(!client.may_publish(&TopicName::parse("$SYS/broker/uptime").unwrap()));
        assert!(client.answers.is_none());
    }
}
