//! Times that packets inside waited before they were read.

use std::time::Duration;

/// Packets that are told apart, more than a queue holds unless it is asked for more.
const INSIDE: usize = 1 << 17;

/// By the number of the packet; one that many packets have overtaken has the wait of one of them.
#[derive(Debug)]
pub(super) struct Waits {
    /// Nanoseconds. Pages that no packet reaches are never touched.
    nanos: Box<[u32]>,
}

impl Waits {
    pub(super) fn new() -> Self {
        Self { nanos: vec![0; INSIDE].into_boxed_slice() }
    }

    /// More than 4 s count as 4 s.
    pub(super) fn set(&mut self, index: u64, wait: Duration) {
        self.nanos[place(index)] = u32::try_from(wait.as_nanos()).unwrap_or(u32::MAX);
    }

    pub(super) fn of(&self, index: u64) -> Duration {
        Duration::from_nanos(self.nanos[place(index)].into())
    }
}

fn place(index: u64) -> usize {
    // The remainder is below `INSIDE`.
    usize::try_from(index % INSIDE as u64).unwrap_or(0)
}
