//! Quotas of all clients and of an address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::network::of_host;

/// Number of things that all clients may hold, and that one address may. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Quota(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    total: usize,
    per_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    /// No entry is 0.
    by_address: HashMap<IpAddr, usize>,
}

/// Part of a quota until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaPermit {
    quota: Quota,
    address: Option<IpAddr>,
    amount: usize,
}

/// Number that would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaExceeded {
    Total,
    Address,
}

impl Quota {
    pub(crate) fn new(total: usize, per_address: usize) -> Self {
        Self(Arc::new(Shared { total, per_address, taken: Mutex::default() }))
    }

    /// Takes a part for an address, or for an unknown client.
    ///
    /// # Errors
    /// The number that would be exceeded.
    pub(crate) fn take(&self, address: Option<IpAddr>, amount: usize) -> Result<QuotaPermit, QuotaExceeded> {
        let address = address.map(of_host);
        let mut taken = self.lock();
        let total = taken.total.saturating_add(amount);
        if total > self.0.total {
            return Err(QuotaExceeded::Total);
        }
        if let Some(address) = address.filter(|_| amount > 0) {
            let of_address = taken.by_address.get(&address).copied().unwrap_or_default();
            let of_address = of_address.saturating_add(amount);
            if of_address > self.0.per_address {
                return Err(QuotaExceeded::Address);
            }
            taken.by_address.insert(address, of_address);
        }
        taken.total = total;
        Ok(QuotaPermit { quota: self.clone(), address, amount })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing panics while it is held.
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut taken = self.quota.lock();
        taken.total = taken.total.saturating_sub(self.amount);
        let Some(address) = self.address else { return };
        if let Some(of_address) = taken.by_address.get_mut(&address) {
            *of_address = of_address.saturating_sub(self.amount);
            if *of_address == 0 {
                taken.by_address.remove(&address);
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
        assert_eq!(take("2001:db8:0:0:9::1", 1).err(), Some(QuotaExceeded::Address), "the same network");
        assert_eq!(take("192.0.2.1", 11).err(), Some(QuotaExceeded::Total));
        let third = take("192.0.2.1", 10).unwrap();
        assert_eq!(take("192.0.2.2", 1).err(), Some(QuotaExceeded::Total));
        assert_eq!(quota.take(None, 1).err(), Some(QuotaExceeded::Total));
        assert_eq!(take("192.0.2.2", usize::MAX).err(), Some(QuotaExceeded::Total));
        drop(first);
        assert!(take("2001:db8::1", 10).is_ok());
        let unknown = quota.take(None, 10).unwrap();
        drop((second, third, unknown));
        let taken = quota.lock();
        assert!(taken.total == 0 && taken.by_address.is_empty(), "{taken:?}");
    }
}
