//! Command descriptor blocks of the commands that block devices have.

use super::opcode::{Opcode, READ_CAPACITY_16, REPORT_OPCODES, cdb_len};
use crate::scsi::bytes::{u16_at, u32_at, u64_at};
use crate::scsi::sense::{Code, Sense};

/// The length of a command's CDB, one of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// 21 bits of address, 256 blocks at most.
    Six,
    /// 32 bits of address, 65,535 blocks at most.
    Ten,
    /// 32 bits of address.
    Twelve,
    /// 64 bits of address.
    Sixteen,
}

/// The blocks that a command addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// The first one's logical block address.
    pub lba: u64,
    /// The number of blocks; 0 is legal, and means none.
    pub count: u32,
    /// Length of the CDB.
    pub form: Form,
    /// Force unit access: past the write cache. Not in CDBs of 6 bytes.
    pub fua: bool,
    /// Disable page out: not worth caching. Not in CDBs of 6 bytes.
    pub dpo: bool,
}

impl Blocks {
    /// Those blocks, in a CDB of 10 bytes if they fit, else of 16.
    pub const fn new(lba: u64, count: u32) -> Self {
        let form = match lba <= u32::MAX as u64 && count <= u16::MAX as u32 {
            true => Form::Ten,
            false => Form::Sixteen,
        };
        Self {
            lba,
            count,
            form,
            fua: false,
            dpo: false,
        }
    }

    /// Bypasses the write cache.
    pub const fn fua(mut self) -> Self {
        self.fua = true;
        self
    }

    /// One past the last block, if such an address exists.
    pub fn end(&self) -> Option<u64> {
        self.lba.checked_add(self.count.into())
    }
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Command {
    /// Tests whether the unit can be used.
    TestUnitReady,
    /// Reads pending sense data.
    RequestSense {
        /// Use the descriptor format.
        descriptors: bool,
        /// Bytes that the initiator has room for.
        allocation: u8,
    },
    /// Describes the unit.
    Inquiry {
        /// A page of vital product data.
        page: Option<u8>,
        /// Bytes that the initiator has room for.
        allocation: u16,
    },
    /// Mode pages.
    ModeSense {
        /// Page; 0x3f for all.
        page: u8,
        /// Subpage; 0xff for all.
        subpage: u8,
        /// 0 current, 1 changeable, 2 default, 3 saved values.
        control: u8,
        /// Without block descriptors.
        no_descriptors: bool,
        /// With a header of 8 bytes: the form of 10.
        long: bool,
        /// Bytes that the initiator has room for.
        allocation: u16,
    },
    /// Makes the unit ready, or not.
    StartStopUnit {
        /// Ready.
        start: bool,
        /// A power condition instead; 0 for none.
        power: u8,
    },
    /// The capacity, if it fits into 32 bits.
    ReadCapacity10,
    /// The capacity, and the sizes that it is made of.
    ReadCapacity16 {
        /// Bytes that the initiator has room for.
        allocation: u32,
    },
    /// Moves blocks to the initiator.
    Read(Blocks),
    /// Moves blocks from the initiator.
    Write(Blocks),
    /// Checks whether blocks can be read; nothing is transferred.
    Verify(Blocks),
    /// Replaces blocks, if they have the contents that the initiator expects.
    CompareAndWrite(Blocks),
    /// Writes one block from the initiator to many places.
    WriteSame {
        /// The places.
        blocks: Blocks,
        /// They may be unmapped instead, if they then read as that block.
        unmap: bool,
    },
    /// Declares blocks as not needed.
    Unmap {
        /// Bytes of the list.
        length: u16,
    },
    /// Writes the cache to the medium.
    SynchronizeCache {
        /// The blocks; a count of 0 means all from the first on.
        blocks: Blocks,
        /// The answer need not wait for the write.
        immediate: bool,
    },
    /// The units of the target.
    ReportLuns {
        /// 0 units with numbers, 1 well-known ones, 2 both.
        select: u8,
        /// Bytes that the initiator has room for.
        allocation: u32,
    },
    /// The supported commands.
    ReportOpcodes {
        /// One of them.
        one: Option<Opcode>,
        /// With timeouts.
        timeouts: bool,
        /// Bytes that the initiator has room for.
        allocation: u32,
    },
}

/// Why a CDB is not a supported command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// That operation code is unknown.
    #[error("operation code {0:#04x} is not supported")]
    Opcode(u8),
    /// That byte requests something that is not supported.
    #[error("byte {0} of the CDB is not valid")]
    Field(u8),
}

impl From<CommandError> for Sense {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Opcode(_) => Self::illegal(Code::INVALID_OPCODE),
            CommandError::Field(byte) => Self::cdb_field(byte.into()),
        }
    }
}

impl Command {
    /// Reads the command at the beginning of a CDB.
    ///
    /// # Errors
    /// [`CommandError`], which is [`Sense`] as well.
    pub fn parse(bytes: &[u8]) -> Result<Self, CommandError> {
        let code = bytes.first().copied().ok_or(CommandError::Field(0))?;
        let len = cdb_len(code).ok_or(CommandError::Opcode(code))?;
        let cdb = bytes.get(..len).ok_or(CommandError::Opcode(code))?;
        let parsed = match len {
            6 => parse_6(cdb),
            10 => parse_10(cdb),
            12 => parse_12(cdb),
            _ => parse_16(cdb),
        }?;
        // NACA: there is no auto contingent allegiance here.
        match cdb[len - 1] & 0x04 {
            0 => Ok(parsed),
            _ => Err(CommandError::Field((len - 1) as u8)),
        }
    }

    /// Bytes that go to the initiator, at most, and bytes that come from it, for blocks of that size. For UNMAP,
    /// the length of its list.
    pub fn transfer(&self, block_bytes: u32) -> (u64, u64) {
        let bytes = |blocks: &Blocks| u64::from(blocks.count) * u64::from(block_bytes);
        match self {
            Self::RequestSense { allocation, .. } => (u64::from(*allocation), 0),
            Self::Inquiry { allocation, .. } | Self::ModeSense { allocation, .. } => {
                (u64::from(*allocation), 0)
            }
            Self::ReadCapacity10 => (8, 0),
            Self::ReadCapacity16 { allocation }
            | Self::ReportLuns { allocation, .. }
            | Self::ReportOpcodes { allocation, .. } => (u64::from(*allocation), 0),
            Self::Read(blocks) => (bytes(blocks), 0),
            Self::Write(blocks) => (0, bytes(blocks)),
            Self::CompareAndWrite(blocks) => (0, 2 * bytes(blocks)),
            Self::WriteSame { .. } => (0, u64::from(block_bytes)),
            Self::Unmap { length } => (0, u64::from(*length)),
            Self::TestUnitReady
            | Self::StartStopUnit { .. }
            | Self::Verify(_)
            | Self::SynchronizeCache { .. } => (0, 0),
        }
    }
}

fn parse_6(cdb: &[u8]) -> Result<Command, CommandError> {
    let blocks = || Blocks {
        lba: u64::from(u32_at(cdb, 0) & 0x1f_ffff),
        // 0 stands for 256, which does not fit into the byte.
        count: match cdb[4] {
            0 => 256,
            count => count.into(),
        },
        form: Form::Six,
        fua: false,
        dpo: false,
    };
    Ok(match cdb[0] {
        Opcode::TEST_UNIT_READY => Command::TestUnitReady,
        Opcode::REQUEST_SENSE => Command::RequestSense {
            descriptors: cdb[1] & 1 != 0,
            allocation: cdb[4],
        },
        Opcode::READ_6 => Command::Read(blocks()),
        Opcode::WRITE_6 => Command::Write(blocks()),
        Opcode::INQUIRY => {
            let vital = cdb[1] & 1 != 0;
            if !vital && cdb[2] != 0 {
                return Err(CommandError::Field(2));
            }
            Command::Inquiry {
                page: vital.then_some(cdb[2]),
                allocation: u16_at(cdb, 3),
            }
        }
        Opcode::MODE_SENSE_6 => mode_sense(cdb, cdb[4].into(), false),
        Opcode::START_STOP_UNIT => Command::StartStopUnit {
            start: cdb[4] & 1 != 0,
            power: cdb[4] >> 4,
        },
        code => return Err(CommandError::Opcode(code)),
    })
}

fn mode_sense(cdb: &[u8], allocation: u16, long: bool) -> Command {
    Command::ModeSense {
        page: cdb[2] & 0x3f,
        subpage: cdb[3],
        control: cdb[2] >> 6,
        no_descriptors: cdb[1] & 8 != 0,
        long,
        allocation,
    }
}

fn parse_10(cdb: &[u8]) -> Result<Command, CommandError> {
    let blocks = Blocks {
        lba: u32_at(cdb, 2).into(),
        count: u16_at(cdb, 7).into(),
        ..flags(cdb, Form::Ten)
    };
    Ok(match cdb[0] {
        Opcode::READ_CAPACITY_10 => Command::ReadCapacity10,
        Opcode::READ_10 => Command::Read(unprotected(cdb, blocks)?),
        Opcode::WRITE_10 => Command::Write(unprotected(cdb, blocks)?),
        Opcode::VERIFY_10 => verify(cdb, blocks)?,
        Opcode::SYNCHRONIZE_CACHE_10 => synchronize(cdb, blocks),
        Opcode::WRITE_SAME_10 => write_same(cdb, blocks)?,
        // ANCHOR: anchored blocks are not supported.
        Opcode::UNMAP if cdb[1] & 1 != 0 => return Err(CommandError::Field(1)),
        Opcode::UNMAP => Command::Unmap {
            length: u16_at(cdb, 7),
        },
        Opcode::MODE_SENSE_10 => mode_sense(cdb, u16_at(cdb, 7), true),
        code => return Err(CommandError::Opcode(code)),
    })
}

fn parse_12(cdb: &[u8]) -> Result<Command, CommandError> {
    let blocks = Blocks {
        lba: u32_at(cdb, 2).into(),
        count: u32_at(cdb, 6),
        ..flags(cdb, Form::Twelve)
    };
    let allocation = u32_at(cdb, 6);
    Ok(match cdb[0] {
        Opcode::READ_12 => Command::Read(unprotected(cdb, blocks)?),
        Opcode::WRITE_12 => Command::Write(unprotected(cdb, blocks)?),
        Opcode::REPORT_LUNS if cdb[2] > 2 => return Err(CommandError::Field(2)),
        Opcode::REPORT_LUNS => Command::ReportLuns {
            select: cdb[2],
            allocation,
        },
        Opcode::MAINTENANCE_IN if cdb[1] & 0x1f == REPORT_OPCODES => {
            let code = cdb[3];
            let action = Some(u16_at(cdb, 4));
            let one = match cdb[2] & 7 {
                0 => None,
                1 => Some(Opcode { code, action: None }),
                2 => Some(Opcode { code, action }),
                _ => return Err(CommandError::Field(2)),
            };
            Command::ReportOpcodes {
                one,
                timeouts: cdb[2] & 0x80 != 0,
                allocation,
            }
        }
        Opcode::MAINTENANCE_IN => return Err(CommandError::Field(1)),
        code => return Err(CommandError::Opcode(code)),
    })
}

fn parse_16(cdb: &[u8]) -> Result<Command, CommandError> {
    let blocks = Blocks {
        lba: u64_at(cdb, 2),
        count: u32_at(cdb, 10),
        ..flags(cdb, Form::Sixteen)
    };
    Ok(match cdb[0] {
        Opcode::READ_16 => Command::Read(unprotected(cdb, blocks)?),
        Opcode::WRITE_16 => Command::Write(unprotected(cdb, blocks)?),
        Opcode::COMPARE_AND_WRITE => {
            let count = cdb[13].into();
            Command::CompareAndWrite(unprotected(cdb, Blocks { count, ..blocks })?)
        }
        Opcode::VERIFY_16 => verify(cdb, blocks)?,
        Opcode::SYNCHRONIZE_CACHE_16 => synchronize(cdb, blocks),
        Opcode::WRITE_SAME_16 => write_same(cdb, blocks)?,
        Opcode::SERVICE_ACTION_IN_16 if cdb[1] & 0x1f == READ_CAPACITY_16 => {
            Command::ReadCapacity16 {
                allocation: u32_at(cdb, 10),
            }
        }
        Opcode::SERVICE_ACTION_IN_16 => return Err(CommandError::Field(1)),
        code => return Err(CommandError::Opcode(code)),
    })
}

/// The flags of a CDB with blocks.
fn flags(cdb: &[u8], form: Form) -> Blocks {
    Blocks {
        lba: 0,
        count: 0,
        form,
        fua: cdb[1] & 0x08 != 0,
        dpo: cdb[1] & 0x10 != 0,
    }
}

/// Refuses protection information, which is not supported.
fn unprotected(cdb: &[u8], blocks: Blocks) -> Result<Blocks, CommandError> {
    match cdb[1] & 0xe0 {
        0 => Ok(blocks),
        _ => Err(CommandError::Field(1)),
    }
}

/// Checks only whether blocks can be read, not whether they match data of the initiator.
fn verify(cdb: &[u8], mut blocks: Blocks) -> Result<Command, CommandError> {
    // VRPROTECT and BYTCHK.
    if cdb[1] & 0xe6 != 0 {
        return Err(CommandError::Field(1));
    }
    blocks.fua = false;
    Ok(Command::Verify(blocks))
}

fn synchronize(cdb: &[u8], blocks: Blocks) -> Command {
    Command::SynchronizeCache {
        blocks: Blocks {
            fua: false,
            dpo: false,
            ..blocks
        },
        immediate: cdb[1] & 2 != 0,
    }
}

fn write_same(cdb: &[u8], mut blocks: Blocks) -> Result<Command, CommandError> {
    // WRPROTECT, ANCHOR, and two obsolete forms of block numbering; NDOB.
    let refused = match blocks.form {
        Form::Sixteen => 0xf7,
        _ => 0xf6,
    };
    if cdb[1] & refused != 0 {
        return Err(CommandError::Field(1));
    }
    (blocks.fua, blocks.dpo) = (false, false);
    Ok(Command::WriteSame {
        blocks,
        unmap: cdb[1] & 0x08 != 0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_linux_sends_is_understood() {
        let read = [0x28, 0x18, 0, 0, 1, 0, 0, 0, 8, 0];
        let blocks = Blocks {
            dpo: true,
            ..Blocks::new(256, 8).fua()
        };
        assert_eq!(Command::parse(&read), Ok(Command::Read(blocks)));
        let six = [0x0a, 0x1f, 0xff, 0xff, 0, 0];
        let Ok(Command::Write(blocks)) = Command::parse(&six) else {
            panic!("a WRITE");
        };
        assert_eq!((blocks.lba, blocks.count), (0x1f_ffff, 256));
        let same = [0x93, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let blocks = Blocks {
            form: Form::Sixteen,
            ..Blocks::new(1 << 32, 256)
        };
        let unmap = true;
        assert_eq!(
            Command::parse(&same),
            Ok(Command::WriteSame { blocks, unmap })
        );
        let capacity = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
        let allocation = 32;
        assert_eq!(
            Command::parse(&capacity),
            Ok(Command::ReadCapacity16 { allocation })
        );
    }

    #[test]
    fn what_is_refused_says_which_byte() {
        let field = |bytes: &[u8]| Command::parse(bytes);
        // Protection information, a page without EVPD, NACA, an unknown service action.
        assert_eq!(
            field(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 0, 0]),
            Err(CommandError::Field(1))
        );
        assert_eq!(
            field(&[0x12, 0, 0x83, 0, 96, 0]),
            Err(CommandError::Field(2))
        );
        assert_eq!(field(&[0x00, 0, 0, 0, 0, 4]), Err(CommandError::Field(5)));
        let mut action = [0; 16];
        (action[0], action[1]) = (0x9e, 0x12);
        assert_eq!(field(&action), Err(CommandError::Field(1)));
        assert_eq!(
            field(&[0x04, 0, 0, 0, 0, 0]),
            Err(CommandError::Opcode(0x04))
        );
        assert_eq!(field(&[0x7f; 16]), Err(CommandError::Opcode(0x7f)));
        assert_eq!(
            field(&[0x28, 0]),
            Err(CommandError::Opcode(0x28)),
            "too short"
        );
        let sense = Sense::from(CommandError::Field(2));
        assert_eq!(sense, Sense::cdb_field(2));
    }

    fn valid() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 16).prop_map(|mut cdb| {
            const CODES: [u8; 12] = [
                0x00, 0x03, 0x08, 0x12, 0x1a, 0x28, 0x2a, 0x35, 0x42, 0x88, 0xa0, 0xa8,
            ];
            cdb[0] = CODES[usize::from(cdb[0]) % CODES.len()];
            cdb
        })
    }

    proptest! {
        #[test]
        fn a_command_that_was_parsed_is_the_same_when_it_is_built(cdb in valid()) {
            if let Ok(command) = Command::parse(&cdb) {
                prop_assert_eq!(Command::parse(&command.emit()), Ok(command));
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(cdb in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(command) = Command::parse(&cdb) {
                prop_assert_eq!(Command::parse(&command.emit()), Ok(command));
                let _ = command.transfer(4096);
            }
        }
    }
}
