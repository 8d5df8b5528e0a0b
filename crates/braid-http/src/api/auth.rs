//! Users of the API and their roles.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderMap};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_broker::{Authenticate, Credentials, Grant, ListenerPolicy, Outcome};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_transport::{Peer, Transport};
use bytes::Bytes;
use lru::LruCache;
use tokio::time::timeout;

use super::extract::Refused;
use super::limit::RequestRate;
use crate::request::{Client, is_forwarded};

/// Time for which right credentials are not verified again. A hash of a password takes a tenth of a second.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Right credentials that are remembered.
const LOGINS: NonZeroUsize = NonZeroUsize::new(1024).expect("positive");

/// Wrong credentials of one address in [`REFUSALS_PER`]; then: 429.
const REFUSALS: u32 = 10;

/// See [`REFUSALS`].
const REFUSALS_PER: Duration = Duration::from_secs(60);

/// Addresses that log in at the same time.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Principal {
    /// Name; `None` on this machine, where the broker has no authenticators.
    pub(super) user: Option<Arc<str>>,
    /// `None`: it may do nothing.
    pub(super) role: Option<Role>,
}

/// Login of users, with a memory of right credentials.
pub(super) struct Login {
    authenticate: Option<Arc<dyn Authenticate>>,
    roles: Roles,
    policy: ListenerPolicy,
    /// Keys of the hashes of [`Login::key`].
    keys: [RandomState; 2],
    known: Mutex<LruCache<[u64; 2], (Principal, Instant)>>,
    refusals: RequestRate,
    /// Turns of addresses, by a hash.
    turns: [tokio::sync::Mutex<()>; TURNS],
}

/// Credentials of a request.
struct Presented {
    user: Option<String>,
    password: Bytes,
}

impl Login {
    pub(super) fn new(authenticate: Option<Arc<dyn Authenticate>>, roles: Roles) -> Self {
        Self {
            authenticate,
            roles,
            policy: ListenerPolicy {
                tag: Some(LISTENER.into()),
                anonymous: Some(false),
                ..ListenerPolicy::default()
            },
            keys: [RandomState::new(), RandomState::new()],
            known: Mutex::new(LruCache::new(LOGINS)),
            refusals: RequestRate::slow(REFUSALS, REFUSALS_PER),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
        }
    }

    /// Forgets all right credentials.
    pub(super) fn forget(&self) {
        self.known().clear();
    }

    /// User of a request.
    ///
    /// # Errors
    /// There are no credentials, or wrong ones, or too many wrong ones came from the address.
    pub(super) async fn principal(&self, headers: &HeaderMap, client: &Client) -> Result<Principal, Refused> {
        let Some(authenticate) = &self.authenticate else { return anonymous(headers, client) };
        let Some(value) = headers.get(AUTHORIZATION) else {
            return Err(unauthorized("send a user and password (Basic) or a token (Bearer)"));
        };
        let key = self.key(value.as_bytes());
        if let Some(principal) = self.remembered(key) {
            return Ok(principal);
        }
        let address = client.address.ip();
        // One login of an address after the other: those at once would all pass the check, and each hash a password.
        let Ok(_turn) = timeout(ANSWER_TIMEOUT, self.turn(address).lock()).await else {
            return Err(unavailable());
        };
        if let Some(principal) = self.remembered(key) {
            return Ok(principal);
        }
        self.refusals.check(address).map_err(Refused::too_many)?;
        let refuse = |detail| {
            // One token of an address that has one: the check above was before.
            let _ = self.refusals.take(address);
            Err(unauthorized(detail))
        };
        let Some(presented) = parse(value.as_bytes()) else {
            return refuse("Authorization is neither Basic with a user and password nor Bearer with a token");
        };
        let asked = timeout(ANSWER_TIMEOUT, self.ask(&**authenticate, &presented, client)).await;
        let grant = match asked {
            Ok(Ok(Outcome::Accepted(grant))) => grant,
            Ok(Ok(Outcome::Challenge(_))) => return refuse("the credentials are not accepted"),
            Ok(Err(refusal)) => {
                if matches!(refusal.reason, ReasonCode::ServerUnavailable | ReasonCode::ServerBusy) {
                    return Err(unavailable());
                }
                tracing::info!(from = %client.address, cause = %refusal.cause, "login over HTTP refused");
                return refuse("the credentials are not accepted");
            }
            Err(_) => return Err(unavailable()),
        };
        let Grant { identity, expiry, .. } = *grant;
        let Some(user) = identity.user() else { return refuse("the credentials name no user") };
        let role = self.roles.of(user, identity.groups());
        let principal = Principal { user: Some(user.into()), role };
        let time = expiry.map_or(REMEMBERED, |expiry| expiry.left().min(REMEMBERED));
        self.known().put(key, (principal.clone(), Instant::now() + time));
        Ok(principal)
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

    fn turn(&self, address: IpAddr) -> &tokio::sync::Mutex<()> {
        let hash = self.keys[0].hash_one(crate::network::of_host(address));
        &self.turns[usize::try_from(hash).unwrap_or_default() % TURNS]
    }

    /// Keyed 128-bit hash: no credentials stay in memory.
    fn key(&self, value: &[u8]) -> [u64; 2] {
        [self.keys[0].hash_one(value), self.keys[1].hash_one(value)]
    }

    fn remembered(&self, key: [u64; 2]) -> Option<Principal> {
        let mut known = self.known();
        let (principal, until) = known.get(&key)?;
        (Instant::now() < *until).then(|| principal.clone())
    }

    fn known(&self) -> MutexGuard<'_, LruCache<[u64; 2], (Principal, Instant)>> {
        // Poisoning is harmless: each change replaces a whole entry.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Client of a broker without authenticators.
fn anonymous(headers: &HeaderMap, client: &Client) -> Result<Principal, Refused> {
    // A proxy on this machine speaks for clients elsewhere.
    if client.address.ip().to_canonical().is_loopback() && !is_forwarded(headers) {
        return Ok(Principal { user: None, role: Some(Role::Operator) });
    }
    Err(unauthorized("the broker has no users: configure an [[authenticator]], or ask from this machine"))
}

fn unauthorized(detail: &str) -> Refused {
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
