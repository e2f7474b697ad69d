//! The only module that names `std::sync`, `std::thread` or `loom`.
//!
//! With `cfg(verbs_loom)` the primitives are loom's, so that models run the very code that ships.
//! Two things stay standard in both worlds: `Arc` (loom's cannot coerce to `Arc<dyn Provider>`) and
//! everything that a model never touches.

#[doc(hidden)]
#[expect(
    unsafe_code,
    reason = "a cell whose rights an atomic word hands out: argued at its head"
)]
pub mod biased;
#[doc(hidden)]
pub mod combiner;
pub(crate) mod park;
#[doc(hidden)]
#[expect(
    unsafe_code,
    reason = "calls about the process that no safe crate offers: argued at each"
)]
pub mod process;
#[expect(
    unsafe_code,
    reason = "cells whose rights an atomic word hands out: argued in each file"
)]
pub(crate) mod slot;

pub use std::sync::{Arc, OnceLock, Weak};

/// Atomics over bytes that a model never sees: registered memory and process-wide flags.
pub mod plain {
    pub use parking_lot::Mutex;
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
}

#[cfg(not(verbs_loom))]
mod imp {
    pub use atomic_waker::AtomicWaker;
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::hint::spin_loop;
    pub use std::sync::atomic;
    pub use std::thread;
    pub use std::thread::panicking;
    pub use std::thread_local;

    /// A cell whose access rights are handed out by an atomic word beside it.
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// The value, of a cell that no other thread has.
        pub fn into_inner(self) -> T {
            self.0.into_inner()
        }

        /// Shared access through a pointer; the caller argues why no thread writes at the same time.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Exclusive access through a pointer; the caller argues why it is exclusive.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(verbs_loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub use loom::hint::spin_loop;
    pub use loom::model;
    pub use loom::sync::atomic;
    pub use loom::thread;
    pub use loom::{lazy_static, thread_local};
    pub use std::thread::panicking;

    /// loom's waker cell with the signature of the one that ships.
    #[derive(Debug, Default)]
    pub struct AtomicWaker(loom::future::AtomicWaker);

    impl AtomicWaker {
        /// An empty cell.
        pub fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        /// Keeps a waker in place of the one before.
        pub fn register(&self, waker: &std::task::Waker) {
            self.0.register_by_ref(waker);
        }

        /// Takes out the waker that is kept.
        pub fn take(&self) -> Option<std::task::Waker> {
            self.0.take_waker()
        }
    }

    /// loom's mutex with parking_lot's signature.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    /// The guard of [`Mutex`].
    pub type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        /// A mutex that holds `value`.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Locks; poisoning is passed on, as parking_lot has none.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        /// Locks if that needs no waiting.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

pub use imp::*;
