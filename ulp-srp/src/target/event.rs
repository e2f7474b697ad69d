//! What a target reports about itself.

use std::fmt;
use std::net::SocketAddr;

use verbs_core::WcStatus;
use verbs_core::sync::Arc;

use super::nexus::ChannelInfo;
use crate::iu::{LoginRejectReason, LogoutReason, Lun, PortId, TaskFunction};
use crate::scsi::Sense;

/// The listener for events.
pub(super) type Listener = Arc<dyn Fn(&TargetEvent<'_>) + Send + Sync>;

/// An event that a target reports to the listener of [`Target::on_event`](super::Target::on_event). `Display`
/// prints it as one sentence, without its full stop.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TargetEvent<'a> {
    /// An initiator has logged in.
    LoggedIn {
        /// Its channel.
        channel: &'a ChannelInfo,
    },
    /// A login was refused.
    Refused {
        /// The initiator's name; `None` if the request was not a login.
        initiator: Option<PortId>,
        /// The source address that the request claims.
        peer: SocketAddr,
        /// Why.
        reason: LoginRejectReason,
    },
    /// A channel has ended, and none of its work is in progress.
    Ended {
        /// The channel.
        channel: &'a ChannelInfo,
        /// Why.
        why: ChannelEnd,
    },
    /// An initiator has requested the end of commands.
    Managed {
        /// Its channel.
        channel: &'a ChannelInfo,
        /// The function.
        function: TaskFunction,
        /// The unit.
        lun: Lun,
    },
    /// A unit has failed a command: the medium or the unit is damaged.
    Failed {
        /// The command's channel.
        channel: &'a ChannelInfo,
        /// The unit.
        lun: Lun,
        /// The sense data for the initiator.
        sense: Sense,
    },
}

/// Why a channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelEnd {
    /// The initiator has logged out.
    LoggedOut,
    /// The connection has ended: the initiator closed it, or is unreachable.
    Disconnected,
    /// A work request has failed: the initiator, or memory that it named, could not be reached.
    Failed(WcStatus),
    /// The target has ended it.
    Ended(LogoutReason),
}

impl fmt::Display for TargetEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoggedIn { channel } => write!(f, "{} has logged in", Who(channel)),
            Self::Refused {
                initiator: Some(initiator),
                peer,
                reason,
            } => write!(f, "login of 0x{initiator} from {peer} refused: {reason}"),
            Self::Refused { peer, reason, .. } => write!(f, "login from {peer} refused: {reason}"),
            Self::Ended { channel, why } => write!(f, "{} {why}", Who(channel)),
            Self::Managed {
                channel,
                function,
                lun,
            } => write!(f, "{} asks for {function} on unit {lun}", Who(channel)),
            Self::Failed {
                channel,
                lun,
                sense,
            } => {
                let (key, code) = (sense.key, sense.code);
                write!(
                    f,
                    "unit {lun} failed a command of {}: {key:?}, {code:?}",
                    Who(channel)
                )?;
                match sense.information {
                    Some(at) => write!(f, " at {at}"),
                    None => Ok(()),
                }
            }
        }
    }
}

struct Who<'a>(&'a ChannelInfo);

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChannelInfo {
            initiator, peer, ..
        } = self.0;
        write!(f, "0x{initiator} at {peer}")
    }
}

impl fmt::Display for ChannelEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoggedOut => f.write_str("has logged out"),
            Self::Disconnected => f.write_str("is lost: the connection has ended"),
            Self::Failed(status) => write!(f, "is lost: a work request failed: {status}"),
            Self::Ended(LogoutReason::MULTICHANNEL) => f.write_str("was replaced by a new login"),
            Self::Ended(reason) => write!(f, "was logged out: {reason}"),
        }
    }
}
