//! The system's allocator, with a count for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Without a destructor, so that it can be counted in at any time of a thread's life.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// How often this thread has allocated or freed memory.
pub(crate) fn calls() -> u64 {
    CALLS.get()
}

/// How often this thread has allocated memory. What it frees may be other threads': memory that was deregistered, for
/// instance.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread has allocated and not freed, as a difference to any other time.
pub(crate) fn bytes() -> i64 {
    BYTES.get()
}

/// Whether this thread is inside the system's allocator, as its signal handler sees it.
pub(crate) fn is_running() -> bool {
    IS_RUNNING.get()
}

fn count(bytes: i64) {
    CALLS.set(CALLS.get() + 1);
    BYTES.set(BYTES.get() + bytes);
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator unchanged, which keeps the promises of
// the trait; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        IS_RUNNING.set(true);
        // SAFETY: the caller's promises about `layout` are passed on.
        let pointer = unsafe { System.alloc(layout) };
        IS_RUNNING.set(false);
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        IS_RUNNING.set(true);
        // SAFETY: `pointer` came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) };
        IS_RUNNING.set(false);
    }
}

#[test]
fn allocations_are_counted_and_so_is_what_is_freed() {
    let before = (calls(), allocations());
    drop(std::hint::black_box(Box::new(7)));
    let after = (calls() - before.0, allocations() - before.1);
    assert_eq!(after, (2, 1));
}
