//! Identity and permission: the authenticator and the authorizer, and the one place that asks them.
//!
//! [`Access`] is the broker's; [`ClientAccess`] is one connection's, with its identity and a cache of answers. The
//! rules for the broker's own topics below `$SYS/` are asked here as well.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use braid_proto::message::Delivery;
use braid_proto::packet::{ClientId, Connect};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_transport::Peer;
use hashbrown::HashMap;

use crate::lock_order;

/// Topics of the broker itself. Clients may subscribe to them and not publish.
const BROKER_TOPICS: &str = "$SYS/";

/// Latest answers that a connection caches at least; it caches twice as many at most.
const CACHED_ANSWERS: usize = 32;

/// Tests whether a topic is the broker's own.
pub(crate) fn is_broker_topic(topic: &TopicName) -> bool {
    topic.as_str().starts_with(BROKER_TOPICS)
}

/// Identity of a client, as its authenticator determined it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Identity(Option<Arc<str>>);

impl Identity {
    /// The identity with this name, such as a user name or the subject of a certificate.
    pub fn named(name: &str) -> Self {
        Self(Some(name.into()))
    }

    /// The identity that clients without credentials share.
    pub const fn anonymous() -> Self {
        Self(None)
    }

    /// The name; `None` for an anonymous client.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().unwrap_or("anonymous"))
    }
}

/// Answer of an [`Authenticate`]: the identity, or the Reason Code of the CONNACK that refuses the client.
pub type Authentication<'a> = Pin<Box<dyn Future<Output = Result<Identity, ReasonCode>> + Send + 'a>>;

/// Authenticator of clients.
pub trait Authenticate: Send + Sync + 'static {
    /// Determines the identity of a client from its CONNECT and its link.
    ///
    /// The broker waits for it as long as for a CONNECT, and reads no more from the client meanwhile.
    ///
    /// # Errors
    /// The Reason Code for the CONNACK.
    fn authenticate<'a>(&'a self, connect: &'a Connect, peer: &'a Peer) -> Authentication<'a>;
}

/// Authenticator that takes every client as anonymous: from this machine, and from others only where that was switched
/// on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous {
    /// Clients from other machines may connect too.
    pub from_anywhere: bool,
}

impl Authenticate for Anonymous {
    fn authenticate<'a>(&'a self, _connect: &'a Connect, peer: &'a Peer) -> Authentication<'a> {
        let is_local = peer.address.is_none_or(|address| is_loopback(address.ip()));
        let is_permitted = is_local || self.from_anywhere;
        let answer = if is_permitted { Ok(Identity::anonymous()) } else { Err(ReasonCode::NotAuthorized) };
        Box::pin(std::future::ready(answer))
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Action of a client that an [`Authorize`] permits or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// CONNECT with a Will to this topic.
    SetWill(&'a TopicName),
    /// PUBLISH to this topic.
    Publish(&'a TopicName),
    /// SUBSCRIBE with this filter.
    Subscribe(&'a TopicFilter),
    /// Delivery of a message of this topic, whatever subscription it matched.
    Receive(&'a TopicName),
    /// CONNECT with the Client Identifier of a disconnected session, to resume or end it.
    Resume {
        /// The identity that was connected last; `None` if the broker has started since.
        owner: Option<&'a Identity>,
    },
    /// CONNECT with the Client Identifier of a connected session, to take it over or end it.
    TakeOver {
        /// The identity that is connected.
        owner: Option<&'a Identity>,
    },
}

/// Authorizer of what clients do.
///
/// Its answers are pure: one for each identity, Client Identifier and action until the generation changes. Connections
/// cache them.
pub trait Authorize: Send + Sync + 'static {
    /// Permits an action or denies it. Denied packets are answered with 0x87 (Not authorized), denied deliveries are
    /// dropped.
    fn permits(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> bool;

    /// Number that changes whenever an answer may have changed.
    fn generation(&self) -> u64 {
        0
    }

    /// True if every action is permitted, now and in every later generation: nothing is asked then.
    fn permits_everything(&self) -> bool {
        false
    }
}

/// Authorizer that permits everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct PermitAll;

impl Authorize for PermitAll {
    fn permits(&self, _identity: &Identity, _client_id: &ClientId, _action: Action<'_>) -> bool {
        true
    }

    fn permits_everything(&self) -> bool {
        true
    }
}

/// Authenticator and authorizer of a broker.
pub(crate) struct Access {
    authenticate: Box<dyn Authenticate>,
    /// `None` if it permits everything.
    authorize: Option<Arc<dyn Authorize>>,
}

impl Access {
    pub(crate) fn new(authenticate: Box<dyn Authenticate>, authorize: Arc<dyn Authorize>) -> Self {
        let authorize = Some(authorize).filter(|authorize| !authorize.permits_everything());
        Self { authenticate, authorize }
    }

    pub(crate) fn authenticate<'a>(&'a self, connect: &'a Connect, peer: &'a Peer) -> Authentication<'a> {
        self.authenticate.authenticate(connect, peer)
    }

    /// Access of a client that was authenticated.
    pub(crate) fn client(&self, identity: Identity, client_id: &ClientId) -> ClientAccess {
        let rules = self.authorize.as_ref().map(|authorize| {
            Box::new(Rules {
                authorize: authorize.clone(),
                client_id: client_id.clone(),
                generation: authorize.generation(),
                answers: AnswerCache::default(),
            })
        });
        ClientAccess { identity, rules }
    }

    /// Tests whether the client of a session may receive a message, for a caller that is not its connection. The answer
    /// is not cached. `identity`: the one that claimed the session last; without one, the client is asked about when it
    /// has returned.
    pub(crate) fn may_receive(
        &self,
        client_id: &ClientId,
        identity: impl FnOnce() -> Option<Identity>,
        topic: &TopicName,
    ) -> bool {
        let Some(authorize) = &self.authorize else { return true };
        let identity = identity();
        lock_order::assert_none_held();
        identity.is_none_or(|identity| authorize.permits(&identity, client_id, Action::Receive(topic)))
    }
}

/// Identity of a connected client, and what it may do.
#[derive(Debug)]
pub(crate) struct ClientAccess {
    identity: Identity,
    /// `None` if it may do everything.
    rules: Option<Box<Rules>>,
}

/// Questions of one connection, with the latest answers.
struct Rules {
    authorize: Arc<dyn Authorize>,
    client_id: ClientId,
    /// Generation of `answers`.
    generation: u64,
    answers: AnswerCache,
}

/// Cache of answers that drops those which were not used lately: the older half goes when the newer half is full.
#[derive(Default)]
struct AnswerCache {
    newer: HashMap<(Direction, TopicName), bool>,
    older: HashMap<(Direction, TopicName), bool>,
}

impl AnswerCache {
    fn answer(&mut self, direction: Direction, topic: &TopicName, ask: impl FnOnce() -> bool) -> bool {
        let question = (direction, topic.clone());
        if let Some(answer) = self.newer.get(&question) {
            return *answer;
        }
        if self.newer.len() >= CACHED_ANSWERS {
            self.older = std::mem::take(&mut self.newer);
        }
        let answer = self.older.get(&question).copied().unwrap_or_else(ask);
        self.newer.insert(question, answer);
        answer
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    Publish,
    Receive,
}

impl Default for ClientAccess {
    /// Access of a connection that has not sent CONNECT, which the protocol machine keeps from doing anything.
    fn default() -> Self {
        Self { identity: Identity::anonymous(), rules: None }
    }
}

impl ClientAccess {
    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn may_publish(&mut self, topic: &TopicName) -> bool {
        !is_broker_topic(topic) && self.permits_cached(Direction::Publish, topic)
    }

    /// A Will is a PUBLISH that the broker sends later.
    pub(crate) fn may_set_will(&self, topic: &TopicName) -> bool {
        !is_broker_topic(topic) && self.permits(Action::SetWill(topic))
    }

    pub(crate) fn may_subscribe(&self, filter: &TopicFilter) -> bool {
        self.permits(Action::Subscribe(filter))
    }

    /// Asked for each delivery: a filter covers topics that the client may not read, and a subscription may be older
    /// than the rules.
    pub(crate) fn may_receive(&mut self, topic: &TopicName) -> bool {
        self.permits_cached(Direction::Receive, topic)
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

    pub(crate) fn may_resume(&self, owner: Option<&Identity>) -> bool {
        self.permits(Action::Resume { owner })
    }

    pub(crate) fn may_take_over(&self, owner: Option<&Identity>) -> bool {
        self.permits(Action::TakeOver { owner })
    }

    fn permits(&self, action: Action<'_>) -> bool {
        let Some(rules) = &self.rules else { return true };
        lock_order::assert_none_held();
        rules.authorize.permits(&self.identity, &rules.client_id, action)
    }

    fn permits_cached(&mut self, direction: Direction, topic: &TopicName) -> bool {
        let Some(rules) = &mut self.rules else { return true };
        lock_order::assert_none_held();
        let generation = rules.authorize.generation();
        if rules.generation != generation {
            rules.generation = generation;
            rules.answers = AnswerCache::default();
        }
        let Rules { authorize, client_id, answers, .. } = &mut **rules;
        answers.answer(direction, topic, || {
            let action = match direction {
                Direction::Publish => Action::Publish(topic),
                Direction::Receive => Action::Receive(topic),
            };
            authorize.permits(&self.identity, client_id, action)
        })
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("generation", &self.generation).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Reloaded {
        generation: AtomicU64,
        asked: AtomicU64,
    }

    impl Authorize for Reloaded {
        fn permits(&self, _identity: &Identity, _client_id: &ClientId, _action: Action<'_>) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.generation() == 0
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn answers_are_cached_until_the_generation_changes() {
        let rules = Arc::new(Reloaded::default());
        let access = Access::new(Box::new(Anonymous::default()), rules.clone());
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
        for number in 0..1000 {
            let cold = TopicName::parse(&format!("cold/{number}")).unwrap();
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
    fn nothing_is_asked_or_cached_where_everything_is_permitted() {
        let access = Access::new(Box::new(Anonymous::default()), Arc::new(PermitAll));
        let mut client = access.client(Identity::anonymous(), &ClientId::from("client"));
        assert!(client.may_receive(&TopicName::parse("$SYS/broker/uptime").unwrap()));
        assert!(!client.may_publish(&TopicName::parse("$SYS/broker/uptime").unwrap()));
        assert!(client.rules.is_none());
    }
}
