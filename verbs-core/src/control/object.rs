//! What all objects have in common: identity, header, parents, and how they are destroyed.
//!
//! An object is a *core* behind an `Arc` and one *handle* that is not `Clone`. Children hold their
//! parents' cores, so memory goes in the right order by construction; the counts in the header
//! decide whether a destroy is Busy (K10).

use std::any::Any;
use std::fmt;

use smallbox::SmallBox;

use crate::command::Origin;
use crate::device::DeviceCore;
use crate::error::Error;
use crate::provider::Provider;
use crate::routine;
use crate::sync::atomic::{AtomicBool, Ordering::AcqRel};
use crate::sync::{Arc, Mutex};

mod handle;
pub(crate) mod header;
mod id;

pub use handle::{Destroy, Handle};
pub(crate) use handle::{Releases, core, destroy, dropped, handle, park};
pub use header::Busy;
use header::{Header, User};
use id::Owner;
pub use id::{ObjectId, ObjectKind};

/// What a provider keeps with an object.
pub type Private = Box<dyn Any + Send + Sync>;

/// The part of a core that every kind has.
pub struct Base {
    pub(crate) header: Header,
    /// `None` for the device itself.
    device: Option<Arc<DeviceCore>>,
    /// A destroy that waits for the last user or child. Set by the closer, taken by the thread that the header names:
    /// never contended.
    parked: Mutex<Option<Parked>>,
    id: ObjectId,
    pub(crate) owner: Owner,
    private: Private,
    /// Whether the result of the create has been delivered, so that events may go (K14).
    pub(crate) announced: AtomicBool,
}

impl Base {
    /// For an object whose create the provider has carried out. Promises its destroy a slot (K7).
    pub(crate) fn new(
        device: &Arc<DeviceCore>,
        kind: ObjectKind,
        number: u32,
        private: Private,
    ) -> Self {
        device.slots.promise();
        let (header, parked) = (Header::default(), Mutex::new(None));
        let device = Some(Arc::clone(device));
        Self {
            header,
            device,
            parked,
            id: ObjectId { kind, number },
            owner: Owner::default(),
            private,
            announced: AtomicBool::new(false),
        }
    }

    /// For the device itself.
    pub(crate) fn root(kind: ObjectKind, number: u32) -> Self {
        let (header, parked) = (Header::default(), Mutex::new(None));
        Self {
            header,
            device: None,
            parked,
            id: ObjectId { kind, number },
            owner: Owner::default(),
            private: Box::new(()),
            announced: AtomicBool::new(true),
        }
    }

    /// The device, of every object but the device itself.
    #[inline]
    pub(crate) fn device(&self) -> &Arc<DeviceCore> {
        self.device
            .as_ref()
            .expect("every object but the device is made with its device")
    }

    /// Kind and number.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// On whose behalf it was made. A client acts on no other objects than its own (K16).
    pub fn owner(&self) -> Origin {
        Origin::from_word(self.owner.word())
    }

    /// What the provider stored when it built the object, if it is of that type.
    pub fn private<T: 'static>(&self) -> Option<&T> {
        self.private.downcast_ref()
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)
    }
}

/// A core: what a request can act on.
pub trait Target: Send + Sync + 'static {
    /// The part that every kind has.
    fn base(&self) -> &Base;

    /// The device that the object belongs to.
    fn device(this: &Arc<Self>) -> &Arc<DeviceCore>
    where
        Self: Sized;

    /// The provider that its commands go to.
    fn provider(&self) -> &Arc<dyn Provider>;

    /// Releases the parents: the object's destroy has completed.
    fn release(&self);

    /// The object's destroy has been accepted.
    fn closing(&self) {}

    /// The device has become unusable, and the object's create has been delivered.
    #[doc(hidden)]
    fn tell_end(&self) {}

    /// The result of an admitted verb that its events must not overtake is final; `is_ok`: it has done what it was asked for.
    #[doc(hidden)]
    fn settled(&self, _is_ok: bool) {}

    /// That result has been delivered. Both run under no lock.
    #[doc(hidden)]
    fn delivered(self: Arc<Self>) {}

    /// Kind and number.
    fn id(&self) -> ObjectId {
        self.base().id
    }

    /// What the provider stored when it built the object, if it is of that type.
    fn private<T: 'static>(&self) -> Option<&T>
    where
        Self: Sized,
    {
        self.base().private()
    }
}

/// A counted reference from a child to a parent: keeps the parent's memory and makes it Busy.
pub(crate) struct Child<T: Target> {
    parent: Arc<T>,
    kind: ObjectKind,
    counted: AtomicBool,
}

impl<T: Target> Child<T> {
    /// Counts a child of a parent whose handle the caller holds.
    pub(crate) fn new(parent: &Arc<T>, kind: ObjectKind) -> Self {
        parent.base().header.adopt(kind);
        Self {
            parent: Arc::clone(parent),
            kind,
            counted: AtomicBool::new(true),
        }
    }

    pub(crate) fn get(&self) -> &Arc<T> {
        &self.parent
    }

    /// Stops counting; the memory stays. Further calls do nothing.
    pub(crate) fn release(&self) {
        if self.counted.swap(false, AcqRel) && self.parent.base().header.orphan(self.kind) {
            let parent: Arc<T> = Arc::clone(&self.parent);
            resume(parent);
        }
    }
}

impl<T: Target> Drop for Child<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T: Target> fmt::Debug for Child<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.parent.base().id)
    }
}

/// A child that a provider counts on the data path: a memory window that is bound to a region, for
/// instance. Makes the object Busy.
#[derive(Debug)]
pub struct Hold {
    target: Arc<dyn Target>,
    kind: ObjectKind,
    counted: bool,
    /// It was the last child, and a destroy has waited for it.
    resume: bool,
}

impl Hold {
    /// Counts a child, unless the object is being destroyed.
    pub fn try_new(target: &Arc<dyn Target>, kind: ObjectKind) -> Option<Self> {
        target.base().header.try_adopt(kind).then(|| Self {
            target: Arc::clone(target),
            kind,
            counted: true,
            resume: false,
        })
    }

    /// Stops counting. A destroy that waited for this goes on when the value is dropped.
    pub fn let_go(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.resume = self.target.base().header.orphan(self.kind);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
        if self.resume {
            resume(Arc::clone(&self.target));
        }
    }
}

impl fmt::Debug for dyn Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base().id)
    }
}

/// A user of an object for as long as it lives: a pending request or a running handler.
pub(crate) struct InUse {
    target: Arc<dyn Target>,
    user: User,
}

impl InUse {
    /// Counts a user of an object that the caller proves not to be closed.
    pub(crate) fn enter(target: Arc<dyn Target>, user: User) -> Self {
        target.base().header.enter(user);
        Self { target, user }
    }

    /// Counts a user, unless the object is closed.
    pub(crate) fn try_enter(target: Arc<dyn Target>, user: User) -> Option<Self> {
        target
            .base()
            .header
            .try_enter(user)
            .then_some(Self { target, user })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.target.base().header.leave(self.user) {
            resume(Arc::clone(&self.target));
        }
    }
}

/// Continues the destroy that is parked on `target`: never inside a provider's frame (K1).
fn resume(target: Arc<dyn Target>) {
    routine::defer(move || {
        let parked = target.base().parked.lock().take();
        if let Some(mut destroy) = parked {
            destroy.go_on(&**target.provider());
        }
    });
}

/// A destroy that was refused before it was accepted, with the handle back.
pub struct Refused<H> {
    /// Why.
    pub error: Error,
    /// The children and users of the object, when `error` is [`Error::Busy`].
    pub busy: Option<Busy>,
    /// The handle, unchanged and usable; `None` only when the device went after the destroy had
    /// been accepted.
    pub handle: Option<H>,
}

impl<H> From<Error> for Refused<H> {
    fn from(error: Error) -> Self {
        Self {
            error,
            busy: None,
            handle: None,
        }
    }
}

impl<H> From<Refused<H>> for Error {
    /// Forgets the handle, which destroys the object when it is idle (K12).
    fn from(refused: Refused<H>) -> Self {
        refused.error
    }
}

impl<H> fmt::Debug for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("error", &self.error)
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}

impl<H> fmt::Display for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.busy {
            Some(busy) => write!(f, "{} ({busy})", self.error),
            None => write!(f, "{}", self.error),
        }
    }
}

impl<H> std::error::Error for Refused<H> {}

/// A destroy that waits, in memory that the object has had from the beginning (K7).
type Parked = SmallBox<dyn GoesOn, Room>;

/// Enough for every destroy.
struct Room(#[expect(dead_code, reason = "only its size counts")] [usize; 21]);

trait GoesOn: Send {
    /// Passes the destroy to the provider; the second time does nothing.
    fn go_on(&mut self, to: &dyn Provider);
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            device.slots.forgive();
        }
    }
}
