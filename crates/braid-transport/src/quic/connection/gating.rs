//! The owner's side of the gate: it says what is urgent.

use std::net::SocketAddr;
use std::sync::Arc;

use noq::Connection;

use crate::quic::congestion::GateState;
use crate::quic::congestion::controller::SharedGate;

pub(super) struct Gating {
    gate: Option<Arc<SharedGate>>,
}

impl Gating {
    pub(super) fn new(gate: Option<Arc<SharedGate>>, connection: &Connection, peer: SocketAddr) -> Self {
        if let Some(gate) = &gate {
            gate.set_connection(connection, peer);
        }
        Self { gate }
    }

    /// The handshake is over.
    pub(super) fn set_established(&self) {
        if let Some(gate) = &self.gate {
            gate.set_established();
        }
    }

    /// Whether it makes a difference what is urgent.
    pub(super) fn wants_urgent(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.wants_urgent())
    }

    /// What was said to be urgent is not.
    pub(super) fn forget_urgent(&self) {
        if let Some(gate) = &self.gate {
            gate.forget_urgent();
        }
    }

    /// So many bytes were written while something less urgent is under way.
    pub(super) fn handle_urgent(&self, bytes: usize) {
        if let Some(gate) = &self.gate {
            gate.handle_urgent(bytes);
        }
    }

    /// Something came that has to be acknowledged.
    pub(super) fn handle_received(&self) {
        if let Some(gate) = &self.gate {
            gate.handle_received();
        }
    }

    /// Bytes that may be written and not be acknowledged, where the gate decides.
    pub(super) fn backlog(&self) -> Option<u64> {
        self.gate.as_ref()?.backlog()
    }

    pub(super) fn state(&self) -> Option<GateState> {
        self.gate.as_ref()?.state()
    }

    /// The socket is another one.
    pub(super) fn handle_rebind(&self) {
        if let Some(gate) = &self.gate {
            gate.handle_rebind();
        }
    }

    pub(super) fn abandon(&self) {
        if let Some(gate) = &self.gate {
            gate.abandon();
        }
    }
}
