//! Seam of permission: the actions of a client, and the authorizer that is asked about them.

use braid_auth::acl::{self, Acl, Decision};
use braid_auth::identity::Identity;
use braid_proto::packet::ClientId;
use braid_proto::topic::{TopicFilter, TopicName};

/// Action of a client that an [`Authorize`] permits or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// PUBLISH to this topic, or a Will for it: at CONNECT and when it is published.
    Publish(&'a TopicName),
    /// SUBSCRIBE with this filter, and the subscription itself when its session is resumed or the rules have changed.
    Subscribe(&'a TopicFilter),
    /// Delivery of a message of this topic, whatever subscription it matched.
    Receive(&'a TopicName),
    /// A priority above the usual one for the deliveries of this filter.
    Prioritize(&'a TopicFilter),
}

impl Action<'_> {
    /// Decision of the client's own rules, and of an access control list, about this action.
    pub fn decide(self, identity: &Identity, client_id: &str, list: Option<&Acl>) -> Decision {
        match self {
            Self::Publish(topic) => identity.decide(client_id, acl::Action::Publish, topic, list),
            Self::Receive(topic) => identity.decide(client_id, acl::Action::Receive, topic, list),
            Self::Subscribe(filter) => {
                identity.decide_filter(client_id, acl::Action::Subscribe, filter, list)
            }
            Self::Prioritize(filter) => {
                identity.decide_filter(client_id, acl::Action::Prioritize, filter, list)
            }
        }
    }
}

/// Authorizer of what clients do.
///
/// Its answers are pure: one for each identity, Client Identifier and action until the generation changes. Connections
/// cache them.
pub trait Authorize: Send + Sync + 'static {
    /// Permits an action or denies it. Denied packets are answered with 0x87 (Not authorized), denied deliveries are
    /// dropped.
    fn decide(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision;

    /// Tests whether a message that a client had published, by rules of its own that are gone, must not be delivered
    /// any more: a rule of the broker denies it to this user or Client Identifier by name. Others come behind those
    /// of the client, and say nothing.
    fn withdraws(&self, identity: &Identity, client_id: &ClientId, topic: &TopicName) -> bool {
        let _ = (identity, client_id, topic);
        false
    }

    /// Tests whether a client that was accepted with this identity would not be accepted any more. Asked when the
    /// generation has changed.
    fn is_revoked(&self, identity: &Identity) -> bool {
        let _ = identity;
        false
    }

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
    fn decide(&self, _identity: &Identity, _client_id: &ClientId, _action: Action<'_>) -> Decision {
        Decision { allowed: true, line: None, list: 0 }
    }

    fn permits_everything(&self) -> bool {
        true
    }
}
