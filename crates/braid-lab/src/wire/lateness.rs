//! Lateness of packets.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest lateness that is told apart.
const LONGEST: Duration = Duration::from_secs(60);
/// Two digits: 1 % of the value.
const DIGITS: u8 = 2;

/// Time from the due time of packets until the kernel had them, with the time that they waited to be read; microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of packets.
    pub packets: u64,
    /// Half of them at most.
    pub p50_us: f64,
    /// 99 % of them at most.
    pub p99_us: f64,
    /// All of them.
    pub max_us: f64,
}

/// Collects them; in nanoseconds.
#[derive(Debug)]
pub(super) struct LatenessRecord {
    /// `None` if there is no memory for it, which no machine has shown yet.
    histogram: Option<Histogram<u64>>,
}

impl LatenessRecord {
    pub(super) fn new() -> Self {
        Self { histogram: Histogram::new_with_max(nanos(LONGEST), DIGITS).ok() }
    }

    pub(super) fn add(&mut self, late: Duration) {
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(nanos(late));
        }
    }

    pub(super) fn summary(&self) -> Lateness {
        let Some(histogram) = self.histogram.as_ref().filter(|histogram| !histogram.is_empty()) else {
            return Lateness::default();
        };
        let us = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64() * 1e6;
        Lateness {
            packets: histogram.len(),
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            max_us: us(histogram.max()),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
