//! Open connections: limits of all and of an address, at which idle ones give way.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counters::{FrontCounters, FrontRefusal};
use crate::limits::Limits;
use crate::network::of_host;

/// Connections that are looked at for an idle one, the oldest first.
const LOOKED_AT: usize = 4096;

/// Open connections.
#[derive(Clone, Debug)]
pub(super) struct ConnectionCount {
    total: usize,
    per_address: usize,
    shared: Arc<Shared>,
    counters: FrontCounters,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Number of the next connection.
    next: u64,
    all: BTreeMap<u64, (IpAddr, Arc<Activity>)>,
    /// No entry is empty.
    by_address: HashMap<IpAddr, BTreeMap<u64, Arc<Activity>>>,
}

/// Use of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    /// Requests whose responses are not complete.
    requests: AtomicUsize,
    /// Time of the last byte, in ms since `began`.
    moved_ms: AtomicU64,
    /// Signalled when the connection has given way to another one.
    evicted: Notify,
}

/// Request in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Activity>);

/// Permission for one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit(PermitRef);

/// Permission of a connection that its routes may give back.
#[derive(Clone, Debug)]
pub(crate) struct PermitRef {
    number: u64,
    activity: Arc<Activity>,
    shared: Arc<Shared>,
}

impl ConnectionCount {
    pub(super) fn new(limits: &Limits, counters: FrontCounters) -> Self {
        let (total, per_address) = (limits.connections, limits.connections_per_address);
        let shared = Arc::new(Shared { began: Instant::now(), open: Mutex::default() });
        Self { total, per_address, shared, counters }
    }

    /// Counts another connection. At a limit the idle connection whose last byte was the longest ago is closed for it:
    /// one of the same address, or of any. `None` if none is idle.
    pub(super) fn admit(&self, address: IpAddr) -> Option<Permit> {
        let address = of_host(address);
        let mut open = lock(&self.shared.open);
        let of_address = open.by_address.get(&address);
        let (refusal, idle) = if of_address.is_some_and(|some| some.len() >= self.per_address) {
            let idle = of_address.into_iter().flatten().take(LOOKED_AT);
            (FrontRefusal::ConnectionsPerAddress, longest_idle(idle))
        } else if open.all.len() >= self.total {
            let idle = open.all.iter().map(|(number, (_, activity))| (number, activity)).take(LOOKED_AT);
            (FrontRefusal::Connections, longest_idle(idle))
        } else {
            return Some(self.add(&mut open, address));
        };
        let Some((number, activity)) = idle else {
            self.counters.count(refusal);
            return None;
        };
        self.counters.count(FrontRefusal::IdleConnections);
        open.remove(number);
        activity.evicted.notify_one();
        Some(self.add(&mut open, address))
    }

    fn add(&self, open: &mut Open, address: IpAddr) -> Permit {
        let began = self.shared.began;
        let activity = Arc::new(Activity {
            began,
            requests: AtomicUsize::new(0),
            moved_ms: AtomicU64::new(0),
            evicted: Notify::new(),
        });
        activity.moved(Instant::now());
        let number = open.next;
        open.next += 1;
        open.all.insert(number, (address, Arc::clone(&activity)));
        open.by_address.entry(address).or_default().insert(number, Arc::clone(&activity));
        Permit(PermitRef { number, activity, shared: Arc::clone(&self.shared) })
    }
}

/// Connection without a request in flight whose last byte was the longest ago.
fn longest_idle<'a>(
    connections: impl Iterator<Item = (&'a u64, &'a Arc<Activity>)>,
) -> Option<(u64, Arc<Activity>)> {
    let idle = connections.filter(|(_, activity)| activity.requests.load(Ordering::Relaxed) == 0);
    let longest = idle.min_by_key(|(_, activity)| activity.moved_ms.load(Ordering::Relaxed));
    longest.map(|(number, activity)| (*number, Arc::clone(activity)))
}

impl Open {
    /// Removes a connection, unless it was removed before.
    fn remove(&mut self, number: u64) {
        let Some((address, _)) = self.all.remove(&number) else { return };
        if let Some(of_address) = self.by_address.get_mut(&address) {
            of_address.remove(&number);
            if of_address.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
}

impl Activity {
    /// Notes a byte in either direction.
    pub(super) fn moved(&self, now: Instant) {
        let since = now.saturating_duration_since(self.began).as_millis();
        self.moved_ms.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Notes a request.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.requests.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Resolves when the connection has given way to another one.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl InFlight {
    /// Notes that the connection has another protocol, and never gives way any more.
    pub(super) fn keep(&self) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Permit {
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.0.activity
    }

    pub(super) fn reference(&self) -> PermitRef {
        self.0.clone()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl PermitRef {
    /// Counts the connection no longer: others limit it from now on.
    pub(crate) fn give_back(&self) {
        lock(&self.shared.open).remove(self.number);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    // Nothing panics while it is held.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn count(total: usize, per_address: usize) -> ConnectionCount {
        let limits = Limits { connections: total, connections_per_address: per_address, ..Limits::default() };
        ConnectionCount::new(&limits, FrontCounters::default())
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_counted_in_total_and_by_network() {
        let count = count(3, 2);
        // A request is in flight on each.
        let admit =
            |text: &str| count.admit(text.parse().unwrap()).map(|permit| (permit.activity().begin(), permit));
        let first = admit("2001:db8::1").unwrap();
        let second = admit("2001:db8::ffff:2").unwrap();
        assert!(admit("2001:db8:0:0:9::1").is_none(), "the same network");
        let third = admit("192.0.2.1").unwrap();
        assert!(admit("192.0.2.2").is_none(), "the total");
        let counted: Vec<_> = count.counters.values().take(2).collect();
        assert_eq!(counted, [("connections", 1), ("connections_per_address", 1)]);
        drop(first);
        let again = admit("2001:db8::1").unwrap();
        second.1.reference().give_back();
        assert!(admit("2001:db8::1").is_some(), "one was given back");
        drop((again, second, third));
        let open = lock(&count.shared.open);
        assert!(open.by_address.is_empty() && open.all.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_gives_way() {
        let count = count(4, 3);
        let admit = |text: &str| count.admit(text.parse().unwrap());
        let mut permits = Vec::new();
        for address in ["192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.2"] {
            permits.push(admit(address).unwrap());
            advance(Duration::from_millis(10)).await;
        }
        permits[1].activity().moved(Instant::now());
        let is_evicted = |permit: &Permit| {
            let activity = Arc::clone(permit.activity());
            async move { tokio::time::timeout(Duration::from_millis(1), activity.evicted()).await.is_ok() }
        };
        // One of the same address at its limit, although the total is reached too.
        let busy = permits[2].activity().begin();
        let fifth = admit("192.0.2.2").unwrap();
        let mut evicted = Vec::new();
        for permit in &permits {
            evicted.push(is_evicted(permit).await);
        }
        assert_eq!(evicted, [false, false, false, true], "1 has moved, 2 is busy");
        // One of any address at the total.
        let sixth = admit("192.0.2.3").unwrap();
        assert!(is_evicted(&permits[0]).await);
        permits[1].activity().begin().keep();
        let requests = [&fifth, &sixth].map(|permit| permit.activity().begin());
        assert!(admit("192.0.2.4").is_none(), "all are busy");
        drop(requests);
        drop(busy);
        assert!(admit("192.0.2.4").is_some());
        let counted = count.counters.values().filter(|(_, count)| *count > 0);
        assert_eq!(counted.collect::<Vec<_>>(), [("connections", 1), ("idle_connections", 3)]);
    }
}
