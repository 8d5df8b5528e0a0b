//! The hot path allocates what it must keep, and nothing else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use braid_proto::connection::Event;
use braid_proto::message::Delivery;
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::stream::StreamKey;
use bytes::Buf;

use crate::rig::{Rig, connect, message, options};

/// Counts what the current thread allocates, so that tests on other threads do not matter.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

#[allow(
    unsafe_code,
    reason = "an allocator can only be counted by one, and that trait is unsafe; tests only"
)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

fn drain(rig: &mut Rig) {
    let outbox = rig.server.outbox(StreamKey::CONTROL).unwrap();
    let len = outbox.len();
    outbox.advance(len);
}

#[test]
fn a_copy_for_another_subscriber_costs_no_allocation() {
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        let mut rig = Rig::connected(options(), connect(version));
        let message = message("some/topic", vec![0; 200], QoS::AtMostOnce);
        let now = rig.now;
        // The first makes the form that all share, and the outbox grows.
        for _ in 0..3 {
            rig.server.deliver(Delivery::of(message.clone()), now);
        }
        drain(&mut rig);
        let count = allocations(|| {
            for _ in 0..3 {
                rig.server.deliver(Delivery::of(message.clone()), now);
            }
        });
        assert_eq!(count, 0, "{version}");
    }
}

#[test]
fn a_received_message_allocates_itself_and_a_payload_that_has_no_room_in_it() {
    for (version, head) in
        [(ProtocolVersion::V311, &b"\x00\x03a/b"[..]), (ProtocolVersion::V5, &b"\x00\x03a/b\x00"[..])]
    {
        for (payload_len, expected) in [(0, 1), (78, 1), (79, 2)] {
            let mut packet = vec![0x30, u8::try_from(head.len() + payload_len).unwrap()];
            packet.extend_from_slice(head);
            packet.resize(packet.len() + payload_len, b'x');
            let mut rig = Rig::connected(options(), connect(version));
            let now = Instant::now();
            let take = |rig: &mut Rig, stream| {
                rig.server.handle_bytes(stream, &packet, now);
                let event = rig.server.poll_event();
                assert!(matches!(event, Some(Event::Publish(..))));
            };
            for stream in [StreamKey::CONTROL, rig.open(1), rig.open(2)] {
                take(&mut rig, stream);
                // The topic is known, and the queue of events has its memory.
                let count = allocations(|| take(&mut rig, stream));
                assert_eq!(count, expected, "{version}, {stream}, {payload_len} bytes");
            }
        }
    }
}

/// The buffer of its parts, which grows once, the payload without it, and the message.
#[test]
fn a_message_that_arrives_in_two_parts_costs_four_allocations() {
    let mut packet = b"\x30\x4B\x00\x03a/b".to_vec();
    packet.resize(2 + 0x4B, b'x');
    let mut rig = Rig::connected(options(), connect(ProtocolVersion::V311));
    let now = Instant::now();
    let take = |rig: &mut Rig| {
        let (first, second) = packet.split_at(40);
        rig.server.handle_bytes(StreamKey::CONTROL, first, now);
        rig.server.handle_bytes(StreamKey::CONTROL, second, now);
        assert!(matches!(rig.server.poll_event(), Some(Event::Publish(..))));
    };
    take(&mut rig);
    assert_eq!(allocations(|| take(&mut rig)), 4);
}

#[test]
fn an_acknowledgement_costs_no_allocation() {
    let mut rig = Rig::connected(options(), connect(ProtocolVersion::V5));
    let message = message("t", vec![0; 100], QoS::AtLeastOnce);
    let exchange = |rig: &mut Rig, id: u8| {
        rig.server.deliver(Delivery::of(message.clone()), rig.now);
        drain(rig);
        rig.server.handle_bytes(StreamKey::CONTROL, &[0x40, 2, 0, id], rig.now);
        assert!(matches!(rig.server.poll_event(), Some(Event::Complete(..))));
    };
    exchange(&mut rig, 1);
    exchange(&mut rig, 2);
    assert_eq!(allocations(|| exchange(&mut rig, 3)), 0);
}
