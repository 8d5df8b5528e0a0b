//! Admission of connections: limits of each address, bans, and the detection of flapping clients.
//!
//! Pure: the time is passed in. Loopback addresses and in-memory links have no limits; a ban may mean them.

mod address;
mod bans;
mod flapping;
mod rate;
mod recent;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use braid_proto::packet::ClientId;

pub(crate) use self::address::AddressKey;
use self::address::AddressLimits;
use self::bans::BanList;
pub use self::bans::{Ban, BanError, BanTarget};
pub(crate) use self::bans::{BanFilter, FLAPPING, Subject};
use self::flapping::FlappingDetector;
pub(crate) use self::rate::{ConnectionRate, RateDecision};
use crate::config::LimitsConfig;
use crate::limit::Limit;
use crate::lock_order::{Ordered, Rank};

/// Reason why a connection is refused because of its address, or of a ban of its client or user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressRefusal {
    Banned(Arc<str>),
    Exceeds(Limit),
}

impl AddressRefusal {
    /// Limit whose counter counts it.
    pub(crate) const fn limit(&self) -> Limit {
        match self {
            Self::Banned(_) => Limit::Bans,
            Self::Exceeds(limit) => *limit,
        }
    }
}

/// Connection whose address was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// Address to be released at the end of the connection; `None` if it is not counted.
    pub(crate) key: Option<AddressKey>,
    /// The connection exceeds the rate of its address, and is to be refused with a CONNACK.
    pub(crate) is_answered: bool,
}

/// Limits of addresses, bans, and flapping detection of a broker.
///
/// Memory is bounded: a count for each address with a connection, the rates of at most 65,536 addresses, the connects
/// of at most 65,536 clients, and at most 20,000 bans.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    limits_addresses: bool,
    detects_flapping: bool,
    flapping_ban: Duration,
    /// Nothing is locked while there are no bans.
    has_bans: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    addresses: AddressLimits,
    flapping: FlappingDetector,
    bans: BanList,
}

impl AdmissionControl {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        let addresses = AddressLimits::new(limits);
        Self {
            limits_addresses: addresses.is_limited(),
            detects_flapping: limits.flapping_connects > 0,
            flapping_ban: Duration::from_secs(limits.flapping_ban_secs),
            has_bans: AtomicBool::new(false),
            state: Mutex::new(State {
                addresses,
                flapping: FlappingDetector::new(limits),
                bans: BanList::default(),
            }),
        }
    }

    /// Poison is ignored: a count that is not right is better than a listener that ends.
    fn lock(&self) -> Ordered<MutexGuard<'_, State>> {
        Ordered::acquire(Rank::Leaf, || self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a change of the bans, and notes whether there are any.
    fn change<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = run(&mut state);
        self.has_bans.store(!state.bans.is_empty(), Ordering::Relaxed);
        result
    }

    // -- Addresses ---------------------------------------------------------------------------------

    /// Checks an address that is not proved yet, without counting the connection: a host that forges the address of
    /// another must not use up its limits.
    ///
    /// # Errors
    /// A connection from this address would be refused.
    pub(crate) fn check(&self, address: Option<SocketAddr>, now: Instant) -> Result<(), AddressRefusal> {
        self.check_ban(address, now)?;
        match self.limited(address) {
            Some(key) => self.lock().addresses.check(key, now).map_err(AddressRefusal::Exceeds),
            None => Ok(()),
        }
    }

    /// Counts a connection from an address, until [`release`](Self::release).
    ///
    /// # Errors
    /// The connection is to be refused, without a handshake if there was none yet. It is not counted.
    pub(crate) fn admit(
        &self,
        address: Option<SocketAddr>,
        now: Instant,
    ) -> Result<Admitted, AddressRefusal> {
        self.check_ban(address, now)?;
        let Some(key) = self.limited(address) else { return Ok(Admitted::default()) };
        let is_answered = self.lock().addresses.admit(key, now).map_err(AddressRefusal::Exceeds)?;
        Ok(Admitted { key: Some(key), is_answered })
    }

    /// Ends a connection that was admitted.
    pub(crate) fn release(&self, key: AddressKey) {
        self.lock().addresses.release(key);
    }

    fn limited(&self, address: Option<SocketAddr>) -> Option<AddressKey> {
        address.filter(|_| self.limits_addresses).and_then(AddressKey::of)
    }

    fn check_ban(&self, address: Option<SocketAddr>, now: Instant) -> Result<(), AddressRefusal> {
        let subject = Subject { address, ..Subject::default() };
        let ban = self.find_ban(subject, BanFilter::All, now);
        ban.map_or(Ok(()), |ban| Err(AddressRefusal::Banned(ban.reason)))
    }

    // -- Clients -----------------------------------------------------------------------------------

    /// The ban of a client, as far as it is known.
    pub(crate) fn find_ban(&self, subject: Subject<'_>, which: BanFilter, now: Instant) -> Option<Ban> {
        if !self.has_bans.load(Ordering::Relaxed) {
            return None;
        }
        self.lock().bans.find(subject, which, now)
    }

    /// Counts the connect of a client that was authenticated. True if it flaps and is banned from now on.
    pub(crate) fn note_connect(
        &self,
        client_id: &ClientId,
        user: Option<&str>,
        address: Option<SocketAddr>,
        now: Instant,
    ) -> bool {
        let key = address.filter(|_| self.detects_flapping).and_then(AddressKey::of);
        let Some(key) = key else { return false };
        self.change(|state| {
            let is_flapping = state.flapping.note_connect((client_id, user, key), now);
            if is_flapping {
                let target = BanTarget::ClientAt(client_id.clone(), user.map(Box::from), key.network());
                state.bans.set_flapping(target, self.flapping_ban, now);
            }
            is_flapping
        })
    }

    // -- Bans --------------------------------------------------------------------------------------

    /// Sets a ban; `None` for one that ends with the broker.
    ///
    /// # Errors
    /// There are too many, or the reason is too long.
    pub(crate) fn ban(
        &self,
        target: BanTarget,
        duration: Option<Duration>,
        reason: &str,
        now: Instant,
    ) -> Result<(), BanError> {
        self.change(|state| state.bans.set(target, duration, reason, now))
    }

    /// Lifts bans, and sets others that end with the broker.
    ///
    /// # Errors
    /// There would be too many, or the reason is too long. Nothing has changed.
    pub(crate) fn replace(
        &self,
        lifted: Vec<BanTarget>,
        set: Vec<BanTarget>,
        reason: &str,
        now: Instant,
    ) -> Result<(), BanError> {
        self.change(|state| state.bans.replace(lifted, set, reason, now))
    }

    /// Lifts a ban. False if there is none.
    pub(crate) fn unban(&self, target: BanTarget, now: Instant) -> bool {
        self.change(|state| state.bans.lift(target, now))
    }

    /// The bans that are in force.
    pub(crate) fn bans(&self, now: Instant) -> Vec<Ban> {
        self.lock().bans.list(now)
    }

    /// Frees the memory of what makes no difference any more.
    pub(crate) fn expire(&self, now: Instant) {
        self.change(|state| {
            state.addresses.expire(now);
            state.flapping.expire(now);
            state.bans.expire(now);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn loopback_has_no_limits_and_may_be_banned() {
        let limits = LimitsConfig {
            connections_per_address: 1,
            connects_per_address_per_second: 1,
            flapping_connects: 1,
            ..LimitsConfig::default()
        };
        let (control, now) = (AdmissionControl::new(&limits), Instant::now());
        let client = ClientId::from("client");
        for address in [None, at("127.0.0.1:1"), at("[::1]:1"), at("[::ffff:127.0.0.1]:1")] {
            for _ in 0..10 {
                assert_eq!(control.admit(address, now), Ok(Admitted::default()));
                assert!(
                    control.check(address, now).is_ok() && !control.note_connect(&client, None, address, now)
                );
            }
        }
        let network = BanTarget::Addresses("127.0.0.0/8".parse().unwrap());
        control.ban(network.clone(), None, "test", now).unwrap();
        let banned = AddressRefusal::Banned("test".into());
        assert_eq!(control.admit(at("127.0.0.1:1"), now), Err(banned.clone()));
        assert_eq!(control.check(at("127.0.0.1:1"), now), Err(banned));
        assert!(control.admit(None, now).is_ok());
        assert!(control.unban(network.clone(), now) && !control.unban(network, now));
        assert!(control.admit(at("127.0.0.1:1"), now).is_ok());
    }

    #[test]
    fn a_limit_of_0_is_none() {
        let limits = LimitsConfig { flapping_connects: 0, ..LimitsConfig::default() };
        let (control, now, address) = (AdmissionControl::new(&limits), Instant::now(), at("10.0.0.1:5"));
        let client = ClientId::from("client");
        for _ in 0..1000 {
            assert_eq!(control.admit(address, now), Ok(Admitted::default()));
            assert!(!control.note_connect(&client, None, address, now));
        }
    }

    #[test]
    fn a_check_counts_nothing_and_a_release_makes_room() {
        let limits = LimitsConfig { connections_per_address: 1, ..LimitsConfig::default() };
        let (control, now, address) = (AdmissionControl::new(&limits), Instant::now(), at("10.0.0.1:5"));
        let full = AddressRefusal::Exceeds(Limit::AddressConnections);
        for _ in 0..3 {
            assert!((0..5).all(|_| control.check(address, now).is_ok()));
            let admitted = control.admit(address, now).unwrap();
            assert_eq!(control.check(at("10.0.0.1:6"), now), Err(full.clone()));
            assert_eq!(control.admit(at("10.0.0.1:6"), now), Err(full.clone()));
            assert!(control.check(at("10.0.0.2:6"), now).is_ok());
            control.release(admitted.key.unwrap());
        }
    }

    #[test]
    fn a_flapping_client_is_banned_at_its_address_for_a_time() {
        let limits = LimitsConfig { flapping_connects: 2, flapping_ban_secs: 300, ..LimitsConfig::default() };
        let (control, now) = (AdmissionControl::new(&limits), Instant::now());
        let (client, address) = (ClientId::from("client"), at("[2001:db8::5]:5"));
        let connects: Vec<_> = (0..3).map(|_| control.note_connect(&client, None, address, now)).collect();
        assert_eq!(connects, [false, false, true]);
        let is_banned = |address, secs| {
            let subject = Subject { client_id: Some(&client), user: None, address };
            let find = |which| control.find_ban(subject, which, now + Duration::from_secs(secs)).is_some();
            assert!(!find(BanFilter::ByHand), "it does not end a connection");
            find(BanFilter::All)
        };
        assert!(
            is_banned(address, 0) && is_banned(at("[2001:db8::6]:5"), 299),
            "another address of the host"
        );
        assert!(!is_banned(at("[2001:db8:0:1::5]:5"), 0) && !is_banned(address, 300));
        assert!(control.bans(now)[0].is_flapping);
        control.expire(now + Duration::from_secs(300));
        assert!(control.bans(now).is_empty() && !control.has_bans.load(Ordering::Relaxed));
    }
}
