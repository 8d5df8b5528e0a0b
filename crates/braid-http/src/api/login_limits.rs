//! Limits of wrong credentials: for each user at an address, and for each address.
//!
//! A limit for each address alone would let one user lock out all others behind a proxy. One for each user alone would
//! let any client lock a user out.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use lru::LruCache;

use super::extract::Refused;
use super::limit::RequestRate;
use crate::network::of_host;

/// Wrong credentials of one user at one address in [`PER`]; then: 429.
const PER_USER: u32 = 10;

/// Wrong credentials of all users at one address in [`PER`]; then: 429.
const PER_ADDRESS: u32 = 100;

/// See [`PER_USER`].
const PER: Duration = Duration::from_secs(60);

/// Time after a login for which others at the address do not limit the user.
const LATELY: Duration = Duration::from_secs(3600);

/// Time for which wrong credentials are not verified again. A program that still sends a former password does not use
/// up the logins of its user.
const KNOWN_WRONG: Duration = Duration::from_secs(30);

/// Logins that are noted; the one that was seen longest ago is forgotten first.
const LOGINS: NonZeroUsize = NonZeroUsize::new(4096).expect("positive");

/// Answer to wrong credentials.
pub(super) const NOT_ACCEPTED: &str = "the credentials are not accepted";

/// Limits of wrong credentials.
pub(super) struct LoginLimits {
    users: RequestRate<u64>,
    addresses: RequestRate<IpAddr>,
    /// Time of the last login of a user at an address, and of exactly these credentials.
    logins: Mutex<LruCache<u64, Instant>>,
    /// Time at which credentials were wrong.
    wrong: Mutex<LruCache<u64, Instant>>,
    /// Key of the hashes, so that no credentials stay in memory.
    key: RandomState,
}

/// Credentials of a login.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) address: IpAddr,
    /// `None` for a token.
    pub(super) user: Option<&'a str>,
    /// Password or token.
    pub(super) secret: &'a [u8],
}

/// Login that was permitted and counts as wrong.
#[must_use]
pub(super) struct Counted {
    network: IpAddr,
    user: u64,
    credentials: u64,
    takes_of_user: bool,
    takes_of_address: bool,
}

impl LoginLimits {
    pub(super) fn new() -> Self {
        Self {
            users: RequestRate::slow(PER_USER, PER),
            addresses: RequestRate::slow(PER_ADDRESS, PER),
            logins: Mutex::new(LruCache::new(LOGINS)),
            wrong: Mutex::new(LruCache::new(LOGINS)),
            key: RandomState::new(),
        }
    }

    /// Counts a login as wrong, before it is verified: logins that come at once would all pass a check.
    ///
    /// Credentials that were right at the address lately are not limited, and their user not by others.
    ///
    /// # Errors
    /// They were wrong lately, or too many were.
    pub(super) fn begin(&self, attempt: Attempt<'_>) -> Result<Counted, Refused> {
        let network = of_host(attempt.address);
        let Attempt { user, secret, .. } = attempt;
        // A token names no user before it is verified; a wrong one that comes again is a user of its own.
        let name = (user, user.is_none().then_some(secret));
        let credentials = self.key.hash_one((network, user, secret));
        if is_later(&self.wrong, credentials, KNOWN_WRONG) {
            return Err(Refused::new(StatusCode::UNAUTHORIZED, NOT_ACCEPTED));
        }
        let user = self.key.hash_one((network, name));
        let takes_of_user = !is_later(&self.logins, credentials, LATELY);
        let takes_of_address = takes_of_user && !is_later(&self.logins, user, LATELY);
        let counted = Counted { network, user, credentials, takes_of_user, takes_of_address };
        if takes_of_address {
            self.addresses.take(network).map_err(|wait| {
                refused("too many wrong passwords and tokens came from this address, of several users", wait)
            })?;
        }
        if takes_of_user && let Err(wait) = self.users.take(user) {
            if takes_of_address {
                self.addresses.give_back(&network);
            }
            return Err(refused("too many wrong passwords of this user came from this address", wait));
        }
        Ok(counted)
    }

    /// The credentials were right.
    pub(super) fn right(&self, counted: &Counted) {
        self.undecided(counted);
        let now = Instant::now();
        let mut logins = lock(&self.logins);
        logins.put(counted.user, now);
        logins.put(counted.credentials, now);
    }

    /// The credentials were not verified.
    pub(super) fn undecided(&self, counted: &Counted) {
        if counted.takes_of_user {
            self.users.give_back(&counted.user);
        }
        if counted.takes_of_address {
            self.addresses.give_back(&counted.network);
        }
    }

    /// The credentials were wrong: those that were right once are limited from now on.
    pub(super) fn wrong(&self, counted: &Counted) {
        lock(&self.logins).pop(&counted.credentials);
        lock(&self.wrong).put(counted.credentials, Instant::now());
    }

    /// Forgets which credentials were wrong: users have changed.
    pub(super) fn forget_wrong(&self) {
        lock(&self.wrong).clear();
    }
}

/// Tests whether something was noted within this time.
fn is_later(noted: &Mutex<LruCache<u64, Instant>>, hash: u64, time: Duration) -> bool {
    lock(noted).get(&hash).is_some_and(|at| at.elapsed() < time)
}

/// Poisoning is harmless: each change replaces a whole entry.
fn lock(noted: &Mutex<LruCache<u64, Instant>>) -> MutexGuard<'_, LruCache<u64, Instant>> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(cause: &str, wait: Duration) -> Refused {
    let detail = format!("{cause}: wait, and look for a program that still sends a former one");
    Refused::new(StatusCode::TOO_MANY_REQUESTS, detail).retry_after(wait)
}
