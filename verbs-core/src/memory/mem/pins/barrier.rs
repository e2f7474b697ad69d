//! The asymmetric fence under [`pin`](super::pin()): almost free on the frequent side, a system call on the rare
//! one.
//!
//! [`light`] is between a store and a load of a thread that enters or leaves a pin, [`heavy`] between a store and
//! a load of the thread that takes something away. For each pair of the two, one thread sees the other's store,
//! as if both were full fences. See `membarrier(2)`, `MEMBARRIER_CMD_PRIVATE_EXPEDITED`.

/// The side of a pin on which [`light`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Enter,
    Leave,
}

#[cfg(verbs_loom)]
pub(crate) use modelled::*;
#[cfg(not(verbs_loom))]
pub(crate) use real::*;

#[cfg(not(verbs_loom))]
mod real {
    use super::Side;
    use crate::sync::OnceLock;
    use crate::sync::atomic::{Ordering::SeqCst, compiler_fence, fence};

    static AGREED: OnceLock<bool> = OnceLock::new();

    /// Registers for the barrier; called before the first pin. True if the kernel has agreed to fence for this
    /// process: otherwise [`light`] is not enough, and a [`full_fence`] is needed in its place.
    pub(crate) fn prepare() -> bool {
        *AGREED.get_or_init(register)
    }

    /// The frequent side: keeps the compiler from moving the load above the store, and leaves the processor to
    /// [`heavy`].
    #[inline(always)]
    pub(crate) fn light(_: Side) {
        compiler_fence(SeqCst);
    }

    /// The rare side: a full fence here and at one point of every other running thread.
    ///
    /// Bounded: it interrupts the other processors and returns (about 15 us if they are busy).
    pub(crate) fn heavy() {
        #[cfg(test)]
        if WITHOUT.get() {
            return;
        }
        fence(SeqCst);
        if prepare() && !issue() {
            // The kernel refuses what it agreed to, as a later seccomp filter might make it do. Threads rely on
            // the barrier without asking, so memory safety cannot be kept.
            std::process::abort();
        }
    }

    /// A full fence of this thread, whatever the kernel provides.
    pub(crate) fn full_fence() {
        fence(SeqCst);
    }

    #[cfg(not(miri))]
    fn register() -> bool {
        use rustix::thread::{MembarrierCommand::RegisterPrivateExpedited, membarrier};
        membarrier(RegisterPrivateExpedited).is_ok()
    }

    #[cfg(not(miri))]
    fn issue() -> bool {
        use rustix::thread::{MembarrierCommand::PrivateExpedited, membarrier};
        membarrier(PrivateExpedited).is_ok()
    }

    #[cfg(miri)]
    fn register() -> bool {
        false
    }

    #[cfg(miri)]
    fn issue() -> bool {
        false
    }

    #[cfg(test)]
    std::thread_local! {
        /// Makes this thread's [`heavy`] do nothing, to show that it is needed.
        pub(crate) static WITHOUT: std::cell::Cell<bool> =
            const { std::cell::Cell::new(false) };
    }
}

/// The same for models, where all fences are real and each can be left out, to show that the model needs it.
#[cfg(verbs_loom)]
mod modelled {
    use std::cell::Cell;

    use super::Side;
    use crate::sync::atomic::{Ordering::SeqCst, fence};

    /// A fence that a model can leave out, in order to fail.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Part {
        Enter,
        Leave,
        Heavy,
        Full,
    }

    // loom runs all threads of a model on the thread of its test.
    std::thread_local! {
        static WITHOUT: Cell<&'static [Part]> = const { Cell::new(&[]) };
    }

    /// From now on this test's models leave out these fences.
    #[cfg(test)]
    pub(crate) fn leave_out(parts: &'static [Part]) {
        WITHOUT.set(parts);
    }

    fn fence_unless_left_out(part: Part) {
        if !WITHOUT.get().contains(&part) {
            fence(SeqCst);
        }
    }

    pub(crate) fn prepare() -> bool {
        true
    }

    pub(crate) fn light(side: Side) {
        fence_unless_left_out(match side {
            Side::Enter => Part::Enter,
            Side::Leave => Part::Leave,
        });
    }

    pub(crate) fn heavy() {
        fence_unless_left_out(Part::Heavy);
    }

    pub(crate) fn full_fence() {
        fence_unless_left_out(Part::Full);
    }
}
