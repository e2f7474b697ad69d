//! Things that live in a yard: shared, and of one owner.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use super::{Yard, count, give_back};
use crate::error::Error;
use crate::queue::{RawRecvQueue, RawSendQueue};
use crate::sync::OnceLock;
use crate::sync::plain::Ordering::{AcqRel, Relaxed};

/// Holders that one thing may have: far more than there is memory for.
const HOLDERS_MAX: u32 = u32::MAX / 2;

/// A thing in a yard that several hold: an [`Arc`](crate::sync::Arc) without weak references.
pub struct Common<T: ?Sized> {
    /// From [`Yard::take`] with the layout of the value, which is initialised.
    value: NonNull<T>,
    owns: PhantomData<T>,
}

/// A thing in a yard that one holds: a [`Box`].
pub struct Lone<T: ?Sized> {
    /// From [`Yard::take`] with the layout of the value, which is initialised; of one without bytes, any place.
    value: NonNull<T>,
    owns: PhantomData<T>,
}

/// The yard of things whose makers have none.
static ELSEWHERE: OnceLock<Yard> = OnceLock::new();

// SAFETY: as for `Arc`: each holder has shared access, and the last one drops the value.
unsafe impl<T: ?Sized + Send + Sync> Send for Common<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for Common<T> {}
// SAFETY: as for `Box`.
unsafe impl<T: ?Sized + Send> Send for Lone<T> {}
// SAFETY: as for `Box`.
unsafe impl<T: ?Sized + Sync> Sync for Lone<T> {}

impl Yard {
    /// Puts a value where several may hold it.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn common<T>(&self, value: T) -> Result<Common<T>, Error> {
        let layout = Layout::new::<T>();
        let place = self.take(layout)?;
        // SAFETY: the place is for that layout, and nobody else has it.
        unsafe { place.cast::<T>().write(value) };
        // SAFETY: as above; the value is there.
        Ok(unsafe { Common::first(place.cast(), layout) })
    }

    /// As [`Yard::common`], for what has nobody to tell of a lack of memory: aborts, as an `Arc` does.
    pub fn common_or_abort<T>(&self, value: T) -> Common<T> {
        match self.common(value) {
            Ok(common) => common,
            Err(_) => handle_alloc_error(Layout::new::<T>()),
        }
    }

    /// Makes so many values side by side.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn common_slice<T>(
        &self,
        count: usize,
        make: impl Fn() -> T,
    ) -> Result<Common<[T]>, Error> {
        let layout = Layout::array::<T>(count).map_err(|_| Error::NoMemory)?;
        let place = self.take(layout)?.cast::<T>();
        for index in 0..count {
            // SAFETY: the place is for so many values. Were `make` to panic, they would be leaked.
            unsafe { place.add(index).write(make()) };
        }
        let slice = NonNull::slice_from_raw_parts(place, count);
        // SAFETY: the values are there, and nobody else has the place.
        Ok(unsafe { Common::first(slice, layout) })
    }

    /// Puts a value where one has it.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn lone<T>(&self, value: T) -> Result<Lone<T>, Error> {
        let place = match size_of::<T>() {
            // What has no bytes needs no place, as in a `Box`.
            0 => NonNull::dangling(),
            _ => self.take(Layout::new::<T>())?.cast::<T>(),
        };
        // SAFETY: the place is for that layout, and nobody else has it; or there is nothing to write.
        unsafe { place.write(value) };
        Ok(Lone {
            value: place,
            owns: PhantomData,
        })
    }
}

impl<T: ?Sized> Common<T> {
    /// # Safety
    /// `value` came from [`Yard::take`] with that layout, is initialised, and nobody else has it.
    unsafe fn first(value: NonNull<T>, layout: Layout) -> Self {
        // SAFETY: as the caller says.
        unsafe { count(value.cast(), layout) }.store(1, Relaxed);
        Self {
            value,
            owns: PhantomData,
        }
    }
}

impl<T: ?Sized> Clone for Common<T> {
    fn clone(&self) -> Self {
        // SAFETY: it was taken with the layout of its value, and this holder keeps it.
        let holders = unsafe { count(self.value.cast(), Layout::for_value(&**self)) };
        if holders.fetch_add(1, Relaxed) > HOLDERS_MAX {
            std::process::abort();
        }
        Self {
            value: self.value,
            owns: PhantomData,
        }
    }
}

impl<T: ?Sized> Drop for Common<T> {
    fn drop(&mut self) {
        let layout = Layout::for_value(&**self);
        // SAFETY: it was taken with the layout of its value, and this holder keeps it until the count
        // is lowered; only the one who lowers it to nothing goes on, when all others are done (AcqRel).
        unsafe {
            if count(self.value.cast(), layout).fetch_sub(1, AcqRel) != 1 {
                return;
            }
            ptr::drop_in_place(self.value.as_ptr());
            give_back(self.value.cast(), layout);
        }
    }
}

impl<T: ?Sized> Deref for Common<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the value lives as long as anybody holds it, and nobody has exclusive access.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> Drop for Lone<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the value, which was taken with its layout if it has any bytes.
        unsafe {
            let layout = Layout::for_value(self.value.as_ref());
            ptr::drop_in_place(self.value.as_ptr());
            if layout.size() != 0 {
                give_back(self.value.cast(), layout);
            }
        }
    }
}

impl<T: ?Sized> Deref for Lone<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody else has the value.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for Lone<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else has the value.
        unsafe { self.value.as_mut() }
    }
}

/// The conversions of a `Box` to one of a trait object.
macro_rules! as_dyn {
    ($($Trait:ident),+) => {$(
        impl<T: $Trait + 'static> From<Lone<T>> for Lone<dyn $Trait> {
            fn from(lone: Lone<T>) -> Self {
                let lone = ManuallyDrop::new(lone);
                let value: NonNull<dyn $Trait> = lone.value;
                Self { value, owns: PhantomData }
            }
        }

        impl<T: $Trait + 'static> From<Box<T>> for Lone<dyn $Trait> {
            fn from(value: Box<T>) -> Self {
                match ELSEWHERE.get_or_init(Yard::default).lone(*value) {
                    Ok(lone) => lone.into(),
                    Err(_) => handle_alloc_error(Layout::new::<T>()),
                }
            }
        }
    )+};
}

as_dyn!(RawSendQueue, RawRecvQueue);

impl<T: ?Sized + fmt::Debug> fmt::Debug for Common<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Lone<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::super::UNIT;
    use super::*;
    use crate::sync::Arc;

    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "only dropped")] Arc<()>);

    #[test]
    fn things_of_one_size_lie_side_by_side_and_are_dropped_once() {
        let (yard, witness) = (Yard::default(), Arc::new(()));
        let lines: Vec<_> = (0..1000)
            .map(|_| yard.common(Line(Arc::clone(&witness))).unwrap())
            .collect();
        let step = |pair: &[Common<Line>]| {
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
        drop((again, yard));
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn cells_are_used_again_and_units_go_back() {
        let yard = Yard::default();
        let many: Vec<_> = (0..1000).map(|n| yard.lone(n).unwrap()).collect();
        assert!(format!("{yard:?}") != "Yard(1 units)");
        drop(many);
        assert_eq!(format!("{yard:?}"), "Yard(1 units)");
        let nothing = yard.lone(()).unwrap();
        assert_eq!(*nothing, (), "what has no bytes takes none");
        let first = yard.lone(1_u64).unwrap();
        let place = first.value;
        drop(first);
        assert_eq!(yard.lone(2_u64).unwrap().value, place);
    }

    #[test]
    fn everything_is_where_its_alignment_wants_it() {
        #[repr(align(512))]
        struct Wide([u8; 512]);
        let yard = Yard::default();
        let (wide, slice) = (
            yard.lone(Wide([7; 512])).unwrap(),
            yard.common_slice(24, || 5_u64).unwrap(),
        );
        assert!(wide.value.addr().get().is_multiple_of(512));
        assert!(wide.0.iter().all(|&byte| byte == 7));
        assert_eq!(slice.iter().sum::<u64>(), 120);
        assert_eq!(yard.common_slice(0, || 5_u64).unwrap().len(), 0);
    }

    #[test]
    fn what_is_large_has_memory_of_its_own() {
        let yard = Yard::default();
        let large = yard.common_slice(UNIT, || 3_u8).unwrap();
        let other = large.clone();
        drop(large);
        assert!(other.iter().all(|&byte| byte == 3));
        assert_eq!(format!("{yard:?}"), "Yard(0 units)");
        assert!(matches!(
            yard.common_slice(usize::MAX / 2, || 0_u64),
            Err(Error::NoMemory)
        ));
    }

    #[test]
    fn a_thing_outlives_the_yard_and_goes_from_any_thread() {
        let yard = Yard::default();
        let things: Vec<_> = (0..300).map(|n| yard.common(n).unwrap()).collect();
        drop(yard);
        crate::sync::thread::scope(|scope| {
            for part in things.chunks(100) {
                let part = part.to_vec();
                scope.spawn(move || drop(part));
            }
        });
        assert_eq!(*things[299], 299);
    }
}
