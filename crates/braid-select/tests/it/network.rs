//! Link of the simulated network: one direction with a rate, a queue, and what netem does to packets.

use fastrand::Rng;

/// Bytes of a packet, payload and headers; for the link they are all the same size.
pub(crate) const PACKET: f64 = 1200.0;

/// Impairment beside loss, as a column of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Impairment {
    Plain,
    /// 70 % of the packets twice.
    Duplicate,
    /// 20 % of the packets with a wrong bit, which checksums find.
    Corrupt,
    /// One-way delay plus or minus 10 ms, at most plus or minus half of itself.
    Jitter,
    /// 20 % of the packets without delay.
    Reorder,
}

pub(crate) const IMPAIRMENTS: [Impairment; 5] =
    [Impairment::Plain, Impairment::Duplicate, Impairment::Corrupt, Impairment::Jitter, Impairment::Reorder];

/// Link from the server to the client. The other direction delays only.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// One-way delay in seconds.
    pub(crate) delay: f64,
    /// Bytes a second.
    pub(crate) rate: f64,
    pub(crate) loss: f64,
    pub(crate) impairment: Impairment,
    /// Token bucket that drops: bytes a second, and tokens (bytes) at a time.
    pub(crate) policer: Option<(f64, f64, f64)>,
    /// Time at which the last bit of the queue is sent.
    busy: f64,
}

impl Link {
    pub(crate) fn new(rtt: f64, rate: f64, loss: f64, impairment: Impairment) -> Self {
        Self { delay: rtt / 2.0, rate, loss, impairment, policer: None, busy: 0.0 }
    }

    /// Adds a policer with a bucket of ten packets.
    pub(crate) fn policed(mut self, rate: f64) -> Self {
        self.policer = Some((rate, 10.0 * PACKET, 0.0));
        self
    }

    fn passes_policer(&mut self, now: f64) -> bool {
        let Some((rate, tokens, at)) = &mut self.policer else { return true };
        *tokens = (*tokens + (now - *at) * *rate).min(10.0 * PACKET);
        *at = now;
        let passes = *tokens >= PACKET;
        if passes {
            *tokens -= PACKET;
        }
        passes
    }

    /// Sends a packet: times of arrival of its copies, none if it is dropped. Order of netem: duplication, loss, delay;
    /// a packet that is both duplicated and lost arrives once.
    pub(crate) fn send(&mut self, now: f64, rng: &mut Rng) -> Vec<f64> {
        let bytes_waiting = (self.busy - now).max(0.0) * self.rate;
        let queue = (3.0 * self.delay * self.rate).max(100.0 * PACKET);
        if bytes_waiting > queue || !self.passes_policer(now) {
            return Vec::new();
        }
        self.busy = self.busy.max(now) + PACKET / self.rate;
        let mut copies = 1;
        if self.impairment == Impairment::Duplicate && rng.f64() < 0.7 {
            copies += 1;
        }
        if rng.f64() < self.loss {
            copies -= 1;
        }
        // The clone goes through loss again.
        if copies == 2 && rng.f64() < self.loss {
            copies = 1;
        }
        if self.impairment == Impairment::Corrupt && rng.f64() < 0.2 {
            copies = 0;
        }
        let mut delay = self.delay;
        match self.impairment {
            Impairment::Jitter => delay += (2.0 * rng.f64() - 1.0) * (self.delay / 2.0).min(0.01),
            Impairment::Reorder if rng.f64() < 0.2 => delay = 0.0,
            _ => {}
        }
        vec![self.busy + delay; copies]
    }
}
