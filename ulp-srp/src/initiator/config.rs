//! The options of an initiator.

use std::time::Duration;

use crate::initiator::error::Error;
use crate::iu::{AerReq, Lun, PortId};

/// How the memory of a scatter list is described to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mechanism {
    /// An asynchronous request allocates a handle for each command, and its routine sends the command.
    Request,
    /// A fast registration, posted before the command, makes a handle of the channel's pool valid; the target, or
    /// a local invalidate after the answer, makes it invalid.
    #[default]
    FastReg,
    /// A direct call maps a handle of a pool of fast memory regions. Unlike the other handles, it is invalid only
    /// after the pool has been flushed, and each answer waits for that.
    Fmr,
    /// The long-lived key of [published](crate::initiator::Session::publish) memory: one descriptor for each
    /// element that is not contiguous with the one before. The only choice of a driver whose registration blocks.
    Published,
}

/// Options of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// This port's name. Targets tell initiators apart by it, and when an initiator logs in again, end the
    /// channels that exist under its name. `None`, the default: each session draws a unique name from the
    /// device's node GUID and a random extension ([`Session::initiator`](crate::initiator::Session::initiator)).
    pub initiator: Option<PortId>,
    /// How memory is described to the target. [`Mechanism::FastReg`] by default; on a device without fast
    /// registration, [`Mechanism::Published`] is used instead.
    pub mechanism: Mechanism,
    /// Whether keys of published memory are used when handles run out, or a list needs more of them than
    /// [`runs_max`](Options::runs_max). Without this option, and for memory that was not published, such commands
    /// are refused as [`Busy`](crate::initiator::Error::Busy). On by default.
    pub fall_back: bool,
    /// Commands in flight on each channel, at most; the target may allow fewer. 32 by default, at most 1,024.
    pub queue_depth: u16,
    /// Channels, each a connection of its own. 1 by default, at most 64.
    pub channels: u8,
    /// Pages of 4 KiB that one handle maps. 256 (1 MiB) by default.
    pub pages_max: u32,
    /// Handles that one command may use. 16 by default: an indirect table of that many entries fits every
    /// target.
    pub runs_max: u16,
    /// Handles of each channel's pool; `None` for one per command. Commands with misaligned lists take more than
    /// one.
    pub handles: Option<u32>,
    /// Writes of up to this many bytes carry their data, if the target accepts that. 8 KiB by default, as in
    /// Linux; 0 for none.
    pub immediate_max: u32,
    /// How long one login may take, all of its channels together. 5 s by default.
    pub login_timeout: Duration,
    /// How long a lost session tries to log in again; then it is over. `None`, the default: for ever. Zero: not
    /// at all.
    pub reconnect_timeout: Option<Duration>,
    /// The pause between the first attempt to log in again, which is made at once, and the second one; it doubles
    /// from then on, up to [`backoff_max`](Options::backoff_max). If a session is lost again within
    /// `backoff_max`, the pauses continue from their last value. 10 ms by default.
    pub backoff: Duration,
    /// The longest pause. 10 s by default.
    pub backoff_max: Duration,
}

impl Options {
    /// The defaults, for an initiator port with that name.
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

    /// Returns the options with every value within its limits.
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

/// What a session reports about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The target reports an event of a logical unit; the report has been answered.
    Asynchronous {
        /// Which unit.
        lun: Lun,
        /// Sense data that describe it.
        sense: &'a [u8],
    },
    /// A channel is lost, and the session's other channels are closed with it: while one of them existed, it
    /// would be unknown whether the target still works on commands of the lost channel. Their commands have
    /// ended, or end now, and new ones are refused as [`Reconnecting`](Error::Reconnecting).
    Lost {
        /// Why.
        error: &'a Error,
    },
    /// A new login has restored all channels.
    Restored {
        /// Attempts that it took.
        attempts: u32,
    },
    /// The session is over: no more attempts are made.
    GivenUp {
        /// Why: [`Error::Replaced`], [`Error::GivenUp`], or the error of the device.
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
