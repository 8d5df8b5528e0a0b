//! Packets through a pipeline on virtual time.

use std::time::Duration;

use braid_emulator::{Departure, Direction, LinkSpec, Pipeline, Verdict};

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

pub(crate) fn link(text: &str) -> LinkSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The upward direction of a link.
pub(crate) fn up(text: &str, seed: u64) -> Pipeline {
    Pipeline::new(link(text).up, seed, Direction::Up)
}

/// Offers `count` packets of `size` bytes, one each `spacing` from time 0, serves every due time exactly, and returns
/// all that left.
pub(crate) fn offer(pipeline: &mut Pipeline, count: u32, size: usize, spacing: Duration) -> Vec<Departure> {
    let packet = vec![0x45; size];
    let mut left = Vec::new();
    for n in 0..count {
        let now = spacing * n;
        serve(pipeline, now, &mut left);
        pipeline.handle(now, &packet);
    }
    serve(pipeline, Duration::from_secs(1_000_000), &mut left);
    left
}

/// Takes everything that is due until `now`, each at its time.
pub(crate) fn serve(pipeline: &mut Pipeline, now: Duration, left: &mut Vec<Departure>) {
    while let Some(due) = pipeline.next_due().filter(|&due| due <= now) {
        while let Some(departure) = pipeline.take_due(due) {
            left.push(departure);
        }
    }
}

pub(crate) fn verdicts(pipeline: &mut Pipeline) -> Vec<Verdict> {
    std::iter::from_fn(|| pipeline.take_verdict()).collect()
}

/// The numbers of what left, in the order of leaving.
pub(crate) fn numbers(left: &[Departure]) -> Vec<u64> {
    left.iter().map(|departure| departure.index).collect()
}
