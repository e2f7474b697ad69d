//! Handles: what a program holds of an object, and the destroys that they ask for.
//!
//! At the end the macros that every noun is declared with.

use smallbox::smallbox;

use super::{Child, GoesOn, Parked, Refused, Room, Target, resume};
use crate::command::Pending;
use crate::error::Error;
use crate::object::header::{Close, IfBusy, User};
use crate::provider::Provider;
use crate::request::Request;
use crate::routine;
use crate::sync::Arc;
use crate::verb::{Admit, Verb};

/// A handle: the one owner of an object.
pub trait Handle: Sized + Send + 'static {
    /// What requests act on.
    type Core: Target;
    /// The verb that destroys it.
    type Destroy: Verb<Target = Self::Core, Error = Refused<Self>> + From<Destroy<Self>>;

    /// What requests act on.
    fn core(&self) -> &Arc<Self::Core>;
}

/// The arguments of every destroy verb.
pub struct Destroy<H> {
    /// The handle; `None` for the implicit destroy of K12.
    handle: Option<H>,
    if_busy: IfBusy,
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
        let close = core.base().header.close(self.if_busy);
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
pub(crate) fn destroy<H: Handle>(handle: H, if_busy: IfBusy) -> Request<'static, H::Destroy> {
    let core = Arc::clone(handle.core());
    Request::owned(
        core,
        Destroy {
            handle: Some(handle),
            if_busy,
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
                if_busy: IfBusy::Wait,
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

/// Implements [`Target`] for a core with these counted parents; what it does when its destroy is accepted,
/// and when the device becomes unusable.
macro_rules! core {
    ($Core:ty { $($parent:ident),+ }) => {
        $crate::object::core!($Core { $($parent),+ }, |_core| (), |_core| ());
    };
    ($Core:ty { $($parent:ident),+ }, |$core:ident| $closing:expr) => {
        $crate::object::core!($Core { $($parent),+ }, |$core| $closing, |_core| ());
    };
    ($Core:ty { $($parent:ident),+ }, |$core:ident| $closing:expr, |$ends:ident| $end:expr $(, $more:item)*) => {
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

            $($more)*
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
