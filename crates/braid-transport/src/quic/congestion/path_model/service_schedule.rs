//! Predicted service of datagrams by a slow FIFO bottleneck.

use std::collections::VecDeque;

/// Datagrams without a known wait that are kept. The oldest are given up beyond, and their service is taken as
/// predicted.
const OUTSTANDING: usize = 256;

/// Datagrams whose wait is not known, and when the bottleneck is done with all of them. Each starts when it was sent or
/// when the one before is done.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceSchedule {
    /// Ordinals, and times of sending (s).
    datagrams: VecDeque<(u64, f64)>,
    /// Time (s) at which the bottleneck is done with all before the oldest.
    free_before: f64,
    /// Time (s) at which it is done with all.
    free_at: f64,
}

/// Predicted service of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) ordinal: u64,
    /// Begin (s).
    pub(super) start: f64,
    /// The datagram has to wait for the one before.
    pub(super) is_queued: bool,
}

impl ServiceSchedule {
    pub(super) fn free_at(&self) -> f64 {
        self.free_at
    }

    /// Adds a datagram. `service`: s per datagram.
    pub(super) fn push(&mut self, ordinal: u64, at: f64, service: f64) {
        if self.datagrams.len() == OUTSTANDING {
            self.pop(u64::MAX, service);
        }
        self.datagrams.push_back((ordinal, at));
        self.free_at = self.free_at.max(at) + service;
    }

    /// Takes the oldest datagram, if its ordinal is at most this one.
    pub(super) fn pop(&mut self, ordinal: u64, service: f64) -> Option<Service> {
        let (ordinal, at) = *self.datagrams.front().filter(|(first, _)| *first <= ordinal)?;
        self.datagrams.pop_front();
        let (start, late) = (self.free_before.max(at), at - self.free_before);
        self.free_before = start + service;
        Some(Service { ordinal, start, is_queued: late < 0.0 })
    }

    /// Corrects when (s) the bottleneck is done with all before the oldest datagram, and with it all later ones.
    pub(super) fn correct(&mut self, free_before: f64, service: f64) {
        self.free_before = free_before;
        self.free_at = self.datagrams.iter().fold(free_before, |free, (_, at)| free.max(*at) + service);
    }
}
