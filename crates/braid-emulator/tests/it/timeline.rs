//! Links that change with time, and the choice of packets.

use std::time::Duration;

use crate::drive::{link, ms, offer, up};
use crate::packets::{tcp, udp};

const S: u64 = 1000;

#[test]
fn a_policer_that_changes() {
    let mut pipeline = up("policer=29pps/5 ; t=60s policer=10pps/5 ; t=120s policer=29pps/5", 1);
    let left = offer(&mut pipeline, 180_000, 100, ms(1));
    let between =
        |from: u64, to: u64| left.iter().filter(|d| d.due >= ms(from * S) && d.due < ms(to * S)).count();
    assert_eq!(between(10, 60), 50 * 29);
    assert_eq!(between(60, 61), 5 + 9, "a new bucket is full");
    assert_eq!(between(70, 120), 50 * 10);
    assert_eq!(between(130, 180), 50 * 29);
}

#[test]
fn a_change_applies_from_its_time_and_not_to_queued_packets() {
    let mut pipeline = up("delay=100ms loss=100% ; t=1s loss=none ; t=2s delay=10ms", 1);
    let left = offer(&mut pipeline, 40, 100, ms(100));
    assert_eq!(left.len(), 30);
    let due = |index: u64| left.iter().find(|d| d.index == index).map(|d| d.due);
    assert_eq!(due(10), None);
    assert_eq!(due(11), Some(ms(1100)));
    assert_eq!(due(20), Some(ms(2000)));
    assert_eq!(due(21), Some(ms(2010)));
}

#[test]
fn a_bucket_that_does_not_change_is_not_refilled() {
    let mut pipeline = up("policer=1pps/5 ; t=1ms delay=1ms", 1);
    assert_eq!(offer(&mut pipeline, 100, 100, us_100()).len(), 5);
}

fn us_100() -> Duration {
    Duration::from_micros(100)
}

#[test]
fn a_change_by_hand() {
    let mut pipeline = up("", 1);
    pipeline.handle(ms(1), &[0x45; 40]);
    pipeline.change(ms(2), link("loss=100%").up.start);
    pipeline.handle(ms(3), &[0x45; 40]);
    pipeline.change(ms(4), link("delay=7ms").up.start);
    pipeline.handle(ms(5), &[0x45; 40]);
    let due = |pipeline: &mut braid_emulator::Pipeline| pipeline.take_due(ms(100)).map(|d| (d.index, d.due));
    assert_eq!(due(&mut pipeline), Some((1, ms(1))));
    assert_eq!(due(&mut pipeline), Some((3, ms(12))));
    assert_eq!(due(&mut pipeline), None);
}

#[test]
fn unselected_packets_pass_unchanged_and_at_once() {
    let mut pipeline = up("match=udp:14567,tcp:1883 delay=50ms policer=1pps/2", 1);
    let packets = [
        udp(4, 40_000, 14_567, b"quic"),
        udp(4, 40_000, 53, b"dns"),
        tcp(4, 1883, 40_000, 0x10, b"mqtt"),
        tcp(6, 40_000, 1883, 0x10, b"mqtt"),
        tcp(6, 22, 40_000, 0x10, b"ssh"),
        b"no packet".to_vec(),
        Vec::new(),
    ];
    packets.iter().for_each(|packet| pipeline.handle(ms(1), packet));
    let taken: Vec<_> = std::iter::from_fn(|| pipeline.take_due(ms(100)))
        .map(|departure| (departure.index, departure.due))
        .collect();
    assert_eq!(taken, [(2, ms(1)), (5, ms(1)), (6, ms(1)), (7, ms(1)), (1, ms(51)), (3, ms(51))]);
    assert_eq!(pipeline.counters().unmatched.packets, 4);
    assert_eq!(pipeline.counters().policed.packets, 1);
}

#[test]
fn link_headers_stay_out_of_everything() {
    let mut pipeline = up("corrupt=100% mtu=100", 1).with_link_header(14);
    let mut frame = vec![0xaa; 14];
    frame.extend_from_slice(&[0x45; 100]);
    for _ in 0..1000 {
        pipeline.handle(ms(1), &frame);
    }
    pipeline.handle(ms(1), &[0xaa; 5]);
    let mut taken = 0;
    while let Some(departure) = pipeline.take_due(ms(1)) {
        let header = &departure.bytes[..departure.bytes.len().min(14)];
        assert!(header.iter().all(|&byte| byte == 0xaa), "{header:?}");
        taken += 1;
    }
    assert_eq!(taken, 1001);
    assert_eq!(pipeline.counters().offered.bytes, 100_000);
    assert_eq!(pipeline.counters().corrupted.packets, 1000);
}
