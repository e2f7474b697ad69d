//! SCSI for block devices: command descriptor blocks, sense data, and the data of the commands that describe a
//! device (SPC-4, SBC-3, SAM-5).
//!
//! Both ends use it: an initiator builds commands with [`Command::emit`], and a target reads them with
//! [`Command::parse`]. Nothing here does I/O, and no input from a peer makes it panic.
//!
//! ```
//! use ulp_srp::scsi::{Blocks, Command};
//!
//! let read = Command::Read(Blocks::new(8, 16));
//! let bytes = read.emit();
//! assert_eq!(bytes[0], 0x28);
//! assert_eq!(Command::parse(&bytes), Ok(read));
//! ```

mod bytes;
mod cdb;
pub mod fuzz;
mod pages;
mod sense;

pub(crate) use cdb::{command, opcode, unmap};
pub(crate) use pages::{capacity, inquiry, luns, mode, names, vpd};

pub use capacity::{Capacity, capacity10, capacity16};
pub use command::{Blocks, Command, CommandError, Form};
pub use inquiry::{Identity, Inquiry};
pub use luns::{report_luns, reported_luns};
pub use mode::{ModePages, mode_sense};
pub use names::UnitNames;
pub use opcode::{Opcode, supported_opcodes};
pub use sense::{Code, Field, Sense, SenseKey};
pub use unmap::{Extent, parse_unmap, unmap_parameters};
pub use vpd::{BlockLimits, block_limits, vpd};
