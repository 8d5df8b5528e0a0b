//! The threads of a link, between wires in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use braid_emulator::{Direction, PacketCount};
use braid_lab::wire::{Options, Reading, Running, start};
use rustix::process::nice;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::link::link;
use crate::packets::{answer, ports, tcp, udp};
use crate::wire_memory::{MemoryKernel, MemoryWire, memory_wire, until};

const EIO: i32 = 5;
const ENETDOWN: i32 = 100;
const ENOBUFS: i32 = 105;

/// A link between two plain wires, and the kernels at its left and right end.
fn between(text: &str) -> (Running, MemoryKernel, MemoryKernel) {
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    (run(text, left, right), left_kernel, right_kernel)
}

fn run(text: &str, left: MemoryWire, right: MemoryWire) -> Running {
    start(&link(text), 1, Box::new(left), Box::new(right), &Options::default()).unwrap()
}

/// UDP from left to right with a number as payload.
fn numbered(n: u32) -> Vec<u8> {
    udp(4, 5000, 14_567, &n.to_be_bytes())
}

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(kind.to_be_bytes());
    frame.extend(payload);
    frame
}

#[test]
fn packets_cross_whole_and_in_order_both_ways() {
    let (running, left, right) = between("delay=1ms");
    let packets: Vec<_> = (0..500).map(numbered).collect();
    left.offer(packets.clone());
    right.offer(packets.iter().take(100).map(|packet| answer(packet)));
    assert_eq!(right.take_many(500), packets);
    assert_eq!(left.take_many(100), packets[..100].iter().map(|packet| answer(packet)).collect::<Vec<_>>());
    let stopped = running.stop();
    assert_eq!(stopped.up.counters.sent, PacketCount { packets: 500, bytes: 500 * 32 });
    assert_eq!(stopped.down.counters.sent.packets, 100);
    assert_eq!((stopped.up.lateness.packets, stopped.down.lateness.packets), (500, 100));
    assert_eq!((stopped.up.unsent, stopped.up.missed), (PacketCount::default(), 3));
    assert_eq!((stopped.up.wire.as_str(), stopped.up.first_error), ("tun", None));
    assert!(stopped.up.lateness.p50_us <= stopped.up.lateness.p99_us);
    assert!(stopped.up.lateness.p99_us <= stopped.up.lateness.max_us);
    assert!(stopped.up.cpu > Duration::ZERO && stopped.up.elapsed >= Duration::from_millis(1));
}

#[test]
fn no_packet_leaves_before_it_is_due() {
    let (running, left, right) = between("delay=30ms");
    let offered = Instant::now();
    left.offer([numbered(1)]);
    assert_eq!(right.take(), numbered(1));
    assert!(offered.elapsed() >= Duration::from_millis(30));
    drop(running);
}

#[test]
fn no_packet_is_early_or_out_of_order() {
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    let options = Options { realtime: true, ..Options::default() };
    let running = start(&link("delay=5ms"), 1, Box::new(left), Box::new(right), &options).unwrap();
    for round in 0..10 {
        let offered = Instant::now();
        let packets: Vec<_> = (round * 50..round * 50 + 50).map(numbered).collect();
        left_kernel.offer(packets.clone());
        assert_eq!(right_kernel.take_many(50), packets);
        assert!(offered.elapsed() >= Duration::from_millis(5));
    }
    assert_eq!(running.stop().up.lateness.packets, 500);
}

#[test]
fn packets_that_waited_to_be_read_are_late() {
    const AGE: Duration = Duration::from_millis(30);
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    let running = run("delay=10ms", left.stamping(AGE), right);
    // Nothing is late before there is a link.
    until(&running, |_| running.elapsed() > AGE);
    for n in 0..10 {
        left_kernel.offer([numbered(n)]);
        assert_eq!(right_kernel.take(), numbered(n));
    }
    let stopped = running.stop();
    // Each left at once, 20 ms after it should have; all but the first came, by their stamps, before others had left.
    assert!(stopped.up.lateness.p50_us >= 20_000.0, "{:?}", stopped.up.lateness);
    assert_eq!((stopped.up.lateness.packets, stopped.up.reading), (10, Reading::Timestamps));
}

#[test]
fn packets_that_wait_for_a_processor_to_read_them_are_late() {
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    let allowed = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap());
    let (is_over, (started, hogged)) = (AtomicBool::new(false), channel());
    let stopped = thread::scope(|scope| {
        // A link that all other programs of one processor come before, and one of them that never rests.
        let modest = || {
            sched_setaffinity(None, &one).unwrap();
            nice(19).unwrap();
            run("", left, right)
        };
        let running = scope.spawn(modest).join().unwrap();
        scope.spawn(|| {
            sched_setaffinity(None, &one).unwrap();
            started.send(()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        hogged.recv().unwrap();
        for n in 0..3 {
            left_kernel.offer([numbered(n)]);
            assert_eq!(right_kernel.take(), numbered(n));
        }
        is_over.store(true, Ordering::Relaxed);
        running.stop()
    });
    assert_eq!((stopped.up.lateness.packets, stopped.up.reading), (3, Reading::RunQueue));
    assert!(stopped.up.lateness.max_us >= 1000.0, "{:?}", stopped.up.lateness);
}

#[test]
fn a_reply_goes_back_out_of_the_wire_that_was_read() {
    let (running, left, right) = between("nat=rst@1us");
    let segment = tcp(4, 5000, 1883, 0x10, b"publish");
    left.offer([segment]);
    let reset = left.take();
    assert_eq!((ports(&reset), reset[33] & 4), ((1883, 5000), 4), "a RST from the server");
    let stopped = running.stop();
    assert_eq!(stopped.up.counters.forgotten.packets, 1);
    assert_eq!(right.rest(), Vec::<Vec<u8>>::new());
}

#[test]
fn a_link_stops_at_once_and_drops_its_wires() {
    let (running, left, right) = between("delay=3600s");
    left.offer([numbered(1), numbered(2)]);
    until(&running, |[up, _]| up.offered.packets == 2);
    let stopped = running.stop();
    assert_eq!(stopped.up.counters.queued.packets, 2);
    assert_eq!((stopped.up.lateness.packets, stopped.up.counters.sent.packets), (0, 0));
    right.until_dropped();

    let (running, left, _right) = between("delay=3600s");
    drop(running);
    left.until_dropped();
}

#[test]
fn counters_can_be_seen_while_it_runs() {
    let (running, left, right) = between("loss=pattern:2");
    left.offer((1..=3).map(numbered));
    assert_eq!(right.take_many(2), [numbered(1), numbered(3)]);
    until(&running, |[up, _]| up.sent.packets == 2);
    let [up, down] = running.counters();
    assert_eq!((up.offered.packets, up.lost.packets, down.offered.packets), (3, 1, 0));
    // And those that come within the same 20 ms, with nothing after them.
    left.offer([numbered(4)]);
    until(&running, |[up, _]| up.sent.packets == 3);
}

#[test]
fn unsent_packets_are_counted_and_reported() {
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    let right = right.refusing(|frame| match frame.last() {
        Some(7) => Some(ENOBUFS),
        Some(8) => Some(EIO),
        _ => None,
    });
    let running = run("delay=1ms", left, right);
    left_kernel.offer((0..100).map(numbered));
    let arrived = right_kernel.take_many(98);
    assert_eq!(arrived, (0..100).filter(|n| !matches!(n, 7 | 8)).map(numbered).collect::<Vec<_>>());
    let stopped = running.stop();
    assert_eq!(stopped.up.unsent, PacketCount { packets: 2, bytes: 64 });
    assert_eq!(stopped.up.counters.sent.packets, 100, "the emulator let them go");
    assert_eq!(stopped.up.lateness.packets, 98);
    let error = stopped.up.first_error.unwrap();
    assert!(error.starts_with("sending to memory: No buffer space"), "{error}");
}

#[test]
fn a_device_that_was_down_is_read_again() {
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    let running = run("", left.failing(&[ENETDOWN, ENETDOWN]), right);
    left_kernel.offer([numbered(1)]);
    assert_eq!(right_kernel.take(), numbered(1));
    let error = running.stop().up.first_error.unwrap();
    assert!(error.starts_with("reading memory: Network is down"), "{error}");
}

#[test]
fn packets_after_a_change_meet_it() {
    let (running, left, right) = between("");
    for n in (0..40).step_by(2) {
        running.change(Direction::Up, link("loss=100%").up.start);
        left.offer([numbered(n)]);
        running.change(Direction::Down, link("delay=1ms").up.start);
        right.offer([answer(&numbered(n))]);
        assert_eq!(left.take(), answer(&numbered(n)));
        // A packet that was not yet read may meet a later change.
        until(&running, |[up, _]| up.offered.packets == u64::from(n) + 1);
        running.change(Direction::Up, link("").up.start);
        left.offer([numbered(n + 1)]);
        assert_eq!(right.take(), numbered(n + 1));
    }
    let stopped = running.stop();
    assert_eq!(stopped.up.counters.lost.packets, 20);
    assert_eq!((stopped.up.expected_loss, stopped.down.expected_loss), (None, None));
}

#[test]
fn frames_without_ip_cross_whatever_the_link_does() {
    const ARP: u16 = 0x0806;
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(14), memory_wire(14));
    let running = run("loss=100%", left, right);
    let arp = ethernet(ARP, &[0; 28]);
    left_kernel.offer([
        ethernet(0x0800, &numbered(1)),
        arp.clone(),
        ethernet(0x86dd, &[0x60; 40]),
        vec![1; 9],
    ]);
    assert_eq!(right_kernel.take_many(2), [arp, vec![1; 9]]);
    let stopped = running.stop();
    assert_eq!(stopped.up.bypassed, PacketCount { packets: 2, bytes: 28 });
    assert_eq!(stopped.up.counters.offered, PacketCount { packets: 2, bytes: 72 });
    assert_eq!(stopped.up.counters.lost.packets, 2);
}

#[test]
fn packets_above_the_mtu_mark_the_run() {
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(14), memory_wire(14));
    let options = Options { mtu: 1400, ..Options::default() };
    let running = start(&link(""), 1, Box::new(left), Box::new(right), &options).unwrap();
    left_kernel.offer([1400, 1401, 65_535].map(|size| ethernet(0x0800, &vec![0x45; size])));
    right_kernel.take_many(3);
    let stopped = running.stop();
    assert_eq!((stopped.up.above_mtu, stopped.up.counters.largest, stopped.up.mtu), (2, 65_535, 1400));
    assert_eq!((stopped.down.above_mtu, stopped.down.mtu), (0, 1400));
}

#[test]
fn loss_is_expected_where_it_is_the_same_all_the_time() {
    for (text, expected) in [
        ("", Some(0.0)),
        ("loss=10%", Some(0.1)),
        ("loss=10% ; t=1s loss=10% delay=5ms", Some(0.1)),
        ("loss=10% ; t=1s loss=5%", None),
        ("loss=10% ; t=1s loss=none", None),
        ("loss=10% dup=1%", None),
        ("loss=gemodel:1%", None),
    ] {
        assert_eq!(between(text).0.stop().up.expected_loss, expected, "{text}");
    }
}

#[test]
fn wires_of_two_kinds_make_no_link() {
    let (left, right) = (memory_wire(0).0, memory_wire(14).0);
    let refused = start(&link(""), 1, Box::new(left), Box::new(right), &Options::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a link from tun to packet cannot be: use the same kind of wire at both ends"
    );
}
