//! Wakes the library when a gate opens: it knows of windows and acknowledgements, not of time that makes room.

use std::sync::Arc;
use std::time::Duration;

use noq::{VarInt, WeakConnectionHandle};
use tokio::time::sleep;

use super::shared::SharedGate;
use crate::quic::panic_guard::{is_sound, shielded};

/// Timers do not know less.
const TICK: Duration = Duration::from_millis(1);

/// What there is to wake.
#[derive(Debug)]
pub(super) struct Library {
    connection: WeakConnectionHandle,
    /// What the connection was configured with: saying so again wakes the library and changes nothing.
    uni_streams: VarInt,
}

impl Library {
    pub(super) fn new(connection: &noq::Connection, uni_streams: u32) -> Self {
        Self { connection: connection.weak_handle(), uni_streams: VarInt::from_u32(uni_streams) }
    }

    /// Has it look whether it may send. False: the connection is gone.
    pub(super) fn wake(&self) -> bool {
        let Some(connection) = self.connection.upgrade() else { return false };
        if is_sound(&connection)
            && shielded(|| connection.set_max_concurrent_uni_streams(self.uni_streams)).is_ok()
        {
            return true;
        }
        // Dropping it would end the process.
        std::mem::forget(connection);
        false
    }
}

/// Sees to a gate for as long as it decides.
pub(super) fn keep(gate: &Arc<SharedGate>) {
    let gate = Arc::clone(gate);
    if gate.begin_keeping() {
        tokio::spawn(async move {
            let mut is_there = true;
            while is_there && gate.is_active() {
                gate.refused().await;
                // Each further refusal may be for another time, or for none: then acknowledgements make room.
                while let Some(wait) = gate.next().filter(|_| is_there) {
                    tokio::select! {
                        () = sleep(wait.max(TICK)) => {
                            let is_kept = gate.send_kept().await;
                            is_there = gate.wake();
                            if !is_kept {
                                break;
                            }
                        }
                        () = gate.refused() => {
                            gate.send_kept().await;
                        }
                    }
                }
            }
            // Where nothing limits it may leave.
            gate.send_kept().await;
            gate.end_keeping();
            if is_there && gate.is_active() {
                // It became so in between, when it was kept still.
                keep(&gate);
            }
        });
    }
}
