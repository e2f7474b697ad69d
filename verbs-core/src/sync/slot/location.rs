//! A source location in an atomic word.

use std::panic::Location;

use crate::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Holds no location or one; only whole ones, because they are pointers to statics.
#[derive(Debug)]
pub(crate) struct AtomicLocation(AtomicPtr<Location<'static>>);

impl Default for AtomicLocation {
    fn default() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl AtomicLocation {
    #[inline]
    pub(crate) fn store(&self, location: &'static Location<'static>) {
        self.0
            .store(std::ptr::from_ref(location).cast_mut(), Relaxed);
    }

    #[inline]
    pub(crate) fn load(&self) -> Option<&'static Location<'static>> {
        let pointer: *const Location<'static> = self.0.load(Relaxed);
        // SAFETY: the only values ever stored are null and pointers made from `&'static Location`,
        // and no thread writes through them.
        unsafe { pointer.as_ref() }
    }
}
