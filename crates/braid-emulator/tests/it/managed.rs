//! Managed queues: CoDel, FQ-CoDel and marks of ECN.

use std::time::Duration;

use braid_emulator::{Fate, PathSpec, Pipeline, Verdict};

use crate::drive::{link, ms, numbers, serve, up, us, verdicts};

/// An IPv4 packet of UDP from this port, with these bits of ECN and a good checksum.
fn packet(port: u16, ecn: u8, size: usize) -> Vec<u8> {
    let mut packet = vec![0x45, ecn, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0; 6]);
    packet.resize(size, 0);
    packet
}

/// The ones' complement sum of a header, 0xffff if its checksum is right.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}

/// Offers a packet each `spacing` until `end`, and returns all verdicts.
fn load(pipeline: &mut Pipeline, packet: &[u8], spacing: Duration, end: Duration) -> Vec<Verdict> {
    let (mut now, mut left) = (Duration::ZERO, Vec::new());
    while now < end {
        serve(pipeline, now, &mut left);
        pipeline.handle(now, packet);
        now += spacing;
    }
    serve(pipeline, Duration::from_secs(10_000), &mut left);
    verdicts(pipeline)
}

fn dropped(verdicts: &[Verdict]) -> Vec<&Verdict> {
    verdicts.iter().filter(|verdict| verdict.fate == Fate::Managed).collect()
}

#[test]
fn codel_drops_nothing_below_its_target() {
    // 1250 bytes take 1 ms: bursts of five each 10 ms wait for at most 4 ms.
    let mut pipeline = up("queue=codel rate=10mbit", 1);
    let mut left = Vec::new();
    for n in 0..1000 {
        let now = ms(10) * n;
        serve(&mut pipeline, now, &mut left);
        (0..5).for_each(|_| pipeline.handle(now, &packet(1, 0, 1250)));
    }
    serve(&mut pipeline, ms(100_000), &mut left);
    assert_eq!(numbers(&left), (1..=5000).collect::<Vec<_>>());
    assert_eq!(pipeline.counters().managed.packets, 0);
}

/// Drops follow the control law: the first after 100 ms above the target, then sooner and sooner (RFC 8289, 4.3).
#[test]
fn codel_drops_sooner_and_sooner_while_the_queue_stays() {
    // A packet of 1 ms each 0.9 ms.
    let mut pipeline = up("queue=codel rate=10mbit", 1);
    let told = load(&mut pipeline, &packet(1, 0, 1250), us(900), ms(2000));
    // A drop happens when the packet is taken from the queue, which is when the next one leaves less 1 ms.
    let taken: Vec<f64> = dropped(&told)
        .iter()
        .map(|lost| {
            let next = told.iter().find_map(|verdict| match verdict.fate {
                Fate::Sent { due } if verdict.index > lost.index => Some(due - ms(1)),
                _ => None,
            });
            next.unwrap().as_secs_f64() * 1000.0
        })
        .collect();
    // The wait first exceeds 5 ms after 46 packets of 0.1 ms more each, at 51 ms.
    assert!((145.0..160.0).contains(&taken[0]), "{taken:?}");
    let mut next = taken[0] + 100.0;
    for (n, at) in taken.iter().enumerate().skip(1).take(10) {
        assert!((at - next).abs() <= 1.5, "drop {n} at {at}, expected {next}: {taken:?}");
        next += 100.0 / ((n + 1) as f64).sqrt();
    }
    assert_eq!(pipeline.counters().queue_full.packets, 0);
}

#[test]
fn codel_marks_what_may_be_marked_in_place_of_drops() {
    for (ecn, is_marked) in [(0b10, true), (0b01, true), (0b11, true), (0b00, false)] {
        let mut pipeline = up("queue=codel ecn=on rate=10mbit", 1);
        let mut left = Vec::new();
        for n in 0..2000 {
            let now = us(900) * n;
            serve(&mut pipeline, now, &mut left);
            pipeline.handle(now, &packet(1, ecn, 1250));
        }
        serve(&mut pipeline, ms(100_000), &mut left);
        let counters = *pipeline.counters();
        assert_eq!(counters.marked.packets > 0, is_marked, "{ecn:02b}");
        assert_eq!(counters.managed.packets > 0, !is_marked, "{ecn:02b}");
        let told = verdicts(&mut pipeline);
        assert_eq!(told.iter().filter(|verdict| verdict.is_marked).count() as u64, counters.marked.packets);
        for departure in &left {
            let verdict = told.iter().find(|verdict| verdict.index == departure.index).unwrap();
            let expected = if verdict.is_marked { 0b11 } else { ecn };
            assert_eq!(departure.bytes[1], expected);
            assert_eq!(checksum(&departure.bytes[..20]), 0xffff, "the checksum of the header is right");
        }
    }
}

#[test]
fn packets_that_waited_longer_are_marked() {
    let mut pipeline = up("ecn=3ms rate=10mbit", 1);
    (0..6).for_each(|_| pipeline.handle(ms(0), &packet(1, 0b10, 1250)));
    let mut v6 = vec![0x60, 0x10, 0, 0, 0, 0, 17, 64];
    v6.extend([0; 32]);
    v6.resize(1250, 0);
    pipeline.handle(ms(0), &v6);
    let mut left = Vec::new();
    serve(&mut pipeline, ms(100), &mut left);
    let marks: Vec<_> = left[..6].iter().map(|departure| departure.bytes[1] == 0b11).collect();
    assert_eq!(marks, [false, false, false, false, true, true], "the fifth begins after 4 ms");
    assert_eq!(left[6].bytes[..2], [0x60, 0x30], "IPv6");
    assert_eq!(pipeline.counters().marked.packets, 3);
}

#[test]
fn flows_take_turns_and_a_sparse_one_does_not_wait() {
    for (queue, most) in [("fq_codel", us(3200)), ("fifo", ms(1001))] {
        let mut pipeline = up(&format!("queue={queue} rate=10mbit limit=1000p order=line"), 1);
        let (mut now, mut left, mut worst) = (Duration::ZERO, Vec::new(), Duration::ZERO);
        for n in 0..2000_u32 {
            serve(&mut pipeline, now, &mut left);
            pipeline.handle(now, &packet(1, 0, 1250));
            pipeline.handle(now, &packet(2, 0, 1250));
            if n % 20 == 0 {
                pipeline.handle(now, &packet(3, 0, 200));
            }
            now += ms(1);
        }
        serve(&mut pipeline, ms(100_000), &mut left);
        let of = |port: u16| left.iter().filter(move |d| d.bytes[20..22] == port.to_be_bytes());
        let told = verdicts(&mut pipeline);
        for departure in of(3) {
            let arrived = told.iter().find(|verdict| verdict.index == departure.index).unwrap().at;
            worst = worst.max(departure.due - arrived);
        }
        // At the start all three flows are new: the quantum of both others, a packet on the line, and its own.
        assert!(worst <= most, "{queue}: {worst:?}");
        if queue == "fq_codel" {
            assert_eq!(of(3).count(), 100, "none of the sparse flow is dropped");
            let (a, b) = (of(1).count(), of(2).count());
            assert!(a.abs_diff(b) <= a / 10, "{a} {b}");
        } else {
            assert!(worst > ms(500));
        }
    }
}

#[test]
fn a_full_queue_drops_the_arrival_or_the_head_of_the_longest_flow() {
    let full = |queue: &str| {
        let mut pipeline = up(&format!("queue={queue} rate=10mbit limit=4p"), 1);
        // The first is taken by the line at once.
        (0..6).for_each(|_| pipeline.handle(ms(0), &packet(1, 0, 1250)));
        pipeline.handle(ms(0), &packet(2, 0, 100));
        let mut left = Vec::new();
        serve(&mut pipeline, ms(100), &mut left);
        assert_eq!(pipeline.counters().queue_full.packets, 2);
        numbers(&left)
    };
    assert_eq!(full("codel"), [1, 2, 3, 4, 5]);
    // The sixth and the seventh push out the second and the third; the long flow ends its turn first.
    assert_eq!(full("fq_codel"), [1, 4, 7, 5, 6]);
}

#[test]
fn the_counters_of_a_managed_queue_add_up() {
    let text = "policer=2000pps/50 dup=20% loss=5% corrupt=1% limit=60p queue=codel ecn=on rate=6mbit delay=5ms jitter=3ms mtu=900";
    let mut pipeline = up(text, 2);
    let mut left = Vec::new();
    for n in 0..20_000_u16 {
        let now = us(300) * n.into();
        serve(&mut pipeline, now, &mut left);
        pipeline.handle(now, &packet(n % 7, u8::try_from(n % 3).unwrap(), 100 + (usize::from(n) * 37) % 850));
    }
    serve(&mut pipeline, ms(100_000), &mut left);
    let counters = *pipeline.counters();
    let lost: u64 = counters.drops().iter().map(|(_, count)| count.packets).sum();
    assert_eq!(counters.offered.packets + counters.duplicated.packets, counters.sent.packets + lost);
    assert_eq!((counters.queued.packets, counters.queued.bytes), (0, 0));
    assert_eq!(counters.sent.packets, left.len() as u64);
    assert!(
        counters.managed.packets > 0 && counters.marked.packets > 0 && counters.queue_full.packets > 0,
        "{counters:?}"
    );
    assert_eq!(verdicts(&mut pipeline).len() as u64, counters.offered.packets + counters.duplicated.packets);
}

#[test]
fn a_packet_above_the_mtu_does_not_hold_up_the_line() {
    let mut pipeline = up("queue=fq_codel rate=10mbit mtu=1400 delay=300ms", 1);
    for size in [1500, 1250, 1250] {
        pipeline.handle(ms(0), &packet(1, 0, size));
    }
    let mut left = Vec::new();
    serve(&mut pipeline, ms(1000), &mut left);
    assert_eq!(left.iter().map(|departure| departure.due).collect::<Vec<_>>(), [ms(301), ms(302)]);
    assert_eq!(pipeline.counters().too_big.packets, 1);
}

#[test]
fn a_limit_in_bytes_is_kept() {
    let mut pipeline = up("queue=fq_codel rate=1mbit limit=40kb", 1);
    for n in 0..2000_u16 {
        // Many small packets of one flow, and large ones of others.
        pipeline.handle(ms(0), &if n < 1000 { packet(1, 0, 40) } else { packet(n, 0, 1500) });
        assert!(pipeline.counters().queued.bytes <= 40 * 1024 + 1500, "{:?}", pipeline.counters().queued);
    }
}

#[test]
fn a_managed_queue_that_loses_its_line_holds_nothing_back() {
    let mut pipeline = up("queue=codel rate=1mbit", 1);
    (0..10).for_each(|_| pipeline.handle(ms(0), &packet(1, 0, 1250)));
    let mut left = Vec::new();
    pipeline.change(ms(5), PathSpec::default());
    serve(&mut pipeline, ms(10), &mut left);
    assert_eq!(left.len(), 10);
    pipeline.handle(ms(20), &packet(1, 0, 1250));
    serve(&mut pipeline, ms(20), &mut left);
    assert_eq!(left.len(), 11);
    // One that comes back is not managed any more.
    pipeline.change(ms(30), link("rate=1mbit order=line").up.start);
    (0..3).for_each(|_| pipeline.handle(ms(40), &packet(1, 0, 1250)));
    serve(&mut pipeline, ms(1000), &mut left);
    assert_eq!(left.iter().skip(11).map(|d| d.due).collect::<Vec<_>>(), [ms(50), ms(60), ms(70)]);
}
