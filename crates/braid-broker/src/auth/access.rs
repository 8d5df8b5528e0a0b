//! Access of the broker and of one client: the questions to the authenticator and the authorizer.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use braid_auth::acl::{self, Decision};
use braid_auth::identity::Identity;
use braid_auth::publisher::Publisher;
use braid_proto::message::Delivery;
use braid_proto::packet::ClientId;
use braid_proto::topic::{Mountpoint, TopicFilter, TopicName};

use super::answers::{AnswerCache, Direction, TopicHasher};
use super::audit::{Audit, SecurityAction, SecurityEvent};
use super::authenticate::{Authenticate, Authentication, Credentials};
use super::authorize::{Action, Authorize};
use super::publisher::{OwnPublishers, Permitted, is_granted};
use crate::admission::{AdmissionControl, Ban, BanFilter, Subject};
use crate::clock;
use crate::config::LimitsConfig;
use crate::lock_order;
use crate::mountpoint::Tenant;

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
    /// Hash of the topics that connections cache answers about.
    hasher: TopicHasher,
    pub(crate) audit: Audit,
    /// Limits of addresses, and bans.
    pub(crate) admission: AdmissionControl,
}

impl Access {
    pub(crate) fn new(authenticate: Box<dyn Authenticate>, authorize: Arc<dyn Authorize>) -> Self {
        let authorize = Some(authorize).filter(|authorize| !authorize.permits_everything());
        let admission = AdmissionControl::new(&LimitsConfig::default());
        Self { authenticate, authorize, hasher: TopicHasher::new(), audit: Audit::default(), admission }
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

    /// Tests whether a Will may be published now, by the identity that claimed its session last. The Will of a banned
    /// client may not: the ban may be younger than the connection. A ban for flapping does not matter here.
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
        if let Some(ban) = self.ban_of(client_id, identity) {
            let (what, cause) = (SecurityAction::Will(topic.clone()), String::from(&*ban.reason));
            self.audit.record(SecurityEvent::refused(Some(client_id), identity, what, cause));
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

    /// Ban, of those that end a connection, of a client that is not connected any more.
    fn ban_of(&self, client_id: &ClientId, identity: Option<&Identity>) -> Option<Ban> {
        let address = identity.and_then(Identity::address).map(|ip| SocketAddr::new(ip, 0));
        let user = identity.and_then(Identity::user);
        let subject = Subject { client_id: Some(client_id), user, address };
        self.admission.find_ban(subject, BanFilter::ByHand, clock::now())
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
        answers.cache.answer(&client.access.hasher, direction, topic, || match direction {
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
    use std::fmt::Write as _;
    use std::sync::atomic::{AtomicU64, Ordering};

    use braid_auth::acl::Acl;
    use braid_auth::identity::Attributes;
    use fastrand::Rng;

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

    /// Authorizer by lists, of which each generation has the next one.
    struct Lists {
        lists: Vec<Acl>,
        generation: AtomicU64,
    }

    impl Authorize for Lists {
        fn decide(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision {
            let list = usize::try_from(self.generation()).unwrap() % self.lists.len();
            action.decide(identity, client_id.as_str(), Some(&self.lists[list]))
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }
    }

    fn random_list(random: &mut Rng) -> Acl {
        let mut text = String::new();
        for _ in 0..random.usize(1..12) {
            let mut pick = |words: &[&'static str]| words[random.usize(..words.len())];
            let (effect, actions) = (pick(&["allow", "allow", "deny"]), pick(&["all", "publish", "receive"]));
            let selector = pick(&["", "", "user u0", "client c", "anonymous"]);
            let filter = pick(&["#", "a/#", "a/+", "+/b/#", "%u/#", "+/%c", "a/b", "$SYS/#", "b/a/+/#"]);
            let _ = writeln!(text, "{effect} {actions} {selector} topic {filter}");
        }
        Acl::parse(text.as_bytes(), "list").unwrap()
    }

    /// Random questions, reloads and re-authentications, against decisions of which none is cached.
    #[test]
    fn cached_answers_are_the_decisions_of_the_rules_in_force() {
        let own = |rules: &str| Attributes { rules: Some(rules.into()), ..Attributes::default() };
        let own = |rules: &str| Identity::new(own(rules)).unwrap();
        let identities = [
            Identity::anonymous(),
            Identity::named("u0"),
            Identity::named("u1"),
            own("deny receive topic a/+/#\nallow all topic b/#"),
        ];
        let (mut random, mut answers) = (Rng::with_seed(1), [0; 2]);
        for client_id in ["c", "acme/\0c"].repeat(20) {
            let client_id = ClientId::from(client_id);
            let lists = (0..4).map(|_| random_list(&mut random)).collect();
            let rules = Arc::new(Lists { lists, generation: AtomicU64::new(0) });
            let access = Arc::new(Access::new(Box::new(Anonymous::default()), rules.clone()));
            let mut client = access.client(identities[0].clone(), &client_id);
            let tenant = Tenant::of_session(&client_id);
            for _ in 0..2000 {
                match random.u8(..200) {
                    0 => _ = rules.generation.fetch_add(1, Ordering::Relaxed),
                    1 => client.set_identity(identities[random.usize(..identities.len())].clone()),
                    _ => {}
                }
                let mut levels: Vec<_> = (0..random.usize(1..5))
                    .map(|_| ["a", "b", "u0", "c", "$SYS"][random.usize(..5)])
                    .collect();
                if tenant.is_some() && random.u8(..8) > 0 {
                    levels.insert(0, "acme");
                }
                let topic = TopicName::parse(&levels.join("/")).unwrap();
                let expected = |action| {
                    let identity = client.identity();
                    decide(&*rules, identity, &client_id, tenant.as_ref(), action).allowed
                };
                let is_publish = random.bool();
                let (expected, answer) = if is_publish {
                    let is_unpublishable = is_unpublishable(tenant.as_ref(), &topic);
                    (!is_unpublishable && expected(Action::Publish(&topic)), client.may_publish(&topic))
                } else {
                    (expected(Action::Receive(&topic)), client.may_receive(&topic))
                };
                assert_eq!(answer, expected, "{:?}: {is_publish} {levels:?}", client.identity());
                answers[usize::from(expected)] += 1;
            }
        }
        assert!(answers.iter().all(|count| *count > 10_000), "{answers:?}");
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
