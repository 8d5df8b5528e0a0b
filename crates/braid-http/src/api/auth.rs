//! Users of the API and their roles.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_broker::{Authenticate, Credentials, Grant, ListenerPolicy, Outcome};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_transport::{Peer, Transport};
use bytes::Bytes;
use lru::LruCache;
use tokio::time::timeout;

use super::caller::Caller;
use super::extract::Refused;
use super::login_limits::{Attempt, LoginLimits, NOT_ACCEPTED};
use crate::network::of_host;
use crate::request::Client;

/// Time for which right credentials are not verified again. A hash of a password takes a tenth of a second.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Right credentials that are remembered.
const LOGINS: NonZeroUsize = NonZeroUsize::new(1024).expect("positive");

/// Credentials that are verified at the same time.
const TURNS: usize = 64;

/// Time for the authenticators.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest value of `Authorization`, in bytes.
const MAX_LOGIN: usize = 16 << 10;

/// Tag of the listener in attributes of users.
const LISTENER: &str = "http";

/// Role of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// May read.
    Viewer,
    /// May change something too.
    Operator,
}

/// Users and groups that have a role, each as `NAME` or `group:NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Users that may do everything.
    pub operators: Vec<String>,
    /// Users that may read.
    pub viewers: Vec<String>,
}

impl Roles {
    fn of(&self, user: &str, groups: &[Box<str>]) -> Option<Role> {
        let is_named = |names: &[String]| {
            names.iter().any(|name| match name.strip_prefix("group:") {
                Some(group) => groups.iter().any(|one| **one == *group),
                None => name == user,
            })
        };
        if is_named(&self.operators) {
            Some(Role::Operator)
        } else {
            is_named(&self.viewers).then_some(Role::Viewer)
        }
    }
}

/// User of a request.
#[derive(Clone, Debug)]
pub(super) struct Principal {
    /// `None` on this machine, where the broker has no authenticators.
    pub(super) grant: Option<Arc<Grant>>,
    /// `None` for a user that may do nothing.
    pub(super) role: Option<Role>,
}

impl Principal {
    pub(super) fn user(&self) -> Option<&str> {
        self.grant.as_ref()?.identity.user()
    }

    pub(super) fn is_operator(&self) -> bool {
        self.role == Some(Role::Operator)
    }
}

/// Credentials that were right.
struct Known {
    grant: Arc<Grant>,
    role: Option<Role>,
    /// Time until they are verified again.
    until: Instant,
}

impl Known {
    /// Tests whether time, token and password have not ended.
    fn is_valid(&self) -> bool {
        Instant::now() < self.until
            && self.grant.expiry.is_none_or(|expiry| !expiry.left().is_zero())
            && self.grant.credential.as_ref().is_none_or(|credential| !credential.is_revoked())
    }

    fn principal(&self) -> Principal {
        Principal { grant: Some(Arc::clone(&self.grant)), role: self.role }
    }
}

/// Login of users, with a memory of right credentials.
pub(super) struct Login {
    authenticate: Option<Arc<dyn Authenticate>>,
    refuses_anonymous: Option<&'static str>,
    roles: Roles,
    policy: ListenerPolicy,
    /// Keys of the hashes of [`Login::key`].
    keys: [RandomState; 2],
    known: Mutex<LruCache<[u64; 2], Known>>,
    limits: LoginLimits,
    /// Turns of credentials, by a hash.
    turns: [tokio::sync::Mutex<()>; TURNS],
}

/// Credentials of a request.
struct Presented {
    user: Option<String>,
    password: Bytes,
}

impl Login {
    pub(super) fn new(
        authenticate: Option<Arc<dyn Authenticate>>,
        refuses_anonymous: Option<&'static str>,
        roles: Roles,
    ) -> Self {
        Self {
            authenticate,
            refuses_anonymous,
            roles,
            policy: ListenerPolicy {
                tag: Some(LISTENER.into()),
                anonymous: Some(false),
                ..ListenerPolicy::default()
            },
            keys: [RandomState::new(), RandomState::new()],
            known: Mutex::new(LruCache::new(LOGINS)),
            limits: LoginLimits::new(),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
        }
    }

    /// Forgets which credentials were right or wrong.
    pub(super) fn forget(&self) {
        self.known().clear();
        self.limits.forget_wrong();
    }

    /// Client of a broker without authenticators.
    fn anonymous(&self, caller: &Caller) -> Result<Principal, Refused> {
        let is_here = caller.client.address.ip().to_canonical().is_loopback();
        let cause = match (self.refuses_anonymous, &caller.proxy) {
            (Some(reason), _) => reason.to_owned(),
            (None, _) if !is_here => {
                "anonymous clients have to ask from the machine of the broker".to_owned()
            }
            // The proxy is on this machine, and its clients are elsewhere.
            (None, Some(sign)) => format!("the request comes through a proxy ({sign})"),
            (None, None) => return Ok(Principal { grant: None, role: Some(Role::Operator) }),
        };
        Err(unauthorized(format!(
            "{cause}, and there are no users to log in: configure an [[authenticator]], and name users in http.operators"
        )))
    }

    /// User of a request.
    ///
    /// # Errors
    /// There are no credentials, or wrong ones, or too many wrong ones came.
    pub(super) async fn principal(&self, caller: &Caller) -> Result<Principal, Refused> {
        let client = &caller.client;
        let Some(authenticate) = &self.authenticate else { return self.anonymous(caller) };
        let Some(value) = &caller.authorization else {
            return Err(unauthorized("send a user and password (Basic) or a token (Bearer)"));
        };
        let address = client.address.ip();
        let key = self.key(address, value.as_bytes());
        if let Some(principal) = self.remembered(key) {
            return Ok(principal);
        }
        let Some(presented) = parse(value.as_bytes()) else {
            let detail = "Authorization is neither Basic with a user and password nor Bearer with a token";
            return Err(unauthorized(detail));
        };
        // Requests that come at once with the same credentials would each hash the password.
        let Ok(_turn) = timeout(ANSWER_TIMEOUT, self.turn(key).lock()).await else {
            return Err(unavailable());
        };
        if let Some(principal) = self.remembered(key) {
            return Ok(principal);
        }
        let (user, secret) = (presented.user.as_deref(), &presented.password[..]);
        let counted = self.limits.begin(Attempt { address, user, secret })?;
        let asked = timeout(ANSWER_TIMEOUT, self.ask(&**authenticate, &presented, client)).await;
        let is_busy = |reason| matches!(reason, ReasonCode::ServerUnavailable | ReasonCode::ServerBusy);
        let cause = match asked {
            Ok(Ok(Outcome::Accepted(grant))) if grant.identity.user().is_some() => {
                self.limits.right(&counted);
                return Ok(self.remember(key, *grant));
            }
            Ok(Ok(Outcome::Accepted(_))) => "the credentials name no user".into(),
            Ok(Ok(Outcome::Challenge(_))) => "they are of an exchange of several steps".into(),
            Ok(Err(refusal)) if !is_busy(refusal.reason) => refusal.cause,
            Ok(Err(_)) | Err(_) => {
                self.limits.undecided(&counted);
                return Err(unavailable());
            }
        };
        self.limits.wrong(&counted);
        tracing::info!(from = %client.address, %cause, "login over HTTP refused");
        Err(unauthorized(NOT_ACCEPTED))
    }

    /// Notes right credentials.
    fn remember(&self, key: [u64; 2], grant: Grant) -> Principal {
        let role = grant.identity.user().and_then(|user| self.roles.of(user, grant.identity.groups()));
        let known = Known { grant: Arc::new(grant), role, until: Instant::now() + REMEMBERED };
        let principal = known.principal();
        self.known().put(key, known);
        principal
    }

    async fn ask(
        &self,
        authenticate: &dyn Authenticate,
        presented: &Presented,
        client: &Client,
    ) -> Result<Outcome, braid_broker::Refusal> {
        let peer = Peer {
            address: Some(client.address),
            proxy: None,
            transport: if client.is_encrypted { Transport::Tls } else { Transport::Tcp },
            certificate: None,
            tls_version: None,
            alpn: None,
        };
        let credentials = Credentials {
            client_id: &ClientId::from(""),
            user_name: presented.user.as_deref(),
            password: Some(&presented.password),
            method: None,
            data: None,
            peer: &peer,
            listener: &self.policy,
        };
        authenticate.authenticate(&credentials).await
    }

    fn turn(&self, key: [u64; 2]) -> &tokio::sync::Mutex<()> {
        &self.turns[usize::try_from(key[0]).unwrap_or_default() % TURNS]
    }

    /// Keyed 128-bit hash of address and credentials: none stay in memory.
    fn key(&self, address: IpAddr, value: &[u8]) -> [u64; 2] {
        self.keys.each_ref().map(|key| key.hash_one((of_host(address), value)))
    }

    fn remembered(&self, key: [u64; 2]) -> Option<Principal> {
        let mut known = self.known();
        known.get(&key).filter(|known| known.is_valid()).map(Known::principal)
    }

    fn known(&self) -> MutexGuard<'_, LruCache<[u64; 2], Known>> {
        // Poisoning is harmless: each change replaces a whole entry.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unauthorized(detail: impl Into<String>) -> Refused {
    Refused::new(StatusCode::UNAUTHORIZED, detail)
}

fn unavailable() -> Refused {
    let detail = "the authenticator does not answer, or is busy; ask again";
    Refused::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(Duration::from_secs(1))
}

fn parse(value: &[u8]) -> Option<Presented> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= MAX_LOGIN)?;
    let (scheme, rest) = text.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return (!rest.is_empty())
            .then(|| Presented { user: None, password: Bytes::copy_from_slice(rest.as_bytes()) });
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(rest).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let user = std::str::from_utf8(&decoded[..colon]).ok().filter(|user| !user.is_empty())?;
    Some(Presented { user: Some(user.to_owned()), password: Bytes::copy_from_slice(&decoded[colon + 1..]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_parsed() {
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        for (value, expected) in [
            (basic("alice:secret"), Some((Some("alice"), "secret"))),
            (basic("alice:a:b").replace("Basic", "bASIC"), Some((Some("alice"), "a:b"))),
            (basic("alice:"), Some((Some("alice"), ""))),
            (basic(":secret"), None),
            (basic("alice"), None),
            ("Basic !".to_owned(), None),
            ("Basic".to_owned(), None),
            ("Bearer a.b.c".to_owned(), Some((None, "a.b.c"))),
            ("Bearer ".to_owned(), None),
            ("Digest a".to_owned(), None),
            (format!("Bearer {}", "a".repeat(MAX_LOGIN)), None),
        ] {
            let parsed = parse(value.as_bytes());
            let parsed =
                parsed.as_ref().map(|one| (one.user.as_deref(), std::str::from_utf8(&one.password).unwrap()));
            assert_eq!(parsed, expected, "{value:.50}");
        }
    }

    #[test]
    fn the_higher_role_counts() {
        let roles = Roles {
            operators: vec!["alice".into(), "group:ops".into()],
            viewers: vec!["alice".into(), "bob".into(), "group:staff".into()],
        };
        for (user, groups, expected) in [
            ("alice", &[][..], Some(Role::Operator)),
            ("bob", &[], Some(Role::Viewer)),
            ("carol", &[], None),
            ("carol", &["ops", "staff"], Some(Role::Operator)),
            ("carol", &["staff"], Some(Role::Viewer)),
            ("ops", &[], None),
            ("group:ops", &[], None),
            ("carol", &["alice"], None),
        ] {
            let groups: Vec<Box<str>> = groups.iter().map(|group| Box::from(*group)).collect();
            assert_eq!(roles.of(user, &groups), expected, "{user} {groups:?}");
        }
    }
}
