//! Whether the HCA was removed, for objects that outlive it.

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

/// A flag that is set once. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removed(Arc<AtomicBool>);

impl Removed {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Acquire)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Release);
    }
}
