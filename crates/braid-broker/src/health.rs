//! Health of a broker, for load balancers and process supervisors.

use std::sync::Arc;

use braid_store::StoreError;
use tokio::sync::watch;

use crate::memory::{Level, Memory};
use crate::statistics::{Counter, Statistics};

/// Reads the health of a broker, while it runs and after. Cheap to clone.
///
/// Keeps neither sessions nor the store, so that the store can be closed, and takes no lock that a connection holds for
/// long.
#[derive(Clone)]
pub struct HealthMonitor {
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) failure: watch::Receiver<Option<StoreError>>,
    pub(crate) stop: watch::Receiver<bool>,
    /// `limits.connections`.
    pub(crate) most_connections: u64,
}

/// Health of a broker at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether clients can be sent to the broker.
    pub status: HealthStatus,
    /// Text of `$SYS/broker/store/state`: `ok`, why the store failed, or that the servers of the cluster do not answer.
    pub store: String,
    /// Text of `$SYS/broker/memory/state`: `ok`, or which mark is exceeded and what the broker does about it.
    pub memory: &'static str,
    /// Text of `$SYS/broker/spool/state`: `ok`, or that large messages are refused.
    pub spool: &'static str,
    /// `ok`, or that a QUIC endpoint failed and was restarted, or cannot restart.
    pub quic: &'static str,
    /// Bytes held for connected clients, and of incomplete packets.
    pub memory_used: u64,
    /// Open connections, with those whose CONNECT has not arrived.
    pub connections: u64,
    /// Connected clients.
    pub clients: u64,
}

/// Whether clients can be sent to a broker.
///
/// Slowed publishers and a full spool are no status: other clients are served, and to send clients elsewhere would not
/// help. [`Health::memory`] and [`Health::spool`] have words for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthStatus {
    /// New clients are accepted.
    Serving,
    /// New connections are refused: memory is above the high mark, the limit of connections is reached, a QUIC endpoint
    /// has failed and cannot restart, or no majority of the servers of the cluster answers.
    Refusing,
    /// The broker was told to stop.
    Stopping,
    /// The store has failed: nothing is acknowledged any more, and the broker stops.
    Failed,
}

impl HealthStatus {
    /// One word for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "ok",
            Self::Refusing => "refusing",
            Self::Stopping => "stopping",
            Self::Failed => "failed",
        }
    }

    /// Whether new clients are accepted.
    pub const fn takes_clients(self) -> bool {
        matches!(self, Self::Serving)
    }
}

impl HealthMonitor {
    /// Monitor of a broker that has ended and whose store could not be closed. An earlier failure of the store is kept.
    #[must_use]
    pub fn unclosed(mut self, failure: StoreError) -> Self {
        if self.failure.borrow().is_none() {
            self.failure = watch::Sender::new(Some(failure)).subscribe();
        }
        self
    }

    /// Health of the broker now.
    pub fn health(&self) -> Health {
        let (level, connections) = (self.memory.level(), self.statistics.connections());
        let failure = self.failure.borrow().clone();
        let status = if failure.is_some() {
            HealthStatus::Failed
        } else if *self.stop.borrow() {
            HealthStatus::Stopping
        } else if level == Level::Full
            || connections >= self.most_connections
            || self.statistics.is_quic_unavailable()
            || self.statistics.is_cluster_unreachable()
        {
            HealthStatus::Refusing
        } else {
            HealthStatus::Serving
        };
        Health {
            status,
            store: store_state(failure.as_ref(), &self.statistics),
            memory: memory_state(level),
            spool: spool_state(&self.statistics),
            quic: quic_state(&self.statistics),
            memory_used: self.memory.used(),
            connections,
            clients: self.statistics.clients(),
        }
    }
}

/// Text of `$SYS/broker/store/state`.
pub(crate) fn store_state(failure: Option<&StoreError>, statistics: &Statistics) -> String {
    match failure {
        Some(failure) => format!("failed: {failure}"),
        None if statistics.is_cluster_unreachable() => {
            "unreachable: no majority of the NATS servers answers".to_owned()
        }
        None => "ok".to_owned(),
    }
}

/// Text of `$SYS/broker/memory/state`.
pub(crate) const fn memory_state(level: Level) -> &'static str {
    match level {
        Level::Fine => "ok",
        Level::Slow => "slow: publishers are held back",
        Level::Full => "full: new connections are refused",
    }
}

fn quic_state(statistics: &Statistics) -> &'static str {
    if statistics.is_quic_unavailable() {
        "unavailable: the endpoint failed and cannot restart"
    } else if statistics.get(Counter::QuicRestarts) > 0 {
        "restarted: the endpoint failed, and its connections were lost"
    } else {
        "ok"
    }
}

/// Text of `$SYS/broker/spool/state`.
pub(crate) fn spool_state(statistics: &Statistics) -> &'static str {
    if statistics.is_spool_full() { "full: large messages are refused" } else { "ok" }
}

#[cfg(test)]
mod tests {
    use braid_transport::EndpointHealth;

    use super::*;
    use crate::config::LimitsConfig;

    /// A monitor, and the senders of the states that it reads.
    struct Fixture {
        failure: watch::Sender<Option<StoreError>>,
        stop: watch::Sender<bool>,
        monitor: HealthMonitor,
    }

    fn fixture() -> Fixture {
        let limits = LimitsConfig { memory_low: 800, memory_high: 1600, ..LimitsConfig::default() };
        let (failure, stop) = (watch::Sender::new(None), watch::Sender::new(false));
        let monitor = HealthMonitor {
            statistics: Arc::default(),
            memory: Arc::new(Memory::new(&limits)),
            failure: failure.subscribe(),
            stop: stop.subscribe(),
            most_connections: 2,
        };
        Fixture { failure, stop, monitor }
    }

    #[test]
    fn slowed_publishers_are_no_reason_to_refuse_clients_and_full_memory_is() {
        let Fixture { monitor, failure: _failure, stop: _stop } = fixture();
        assert_eq!((monitor.health().status, monitor.health().memory), (HealthStatus::Serving, "ok"));
        monitor.memory.add(801);
        let slow = monitor.health();
        assert_eq!((slow.status, slow.memory), (HealthStatus::Serving, "slow: publishers are held back"));
        monitor.memory.add(800);
        let full = monitor.health();
        assert_eq!((full.status, full.memory), (HealthStatus::Refusing, "full: new connections are refused"));
        assert_eq!((full.memory_used, full.store.as_str()), (1601, "ok"));
        monitor.memory.remove(1601);
        assert_eq!(monitor.health().status, HealthStatus::Serving);
    }

    #[test]
    fn full_spool_is_no_reason_to_refuse_clients() {
        let Fixture { monitor, failure: _failure, stop: _stop } = fixture();
        assert_eq!(monitor.health().spool, "ok");
        assert!(monitor.statistics.set_spool_full(true), "a change");
        assert!(!monitor.statistics.set_spool_full(true));
        let full = monitor.health();
        assert_eq!((full.status, full.spool), (HealthStatus::Serving, "full: large messages are refused"));
    }

    #[test]
    fn lost_quic_endpoint_refuses_clients_until_it_is_restarted() {
        let Fixture { monitor, failure: _failure, stop: _stop } = fixture();
        let endpoint = |restarts, is_available| EndpointHealth { restarts, is_available, turned_away: 0 };
        monitor.statistics.note_endpoint(endpoint(0, true), endpoint(0, true));
        assert_eq!((monitor.health().status, monitor.health().quic), (HealthStatus::Serving, "ok"));
        monitor.statistics.note_endpoint(endpoint(0, true), endpoint(0, false));
        let lost = monitor.health();
        assert_eq!(lost.status, HealthStatus::Refusing);
        assert_eq!(lost.quic, "unavailable: the endpoint failed and cannot restart");
        monitor.statistics.note_endpoint(endpoint(0, false), endpoint(1, true));
        let restarted = monitor.health();
        assert_eq!(
            (restarted.status, monitor.statistics.get(Counter::QuicRestarts)),
            (HealthStatus::Serving, 1)
        );
        assert_eq!(restarted.quic, "restarted: the endpoint failed, and its connections were lost");
    }

    #[test]
    fn limit_of_connections_refuses_clients() {
        let Fixture { monitor, failure: _failure, stop: _stop } = fixture();
        monitor.statistics.connection_opened();
        assert_eq!(monitor.health().status, HealthStatus::Serving);
        monitor.statistics.connection_opened();
        assert_eq!((monitor.health().status, monitor.health().connections), (HealthStatus::Refusing, 2));
        monitor.statistics.connection_closed();
        assert_eq!(monitor.health().status, HealthStatus::Serving);
    }

    fn assert_no_space(failed: &Health) {
        assert_eq!(failed.status, HealthStatus::Failed);
        let store = &failed.store;
        assert!(store.starts_with("failed: ") && store.contains("no space"), "{store}");
    }

    #[test]
    fn failure_to_close_the_store_is_a_failure() {
        let Fixture { monitor, failure, stop } = fixture();
        stop.send_replace(true);
        drop((failure, stop));
        assert_eq!(
            (monitor.health().status, monitor.health().store.as_str()),
            (HealthStatus::Stopping, "ok")
        );
        let monitor = monitor.unclosed(StoreError::Failed { reason: "no space".into() });
        let failed = monitor.health();
        assert_no_space(&failed);
        assert_eq!(monitor.unclosed(StoreError::Closed).health(), failed, "the first failure is kept");
    }

    /// The process may still have to close its store when the broker is gone.
    #[test]
    fn failure_is_reported_after_the_broker_is_gone() {
        let Fixture { monitor, failure, stop } = fixture();
        stop.send_replace(true);
        assert_eq!(monitor.health().status, HealthStatus::Stopping);
        failure.send_replace(Some(StoreError::Failed { reason: "no space is left".into() }));
        drop((failure, stop));
        let failed = monitor.health();
        assert_no_space(&failed);
        assert!(!failed.status.takes_clients());
    }
}
