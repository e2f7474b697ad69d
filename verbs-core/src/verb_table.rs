//! The table of verbs, and what is made of it: the kinds, the command enums, their plumbing.
//!
//! Adding a verb touches this table, the file of its noun, and the providers that have it.

use std::fmt;

use crate::ah::{CreateAh, DestroyAh, ModifyAh, QueryAh};
use crate::cm::{AcceptCm, BindCm, ConnectCm, ListenCm, RejectCm, UnbindCm};
use crate::command::{Command, Origin, Pending, RequestId};
use crate::cq::{CreateCq, DestroyCq, ModifyCq, ResizeCq};
use crate::device::{
    CloseDevice, ModifyDevice, ModifyPort, OpenDevice, QueryDevice, QueryGid, QueryPkey, QueryPort,
};
use crate::error::Error;
use crate::event::NextEvent;
use crate::extension::CallExtension;
use crate::fast_reg::{AllocMr, FreeMr};
use crate::fmr::{CreateFmrPool, DestroyFmrPool, FlushFmrPool};
use crate::mcast::{AttachMcast, DetachMcast};
use crate::mr::{DeregMr, QueryMr, RegMr, ReregMr};
use crate::mw::{AllocMw, DeallocMw};
use crate::object::{ObjectId, Target};
use crate::pd::{AllocPd, DeallocPd};
use crate::provider::{Frame, Provider};
use crate::qp::{CreateQp, DestroyQp, ModifyQp, QueryQp};
use crate::srq::{CreateSrq, DestroySrq, ModifySrq, QuerySrq};
use crate::verb::Verb;
use crate::xrcd::{AllocXrcd, CreateTargetQp, DeallocXrcd, OpenTargetQp};

/// Makes everything that has one place per verb out of one table.
macro_rules! verbs {
    ($($(#[$doc:meta])* $Verb:ident)*) => {
        /// The verbs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Kind { $($(#[$doc])* $Verb),* }

        impl Kind {
            /// Every verb.
            pub const ALL: &'static [Self] = &[$(Self::$Verb),*];

            /// Whether it destroys what it acts on. Such a request, once accepted, is neither
            /// cancelled nor refused (K8, K12).
            pub const fn destroys(self) -> bool {
                match self { $(Self::$Verb => <$Verb as Verb>::DESTROYS),* }
            }

            /// The verb's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Verb => stringify!($Verb)),* }
            }
        }

        /// What a provider receives: one command of any verb.
        #[must_use = "a command that is dropped fails its request"]
        pub enum AnyCommand<'a> { $($(#[$doc])* $Verb(Command<'a, $Verb>)),* }

        impl<'a> AnyCommand<'a> {
            /// The verb.
            #[inline]
            pub fn kind(&self) -> Kind {
                match self { $(Self::$Verb(_) => Kind::$Verb),* }
            }

            /// On whose behalf.
            #[inline]
            pub fn origin(&self) -> Origin {
                match self { $(Self::$Verb(command) => command.origin()),* }
            }

            /// What it acts on.
            pub fn target(&self) -> ObjectId {
                match self { $(Self::$Verb(command) => command.target().base().id()),* }
            }

            /// Completes it with an error; handles go back to the caller.
            pub fn refuse(self, error: Error) {
                match self { $(Self::$Verb(command) => command.refuse(error)),* }
            }

            /// The filters that it came through.
            #[inline]
            pub fn frames(&self) -> Option<&'a Frame<'a>> {
                match self { $(Self::$Verb(command) => command.reply.frames),* }
            }

            /// Lets `frame` see the result on its way back.
            #[inline]
            pub fn through<'b>(self, frame: &'b Frame<'b>) -> AnyCommand<'b>
            where
                'a: 'b,
            {
                match self { $(Self::$Verb(command) => AnyCommand::$Verb(command.through(frame))),* }
            }

            /// Makes it an owned request that waits; see [`Command::pend`].
            pub fn pend(self) -> Option<PendingCommand> {
                match self {
                    $(Self::$Verb(command) => {
                        command.pend().map(|(args, pending)| PendingCommand::$Verb(args, pending))
                    }),*
                }
            }
        }

        /// A pending request of any verb: what a provider's queue holds.
        #[must_use = "a pending request that is dropped fails"]
        pub enum PendingCommand { $($(#[$doc])* $Verb($Verb, Pending<$Verb>)),* }

        impl PendingCommand {
            /// The verb.
            pub fn kind(&self) -> Kind {
                match self { $(Self::$Verb(..) => Kind::$Verb),* }
            }

            /// Its name for [`Provider::cancel`].
            pub fn id(&self) -> RequestId {
                match self { $(Self::$Verb(_, pending) => pending.id()),* }
            }

            /// Whether it should end early.
            pub fn cancelled(&self) -> bool {
                match self { $(Self::$Verb(_, pending) => pending.cancelled()),* }
            }

            /// Completes it with an error; handles go back to the caller.
            pub fn refuse(self, error: Error) {
                match self {
                    $(Self::$Verb(args, pending) => pending.complete(Err(Verb::refuse(args, error)))),*
                }
            }

            /// Passes it down to a provider as if it had just been issued; see [`Pending::forward`].
            pub fn forward(self, to: &dyn Provider) {
                match self { $(Self::$Verb(args, pending) => pending.forward(args, to)),* }
            }
        }
    };
}

verbs! {
    /// Open the device.
    OpenDevice
    /// Close the device.
    CloseDevice
    /// Ask for the device's attributes.
    QueryDevice
    /// Ask for a port's attributes.
    QueryPort
    /// Ask for an entry of a port's P_Key table.
    QueryPkey
    /// Ask for an entry of a port's GID table.
    QueryGid
    /// Change what the device says of itself.
    ModifyDevice
    /// Change a port.
    ModifyPort
    /// Ask for the next asynchronous event.
    NextEvent
    /// Call an extension.
    CallExtension
    /// Allocate a protection domain.
    AllocPd
    /// Deallocate a protection domain.
    DeallocPd
    /// Allocate an XRC domain.
    AllocXrcd
    /// Deallocate an XRC domain.
    DeallocXrcd
    /// Create a completion queue.
    CreateCq
    /// Change a completion queue's depth.
    ResizeCq
    /// Change a completion queue's moderation.
    ModifyCq
    /// Destroy a completion queue.
    DestroyCq
    /// Create a shared receive queue.
    CreateSrq
    /// Change a shared receive queue's depth or limit.
    ModifySrq
    /// Ask for a shared receive queue's sizes and limit.
    QuerySrq
    /// Destroy a shared receive queue.
    DestroySrq
    /// Create a queue pair.
    CreateQp
    /// Create an XRC target queue pair.
    CreateTargetQp
    /// Open an XRC target queue pair.
    OpenTargetQp
    /// Change a queue pair's attributes and state.
    ModifyQp
    /// Ask for a queue pair's attributes.
    QueryQp
    /// Destroy a queue pair.
    DestroyQp
    /// Attach a queue pair to a multicast group.
    AttachMcast
    /// Detach it.
    DetachMcast
    /// Create an address handle.
    CreateAh
    /// Change the address of an address handle.
    ModifyAh
    /// Ask for the address of an address handle.
    QueryAh
    /// Destroy an address handle.
    DestroyAh
    /// Register memory.
    RegMr
    /// Ask for what is registered.
    QueryMr
    /// Register memory anew.
    ReregMr
    /// Deregister memory.
    DeregMr
    /// Allocate a region for fast registration.
    AllocMr
    /// Give one back.
    FreeMr
    /// Allocate a memory window.
    AllocMw
    /// Deallocate a memory window.
    DeallocMw
    /// Create a pool of fast memory regions.
    CreateFmrPool
    /// Make the unused keys of a pool invalid.
    FlushFmrPool
    /// Destroy a pool of fast memory regions.
    DestroyFmrPool
    /// Bind an endpoint of the provider's connection manager.
    BindCm
    /// Unbind it.
    UnbindCm
    /// Listen for connections.
    ListenCm
    /// Connect a queue pair.
    ConnectCm
    /// Accept a connection.
    AcceptCm
    /// Reject a connection.
    RejectCm
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for AnyCommand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.kind(), self.target())
    }
}

impl fmt::Debug for PendingCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {:?}", self.kind(), self.id())
    }
}
