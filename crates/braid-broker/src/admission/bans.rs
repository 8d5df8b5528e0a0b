//! Bans of clients, users and addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::packet::ClientId;
use hashbrown::{HashMap, HashSet};
use ipnet::{IpNet, Ipv4Net};
use thiserror::Error;

/// Bans that were set by [`Handle::ban`](crate::Handle::ban) at a time.
const MAX_BANS: usize = 10_000;

/// Bans for flapping at a time. The one that ends first makes room for another.
const MAX_FLAPPING_BANS: usize = 10_000;

/// Bytes of the texts of the bans for flapping. A Client Identifier has up to 64 KiB.
const MAX_FLAPPING_BYTES: usize = 4 * 1024 * 1024;

/// Longest reason of a ban, bytes.
const MAX_REASON: usize = 1024;

/// Reason of a ban for flapping.
pub(crate) const FLAPPING: &str = "the client connected too often";

/// Target of a ban.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BanTarget {
    /// Client Identifier, whatever user or address has it.
    Client(ClientId),
    /// Name of a user, as it was authenticated. Clients without a user name are never meant.
    User(Box<str>),
    /// Addresses of a network. An IPv4 network in its IPv6 form means the IPv4 network.
    Addresses(IpNet),
    /// Client Identifier of exactly this user, or of none, at the addresses of a network. Bans for flapping have this
    /// form.
    ClientAt(ClientId, Option<Box<str>>, IpNet),
}

impl BanTarget {
    /// The form in which a target is stored and listed: a network without host bits, IPv4 not as IPv6. Two targets mean
    /// the same clients if these forms are equal.
    #[must_use]
    pub fn normalize(self) -> Self {
        match self {
            Self::Addresses(network) => Self::Addresses(normalize(network)),
            Self::ClientAt(client_id, user, network) => Self::ClientAt(client_id, user, normalize(network)),
            Self::Client(_) | Self::User(_) => self,
        }
    }

    fn network(&self) -> Option<IpNet> {
        match self {
            Self::Addresses(network) | Self::ClientAt(_, _, network) => Some(*network),
            Self::Client(_) | Self::User(_) => None,
        }
    }

    fn text_len(&self) -> usize {
        match self {
            Self::Client(client_id) => client_id.as_str().len(),
            Self::ClientAt(client_id, user, _) => {
                client_id.as_str().len() + user.as_ref().map_or(0, |user| user.len())
            }
            Self::User(user) => user.len(),
            Self::Addresses(_) => 0,
        }
    }
}

fn normalize(network: IpNet) -> IpNet {
    let network = network.trunc();
    let IpAddr::V4(address) = network.addr().to_canonical() else { return network };
    let prefix = match network {
        IpNet::V4(network) => Some(network.prefix_len()),
        IpNet::V6(network) => network.prefix_len().checked_sub(96),
    };
    prefix.and_then(|prefix| Ipv4Net::new(address, prefix).ok()).map_or(network, IpNet::V4)
}

/// Ban that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Client, user or addresses.
    pub target: BanTarget,
    /// Time until it ends; `None` if it ends with the broker.
    pub remaining: Option<Duration>,
    /// Reason, for the record of refusals. Clients do not see it.
    pub reason: Arc<str>,
    /// The broker set it by itself because the client flapped.
    pub is_flapping: bool,
}

/// Reason why a ban was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BanError {
    /// As many bans are in force as the broker keeps.
    #[error("{MAX_BANS} bans are in force; lift one, or ban a range of addresses")]
    TooMany,
    /// The reason is too long.
    #[error("the reason of a ban must not be longer than {MAX_REASON} bytes")]
    ReasonTooLong,
}

/// Client to which a ban may apply, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subject<'a> {
    pub(crate) client_id: Option<&'a ClientId>,
    pub(crate) user: Option<&'a str>,
    pub(crate) address: Option<SocketAddr>,
}

/// Bans that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BanFilter {
    /// All of them: those that keep a client from connecting.
    All,
    /// Those that were set by hand, which end the connection of a client too.
    ByHand,
}

/// All bans, those that have ended included until [`expire`](BanList::expire).
#[derive(Debug, Default)]
pub(super) struct BanList {
    bans: HashMap<BanTarget, Entry>,
    /// Number of networks of each version and prefix length.
    prefixes: BTreeMap<(bool, u8), usize>,
    /// Bans for flapping, the one that ends first in front. One that never ends is the last.
    flapping: BTreeMap<FlappingKey, BanTarget>,
    /// Number of bans for flapping that were set.
    last_flapping: u64,
    /// Bytes of the targets of the bans for flapping.
    flapping_bytes: usize,
}

/// Order of a ban for flapping: its end, and a number that no other has.
type FlappingKey = (bool, Option<Instant>, u64);

#[derive(Debug)]
struct Entry {
    until: Option<Instant>,
    reason: Arc<str>,
    /// `None` if it was set by hand.
    flapping: Option<FlappingKey>,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    fn is_by_hand(&self) -> bool {
        self.flapping.is_none()
    }

    fn ban(&self, target: &BanTarget, now: Instant) -> Ban {
        Ban {
            target: target.clone(),
            remaining: self.until.map(|until| until.saturating_duration_since(now)),
            reason: self.reason.clone(),
            is_flapping: self.flapping.is_some(),
        }
    }
}

impl BanList {
    /// Tests whether there is nothing to look for.
    pub(super) fn is_empty(&self) -> bool {
        self.bans.is_empty()
    }

    /// Sets a ban, instead of the one of the same target.
    ///
    /// # Errors
    /// There are too many, or the reason is too long. Nothing has changed.
    pub(super) fn set(
        &mut self,
        target: BanTarget,
        duration: Option<Duration>,
        reason: &str,
        now: Instant,
    ) -> Result<(), BanError> {
        if reason.len() > MAX_REASON {
            return Err(BanError::ReasonTooLong);
        }
        let target = target.normalize();
        if self.set_by_hand() >= MAX_BANS {
            self.expire(now);
        }
        let replaces = self.bans.get(&target).is_some_and(Entry::is_by_hand);
        if !replaces && self.set_by_hand() >= MAX_BANS {
            return Err(BanError::TooMany);
        }
        self.insert(target, Entry { until: until(duration, now), reason: reason.into(), flapping: None });
        Ok(())
    }

    /// Lifts bans, and sets others that never end, instead of those of the same targets.
    ///
    /// # Errors
    /// There would be too many, or the reason is too long. Nothing has changed.
    pub(super) fn replace(
        &mut self,
        lifted: Vec<BanTarget>,
        set: Vec<BanTarget>,
        reason: &str,
        now: Instant,
    ) -> Result<(), BanError> {
        if reason.len() > MAX_REASON {
            return Err(BanError::ReasonTooLong);
        }
        self.expire(now);
        let set: HashSet<_> = set.into_iter().map(BanTarget::normalize).collect();
        let lifted: HashSet<_> = lifted.into_iter().map(BanTarget::normalize).collect();
        let is_by_hand = |target: &&BanTarget| self.bans.get(*target).is_some_and(Entry::is_by_hand);
        let gone = lifted.union(&set).filter(is_by_hand).count();
        if self.set_by_hand() - gone + set.len() > MAX_BANS {
            return Err(BanError::TooMany);
        }
        lifted.iter().for_each(|target| _ = self.remove(target));
        let reason: Arc<str> = reason.into();
        for target in set {
            self.insert(target, Entry { until: None, reason: reason.clone(), flapping: None });
        }
        Ok(())
    }

    /// Bans a client at an address for flapping. A ban of the same target that was set by hand remains.
    pub(super) fn set_flapping(&mut self, target: BanTarget, duration: Duration, now: Instant) {
        let target = target.normalize();
        if self.bans.get(&target).is_some_and(|entry| entry.is_by_hand() && !entry.is_over(now)) {
            return;
        }
        let is_full = |list: &Self| {
            list.flapping.len() >= MAX_FLAPPING_BANS
                || list.flapping_bytes + target.text_len() > MAX_FLAPPING_BYTES
        };
        if is_full(self) {
            self.expire(now);
        }
        while is_full(self)
            && let Some((_, first)) = self.flapping.pop_first()
        {
            self.remove(&first);
        }
        let until = until(Some(duration), now);
        self.last_flapping += 1;
        let flapping = Some((until.is_none(), until, self.last_flapping));
        self.insert(target, Entry { until, reason: FLAPPING.into(), flapping });
    }

    /// Lifts the ban of exactly this target. False if there is none.
    pub(super) fn lift(&mut self, target: BanTarget, now: Instant) -> bool {
        self.remove(&target.normalize()).is_some_and(|entry| !entry.is_over(now))
    }

    /// The ban of a client: of its Client Identifier, else of its user, else of its address.
    pub(super) fn find(&self, subject: Subject<'_>, which: BanFilter, now: Instant) -> Option<Ban> {
        let is_meant =
            |entry: &&Entry| !entry.is_over(now) && (which == BanFilter::All || entry.is_by_hand());
        let lookup = |target: BanTarget| Some(self.bans.get(&target).filter(is_meant)?.ban(&target, now));
        let Subject { client_id, user, address } = subject;
        let client = || client_id.and_then(|client_id| lookup(BanTarget::Client(client_id.clone())));
        let banned_user = || user.and_then(|user| lookup(BanTarget::User(user.into())));
        let ip = address.map(|address| address.ip().to_canonical());
        let network = |network: IpNet| {
            let at = |id: &ClientId| lookup(BanTarget::ClientAt(id.clone(), user.map(Box::from), network));
            lookup(BanTarget::Addresses(network)).or_else(|| client_id.and_then(at))
        };
        let networks = || ip.and_then(|ip| self.networks(ip).find_map(network));
        client().or_else(banned_user).or_else(networks)
    }

    /// The networks with an address that may be banned, by the prefix lengths of those that are.
    fn networks(&self, ip: IpAddr) -> impl Iterator<Item = IpNet> {
        let lengths = self.prefixes.range((ip.is_ipv6(), 0)..=(ip.is_ipv6(), u8::MAX));
        lengths
            .filter_map(move |((_, length), _)| IpNet::new(ip, *length).ok())
            .map(|network| network.trunc())
    }

    /// The bans that are in force.
    pub(super) fn list(&self, now: Instant) -> Vec<Ban> {
        let in_force = self.bans.iter().filter(|(_, entry)| !entry.is_over(now));
        in_force.map(|(target, entry)| entry.ban(target, now)).collect()
    }

    /// Removes the bans that have ended.
    pub(super) fn expire(&mut self, now: Instant) {
        let over = self.bans.iter().filter(|(_, entry)| entry.is_over(now));
        let over: Vec<_> = over.map(|(target, _)| target.clone()).collect();
        for target in over {
            self.remove(&target);
        }
    }

    fn set_by_hand(&self) -> usize {
        self.bans.len() - self.flapping.len()
    }

    fn insert(&mut self, target: BanTarget, entry: Entry) {
        self.remove(&target);
        if let Some(network) = target.network() {
            *self.prefixes.entry(prefix(network)).or_insert(0) += 1;
        }
        if let Some(key) = entry.flapping {
            self.flapping.insert(key, target.clone());
            self.flapping_bytes += target.text_len();
        }
        self.bans.insert(target, entry);
    }

    fn remove(&mut self, target: &BanTarget) -> Option<Entry> {
        let entry = self.bans.remove(target)?;
        if let Some(network) = target.network() {
            let count = self.prefixes.get(&prefix(network)).copied().unwrap_or(0);
            if count > 1 {
                self.prefixes.insert(prefix(network), count - 1);
            } else {
                self.prefixes.remove(&prefix(network));
            }
        }
        if let Some(key) = &entry.flapping {
            self.flapping.remove(key);
            self.flapping_bytes -= target.text_len();
        }
        Some(entry)
    }
}

fn prefix(network: IpNet) -> (bool, u8) {
    (matches!(network, IpNet::V6(_)), network.prefix_len())
}

/// End of a ban; one that cannot be reckoned with never comes.
fn until(duration: Option<Duration>, now: Instant) -> Option<Instant> {
    duration.and_then(|duration| now.checked_add(duration))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn address(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 1883)
    }

    fn is_banned(list: &BanList, client: &str, user: Option<&str>, ip: &str, now: Instant) -> bool {
        let client_id = ClientId::from(client);
        let subject = Subject { client_id: Some(&client_id), user, address: Some(address(ip)) };
        list.find(subject, BanFilter::All, now).is_some()
    }

    /// Client Identifier, user, address, and whether the client is banned.
    type Case = (&'static str, Option<&'static str>, &'static str, bool);

    #[test]
    fn a_target_means_exactly_its_clients() {
        let client = ClientId::from("a");
        let cases: [(BanTarget, &[Case]); 9] = [
            (
                BanTarget::Client(client.clone()),
                &[
                    ("a", None, "10.0.0.1", true),
                    ("A", None, "10.0.0.1", false),
                    ("aa", Some("a"), "::1", false),
                ],
            ),
            (
                BanTarget::User("eve".into()),
                &[
                    ("a", Some("eve"), "10.0.0.1", true),
                    ("eve", None, "::2", false),
                    ("a", Some("Eve"), "::2", false),
                ],
            ),
            (
                BanTarget::Addresses(net("10.1.2.3/16")),
                &[
                    ("a", None, "10.1.255.255", true),
                    ("a", None, "10.2.0.0", false),
                    ("a", None, "::ffff:10.1.0.1", true),
                    ("a", None, "::a01:1", false),
                ],
            ),
            (
                BanTarget::Addresses(net("::ffff:10.0.0.0/104")),
                &[("a", None, "10.9.9.9", true), ("a", None, "11.0.0.0", false)],
            ),
            (
                BanTarget::Addresses(net("2001:db8::/32")),
                &[
                    ("a", None, "2001:db8:1::1", true),
                    ("a", None, "2001:db9::1", false),
                    ("a", None, "1.2.3.4", false),
                ],
            ),
            (
                BanTarget::Addresses(net("0.0.0.0/0")),
                &[
                    ("a", None, "1.2.3.4", true),
                    ("a", None, "127.0.0.1", true),
                    ("a", None, "2001:db8::1", false),
                ],
            ),
            (BanTarget::Addresses(net("::/0")), &[("a", None, "::1", true), ("a", None, "1.2.3.4", false)]),
            (
                BanTarget::ClientAt(client.clone(), None, net("10.0.0.1/32")),
                &[
                    ("a", None, "10.0.0.1", true),
                    ("a", Some("eve"), "10.0.0.1", false),
                    ("a", None, "10.0.0.2", false),
                    ("b", None, "10.0.0.1", false),
                ],
            ),
            (
                BanTarget::ClientAt(client, Some("eve".into()), net("10.0.0.1/32")),
                &[
                    ("a", Some("eve"), "10.0.0.1", true),
                    ("a", Some("v"), "10.0.0.1", false),
                    ("a", None, "10.0.0.1", false),
                ],
            ),
        ];
        let now = Instant::now();
        for (target, clients) in cases {
            let mut list = BanList::default();
            list.set(target.clone(), None, "reason", now).unwrap();
            for (client, user, ip, expected) in clients {
                assert_eq!(is_banned(&list, client, *user, ip, now), *expected, "{target:?}: {client} {ip}");
            }
            let unknown = list.find(Subject::default(), BanFilter::All, now);
            assert!(unknown.is_none(), "nothing is known of it");
            assert!(list.lift(target, now) && list.is_empty() && list.prefixes.is_empty());
        }
    }

    /// Against a list that is searched with the network's own test.
    #[test]
    fn networks_are_found_as_by_search() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut list, start) = (BanList::default(), Instant::now());
        let mut model: Vec<(IpNet, Option<Instant>)> = Vec::new();
        let mut found = 0;
        for step in 0..5_000 {
            let now = start + Duration::from_secs(step);
            let ip = |rng: &mut fastrand::Rng| -> IpAddr {
                if rng.bool() {
                    [10, 0, rng.u8(..4), rng.u8(..)].into()
                } else {
                    [0x2001, 0xdb8, rng.u16(..4), 0, 0, 0, 0, rng.u16(..4)].into()
                }
            };
            let length = |rng: &mut fastrand::Rng, ip: IpAddr| {
                if ip.is_ipv4() { rng.u8(22..=32) } else { rng.u8(46..=128) }
            };
            let some = ip(&mut rng);
            let network = IpNet::new(some, length(&mut rng, some)).unwrap().trunc();
            match rng.u8(..4) {
                0 => {
                    let duration = rng.bool().then(|| Duration::from_secs(rng.u64(..100)));
                    list.set(BanTarget::Addresses(network), duration, "", now).unwrap();
                    model.retain(|(other, _)| *other != network);
                    model.push((network, duration.map(|duration| now + duration)));
                }
                1 => {
                    let target =
                        model.get(rng.usize(..=model.len())).map_or(network, |(network, _)| *network);
                    let is_there = model
                        .iter()
                        .any(|(other, until)| *other == target && until.is_none_or(|until| until > now));
                    assert_eq!(list.lift(BanTarget::Addresses(target), now), is_there);
                    model.retain(|(other, _)| *other != target);
                }
                2 => list.expire(now),
                _ => {
                    let address = ip(&mut rng);
                    let expected = model.iter().any(|(network, until)| {
                        network.contains(&address) && until.is_none_or(|until| until > now)
                    });
                    let subject =
                        Subject { address: Some(SocketAddr::new(address, 1)), ..Subject::default() };
                    let ban = list.find(subject, BanFilter::All, now);
                    assert_eq!(ban.is_some(), expected, "{address}");
                    found += usize::from(expected);
                }
            }
            if model.len() > 20 {
                let (network, _) = model.swap_remove(0);
                list.lift(BanTarget::Addresses(network), now);
            }
        }
        assert!(found > 100);
    }

    #[test]
    fn a_ban_ends_and_one_set_again_replaces_it() {
        let (mut list, now) = (BanList::default(), Instant::now());
        let target = || BanTarget::User("eve".into());
        let secs = Duration::from_secs;
        let is_banned = |list: &BanList, after| is_banned(list, "a", Some("eve"), "::2", now + secs(after));
        list.set(target(), Some(secs(10)), "one", now).unwrap();
        assert!(is_banned(&list, 9) && !is_banned(&list, 10) && list.list(now + secs(10)).is_empty());
        list.set(target(), Some(secs(5)), "two", now).unwrap();
        let expected =
            Ban { target: target(), remaining: Some(secs(4)), reason: "two".into(), is_flapping: false };
        assert_eq!(list.list(now + secs(1)), [expected]);
        assert!(!list.lift(target(), now + secs(5)) && list.is_empty());
        list.set(target(), Some(Duration::MAX), "for ever", now).unwrap();
        assert!(is_banned(&list, 1_000_000) && list.list(now)[0].remaining.is_none());
    }

    #[test]
    fn bans_and_their_texts_are_bounded() {
        let (mut list, now) = (BanList::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        let target = |number: usize| BanTarget::User(number.to_string().into());
        let minute = Some(Duration::from_secs(60));
        for number in 0..MAX_BANS {
            list.set(target(number), minute, "", now).unwrap();
        }
        assert_eq!(list.set(target(MAX_BANS), minute, "", now), Err(BanError::TooMany));
        assert_eq!(list.set(target(0), Some(Duration::from_secs(90)), "again", now), Ok(()));
        let long = "x".repeat(MAX_REASON + 1);
        assert_eq!(list.set(target(0), None, &long, now), Err(BanError::ReasonTooLong));
        // Bans for flapping have their own bound, and none is refused.
        let flapping = |text: &str| BanTarget::ClientAt(ClientId::from(text), None, net("10.0.0.1/32"));
        let ban = |list: &mut BanList, text: &str, second| {
            list.set_flapping(flapping(text), Duration::from_secs(300), at(second));
        };
        ban(&mut list, "first", 0);
        (1..MAX_FLAPPING_BANS).for_each(|number| ban(&mut list, &number.to_string(), 1));
        assert!(is_banned(&list, "first", None, "10.0.0.1", at(2)));
        ban(&mut list, "one more", 2);
        assert!(!is_banned(&list, "first", None, "10.0.0.1", at(2)), "the one that ends first makes room");
        assert!(is_banned(&list, "one more", None, "10.0.0.1", at(2)));
        assert_eq!((list.flapping.len(), list.set_by_hand()), (MAX_FLAPPING_BANS, MAX_BANS));
        for number in 0..100 {
            ban(&mut list, &format!("{number}{}", "x".repeat(60_000)), 3 + number);
            assert!(list.flapping_bytes <= MAX_FLAPPING_BYTES);
        }
        assert!(list.flapping.len() > 50);
        // Bans that have ended make room.
        assert_eq!(list.set(target(MAX_BANS), minute, "", at(61)), Ok(()));
        list.expire(at(10_000));
        assert_eq!((list.is_empty(), list.flapping.len(), list.flapping_bytes), (true, 0, 0));
    }

    /// One that is set again ends later.
    #[test]
    fn the_ban_for_flapping_that_ends_first_makes_room() {
        let (mut list, now) = (BanList::default(), Instant::now());
        let target = |number: u64| {
            BanTarget::ClientAt(ClientId::from(format!("{number}").as_str()), None, net("10.0.0.1/32"))
        };
        let secs = |number: u64| Duration::from_secs(if number == 0 { u64::MAX } else { 100_000 - number });
        let most = MAX_FLAPPING_BANS as u64;
        for number in 0..most {
            list.set_flapping(target(number), secs(number), now);
        }
        list.set_flapping(target(most - 1), secs(1), now);
        for number in most..most + 3 {
            list.set_flapping(target(number), secs(1), now);
        }
        let is_banned = |number: u64| list.bans.contains_key(&target(number));
        let removed: Vec<_> = (0..most + 3).filter(|number| !is_banned(*number)).collect();
        assert_eq!(removed, [most - 4, most - 3, most - 2]);
        assert_eq!((list.flapping.len(), list.bans.len()), (MAX_FLAPPING_BANS, MAX_FLAPPING_BANS));
    }

    #[test]
    fn a_ban_for_flapping_does_not_shorten_one_that_was_set() {
        let (mut list, now) = (BanList::default(), Instant::now());
        let target = || BanTarget::ClientAt(ClientId::from("a"), None, net("10.0.0.1/32"));
        list.set(target(), None, "for ever", now).unwrap();
        list.set_flapping(target(), Duration::from_secs(1), now);
        assert_eq!((list.list(now).len(), list.list(now)[0].remaining), (1, None));
        list.lift(target(), now);
        list.set_flapping(target(), Duration::from_secs(1), now);
        assert!(list.list(now)[0].is_flapping);
        list.set(target(), None, "for ever", now).unwrap();
        assert_eq!((list.list(now)[0].is_flapping, list.flapping.len(), list.flapping_bytes), (false, 0, 0));
    }
}
