//! The system's allocator, with a count for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Without a destructor, so that it can be counted in at any time of a thread's life.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// How often this thread has asked for memory or given it back.
pub(crate) fn calls() -> u64 {
    CALLS.get()
}

/// Bytes that this thread has asked for and not given back, as a difference to any other time.
pub(crate) fn bytes() -> i64 {
    BYTES.get()
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
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `pointer` came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}
