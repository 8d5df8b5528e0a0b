use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Allocator that counts the bytes held by the current thread: a test on virtual time runs on one thread with its
/// broker, unaffected by tests on other threads.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn add(bytes: usize, sign: i64) {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    // At the end of a thread its thread-locals are dropped before its last allocation.
    let _ = HELD.try_with(|held| held.set(held.get() + sign * bytes));
}

#[allow(
    unsafe_code,
    reason = "memory can only be counted by an allocator, and that trait is unsafe; tests only"
)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(layout.size(), -1);
        add(size, 1);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that this thread has allocated and not freed.
pub(crate) fn allocated() -> i64 {
    HELD.get()
}
