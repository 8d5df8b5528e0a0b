//! Delay, jitter, reordering.

use std::time::Duration;

use braid_emulator::{Delay, Distribution, Fate};

use crate::drive::{ms, numbers, offer, up, us, verdicts};
use crate::statistics::{assert_fits, assert_share};

#[test]
fn a_constant_delay_is_exact_and_keeps_the_order() {
    let mut pipeline = up("delay=50ms", 1);
    let left = offer(&mut pipeline, 1000, 100, us(300));
    assert_eq!(numbers(&left), (1..=1000).collect::<Vec<_>>());
    for (n, departure) in (0..).zip(&left) {
        assert_eq!(departure.due, us(300) * n + ms(50));
    }
}

#[test]
fn nothing_leaves_before_its_time() {
    let mut pipeline = up("delay=50ms", 1);
    pipeline.handle(ms(10), &[0x45; 40]);
    assert_eq!(pipeline.next_due(), Some(ms(60)));
    assert_eq!(pipeline.take_due(ms(60) - Duration::from_nanos(1)), None);
    let departure = pipeline.take_due(ms(61)).map(|departure| (departure.due, departure.bytes));
    assert_eq!(departure, Some((ms(60), vec![0x45; 40])));
    assert_eq!(pipeline.next_due(), None);
}

#[test]
fn uniform_jitter_is_even_and_overtakes() {
    let mut pipeline = up("delay=50ms jitter=10ms", 3);
    let spacing = ms(1);
    let left = offer(&mut pipeline, 40_000, 100, spacing);
    let mut cells = [0_u64; 20];
    for departure in &left {
        let delay = departure.due - spacing * (u32::try_from(departure.index).unwrap() - 1);
        assert!(delay >= ms(40) && delay < ms(60), "{delay:?}");
        cells[usize::try_from(delay.as_millis()).unwrap() - 40] += 1;
    }
    assert_fits("uniform jitter", &cells, &[2000.0; 20]);
    assert!(left.windows(2).all(|pair| pair[0].due <= pair[1].due), "sorted by due time");
    let overtaken = left.windows(2).filter(|pair| pair[0].index > pair[1].index).count();
    assert!(overtaken > 10_000, "{overtaken}");
}

#[test]
fn tables_have_the_mean_and_deviation_they_claim() {
    // (distribution, mean, standard deviation of the table in jitters; the Pareto tail is cut at 4)
    for (distribution, mean, deviation) in
        [(Distribution::Normal, 0.0, 1.0), (Distribution::Pareto, -0.04, 0.75)]
    {
        let delay = Delay::new(ms(100), ms(10), &distribution);
        let rolls = (0..4096_u64).map(|n| (n << 52) + 1);
        let samples: Vec<f64> = rolls.map(|roll| delay.sample(roll) as f64 / 1e7 - 10.0).collect();
        let found = samples.iter().sum::<f64>() / 4096.0;
        let spread = (samples.iter().map(|x| (x - found).powi(2)).sum::<f64>() / 4096.0).sqrt();
        assert!((found - mean).abs() < 0.02, "{distribution}: mean {found}");
        assert!((spread - deviation).abs() < 0.05, "{distribution}: deviation {spread}");
    }
    let quartile = Delay::new(ms(100), ms(10), &Distribution::Normal).sample(u64::MAX / 4);
    assert!((quartile as f64 / 1e6 - 93.2551).abs() < 0.01, "the lower quartile of a normal one: {quartile}");
}

#[test]
fn a_table_of_the_users_own() {
    let mut pipeline = up("delay=50ms jitter=10ms dist=table:-1,0,0,2.5", 3);
    let left = offer(&mut pipeline, 8000, 100, ms(1));
    let count = |wanted| left.iter().filter(|d| d.due - ms(d.index - 1) == wanted).count() as u64;
    assert_fits("table", &[count(ms(40)), count(ms(50)), count(ms(75))], &[2000.0, 4000.0, 2000.0]);
}

#[test]
fn a_negative_delay_is_none() {
    let mut pipeline = up("delay=1ms jitter=5ms", 3);
    for departure in offer(&mut pipeline, 1000, 100, ms(10)) {
        let delay = departure.due - ms(10 * (departure.index - 1));
        assert!(delay < ms(6));
    }
}

#[test]
fn reordered_packets_leave_at_once_and_ahead() {
    let mut pipeline = up("delay=10ms reorder=25%", 5);
    let left = offer(&mut pipeline, 20_000, 100, ms(1));
    let mut overtook = 0;
    for departure in &left {
        match departure.due - ms(departure.index - 1) {
            Duration::ZERO => overtook += 1,
            delay => assert_eq!(delay, ms(10)),
        }
    }
    assert_share("reorder", overtook, 20_000, 0.25);
    assert_eq!(pipeline.counters().overtook.packets, overtook);
    let told = verdicts(&mut pipeline).iter().filter(|v| matches!(v.fate, Fate::Overtook { .. })).count();
    assert_eq!(told as u64, overtook);
    let first = left.iter().position(|d| d.due == ms(d.index - 1)).unwrap();
    assert!(first == 0 || left[first].index > left[first + 1].index, "it overtakes those that wait");
}

#[test]
fn overtaking_is_independent_of_the_delay_of_others() {
    let mut pipeline = up("delay=50ms jitter=10ms reorder=25%", 5);
    let mut cells = [0_u64; 20];
    for departure in offer(&mut pipeline, 40_000, 100, ms(1)) {
        let delay = departure.due - ms(departure.index - 1);
        if !delay.is_zero() {
            cells[usize::try_from(delay.as_millis()).unwrap() - 40] += 1;
        }
    }
    let each = cells.iter().sum::<u64>() as f64 / 20.0;
    assert_fits("jitter of those that do not overtake", &cells, &[each; 20]);
}
