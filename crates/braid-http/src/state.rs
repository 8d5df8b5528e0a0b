use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use braid_broker::HealthMonitor;
use serde::Serialize;

/// Where the process writes how far it is, and from where the server answers. Cheap to clone.
#[derive(Clone)]
pub struct HealthState {
    began: Instant,
    phase: Arc<Mutex<Phase>>,
}

enum Phase {
    /// There is no broker yet.
    Starting { progress: Option<String> },
    /// There is one, or there was: it tells itself how it ended.
    Built(HealthMonitor),
}

/// What is told about the process.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) status: &'static str,
    #[serde(skip)]
    pub(crate) is_ready: bool,
    version: &'static str,
    uptime_secs: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<String>,
    #[serde(flatten)]
    broker: Option<Broker>,
}

/// What is told about the broker.
#[derive(Debug, Serialize)]
struct Broker {
    store: String,
    memory: &'static str,
    spool: &'static str,
    memory_used: u64,
    connections: u64,
    clients: u64,
}

impl Default for HealthState {
    /// A process that begins to start.
    fn default() -> Self {
        let phase = Phase::Starting { progress: None };
        Self { began: Instant::now(), phase: Arc::new(Mutex::new(phase)) }
    }
}

impl HealthState {
    /// Notes how far the start is, for people to read.
    pub fn starting(&self, progress: String) {
        *self.phase() = Phase::Starting { progress: Some(progress) };
    }

    /// Notes that the broker serves. From now on it tells itself how it is.
    pub fn serving(&self, monitor: HealthMonitor) {
        *self.phase() = Phase::Built(monitor);
    }

    pub(crate) fn report(&self) -> Report {
        let (status, is_ready, progress, broker) = match &*self.phase() {
            Phase::Starting { progress } => ("starting", false, progress.clone(), None),
            Phase::Built(monitor) => {
                let health = monitor.health();
                let condition = health.condition;
                let broker = Broker {
                    store: health.store,
                    memory: health.memory,
                    spool: health.spool,
                    memory_used: health.memory_used,
                    connections: health.connections,
                    clients: health.clients,
                };
                (condition.as_str(), condition.takes_clients(), None, Some(broker))
            }
        };
        let uptime_secs = self.began.elapsed().as_secs();
        Report { status, is_ready, version: env!("CARGO_PKG_VERSION"), uptime_secs, progress, broker }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        // Held for a look or a change only, and each leaves a whole value.
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
