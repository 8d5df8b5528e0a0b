//! Security events: the record of what was refused, to whom, and by which rule.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use braid_auth::acl::Decision;
use braid_auth::identity::Identity;
use braid_proto::packet::ClientId;
use braid_proto::topic::{TopicFilter, TopicName};
use tokio::sync::broadcast;

use crate::clock;
use crate::lock_order::{Ordered, Rank};
use crate::token_bucket::TokenBucket;

/// Events about connections that are passed on in a second, and as many about topics; more are counted. A client that
/// is denied topics does not keep wrong passwords from the log.
const EVENTS_PER_SECOND: u64 = 100;

/// Events that a subscriber may be behind before it loses the oldest.
const CAPACITY: usize = 1024;

/// Longest text of a client in a line of the log, and longest user name of an event that was not authenticated, in
/// characters.
const MAX_TEXT: usize = 256;

/// Beginning of a text that a client has chosen, for the log: a Client Identifier or a topic may have 64 KiB.
pub(crate) fn shortened(text: &str) -> &str {
    text.char_indices().nth(MAX_TEXT).and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

/// Action that was refused, or end of a connection for reasons of security.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecurityAction {
    /// CONNECT: unknown or wrong credentials.
    Connect,
    /// AUTH that begins or continues a re-authentication.
    Reauthenticate,
    /// CONNECT with the Client Identifier of another user's session.
    Session,
    /// PUBLISH to a topic.
    Publish(TopicName),
    /// Will for a topic, at CONNECT or when it was published.
    Will(TopicName),
    /// SUBSCRIBE with a filter, or a subscription that is not permitted any more.
    Subscribe(TopicFilter),
    /// Delivery of a message of a topic.
    Receive(TopicName),
    /// Delivery of the retained message of a topic, whose publisher may not publish it any more. The event is about the
    /// publisher.
    Retained(TopicName),
    /// Priority above the usual one for the deliveries of a filter. The subscription was granted without it.
    Prioritize(TopicFilter),
    /// Connection whose credentials have expired.
    Expired,
    /// Connection whose user is not known any more.
    Revoked,
    /// Connection from a banned address, or of a banned user or client.
    Banned,
    /// Connection above a limit of its address, of its listener or of all clients, or while memory is short.
    Limited,
}

impl SecurityAction {
    /// Name of the action, for logs and labels of metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reauthenticate => "reauthenticate",
            Self::Session => "session",
            Self::Publish(_) => "publish",
            Self::Will(_) => "will",
            Self::Subscribe(_) => "subscribe",
            Self::Receive(_) => "receive",
            Self::Retained(_) => "retained",
            Self::Prioritize(_) => "prioritize",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Banned => "banned",
            Self::Limited => "limited",
        }
    }

    /// Tests whether the action is about a connection, and not about a topic.
    const fn is_about_connection(&self) -> bool {
        match self {
            Self::Publish(_) | Self::Will(_) | Self::Subscribe(_) => false,
            Self::Receive(_) | Self::Retained(_) | Self::Prioritize(_) => false,
            Self::Connect | Self::Reauthenticate | Self::Session | Self::Expired => true,
            Self::Revoked | Self::Banned | Self::Limited => true,
        }
    }

    /// Topic or filter that the action is about.
    pub fn topic(&self) -> Option<&str> {
        match self {
            Self::Publish(topic) | Self::Will(topic) | Self::Receive(topic) | Self::Retained(topic) => {
                Some(topic.as_str())
            }
            Self::Subscribe(filter) | Self::Prioritize(filter) => Some(filter.as_str()),
            _ => None,
        }
    }
}

/// Security event.
#[derive(Clone, Debug)]
pub struct SecurityEvent {
    /// Action that was refused.
    pub action: SecurityAction,
    /// Client Identifier, if one is known.
    pub client_id: Option<ClientId>,
    /// Identity, once the client was authenticated.
    pub identity: Option<Identity>,
    /// User name that the client gave without being authenticated, its first 256 characters.
    pub claimed_user: Option<Box<str>>,
    /// Address of the client, if it is known.
    pub address: Option<SocketAddr>,
    /// Cause of the refusal; empty if a rule decided.
    pub cause: Cow<'static, str>,
    /// Decision of the rules, if they refused it.
    pub decision: Option<Decision>,
    /// Events that were not passed on since the one before, because they came too fast.
    pub suppressed: u64,
}

impl SecurityEvent {
    /// Event of an action that was refused for another cause than the rules.
    pub(crate) fn refused(
        client_id: Option<&ClientId>,
        identity: Option<&Identity>,
        action: SecurityAction,
        cause: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            action,
            client_id: client_id.cloned(),
            identity: identity.cloned(),
            claimed_user: None,
            address: None,
            cause: cause.into(),
            decision: None,
            suppressed: 0,
        }
    }

    /// Event of an action that the rules deny.
    pub(crate) fn denied(
        client_id: &ClientId,
        identity: &Identity,
        action: SecurityAction,
        decision: Decision,
    ) -> Self {
        let event = Self::refused(Some(client_id), Some(identity), action, "");
        Self { decision: Some(decision), ..event }
    }

    pub(crate) fn with_claimed_user(self, user: Option<&str>) -> Self {
        Self { claimed_user: user.map(|user| shortened(user).into()), ..self }
    }

    pub(crate) fn with_address(self, address: Option<SocketAddr>) -> Self {
        Self { address, ..self }
    }
}

/// Stream of security events, of which a limited number a second is passed on.
pub(crate) struct Audit {
    events: broadcast::Sender<Arc<SecurityEvent>>,
    /// Rates of events about topics and about connections; `None` until the first of them.
    rates: Mutex<[Option<TokenBucket>; 2]>,
    suppressed: AtomicU64,
    total: AtomicU64,
}

impl Default for Audit {
    fn default() -> Self {
        let (events, _) = broadcast::channel(CAPACITY);
        Self { events, rates: Mutex::default(), suppressed: AtomicU64::new(0), total: AtomicU64::new(0) }
    }
}

impl Audit {
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<SecurityEvent>> {
        self.events.subscribe()
    }

    /// Events since the start, those that were not passed on included.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self, mut event: SecurityEvent) {
        self.total.fetch_add(1, Ordering::Relaxed);
        if !self.has_room(&event.action, clock::now()) {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        event.suppressed = self.suppressed.swap(0, Ordering::Relaxed);
        // Without a subscriber there is no one to tell.
        let _ = self.events.send(Arc::new(event));
    }

    fn has_room(&self, action: &SecurityAction, now: Instant) -> bool {
        let lock = || self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rates = Ordered::acquire(Rank::Leaf, lock);
        let rate = &mut rates[usize::from(action.is_about_connection())];
        if rate.is_none() {
            *rate = TokenBucket::new(EVENTS_PER_SECOND, now);
        }
        rate.as_mut().is_none_or(|rate| rate.try_take(1, now))
    }
}

/// Logs security events for as long as the broker runs.
pub(crate) async fn log(mut events: broadcast::Receiver<Arc<SecurityEvent>>) {
    loop {
        match events.recv().await {
            Ok(event) => {
                let SecurityEvent { action, client_id, identity, claimed_user, .. } = &*event;
                let SecurityEvent { address, cause, decision, suppressed, .. } = &*event;
                tracing::info!(
                    target: "braid_broker::security",
                    action = action.name(),
                    topic = action.topic().map(shortened),
                    client = client_id.as_ref().map(|client_id| shortened(client_id.as_str())),
                    user = identity.as_ref().and_then(Identity::user).map(shortened),
                    claimed_user = claimed_user.as_deref(),
                    peer = address.map(tracing::field::display),
                    cause = (!cause.is_empty()).then_some(&**cause),
                    rule = decision.map(|decision| decision.line.map_or(0, Into::into)),
                    list = decision.map(|decision| decision.list),
                    suppressed,
                    "refused"
                );
            }
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                tracing::warn!(target: "braid_broker::security", missed, "security events were not logged");
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, expected) in [
            ("a".repeat(256), "a".repeat(256)),
            ("a".repeat(257), "a".repeat(256)),
            ("\u{1f980}".repeat(300), "\u{1f980}".repeat(256)),
            (String::new(), String::new()),
        ] {
            assert_eq!(shortened(&text), expected);
        }
    }
}
