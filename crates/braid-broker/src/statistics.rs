use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a broker has counted since its start. Relaxed counters: none guards any other memory.
#[derive(Debug, Default)]
pub struct Statistics {
    connections: AtomicU64,
    clients: AtomicU64,
    connections_total: AtomicU64,
    connections_refused: AtomicU64,
    messages_received: AtomicU64,
    messages_sent: AtomicU64,
    messages_dropped: AtomicU64,
    messages_overflowed: AtomicU64,
    messages_crowded_out: AtomicU64,
    messages_outdated: AtomicU64,
    clients_overwhelmed: AtomicU64,
    overloads: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
    spool_full: AtomicBool,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $add:ident;)*) => {
        impl Statistics {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> u64 {
                    self.$name.load(Ordering::Relaxed)
                }

                pub(crate) fn $add(&self, count: u64) {
                    if count > 0 {
                        self.$name.fetch_add(count, Ordering::Relaxed);
                    }
                }
            )*
        }
    };
}

counters! {
    /// PUBLISH packets received.
    messages_received, received;
    /// PUBLISH packets sent.
    messages_sent, sent;
    /// Deliveries that did not fit, had expired or were too large for their receiver.
    messages_dropped, dropped;
    /// Those of them that did not fit into the queue of their session, or gave way in it.
    messages_overflowed, overflowed;
    /// Those of the latter for which the queues of all absent clients together had no room.
    messages_crowded_out, crowded;
    /// Those of them that waited for their client for too long.
    messages_outdated, outdated;
    /// Clients that were disconnected because their queue was full.
    clients_overwhelmed, overwhelmed;
    /// How often the broker has held too much.
    overloads, overloaded;
    /// Bytes received from clients.
    bytes_received, read;
    /// Bytes sent to clients.
    bytes_sent, written;
    /// Connections that were refused because there are too many, or because they came too fast.
    connections_refused, refused;
    /// Connections since the start.
    connections_total, accepted;
}

impl Statistics {
    /// Connections now.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Clients that are connected now: their CONNECT was accepted.
    pub fn clients(&self) -> u64 {
        self.clients.load(Ordering::Relaxed)
    }

    /// Whether large messages have found no room lately.
    pub fn is_spool_full(&self) -> bool {
        self.spool_full.load(Ordering::Relaxed)
    }

    /// Whether that is new.
    pub(crate) fn set_spool_full(&self, is_full: bool) -> bool {
        self.spool_full.swap(is_full, Ordering::Relaxed) != is_full
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
