//! How an initiator is set up.

use std::time::Duration;

use crate::initiator::error::Error;
use crate::iu::{AerReq, Lun, PortId};

/// How the memory of a scatter list is named to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mechanism {
    /// A handle is allocated by an asynchronous request for each command, and the command sent from its
    /// routine.
    Request,
    /// A handle of the channel's pool is made valid by a fast registration that is posted before the
    /// command, and invalid by the target or by a local invalidate behind the answer.
    #[default]
    FastReg,
    /// A handle of a pool of fast memory regions is mapped by a direct call. Unlike the others' it is
    /// invalid when the pool has been flushed, which each answer waits for.
    Fmr,
    /// The long-lived key of [published](crate::initiator::Session::publish) memory: one descriptor for
    /// each element that does not go on where the one before ends. What a driver whose registration
    /// blocks is left with.
    Published,
}

/// Options of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// This port's name. Targets tell initiators apart by it, and end the channels that there are under a name
    /// when it logs in again. `None`, the default: each session draws one, of the device's node GUID and a
    /// random extension, that no other session has ([`Session::initiator`](crate::initiator::Session::initiator)).
    pub initiator: Option<PortId>,
    /// How memory is named. [`Mechanism::FastReg`] by default.
    pub mechanism: Mechanism,
    /// What stands in when handles run out, or a list needs more of them than
    /// [`runs_max`](Options::runs_max): the keys of published memory. Without it, and for memory that was
    /// not published, such commands are refused as [`Busy`](crate::initiator::Error::Busy). On by default.
    pub fall_back: bool,
    /// Commands under way on each channel, at most; the target may allow fewer. 32 by default, at most
    /// 1,024.
    pub queue_depth: u16,
    /// Channels, each a connection of its own. 1 by default, at most 64.
    pub channels: u8,
    /// Pages of 4 KiB that one handle maps. 256 (1 MiB) by default.
    pub pages_max: u32,
    /// Handles that one command may use. 16 by default: an indirect table of that many entries fits every
    /// target.
    pub runs_max: u16,
    /// Handles of each channel's pool; `None` for one a command. Commands with misaligned lists take more
    /// than one.
    pub handles: Option<u32>,
    /// Writes of up to so many bytes carry their data, if the target takes that. 8 KiB by default, as
    /// Linux has it; 0 for none.
    pub immediate_max: u32,
    /// How long one login may take, all of its channels together. 5 s by default.
    pub login_timeout: Duration,
    /// How long a session that was lost is tried to be made again; then it is over. `None`, the default: for
    /// ever. Zero: not at all.
    pub reconnect_timeout: Option<Duration>,
    /// The pause between the first attempt to log in again, which is made at once, and the second one; it doubles
    /// from then on, up to [`backoff_max`](Options::backoff_max). A session that is lost again within
    /// `backoff_max` goes on where the pauses were. 10 ms by default.
    pub backoff: Duration,
    /// The longest pause. 10 s by default.
    pub backoff_max: Duration,
}

impl Options {
    /// The defaults, for the initiator port of that name.
    pub const fn new(initiator: PortId) -> Self {
        Self::named(Some(initiator))
    }

    const fn named(initiator: Option<PortId>) -> Self {
        Self {
            initiator,
            mechanism: Mechanism::FastReg,
            fall_back: true,
            queue_depth: 32,
            channels: 1,
            pages_max: 256,
            runs_max: 16,
            handles: None,
            immediate_max: 8192,
            login_timeout: Duration::from_secs(5),
            reconnect_timeout: None,
            backoff: Duration::from_millis(10),
            backoff_max: Duration::from_secs(10),
        }
    }

    /// Within their limits.
    pub(crate) fn bounded(mut self) -> Self {
        self.queue_depth = self.queue_depth.clamp(1, 1024);
        self.channels = self.channels.clamp(1, 64);
        self.runs_max = self.runs_max.clamp(1, 255);
        self.pages_max = self.pages_max.max(1);
        self
    }

    /// Handles of a channel's pool.
    pub(crate) fn pool(&self) -> u32 {
        match self.mechanism {
            Mechanism::FastReg | Mechanism::Fmr => self.handles.unwrap_or(self.queue_depth.into()),
            Mechanism::Request | Mechanism::Published => 0,
        }
    }
}

impl Default for Options {
    /// For sessions that draw their names.
    fn default() -> Self {
        Self::named(None)
    }
}

/// What a session tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The target reports something about a logical unit; it has been answered.
    Asynchronous {
        /// Which unit.
        lun: Lun,
        /// What: sense data.
        sense: &'a [u8],
    },
    /// A channel is lost, and the session's others are given up with it: as long as one of them was there, nobody
    /// could say whether the target still works on what came by the lost one. Their commands have ended, or end
    /// now, and new ones are refused as [`Reconnecting`](Error::Reconnecting).
    Lost {
        /// Why.
        error: &'a Error,
    },
    /// All channels are there again, by a new login.
    Restored {
        /// Attempts that it took.
        attempts: u32,
    },
    /// The session is over: no more attempts are made.
    GivenUp {
        /// Why: [`Error::Replaced`], [`Error::GivenUp`], or what became of the device.
        error: &'a Error,
    },
}

impl<'a> From<&AerReq<'a>> for Event<'a> {
    fn from(unit: &AerReq<'a>) -> Self {
        Self::Asynchronous {
            lun: unit.lun,
            sense: unit.sense,
        }
    }
}
