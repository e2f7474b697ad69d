//! Defects planted on purpose, to prove that the checkers see.
//!
//! None of them is in the code that ships: they sit in the network, in a provider that stands in front
//! of an HCA, and between a completion queue and the checkers.

mod link;
mod poll;
mod services;
mod verbs;

use std::fmt;
use std::str::FromStr;

pub(crate) use link::{Tamper, seal};
pub(crate) use poll::Spoiled;
pub(crate) use verbs::Crooked;

macro_rules! plants {
    ($($Plant:ident = $name:literal, $way:ident, $about:literal;)*) => {
        /// A defect that a run can be given; its name is what the command line calls it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Plant {
            $(#[doc = $about] $Plant,)*
        }

        impl Plant {
            /// Every defect.
            pub const ALL: &'static [Self] = &[$(Self::$Plant),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Plant => $name),* }
            }

            /// What is wrong with it, in a sentence.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$Plant => $about),* }
            }

            /// Whether it is one of the network, so that only runs with packets have it.
            pub const fn needs_packets(self) -> bool {
                match self { $(Self::$Plant => matches!(Where::$way, Where::Link)),* }
            }
        }
    };
}

/// Where a defect sits.
enum Where {
    Link,
    Poll,
    Verbs,
}

plants! {
    SkippedPsn = "skipped-psn", Link, "A packet vanishes, and those behind it are numbered as if it had never been.";
    Resealed = "resealed-corruption", Link, "A bit of a payload is inverted before the ICRC is computed.";
    PastTheRange = "past-the-range", Link, "A WRITE is one byte longer than it was posted.";
    WrongAddress = "wrong-address", Link, "A WRITE goes to an address eight bytes behind the one that was posted.";
    EarlyAck = "ack-before-placement", Link, "A WRITE is acknowledged before its bytes are placed.";
    AtomicTwice = "atomic-twice", Link, "A FETCH ADD adds its number twice.";
    StaleRead = "stale-read", Link, "A READ response carries the bytes of an earlier one.";
    WrongImm = "wrong-immediate", Link, "Immediate data arrives with a bit inverted.";
    DeadLink = "dead-link", Link, "After some packets, one way carries nothing any more, faults or not.";
    EarlyRead = "truncated-message", Link, "The last bytes of a SEND are left out.";
    ForeignKey = "foreign-key", Link, "A datagram with a wrong Q_Key is let in.";
    StaleDatagram = "stale-datagram", Link, "A datagram carries the bytes of an earlier one.";
    WrongSource = "wrong-source", Link, "A datagram names another queue pair as its sender.";
    GluedMessage = "glued-message", Link, "The end of a message on an unreliable connection is that of the one before.";
    WrongQueue = "wrong-queue", Link, "A SEND on an extended reliable connection goes to the queue of another process.";
    ForgottenInvalidate = "forgotten-invalidate", Link, "A SEND with invalidate arrives as one without.";
    ForeignInvalidate = "foreign-invalidate", Link, "A SEND with invalidate names the key of the one before.";
    DuplicateCqe = "duplicate-cqe", Poll, "A completion is handed out twice.";
    LostCqe = "lost-cqe", Poll, "A completion is never handed out.";
    SwappedCqes = "swapped-cqes", Poll, "Two completions of one queue are handed out in the wrong order.";
    FalseSuccess = "false-success", Poll, "A completion in error is handed out as a success.";
    FalseError = "false-error", Poll, "A success is handed out as a local protection error.";
    WrongLength = "wrong-length", Poll, "A receive completes with a byte too many.";
    WrongQpn = "wrong-qpn", Poll, "A completion names another queue pair.";
    WrongKey = "wrong-key", Poll, "A receive says that another key was made invalid.";
    LostWake = "lost-wake", Poll, "An armed completion queue never fires.";
    SilentError = "silent-error", Poll, "A completion queue that is armed for solicited completions does not fire.";
    StaleKey = "stale-key", Verbs, "A region's keys work on after it was deregistered.";
    LostFlush = "lost-flush", Verbs, "A queue pair is not taken to ERR, but it is said to be.";
    LeakedObject = "leaked-object", Verbs, "A protection domain is not deallocated, but it is said to be.";
    DoubleDestroy = "double-destroy", Verbs, "Destroying a completion queue destroys another one with it.";
    LostCommand = "lost-command", Verbs, "A query is never answered.";
    FalseBusy = "false-busy", Verbs, "A destroy answers Busy although nobody uses the object.";
    KeptWindow = "kept-window", Verbs, "A memory window is not deallocated, but it is said to be.";
    LazyFlush = "lazy-flush", Verbs, "A pool's keys work on after it was flushed.";
    LateCancel = "late-cancel", Verbs, "A verb that nobody cancelled ends as cancelled.";
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no defect of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no planted defect")]
pub struct NoSuchPlant(String);

impl FromStr for Plant {
    type Err = NoSuchPlant;

    fn from_str(name: &str) -> Result<Self, NoSuchPlant> {
        let found = Self::ALL.iter().find(|plant| plant.name() == name);
        found.copied().ok_or_else(|| NoSuchPlant(name.to_owned()))
    }
}
