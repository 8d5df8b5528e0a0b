//! Counters of a broker since its start.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_transport::EndpointHealth;

/// Counters of a broker since its start. Relaxed: they guard no other memory.
#[derive(Debug, Default)]
pub struct Statistics {
    totals: Totals,
    connections: AtomicU64,
    clients: AtomicU64,
    spool_full: AtomicBool,
    quic_unavailable: AtomicU64,
}

macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident, $add:ident;)*) => {
        #[derive(Debug, Default)]
        struct Totals { $($name: AtomicU64,)* }

        impl Statistics {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> u64 {
                    self.totals.$name.load(Ordering::Relaxed)
                }

                pub(crate) fn $add(&self, count: u64) {
                    if count > 0 {
                        self.totals.$name.fetch_add(count, Ordering::Relaxed);
                    }
                }
            )*
        }
    };
}

totals! {
    /// PUBLISH packets received.
    messages_received, received;
    /// PUBLISH packets sent.
    messages_sent, sent;
    /// Deliveries that did not fit, had expired or were too large for their receiver.
    messages_dropped, dropped;
    /// Dropped deliveries that did not fit into the queue of their session, or were evicted from it.
    messages_overflowed, overflowed;
    /// Overflowed deliveries for which the queues of all offline clients together had no room.
    messages_crowded_out, crowded;
    /// Dropped deliveries that waited for their client for too long.
    messages_outdated, outdated;
    /// Clients that were disconnected because their queue was full.
    clients_overwhelmed, overwhelmed;
    /// Number of memory overloads.
    overloads, overloaded;
    /// Bytes received from clients.
    bytes_received, read;
    /// Bytes sent to clients.
    bytes_sent, written;
    /// Connections that were refused because there were too many, or they came too fast.
    connections_refused, refused;
    /// Connections since the start.
    connections_total, accepted;
    /// Restarts of QUIC endpoints whose task failed.
    quic_restarts, quic_restarted;
}

impl Statistics {
    /// Open connections.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connected clients: their CONNECT was accepted.
    pub fn clients(&self) -> u64 {
        self.clients.load(Ordering::Relaxed)
    }

    /// Whether large messages were refused lately because the spool had no room.
    pub fn is_spool_full(&self) -> bool {
        self.spool_full.load(Ordering::Relaxed)
    }

    /// Sets the state of the spool. Returns whether it has changed.
    pub(crate) fn set_spool_full(&self, is_full: bool) -> bool {
        self.spool_full.swap(is_full, Ordering::Relaxed) != is_full
    }

    /// True while a QUIC endpoint has failed and cannot restart.
    pub fn is_quic_unavailable(&self) -> bool {
        self.quic_unavailable.load(Ordering::Relaxed) > 0
    }

    /// Counts a change of one QUIC endpoint.
    pub(crate) fn note_endpoint(&self, before: EndpointHealth, now: EndpointHealth) {
        self.quic_restarted(now.restarts - before.restarts);
        match (before.is_available, now.is_available) {
            (true, false) => _ = self.quic_unavailable.fetch_add(1, Ordering::Relaxed),
            (false, true) => _ = self.quic_unavailable.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }

    pub(crate) fn client_came(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn client_left(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.accepted(1);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
