//! Store of TLS sessions of a server, which clients resume, with early data.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::server::StoresServerSessions;
use tokio::time::Instant;

/// Lifetime of a ticket [BQ-60]: it bounds the lifetime of the key of a recorded connection.
const LIFETIME: Duration = Duration::from_secs(2 * 60 * 60);

/// Tickets in memory, each valid for one connection of TLS 1.3: a replayed first flight finds its ticket gone, and its
/// early data unreadable.
pub(crate) struct Tickets {
    size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_name: HashMap<Vec<u8>, Ticket>,
    /// Oldest first.
    by_age: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

struct Ticket {
    number: u64,
    made: Instant,
    session: Vec<u8>,
}

impl Tickets {
    /// A store of at most `size` tickets; the oldest make room. With 0 no client resumes.
    pub(crate) fn new(size: usize) -> Self {
        Self { size, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is harmless: a ticket in one map only cannot be resumed, and expires.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, name: &[u8]) -> Option<Ticket> {
        let ticket = self.by_name.remove(name)?;
        self.by_age.remove(&ticket.number);
        Some(ticket)
    }

    /// Removes the oldest ticket if `is_removed` holds; true if it did.
    fn remove_oldest_if(&mut self, is_removed: impl FnOnce(&Ticket) -> bool) -> bool {
        let Some(oldest) = self.by_age.first_entry() else { return false };
        if !self.by_name.get(oldest.get()).is_none_or(is_removed) {
            return false;
        }
        self.by_name.remove(&oldest.remove());
        true
    }
}

impl Ticket {
    fn has_expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.made) >= LIFETIME
    }
}

impl StoresServerSessions for Tickets {
    fn put(&self, name: Vec<u8>, session: Vec<u8>) -> bool {
        if self.size == 0 {
            return false;
        }
        let (now, mut state) = (Instant::now(), self.lock());
        state.remove(&name);
        while state.remove_oldest_if(|oldest| oldest.has_expired(now)) {}
        while state.by_name.len() >= self.size && state.remove_oldest_if(|_| true) {}
        let number = state.next;
        state.next += 1;
        state.by_age.insert(number, name.clone());
        state.by_name.insert(name, Ticket { number, made: now, session });
        true
    }

    /// For TLS 1.2, in which a client may resume a session any number of times, and which has no early data.
    fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        let state = self.lock();
        let ticket = state.by_name.get(name).filter(|ticket| !ticket.has_expired(Instant::now()))?;
        Some(ticket.session.clone())
    }

    // [BQ-60]
    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        let ticket = self.lock().remove(name)?;
        if ticket.has_expired(Instant::now()) { None } else { Some(ticket.session) }
    }

    fn can_cache(&self) -> bool {
        self.size > 0
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").field("size", &self.size).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn put(tickets: &Tickets, name: u8) -> bool {
        tickets.put(vec![name], vec![name, name])
    }

    // [BQ-60]
    #[tokio::test(start_paused = true)]
    async fn ticket_is_valid_once() {
        let tickets = Tickets::new(10);
        assert!(put(&tickets, 1));
        assert_eq!(tickets.take(&[1]), Some(vec![1, 1]));
        assert_eq!(tickets.take(&[1]), None);
    }

    // [BQ-60]
    #[tokio::test(start_paused = true)]
    async fn ticket_is_valid_for_two_hours() {
        let tickets = Tickets::new(10);
        for name in [1, 2] {
            put(&tickets, name);
        }
        advance(LIFETIME - Duration::from_millis(1)).await;
        assert!(tickets.take(&[1]).is_some());
        advance(Duration::from_millis(1)).await;
        assert_eq!(tickets.take(&[2]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn expired_tickets_are_removed_and_then_the_oldest() {
        let tickets = Tickets::new(3);
        for name in 1..=4 {
            put(&tickets, name);
        }
        assert_eq!(tickets.take(&[1]), None, "the oldest made room");
        assert!(tickets.take(&[2]).is_some());
        advance(LIFETIME).await;
        put(&tickets, 5);
        let state = tickets.lock();
        assert_eq!((state.by_name.len(), state.by_age.len()), (1, 1), "all but the last had expired");
    }

    #[tokio::test(start_paused = true)]
    async fn session_of_tls_1_2_stays_until_it_expires() {
        let tickets = Tickets::new(10);
        put(&tickets, 1);
        assert_eq!([tickets.get(&[1]), tickets.get(&[1])], [Some(vec![1, 1]), Some(vec![1, 1])]);
        assert_eq!(tickets.get(&[2]), None);
        advance(LIFETIME).await;
        assert_eq!(tickets.get(&[1]), None);
    }

    #[test]
    fn store_without_room_refuses_tickets() {
        let tickets = Tickets::new(0);
        assert!(!tickets.can_cache());
        assert!(!put(&tickets, 1));
    }
}
