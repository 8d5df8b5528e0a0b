//! Bytes from and to each address that is not validated, and the datagrams that are deferred. Pure.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use noq_udp::{EcnCodepoint, Transmit};

use crate::transport::canonical;

/// RFC 9000, 8.1.
const FACTOR: u64 = 3;

/// Addresses without a connection that are known at most; the oldest are forgotten. Each takes some 100 bytes.
const MAX_WITHOUT_CONNECTION: usize = 16 * 1024;

/// Datagrams that are deferred for one address. The library exceeds the limit by one for each connection.
const MAX_DEFERRED: usize = 2;

/// Bytes that are deferred for all addresses.
const MAX_DEFERRED_BYTES: usize = 1 << 20;

/// Datagrams of a first flight that are kept, and bytes of those for all addresses.
const MAX_FLIGHT: usize = 3;
const MAX_FLIGHT_BYTES: usize = 4 << 20;

/// Times that a first flight is sent again: a client's timeouts in some two minutes.
const MAX_REPEATS: u32 = 8;

/// Accounts of all addresses. An address that is not known may be sent nothing but a stateless reset, which the library
/// makes smaller than the datagram it answers.
#[derive(Default)]
pub(super) struct Ledger {
    /// A std map, which resists addresses that were chosen for their hashes.
    accounts: HashMap<SocketAddr, Account>,
    /// Accounts by age, with their numbers; at most [`MAX_WITHOUT_CONNECTION`]. Those of connections are not forgotten.
    by_age: VecDeque<(SocketAddr, u64)>,
    next_number: u64,
    /// Number of connections of each validated address.
    validated: HashMap<SocketAddr, usize>,
    deferred_bytes: usize,
    flight_bytes: usize,
}

/// Account of an address that is not validated.
struct Account {
    number: u64,
    received: u64,
    sent: u64,
    connections: usize,
    deferred: VecDeque<Deferred>,
    /// First datagrams that were sent.
    flight: Vec<Deferred>,
    /// Times that they were sent again.
    repeats: u32,
}

/// A datagram that has to wait, or may be sent again.
#[derive(Clone, Debug)]
pub(super) struct Deferred {
    pub(super) contents: Vec<u8>,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) src_ip: Option<IpAddr>,
}

impl Deferred {
    pub(super) fn transmit(&self, to: SocketAddr) -> Transmit<'_> {
        Transmit {
            destination: to,
            ecn: self.ecn,
            contents: &self.contents,
            segment_size: None,
            src_ip: self.src_ip,
        }
    }
}

/// Answer of [`Ledger::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// The address is validated.
    Unlimited,
    /// Number of bytes that are permitted, and counted now.
    Bytes(usize),
}

impl Ledger {
    /// Bytes have come from `address`. Returns the datagrams that leave now, and are counted. `asks_again`: the client
    /// has got nothing so far.
    pub(super) fn receive(&mut self, address: SocketAddr, bytes: usize, asks_again: bool) -> Vec<Deferred> {
        let address = canonical(address);
        if self.validated.contains_key(&address) {
            return Vec::new();
        }
        let account = self.open(address);
        account.received = account.received.saturating_add(count(bytes));
        let mut unsent = Vec::new();
        while let Some(next) = account.deferred.front()
            && count(next.contents.len()) <= account.budget()
            && let Some(next) = account.deferred.pop_front()
        {
            account.sent += count(next.contents.len());
            unsent.push(next);
        }
        self.deferred_bytes -= bytes_of(&unsent);
        if asks_again && let Some(account) = self.accounts.get_mut(&address) {
            account.repeat(&mut unsent);
        }
        unsent
    }

    /// Keeps a datagram of the first flight: one that was sent before the client has asked again.
    pub(super) fn keep(&mut self, address: SocketAddr, datagram: impl FnOnce() -> Deferred) {
        let Some(account) = self.accounts.get_mut(&canonical(address)) else { return };
        if account.connections == 0 || account.repeats > 0 || account.flight.len() >= MAX_FLIGHT {
            return;
        }
        let datagram = datagram();
        let total = self.flight_bytes + datagram.contents.len();
        if total <= MAX_FLIGHT_BYTES {
            account.flight.push(datagram);
            self.flight_bytes = total;
        }
    }

    /// Counts whole datagrams of `size` bytes, the last one maybe smaller, as far as the limit allows. `is_short`: they
    /// begin with a short header.
    pub(super) fn reserve(
        &mut self,
        address: SocketAddr,
        size: usize,
        total: usize,
        is_short: bool,
    ) -> Budget {
        let address = canonical(address);
        if self.validated.contains_key(&address) {
            return Budget::Unlimited;
        }
        let Some(account) = self.accounts.get_mut(&address) else {
            return Budget::Bytes(if is_short { total } else { 0 });
        };
        let budget = usize::try_from(account.budget()).unwrap_or(usize::MAX);
        let permitted = if total <= budget { total } else { budget - budget % size.max(1) };
        account.sent += count(permitted);
        Budget::Bytes(permitted)
    }

    /// Keeps a datagram that the limit does not allow now. Without room it is lost.
    pub(super) fn defer(&mut self, address: SocketAddr, datagram: Deferred) {
        let total = self.deferred_bytes + datagram.contents.len();
        if let Some(account) = self.accounts.get_mut(&canonical(address))
            && account.deferred.len() < MAX_DEFERRED
            && total <= MAX_DEFERRED_BYTES
        {
            account.deferred.push_back(datagram);
            self.deferred_bytes = total;
        }
    }

    /// A connection begins. Returns the datagrams that leave now.
    pub(super) fn begin(&mut self, address: SocketAddr, is_validated: bool) -> Vec<Deferred> {
        let address = canonical(address);
        self.open(address).connections += 1;
        if is_validated { self.validate(address) } else { Vec::new() }
    }

    /// A connection has validated its address. Returns the datagrams that leave now.
    pub(super) fn validate(&mut self, address: SocketAddr) -> Vec<Deferred> {
        let address = canonical(address);
        *self.validated.entry(address).or_default() += 1;
        let Some(account) = self.accounts.remove(&address) else { return Vec::new() };
        let unsent = Vec::from(account.deferred);
        self.deferred_bytes -= bytes_of(&unsent);
        self.flight_bytes -= bytes_of(&account.flight);
        unsent
    }

    /// A connection ends. `is_validated`: [`validate`](Self::validate) was called for it.
    pub(super) fn end(&mut self, address: SocketAddr, is_validated: bool) {
        let address = canonical(address);
        if is_validated {
            if let Entry::Occupied(mut connections) = self.validated.entry(address) {
                *connections.get_mut() -= 1;
                if *connections.get() == 0 {
                    connections.remove();
                }
            }
        } else if let Some(account) = self.accounts.get_mut(&address) {
            account.connections = account.connections.saturating_sub(1);
            // The endpoint may have its last words to say.
            if account.connections == 0 {
                self.flight_bytes -= bytes_of(&account.flight.split_off(0));
                let number = account.number;
                self.remember(address, number);
            }
        }
    }

    /// The account of `address`; a new one if there is none.
    fn open(&mut self, address: SocketAddr) -> &mut Account {
        if !self.accounts.contains_key(&address) {
            self.remember(address, self.next_number);
            self.next_number += 1;
        }
        let number = self.next_number - 1;
        self.accounts.entry(address).or_insert_with(|| Account {
            number,
            received: 0,
            sent: 0,
            connections: 0,
            deferred: VecDeque::new(),
            flight: Vec::new(),
            repeats: 0,
        })
    }

    /// Makes an account the youngest one, and forgets the oldest if there are too many.
    fn remember(&mut self, address: SocketAddr, number: u64) {
        self.by_age.push_back((address, number));
        if self.by_age.len() > MAX_WITHOUT_CONNECTION
            && let Some((oldest, number)) = self.by_age.pop_front()
            && self.accounts.get(&oldest).is_some_and(|old| old.number == number && old.connections == 0)
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, address: SocketAddr) {
        if let Some(account) = self.accounts.remove(&address) {
            self.deferred_bytes -= bytes_of(&account.deferred);
            self.flight_bytes -= bytes_of(&account.flight);
        }
    }
}

impl Account {
    /// Bytes that may still be sent.
    fn budget(&self) -> u64 {
        self.received.saturating_mul(FACTOR).saturating_sub(self.sent)
    }

    /// Adds the first flight to what is sent, as far as the limit allows.
    fn repeat(&mut self, unsent: &mut Vec<Deferred>) {
        if self.flight.is_empty() || self.repeats >= MAX_REPEATS {
            return;
        }
        self.repeats += 1;
        for datagram in &self.flight {
            let bytes = count(datagram.contents.len());
            if bytes > self.received.saturating_mul(FACTOR).saturating_sub(self.sent) {
                break;
            }
            self.sent += bytes;
            unsent.push(datagram.clone());
        }
    }
}

fn bytes_of<'a>(datagrams: impl IntoIterator<Item = &'a Deferred>) -> usize {
    datagrams.into_iter().map(|datagram| datagram.contents.len()).sum()
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
