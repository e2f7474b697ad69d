//! Why a login or a command did not succeed.

use std::time::Duration;

use verbs_core::{PostError, WcStatus};

use crate::iu::{
    IuError, LoginRejectReason, LogoutReason, PortId, Residual, ResponseCode, Status, Tag,
    TaskFunction, Unit,
};

/// Why a login or a command did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- the caller ---
    /// The command cannot be sent as it is.
    #[error("the command cannot be sent: {0}")]
    Unit(IuError),
    /// The scatter list has 4 GiB or more.
    #[error("a scatter list of {0} bytes; a command names less than 4 GiB")]
    TooLong(u64),
    /// The target does not take a unit of that length: the scatter list has too many pieces.
    #[error("the command takes {got} bytes; the target takes {max}")]
    UnitTooLong {
        /// Bytes of the unit.
        got: usize,
        /// Bytes that the target takes.
        max: usize,
    },
    /// The text does not name a target.
    #[error(
        "'{0}' is no target: an address with a port, like 10.0.0.2:5555, or id_ext=...,ioc_guid=...,dest=..."
    )]
    NoTarget(String),
    /// The session was logged out.
    #[error("the session is logged out")]
    LoggedOut,

    // --- no room now: to be tried again later ---
    /// All slots are taken, or there is no handle for the memory now. Nothing was done.
    #[error("no room for the command now; try again when another one has ended")]
    Busy,
    /// The channel is lost and not restored yet. Nothing was done.
    #[error("the channel to the target is being made again")]
    Reconnecting,

    // --- the session is over ---
    /// Another initiator has logged in under this session's name, and the target has ended the session. The
    /// session does not log in again, because that would end the other one in turn.
    #[error("another initiator logged in under this name (0x{0})")]
    Replaced(PortId),
    /// The session was lost, and could not be restored in the time allowed.
    #[error("no login has succeeded for {} s: {error}", .after.as_secs_f64())]
    GivenUp {
        /// How long it was attempted.
        after: Duration,
        /// Why the last attempt failed.
        error: Box<Error>,
    },

    /// After an outage the target offers another disk under the same number, or a smaller one. Nothing was written
    /// to it.
    #[error("the target offers another disk than before: {now}; it was {was}")]
    OtherDisk {
        /// The earlier disk, by its names and its size.
        was: String,
        /// The current one.
        now: String,
    },

    // --- the peer and the network ---
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] verbs_cm::Error),
    /// The target refuses the login.
    #[error("the target refuses the login: {0}")]
    Rejected(LoginRejectReason),
    /// The target did not answer a login in time.
    #[error("the target has not answered the login within {} s", .0.as_secs_f64())]
    NoAnswer(Duration),
    /// The target has logged this initiator out.
    #[error("the target has ended the session: {0}")]
    Ended(LogoutReason),
    /// The target broke the protocol; the channel is closed.
    #[error("the target broke the protocol: {0}")]
    Protocol(Violation),
    /// The target did not execute the command; the reason that it gives.
    #[error("the target did not execute the command: {0}")]
    Response(ResponseCode),
    /// The connection was lost with the command in flight: it may or may not have been executed.
    #[error("the connection to the target was lost")]
    ConnectionLost,
    /// Task management has ended the command.
    #[error("the command was ended by {0}")]
    Aborted(TaskFunction),

    // --- the device ---
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    /// A work request was not accepted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A work request failed.
    #[error("a work request failed: {0}")]
    Work(WcStatus),
}

impl From<IuError> for Error {
    fn from(error: IuError) -> Self {
        Self::Unit(error)
    }
}

/// How a target broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// It sent something that is not a unit, or contradicts itself.
    #[error("{0}")]
    Unit(IuError),
    /// It answers a request that was not sent.
    #[error("an answer to a request that was not made (tag {:#x})", .0.0)]
    Unasked(Tag),
    /// It invalidated a key that is not the answered command's.
    #[error("it invalidated a key that does not belong to the command")]
    Invalidated,
    /// The answer to the login is another unit.
    #[error("the login was answered by something that is no {0}")]
    NoLogin(Unit),
    /// The limits in its answer to the login are too small to work with.
    #[error("it takes units of {0} bytes only")]
    Limits(u32),
}

/// How a command or a task management request ended: it was answered.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Completion {
    /// SCSI status.
    pub status: Status,
    /// How much of the data-out buffer was left over, or missing.
    pub data_out: Residual,
    /// How much of the data-in buffer was left over, or missing.
    pub data_in: Residual,
    /// Sense data, where the target sent some.
    pub sense: Option<Box<[u8]>>,
    /// Response data, where the target sent some: the result of task management.
    pub response: Option<ResponseCode>,
}

impl Completion {
    /// Whether it succeeded.
    pub fn is_good(&self) -> bool {
        self.status == Status::GOOD
    }

    /// Sense key, additional sense code and its qualifier, in either format of sense data.
    pub fn sense_code(&self) -> Option<(u8, u8, u8)> {
        let sense = self.sense.as_deref()?;
        let at = |index: usize| sense.get(index).copied().unwrap_or(0);
        match at(0) & 0x7f {
            0x70 | 0x71 => Some((at(2) & 0x0f, at(12), at(13))),
            0x72 | 0x73 => Some((at(1) & 0x0f, at(2), at(3))),
            _ => None,
        }
    }
}

/// What a command's routine gets.
pub type Outcome = Result<Completion, Error>;
