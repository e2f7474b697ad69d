//! Values in a slab allocator: shared, and of one owner.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use super::holders::{join, leave};
use super::{SlabAlloc, count, give_back};
use crate::error::Error;
use crate::queue::{RawRecvQueue, RawSendQueue};
use crate::sync::OnceLock;
use crate::sync::plain::Ordering::Relaxed;

/// A shared value in a slab: an [`Arc`](crate::sync::Arc) without weak references.
pub struct SlabArc<T: ?Sized> {
    /// From [`SlabAlloc::take`] with the layout of the value, which is initialised.
    value: NonNull<T>,
    owns: PhantomData<T>,
}

/// A value of one owner in a slab: a [`Box`].
pub struct SlabBox<T: ?Sized> {
    /// From [`SlabAlloc::take`] with the layout of the value, which is initialised; of one without bytes, any place.
    value: NonNull<T>,
    owns: PhantomData<T>,
}

/// The allocator of values whose makers have none.
static ELSEWHERE: OnceLock<SlabAlloc> = OnceLock::new();

// SAFETY: as for `Arc`: each holder has shared access, and the last one drops the value.
unsafe impl<T: ?Sized + Send + Sync> Send for SlabArc<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for SlabArc<T> {}
// SAFETY: as for `Box`.
unsafe impl<T: ?Sized + Send> Send for SlabBox<T> {}
// SAFETY: as for `Box`.
unsafe impl<T: ?Sized + Sync> Sync for SlabBox<T> {}

impl SlabAlloc {
    /// Puts a value where several may hold it.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn arc<T>(&self, value: T) -> Result<SlabArc<T>, Error> {
        let layout = Layout::new::<T>();
        let place = self.take(layout)?;
        // SAFETY: the place is for that layout, and no other thread has it.
        unsafe { place.cast::<T>().write(value) };
        // SAFETY: as above; the value is there.
        Ok(unsafe { SlabArc::first(place.cast(), layout) })
    }

    /// As [`SlabAlloc::arc`], for callers that cannot report a lack of memory: aborts, as an `Arc` does.
    pub fn arc_or_abort<T>(&self, value: T) -> SlabArc<T> {
        match self.arc(value) {
            Ok(arc) => arc,
            Err(_) => handle_alloc_error(Layout::new::<T>()),
        }
    }

    /// Makes so many values side by side.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn arc_slice<T>(&self, count: usize, make: impl Fn() -> T) -> Result<SlabArc<[T]>, Error> {
        let layout = Layout::array::<T>(count).map_err(|_| Error::NoMemory)?;
        let place = self.take(layout)?.cast::<T>();
        for index in 0..count {
            // SAFETY: the place is for so many values. Were `make` to panic, they would be leaked.
            unsafe { place.add(index).write(make()) };
        }
        let slice = NonNull::slice_from_raw_parts(place, count);
        // SAFETY: the values are there, and no other thread has the place.
        Ok(unsafe { SlabArc::first(slice, layout) })
    }

    /// Puts a value where one has it.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn boxed<T>(&self, value: T) -> Result<SlabBox<T>, Error> {
        let place = match size_of::<T>() {
            // What has no bytes needs no place, as in a `Box`.
            0 => NonNull::dangling(),
            _ => self.take(Layout::new::<T>())?.cast::<T>(),
        };
        // SAFETY: the place is for that layout, and no other thread has it; or there is nothing to write.
        unsafe { place.write(value) };
        Ok(SlabBox {
            value: place,
            owns: PhantomData,
        })
    }
}

impl<T: ?Sized> SlabArc<T> {
    /// # Safety
    /// `value` came from [`SlabAlloc::take`] with that layout, is initialised, and no other thread has it.
    unsafe fn first(value: NonNull<T>, layout: Layout) -> Self {
        // SAFETY: as the caller says.
        unsafe { count(value.cast(), layout) }.store(1, Relaxed);
        Self {
            value,
            owns: PhantomData,
        }
    }
}

impl<T: ?Sized> Clone for SlabArc<T> {
    fn clone(&self) -> Self {
        // SAFETY: it was taken with the layout of its value, and this holder keeps it.
        join(unsafe { count(self.value.cast(), Layout::for_value(&**self)) });
        Self {
            value: self.value,
            owns: PhantomData,
        }
    }
}

impl<T: ?Sized> Drop for SlabArc<T> {
    fn drop(&mut self) {
        let layout = Layout::for_value(&**self);
        // SAFETY: it was taken with the layout of its value, and this holder keeps it until the count
        // is lowered; only the last holder goes on, when all others are done.
        unsafe {
            if !leave(count(self.value.cast(), layout)) {
                return;
            }
            ptr::drop_in_place(self.value.as_ptr());
            give_back(self.value.cast(), layout);
        }
    }
}

impl<T: ?Sized> Deref for SlabArc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the value lives as long as it has a holder, and no holder has exclusive access.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> Drop for SlabBox<T> {
    fn drop(&mut self) {
        // SAFETY: no other thread has the value, which was taken with its layout if it has any bytes.
        unsafe {
            let layout = Layout::for_value(self.value.as_ref());
            ptr::drop_in_place(self.value.as_ptr());
            if layout.size() != 0 {
                give_back(self.value.cast(), layout);
            }
        }
    }
}

impl<T: ?Sized> Deref for SlabBox<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: no other thread has the value.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for SlabBox<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no other thread has the value.
        unsafe { self.value.as_mut() }
    }
}

/// The conversions of a `Box` to one of a trait object.
macro_rules! as_dyn {
    ($($Trait:ident),+) => {$(
        impl<T: $Trait + 'static> From<SlabBox<T>> for SlabBox<dyn $Trait> {
            fn from(boxed: SlabBox<T>) -> Self {
                let boxed = ManuallyDrop::new(boxed);
                let value: NonNull<dyn $Trait> = boxed.value;
                Self { value, owns: PhantomData }
            }
        }

        impl<T: $Trait + 'static> From<Box<T>> for SlabBox<dyn $Trait> {
            fn from(value: Box<T>) -> Self {
                match ELSEWHERE.get_or_init(SlabAlloc::default).boxed(*value) {
                    Ok(boxed) => boxed.into(),
                    Err(_) => handle_alloc_error(Layout::new::<T>()),
                }
            }
        }
    )+};
}

as_dyn!(RawSendQueue, RawRecvQueue);

impl<T: ?Sized + fmt::Debug> fmt::Debug for SlabArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SlabBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::super::SLAB;
    use super::*;
    use crate::sync::Arc;

    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "only dropped")] Arc<()>);

    #[test]
    fn things_of_one_size_lie_side_by_side_and_are_dropped_once() {
        let (slabs, witness) = (SlabAlloc::default(), Arc::new(()));
        let lines: Vec<_> = (0..1000)
            .map(|_| slabs.arc(Line(Arc::clone(&witness))).unwrap())
            .collect();
        let step = |pair: &[SlabArc<Line>]| {
            pair[1]
                .value
                .addr()
                .get()
                .wrapping_sub(pair[0].value.addr().get())
        };
        let beside = lines.windows(2).filter(|pair| step(pair) == 64).count();
        assert!(beside > 990, "{beside}");
        assert_eq!(Arc::strong_count(&witness), 1001);
        let again = lines.clone();
        drop(lines);
        assert_eq!(Arc::strong_count(&witness), 1001, "the others hold them");
        drop((again, slabs));
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn cells_are_used_again_and_slabs_go_back() {
        let slabs = SlabAlloc::default();
        let many: Vec<_> = (0..1000).map(|n| slabs.boxed(n).unwrap()).collect();
        assert!(format!("{slabs:?}") != "SlabAlloc(1 slabs)");
        drop(many);
        assert_eq!(format!("{slabs:?}"), "SlabAlloc(1 slabs)");
        let nothing = slabs.boxed(()).unwrap();
        assert_eq!(*nothing, (), "what has no bytes takes none");
        let first = slabs.boxed(1_u64).unwrap();
        let place = first.value;
        drop(first);
        assert_eq!(slabs.boxed(2_u64).unwrap().value, place);
    }

    #[test]
    fn everything_is_where_its_alignment_wants_it() {
        #[repr(align(512))]
        struct Wide([u8; 512]);
        let slabs = SlabAlloc::default();
        let (wide, slice) = (
            slabs.boxed(Wide([7; 512])).unwrap(),
            slabs.arc_slice(24, || 5_u64).unwrap(),
        );
        assert!(wide.value.addr().get().is_multiple_of(512));
        assert!(wide.0.iter().all(|&byte| byte == 7));
        assert_eq!(slice.iter().sum::<u64>(), 120);
        assert_eq!(slabs.arc_slice(0, || 5_u64).unwrap().len(), 0);
    }

    #[test]
    fn what_is_large_has_memory_of_its_own() {
        let slabs = SlabAlloc::default();
        let large = slabs.arc_slice(SLAB, || 3_u8).unwrap();
        let other = large.clone();
        drop(large);
        assert!(other.iter().all(|&byte| byte == 3));
        assert_eq!(format!("{slabs:?}"), "SlabAlloc(0 slabs)");
        assert!(matches!(
            slabs.arc_slice(usize::MAX / 2, || 0_u64),
            Err(Error::NoMemory)
        ));
    }

    #[test]
    fn a_value_outlives_its_allocator_and_is_dropped_in_any_thread() {
        let slabs = SlabAlloc::default();
        let things: Vec<_> = (0..300).map(|n| slabs.arc(n).unwrap()).collect();
        drop(slabs);
        crate::sync::thread::scope(|scope| {
            for part in things.chunks(100) {
                let part = part.to_vec();
                scope.spawn(move || drop(part));
            }
        });
        assert_eq!(*things[299], 299);
    }
}
