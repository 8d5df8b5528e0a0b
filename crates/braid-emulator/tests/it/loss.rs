//! Loss, duplication and corruption.

use std::collections::HashSet;

use braid_emulator::{CounterPrf, Direction, Loss, LossModel};

use crate::drive::{link, ms, numbers, offer, up, us, verdicts};
use crate::statistics::{assert_fits, assert_share, run_lengths};

const PACKETS: u32 = 200_000;

/// Losses of a model among packets 1 to `count`.
fn losses(text: &str, seed: u64, count: u64) -> Vec<bool> {
    let model: Loss = link(&format!("loss={text}")).up.start.loss.unwrap();
    let (mut model, prf) = (LossModel::new(model), CounterPrf::new(seed, Direction::Up));
    (1..=count).map(|n| model.step(&prf, n, false)).collect()
}

fn lost(flags: &[bool]) -> u64 {
    flags.iter().filter(|&&lost| lost).count() as u64
}

#[test]
fn independent_loss_has_its_share_and_no_memory() {
    for (seed, share) in [(1, 0.001), (2, 0.01), (3, 0.3), (4, 0.5)] {
        let text = format!("loss={}%", share * 100.0);
        let mut pipeline = up(&text, seed);
        let left = offer(&mut pipeline, PACKETS, 100, us(10));
        let lost = pipeline.counters().lost.packets;
        assert_eq!(left.len() as u64 + lost, u64::from(PACKETS));
        assert_share(&text, lost, u64::from(PACKETS), share);
    }
    let flags = losses("30%", 3, 200_000);
    let (observed, expected) = run_lengths(&flags, 0.7, 7);
    assert_fits("runs of independent loss", &observed, &expected);
}

#[test]
fn all_and_nothing_are_exact() {
    assert_eq!(lost(&losses("100%", 1, 10_000)), 10_000);
    assert_eq!(lost(&losses("0%", 1, 10_000)), 0);
}

#[test]
fn gilbert_elliott_loses_in_bursts_of_the_right_lengths() {
    // p = 2 %, r = 25 %: 2/27 of the packets are in the bad state, for 4 of them on average.
    for seed in 1..=5 {
        let flags = losses("gemodel:2%,25%", seed, 400_000);
        let (observed, expected) = run_lengths(&flags, 0.25, 15);
        assert_fits("bursts", &observed, &expected);
        let gaps: Vec<bool> = flags.iter().map(|lost| !lost).collect();
        let (observed, expected) = run_lengths(&gaps, 0.02, 40);
        assert_fits("gaps", &observed, &expected);
        let share = lost(&flags) as f64 / 400_000.0;
        assert!((share - 2.0 / 27.0).abs() < 0.004, "{share}");
    }
}

#[test]
fn gilbert_elliott_loses_in_both_states() {
    // Half of the time in each state: (20 % + 80 %) / 2.
    let flags = losses("gemodel:10%,10%,80%,20%", 9, 400_000);
    let share = lost(&flags) as f64 / 400_000.0;
    assert!((share - 0.5).abs() < 0.01, "{share}");
}

#[test]
fn the_four_states_are_visited_as_often_as_their_chain_says() {
    // Only p13 and p31: bursts of mean length 1/p31.
    let flags = losses("state:2%,50%", 4, 400_000);
    let (observed, expected) = run_lengths(&flags, 0.5, 8);
    assert_fits("bursts of state", &observed, &expected);
    // Only p14: isolated losses, so the share is p14 / (1 + p14).
    let flags = losses("state:0%,100%,0%,100%,10%", 4, 400_000);
    assert!(flags.windows(2).all(|pair| pair != [true, true]), "isolated");
    let share = lost(&flags) as f64 / 400_000.0;
    assert!((share - 0.1 / 1.1).abs() < 0.002, "{share}");
    // Bursts with receptions inside: balance of p13 = 5 %, p31 = 10 %, p32 = 30 %, p23 = 60 % gives the shares
    // received in a gap 1 : lost in a burst 0.5 : received in a burst 0.25.
    let flags = losses("state:5%,10%,30%,60%", 4, 400_000);
    let share = lost(&flags) as f64 / 400_000.0;
    assert!((share - 0.5 / 1.75).abs() < 0.01, "{share}");
}

#[test]
fn a_pattern_loses_these_packets() {
    let mut pipeline = up("loss=pattern:3,7,9-12", 1);
    let left = offer(&mut pipeline, 14, 100, ms(1));
    assert_eq!(numbers(&left), [1, 2, 4, 5, 6, 8, 13, 14]);
}

#[test]
fn duplicates_have_their_share_and_are_never_duplicated_again() {
    let mut pipeline = up("dup=20%", 8);
    let left = offer(&mut pipeline, PACKETS, 100, us(10));
    let copies = left.iter().filter(|departure| departure.copy).count() as u64;
    assert_share("dup", copies, u64::from(PACKETS), 0.2);
    assert_eq!(left.len() as u64, u64::from(PACKETS) + copies);
    let once: HashSet<_> = left.iter().map(|departure| (departure.index, departure.copy)).collect();
    assert_eq!(once.len(), left.len());
    assert_eq!(pipeline.counters().duplicated.packets, copies);
}

#[test]
fn corruption_flips_one_bit_anywhere() {
    let mut pipeline = up("corrupt=20%", 5);
    let size = 40;
    let left = offer(&mut pipeline, 50_000, size, us(10));
    let mut positions = vec![0_u64; size * 8];
    for departure in &left {
        let flipped: Vec<u8> = departure.bytes.iter().map(|byte| byte ^ 0x45).collect();
        match flipped.iter().map(|byte| byte.count_ones()).sum::<u32>() {
            0 => {}
            1 => {
                let byte = flipped.iter().position(|&byte| byte != 0).unwrap();
                positions[byte * 8 + flipped[byte].leading_zeros() as usize] += 1;
            }
            more => panic!("{more} bits"),
        }
    }
    let corrupted = positions.iter().sum();
    assert_share("corrupt", corrupted, 50_000, 0.2);
    assert!(positions.iter().all(|&count| count > 0), "no bit is spared");
    let each = corrupted as f64 / positions.len() as f64;
    assert_fits("bit positions", &positions, &vec![each; positions.len()]);
    let mut told = vec![0_u64; size * 8];
    for bit in verdicts(&mut pipeline).iter().filter_map(|verdict| verdict.corrupted) {
        told[usize::try_from(bit).unwrap()] += 1;
    }
    assert_eq!(told, positions, "the verdicts name the bits");
}
