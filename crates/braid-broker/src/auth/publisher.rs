//! Publishers of retained messages, as the broker keeps them.

use std::sync::Arc;

use braid_auth::acl::Action;
use braid_auth::identity::Identity;
use braid_auth::publisher::Publisher;
use braid_proto::packet::ClientId;
use braid_proto::topic::TopicName;

use crate::mountpoint::Tenant;

/// Publisher of a message that the rules permit.
#[derive(Clone, Debug)]
pub(crate) struct Permitted {
    pub(crate) publisher: Arc<Publisher>,
    /// Generation of the rules by which it was permitted, or an earlier one.
    pub(crate) generation: u64,
}

/// Publishers of one client, made for its first retained message: one for messages that rules of its own permit, and
/// one for others.
#[derive(Debug, Default)]
pub(super) struct OwnPublishers([Option<Arc<Publisher>>; 2]);

impl OwnPublishers {
    pub(super) fn get(
        &mut self,
        identity: &Identity,
        client_id: &ClientId,
        is_granted: bool,
    ) -> Arc<Publisher> {
        let made = || Arc::new(Publisher::new(identity, client_id.clone(), is_granted));
        self.0[usize::from(is_granted)].get_or_insert_with(made).clone()
    }
}

/// Tests whether rules of the client itself permit a PUBLISH.
pub(super) fn is_granted(
    identity: &Identity,
    client_id: &ClientId,
    tenant: Option<&Tenant>,
    topic: &TopicName,
) -> bool {
    let ask = |client_id: &ClientId, topic: &TopicName| {
        identity.decide(client_id.as_str(), Action::Publish, topic, None).allowed
    };
    identity.has_rules()
        && match tenant {
            None => ask(client_id, topic),
            Some(Tenant { mountpoint, client_id }) => mountpoint
                .own_name(topic)
                .and_then(|own| TopicName::parse(own).ok())
                .is_some_and(|own| ask(client_id, &own)),
        }
}
