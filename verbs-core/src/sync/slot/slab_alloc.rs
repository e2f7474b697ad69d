//! A slab allocator for the parts of a connection that every message touches.
//!
//! Where a program has thousands of connections, the lines that a message touches are in no cache, and the message
//! takes as long as they take to arrive. They arrive in time if the processor can tell which are next: values of one
//! size lie side by side, in the order in which they were made, with nothing else between them. A general allocator
//! does not lay them out like that.
//!
//! The allocator has *slabs* of 16 KiB, each divided into cells of one size. Slabs whose cells are all free are
//! returned to the system, all but one of each size. A value that is larger than the largest cell has memory of its
//! own.
//!
//! # How it is sound
//!
//! A slab begins at a multiple of its size, so the address of a cell gives the slab's header. In the header, the
//! *books* are reached under the allocator's lock only; the counts are atomics; and the allocator that owns the slab
//! changes only while no cell is in use. A cell belongs to the caller that took it until it is given back.
//! Slabs in use keep the allocator alive, and the allocator owns the others.
//!
//! Of this loom sees the counts (`holders.rs`); what happens under the lock is bookkeeping.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

use crate::error::Error;
use crate::sync::Arc;
use crate::sync::plain::{AtomicU32, Mutex};

mod held;
mod holders;

pub use held::{SlabArc, SlabBox};

/// Bytes of a slab, which is also how it is aligned.
const SLAB: usize = 16 << 10;
/// Sizes of cells are multiples of this: a cache line.
const STEP: usize = 64;
/// The largest cells.
const LARGEST: usize = 2 << 10;
const CLASSES: usize = LARGEST / STEP;
/// Cells that a slab can have at most.
const CELLS: usize = SLAB / STEP;

const SLAB_LAYOUT: Layout = match Layout::from_size_align(SLAB, SLAB) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// See the module's documentation. Clones are handles of the same allocator.
#[derive(Clone, Default)]
pub struct SlabAlloc(Arc<Classes>);

#[derive(Default)]
struct Classes(Mutex<[Class; CLASSES]>);

/// All slabs of one size of cells.
#[derive(Default)]
struct Class {
    /// Those that have a free cell. There is room here for all slabs.
    open: Vec<NonNull<Slab>>,
    /// How many there are.
    slabs: usize,
}

// SAFETY: the slabs are memory that belongs to the allocator; their headers are reached under its lock.
unsafe impl Send for Class {}

/// What a slab begins with. There is never a reference to all of it.
#[repr(C)]
struct Slab {
    /// The allocator, while any cell is in use.
    owner: Option<Arc<Classes>>,
    books: Books,
    /// By cell: how many hold what is in it. For [`SlabArc`].
    counts: [AtomicU32; CELLS],
}

/// Which cells are in use.
#[derive(Default)]
struct Books {
    used: usize,
    taken: [u64; CELLS / 64],
}

/// How the cells for a layout lie in a slab.
#[derive(Clone, Copy)]
struct Cut {
    class: usize,
    size: usize,
    first: usize,
}

impl Cut {
    /// `None` for what has memory of its own.
    fn of(layout: Layout) -> Option<Self> {
        let size = layout
            .size()
            .max(1)
            .next_multiple_of(STEP.max(layout.align()));
        // A cell begins at a multiple of the largest power of two in its size.
        let first = size_of::<Slab>().next_multiple_of(1 << size.trailing_zeros());
        (size <= LARGEST).then_some(Self {
            class: size / STEP - 1,
            size,
            first,
        })
    }

    const fn cells(self) -> usize {
        (SLAB - self.first) / self.size
    }

    /// Which cell of a slab begins there.
    fn cell(self, slab: NonNull<Slab>, at: NonNull<u8>) -> usize {
        (at.addr().get() - slab.addr().get() - self.first) / self.size
    }
}

impl SlabAlloc {
    /// A cell for such a thing, or memory of its own.
    fn take(&self, layout: Layout) -> Result<NonNull<u8>, Error> {
        let Some(cut) = Cut::of(layout) else {
            let (whole, offset) = alone(layout).ok_or(Error::NoMemory)?;
            // SAFETY: it has more than no bytes. The count before the value is zeroed as well.
            let start = NonNull::new(unsafe { alloc_zeroed(whole) }).ok_or(Error::NoMemory)?;
            // SAFETY: `offset` is within what was allocated.
            return Ok(unsafe { start.add(offset) });
        };
        let mut classes = self.0.0.lock();
        let class = &mut classes[cut.class];
        let place = match class.open.last() {
            Some(slab) => *slab,
            None => class.add()?,
        };
        let slab = place.as_ptr();
        // SAFETY: slabs on the list exist, and their books are reached under the lock that is held.
        let books = unsafe { &mut (*slab).books };
        let cell = books.enter();
        if books.used == 1 {
            // SAFETY: none of its cells was in use, so no thread looks.
            unsafe { (*slab).owner = Some(Arc::clone(&self.0)) };
        }
        if books.used == cut.cells() {
            class.open.pop();
        }
        drop(classes);
        // SAFETY: the slab has that many cells of that size, all within its bytes.
        Ok(unsafe { place.cast::<u8>().add(cut.first + cell * cut.size) })
    }
}

/// Gives back what [`SlabAlloc::take`] gave out.
///
/// # Safety
/// `at` came from `take` with that layout, it is no longer in use, and this is the only time.
unsafe fn give_back(at: NonNull<u8>, layout: Layout) {
    let Some(cut) = Cut::of(layout) else {
        if let Some((whole, offset)) = alone(layout) {
            // SAFETY: so it was allocated, and the caller vouches for the rest.
            unsafe { dealloc(at.as_ptr().sub(offset), whole) };
        }
        return;
    };
    let place = slab_of(at);
    let slab = place.as_ptr();
    // SAFETY: a slab with a cell in use exists and has an owner, which does not change as long as the cell is in use.
    let Some(owner) = (unsafe { (*slab).owner.clone() }) else {
        return;
    };
    let mut classes = owner.0.lock();
    let class = &mut classes[cut.class];
    // SAFETY: books are reached under the lock that is held.
    let books = unsafe { &mut (*slab).books };
    if books.used == cut.cells() {
        class.open.push(place);
    }
    books.leave(cut.cell(place, at));
    let mut kept = None;
    if books.used == 0 {
        // SAFETY: no cell is in use any longer, so no thread looks.
        kept = unsafe { (*slab).owner.take() };
        if class.open.len() > 1 {
            class.open.retain(|other| *other != place);
            class.slabs -= 1;
            // SAFETY: as above, and it is no longer on a list.
            unsafe { dealloc(slab.cast(), SLAB_LAYOUT) };
        }
    }
    drop(classes);
    drop((kept, owner));
}

/// How many hold what is at that place.
///
/// # Safety
/// `at` came from [`SlabAlloc::take`] with that layout and was not given back; it is not for longer than that.
unsafe fn count<'c>(at: NonNull<u8>, layout: Layout) -> &'c AtomicU32 {
    match Cut::of(layout) {
        Some(cut) => {
            let place = slab_of(at);
            let cell = cut.cell(place, at);
            // SAFETY: the slab exists as long as the cell is in use, and there is no other reference to its counts than
            // such as this.
            unsafe { &(*place.as_ptr()).counts[cell] }
        }
        // SAFETY: before the value are at least as many bytes as a count has, and zeroed.
        None => unsafe { at.cast::<AtomicU32>().sub(1).as_ref() },
    }
}

fn slab_of(at: NonNull<u8>) -> NonNull<Slab> {
    let start = at.as_ptr().map_addr(|addr| addr & !(SLAB - 1)).cast();
    // SAFETY: no slab begins at zero.
    unsafe { NonNull::new_unchecked(start) }
}

/// The layout of what has memory of its own, and where in it the value begins, behind its count.
fn alone(value: Layout) -> Option<(Layout, usize)> {
    let offset = STEP.max(value.align());
    let whole = Layout::from_size_align(offset.checked_add(value.size())?, offset);
    Some((whole.ok()?, offset))
}

impl Class {
    /// One more slab, at the end of the list.
    fn add(&mut self) -> Result<NonNull<Slab>, Error> {
        self.open
            .try_reserve(self.slabs + 1 - self.open.len())
            .map_err(|_| Error::NoMemory)?;
        // SAFETY: a slab has more than no bytes.
        let slab = NonNull::new(unsafe { alloc(SLAB_LAYOUT) }).ok_or(Error::NoMemory)?;
        let slab = slab.cast::<Slab>();
        let header = Slab {
            owner: None,
            books: Books::default(),
            counts: [const { AtomicU32::new(0) }; CELLS],
        };
        // SAFETY: it has room for the header and is aligned for more than that.
        unsafe { slab.write(header) };
        self.open.push(slab);
        self.slabs += 1;
        Ok(slab)
    }
}

impl Books {
    /// Takes the first free cell of a slab that has one.
    fn enter(&mut self) -> usize {
        let has_free = |taken: &u64| *taken != u64::MAX;
        let word = self.taken.iter().position(has_free);
        let word = word.expect("a unit on the list has a free cell");
        let bit = self.taken[word].trailing_ones();
        self.taken[word] |= 1 << bit;
        self.used += 1;
        word * 64 + bit as usize
    }

    fn leave(&mut self, cell: usize) {
        self.taken[cell / 64] &= !(1 << (cell % 64));
        self.used -= 1;
    }
}

impl Drop for Classes {
    fn drop(&mut self) {
        for class in self.0.get_mut() {
            for slab in class.open.drain(..) {
                // SAFETY: slabs in use keep the allocator alive, so none of these cells is in use.
                unsafe { dealloc(slab.as_ptr().cast(), SLAB_LAYOUT) };
            }
        }
    }
}

impl fmt::Debug for SlabAlloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slabs: usize = self.0.0.lock().iter().map(|class| class.slabs).sum();
        write!(f, "SlabAlloc({slabs} slabs)")
    }
}
