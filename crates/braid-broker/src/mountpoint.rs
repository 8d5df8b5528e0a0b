//! Mountpoints of clients: from the policy of the listener or the identity, and in the Client Identifiers of sessions.
//!
//! The session of a client with a mountpoint has the Client Identifier `MOUNTPOINT NUL IDENTIFIER`, in the registry and
//! in the store. U+0000 is in no Client Identifier of a CONNECT, so a client cannot name a session of another name
//! space.

use braid_auth::identity::Identity;
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{Mountpoint, MountpointError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::listener_policy::ListenerPolicy;

/// Separator between mountpoint and identifier in the Client Identifier of a session.
const SEPARATOR: char = '\0';

/// Mountpoint for the clients of a listener, in which `%u` stands for the user name and `%c` for the Client Identifier,
/// each as a whole level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MountpointTemplate(Box<str>);

/// Reason why a text is no [`MountpointTemplate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MountpointTemplateError {
    /// A placeholder is part of a level.
    #[error("%u and %c must stand alone between slashes in a mountpoint, as in tenants/%u/")]
    Placeholder,
    /// The text is no mountpoint.
    #[error(transparent)]
    Mountpoint(#[from] MountpointError),
}

/// Reason why a client cannot have its mountpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unmountable {
    #[error("its user name cannot be a level of its mountpoint")]
    User,
    #[error("its client identifier cannot be a level of its mountpoint, or contains U+0000")]
    ClientId,
    #[error("the mountpoint of its user is not valid: {0}")]
    Mountpoint(#[from] MountpointError),
}

impl Unmountable {
    pub(crate) const fn reason(self) -> ReasonCode {
        match self {
            Self::User | Self::Mountpoint(_) => ReasonCode::NotAuthorized,
            Self::ClientId => ReasonCode::ClientIdentifierNotValid,
        }
    }
}

impl MountpointTemplate {
    /// Parses the mountpoint of a listener.
    ///
    /// # Errors
    /// A [`MountpointTemplateError`] for the rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, MountpointTemplateError> {
        let is_part = |level: &str| level.len() > 2 && (level.contains("%u") || level.contains("%c"));
        if text.split('/').any(is_part) {
            return Err(MountpointTemplateError::Placeholder);
        }
        Mountpoint::parse(text)?;
        Ok(Self(text.into()))
    }

    /// Text with its placeholders.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn resolve(&self, user: Option<&str>, client_id: &str) -> Result<Mountpoint, Unmountable> {
        let level = |level| match level {
            "%u" => user.filter(|user| is_level(user)).ok_or(Unmountable::User),
            "%c" => Some(client_id).filter(|id| is_level(id)).ok_or(Unmountable::ClientId),
            literal => Ok(literal),
        };
        let levels = self.0.split('/').map(level).collect::<Result<Vec<_>, _>>()?;
        Ok(Mountpoint::parse(&levels.join("/"))?)
    }
}

impl TryFrom<String> for MountpointTemplate {
    type Error = MountpointTemplateError;

    fn try_from(text: String) -> Result<Self, MountpointTemplateError> {
        Self::parse(&text)
    }
}

impl From<MountpointTemplate> for String {
    fn from(template: MountpointTemplate) -> Self {
        template.0.into()
    }
}

/// Tests whether a name of a client may stand for a level of a topic (CVE-2017-7650).
fn is_level(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('$') && !name.contains(['/', '+', '#', '\0'])
}

/// Mountpoint of a client: that of its identity, otherwise that of the listener.
///
/// # Errors
/// A name of the client cannot stand in it, or the Client Identifier, which an authenticator may have chosen, could
/// name a session of a tenant.
pub(crate) fn of_client(
    policy: &ListenerPolicy,
    identity: &Identity,
    client_id: &ClientId,
) -> Result<Option<Mountpoint>, Unmountable> {
    if client_id.as_str().contains(SEPARATOR) {
        return Err(Unmountable::ClientId);
    }
    if let Some(text) = identity.mountpoint() {
        return Ok(Some(Mountpoint::parse(text)?));
    }
    let resolve = |template: &MountpointTemplate| template.resolve(identity.user(), client_id.as_str());
    policy.mountpoint.as_ref().map(resolve).transpose()
}

/// Client Identifier of the session of a client.
pub(crate) fn session_id(mountpoint: Option<&Mountpoint>, client_id: &ClientId) -> ClientId {
    mountpoint
        .map_or_else(|| client_id.clone(), |mountpoint| join(Some(mountpoint.as_str()), client_id.as_str()))
}

/// Client Identifier of the session of a client below a mountpoint, or without one.
pub(crate) fn join(mountpoint: Option<&str>, client_id: &str) -> ClientId {
    mountpoint.map_or_else(
        || ClientId::from(client_id),
        |mountpoint| ClientId::from(&*format!("{mountpoint}{SEPARATOR}{client_id}")),
    )
}

/// Mountpoint of a client, if it has one, and the Client Identifier that it knows.
pub(crate) fn split(session_id: &ClientId) -> (Option<&str>, &str) {
    match session_id.as_str().split_once(SEPARATOR) {
        Some((mountpoint, client_id)) => (Some(mountpoint), client_id),
        None => (None, session_id.as_str()),
    }
}

/// Mountpoint of a client, and the Client Identifier that it knows.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) mountpoint: Mountpoint,
    pub(crate) client_id: ClientId,
}

impl Tenant {
    /// Tenant whose session has this Client Identifier; `None` for a session without a mountpoint.
    pub(crate) fn of_session(session_id: &ClientId) -> Option<Self> {
        let (mountpoint, client_id) = split(session_id);
        Some(Self { mountpoint: Mountpoint::parse(mountpoint?).ok()?, client_id: ClientId::from(client_id) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_auth::identity::Attributes;

    fn identity(user: Option<&str>, mountpoint: Option<&str>) -> Identity {
        let attributes = Attributes {
            user: user.map(Into::into),
            mountpoint: mountpoint.map(Into::into),
            ..Attributes::default()
        };
        Identity::new(attributes).unwrap()
    }

    fn resolve(
        listener: Option<&str>,
        user: Option<&str>,
        own: Option<&str>,
        client_id: &str,
    ) -> Result<Option<String>, Unmountable> {
        let mountpoint = listener.map(|text| MountpointTemplate::parse(text).unwrap());
        let policy = ListenerPolicy { mountpoint, ..ListenerPolicy::default() };
        let mountpoint = of_client(&policy, &identity(user, own), &ClientId::from(client_id))?;
        Ok(mountpoint.map(|mountpoint| mountpoint.as_str().to_owned()))
    }

    #[test]
    fn the_mountpoint_of_a_client_is_that_of_its_identity_or_of_its_listener() {
        for (listener, user, own, expected) in [
            (None, Some("u"), None, None),
            (Some("t1/"), None, None, Some("t1/")),
            (Some("t/%u/%c/"), Some("u"), None, Some("t/u/c/")),
            (Some("t1/"), Some("u"), Some("t2/"), Some("t2/")),
            (Some("t/%u/"), None, Some("t2/"), Some("t2/")),
            (None, Some("u"), Some("t2/"), Some("t2/")),
            // A placeholder is the listener's only.
            (None, Some("u"), Some("%u/"), Some("%u/")),
        ] {
            assert_eq!(
                resolve(listener, user, own, "c"),
                Ok(expected.map(str::to_owned)),
                "{listener:?} {own:?}"
            );
        }
    }

    /// CVE-2017-7650.
    #[test]
    fn a_name_that_cannot_stand_in_the_mountpoint_is_refused() {
        let long = "u".repeat(Mountpoint::MAX);
        for name in ["", "+", "#", "a/b", "a+", "$u", "/", "a\0b"] {
            assert_eq!(resolve(Some("%u/"), Some(name), None, "c"), Err(Unmountable::User), "{name}");
            assert_eq!(resolve(Some("t/%c/"), None, None, name), Err(Unmountable::ClientId), "{name}");
        }
        assert_eq!(resolve(Some("%u/"), None, None, "c"), Err(Unmountable::User));
        let too_long = Err(Unmountable::Mountpoint(MountpointError::TooLong));
        assert_eq!(resolve(Some("%u/"), Some(&long), None, "c"), too_long);
        let invalid = Err(Unmountable::Mountpoint(MountpointError::Wildcard));
        assert_eq!(resolve(Some("t1/"), Some("u"), Some("#/"), "c"), invalid);
        // An authenticator may choose any text.
        assert_eq!(resolve(None, None, None, "t1/\0c"), Err(Unmountable::ClientId));
    }

    #[test]
    fn a_template_is_a_mountpoint_with_placeholders_as_whole_levels() {
        for text in ["%u/", "t/%u/", "%u/%c/", "100%/", "a%/u/"] {
            assert_eq!(MountpointTemplate::parse(text).unwrap().as_str(), text);
        }
        for text in ["t%u/", "%ux/", "a/%u%c/"] {
            assert_eq!(MountpointTemplate::parse(text), Err(MountpointTemplateError::Placeholder), "{text}");
        }
        for text in ["", "%u", "$SYS/", "+/"] {
            assert!(
                matches!(MountpointTemplate::parse(text), Err(MountpointTemplateError::Mountpoint(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn the_identifier_of_a_session_tells_its_tenant() {
        let (mountpoint, client_id) = (Mountpoint::parse("a/b/").unwrap(), ClientId::from("c/d"));
        let session = session_id(Some(&mountpoint), &client_id);
        let tenant = Tenant::of_session(&session).unwrap();
        assert_eq!((&tenant.mountpoint, &tenant.client_id), (&mountpoint, &client_id));
        assert_eq!(session_id(None, &client_id), client_id);
        assert!(Tenant::of_session(&client_id).is_none());
        // No identifier of one tenant is one of another, or of none.
        for (text, id) in [("a/", "b/c/d"), ("a/b/c/", "d"), ("a/b/", "c")] {
            assert_ne!(session_id(Some(&Mountpoint::parse(text).unwrap()), &ClientId::from(id)), session);
        }
    }
}
