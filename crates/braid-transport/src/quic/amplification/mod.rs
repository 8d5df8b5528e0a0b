//! Anti-amplification limit of a server: an address that is not validated gets at most three times the bytes that came
//! from it (RFC 9000, 8.1), so that a forged address is of little use to an attacker.
//!
//! The library sends a datagram while there is budget for one byte, and so exceeds the limit by up to a datagram. Here
//! every datagram is counted, at its way to and from the socket. One above the limit is deferred: it leaves as soon as
//! more bytes have come, or the address is validated. To the library it is a datagram that is late.
//!
//! A client that got nothing of the server's first flight sends its first packet again, at its own timeout. Then the
//! flight is sent again, too, within the limit: RFC 9002 (6.2.3) permits that, and the library would wait for a timeout
//! of its own, which doubles for each packet number space. To the client it is a datagram that the network has copied.
//!
//! An address is validated by the first packet of a connection that was protected with Handshake keys
//! ([`validating`]), or by a token from Retry or an earlier connection. It is so until its last connection ends.
//! The addresses that a client moves to later have a limit of their connection ([`path_validation`]).

mod initial;
mod ledger;
mod path_validation;
mod validating;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use noq_udp::Transmit;

use super::io::Socket;
use initial::is_initial_alone;
use ledger::{Budget, Deferred, Ledger};
pub(super) use path_validation::PathValidationLimit;
pub(super) use validating::ValidatingCrypto;

/// Bit of the first byte of a packet with a long header (RFC 9000, 17.2). Until a connection is established, and so
/// until an address is validated, every datagram of a client begins with one.
const LONG_HEADER: u8 = 0x80;

/// Limit of one endpoint. Clones share it.
#[derive(Clone, Default)]
pub(super) struct AmplificationLimit(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// A std lock: it is held for a few map operations, never across a send.
    ledger: Mutex<Ledger>,
    /// Socket for datagrams that were deferred.
    socket: Mutex<Option<Arc<Socket>>>,
}

impl AmplificationLimit {
    /// Sets the socket that sends what was deferred.
    pub(super) fn set_socket(&self, socket: &Arc<Socket>) {
        *self.socket() = Some(Arc::clone(socket));
    }

    /// A connection with `address` begins. `is_validated`: by a token.
    pub(super) fn connection(&self, address: SocketAddr, is_validated: bool) -> Connection {
        let unsent = self.ledger().begin(address, is_validated);
        self.send(address, unsent);
        Connection { limit: self.clone(), address, is_validated: AtomicBool::new(is_validated) }
    }

    /// Counts a datagram that came from `address`, and sends what was deferred for want of bytes.
    pub(super) fn handle_received(&self, address: SocketAddr, datagram: &[u8]) {
        if has_long_header(datagram) {
            let unsent = self.ledger().receive(address, datagram.len(), is_initial_alone(datagram));
            self.send(address, unsent);
        }
    }

    /// Returns the part of a batch that leaves now; the rest is deferred.
    ///
    /// `validated`: address of the connection that was validated. Packets with short headers go there without a look
    /// into the ledger, and to any other that the connection moves to.
    pub(super) fn pass<'a>(
        &self,
        validated: &mut Option<SocketAddr>,
        batch: &Transmit<'a>,
    ) -> Option<Transmit<'a>> {
        let Transmit { destination, ecn, contents, segment_size, src_ip } = *batch;
        let is_short = !has_long_header(contents);
        if is_short && validated.is_some() {
            return Some(batch.clone());
        }
        let size = segment_size.unwrap_or(contents.len()).max(1);
        let mut ledger = self.ledger();
        let permitted = match ledger.reserve(destination, size, contents.len(), is_short) {
            Budget::Unlimited => {
                *validated = Some(destination);
                return Some(batch.clone());
            }
            Budget::Bytes(permitted) => permitted.min(contents.len()),
        };
        let (first, rest) = contents.split_at(permitted);
        let deferred = |datagram: &[u8]| Deferred { contents: datagram.to_vec(), ecn, src_ip };
        for datagram in first.chunks(size).filter(|datagram| has_long_header(datagram)) {
            ledger.keep(destination, || deferred(datagram));
        }
        for datagram in rest.chunks(size) {
            ledger.defer(destination, deferred(datagram));
        }
        let segment_size = segment_size.filter(|size| *size < first.len());
        (!first.is_empty()).then_some(Transmit { destination, ecn, contents: first, segment_size, src_ip })
    }

    fn socket(&self) -> MutexGuard<'_, Option<Arc<Socket>>> {
        // Poisoning is harmless: each change is one assignment.
        self.0.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Poisoning is harmless: an address that is missing may be sent nothing until more comes from it.
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends datagrams that were deferred and are counted. A socket that has no room drops them, as a network may.
    fn send(&self, to: SocketAddr, datagrams: Vec<Deferred>) {
        if datagrams.is_empty() {
            return;
        }
        let Some(socket) = self.socket().clone() else { return };
        for datagram in datagrams {
            let _ = socket.try_send(&datagram.transmit(to));
        }
    }
}

fn has_long_header(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & LONG_HEADER != 0)
}

impl fmt::Debug for AmplificationLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmplificationLimit").finish_non_exhaustive()
    }
}

/// A connection and the address of its handshake, from the first packet to the last.
pub(super) struct Connection {
    limit: AmplificationLimit,
    address: SocketAddr,
    is_validated: AtomicBool,
}

impl Connection {
    /// The client has shown that it gets what is sent to its address.
    fn validate(&self) {
        if !self.is_validated.swap(true, Ordering::Relaxed) {
            let unsent = self.limit.ledger().validate(self.address);
            self.limit.send(self.address, unsent);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.limit.ledger().end(self.address, *self.is_validated.get_mut());
    }
}

#[cfg(test)]
mod tests;
