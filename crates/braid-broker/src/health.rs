//! How a broker is, for whoever decides whether clients are sent to it.

use std::sync::Arc;

use braid_store::StoreError;
use tokio::sync::watch;

use crate::memory::{Level, Memory};
use crate::statistics::Statistics;

/// Tells how a broker is, while it runs and after. Cheap to clone; keeps neither sessions nor the store, so that the store
/// can be closed, and takes no lock that a connection holds for long.
#[derive(Clone)]
pub struct HealthMonitor {
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) failure: watch::Receiver<Option<StoreError>>,
    pub(crate) stop: watch::Receiver<bool>,
    /// `limits.connections`.
    pub(crate) most_connections: u64,
}

/// How a broker is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether clients can be sent to it.
    pub condition: HealthStatus,
    /// What `$SYS/broker/store/state` says: `ok`, or why the store failed.
    pub store: String,
    /// What `$SYS/broker/memory/state` says.
    pub memory: &'static str,
    /// What `$SYS/broker/spool/state` says.
    pub spool: &'static str,
    /// Bytes that it holds for connected clients, and of incomplete packets.
    pub memory_used: u64,
    /// Connections, those included whose CONNECT has not come.
    pub connections: u64,
    /// Clients that are connected.
    pub clients: u64,
}

/// Whether clients can be sent to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthStatus {
    /// It serves.
    Serving,
    /// It serves those it has and refuses new ones: memory is short, or there are as many connections as there may be.
    Refusing,
    /// It was told to stop.
    Stopping,
    /// Its store has failed: it acknowledges nothing any more and stops.
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

    /// Whether a new client is let in.
    pub const fn takes_clients(self) -> bool {
        matches!(self, Self::Serving)
    }
}

impl HealthMonitor {
    /// The same, of a broker that has ended and whose store could not be closed, unless the store had failed before.
    #[must_use]
    pub fn unclosed(mut self, failure: StoreError) -> Self {
        if self.failure.borrow().is_none() {
            self.failure = watch::Sender::new(Some(failure)).subscribe();
        }
        self
    }

    /// How the broker is now.
    pub fn health(&self) -> Health {
        let (level, connections) = (self.memory.level(), self.statistics.connections());
        let failure = self.failure.borrow().clone();
        let condition = if failure.is_some() {
            HealthStatus::Failed
        } else if *self.stop.borrow() {
            HealthStatus::Stopping
        } else if level == Level::Full || connections >= self.most_connections {
            HealthStatus::Refusing
        } else {
            HealthStatus::Serving
        };
        Health {
            condition,
            store: store_state(failure.as_ref()),
            memory: memory_state(level),
            spool: spool_state(&self.statistics),
            memory_used: self.memory.used(),
            connections,
            clients: self.statistics.clients(),
        }
    }
}

/// Whether the store works, and why it does not.
pub(crate) fn store_state(failure: Option<&StoreError>) -> String {
    failure.map_or_else(|| "ok".to_owned(), |failure| format!("failed: {failure}"))
}

/// Whether the broker holds too much, and what it does about it.
pub(crate) const fn memory_state(level: Level) -> &'static str {
    match level {
        Level::Fine => "ok",
        Level::Slow => "slow: publishers are held back",
        Level::Full => "full: new connections are refused",
    }
}

/// Whether large messages find room.
pub(crate) fn spool_state(statistics: &Statistics) -> &'static str {
    if statistics.is_spool_full() { "full: large messages are refused" } else { "ok" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LimitsConfig;

    /// What a broker would change, and what is told of it.
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
    fn a_broker_whose_publishers_are_held_back_takes_clients_and_a_full_one_does_not() {
        let Fixture { monitor, failure: _failure, stop: _stop } = fixture();
        assert_eq!((monitor.health().condition, monitor.health().memory), (HealthStatus::Serving, "ok"));
        monitor.memory.add(801);
        let slow = monitor.health();
        assert_eq!((slow.condition, slow.memory), (HealthStatus::Serving, "slow: publishers are held back"));
        monitor.memory.add(800);
        let full = monitor.health();
        assert_eq!(
            (full.condition, full.memory),
            (HealthStatus::Refusing, "full: new connections are refused")
        );
        assert_eq!((full.memory_used, full.store.as_str()), (1601, "ok"));
        monitor.memory.remove(1601);
        assert_eq!(monitor.health().condition, HealthStatus::Serving);
    }

    #[test]
    fn a_spool_without_room_shuts_nobody_out() {
        let Fixture { monitor, failure: _failure, stop: _stop } = fixture();
        assert_eq!(monitor.health().spool, "ok");
        assert!(monitor.statistics.set_spool_full(true), "that is new");
        assert!(!monitor.statistics.set_spool_full(true));
        let full = monitor.health();
        assert_eq!((full.condition, full.spool), (HealthStatus::Serving, "full: large messages are refused"));
    }

    #[test]
    fn as_many_connections_as_there_may_be_leave_no_room_for_one_more() {
        let Fixture { monitor, failure: _failure, stop: _stop } = fixture();
        monitor.statistics.connection_opened();
        assert_eq!(monitor.health().condition, HealthStatus::Serving);
        monitor.statistics.connection_opened();
        assert_eq!((monitor.health().condition, monitor.health().connections), (HealthStatus::Refusing, 2));
        monitor.statistics.connection_closed();
        assert_eq!(monitor.health().condition, HealthStatus::Serving);
    }

    /// The last that is written, when no broker is there any more.
    fn assert_no_space(failed: &Health) {
        assert_eq!(failed.condition, HealthStatus::Failed);
        let store = &failed.store;
        assert!(store.starts_with("failed: ") && store.contains("no space"), "{store}");
    }

    #[test]
    fn a_store_that_fails_while_it_is_closed_has_failed() {
        let Fixture { monitor, failure, stop } = fixture();
        stop.send_replace(true);
        drop((failure, stop));
        assert_eq!(
            (monitor.health().condition, monitor.health().store.as_str()),
            (HealthStatus::Stopping, "ok")
        );
        let monitor = monitor.unclosed(StoreError::Failed { reason: "no space".into() });
        let failed = monitor.health();
        assert_no_space(&failed);
        assert_eq!(monitor.unclosed(StoreError::Closed).health(), failed, "what came first is told");
    }

    /// Also when the broker is gone: the process may still have to close its store.
    #[test]
    fn what_ends_a_broker_is_told_to_the_end() {
        let Fixture { monitor, failure, stop } = fixture();
        stop.send_replace(true);
        assert_eq!(monitor.health().condition, HealthStatus::Stopping);
        failure.send_replace(Some(StoreError::Failed { reason: "no space is left".into() }));
        drop((failure, stop));
        let failed = monitor.health();
        assert_no_space(&failed);
        assert!(!failed.condition.takes_clients());
    }
}
