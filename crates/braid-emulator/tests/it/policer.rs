//! Token buckets.

use std::time::Duration;

use braid_emulator::Fate;

use crate::drive::{ms, offer, up, us, verdicts};

#[test]
fn a_burst_of_five_and_then_29_each_second() {
    let mut pipeline = up("policer=29pps/5", 1);
    let left = offer(&mut pipeline, 100_000, 1200, ms(1));
    let at = |from: u64, to: u64| left.iter().filter(|d| d.due >= ms(from) && d.due < ms(to)).count();
    assert_eq!(at(0, 5), 5, "the burst");
    // A token each 34.48 ms; at most one tick of the offers later it is used.
    for second in 0..99 {
        let passed = at(100 + second * 1000, 1100 + second * 1000);
        assert!((28..=29).contains(&passed), "{passed} in second {second}");
    }
    // 5 + floor(99.999 s x 29/s): no packet more, and none is lost to rounding.
    assert_eq!(left.len(), 5 + 2899);
    assert_eq!(pipeline.counters().policed.packets, 100_000 - 2904);
}

#[test]
fn each_token_comes_at_its_nanosecond_for_ten_minutes() {
    let mut pipeline = up("policer=29pps/5", 1);
    let packet = [0x45; 100];
    let mut passes = |now| {
        pipeline.handle(now, &packet);
        while pipeline.take_verdict().is_some() {}
        pipeline.take_due(now).is_some()
    };
    assert!((0..5).all(|_| passes(Duration::ZERO)));
    for token in 1..=600 * 29_u64 {
        let time = Duration::from_nanos((token * 1_000_000_000).div_ceil(29));
        assert!(!passes(time - Duration::from_nanos(1)), "token {token} is early");
        assert!(passes(time), "token {token} is late");
    }
}

#[test]
fn an_idle_bucket_fills_to_its_burst_and_not_beyond() {
    let mut pipeline = up("policer=10pps/3", 1);
    let mut passed = Vec::new();
    for now in [0, 0, 0, 0, 100, 100, 10_000, 10_000, 10_000, 10_000] {
        pipeline.handle(ms(now), &[0x45; 50]);
        passed.push(pipeline.take_due(ms(now)).is_some());
    }
    assert_eq!(passed, [true, true, true, false, true, false, true, true, true, false]);
    let policed = verdicts(&mut pipeline).iter().filter(|v| v.fate == Fate::Policed).count();
    assert_eq!(policed, 3);
}

#[test]
fn bytes_are_policed_by_size() {
    // 8000 bit/s are 1000 bytes/s.
    let mut pipeline = up("policer=8kbit/1500b", 1);
    let mut send = |now, size: usize| {
        pipeline.handle(now, &vec![0x45; size]);
        pipeline.take_due(now).is_some()
    };
    assert!(send(ms(0), 1000));
    assert!(!send(ms(0), 501));
    assert!(send(ms(0), 500));
    assert!(!send(ms(99), 100));
    assert!(send(ms(100), 100));
    assert!(!send(us(100_999), 1));
    assert!(send(ms(101), 1));
}

#[test]
fn xt_limit_passes_what_iptables_passes() {
    // 10000/29 = 344; 344 x 250 x 128 / 10000 = 1100 credits a packet; 250 x 128 / 1100 = 29.09 packets a second.
    let mut pipeline = up("policer=xt:29pps/5", 1);
    let left = offer(&mut pipeline, 110_001, 1200, ms(1));
    let credits: u64 = 344 * 5 * 250 * 128 / 10_000 + 110_000 / 4 * 128;
    assert_eq!(left.len() as u64, credits / 1100);
    let ticks = left.iter().skip(5).all(|departure| departure.due.as_millis().is_multiple_of(4));
    assert!(ticks, "credit comes each 4 ms");
}
