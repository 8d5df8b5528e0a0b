//! The seed decides, not the time.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_emulator::{CounterPrf, Direction, Fate, Pipeline, Stage, Verdict};
use proptest::prelude::*;

use crate::drive::{link, ms, up, us, verdicts};
use crate::statistics::assert_fits;

const IMPAIRED: &str = "dup=20% loss=gemodel:3%,20% corrupt=5% delay=20ms jitter=5ms reorder=10%";

/// Whether a packet was lost, which bit of it flipped, how long it took.
type Decision = (bool, Option<u64>, Option<Duration>);

/// Decisions by packet number and copy.
fn decisions(verdicts: &[Verdict]) -> BTreeMap<(u64, bool), Decision> {
    let decision = |verdict: &Verdict| {
        let took = match verdict.fate {
            Fate::Sent { due } | Fate::Overtook { due } => Some(due - verdict.at),
            _ => None,
        };
        ((verdict.index, verdict.copy), (verdict.fate == Fate::Lost, verdict.corrupted, took))
    };
    verdicts.iter().map(decision).collect()
}

fn run(pipeline: &mut Pipeline, gaps: impl IntoIterator<Item = Duration>) -> Vec<Verdict> {
    let mut now = Duration::ZERO;
    for gap in gaps {
        now += gap;
        pipeline.handle(now, &[0x45; 200]);
    }
    while pipeline.take_due(Duration::from_secs(1_000_000)).is_some() {}
    verdicts(pipeline)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn equal_packets_have_equal_fates_at_any_time(
        gaps in prop::collection::vec(0_u64..50_000, 500),
        seed: u64,
    ) {
        let steady = run(&mut up(IMPAIRED, seed), (0..500).map(|_| ms(1)));
        let uneven = run(&mut up(IMPAIRED, seed), gaps.into_iter().map(us));
        prop_assert_eq!(decisions(&steady), decisions(&uneven));
    }
}

#[test]
fn drops_of_policer_and_queue_do_not_shift_decisions() {
    let whole = decisions(&run(&mut up(IMPAIRED, 5), (0..5000).map(|_| ms(1))));
    for text in [format!("policer=300pps/5 {IMPAIRED}"), format!("limit=7p {IMPAIRED}")] {
        let verdicts = run(&mut up(&text, 5), (0..5000).map(|_| ms(1)));
        let dropped = |v: &&Verdict| matches!(v.fate, Fate::Policed | Fate::QueueFull);
        assert!(verdicts.iter().filter(dropped).count() > 1000, "{text}");
        let rest: Vec<Verdict> = verdicts.iter().filter(|v| !dropped(v)).copied().collect();
        for (packet, decision) in decisions(&rest) {
            assert_eq!(whole.get(&packet), Some(&decision), "{text}: packet {packet:?}");
        }
    }
}

#[test]
fn seeds_directions_and_stages_are_independent() {
    let roll = |seed, direction, stage, copy| CounterPrf::new(seed, direction).roll(stage, 1, copy);
    let base = roll(1, Direction::Up, Stage::Loss, false);
    assert_eq!(base, roll(1, Direction::Up, Stage::Loss, false));
    assert_ne!(base, roll(2, Direction::Up, Stage::Loss, false));
    assert_ne!(base, roll(1, Direction::Down, Stage::Loss, false));
    assert_ne!(base, roll(1, Direction::Up, Stage::Corrupt, false));
    assert_ne!(base, roll(1, Direction::Up, Stage::Loss, true));
    let link = link("loss=50%");
    let (mut up, mut down) = Pipeline::pair(&link, 1);
    let lost = |pipeline: &mut Pipeline| {
        run(pipeline, (0..64).map(|_| ms(1))).iter().map(|v| v.fate == Fate::Lost).collect::<Vec<_>>()
    };
    assert_ne!(lost(&mut up), lost(&mut down));
}

#[test]
fn the_seed_of_the_link_takes_precedence() {
    let rolls =
        |text: &str, seed| decisions(&run(&mut Pipeline::pair(&link(text), seed).0, (0..99).map(|_| ms(1))));
    assert_eq!(rolls("loss=50% seed=7", 1), rolls("loss=50%", 7));
    assert_ne!(rolls("loss=50% seed=8", 7), rolls("loss=50%", 7));
}

#[test]
fn rolls_are_even_in_every_bit_and_between_neighbours() {
    let prf = CounterPrf::new(11, Direction::Up);
    let rolls: Vec<u64> = (0..65_536).map(|n| prf.roll(Stage::Loss, n, false)).collect();
    for shift in (0..64).step_by(4) {
        let mut cells = [0_u64; 16];
        rolls.iter().for_each(|roll| cells[usize::try_from(roll >> shift & 15).unwrap()] += 1);
        assert_fits(&format!("bits from {shift}"), &cells, &[4096.0; 16]);
    }
    let cell = |roll: &u64| usize::try_from(roll >> 61).unwrap();
    let mut pairs = [0_u64; 64];
    rolls.chunks(2).for_each(|pair| pairs[cell(&pair[0]) * 8 + cell(&pair[1])] += 1);
    assert_fits("neighbours", &pairs, &[512.0; 64]);
    let mut stages = [0_u64; 64];
    (0..65_536).zip(&rolls).for_each(|(n, roll)| {
        stages[cell(roll) * 8 + cell(&prf.roll(Stage::Duplicate, n, false))] += 1;
    });
    assert_fits("stages", &stages, &[1024.0; 64]);
}
