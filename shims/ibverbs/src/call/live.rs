//! Which pointers are objects, and which objects use which.
//!
//! A program holds pointers to objects, and may hold them too long. So every function except those for posting and
//! polling looks its pointers up here first. An object that others use counts them, and its destroy is `EBUSY` until
//! there are none, as in the kernel; so an object may hold the others that it uses by address.
//!
//! A program destroys nothing that it names in another call at the same time, so that call has what it names without a
//! count. What the library itself finds, such as the queue pair of the id of an event that a thread takes, the program
//! cannot know to be in use: it is lent, which its destroy waits for.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::call::Errno;

/// Kinds of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context,
    Pd,
    Td,
    Mr,
    Mw,
    Dm,
    Ah,
    Channel,
    Cq,
    Qp,
    Srq,
    Xrcd,
    EventChannel,
    CmId,
    CmEvent,
}

/// An object to which programs have a pointer.
///
/// # Safety
/// The C structure is [`OFFSET`](Self::OFFSET) bytes into the value.
pub(crate) unsafe trait Object: Sized {
    const KIND: Kind;
    const OFFSET: usize = 0;

    /// The count of objects that use it.
    fn users(&self) -> &Users;
}

/// How many objects use an object.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

static LIVE: Mutex<BTreeMap<usize, Entry>> = Mutex::new(BTreeMap::new());

/// An object that a destroy may wait for is no longer lent.
static RETURNED: Condvar = Condvar::new();

/// What is known of an object.
struct Entry {
    kind: Kind,
    lent: u32,
    /// Its destroy is under way: it is not lent any longer.
    is_closing: bool,
}

impl Entry {
    const fn of(kind: Kind) -> Self {
        Self {
            kind,
            lent: 0,
            is_closing: false,
        }
    }
}

/// How a destroy ended.
pub(crate) enum Ending<T> {
    Over,
    /// The object stays, for that reason.
    Refused(T, Errno),
}

/// Room for an object whose address is needed before it is made.
pub(crate) fn room<T: Object>() -> Box<MaybeUninit<T>> {
    Box::new_uninit()
}

/// Publishes an object, and returns its address in the form that C programs know.
pub(crate) fn publish<T: Object, P>(room: Box<MaybeUninit<T>>, object: T) -> *mut P {
    let at = Box::into_raw(Box::write(room, object));
    let shown = at.wrapping_byte_add(T::OFFSET);
    LIVE.lock().insert(shown.addr(), Entry::of(T::KIND));
    shown.cast()
}

/// The object at that address, which the program names.
///
/// # Safety
/// The program destroys it only when the reference is no longer used: a program destroys nothing that it is using.
pub(crate) unsafe fn look<'a, T: Object, P>(shown: *const P) -> Result<&'a T, Errno> {
    let live = LIVE.lock();
    if live.get(&shown.addr()).map(|entry| entry.kind) != Some(T::KIND) {
        return Err(Errno::INVAL);
    }
    drop(live);
    // SAFETY: an object of this type was published at that address and has not ended.
    Ok(unsafe { &*shown.wrapping_byte_sub(T::OFFSET).cast::<T>() })
}

/// The object at that address, which the program may be about to destroy: the destroy waits for the end of the loan. So a
/// loan is short, and nothing of the program's is called and no other object is destroyed meanwhile.
pub(crate) fn lend<T: Object, P>(shown: *const P) -> Result<Lent<T>, Errno> {
    let mut live = LIVE.lock();
    let entry = open_entry::<T>(&mut live, shown.addr())?;
    let at = shown.wrapping_byte_sub(T::OFFSET).cast::<T>().cast_mut();
    let object = NonNull::new(at).ok_or(Errno::INVAL)?;
    entry.lent += 1;
    Ok(Lent(object))
}

/// The entry of an object of that type whose destroy has not begun.
fn open_entry<T: Object>(
    live: &mut BTreeMap<usize, Entry>,
    shown: usize,
) -> Result<&mut Entry, Errno> {
    live.get_mut(&shown)
        .filter(|entry| entry.kind == T::KIND && !entry.is_closing)
        .ok_or(Errno::INVAL)
}

/// Begins the destroy of an object: waits until it is not lent any longer.
///
/// # Safety
/// As [`look`]: no call in which the program names it is under way.
pub(crate) unsafe fn close<T: Object, P>(shown: *mut P) -> Result<Closing<T>, Errno> {
    let mut live = LIVE.lock();
    let at = shown.wrapping_byte_sub(T::OFFSET).cast::<T>();
    let object = NonNull::new(at).ok_or(Errno::INVAL)?;
    open_entry::<T>(&mut live, shown.addr())?.is_closing = true;
    while live.get(&shown.addr()).is_some_and(|entry| entry.lent > 0) {
        RETURNED.wait(&mut live);
    }
    Ok(Closing(object))
}

/// Ends an object that has no users. `destroy` returns it if it cannot be destroyed.
///
/// # Safety
/// As [`close`].
pub(crate) unsafe fn end<T: Object, P>(
    shown: *mut P,
    destroy: impl FnOnce(T) -> Ending<T>,
) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { close::<T, P>(shown) }?.end(destroy)
}

/// The address of an object's C structure.
fn shown_at<T: Object>(object: NonNull<T>) -> usize {
    object.as_ptr().wrapping_byte_add(T::OFFSET).addr()
}

/// An object whose destroy has begun; dropped, the object stays.
pub(crate) struct Closing<T: Object>(NonNull<T>);

impl<T: Object> Closing<T> {
    /// Ends it, if it has no users. `destroy` returns it if it cannot be destroyed.
    pub(crate) fn end(self, destroy: impl FnOnce(T) -> Ending<T>) -> Result<(), Errno> {
        if self.users().any() {
            return Err(Errno::BUSY);
        }
        let at = self.0.as_ptr();
        let shown = shown_at(self.0);
        LIVE.lock().remove(&shown);
        std::mem::forget(self);
        // SAFETY: it was published there, and was just taken out, by this call alone.
        let object = unsafe { at.read() };
        match destroy(object) {
            Ending::Over => {
                // SAFETY: the room that it was published in; the value has been moved out.
                drop(unsafe { Box::from_raw(at.cast::<MaybeUninit<T>>()) });
                Ok(())
            }
            Ending::Refused(object, errno) => {
                // SAFETY: the value is put back where it was.
                unsafe { at.write(object) };
                LIVE.lock().insert(shown, Entry::of(T::KIND));
                Err(errno)
            }
        }
    }
}

impl<T: Object> Deref for Closing<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it was published, and this alone may end it.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> Drop for Closing<T> {
    fn drop(&mut self) {
        if let Some(entry) = LIVE.lock().get_mut(&shown_at(self.0)) {
            entry.is_closing = false;
        }
    }
}

/// An object that does not end as long as this lives.
pub(crate) struct Lent<T: Object>(NonNull<T>);

impl<T: Object> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: an object that is lent does not end.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(entry) = LIVE.lock().get_mut(&shown_at(self.0)) {
            entry.lent -= 1;
            if entry.is_closing {
                RETURNED.notify_all();
            }
        }
    }
}

/// Removes an object from the list and leaves it in memory, because others use it.
pub(crate) fn forget<P>(shown: *const P) {
    LIVE.lock().remove(&shown.addr());
}

/// A use of one object by another, as long as this lives.
pub(crate) struct Held<T: Object>(NonNull<T>);

// SAFETY: a shared reference that is counted.
unsafe impl<T: Object + Sync> Send for Held<T> {}
// SAFETY: as above.
unsafe impl<T: Object + Sync> Sync for Held<T> {}

impl<T: Object> Held<T> {
    pub(crate) fn new(object: &T) -> Self {
        object.users().0.fetch_add(1, Ordering::Relaxed);
        Self(NonNull::from(object))
    }

    /// The address, in the form that C programs know.
    pub(crate) fn shown<P>(&self) -> *mut P {
        self.0.as_ptr().wrapping_byte_add(T::OFFSET).cast()
    }
}

impl<T: Object> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self::new(self)
    }
}

impl<T: Object> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: an object with users does not end.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> Drop for Held<T> {
    fn drop(&mut self) {
        self.users().0.fetch_sub(1, Ordering::Release);
    }
}

impl Users {
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// Keeps the list from changing while the process forks.
pub(crate) fn lock_for_fork() {
    std::mem::forget(LIVE.lock());
}

/// Undoes that afterwards.
pub(crate) fn unlock_after_fork() {
    // SAFETY: this thread has locked it before the fork.
    unsafe { LIVE.force_unlock() }
}

/// The same in the child, which has none of the threads that something was lent to.
pub(crate) fn unlock_after_fork_in_child() {
    unlock_after_fork();
    LIVE.lock().values_mut().for_each(|entry| entry.lent = 0);
}

/// Events that a program has taken, and how many of them it has acknowledged.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    none: Condvar,
}

impl Unacknowledged {
    pub(crate) fn taken(&self) {
        *self.count.lock() += 1;
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut count = self.count.lock();
        // A program that acknowledges more than it has taken must not block its own destroy.
        *count = count.saturating_sub(events);
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until all are acknowledged, as a destroy does.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Thing {
        shown: u64,
        users: Users,
    }

    // SAFETY: the C part is at the front.
    unsafe impl Object for Thing {
        const KIND: Kind = Kind::Td;

        fn users(&self) -> &Users {
            &self.users
        }
    }

    struct Other(Users);

    // SAFETY: no part of it is shown.
    unsafe impl Object for Other {
        const KIND: Kind = Kind::Dm;

        fn users(&self) -> &Users {
            &self.0
        }
    }

    fn thing() -> *mut u64 {
        let users = Users::default();
        publish(room(), Thing { shown: 7, users })
    }

    /// Goal: a pointer is an object from its create to its destroy, and only of its own kind.
    #[test]
    fn pointers_that_are_no_objects_are_refused() {
        let at = thing();
        // SAFETY: one thread; nothing is used after it has ended.
        unsafe {
            assert_eq!(look::<Thing, u64>(at).map(|thing| thing.shown), Ok(7));
            assert!(look::<Other, u64>(at).is_err());
            assert!(look::<Thing, u64>(at.wrapping_add(1)).is_err());
            assert!(look::<Thing, u64>(std::ptr::null()).is_err());
            assert_eq!(end::<Thing, u64>(at, |_| Ending::Over), Ok(()));
            assert!(look::<Thing, u64>(at).is_err());
            assert_eq!(end::<Thing, u64>(at, |_| Ending::Over), Err(Errno::INVAL));
        }
    }

    /// Goal: an object that is lent does not end before it is back, and is not lent while it ends. Method: the destroy of
    /// another thread has begun when it is lent no longer; what it sees then was written before the return.
    #[test]
    fn a_destroy_waits_for_what_is_lent() {
        let at = thing();
        let place = at.expose_provenance();
        let lent = lend::<Thing, u64>(at).expect("it is there");
        let is_back = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let destroy = scope.spawn(|| {
                let at = std::ptr::with_exposed_provenance_mut::<u64>(place);
                let destroy = |_| {
                    assert_eq!(is_back.load(Ordering::Relaxed), 1, "it was lent");
                    Ending::Over
                };
                // SAFETY: nothing names it at the same time.
                unsafe { end::<Thing, u64>(at, destroy) }
            });
            while lend::<Thing, u64>(at).is_ok() {
                std::thread::yield_now();
            }
            assert_eq!(lent.shown, 7, "it is there, while its destroy waits");
            is_back.store(1, Ordering::Relaxed);
            drop(lent);
            assert_eq!(destroy.join().expect("no panic"), Ok(()));
        });
        assert!(lend::<Thing, u64>(at).is_err());
    }

    /// Goal: a destroy that is refused leaves an object that is lent as before.
    #[test]
    fn an_object_that_stays_is_lent_again() {
        let at = thing();
        // SAFETY: one thread; nothing is used after it has ended.
        unsafe {
            let closing = close::<Thing, u64>(at).expect("it is there");
            assert!(lend::<Thing, u64>(at).is_err());
            assert!(close::<Thing, u64>(at).is_err(), "one destroy at a time");
            drop(closing);
            assert_eq!(lend::<Thing, u64>(at).map(|thing| thing.shown), Ok(7));
            assert_eq!(end::<Thing, u64>(at, |_| Ending::Over), Ok(()));
        }
    }

    #[test]
    fn an_object_in_use_does_not_end_and_one_that_cannot_end_stays() {
        let at = thing();
        // SAFETY: as above.
        unsafe {
            let held = look::<Thing, u64>(at).map(Held::new).expect("it is there");
            assert_eq!(held.shown::<u64>(), at);
            assert_eq!(end::<Thing, u64>(at, |_| Ending::Over), Err(Errno::BUSY));
            drop(held);
            let refuse = |thing| Ending::Refused(thing, Errno::NOMEM);
            assert_eq!(end::<Thing, u64>(at, refuse), Err(Errno::NOMEM));
            assert_eq!(look::<Thing, u64>(at).map(|thing| thing.shown), Ok(7));
            assert_eq!(end::<Thing, u64>(at, |_| Ending::Over), Ok(()));
        }
    }
}
