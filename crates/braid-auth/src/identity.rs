//! Identity of a client: user name, and the attributes that rules refer to.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use braid_proto::topic::{TopicFilter, TopicName};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::acl::{self, Acl, AclError, Action, Decision, Subject};

/// Identity of a client, as its authenticator determined it. Cheap to clone. The default is [`Identity::anonymous`].
#[derive(Clone, Default)]
pub struct Identity(Option<Arc<Known>>);

/// Attributes of an [`Identity`], as they are stored with a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attributes {
    /// User name; `None` for an anonymous client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Box<str>>,
    /// Name of the authenticator that accepted the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<str>>,
    /// Groups of the user, beside those that the access control list names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Box<str>>,
    /// Tag of the listener that accepted the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<Box<str>>,
    /// IP address of the client at its CONNECT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Rules of this client, in the format of [`acl`](crate::acl).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Box<str>>,
    /// Mountpoint of the client, instead of that of its listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<Box<str>>,
}

struct Known {
    attributes: Attributes,
    /// The parsed `rules`. Boxed: nearly every client has an address, and hardly any has rules.
    own: Option<Box<Acl>>,
}

/// Stored identity that cannot be read.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The text is no identity.
    #[error("the stored identity is not valid: {0}")]
    Text(#[from] serde_json::Error),
    /// Its rules are not valid.
    #[error(transparent)]
    Rules(#[from] AclError),
}

impl Identity {
    /// The identity of a client without credentials, of which nothing else is known.
    pub const fn anonymous() -> Self {
        Self(None)
    }

    /// The identity of a user of whom nothing else is known.
    pub fn named(user: &str) -> Self {
        let attributes = Attributes { user: Some(user.into()), ..Attributes::default() };
        Self(Some(Arc::new(Known { attributes, own: None })))
    }

    /// The identity with these attributes.
    ///
    /// # Errors
    /// The rules are not valid.
    pub fn new(attributes: Attributes) -> Result<Self, AclError> {
        let parse = |rules: &str| Acl::parse_own(rules.as_bytes(), "the rules of the client");
        let own = attributes.rules.as_deref().map(parse).transpose()?.map(Box::new);
        let is_known = attributes != Attributes::default();
        Ok(Self(is_known.then(|| Arc::new(Known { attributes, own }))))
    }

    /// Text from which [`Identity::decode`] makes the same identity: JSON.
    pub fn encode(&self) -> Arc<str> {
        // Serialization of strings and lists of strings does not fail.
        let text = self.0.as_ref().and_then(|known| serde_json::to_string(&known.attributes).ok());
        text.map_or_else(|| "{}".into(), Into::into)
    }

    /// Reads an identity that was stored.
    ///
    /// # Errors
    /// The text is not of [`Identity::encode`].
    pub fn decode(text: &str) -> Result<Self, IdentityError> {
        Ok(Self::new(serde_json::from_str(text)?)?)
    }

    /// User name; `None` for an anonymous client.
    pub fn user(&self) -> Option<&str> {
        self.attributes()?.user.as_deref()
    }

    /// Name of the authenticator that accepted the client, if there was one.
    pub fn source(&self) -> Option<&str> {
        self.attributes()?.source.as_deref()
    }

    /// IP address of the client at its CONNECT, if it is known.
    pub fn address(&self) -> Option<IpAddr> {
        self.attributes()?.address
    }

    /// Groups of the user, beside those that the access control list names.
    pub fn groups(&self) -> &[Box<str>] {
        self.attributes().map_or(&[], |attributes| &attributes.groups)
    }

    /// Mountpoint of the client, as its authenticator named it: not checked.
    pub fn mountpoint(&self) -> Option<&str> {
        self.attributes()?.mountpoint.as_deref()
    }

    /// Attributes without the rules of the client.
    pub(crate) fn attributes_without_rules(&self) -> Attributes {
        Attributes { rules: None, ..self.attributes().cloned().unwrap_or_default() }
    }

    /// The identity with these attributes, of which the rules are dropped.
    pub(crate) fn without_rules(attributes: Attributes) -> Self {
        let attributes = Attributes { rules: None, ..attributes };
        let is_known = attributes != Attributes::default();
        Self(is_known.then(|| Arc::new(Known { attributes, own: None })))
    }

    fn attributes(&self) -> Option<&Attributes> {
        self.0.as_deref().map(|known| &known.attributes)
    }

    /// Tests whether both are of one user, and so own the same sessions. All anonymous clients count as one user, and
    /// all clients without a user name whom one authenticator accepted as another.
    pub fn is_same_user(&self, other: &Self) -> bool {
        // A user may come by several authenticators: the source says nothing about one that has a name.
        self.user() == other.user() && (self.user().is_some() || self.source() == other.source())
    }

    /// Decides on a topic by the rules of this client, then by those of the broker.
    pub fn decide(
        &self,
        client_id: &str,
        action: Action,
        topic: &TopicName,
        broker: Option<&Acl>,
    ) -> Decision {
        self.ask(client_id, broker, |lists, subject| acl::decide(lists, subject, action, topic))
    }

    /// Decides on a Topic Filter by the rules of this client, then by those of the broker.
    pub fn decide_filter(
        &self,
        client_id: &str,
        action: Action,
        filter: &TopicFilter,
        broker: Option<&Acl>,
    ) -> Decision {
        self.ask(client_id, broker, |lists, subject| acl::decide_filter(lists, subject, action, filter))
    }

    /// Tests whether a rule of the broker that names this user or Client Identifier denies a PUBLISH. Rules of the
    /// client are not asked.
    pub fn is_denied_by_name(&self, client_id: &str, topic: &TopicName, broker: &Acl) -> bool {
        let denied = |subject: &Subject<'_>| broker.is_denied_by_name(subject, Action::Publish, topic);
        self.with_subject(client_id, denied)
    }

    fn ask(
        &self,
        client_id: &str,
        broker: Option<&Acl>,
        decide: impl FnOnce(&[&Acl], &Subject<'_>) -> Decision,
    ) -> Decision {
        let own = self.0.as_deref().and_then(|known| known.own.as_deref());
        self.with_subject(client_id, |subject| match (own, broker) {
            (Some(own), Some(broker)) => decide(&[own, broker], subject),
            (Some(list), None) | (None, Some(list)) => decide(&[list], subject),
            (None, None) => decide(&[], subject),
        })
    }

    fn with_subject<T>(&self, client_id: &str, ask: impl FnOnce(&Subject<'_>) -> T) -> T {
        let groups: Vec<&str> =
            self.attributes().map_or_else(Vec::new, |known| known.groups.iter().map(AsRef::as_ref).collect());
        let subject = Subject {
            user: self.user(),
            client_id,
            groups: &groups,
            listener: self.attributes().and_then(|known| known.listener.as_deref()),
            address: self.attributes().and_then(|known| known.address),
        };
        ask(&subject)
    }

    /// Tests whether the client has rules of its own.
    pub fn has_rules(&self) -> bool {
        self.0.as_deref().is_some_and(|known| known.own.is_some())
    }
}

/// The user alone: rules of a token may tell topics.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.user().unwrap_or("anonymous"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Attributes {
        Attributes {
            user: Some("Jane \"J\" é".into()),
            source: Some("jwt".into()),
            groups: vec!["a".into(), "b".into()],
            listener: Some("outside".into()),
            address: Some([192, 0, 2, 1].into()),
            rules: Some("deny publish topic t/secret\nallow publish topic t/#".into()),
            mountpoint: Some("acme/".into()),
        }
    }

    #[test]
    fn an_identity_is_the_same_after_it_was_stored() {
        for attributes in
            [whole(), Attributes::default(), Attributes { source: Some("x".into()), ..Attributes::default() }]
        {
            let identity = Identity::new(attributes.clone()).unwrap();
            let again = Identity::decode(&identity.encode()).unwrap();
            assert_eq!(again.attributes().cloned().unwrap_or_default(), attributes);
            assert!(again.is_same_user(&identity));
        }
        // A later version knows more.
        assert_eq!(Identity::decode(r#"{"user":"u","later":1}"#).unwrap().user(), Some("u"));
    }

    #[test]
    fn a_stored_identity_that_was_cut_anywhere_is_refused() {
        let text = Identity::new(whole()).unwrap().encode();
        for length in 0..text.len() {
            let cut = text.get(..length).unwrap_or("\u{fffd}");
            assert!(Identity::decode(cut).is_err(), "{cut}");
        }
        assert!(matches!(Identity::decode(r#"{"rules":"permit x"}"#), Err(IdentityError::Rules(_))));
    }

    #[test]
    fn its_own_rules_come_before_those_of_the_broker_and_apply_to_its_attributes() {
        let broker =
            Acl::parse(b"allow publish group b listener outside address 192.0.2.0/24 topic #\n", "acl")
                .unwrap();
        let (identity, publish) = (Identity::new(whole()).unwrap(), Action::Publish);
        let decide = |identity: &Identity, topic: &str, broker| {
            let decision = identity.decide("c", publish, &TopicName::parse(topic).unwrap(), broker);
            (decision.allowed, decision.list, decision.line.map(Into::into))
        };
        assert_eq!(decide(&identity, "t/secret", Some(&broker)), (false, 0, Some(1)));
        assert_eq!(decide(&identity, "t/other", Some(&broker)), (true, 0, Some(2)));
        assert_eq!(decide(&identity, "u", Some(&broker)), (true, 1, Some(1)));
        assert_eq!(decide(&identity, "u", None), (false, 0, None));
        for other in [
            Attributes { groups: vec!["a".into()], ..whole() },
            Attributes { listener: None, ..whole() },
            Attributes { address: None, ..whole() },
        ] {
            assert_eq!(decide(&Identity::new(other).unwrap(), "u", Some(&broker)), (false, 0, None));
        }
        let filter = TopicFilter::parse("t/#").unwrap();
        let decision = identity.decide_filter("c", Action::Subscribe, &filter, Some(&broker));
        assert!(!decision.allowed);
    }

    #[test]
    fn clients_without_a_user_name_are_of_the_authenticator_that_accepted_them() {
        let of = |source: Option<&str>| {
            let address = Some(IpAddr::from([192, 0, 2, 1]));
            Identity::new(Attributes { source: source.map(Into::into), address, ..Attributes::default() })
                .unwrap()
        };
        assert!(of(None).is_same_user(&Identity::anonymous()));
        assert!(of(Some("http")).is_same_user(&of(Some("http"))));
        for other in [Identity::anonymous(), of(None), of(Some("jwt"))] {
            assert!(!of(Some("http")).is_same_user(&other) && !other.is_same_user(&of(Some("http"))));
        }
    }

    #[test]
    fn only_the_user_decides_whose_identity_it_is() {
        let named = Identity::named("u");
        let attributes =
            Attributes { user: Some("u".into()), source: Some("jwt".into()), ..Attributes::default() };
        assert!(named.is_same_user(&Identity::new(attributes).unwrap()));
        assert!(!named.is_same_user(&Identity::named("v")) && !named.is_same_user(&Identity::anonymous()));
        assert_eq!(format!("{named:?}, {:?}", Identity::anonymous()), "u, anonymous");
    }
}
