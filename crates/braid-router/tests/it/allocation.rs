//! The hot path allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use braid_proto::message::{Message, SharedMessage};
use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;
use braid_proto::topic::MAX_LEVELS;
use braid_router::{Matches, Overlap, Router, route};
use bytes::Bytes;

use crate::generator::{parse_filter, parse_name, subscription, subscription_on};

/// Counts allocations of the current thread only: tests run on several threads.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    BYTES.set(BYTES.get() + bytes);
}

#[allow(
    unsafe_code,
    reason = "an allocator can only be counted by one, and that trait is unsafe; tests only"
)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

#[test]
fn matching_and_routing_allocate_nothing() {
    let mut router = Router::new();
    let deepest = vec!["a"; MAX_LEVELS].join("/");
    let filters = ["a/b", "a/+", "#", "+/+/#", "$share/x/a/#", "$share/y/a/b", &deepest, "a/#", "+/b", "x/y"];
    // Keys that interleave, so that many runs are merged.
    for key in 0..2_000 {
        router.subscribe(key * 7 % 2_000, &parse_filter(filters[key % filters.len()]), subscription(0));
        router.subscribe(key, &parse_filter("a/+"), subscription(2));
        // On another stream it is merged with nothing, or with one without identifier.
        router.subscribe(key, &parse_filter("a/+"), subscription_on(StreamKey::bidi(1), 3));
    }
    let names = ["a/b", "a/c", "x/y", "$SYS/x", "unmatched", &deepest, "a/b"].map(parse_name);
    let message = SharedMessage::new(Message::new(parse_name("a/b"), Bytes::new(), QoS::AtLeastOnce, false));
    let (mut matches, mut out) = (Matches::with_capacity(16_000), Vec::with_capacity(16));
    let mut found = (0, 0, 0);
    let allocated = allocations(|| {
        for name in &names {
            router.matches(name, &mut matches);
            found.0 += matches.direct.len();
            for session in matches.sessions() {
                out.clear();
                route(&message, None, session, Overlap::Merge, &mut out);
                found.1 += out.len();
            }
            let members =
                matches.shared.iter().filter_map(|group| group.select(|_, key| (key % 3 != 0).into()));
            found.2 += members.count();
        }
    });
    assert!(found.0 > found.1 && found.1 > 12_000 && found.2 > 5, "{found:?}");
    assert_eq!(allocated, 0);
    assert_eq!(allocations(|| drop(Box::new(1))), 1, "the counter counts");
}

/// A buffer without capacity has it after the first use.
#[test]
fn a_used_buffer_is_enough() {
    let mut router = Router::new();
    for key in 0..100 {
        router.subscribe(key, &parse_filter("a/+"), subscription(1));
        router.subscribe(key, &parse_filter("a/b"), subscription(1));
        router.subscribe(key, &parse_filter("#"), subscription(1));
    }
    let mut matches = Matches::default();
    let name = parse_name("a/b");
    // Merging uses two buffers in turn, and both must have grown.
    for _ in 0..2 {
        router.matches(&name, &mut matches);
    }
    assert_eq!(allocations(|| router.matches(&name, &mut matches)), 0);
    assert_eq!(matches.direct.len(), 300);
}

/// Bytes allocated while `members` join and leave a shared group. A publisher's kept match holds the group before each
/// change, so that the router must not change it in place.
fn bytes_of_group_changes(members: u64) -> usize {
    let filter = parse_filter("$share/workers/jobs");
    let (mut router, mut matches) = (Router::new(), Matches::default());
    let before = BYTES.get();
    for key in 0..members {
        // Neither ascending nor descending.
        router.subscribe(key.wrapping_mul(7919) % members, &filter, subscription(0));
        router.matches(&parse_name("jobs"), &mut matches);
    }
    for key in 0..members / 2 {
        router.unsubscribe(key, &filter, StreamKey::CONTROL);
        router.matches(&parse_name("jobs"), &mut matches);
    }
    BYTES.get() - before
}

/// Linear, not quadratic: the router's lock is held for each change.
#[test]
fn the_cost_of_joining_a_group_does_not_grow_with_its_members() {
    let (few, many) = (bytes_of_group_changes(2_000), bytes_of_group_changes(16_000));
    assert!(many < few * 8 * 2, "{few} bytes for 2,000 members, {many} for 16,000");
}
