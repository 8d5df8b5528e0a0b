//! Anti-amplification limit of a server: an address that is not validated gets at most three times the bytes that came
//! from it (RFC 9000, 8.1), so that a forged address is of little use to an attacker.
//!
//! The library sends a datagram while there is budget for one byte, and so exceeds the limit by up to a datagram. The
//! [`Socket`] of this module counts every datagram. One above the limit is deferred: it leaves as soon as more bytes
//! have come, or the address is validated. To the library it is a datagram that is late.
//!
//! A client that got nothing of the server's first flight sends its first packet again, at its own timeout. Then the
//! flight is sent again, too, within the limit: RFC 9002 (6.2.3) permits that, and the library would wait for a timeout
//! of its own, which doubles for each packet number space. To the client it is a datagram that the network has copied.
//!
//! An address is validated by the first packet of a connection that was protected with Handshake keys
//! ([`validating`]), or by a token from Retry or an earlier connection. It is so until its last connection ends.
//! Clients that move to another address are left to the library: it has to know the limit before it builds a
//! PATH_CHALLENGE.

mod initial;
mod ledger;
mod socket;
mod validating;

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use noq::{AsyncUdpSocket, UdpSender};

use ledger::{Deferred, Ledger};
use socket::Socket;
pub(super) use validating::ValidatingCrypto;

/// Limit of one endpoint. Clones share it.
#[derive(Clone, Default)]
pub(super) struct AmplificationLimit(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// A std lock: it is held for a few map operations, never across a send.
    ledger: Mutex<Ledger>,
    /// Sender for datagrams that were deferred.
    sender: Mutex<Option<Pin<Box<dyn UdpSender>>>>,
}

impl AmplificationLimit {
    /// A socket that keeps to the limit. The last one made sends what was deferred.
    pub(super) fn limited(&self, socket: Box<dyn AsyncUdpSocket>) -> Box<dyn AsyncUdpSocket> {
        *self.0.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket.create_sender());
        Box::new(Socket::new(socket, self.clone()))
    }

    /// A connection with `address` begins. `is_validated`: by a token.
    pub(super) fn connection(&self, address: SocketAddr, is_validated: bool) -> Connection {
        let unsent = self.ledger().begin(address, is_validated);
        self.send(address, unsent);
        Connection { limit: self.clone(), address, is_validated: AtomicBool::new(is_validated) }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Poisoning is harmless: an address that is missing may be sent nothing until more comes from it.
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes that came from `address`, and sends what was deferred for want of them.
    /// `asks_again`: the client has got nothing so far.
    fn received(&self, address: SocketAddr, bytes: usize, asks_again: bool) {
        let unsent = self.ledger().receive(address, bytes, asks_again);
        self.send(address, unsent);
    }

    /// Sends datagrams that were deferred and are counted. A socket that has no room drops them, as a network may.
    fn send(&self, to: SocketAddr, datagrams: Vec<Deferred>) {
        if datagrams.is_empty() {
            return;
        }
        let mut sender = self.0.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = sender.as_mut() else { return };
        let mut cx = Context::from_waker(Waker::noop());
        for datagram in datagrams {
            let _ = sender.as_mut().poll_send(&datagram.transmit(to), &mut cx);
        }
    }
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
