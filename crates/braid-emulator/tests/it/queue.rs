//! Queue limits, rates, MTU, and where packets wait.

use std::collections::HashSet;
use std::time::Duration;

use braid_emulator::{Fate, PathCounters};

use crate::drive::{ms, numbers, offer, serve, up, us, verdicts};

fn in_order(counters: &PathCounters) {
    let dropped =
        [counters.policed, counters.lost, counters.queue_full, counters.forgotten, counters.too_big];
    let settled: u64 = dropped.iter().map(|tally| tally.packets).sum::<u64>() + counters.sent.packets;
    assert_eq!(counters.offered.packets + counters.duplicated.packets, settled + counters.queued.packets);
}

#[test]
fn the_limit_counts_the_packets_being_delayed() {
    // 10 packets in 100 ms: of one each 5 ms every second is dropped, once the queue is full.
    let mut pipeline = up("delay=100ms limit=10p", 1);
    let left = offer(&mut pipeline, 400, 100, ms(5));
    assert_eq!(numbers(&left)[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 21, 22]);
    assert_eq!(left.len(), 200);
    let full = verdicts(&mut pipeline).iter().filter(|verdict| verdict.fate == Fate::QueueFull).count();
    assert_eq!(full, 200);
    in_order(pipeline.counters());
}

#[test]
fn the_limit_counts_bytes_too() {
    let mut pipeline = up("delay=100ms limit=10p/2kb", 1);
    for size in [1000, 1000, 49, 48, 1] {
        pipeline.handle(ms(0), &vec![0x45; size]);
    }
    let counters = *pipeline.counters();
    assert_eq!((counters.queue_full.bytes, counters.queued.bytes), (49 + 1, 2048));
    in_order(&counters);
}

#[test]
fn due_packets_do_not_count_before_they_are_taken() {
    let mut pipeline = up("limit=1p", 1);
    for _ in 0..100 {
        pipeline.handle(ms(1), &[0x45; 60]);
    }
    assert_eq!(pipeline.counters().queue_full.packets, 0);
    let mut left = Vec::new();
    serve(&mut pipeline, ms(1), &mut left);
    assert_eq!(numbers(&left), (1..=100).collect::<Vec<_>>());
}

#[test]
fn a_rate_serialises_behind_the_last() {
    // 1250 bytes at 10 Mbit/s occupy the line for 1 ms.
    let mut pipeline = up("rate=10mbit", 1);
    let left = offer(&mut pipeline, 10, 1250, us(100));
    let due: Vec<Duration> = left.iter().map(|departure| departure.due).collect();
    assert_eq!(due, (1..=10).map(ms).collect::<Vec<_>>());
}

#[test]
fn a_rate_in_packets_does_not_see_sizes() {
    let mut pipeline = up("rate=100pps", 1);
    for size in [40, 1500, 600] {
        pipeline.handle(ms(0), &vec![0x45; size]);
    }
    let mut left = Vec::new();
    serve(&mut pipeline, ms(1000), &mut left);
    assert_eq!(left.iter().map(|departure| departure.due).collect::<Vec<_>>(), [ms(10), ms(20), ms(30)]);
}

#[test]
fn netem_lets_the_delay_pass_while_packets_wait_for_the_rate() {
    // Alone a packet takes 5 + 1 ms; in a queue the next one leaves 1 ms later, whatever the delay.
    let mut pipeline = up("rate=10mbit delay=5ms", 1);
    let left = offer(&mut pipeline, 10, 1250, us(10));
    let due: Vec<Duration> = left.iter().map(|departure| departure.due).collect();
    assert_eq!(due, (6..=15).map(ms).collect::<Vec<_>>());
}

#[test]
fn netem_counts_what_is_delayed_and_a_line_only_what_waits_for_it() {
    // 1250 bytes each 2 ms on a line of 1 ms a packet: never more than one waits, but 50 are on their way.
    let mut netem = up("rate=10mbit delay=100ms limit=4p", 1);
    let mut line = up("rate=10mbit delay=100ms limit=4p order=line", 1);
    assert_eq!(offer(&mut line, 1000, 1250, ms(2)).len(), 1000);
    assert!(offer(&mut netem, 1000, 1250, ms(2)).len() < 100);
    // A burst: four wait, or are on the line; each leaves 1 ms after the one before, and 100 ms later it arrives.
    let mut line = up("rate=10mbit delay=100ms limit=4p order=line", 1);
    let left = offer(&mut line, 10, 1250, us(1));
    assert_eq!(left.iter().map(|d| d.due).collect::<Vec<_>>(), [ms(101), ms(102), ms(103), ms(104)]);
    assert_eq!(line.counters().queue_full.packets, 6);
}

#[test]
fn packets_above_the_mtu_are_dropped() {
    let mut pipeline = up("mtu=1280 delay=1ms", 1);
    for size in [1280, 1281, 40] {
        pipeline.handle(ms(0), &vec![0x45; size]);
    }
    let mut left = Vec::new();
    serve(&mut pipeline, ms(10), &mut left);
    assert_eq!(numbers(&left), [1, 3]);
    assert_eq!(pipeline.counters().too_big.bytes, 1281);
    assert_eq!(pipeline.counters().largest, 1281);
    in_order(pipeline.counters());
}

#[test]
fn the_counters_add_up_whatever_happens() {
    let text = "policer=2000pps/50 dup=20% loss=5% corrupt=1% limit=30p rate=8mbit delay=5ms jitter=3ms reorder=10% mtu=900";
    let mut pipeline = up(text, 2);
    let mut left = Vec::new();
    for n in 0..20_000_u32 {
        let now = us(300) * n;
        serve(&mut pipeline, now, &mut left);
        pipeline.handle(now, &vec![0x45; 100 + (n as usize * 37) % 850]);
        in_order(pipeline.counters());
    }
    serve(&mut pipeline, ms(100_000), &mut left);
    let counters = *pipeline.counters();
    in_order(&counters);
    assert_eq!((counters.queued.packets, counters.queued.bytes), (0, 0));
    assert_eq!(counters.sent.packets, left.len() as u64);
    for tally in [counters.policed, counters.lost, counters.queue_full, counters.too_big, counters.corrupted]
    {
        assert!(tally.packets > 0, "{counters:?}");
    }
    assert_eq!(verdicts(&mut pipeline).len() as u64, counters.offered.packets + counters.duplicated.packets);
}

#[test]
fn buffers_are_used_again() {
    let mut pipeline = up("delay=10ms jitter=5ms", 1);
    let mut buffers = HashSet::new();
    for n in 0..50_000_u32 {
        let now = us(100) * n;
        pipeline.handle(now, &[0x45; 1400]);
        while let Some(departure) = pipeline.take_due(now) {
            buffers.insert(departure.bytes.as_ptr());
            pipeline.recycle(departure.bytes);
        }
    }
    assert!(buffers.len() <= 256, "{} buffers for at most 150 packets inside", buffers.len());
}

#[test]
fn verdicts_that_are_not_taken_are_bounded() {
    let mut pipeline = up("loss=100%", 1);
    offer(&mut pipeline, 70_000, 40, us(1));
    let kept = verdicts(&mut pipeline).len() as u64;
    assert_eq!(kept + pipeline.counters().verdicts_dropped, 70_000);
    assert_eq!(kept, 65_536);
}

#[test]
fn packets_that_are_not_taken_are_bounded() {
    for text in ["", "match=udp"] {
        let mut pipeline = up(text, 1);
        for _ in 0..70_000 {
            pipeline.handle(ms(1), &[0x45; 1]);
        }
        let counters = pipeline.counters();
        assert_eq!(
            (counters.queued.packets, counters.queue_full.packets),
            (65_536, 70_000 - 65_536),
            "{text}"
        );
    }
}

#[test]
fn a_direction_may_live_in_a_thread_of_its_own() {
    fn sent<T: Send>(value: T) -> T {
        value
    }
    assert_eq!(sent(up("nat=rebind:1s", 1)).next_due(), None);
}
