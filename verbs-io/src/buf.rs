//! Buffers that are lent: registered memory that one holder at a time reads and writes as a slice.
//!
//! # Why a slice of registered memory is sound here
//!
//! * *No peer reaches it*: the regions are registered with [`Access::LOCAL_WRITE`](verbs_core::Access) only, in a
//!   protection domain of which no object and no key is given out, so no other work request than the lane's names
//!   them.
//! * *No operation of this side reaches it*: the lane posts a buffer only while it is not lent ([`Loans::take_in`]
//!   comes before the post, or the future that posts holds the [`Buf`] and is the only one to give it out again), and
//!   lends it again after its completion.
//! * *One holder*: a table says which buffers are lent; [`Loans::lend`] refuses one that is, and
//!   [`Loans::take_in`] one of another table.
//! * *The provider keeps the contract* (`docs/CONTRACT.md`, Memory), filters in front of it too: it gets the memory with the
//!   registration, and touches it only for work requests that are posted and have not completed. It says so by a
//!   [`Vouch`](verbs_core::provider::Vouch), which takes unsafe code to give, and without which no endpoint opens; or
//!   whoever opens the endpoint says so ([`Opening::trust`](crate::Opening::trust)).
//! * *Initialised*: the memory is zeroed when it is mapped.
//! * *Alive*: from the first loan on, [`Loans`] holds the lender, which holds the memory and the descriptors. It lets go
//!   when it is [closed](Loans::close) and no buffer is lent, whichever comes last.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use verbs_core::sync::{Arc, Weak};
use verbs_core::{LKey, Mr, Sge};

/// What takes buffers back.
pub(crate) trait Lender: Send + Sync {
    /// Takes the buffer of that index back. What comes out is to be dropped last of all: it may be the lender.
    fn take_back(&self, index: u32) -> Option<Arc<dyn Lender>>;

    /// The immediate data that the message in the lent buffer of that index came with.
    fn imm(&self, index: u32) -> Option<u32>;
}

/// What a buffer is, for its whole life.
struct Desc {
    lender: NonNull<dyn Lender>,
    start: NonNull<u8>,
    addr: u64,
    lkey: LKey,
    index: u32,
    capacity: u32,
}

/// A buffer of registered memory: what operations send, and what messages arrive in.
///
/// It derefs to its bytes, `len` of the `capacity` that it has. Dropping it gives it back to its
/// [`Endpoint`](crate::Endpoint); nothing is deregistered or freed.
///
/// It can be sent to other threads. It keeps the endpoint's memory alive, not its connections.
pub struct Buf {
    desc: NonNull<Desc>,
    len: u32,
}

// SAFETY: the descriptor is immutable and lives as long as the buffer is lent (see the head); the bytes are this
// value's alone, as those of a `Box<[u8]>` are.
unsafe impl Send for Buf {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buf {}

impl Buf {
    #[inline(always)]
    fn desc(&self) -> &Desc {
        // SAFETY: the descriptor lives while the buffer is lent, which it is.
        unsafe { self.desc.as_ref() }
    }

    /// Bytes that it has room for.
    pub fn capacity(&self) -> usize {
        self.desc().capacity as usize
    }

    /// The immediate data of the message that it was received with, until it is given to an operation: that of the peer's
    /// [`Connection::write_with_imm`](crate::Connection::write_with_imm), or of a SEND with immediate data.
    pub fn imm(&self) -> Option<u32> {
        // SAFETY: while a buffer is lent its lender lives.
        let lender = unsafe { self.desc().lender.as_ref() };
        lender.imm(self.index())
    }

    /// Sets the length in bytes. Bytes beyond the old length are what they were: zeros, or what an earlier user of
    /// the buffer in this process left there.
    ///
    /// # Panics
    /// If `len` is more than the [capacity](Buf::capacity).
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(
            len <= capacity,
            "{len} bytes in a buffer that has room for {capacity}"
        );
        self.len = len as u32;
    }

    /// Shortens it to `len` bytes; does nothing if it is shorter.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.set_len(len);
        }
    }

    /// Copies `bytes` into it and takes over their length.
    ///
    /// # Panics
    /// If there are more than the [capacity](Buf::capacity).
    pub fn fill_from(&mut self, bytes: &[u8]) {
        self.set_len(bytes.len());
        self.copy_from_slice(bytes);
    }

    /// The piece of memory for a work request.
    #[inline(always)]
    pub(crate) fn sge(&self) -> Sge {
        let desc = self.desc();
        Sge {
            addr: desc.addr,
            len: self.len,
            lkey: desc.lkey,
        }
    }

    /// Whether that is what lends it.
    #[inline(always)]
    pub(crate) fn is_of<L: Lender>(&self, lender: &L) -> bool {
        let own = self.desc().lender.as_ptr().cast::<()>().cast_const();
        own == std::ptr::from_ref(lender).cast()
    }

    /// Lets go of one that the lender has [back](Loans::returned) already.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }

    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.desc().index
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` is at most the capacity, and those bytes are this value's alone (see the head).
        unsafe { std::slice::from_raw_parts(self.desc().start.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.desc().start.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Buf {
    #[inline(always)]
    fn drop(&mut self) {
        let (lender, index) = (self.desc().lender, self.index());
        // SAFETY: while a buffer is lent its lender lives.
        let last = unsafe { lender.as_ref() }.take_back(index);
        // Perhaps the lender, which nothing uses from here on.
        drop(last);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} of {} bytes)", self.len, self.capacity())
    }
}

/// Buffers side by side in one region.
struct Chunk {
    /// A boxed slice, reached through this pointer only, so that buffers may point into it.
    descs: NonNull<[Desc]>,
    /// Holds the memory.
    _mr: Mr,
}

/// All buffers of a lender, and which of them are lent.
pub(crate) struct Loans {
    lender: Weak<dyn Lender>,
    chunks: Vec<Chunk>,
    /// By index.
    descs: Vec<NonNull<Desc>>,
    places: Vec<Place>,
    /// By index, the immediate data of those that have some; empty until the first one comes.
    imms: Vec<u32>,
    /// How many are.
    out: u32,
    /// The lender, from the first loan on until no more are to be expected and none is out.
    keep: Option<Arc<dyn Lender>>,
    /// Loans are to be expected.
    is_open: bool,
}

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Home,
    Lent,
    /// At home. Its next holder can ask for immediate data.
    HomeWithImm,
    LentWithImm,
}

// SAFETY: descriptors are immutable, and their pointers are used as `Buf` and `Chunk` argue.
unsafe impl Send for Loans {}

impl Loans {
    /// None yet, of that lender.
    pub(crate) fn new(lender: Weak<dyn Lender>) -> Self {
        Self {
            lender,
            chunks: Vec::new(),
            descs: Vec::new(),
            places: Vec::new(),
            imms: Vec::new(),
            out: 0,
            keep: None,
            is_open: true,
        }
    }

    /// How many buffers there are; they have the indices below that.
    pub(crate) fn count(&self) -> u32 {
        self.descs.len() as u32
    }

    /// How many are lent.
    pub(crate) fn out(&self) -> u32 {
        self.out
    }

    /// Adds `count` buffers of `size` bytes: the first ones of the region. Says which index the first one has.
    ///
    /// The region is made for this: no key of it is known elsewhere, and peers have no right to it.
    pub(crate) fn add(&mut self, mr: Mr, count: u32, size: u32) -> u32 {
        let first = self.count();
        let bytes = count as usize * size as usize;
        assert!(bytes <= mr.len(), "the region is made for its buffers");
        assert!(
            !mr.access().intersects(verbs_core::Access::REMOTE),
            "peers have no right to buffers"
        );
        // Never dangling: a weak reference keeps the place, and `lend` takes a strong one before it is used.
        let lender = self.lender.as_ptr().cast_mut();
        let lender = NonNull::new(lender).expect("a place of its own");
        let descs: Box<[Desc]> = (0..count)
            .map(|n| {
                let offset = n as usize * size as usize;
                Desc {
                    lender,
                    // SAFETY: within the region's memory, as was just checked.
                    start: unsafe { mr.memory().base().add(offset) },
                    addr: mr.iova() + offset as u64,
                    lkey: mr.lkey(),
                    index: first + n,
                    capacity: size,
                }
            })
            .collect();
        let descs = NonNull::from(Box::leak(descs));
        let start = descs.cast::<Desc>();
        // SAFETY: within the slice.
        let each = (0..count as usize).map(|n| unsafe { start.add(n) });
        self.descs.extend(each);
        self.places.resize(self.descs.len(), Place::Home);
        self.chunks.push(Chunk { descs, _mr: mr });
        first
    }

    /// Lends a buffer with that many bytes in use, at most its size.
    ///
    /// # Panics
    /// If it is lent already: a defect of the lane.
    #[inline]
    pub(crate) fn lend(&mut self, index: u32, len: u32) -> Buf {
        let place = &mut self.places[index as usize];
        if *place != Place::Home {
            return self.lend_with_imm(index, len);
        }
        let desc = self.descs[index as usize];
        // SAFETY: descriptors live as long as this value.
        let capacity = unsafe { desc.as_ref() }.capacity;
        assert!(len <= capacity, "a buffer has its size");
        if self.keep.is_none() {
            self.keep = Some(self.lender.upgrade().expect("the lender is in use"));
        }
        *place = Place::Lent;
        self.out += 1;
        Buf { desc, len }
    }

    /// The rest of [`Loans::lend`] where the buffer has immediate data.
    #[cold]
    fn lend_with_imm(&mut self, index: u32, len: u32) -> Buf {
        let place = &mut self.places[index as usize];
        assert!(*place == Place::HomeWithImm, "a buffer is lent once");
        *place = Place::Home;
        let buf = self.lend(index, len);
        self.places[index as usize] = Place::LentWithImm;
        buf
    }

    /// The immediate data of a lent buffer.
    pub(crate) fn imm(&self, index: u32) -> Option<u32> {
        let index = index as usize;
        (self.places[index] == Place::LentWithImm).then(|| self.imms[index])
    }

    /// The message in a buffer at home came with that immediate data: its next holder can ask for it.
    pub(crate) fn keep_imm(&mut self, index: u32, imm: u32) {
        self.imms.resize(self.places.len(), 0);
        self.imms[index as usize] = imm;
        self.places[index as usize] = Place::HomeWithImm;
    }

    /// The message in a buffer at home is dropped, and its immediate data with it.
    pub(crate) fn forget_imm(&mut self, index: u32) {
        self.places[index as usize] = Place::Home;
    }

    /// A lent buffer comes back by itself: its index, and perhaps the lender, to be dropped last of all.
    ///
    /// # Panics
    /// If it is another lender's: a defect of the operation.
    pub(crate) fn take_in(&mut self, buf: Buf) -> (u32, Option<Arc<dyn Lender>>) {
        let lender = buf.desc().lender.as_ptr().cast_const();
        assert!(
            std::ptr::addr_eq(lender, self.lender.as_ptr()),
            "a buffer of this lender"
        );
        let index = buf.index();
        std::mem::forget(buf);
        (index, self.returned(index))
    }

    /// A lent buffer is being dropped.
    #[inline]
    pub(crate) fn returned(&mut self, index: u32) -> Option<Arc<dyn Lender>> {
        let place = std::mem::take(&mut self.places[index as usize]);
        debug_assert!(
            matches!(place, Place::Lent | Place::LentWithImm),
            "only lent buffers come back"
        );
        self.out -= 1;
        if self.out != 0 || self.is_open {
            return None;
        }
        self.keep.take()
    }

    /// No loans are to be expected: the lender is held as long as buffers are out. What comes out is to be dropped last
    /// of all: it may be the lender.
    pub(crate) fn close(&mut self) -> Option<Arc<dyn Lender>> {
        self.is_open = false;
        match self.out {
            0 => self.keep.take(),
            _ => None,
        }
    }

    /// The piece of memory of a buffer, all of it, for a receive.
    #[inline]
    pub(crate) fn sge(&self, index: u32) -> Sge {
        // SAFETY: descriptors live as long as this value.
        let desc = unsafe { self.descs[index as usize].as_ref() };
        Sge {
            addr: desc.addr,
            len: desc.capacity,
            lkey: desc.lkey,
        }
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        // While one is lent the lender is held, and this with it.
        if self.out != 0 {
            self.chunks.drain(..).for_each(std::mem::forget);
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: made from a box in `Loans::add`, and no buffer of it is lent.
        drop(unsafe { Box::from_raw(self.descs.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use verbs_core::sync::Mutex;
    use verbs_core::testing::Null;
    use verbs_core::{Access, Device, Memory};

    use super::*;

    /// A lender with a lock as plain as can be.
    struct Shelf(Mutex<Loans>);

    impl Lender for Shelf {
        fn take_back(&self, index: u32) -> Option<Arc<dyn Lender>> {
            self.0.lock().returned(index)
        }

        fn imm(&self, index: u32) -> Option<u32> {
            self.0.lock().imm(index)
        }
    }

    fn shelf(sizes: &[(u32, u32)]) -> Arc<Shelf> {
        let device = Device::open(Arc::new(Null::default())).wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let shelf = Arc::new_cyclic(|shelf: &Weak<Shelf>| {
            let lender: Weak<dyn Lender> = shelf.clone();
            Shelf(Mutex::new(Loans::new(lender)))
        });
        for &(count, size) in sizes {
            let memory = Memory::alloc((count * size) as usize).unwrap();
            let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
            shelf.0.lock().add(mr, count, size);
        }
        assert!(shelf.0.lock().close().is_none(), "nothing was lent yet");
        shelf
    }

    /// Goal: a lender that is expected to lend again is held without a buffer out, and let go of when it is closed.
    #[test]
    fn an_open_lender_is_held_from_the_first_loan_on() {
        let shelf = shelf(&[(1, 8)]);
        shelf.0.lock().is_open = true;
        let buf = shelf.0.lock().lend(0, 8);
        drop(buf);
        assert_eq!((shelf.0.lock().out(), Arc::strong_count(&shelf)), (0, 2));
        let last = shelf.0.lock().close();
        assert!(last.is_some());
        drop(last);
        assert_eq!(Arc::strong_count(&shelf), 1);
    }

    /// Goal: buffers are apart from each other, zeroed, and keep their memory when everything else is gone. Method: all of
    /// two regions, written on two threads, read after the shelf was dropped.
    #[test]
    fn buffers_outlive_their_lender() {
        let shelf = shelf(&[(3, 100), (2, 7)]);
        let mut bufs: Vec<Buf> = (0..5)
            .map(|index| shelf.0.lock().lend(index, if index < 3 { 100 } else { 7 }))
            .collect();
        let weak = Arc::downgrade(&shelf);
        drop(shelf);
        assert!(bufs.iter().all(|buf| buf.iter().all(|&byte| byte == 0)));
        let (first, second) = bufs.split_at_mut(2);
        verbs_core::sync::thread::scope(|scope| {
            scope.spawn(|| first.iter_mut().for_each(|buf| buf.fill(1)));
            scope.spawn(|| second.iter_mut().for_each(|buf| buf.fill(2)));
        });
        for (n, buf) in bufs.iter().enumerate() {
            let expected = if n < 2 { 1 } else { 2 };
            assert!(buf.iter().all(|&byte| byte == expected), "{n}");
        }
        assert!(weak.upgrade().is_some());
        drop(bufs);
        assert!(weak.upgrade().is_none(), "with the last buffer");
    }

    #[test]
    fn a_buffer_is_lent_once_and_in_its_size() {
        let shelf = shelf(&[(2, 8)]);
        let mut buf = shelf.0.lock().lend(1, 3);
        let again = catch_unwind(AssertUnwindSafe(|| drop(shelf.0.lock().lend(1, 3))));
        assert!(again.is_err());
        let long = catch_unwind(AssertUnwindSafe(|| drop(shelf.0.lock().lend(0, 9))));
        assert!(long.is_err());
        assert_eq!((buf.len(), buf.capacity()), (3, 8));
        buf.fill_from(b"12345678");
        buf.truncate(9);
        assert_eq!(buf.len(), 8);
        let long = catch_unwind(AssertUnwindSafe(|| buf.fill_from(b"123456789")));
        assert!(long.is_err());
        assert_eq!(&buf[..], b"12345678");
        let (index, last) = shelf.0.lock().take_in(buf);
        assert_eq!((index, last.is_some(), shelf.0.lock().out()), (1, true, 0));
        let again = shelf.0.lock().lend(1, 8);
        assert_eq!(&again[..], b"12345678");
    }

    /// Goal: a buffer that comes back to another lender is refused, and is still its own lender's.
    #[test]
    fn a_buffer_goes_home_only() {
        let (own, other) = (shelf(&[(1, 8)]), shelf(&[(1, 8)]));
        let buf = own.0.lock().lend(0, 8);
        assert!(buf.is_of(&*own) && !buf.is_of(&*other));
        let taken = catch_unwind(AssertUnwindSafe(|| other.0.lock().take_in(buf).0));
        assert!(taken.is_err());
        assert_eq!((own.0.lock().out(), other.0.lock().out()), (0, 0));
    }

    #[test]
    #[should_panic = "peers have no right to buffers"]
    fn memory_that_peers_reach_is_not_lent() {
        let device = Device::open(Arc::new(Null::default())).wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let memory = Memory::alloc(8).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let mr = pd.register(memory, access).wait().unwrap();
        shelf(&[]).0.lock().add(mr, 1, 8);
    }
}
