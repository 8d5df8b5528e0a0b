//! Authenticator by user names, and an authorizer with an access control list that a test replaces.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use braid_auth::acl::{Acl, Decision};
use braid_auth::identity::Identity;
use braid_broker::{Action, Authenticate, Authentication, Authorize, Credentials};
use braid_proto::packet::{ClientId, Connect};
use braid_proto::topic::TopicName;

/// Authenticator whose identities are the user names.
pub(crate) struct UserNames;

impl Authenticate for UserNames {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        Box::pin(async {
            tokio::task::yield_now().await;
            Ok(credentials.user_name.map_or(Identity::anonymous(), Identity::named).into())
        })
    }
}

/// A CONNECT with this user name.
pub(crate) fn named(name: &str, connect: Connect) -> Connect {
    Connect { user_name: Some(name.into()), ..connect }
}

/// Authorizer by an access control list, and by the name of a user that is not known any more.
pub(crate) struct AclRules {
    list: Mutex<Arc<Acl>>,
    revoked: Mutex<Option<&'static str>>,
    generation: AtomicU64,
}

impl AclRules {
    /// Authorizer by these lines.
    pub(crate) fn of(rules: &str) -> Arc<Self> {
        let list = Mutex::new(parse(rules));
        Arc::new(Self { list, revoked: Mutex::default(), generation: AtomicU64::new(0) })
    }

    /// Replaces the list. Connections keep their subscriptions until the broker rechecks its clients.
    pub(crate) fn replace(&self, rules: &str) {
        *self.list.lock().expect("not poisoned") = parse(rules);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn revoke(&self, user: &'static str) {
        *self.revoked.lock().expect("not poisoned") = Some(user);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

fn parse(rules: &str) -> Arc<Acl> {
    let text: String = rules.lines().map(|line| format!("{}\n", line.trim())).collect();
    Arc::new(Acl::parse(text.as_bytes(), "rules").unwrap_or_else(|error| panic!("{error}")))
}

impl Authorize for AclRules {
    fn decide(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision {
        let list = self.list.lock().expect("not poisoned").clone();
        action.decide(identity, client_id.as_str(), Some(&list))
    }

    fn withdraws(&self, identity: &Identity, client_id: &ClientId, topic: &TopicName) -> bool {
        let list = self.list.lock().expect("not poisoned").clone();
        identity.is_denied_by_name(client_id.as_str(), topic, &list)
    }

    /// Users of tokens are known by their tokens alone.
    fn is_revoked(&self, identity: &Identity) -> bool {
        let has_list = identity.source() != Some("jwt");
        has_list
            && identity.user().is_some()
            && identity.user() == *self.revoked.lock().expect("not poisoned")
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
}
