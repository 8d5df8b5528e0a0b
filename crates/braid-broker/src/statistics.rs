//! Statistics of a broker: counters since its start, and gauges.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_transport::EndpointHealth;

use crate::limit::Limit;
use crate::sharded::ShardedCounters;
use crate::time_slice::BusyConnections;

/// Counter of events since the broker's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// PUBLISH packets received.
    MessagesReceived,
    /// PUBLISH packets sent.
    MessagesSent,
    /// Deliveries that did not fit, had expired, were too large for their receiver or denied to it, and messages that a
    /// client was not allowed to publish.
    MessagesDropped,
    /// Dropped deliveries that did not fit into the queue of their session, or were evicted from it.
    MessagesOverflowed,
    /// Overflowed deliveries for which the queues of all offline clients together had no room.
    MessagesCrowdedOut,
    /// Dropped deliveries that waited for their client for too long.
    MessagesOutdated,
    /// Clients that were disconnected because their queue was full.
    ClientsOverwhelmed,
    /// Memory overloads.
    Overloads,
    /// Bytes received from clients.
    BytesReceived,
    /// Bytes sent to clients.
    BytesSent,
    /// Connections that were refused at a limit, or for a ban.
    ConnectionsRefused,
    /// Bans of clients that connected too often.
    FlappingBans,
    /// Clients that were disconnected by a ban.
    ClientsBanned,
    /// Connections accepted, those that have ended included.
    ConnectionsTotal,
    /// Datagrams with messages that were sent to clients.
    DatagramsSent,
    /// Datagrams that came from clients.
    DatagramsReceived,
    /// Datagrams that were dropped, unsent or unread, because others needed their room.
    DatagramsDropped,
    /// Datagrams that came and were no message, or came without an agreement.
    DatagramsRefused,
    /// Deliveries that went on a stream because they did not fit into a datagram.
    DatagramsFallenBack,
    /// UDP datagrams received on QUIC connections.
    QuicReceived,
    /// Times that a QUIC stream found no room to send.
    QuicRefusedWrites,
    /// Changes of the address of QUIC clients, validated or not.
    QuicMoves,
    /// Restarts of QUIC endpoints that failed. The last one: [`Counter::COUNT`] follows from it.
    QuicRestarts,
}

impl Counter {
    const COUNT: usize = Self::QuicRestarts as usize + 1;
}

/// Statistics of a broker. Relaxed atomics: they guard no other memory.
#[derive(Debug, Default)]
pub struct Statistics {
    counters: ShardedCounters<{ Counter::COUNT }>,
    limits: [AtomicU64; Limit::TOPICS.len()],
    connections: AtomicU64,
    clients: AtomicU64,
    busy: BusyConnections,
    spool_full: AtomicBool,
    cluster_unreachable: AtomicBool,
    quic_unavailable: AtomicU64,
}

impl Statistics {
    /// Events since the start.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters.sum(counter as usize).unsigned_abs()
    }

    pub(crate) fn add(&self, counter: Counter, events: u64) {
        if events > 0 {
            self.counters.add(counter as usize, i64::try_from(events).unwrap_or(i64::MAX));
        }
    }

    /// Times that a limit was reached since the start.
    pub fn reached(&self, limit: Limit) -> u64 {
        self.limits[limit as usize].load(Ordering::Relaxed)
    }

    /// Counts that a limit was reached. To be called where the limit decides.
    pub(crate) fn reach(&self, limit: Limit) {
        self.limits[limit as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that is refused at a limit.
    pub(crate) fn refuse_connection(&self, limit: Limit) {
        self.add(Counter::ConnectionsRefused, 1);
        self.reach(limit);
    }

    /// Open connections.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connected clients: their CONNECT was accepted.
    pub fn clients(&self) -> u64 {
        self.clients.load(Ordering::Relaxed)
    }

    /// Connections that have more to do than one turn.
    pub(crate) fn busy(&self) -> &BusyConnections {
        &self.busy
    }

    /// Whether large messages were refused lately because the spool had no room.
    pub fn is_spool_full(&self) -> bool {
        self.spool_full.load(Ordering::Relaxed)
    }

    /// Sets the state of the spool. Returns whether it has changed.
    pub(crate) fn set_spool_full(&self, is_full: bool) -> bool {
        self.spool_full.swap(is_full, Ordering::Relaxed) != is_full
    }

    /// True while the servers of the cluster take no messages.
    pub fn is_cluster_unreachable(&self) -> bool {
        self.cluster_unreachable.load(Ordering::Relaxed)
    }

    /// Sets whether the servers of the cluster take messages. Returns whether that has changed.
    pub(crate) fn set_cluster_unreachable(&self, is_unreachable: bool) -> bool {
        self.cluster_unreachable.swap(is_unreachable, Ordering::Relaxed) != is_unreachable
    }

    /// True while a QUIC endpoint has failed and cannot restart.
    pub fn is_quic_unavailable(&self) -> bool {
        self.quic_unavailable.load(Ordering::Relaxed) > 0
    }

    /// Counts a change of one QUIC endpoint.
    pub(crate) fn note_endpoint(&self, before: EndpointHealth, now: EndpointHealth) {
        self.add(Counter::QuicRestarts, now.restarts - before.restarts);
        let turned_away = now.turned_away - before.turned_away;
        self.add(Counter::ConnectionsRefused, turned_away);
        self.limits[Limit::HandshakeWait as usize].fetch_add(turned_away, Ordering::Relaxed);
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
        self.add(Counter::ConnectionsTotal, 1);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
