//! Links and times of the tests.

use std::time::Duration;

use braid_emulator::LinkSpec;

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn link(text: &str) -> LinkSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}
