//! What all objects have in common: identity, header, parents, and how they are destroyed.
//!
//! An object is a *core* behind an `Arc` and one *handle* that is not `Clone`. Children hold their
//! parents' cores, so memory goes in the right order by construction; the counts in the header
//! decide whether a destroy is Busy (K10).

use std::any::Any;
use std::fmt;

use smallbox::{SmallBox, smallbox};

use crate::command::Pending;
use crate::device::DeviceCore;
use crate::error::Error;
use crate::header::{Busy, Close, Header, User};
use crate::provider::Provider;
use crate::request::Request;
use crate::routine;
use crate::sync::atomic::{AtomicBool, Ordering::AcqRel};
use crate::sync::{Arc, Mutex};
use crate::verb::{Admit, Verb};

pub use crate::object_id::{ObjectId, ObjectKind};

/// What a provider keeps with an object.
pub type Private = Box<dyn Any + Send + Sync>;

/// The part of a core that every kind has.
pub struct Base {
    pub(crate) header: Header,
    /// `None` for the device itself.
    device: Option<Arc<DeviceCore>>,
    /// A destroy that waits for the last user or the last child. Set by the closer before it leaves,
    /// taken by whoever the header says continues: never contended, so the lock never waits.
    parked: Mutex<Option<Parked>>,
    id: ObjectId,
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

/// A handle: the one owner of an object.
pub trait Handle: Sized + Send + 'static {
    /// What requests act on.
    type Core: Target;
    /// The verb that destroys it.
    type Destroy: Verb<Target = Self::Core, Error = Refused<Self>> + From<Destroy<Self>>;

    /// What requests act on.
    fn core(&self) -> &Arc<Self::Core>;
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
    /// Who holds the object, when `error` is [`Error::Busy`].
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

/// The arguments of every destroy verb.
pub struct Destroy<H> {
    /// The handle; `None` for the implicit destroy of K12.
    handle: Option<H>,
    when_idle: bool,
}

impl<H: Handle> Destroy<H> {
    /// Runs when the destroy is issued: closes the header, or says why not.
    pub(crate) fn admit(&mut self, core: &H::Core) -> Admit<Refused<H>> {
        let refuse = |error, busy, handle: &mut Option<H>| {
            Admit::Refuse(Refused {
                error,
                busy,
                handle: handle.take(),
            })
        };
        let close = core.base().header.close(self.when_idle);
        if !matches!(close, Close::Busy(_) | Close::Already) {
            core.closing();
        }
        match close {
            Close::Drained => Admit::Go,
            Close::Draining | Close::WhenIdle => Admit::Park,
            Close::Busy(busy) => refuse(Error::Busy, Some(busy), &mut self.handle),
            Close::Already => refuse(Error::Closing, None, &mut self.handle),
        }
    }

    pub(crate) fn refuse(self, error: Error) -> Refused<H> {
        Refused {
            error,
            busy: None,
            handle: self.handle,
        }
    }
}

/// A destroy that waits, in memory that the object has had from the beginning (K7).
type Parked = SmallBox<dyn GoesOn, Room>;

/// Enough for every destroy.
struct Room(#[expect(dead_code, reason = "only its size counts")] [usize; 21]);

trait GoesOn: Send {
    /// Passes the destroy to the provider; the second time does nothing.
    fn go_on(&mut self, to: &dyn Provider);
}

struct Waiting<V: Verb>(Option<(V, Pending<V>)>);

impl<V: Verb> GoesOn for Waiting<V> {
    fn go_on(&mut self, to: &dyn Provider) {
        if let Some((args, pending)) = self.0.take() {
            pending.forward(args, to);
        }
    }
}

/// Parks a destroy on its target until the last user or child has gone.
pub(crate) fn park<V: Verb>(target: Arc<dyn Target>, destroy: V, pending: Pending<V>) {
    const {
        assert!(size_of::<Waiting<V>>() <= size_of::<Room>());
        assert!(align_of::<Waiting<V>>() <= align_of::<Room>());
    }
    let parked: Parked = smallbox!(Waiting(Some((destroy, pending))));
    *target.base().parked.lock() = Some(parked);
    if target.base().header.leave(User::Request) {
        resume(target);
    }
}

/// The request that destroys `handle`'s object.
pub(crate) fn destroy<H: Handle>(handle: H, when_idle: bool) -> Request<'static, H::Destroy> {
    let core = Arc::clone(handle.core());
    Request::owned(
        core,
        Destroy {
            handle: Some(handle),
            when_idle,
        }
        .into(),
    )
}

/// A handle was dropped: destroys its object when it is idle, unless that is under way (K12).
pub(crate) fn dropped<H: Handle>(core: &Arc<H::Core>) {
    if core.base().header.is_closing() {
        return;
    }
    let core = Arc::clone(core);
    routine::defer(move || {
        let id = core.base().id();
        let device = Arc::clone(Target::device(&core));
        let destroy = Request::<H::Destroy>::owned(
            core,
            Destroy {
                handle: None,
                when_idle: true,
            }
            .into(),
        );
        let _ = destroy.issue(move |result| {
            // The object of a device that has gone is gone.
            if let Err(refused) = result
                && refused.error != Error::DeviceRemoved
            {
                device.implicit_destroy_failed(id, refused.error);
            }
        });
    });
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            device.slots.forgive();
        }
    }
}

/// Implements [`Target`] for a core with these counted parents; what it does when its destroy is accepted,
/// and when the device becomes unusable.
macro_rules! core {
    ($Core:ty { $($parent:ident),+ }) => {
        $crate::object::core!($Core { $($parent),+ }, |_core| (), |_core| ());
    };
    ($Core:ty { $($parent:ident),+ }, |$core:ident| $closing:expr) => {
        $crate::object::core!($Core { $($parent),+ }, |$core| $closing, |_core| ());
    };
    ($Core:ty { $($parent:ident),+ }, |$core:ident| $closing:expr, |$ends:ident| $end:expr) => {
        impl $crate::object::Target for $Core {
            fn base(&self) -> &$crate::object::Base {
                &self.base
            }

            #[inline]
            fn device(this: &$crate::sync::Arc<Self>) -> &$crate::sync::Arc<$crate::device::DeviceCore> {
                this.base.device()
            }

            fn provider(&self) -> &$crate::sync::Arc<dyn $crate::provider::Provider> {
                &self.base.device().provider
            }

            fn release(&self) {
                $($crate::object::Releases::release(&self.$parent);)+
            }

            fn closing(&self) {
                let $core = self;
                $closing
            }

            fn tell_end(&self) {
                let $ends = self;
                $end
            }
        }
    };
}
pub(crate) use core;

/// A counted parent, or one that there may not be.
pub(crate) trait Releases {
    fn release(&self);
}

impl<T: Target> Releases for Child<T> {
    fn release(&self) {
        Self::release(self);
    }
}

impl<T: Target> Releases for Option<Child<T>> {
    fn release(&self) {
        if let Some(child) = self {
            child.release();
        }
    }
}

/// Declares the handle, the destroy verb and the drop of one kind of object.
macro_rules! handle {
    ($Handle:ident, $Core:ty, $Destroy:ident) => {
        impl $crate::object::Handle for $Handle {
            type Core = $Core;
            type Destroy = $Destroy;

            fn core(&self) -> &$crate::sync::Arc<$Core> {
                &self.core
            }
        }

        impl Drop for $Handle {
            fn drop(&mut self) {
                $crate::object::dropped::<Self>(&self.core);
            }
        }

        impl std::fmt::Debug for $Handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(
                    f,
                    "{}({})",
                    stringify!($Handle),
                    $crate::object::Target::base(&*self.core).id()
                )
            }
        }

        /// Destroys the object of that name; arguments of the verb.
        pub struct $Destroy($crate::object::Destroy<$Handle>);

        impl From<$crate::object::Destroy<$Handle>> for $Destroy {
            fn from(destroy: $crate::object::Destroy<$Handle>) -> Self {
                Self(destroy)
            }
        }

        impl $crate::verb::Verb for $Destroy {
            type Target = $Core;
            type Output = ();
            type Error = $crate::object::Refused<$Handle>;
            const KIND: $crate::command::Kind = $crate::command::Kind::$Destroy;
            const DESTROYS: bool = true;

            #[inline]
            fn command(
                command: $crate::command::Command<'_, Self>,
            ) -> $crate::command::AnyCommand<'_> {
                $crate::command::AnyCommand::$Destroy(command)
            }

            fn admit(&mut self, target: &$Core) -> $crate::verb::Admit<Self::Error> {
                self.0.admit(target)
            }

            fn park(
                self,
                target: $crate::sync::Arc<$Core>,
                pending: $crate::command::Pending<Self>,
            ) {
                $crate::object::park(target, self, pending);
            }

            fn refuse(self, error: $crate::error::Error) -> Self::Error {
                self.0.refuse(error)
            }

            fn completed(target: &$crate::sync::Arc<$Core>, _: &Result<(), Self::Error>) {
                $crate::object::Target::release(&**target);
            }
        }
    };
}
pub(crate) use handle;
