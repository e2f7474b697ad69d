//! What a target tells of itself.

use std::fmt;
use std::net::SocketAddr;

use verbs_core::WcStatus;
use verbs_core::sync::Arc;

use super::nexus::ChannelInfo;
use crate::iu::{LoginRejectReason, LogoutReason, Lun, PortId, TaskFunction};
use crate::scsi::Sense;

/// Who is told of events.
pub(super) type Listener = Arc<dyn Fn(&TargetEvent<'_>) + Send + Sync>;

/// What a target tells of itself, to whom [`Target::on_event`](super::Target::on_event) names. `Display` says it in
/// one sentence, without its full stop.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TargetEvent<'a> {
    /// An initiator has logged in.
    LoggedIn {
        /// By which channel.
        channel: &'a ChannelInfo,
    },
    /// A login was refused.
    Refused {
        /// Under which name; `None` for what is no login.
        initiator: Option<PortId>,
        /// From where, as the request says it.
        peer: SocketAddr,
        /// Why.
        reason: LoginRejectReason,
    },
    /// A channel has ended, and nothing of it goes on.
    Ended {
        /// Which.
        channel: &'a ChannelInfo,
        /// Why.
        why: ChannelEnd,
    },
    /// An initiator has asked for commands to be ended.
    Managed {
        /// By which channel.
        channel: &'a ChannelInfo,
        /// How.
        function: TaskFunction,
        /// Of which unit.
        lun: Lun,
    },
    /// A unit has failed a command: its medium is damaged, or it is.
    Failed {
        /// Of which channel.
        channel: &'a ChannelInfo,
        /// Which unit.
        lun: Lun,
        /// What the initiator is told.
        sense: Sense,
    },
}

/// Why a channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelEnd {
    /// The initiator has logged out.
    LoggedOut,
    /// The connection has ended: by the initiator, or because nothing reaches it.
    Disconnected,
    /// A work request has failed: data that the initiator named could not be reached, or the initiator.
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
