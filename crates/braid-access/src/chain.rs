//! Chain of authenticators, asked one after the other.
//!
//! | answer | of | then |
//! |---|---|---|
//! | accepted | the right credentials | the client has this identity |
//! | refused | wrong credentials: a wrong password, a token with a wrong signature | the client is refused; no other one is asked |
//! | unavailable | a service that does not answer, a full queue of passwords | the client is refused with 0x88 or 0x89: the chain fails closed |
//! | ignored | credentials of another kind, or a user that is not known here | the next one is asked |
//!
//! If all of them ignore the credentials, the client is refused with 0x86. A client without any credentials is
//! anonymous, where that was asked for.
//!
//! An Authentication Method is that of the password files. In front of them no authenticator may stand that decides
//! without the method: a service, or one of certificates where the client has one. Those behind such a one are not
//! asked, since it could have refused the client. Tokens decide nothing here, because the client has not sent any.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_auth::claims::Claims;
use braid_auth::identity::{Attributes, Identity};
use braid_broker::{Anonymous, Authenticate, Authentication, Credentials, Expiry, Grant, Outcome, Refusal};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;

use crate::certificate::Certificates;
use crate::hook::Hook;
use crate::password::{SCRAM_SHA_256, Users, begin_scram};
use crate::tokens::Tokens;

/// Answer of one authenticator.
pub(crate) enum Answer {
    Accepted(Box<Grant>),
    Ignored,
    /// The credentials are wrong, or the authenticator is not available.
    Refused(Refusal),
}

/// Authenticator in a [`Chain`].
#[derive(Clone, Debug)]
pub enum Link {
    /// User names and passwords of a file, and SCRAM-SHA-256.
    Password(Users),
    /// JSON Web Tokens in the password.
    Token(Arc<Tokens>),
    /// Client certificates.
    Certificate(Certificates),
    /// Service over HTTP.
    Http(Arc<Hook>),
}

impl Link {
    async fn ask(&self, credentials: &Credentials<'_>) -> Answer {
        match self {
            Self::Password(users) => users.verify(credentials).await,
            Self::Token(tokens) => tokens.verify(credentials).await,
            Self::Certificate(certificates) => certificates.verify(credentials),
            Self::Http(hook) => hook.verify(credentials).await,
        }
    }

    /// Tests whether clients may get rules of their own.
    pub(crate) const fn gives_rules(&self) -> bool {
        matches!(self, Self::Token(_) | Self::Http(_))
    }

    /// Tests whether the authenticator decides about clients with an Authentication Method, which it does not know.
    const fn decides_without_method(&self, has_certificate: bool) -> bool {
        match self {
            Self::Password(_) | Self::Token(_) => false,
            Self::Certificate(_) => has_certificate,
            Self::Http(_) => true,
        }
    }

    fn users(&self) -> Option<&Users> {
        if let Self::Password(users) = self { Some(users) } else { None }
    }

    pub(crate) fn tokens(&self) -> Option<&Tokens> {
        if let Self::Token(tokens) = self { Some(tokens) } else { None }
    }
}

/// Chain of authenticators.
#[derive(Clone, Debug)]
pub struct Chain {
    links: Vec<Link>,
    /// Rule for clients without credentials; for every client if there are no authenticators.
    anonymous: Anonymous,
}

impl Chain {
    /// Chain that asks `links` in this order. Without any, clients of this machine are anonymous. `allow_anonymous`:
    /// clients without credentials may connect from everywhere.
    pub fn new(links: Vec<Link>, allow_anonymous: bool) -> Self {
        Self { links, anonymous: Anonymous { from_anywhere: allow_anonymous } }
    }

    async fn decide(&self, credentials: &Credentials<'_>) -> Result<Outcome, Refusal> {
        if let Some(method) = credentials.method {
            // [MQTT-4.12.0-1]
            let unknown =
                || Refusal::new(ReasonCode::BadAuthenticationMethod, "unknown authentication method");
            let is_known = method == SCRAM_SHA_256;
            return is_known
                .then(|| begin_scram(self.method_files(credentials), credentials))
                .ok_or_else(unknown)?;
        }
        for link in &self.links {
            match link.ask(credentials).await {
                Answer::Accepted(grant) => return Ok(Outcome::Accepted(grant)),
                Answer::Refused(refusal) => return Err(refusal),
                Answer::Ignored => {}
            }
        }
        let has_credentials = credentials.user_name.is_some() || credentials.password.is_some();
        if self.links.is_empty() {
            return self.anonymous.admit(credentials);
        }
        if has_credentials {
            return Err(Refusal::new(
                ReasonCode::BadUserNameOrPassword,
                "no authenticator knows the credentials",
            ));
        }
        if credentials.listener.anonymous.unwrap_or(self.anonymous.from_anywhere) {
            return self.anonymous.admit(credentials);
        }
        Err(Refusal::new(ReasonCode::NotAuthorized, "there are no credentials"))
    }

    /// Password files of the chain, in its order.
    pub(crate) fn password_files(&self) -> impl Iterator<Item = &Users> {
        self.links.iter().filter_map(Link::users)
    }

    /// Password files that may answer the Authentication Method of a client.
    fn method_files(&self, credentials: &Credentials<'_>) -> impl Iterator<Item = &Users> {
        let has_certificate = credentials.peer.certificate.is_some();
        let precedes = move |link: &&Link| !link.decides_without_method(has_certificate);
        self.links.iter().take_while(precedes).filter_map(Link::users)
    }

    pub(crate) fn links(&self) -> &[Link] {
        &self.links
    }
}

impl Authenticate for Chain {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        Box::pin(self.decide(credentials))
    }
}

/// Accepts a client as this user, with more that its authenticator knows.
pub(crate) fn grant_with(
    credentials: &Credentials<'_>,
    source: &str,
    user: Option<&str>,
    complete: impl FnOnce(&mut Grant),
) -> Answer {
    accept(credentials.attributes(), source, user, complete).map_or_else(Answer::Refused, Answer::Accepted)
}

/// Acceptance of a client as this user.
///
/// # Errors
/// The rules of the client are not valid.
pub(crate) fn accept(
    attributes: Attributes,
    source: &str,
    user: Option<&str>,
    complete: impl FnOnce(&mut Grant),
) -> Result<Box<Grant>, Refusal> {
    let attributes = Attributes { user: user.map(Into::into), source: Some(source.into()), ..attributes };
    let identity = Identity::new(attributes)
        .map_err(|error| Refusal::new(ReasonCode::NotAuthorized, error.to_string()))?;
    let mut grant = Grant { identity, ..Grant::default() };
    complete(&mut grant);
    Ok(Box::new(grant))
}

/// Accepts a client with the claims of a token or service. Those that name another Client Identifier than CONNECT
/// replace it.
pub(crate) fn grant_claims(credentials: &Credentials<'_>, source: &str, claims: Claims) -> Answer {
    let Claims { user, client_id, groups, rules, mountpoint, expires_at } = claims;
    let user = user.as_deref().or(credentials.user_name);
    let attributes = Attributes { groups, rules, mountpoint, ..credentials.attributes() };
    let complete = |grant: &mut Grant| {
        grant.client_id = client_id.as_deref().map(ClientId::from);
        grant.expiry = expires_at.map(|end| Expiry::new(Duration::from_secs(end), wall_clock));
    };
    accept(attributes, source, user, complete).map_or_else(Answer::Refused, Answer::Accepted)
}

/// Time in seconds since the Unix epoch; 0 before it.
pub(crate) fn unix_now() -> u64 {
    wall_clock().as_secs()
}

/// Time since the Unix epoch; zero before it.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
