//! Combined stages in the semantics of netem: count = 1, +1 for a duplicate, -1 for a loss.

use std::collections::HashMap;

use crate::drive::{ms, offer, up, us};
use crate::statistics::{assert_fits, assert_share};

const PACKETS: u64 = 200_000;

#[test]
fn dup_70_and_loss_30_lose_9_percent() {
    for seed in 1..=3 {
        let mut pipeline = up("dup=70% loss=30%", seed);
        let left = offer(&mut pipeline, u32::try_from(PACKETS).unwrap(), 100, us(10));
        let mut copies: HashMap<u64, u64> = HashMap::new();
        for departure in &left {
            *copies.entry(departure.index).or_default() += 1;
        }
        let arrived = |times| copies.values().filter(|&&count| count == times).count() as u64;
        assert_share("never arrived", PACKETS - copies.len() as u64, PACKETS, 0.09);
        // Twice: duplicated (0.7), not lost (0.7), and the duplicate not lost either (0.7).
        let observed = [PACKETS - copies.len() as u64, arrived(1), arrived(2)];
        let twice = 0.7 * 0.7 * 0.7;
        let expected = [0.09, 1.0 - 0.09 - twice, twice].map(|share| share * PACKETS as f64);
        assert_fits("times arrived", &observed, &expected);
    }
}

#[test]
fn a_duplicate_rolls_its_own_corruption_and_delay() {
    let mut pipeline = up("dup=100% corrupt=30% delay=50ms jitter=10ms", 4);
    let left = offer(&mut pipeline, 20_000, 100, ms(1));
    let flipped = |bytes: &[u8]| bytes.iter().any(|&byte| byte != 0x45);
    let mut pairs: HashMap<u64, [Option<(bool, std::time::Duration)>; 2]> = HashMap::new();
    for departure in &left {
        pairs.entry(departure.index).or_default()[usize::from(departure.copy)] =
            Some((flipped(&departure.bytes), departure.due));
    }
    let mut cells = [0_u64; 4];
    let mut same_delay = 0;
    for pair in pairs.values() {
        let [Some((original, due)), Some((copy, copy_due))] = *pair else { panic!("{pair:?}") };
        cells[usize::from(original) * 2 + usize::from(copy)] += 1;
        same_delay += u64::from(due == copy_due);
    }
    let expected = [0.49, 0.21, 0.21, 0.09].map(|share| share * 20_000.0);
    assert_fits("corruption of original and duplicate", &cells, &expected);
    assert!(same_delay < 3, "{same_delay} of 20,000 duplicates have the delay of their original");
}

#[test]
fn loss_and_corruption_together() {
    // The seeds' last row: 30 % lost, and 20 % of the rest has a wrong bit: 44 % useless.
    let mut pipeline = up("loss=30% corrupt=20%", 6);
    offer(&mut pipeline, u32::try_from(PACKETS).unwrap(), 100, us(10));
    let counters = pipeline.counters();
    let useless = counters.lost.packets + counters.corrupted.packets;
    assert_share("useless", useless, PACKETS, 0.44);
}

#[test]
fn the_duplicate_counts_for_the_limit_before_its_original() {
    // Room for two: the duplicate of the first takes one, the original another; the second packet finds none.
    let mut pipeline = up("dup=100% delay=10ms limit=2p", 1);
    let left = offer(&mut pipeline, 2, 100, ms(1));
    let order: Vec<_> = left.iter().map(|departure| (departure.index, departure.copy)).collect();
    assert_eq!(order, [(1, true), (1, false)]);
    let counters = pipeline.counters();
    assert_eq!((counters.duplicated.packets, counters.queue_full.packets), (1, 1));
}
