//! What round trips say about queues.

use std::collections::VecDeque;

/// So many packets in a row that found nothing of ours before them and still took longer: the path is longer.
const ENOUGH: usize = 5;

/// By this (s).
const LONGER: f64 = 0.01;

/// So many in a row whose waits differ by less than this share.
const FLAT_ENOUGH: u32 = 8;
const FLAT: f64 = 0.2;

/// They are so for such a time (s), and for so many round trips.
const FLAT_SPAN: f64 = 0.3;
const ROUND_TRIPS: f64 = 4.0;

/// The path without queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Trip {
    /// The shortest round trip (s).
    base: Option<f64>,
    alone: VecDeque<f64>,
    /// Those in a row that took longer.
    flat: Option<Flat>,
}

impl Trip {
    pub(super) fn base(&self) -> Option<f64> {
        self.base
    }

    /// How long (s) a packet waited that took `trip` s; `is_alone`: nothing of ours can have been before it.
    pub(super) fn wait(&mut self, trip: f64, is_alone: bool) -> f64 {
        let base = self.base.map_or(trip, |base| base.min(trip));
        self.base = Some(base);
        if is_alone {
            if self.alone.len() == ENOUGH {
                self.alone.pop_front();
            }
            self.alone.push_back(trip);
            let least = self.alone.iter().copied().fold(f64::INFINITY, f64::min);
            if self.alone.len() == ENOUGH && least > base + LONGER {
                self.base = Some(least);
                self.alone.clear();
            }
        }
        trip - self.base.unwrap_or(trip)
    }

    /// The same of a packet that was sent when a queue of ours should have been short. True: the path is longer, since
    /// the wait is always the same.
    pub(super) fn is_longer(&mut self, trip: f64, now: f64) -> bool {
        let Some(base) = self.base.filter(|base| trip > base + LONGER) else {
            self.flat = None;
            return false;
        };
        let flat = self.flat.get_or_insert(Flat { least: trip, most: trip, count: 0, since: now });
        (flat.least, flat.most, flat.count) = (flat.least.min(trip), flat.most.max(trip), flat.count + 1);
        let Flat { least, most, count, since } = *flat;
        if most - least > LONGER.min((least - base) * FLAT) {
            self.flat = None;
            return false;
        }
        let is_longer = count >= FLAT_ENOUGH && now - since > FLAT_SPAN.max(most * ROUND_TRIPS);
        if is_longer {
            *self = Self { base: Some(least), ..Self::default() };
        }
        is_longer
    }
}

/// Round trips that are all longer than the least, and much the same.
#[derive(Clone, Copy, Debug)]
struct Flat {
    least: f64,
    most: f64,
    count: u32,
    since: f64,
}
