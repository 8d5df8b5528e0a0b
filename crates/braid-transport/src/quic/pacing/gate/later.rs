//! A packet that holds something urgent and was sent when it would have been dropped: it leaves a little later.

use std::time::Instant;

use super::{Gate, State};

/// A packet that the library has sent and that is still here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Later {
    pub(super) number: u64,
    bytes: u64,
}

impl Gate {
    /// Whether a packet that may not leave is worth to be kept: it holds what is urgent, and none is kept yet.
    pub(in crate::quic) fn wants_later(&self) -> bool {
        self.class().is_limited() && self.urgent > 0 && self.later.is_none()
    }

    /// The packet stays here until [`leave`](Self::leave) says so.
    pub(in crate::quic) fn handle_later(&mut self, number: u64, bytes: u64) {
        self.later = Some(Later { number, bytes });
    }

    /// Whether the packet of this number is still worth to be sent: what was taken to be lost is sent again.
    pub(in crate::quic) fn has_later(&self, number: u64) -> bool {
        self.later.is_some_and(|later| later.number == number)
    }

    /// True: what was kept leaves now.
    pub(in crate::quic) fn leave(&mut self, now: Instant) -> bool {
        if !self.permits_probe(now) {
            return false;
        }
        let Some(Later { number, bytes }) = self.later.take() else { return false };
        self.handle_packet(number, bytes, now);
        self.handle_transmit(bytes, now);
        true
    }

    /// When (s) what is kept may leave.
    pub(super) fn leaves_at(&self, now: f64) -> Option<f64> {
        self.later?;
        Some(match &self.state {
            State::Start(_) | State::Open(_) | State::Search(_) => now,
            State::Policed(bucket) => bucket.permits_urgent_at(now),
            State::Queued(queue) => queue.permits_urgent_at(now),
        })
    }
}
