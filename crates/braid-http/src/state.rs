//! Health of the process, and its report as JSON.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use braid_broker::health::HealthMonitor;
use serde::Serialize;

/// Health of the process, written by `serve` and read by the server. Cheap to clone.
#[derive(Clone)]
pub struct HealthState {
    began: Instant,
    phase: Arc<Mutex<Phase>>,
}

enum Phase {
    /// No broker yet.
    Starting { progress: Option<String> },
    /// The broker runs or has ended; its monitor says which.
    Built(HealthMonitor),
}

/// Health report of the process.
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

/// Health report of the broker.
#[derive(Debug, Serialize)]
struct Broker {
    store: String,
    memory: &'static str,
    spool: &'static str,
    quic: &'static str,
    memory_used: u64,
    connections: u64,
    clients: u64,
}

impl Default for HealthState {
    /// The state at the start of the process.
    fn default() -> Self {
        let phase = Phase::Starting { progress: None };
        Self { began: Instant::now(), phase: Arc::new(Mutex::new(phase)) }
    }
}

impl HealthState {
    /// Notes the progress of the start, as text for people.
    pub fn starting(&self, progress: String) {
        *self.phase() = Phase::Starting { progress: Some(progress) };
    }

    /// Notes that the broker serves, and takes further reports from its monitor.
    pub fn serving(&self, monitor: HealthMonitor) {
        *self.phase() = Phase::Built(monitor);
    }

    pub(crate) fn report(&self) -> Report {
        let (status, is_ready, progress, broker) = match &*self.phase() {
            Phase::Starting { progress } => ("starting", false, progress.clone(), None),
            Phase::Built(monitor) => {
                let health = monitor.health();
                let status = health.status;
                let broker = Broker {
                    store: health.store,
                    memory: health.memory,
                    spool: health.spool,
                    quic: health.quic,
                    memory_used: health.memory_used,
                    connections: health.connections,
                    clients: health.clients,
                };
                (status.as_str(), status.takes_clients(), None, Some(broker))
            }
        };
        let uptime_secs = self.began.elapsed().as_secs();
        Report { status, is_ready, version: env!("CARGO_PKG_VERSION"), uptime_secs, progress, broker }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        // Poisoning is harmless: each change replaces the whole value.
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
