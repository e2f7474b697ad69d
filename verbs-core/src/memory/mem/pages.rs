//! Memory in pieces: the list of a fast registration, and lookup of a key and a range in it.

use std::fmt;
use std::ptr::NonNull;

use super::copy::guard::Unmapped;
use super::grace;
use super::memory::Memory;
use super::pin;
use super::touch::Touched;
use super::window::Window;
use crate::error::{Attr, Error, Why};
use crate::sync::Arc;

/// One piece of a list, which follows those before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    start: NonNull<u8>,
    /// Bytes of the list up to the end of this piece.
    end: u64,
}

// SAFETY: a page is only an address. A thread accesses the bytes through a window, under a pin, while the list
// keeps their memory.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// A piece of memory to map.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'m> {
    /// The memory, which the mapping shares.
    pub memory: &'m Arc<Memory>,
    /// Its first byte.
    pub offset: usize,
    /// Bytes.
    pub len: u32,
}

/// The pieces that a fast registration may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Pages of that many bytes, a power of two: only the first piece may begin inside a page, and only the last
    /// may end inside one, unless the next piece is contiguous.
    Pages(u32),
    /// Blocks of that many bytes, at any address: only the first and the last may be shorter.
    Blocks(u32),
    /// Pieces of any length, at any address.
    Gaps,
}

impl Layout {
    /// Bytes of a page for lists counted in pages without a stated size.
    pub const PAGE: u32 = 4096;

    /// Whether such a list can exist.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub fn check(self) -> Result<(), Error> {
        let why = match self {
            Self::Pages(size) if size.is_power_of_two() => return Ok(()),
            Self::Pages(_) => Why::Alignment,
            Self::Blocks(0) => Why::Zero,
            Self::Blocks(_) | Self::Gaps => return Ok(()),
        };
        let attr = Attr::PageList;
        Err(Error::Mismatch { attr, why })
    }

    /// How many entries of a list a piece takes.
    fn entries(self, addr: u64, len: u32) -> usize {
        match self {
            _ if len == 0 => 0,
            Self::Pages(size) => {
                let before = addr % u64::from(size);
                (before + u64::from(len)).div_ceil(u64::from(size)) as usize
            }
            Self::Blocks(_) | Self::Gaps => 1,
        }
    }
}

/// A list of pieces with the memory that contains them; all its capacity is allocated at once.
pub struct PageList {
    pages: Vec<Page>,
    /// The memory of the pieces; neighbours share one entry.
    keepers: Vec<Arc<Memory>>,
    /// The capacity in entries.
    room: usize,
    /// Threads that may still be reading its contents.
    pub(super) drain: Touched,
}

impl PageList {
    /// An empty list with room for that many pages.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(room: u32) -> Result<Self, Error> {
        let room = room as usize;
        let (mut pages, mut keepers) = (Vec::new(), Vec::new());
        pages.try_reserve_exact(room).map_err(|_| Error::NoMemory)?;
        keepers
            .try_reserve_exact(room)
            .map_err(|_| Error::NoMemory)?;
        Ok(Self {
            pages,
            keepers,
            room,
            drain: Touched::NOBODY,
        })
    }

    /// A list of exactly these pieces, with no further capacity.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for pieces that the layout does not allow, [`Error::OutOfRange`] for a piece that
    /// extends beyond its memory, [`Error::NoMemory`].
    pub fn of(layout: Layout, pieces: &[Extent<'_>]) -> Result<Self, Error> {
        layout.check()?;
        let entries = |piece: &Extent<'_>| {
            let addr = piece.memory.addr().wrapping_add(piece.offset as u64);
            layout.entries(addr, piece.len)
        };
        let room = pieces.iter().map(entries).sum::<usize>();
        let mut list = Self::new(u32::try_from(room).map_err(|_| Error::NoMemory)?)?;
        if list.fill(layout, pieces.iter().copied())? == pieces.len() {
            return Ok(list);
        }
        let (attr, why) = (Attr::PageList, Why::Alignment);
        Err(Error::Mismatch { attr, why })
    }

    /// The capacity in entries.
    pub fn room(&self) -> u32 {
        u32::try_from(self.room).unwrap_or(u32::MAX)
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> u64 {
        self.pages.last().map_or(0, |page| page.end)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        let first = self.pages.first();
        first.map_or(0, |page| page.start.addr().get() as u64)
    }

    /// Releases the memory.
    ///
    /// # Errors
    /// [`Error::Busy`] while a thread may be reading it.
    pub fn clear(&mut self) -> Result<(), Error> {
        let inside = pin::current().is_some_and(|me| me.look().inside());
        if inside && self.drain != Touched::NOBODY || !grace::is_over(&mut self.drain) {
            return Err(Error::Busy);
        }
        self.drain = Touched::NOBODY;
        self.pages.clear();
        self.keepers.clear();
        Ok(())
    }

    /// Replaces the contents by these pieces, as many as the layout and the capacity allow; returns their number.
    /// An empty piece is counted and takes no entry. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a piece that extends beyond its memory, [`Error::Busy`] as [`PageList::clear`].
    pub fn fill<'m>(
        &mut self,
        layout: Layout,
        extents: impl IntoIterator<Item = Extent<'m>>,
    ) -> Result<usize, Error> {
        self.clear()?;
        let (mut taken, mut used) = (0, 0);
        let mut before: Option<(u64, u32)> = None;
        for Extent {
            memory,
            offset,
            len,
        } in extents
        {
            let start = memory.at(offset, len as usize)?;
            if len == 0 {
                taken += 1;
                continue;
            }
            let addr = start.addr().get() as u64;
            let is_first = self.pages.len() == 1;
            let follows = before.is_none_or(|before| follows(layout, before, is_first, addr));
            let fits = !matches!(layout, Layout::Blocks(size) if len > size);
            used += layout.entries(addr, len);
            if !follows || !fits || used > self.room {
                break;
            }
            before = Some((addr, len));
            taken += 1;
            let end = self.len() + u64::from(len);
            self.pages.push(Page { start, end });
            if self
                .keepers
                .last()
                .is_none_or(|last| !Arc::ptr_eq(last, memory))
            {
                self.keepers.push(Arc::clone(memory));
            }
        }
        Ok(taken)
    }

    /// The pieces, for a slot: they do not move as long as the list lives and is not changed.
    pub(super) fn pages(&self) -> (*mut Page, u32) {
        (self.pages.as_ptr().cast_mut(), self.pages.len() as u32)
    }
}

/// Whether a piece may follow another; `is_first` tells whether that is the first one.
fn follows(layout: Layout, (addr, len): (u64, u32), is_first: bool, next: u64) -> bool {
    let end = addr.wrapping_add(u64::from(len));
    match layout {
        Layout::Pages(size) => {
            let aligned = |addr: u64| addr.is_multiple_of(u64::from(size));
            end == next || aligned(end) && aligned(next)
        }
        Layout::Blocks(size) => is_first || len == size,
        Layout::Gaps => true,
    }
}

/// Threads that may be reading the memory must leave before it is freed.
impl Drop for PageList {
    fn drop(&mut self) {
        if self.clear().is_err() {
            let kept = (
                std::mem::take(&mut self.pages),
                std::mem::take(&mut self.keepers),
            );
            grace::after(self.drain, move || drop(kept));
        }
    }
}

impl fmt::Debug for PageList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = self.pages.len();
        write!(f, "PageList({pieces} pieces, {} bytes)", self.len())
    }
}

/// Checked bytes of a region: a [`Window`], or several in order.
#[derive(Clone, Copy)]
pub enum Span<'p> {
    /// In one piece.
    One(Window<'p>),
    /// In the pieces of a list.
    Pieces(Pieces<'p>),
}

/// Checked bytes in the pieces of a list.
#[derive(Clone, Copy)]
pub struct Pieces<'p> {
    pages: &'p [Page],
    /// The piece that the first byte is in.
    index: u32,
    /// Bytes.
    len: u32,
    /// The first byte, relative to the first byte of the list.
    at: u64,
}

impl<'p> Span<'p> {
    /// # Safety
    /// The memory of the pieces is valid for `'p`, for writing too if the span will be written through,
    /// and no reference covers it. `at + len` is within the list.
    pub(super) unsafe fn pieces(pages: &'p [Page], at: u64, len: u32) -> Self {
        let index = pages.partition_point(|page| page.end <= at) as u32;
        Self::Pieces(Pieces {
            pages,
            index,
            len,
            at,
        })
    }

    /// A span of no bytes.
    pub const fn empty() -> Self {
        Self::One(Window::empty())
    }

    /// Bytes.
    #[inline]
    pub const fn len(self) -> u32 {
        match self {
            Self::One(window) => window.len(),
            Self::Pieces(pieces) => pieces.len,
        }
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes in order, a window at a time; none is empty.
    #[inline]
    pub fn windows(self) -> Windows<'p> {
        Windows(self)
    }

    /// Whether one of its bytes is at that address.
    #[cold]
    pub fn covers(self, addr: usize) -> bool {
        self.windows().any(|window| window.covers(addr))
    }

    /// The bytes, if they are in one piece.
    pub fn window(self) -> Option<Window<'p>> {
        let mut windows = self.windows();
        let first = windows.next();
        match first {
            None => Some(Window::empty()),
            Some(window) => (window.len() == self.len()).then_some(window),
        }
    }

    /// The part of `len` bytes from `offset` on; `None` if it is not within this span.
    #[inline]
    pub fn part(self, offset: u32, len: u32) -> Option<Self> {
        match self {
            Self::One(window) => window.part(offset, len).map(Self::One),
            Self::Pieces(whole) => {
                if offset.checked_add(len)? > whole.len {
                    return None;
                }
                // SAFETY: a part of a valid span.
                Some(unsafe { Self::pieces(whole.pages, whole.at + u64::from(offset), len) })
            }
        }
    }

    /// Copies private bytes into this span: as many as fit; returns their number.
    ///
    /// # Errors
    /// As for [`Window::copy_from`].
    #[inline]
    pub fn write_from(self, src: &[u8]) -> Result<u32, Unmapped> {
        if let Self::One(window) = self {
            return window.write_from(src);
        }
        let mut done = 0;
        for window in self.windows() {
            done += window.write_from(&src[done as usize..])?;
        }
        Ok(done)
    }

    /// Copies a window into this span: as many bytes as fit; returns their number.
    ///
    /// # Errors
    /// As for [`Window::copy_from`].
    #[inline]
    pub fn copy_from(self, src: Window<'_>) -> Result<u32, Unmapped> {
        if let Self::One(window) = self {
            return window.copy_from(src);
        }
        let mut done = 0;
        for window in self.windows() {
            let Some(rest) = src.part(done, src.len() - done) else {
                break;
            };
            done += window.copy_from(rest)?;
        }
        Ok(done)
    }

    /// Copies this span into a window: as many bytes as fit; returns their number.
    ///
    /// # Errors
    /// As for [`Window::copy_from`].
    #[inline]
    pub fn copy_to(self, dst: Window<'_>) -> Result<u32, Unmapped> {
        if let Self::One(window) = self {
            return dst.copy_from(window);
        }
        let mut done = 0;
        for window in self.windows() {
            let Some(rest) = dst.part(done, dst.len() - done) else {
                break;
            };
            done += rest.copy_from(window)?;
        }
        Ok(done)
    }

    /// Copies this span to private bytes: as many as fit; returns their number.
    ///
    /// # Errors
    /// As for [`Window::copy_from`].
    #[inline]
    pub fn read_into(self, dst: &mut [u8]) -> Result<u32, Unmapped> {
        if let Self::One(window) = self {
            return window.read_into(dst);
        }
        let mut done = 0;
        for window in self.windows() {
            done += window.read_into(&mut dst[done as usize..])?;
        }
        Ok(done)
    }
}

impl<'p> From<Window<'p>> for Span<'p> {
    #[inline(always)]
    fn from(window: Window<'p>) -> Self {
        Self::One(window)
    }
}

impl fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes)", self.len())
    }
}

/// See [`Span::windows`].
#[derive(Clone, Debug)]
pub struct Windows<'p>(Span<'p>);

impl<'p> Iterator for Windows<'p> {
    type Item = Window<'p>;

    #[inline]
    fn next(&mut self) -> Option<Window<'p>> {
        match &mut self.0 {
            Span::One(window) => {
                let whole = std::mem::replace(window, Window::empty());
                (!whole.is_empty()).then_some(whole)
            }
            Span::Pieces(pieces) => pieces.next(),
        }
    }
}

impl<'p> Pieces<'p> {
    fn next(&mut self) -> Option<Window<'p>> {
        while self.len != 0 {
            let index = self.index as usize;
            let page = self.pages.get(index)?;
            let before = index.checked_sub(1).map_or(0, |last| self.pages[last].end);
            self.index += 1;
            let n = (page.end - self.at).min(u64::from(self.len)) as u32;
            if n == 0 {
                continue;
            }
            // SAFETY: the piece has `page.end - before` bytes, of which these are some; the creator of the span
            // vouches for them.
            let window = unsafe { Window::new(page.start.add((self.at - before) as usize), n) };
            self.at += u64::from(n);
            self.len -= n;
            return Some(window);
        }
        None
    }
}
