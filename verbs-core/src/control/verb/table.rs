//! What is made of the list of verbs: the command enums and their plumbing.
//!
//! At the end: whose objects are whose, so that a client acts on its own only (K16). An object belongs to the
//! origin that its create was made for. A trusted origin may act on everything and pays for one comparison; a client acts on its own
//! objects and on the device, and names only its own in arguments.

use std::any::Any;
use std::fmt;

use crate::command::{Command, Origin, Pending, RequestId};
use crate::error::Error;
use crate::object::{Base, ObjectId, ObjectKind, Target};
use crate::provider::{Frame, Provider};
use crate::verb::Verb;
use crate::verb::kind::{Kind, for_each_verb};

/// Makes everything that has one place per verb out of one table.
macro_rules! verbs {
    ($($(#[$doc:meta])* $Verb:ident = $wire:literal)*) => {
        impl Kind {
            /// Whether it destroys what it acts on. Such a request, once accepted, is neither
            /// cancelled nor refused (K8, K12).
            pub const fn destroys(self) -> bool {
                match self { $(Self::$Verb => <<Verbs as VerbTypes>::$Verb as Verb>::DESTROYS),* }
            }
        }

        /// Which type each name of the table stands for. The types are in the files of their nouns, which build on this
        /// one; so the table names them by this trait, and [`Verbs`] is the one type that has it.
        pub trait VerbTypes {
            $($(#[$doc])* type $Verb: Verb;)*
        }

        /// What a provider receives: one command of any verb. A variant holds the command of the verb with its name:
        /// `AnyCommand::CreateQp(command)` has a `Command<CreateQp>`.
        #[must_use = "a command that is dropped fails its request"]
        pub enum AnyCommand<'a> { $($(#[$doc])* $Verb(Command<'a, <Verbs as VerbTypes>::$Verb>)),* }

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

        /// A pending request of any verb with its arguments: what a provider's queue holds. Variants as in [`AnyCommand`].
        #[must_use = "a pending request that is dropped fails"]
        pub enum PendingCommand {
            $($(#[$doc])* $Verb(<Verbs as VerbTypes>::$Verb, Pending<<Verbs as VerbTypes>::$Verb>)),*
        }

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

for_each_verb!(verbs);

/// The verbs of this crate: has the types of the [`VerbTypes`].
#[derive(Clone, Copy, Debug)]
pub struct Verbs;

/// What the types behind the table tell of objects.
pub(crate) trait Objects {
    /// Whether a result of that type is an object. It is known when the program is compiled, so that verbs that
    /// make none pay nothing for those that do.
    fn is_object<T: Any>() -> bool;

    /// The object that a result is, if it is one.
    fn object_in(output: &dyn Any) -> Option<&Base>;

    /// The objects beside its target that a request names.
    fn named(args: &dyn Any) -> [Option<&Base>; 3];
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

/// Whether a client may have that request made.
#[cold]
#[inline(never)]
pub(crate) fn allows<V: Verb>(origin: Origin, target: &V::Target, args: &V) -> bool {
    let own = |base: &Base| base.owner() == origin;
    let base = target.base();
    let reaches = match base.id().kind {
        // All clients act on the device; changing it is for the process.
        ObjectKind::Device => {
            own(base)
                || !matches!(
                    V::KIND,
                    Kind::CloseDevice | Kind::ModifyDevice | Kind::ModifyPort
                )
        }
        _ => own(base),
    };
    reaches && Verbs::named(args).into_iter().flatten().all(own)
}

/// Notes on whose behalf an object was made. Takes the result and gives it back, so that where nothing is noted it need not be in
/// memory for this.
#[cold]
#[inline(never)]
pub(crate) fn made<V: Verb>(
    origin: Origin,
    result: Result<V::Output, V::Error>,
) -> Result<V::Output, V::Error> {
    if let Ok(output) = &result
        && let Some(base) = Verbs::object_in(output)
    {
        base.owner.set(origin.word());
    }
    result
}
