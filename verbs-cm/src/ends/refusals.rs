//! What is made of reports that a peer's host refuses packets.
//!
//! Such a report is a hint: a peer may be about to start, and a host that sees the request can forge a report. So
//! the first one has the request sent again soon, and only one for the next request as well, with no answer in
//! between, ends the attempt. A peer that has answered once is there, whatever reports say.

use std::time::Duration;

/// After a report the request is sent again that much later, if it would not be sent sooner anyway: a program
/// that is started together with its client is there by then.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(500);

/// What reports say of the request that was sent last, and of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Refusals {
    /// Nothing, or nothing in a row.
    #[default]
    None,
    /// The request was refused.
    Refused,
    /// The one before was refused, and it was sent again.
    SentAgain,
    /// The peer has answered.
    Answered,
}

/// What follows from a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Ignore,
    /// The request goes again after [`REFUSED_PAUSE`].
    SendSoon,
    /// There is no peer.
    GiveUp,
}

impl Refusals {
    /// The request that was sent last is refused.
    pub(crate) fn refused(&mut self) -> Verdict {
        match self {
            Self::None => {
                *self = Self::Refused;
                Verdict::SendSoon
            }
            Self::SentAgain => Verdict::GiveUp,
            // One request may be reported twice.
            Self::Refused | Self::Answered => Verdict::Ignore,
        }
    }

    /// The request is sent again.
    pub(crate) fn sent_again(&mut self) {
        *self = match self {
            Self::Refused => Self::SentAgain,
            Self::Answered => Self::Answered,
            Self::None | Self::SentAgain => Self::None,
        };
    }

    /// The peer has answered something.
    pub(crate) fn answered(&mut self) {
        *self = Self::Answered;
    }
}
