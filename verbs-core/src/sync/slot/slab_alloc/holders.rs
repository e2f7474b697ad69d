//! How many hold a shared value: it goes with the last one.
//!
//! Each holder may have written to the value before it leaves, and the last one drops it. So a holder *releases* what it
//! did when it lowers the count, and the last one *acquires* what all others did. Who joins has the value from another
//! holder, who keeps it meanwhile: that orders nothing.

use crate::sync::plain::AtomicU32;
use crate::sync::plain::Ordering::{self, AcqRel, Relaxed};

/// Holders that one value may have: far more than there is memory for.
const HOLDERS_MAX: u32 = u32::MAX / 2;

/// A count. That of models is loom's.
pub(super) trait Holders {
    /// One more. Returns how many there were.
    fn raise(&self, order: Ordering) -> u32;

    /// One less. Returns how many there were.
    fn lower(&self, order: Ordering) -> u32;
}

impl Holders for AtomicU32 {
    #[inline]
    fn raise(&self, order: Ordering) -> u32 {
        self.fetch_add(1, order)
    }

    #[inline]
    fn lower(&self, order: Ordering) -> u32 {
        self.fetch_sub(1, order)
    }
}

/// There is one more holder, besides the caller.
#[inline]
pub(super) fn join(holders: &impl Holders) {
    if holders.raise(Relaxed) > HOLDERS_MAX {
        std::process::abort();
    }
}

/// The caller no longer holds the value. `true`: it was the last one, and drops it.
#[inline]
pub(super) fn leave(holders: &impl Holders) -> bool {
    holders.lower(AcqRel) == 1
}

#[cfg(all(test, verbs_loom))]
mod models {
    use loom::model;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32 as Count;
    use loom::thread;

    use super::*;

    impl Holders for Count {
        fn raise(&self, order: Ordering) -> u32 {
            self.fetch_add(1, order)
        }

        fn lower(&self, order: Ordering) -> u32 {
            self.fetch_sub(1, order)
        }
    }

    /// A value of two parts, one for each thread. Relaxed: only the count may carry over what was written.
    #[derive(Default)]
    struct Value {
        holders: Count,
        parts: [Count; 2],
        drops: Count,
    }

    /// One thread writes, and lets go; the last one looks at what all have written.
    fn use_and_leave(value: &Value, part: usize) {
        value.parts[part].store(1, Relaxed);
        if leave(&value.holders) {
            for part in &value.parts {
                assert_eq!(part.load(Relaxed), 1, "it is dropped before it was written");
            }
            value.drops.fetch_add(1, Relaxed);
        }
    }

    /// Goal: the last holder sees what all did, and there is one last holder. Method: two threads, one of which has the
    /// value from the other. Tried with `leave` relaxed, acquiring only, and releasing only.
    #[test]
    fn loom_the_last_holder_sees_what_all_did() {
        model(|| {
            let value = Arc::new(Value::default());
            value.holders.store(1, Relaxed);
            join(&value.holders);
            let other = Arc::clone(&value);
            let thread = thread::spawn(move || use_and_leave(&other, 0));
            use_and_leave(&value, 1);
            thread.join().expect("the other thread does not panic");
            assert_eq!(value.drops.load(Relaxed), 1);
        });
    }
}
