//! Publisher of a retained message: the identity that rules are asked about before the message is delivered.

use std::fmt;
use std::sync::Arc;

use braid_proto::packet::ClientId;
use serde::{Deserialize, Serialize};

use crate::identity::{Attributes, Identity, IdentityError};

/// Publisher of a retained message, as it is stored with the message.
///
/// Without rules of its own: they belonged to a token or the answer of a service, which end before the message does.
/// Whether they had permitted the message is kept instead.
#[derive(Clone)]
pub struct Publisher {
    identity: Identity,
    client_id: ClientId,
    is_granted: bool,
    text: Arc<str>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    client: Box<str>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    granted: bool,
    identity: Attributes,
}

impl Publisher {
    /// Publisher with this identity, without its rules, and the Client Identifier of its session. `is_granted`: rules
    /// of its own permitted the message.
    pub fn new(identity: &Identity, client_id: ClientId, is_granted: bool) -> Self {
        let attributes = identity.attributes_without_rules();
        let record =
            Record { client: client_id.as_str().into(), granted: is_granted, identity: attributes.clone() };
        // Serialization of strings and lists of strings does not fail.
        let text = serde_json::to_string(&record).unwrap_or_default().into();
        Self { identity: Identity::without_rules(attributes), client_id, is_granted, text }
    }

    /// Reads a publisher that was stored.
    ///
    /// # Errors
    /// The text is not of [`Publisher::encoded`].
    pub fn decode(text: Arc<str>) -> Result<Self, IdentityError> {
        let Record { client, granted, identity } = serde_json::from_str(&text)?;
        let identity = Identity::without_rules(identity);
        Ok(Self { identity, client_id: ClientId::from(&*client), is_granted: granted, text })
    }

    /// Text from which [`Publisher::decode`] makes the same publisher: JSON.
    pub const fn encoded(&self) -> &Arc<str> {
        &self.text
    }

    /// Bytes in the heap, about.
    pub fn cost(&self) -> usize {
        // The names are in the text and in the identity.
        2 * self.text.len() + 128
    }

    /// Identity, without rules of its own.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Client Identifier of its session.
    pub const fn client_id(&self) -> &ClientId {
        &self.client_id
    }

    /// Whether rules of its own permitted the message.
    pub const fn is_granted(&self) -> bool {
        self.is_granted
    }
}

/// The user and Client Identifier alone.
impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} as {:?}", self.identity, self.client_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Identity {
        let rules = Some("allow publish topic #".into());
        let attributes = Attributes {
            user: Some("Jane \"J\" é".into()),
            source: Some("jwt".into()),
            groups: vec!["a".into()],
            listener: Some("outside".into()),
            address: Some([192, 0, 2, 1].into()),
            rules,
            mountpoint: Some("acme/".into()),
        };
        Identity::new(attributes).unwrap()
    }

    #[test]
    fn a_publisher_is_the_same_after_it_was_stored_and_has_no_rules() {
        for (identity, is_granted) in [(whole(), true), (whole(), false), (Identity::anonymous(), false)] {
            let publisher = Publisher::new(&identity, ClientId::from("acme/\0c"), is_granted);
            let again = Publisher::decode(publisher.encoded().clone()).unwrap();
            for publisher in [&publisher, &again] {
                assert!(!publisher.identity().has_rules());
                assert_eq!(publisher.is_granted(), is_granted);
                assert_eq!(publisher.client_id().as_str(), "acme/\0c");
            }
            let stored = again.identity().encode();
            assert_eq!(stored, publisher.identity().encode());
            assert_eq!(again.identity().user(), identity.user());
            if identity.user().is_some() {
                for kept in ["outside", "192.0.2.1", r#"["a"]"#, "jwt"] {
                    assert!(stored.contains(kept), "{kept}");
                }
                assert!(!publisher.encoded().contains("allow"), "{}", publisher.encoded());
            }
        }
        // Rules that were stored nevertheless are not used.
        let text = r#"{"client":"c","identity":{"rules":"allow publish topic #"},"later":1}"#;
        assert!(!Publisher::decode(text.into()).unwrap().identity().has_rules());
    }

    #[test]
    fn a_stored_publisher_that_was_cut_anywhere_is_refused() {
        let publisher = Publisher::new(&whole(), ClientId::from("c"), true);
        for length in 0..publisher.encoded().len() {
            let cut = publisher.encoded().get(..length).unwrap_or("\u{fffd}");
            assert!(Publisher::decode(cut.into()).is_err(), "{cut}");
        }
        for text in ["{}", r#"{"client":"c"}"#, r#"{"identity":{}}"#, "null"] {
            assert!(Publisher::decode(text.into()).is_err(), "{text}");
        }
    }
}
