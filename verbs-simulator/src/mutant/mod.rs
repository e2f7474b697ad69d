//! Mutants: defects injected on purpose, to prove that the checkers detect them.
//!
//! None of them is in the code that ships: they are in the networks, in a provider in front of an HCA, and between a
//! completion queue and the checkers.

mod packets;
mod poller;
mod provider;
mod services;
mod streams;

use std::fmt;
use std::str::FromStr;

pub(crate) use packets::{PacketMutator, seal};
pub(crate) use poller::FaultyPoller;
pub(crate) use provider::FaultyProvider;
pub(crate) use streams::StreamMutator;

macro_rules! mutants {
    ($($Mutant:ident = $name:literal, $place:ident, $about:literal;)*) => {
        /// A defect injected into a run, as in mutation testing; the command line uses its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Mutant {
            $(#[doc = $about] $Mutant,)*
        }

        impl Mutant {
            /// Every defect.
            pub const ALL: &'static [Self] = &[$(Self::$Mutant),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Mutant => $name),* }
            }

            /// A description of the defect, in one sentence.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$Mutant => $about),* }
            }

            /// Whether it is a defect of the network, so that only runs with packets have it.
            pub const fn needs_packets(self) -> bool {
                match self { $(Self::$Mutant => matches!(Where::$place, Where::Link)),* }
            }

            /// Whether it is a defect of streams, so that only runs with streams have it.
            pub const fn needs_streams(self) -> bool {
                match self { $(Self::$Mutant => matches!(Where::$place, Where::Stream)),* }
            }
        }
    };
}

/// The place of a defect.
enum Where {
    Link,
    Stream,
    Poll,
    Verbs,
}

mutants! {
    SkippedPsn = "skipped-psn", Link, "A packet vanishes, and those behind it are numbered as if it had never been.";
    Resealed = "resealed-corruption", Link, "A bit of a payload is inverted before the ICRC is computed.";
    PastTheRange = "past-the-range", Link, "A WRITE is one byte longer than it was posted.";
    WrongAddress = "wrong-address", Link, "A WRITE goes to an address eight bytes behind the one that was posted.";
    EarlyAck = "ack-before-placement", Link, "A WRITE is acknowledged before its bytes are placed.";
    AtomicTwice = "atomic-twice", Link, "A FETCH ADD adds its number twice.";
    StaleRead = "stale-read", Link, "A READ response carries the bytes of an earlier one.";
    WrongImm = "wrong-immediate", Link, "Immediate data arrives with a bit inverted.";
    DeadLink = "dead-link", Link, "After some packets, one direction no longer carries anything, faults or not.";
    EarlyRead = "truncated-message", Link, "The last bytes of a SEND are left out.";
    ForeignKey = "foreign-key", Link, "A datagram with a wrong Q_Key is let in.";
    StaleDatagram = "stale-datagram", Link, "A datagram carries the bytes of an earlier one.";
    WrongSource = "wrong-source", Link, "A datagram names another queue pair as its sender.";
    GluedMessage = "glued-message", Link, "The end of a message on an unreliable connection is that of the one before.";
    WrongQueue = "wrong-queue", Link, "A SEND on an extended reliable connection goes to the queue of another process.";
    ForgottenInvalidate = "forgotten-invalidate", Link, "A SEND with invalidate arrives as one without.";
    ForeignInvalidate = "foreign-invalidate", Link, "A SEND with invalidate names the key of the one before.";
    LostSegment = "lost-segment", Stream, "A segment of a WRITE is left out of the stream.";
    WrongOffset = "wrong-offset", Stream, "A segment of a WRITE goes to an offset eight bytes behind its own.";
    ResealedSegment = "resealed-segment", Stream, "A bit of a segment is inverted before the CRC is computed.";
    StaleResponse = "stale-response", Stream, "A response to a READ carries the bytes of an earlier one.";
    WrongImmediate = "wrong-immediate-message", Stream, "An immediate data message carries other data.";
    AddedTwice = "added-twice", Stream, "An atomic request asks to add its number twice.";
    DeafStream = "deaf-stream", Stream, "After some messages, one direction of a stream no longer carries anything.";
    UnaskedReset = "unasked-reset", Stream, "A connection is lost although no fault has ended it.";
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

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no defect of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a mutant")]
pub struct NoSuchMutant(String);

impl NoSuchMutant {
    pub(crate) fn of(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl FromStr for Mutant {
    type Err = NoSuchMutant;

    fn from_str(name: &str) -> Result<Self, NoSuchMutant> {
        let found = Self::ALL.iter().find(|mutant| mutant.name() == name);
        found.copied().ok_or_else(|| NoSuchMutant::of(name))
    }
}
