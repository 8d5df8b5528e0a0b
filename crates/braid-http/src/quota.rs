//! Quotas of all clients and of each.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::network::of_host;

/// Number of things that all clients may hold, and that one may, by default one address. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Quota<K = IpAddr>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    total: usize,
    per_client: usize,
    taken: Mutex<Taken<K>>,
}

#[derive(Debug)]
struct Taken<K> {
    total: usize,
    /// No entry is 0.
    by_client: HashMap<K, usize>,
}

/// Part of a quota until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaPermit<K: Hash + Eq = IpAddr> {
    quota: Arc<Shared<K>>,
    clients: Vec<K>,
    amount: usize,
}

/// Number that would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaExceeded {
    Total,
    Client,
}

impl<K: Hash + Eq + Clone> Quota<K> {
    pub(crate) fn new(total: usize, per_client: usize) -> Self {
        let taken = Mutex::new(Taken { total: 0, by_client: HashMap::new() });
        Self(Arc::new(Shared { total, per_client, taken }))
    }

    /// Takes a part, above 0, that counts for each of these clients.
    ///
    /// # Errors
    /// The number that would be exceeded.
    pub(crate) fn take_for(&self, clients: Vec<K>, amount: usize) -> Result<QuotaPermit<K>, QuotaExceeded> {
        let mut taken = self.0.lock();
        let total = taken.total.saturating_add(amount);
        if total > self.0.total {
            return Err(QuotaExceeded::Total);
        }
        let of = |client| taken.by_client.get(client).copied().unwrap_or_default();
        if clients.iter().any(|client| of(client).saturating_add(amount) > self.0.per_client) {
            return Err(QuotaExceeded::Client);
        }
        taken.total = total;
        for client in &clients {
            *taken.by_client.entry(client.clone()).or_default() += amount;
        }
        drop(taken);
        Ok(QuotaPermit { quota: Arc::clone(&self.0), clients, amount })
    }

    /// Number of clients that hold something.
    #[cfg(test)]
    pub(crate) fn clients(&self) -> usize {
        self.0.lock().by_client.len()
    }
}

impl Quota {
    /// Takes a part for an address, or for an unknown client.
    ///
    /// # Errors
    /// The number that would be exceeded.
    pub(crate) fn take(&self, address: Option<IpAddr>, amount: usize) -> Result<QuotaPermit, QuotaExceeded> {
        self.take_for(address.map(of_host).into_iter().collect(), amount)
    }
}

impl<K> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, Taken<K>> {
        // Nothing panics while it is held.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> Drop for QuotaPermit<K> {
    fn drop(&mut self) {
        let mut taken = self.quota.lock();
        taken.total = taken.total.saturating_sub(self.amount);
        for client in &self.clients {
            if let Some(of_client) = taken.by_client.get_mut(client) {
                *of_client = of_client.saturating_sub(self.amount);
                if *of_client == 0 {
                    taken.by_client.remove(client);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_in_total_and_by_network() {
        let quota = Quota::new(30, 20);
        let take = |text: &str, amount| quota.take(Some(text.parse().unwrap()), amount);
        let first = take("2001:db8::1", 10).unwrap();
        let second = take("2001:db8::ffff:2", 10).unwrap();
        assert_eq!(take("2001:db8:0:0:9::1", 1).err(), Some(QuotaExceeded::Client), "the same network");
        assert_eq!(take("192.0.2.1", 11).err(), Some(QuotaExceeded::Total));
        let third = take("192.0.2.1", 10).unwrap();
        assert_eq!(take("192.0.2.2", 1).err(), Some(QuotaExceeded::Total));
        assert_eq!(quota.take(None, 1).err(), Some(QuotaExceeded::Total));
        assert_eq!(take("192.0.2.2", usize::MAX).err(), Some(QuotaExceeded::Total));
        drop(first);
        assert!(take("2001:db8::1", 10).is_ok());
        let unknown = quota.take(None, 10).unwrap();
        drop((second, third, unknown));
        let taken = quota.0.lock();
        assert!(taken.total == 0 && taken.by_client.is_empty(), "{taken:?}");
    }
}
