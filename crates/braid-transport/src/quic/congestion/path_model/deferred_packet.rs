//! A packet that holds something urgent and was sent when it would have been dropped: it leaves a little later.

use std::time::Instant;

use super::{Gate, OVERHEAD, State};

/// Nobody waits longer (s) for what is kept, whatever became of it.
const LONGEST: f64 = 1.0;

/// A packet that the library has sent and that is still here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Later {
    number: u64,
    bytes: u64,
    /// Bytes of it that are urgent.
    urgent: u64,
    /// Since when (s).
    since: f64,
}

/// What is to be done with a packet that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum Leave {
    Now,
    Wait,
    /// It was taken for lost, and what was in it is sent again.
    Never,
}

impl Gate {
    /// Whether a packet that may not leave is worth to be kept: it holds what is urgent, and none is kept yet.
    pub(in crate::quic) fn wants_later(&self) -> bool {
        self.class().is_limited() && self.urgent > 0 && self.later.is_none()
    }

    /// The packet stays here until [`leave`](Self::leave) says so.
    pub(in crate::quic) fn handle_later(&mut self, number: u64, bytes: u64, now: Instant) {
        let urgent = self.urgent.min(bytes.saturating_sub(OVERHEAD));
        self.urgent -= urgent;
        if self.urgent == 0 {
            self.urgent_since = None;
        }
        self.later = Some(Later { number, bytes, urgent, since: self.seconds(now) });
    }

    /// Whether the packet of this number may leave now: then it counts as sent.
    pub(in crate::quic) fn leave(&mut self, number: u64, now: Instant) -> Leave {
        let may = self.permits_probe(now);
        match self.later.take_if(|later| later.number == number && may) {
            Some(Later { bytes, urgent, .. }) => {
                self.urgent += urgent;
                self.handle_packet(number, bytes, now);
                // It is no part of the batch that the library makes meanwhile.
                self.eliciting -= 1;
                Leave::Now
            }
            None if self.later.is_some_and(|later| later.number == number) => Leave::Wait,
            None => Leave::Never,
        }
    }

    /// The packet that is kept, if there is one that `is_gone`, does not leave any more: what is urgent in it is sent again.
    pub(super) fn give_up_later(&mut self, is_gone: impl FnOnce(u64) -> bool, now: f64) {
        if let Some(later) = self.later.take_if(|later| is_gone(later.number)) {
            self.urgent += later.urgent;
            self.urgent_since.get_or_insert(now);
        }
    }

    /// What is kept cannot be sent.
    pub(in crate::quic) fn forget_later(&mut self, now: Instant) {
        let now = self.seconds(now);
        self.give_up_later(|_| true, now);
    }

    /// Whether something is kept that leaves before all else.
    pub(super) fn is_kept(&mut self, now: f64) -> bool {
        if self.later.is_some_and(|later| now - later.since > LONGEST) {
            self.give_up_later(|_| true, now);
        }
        self.later.is_some()
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
