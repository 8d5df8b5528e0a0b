//! Random operations of several clients on many streams over a bad network, compared with a naive model of the
//! deliveries to each.
//!
//! `BRAID_SEEDS=0..5000` runs other seeds than the default ones.

mod client;
mod connections;
mod model;
mod operations;
mod wire;
mod world;

use std::ops::Range;

use tokio::runtime::Builder;

use crate::support::Seed;
use world::{Seen, World};

const SEEDS: Range<u64> = 0..200;
const OPERATIONS: usize = 60;

/// Every run has its own clock and tasks: a seed determines a run.
fn run(seed: u64) -> Seen {
    let _named = Seed(seed);
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let mut world = World::new(seed).await;
        world.begin().await;
        for _ in 0..OPERATIONS {
            world.step().await;
        }
        world.finish_all().await
    })
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("BRAID_SEEDS") else { return SEEDS };
    let (first, last) = text.split_once("..").unwrap_or(("0", &text));
    let number =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("BRAID_SEEDS={text:?} is not FIRST..LAST"));
    number(first)..number(last)
}

// [BQ-14], [BQ-15], [BQ-16], [BQ-20], [BQ-21], [BQ-22], [BQ-24], [BQ-30], [BQ-32], [BQ-34], [BQ-35], [BQ-40], [BQ-41],
// [BQ-42], [BQ-43], [BQ-54], [BQ-70]
#[test]
fn clients_on_many_streams_get_what_they_must_whatever_they_do() {
    let mut all = Seen::default();
    let mut runs = 0;
    for seed in seeds() {
        all.add(run(seed));
        runs += 1;
    }
    println!("{runs} runs: {all:?}");
    // The model must not be right for lack of events or knowledge.
    let is_much = all.received > 100 * runs && all.known * 2 > all.pairs && all.streams_ended > 2 * runs;
    assert!(is_much || runs < 20, "{runs} runs: {all:?}");
    // Connections survive migrations.
    assert!(all.starved * 50 <= all.moves, "{runs} runs: {all:?}");
}
