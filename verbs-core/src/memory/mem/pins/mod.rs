//! Which threads may be using shared memory now, and what waits until they have left.

pub(crate) mod barrier;
pub mod grace;
#[cfg(all(test, verbs_loom))]
mod loom_tests;
pub mod pin;
pub mod touch;
