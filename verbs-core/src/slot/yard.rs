//! Memory for what every message touches of a connection.
//!
//! Where a program has thousands of connections, a message finds nothing of its own in a cache, and takes
//! as long as its lines take to come. They come in time if the processor can tell which are next: things
//! of one size lie side by side, in the order in which they were made, and nothing else between them. A
//! general allocator does not lay them out like that.
//!
//! A yard has *units* of 16 KiB, each cut into cells of one size. Units of a size whose cells are all
//! free go back to the system, all but one. What is larger than a cell can be has memory of its own.
//!
//! # How it is sound
//!
//! A unit begins at a multiple of its size, so the address of a cell leads to the unit's header. Of that,
//! the *books* are reached under the yard's lock only; the counts are atomics; and which yard it is
//! changes only while no cell is in use. A cell belongs to whoever was given it until it is given back.
//! Units in use keep the yard, and the yard keeps the others.
//!
//! Loom does not see any of this: nothing but bookkeeping happens under the lock, and the counts are those
//! of an `Arc`.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

use crate::error::Error;
use crate::sync::Arc;
use crate::sync::plain::{AtomicU32, Mutex};

mod held;

pub use held::{Common, Lone};

/// Bytes of a unit, which is also how it is aligned.
const UNIT: usize = 16 << 10;
/// Sizes of cells are multiples of this: a cache line.
const STEP: usize = 64;
/// The largest cells.
const LARGEST: usize = 2 << 10;
const CLASSES: usize = LARGEST / STEP;
/// Cells that a unit can have at most.
const CELLS: usize = UNIT / STEP;

const UNIT_LAYOUT: Layout = match Layout::from_size_align(UNIT, UNIT) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// See the module's documentation. Clones are the same yard.
#[derive(Clone, Default)]
pub struct Yard(Arc<Grounds>);

#[derive(Default)]
struct Grounds(Mutex<[Class; CLASSES]>);

/// All units of one size of cells.
#[derive(Default)]
struct Class {
    /// Those that have a free cell. There is room here for all units.
    open: Vec<NonNull<Unit>>,
    /// How many there are.
    units: usize,
}

// SAFETY: the units are memory that belongs to the yard; their headers are reached under its lock.
unsafe impl Send for Class {}

/// What a unit begins with. There is never a reference to all of it.
#[repr(C)]
struct Unit {
    /// The yard, while any cell is in use.
    grounds: Option<Arc<Grounds>>,
    books: Books,
    /// By cell: how many hold what is in it. For [`Common`].
    counts: [AtomicU32; CELLS],
}

/// Which cells are in use.
#[derive(Default)]
struct Books {
    used: usize,
    taken: [u64; CELLS / 64],
}

/// How the cells for a layout lie in a unit.
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
        let first = size_of::<Unit>().next_multiple_of(1 << size.trailing_zeros());
        (size <= LARGEST).then_some(Self {
            class: size / STEP - 1,
            size,
            first,
        })
    }

    const fn cells(self) -> usize {
        (UNIT - self.first) / self.size
    }

    /// Which cell of a unit begins there.
    fn cell(self, unit: NonNull<Unit>, at: NonNull<u8>) -> usize {
        (at.addr().get() - unit.addr().get() - self.first) / self.size
    }
}

impl Yard {
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
            Some(unit) => *unit,
            None => class.add()?,
        };
        let unit = place.as_ptr();
        // SAFETY: units on the list exist, and their books are reached under the lock that is held.
        let books = unsafe { &mut (*unit).books };
        let cell = books.enter();
        if books.used == 1 {
            // SAFETY: none of its cells was in use, so nobody looks.
            unsafe { (*unit).grounds = Some(Arc::clone(&self.0)) };
        }
        if books.used == cut.cells() {
            class.open.pop();
        }
        drop(classes);
        // SAFETY: the unit has that many cells of that size, all within its bytes.
        Ok(unsafe { place.cast::<u8>().add(cut.first + cell * cut.size) })
    }
}

/// Gives back what [`Yard::take`] gave out.
///
/// # Safety
/// `at` came from `take` with that layout, nobody uses it any more, and this is the only time.
unsafe fn give_back(at: NonNull<u8>, layout: Layout) {
    let Some(cut) = Cut::of(layout) else {
        if let Some((whole, offset)) = alone(layout) {
            // SAFETY: so it was allocated, and the caller vouches for the rest.
            unsafe { dealloc(at.as_ptr().sub(offset), whole) };
        }
        return;
    };
    let place = unit_of(at);
    let unit = place.as_ptr();
    // SAFETY: a unit with a cell in use exists and has its yard, which is not changed meanwhile.
    let Some(grounds) = (unsafe { (*unit).grounds.clone() }) else {
        return;
    };
    let mut classes = grounds.0.lock();
    let class = &mut classes[cut.class];
    // SAFETY: books are reached under the lock that is held.
    let books = unsafe { &mut (*unit).books };
    if books.used == cut.cells() {
        class.open.push(place);
    }
    books.leave(cut.cell(place, at));
    let mut kept = None;
    if books.used == 0 {
        // SAFETY: no cell is in use any more, so nobody looks.
        kept = unsafe { (*unit).grounds.take() };
        if class.open.len() > 1 {
            class.open.retain(|other| *other != place);
            class.units -= 1;
            // SAFETY: as above, and it is on no list any more.
            unsafe { dealloc(unit.cast(), UNIT_LAYOUT) };
        }
    }
    drop(classes);
    drop((kept, grounds));
}

/// How many hold what is at that place.
///
/// # Safety
/// `at` came from [`Yard::take`] with that layout and was not given back; it is not for longer than that.
unsafe fn count<'c>(at: NonNull<u8>, layout: Layout) -> &'c AtomicU32 {
    match Cut::of(layout) {
        Some(cut) => {
            let place = unit_of(at);
            let cell = cut.cell(place, at);
            // SAFETY: the unit exists as long as the cell is in use, and there is no other reference to
            // its counts than such as this.
            unsafe { &(*place.as_ptr()).counts[cell] }
        }
        // SAFETY: before the value are at least as many bytes as a count has, and zeroed.
        None => unsafe { at.cast::<AtomicU32>().sub(1).as_ref() },
    }
}

fn unit_of(at: NonNull<u8>) -> NonNull<Unit> {
    let start = at.as_ptr().map_addr(|addr| addr & !(UNIT - 1)).cast();
    // SAFETY: no unit begins at zero.
    unsafe { NonNull::new_unchecked(start) }
}

/// The layout of what has memory of its own, and where in it the value begins, behind its count.
fn alone(value: Layout) -> Option<(Layout, usize)> {
    let offset = STEP.max(value.align());
    let whole = Layout::from_size_align(offset.checked_add(value.size())?, offset);
    Some((whole.ok()?, offset))
}

impl Class {
    /// One more unit, at the end of the list.
    fn add(&mut self) -> Result<NonNull<Unit>, Error> {
        self.open
            .try_reserve(self.units + 1 - self.open.len())
            .map_err(|_| Error::NoMemory)?;
        // SAFETY: a unit has more than no bytes.
        let unit = NonNull::new(unsafe { alloc(UNIT_LAYOUT) }).ok_or(Error::NoMemory)?;
        let unit = unit.cast::<Unit>();
        let header = Unit {
            grounds: None,
            books: Books::default(),
            counts: [const { AtomicU32::new(0) }; CELLS],
        };
        // SAFETY: it has room for the header and is aligned for more than that.
        unsafe { unit.write(header) };
        self.open.push(unit);
        self.units += 1;
        Ok(unit)
    }
}

impl Books {
    /// Takes the first free cell of a unit that has one.
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

impl Drop for Grounds {
    fn drop(&mut self) {
        for class in self.0.get_mut() {
            for unit in class.open.drain(..) {
                // SAFETY: units in use keep the yard, so none of this one's cells is.
                unsafe { dealloc(unit.as_ptr().cast(), UNIT_LAYOUT) };
            }
        }
    }
}

impl fmt::Debug for Yard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units: usize = self.0.0.lock().iter().map(|class| class.units).sum();
        write!(f, "Yard({units} units)")
    }
}
