//! SCSI as a block device speaks it: command descriptor blocks, sense data, and the data of the commands
//! that describe a device (SPC-4, SBC-3, SAM-5).
//!
//! Both ends use it: an initiator builds with [`Cdb::emit`] what a target understands with
//! [`Cdb::parse`]. Nothing here does I/O, and nothing that a peer sends makes it panic.
//!
//! ```
//! use ulp_srp::scsi::{Blocks, Cdb};
//!
//! let read = Cdb::Read(Blocks::new(8, 16));
//! let bytes = read.emit();
//! assert_eq!(bytes[0], 0x28);
//! assert_eq!(Cdb::parse(&bytes), Ok(read));
//! ```

mod address;
mod bytes;
mod capacity;
mod cdb;
mod emit;
mod inquiry;
mod mode;
mod opcode;
mod sense;
mod unmap;
mod vpd;

pub use address::{Lun, report_luns, reported_luns};
pub use capacity::{Capacity, capacity10, capacity16};
pub use cdb::{Blocks, Cdb, CdbError, Form};
pub use inquiry::{Identity, Inquiry};
pub use mode::{ModePages, mode_sense};
pub use opcode::{Opcode, supported_opcodes};
pub use sense::{Code, Field, Sense, SenseKey};
pub use unmap::{Extent, parse_unmap, unmap_parameters};
pub use vpd::{BlockLimits, block_limits, vpd};

/// How a command ended (SAM-5, 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// Sense data says why not.
    CheckCondition = 0x02,
    /// A condition that the command asked for is met.
    ConditionMet = 0x04,
    /// Cannot be taken now; to be sent again.
    Busy = 0x08,
    /// Somebody else has reserved the unit.
    ReservationConflict = 0x18,
    /// Too many commands; to be sent again when another one has ended.
    TaskSetFull = 0x28,
    /// An auto contingent allegiance is in effect.
    AcaActive = 0x30,
    /// Another initiator had it aborted.
    TaskAborted = 0x40,
}

impl Status {
    /// The status with that number.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }
}
