//! Bytes of messages that wait for the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of messages that wait for the log, from which on those of QoS 0 with RETAIN are dropped.
const APPENDING_BYTES: usize = 64 << 20;

/// Bytes of messages that wait for the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Appending(Arc<AtomicUsize>);

impl Appending {
    /// Tests whether further messages of QoS 0 are dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) > APPENDING_BYTES
    }

    /// Adds bytes, until the charge is dropped.
    pub(crate) fn charge(&self, bytes: usize) -> Charge {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Charge { of: self.clone(), bytes }
    }
}

/// Bytes of a batch that waits for the log.
#[derive(Debug)]
pub(crate) struct Charge {
    of: Appending,
    bytes: usize,
}

impl Charge {
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_their_charge_is_dropped() {
        let appending = Appending::default();
        let charges = [appending.charge(APPENDING_BYTES), appending.charge(1)];
        assert!(appending.is_full());
        let [first, second] = charges;
        drop(second);
        assert!(!appending.is_full() && first.bytes() == APPENDING_BYTES);
    }
}
