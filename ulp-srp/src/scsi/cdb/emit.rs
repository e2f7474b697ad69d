//! Building the CDB of a command.

use super::command::{Blocks, Command, Form};
use super::opcode::{Opcode, READ_CAPACITY_16, REPORT_OPCODES};
use crate::scsi::bytes::put;

impl Command {
    /// The CDB, padded with zeros to 16 bytes. Values that do not fit into the form of the blocks are cut off;
    /// [`Blocks::new`] chooses a form that fits.
    pub fn emit(&self) -> [u8; 16] {
        let mut cdb = [0; 16];
        match *self {
            Self::TestUnitReady => {}
            Self::RequestSense {
                descriptors,
                allocation,
            } => {
                cdb[0] = Opcode::REQUEST_SENSE;
                cdb[1] = descriptors.into();
                cdb[4] = allocation;
            }
            Self::Inquiry { page, allocation } => {
                cdb[0] = Opcode::INQUIRY;
                cdb[1] = page.is_some().into();
                cdb[2] = page.unwrap_or(0);
                put(&mut cdb, 3, &allocation.to_be_bytes());
            }
            Self::ModeSense { .. } => self.emit_mode_sense(&mut cdb),
            Self::StartStopUnit { start, power } => {
                cdb[0] = Opcode::START_STOP_UNIT;
                cdb[4] = power << 4 | u8::from(start);
            }
            Self::ReadCapacity10 => cdb[0] = Opcode::READ_CAPACITY_10,
            Self::ReadCapacity16 { allocation } => {
                cdb[0] = Opcode::SERVICE_ACTION_IN_16;
                cdb[1] = READ_CAPACITY_16;
                put(&mut cdb, 10, &allocation.to_be_bytes());
            }
            Self::Unmap { length } => {
                cdb[0] = Opcode::UNMAP;
                put(&mut cdb, 7, &length.to_be_bytes());
            }
            Self::ReportLuns { select, allocation } => {
                cdb[0] = Opcode::REPORT_LUNS;
                cdb[2] = select;
                put(&mut cdb, 6, &allocation.to_be_bytes());
            }
            Self::ReportOpcodes { .. } => self.emit_report_opcodes(&mut cdb),
            Self::Read(blocks)
            | Self::Write(blocks)
            | Self::Verify(blocks)
            | Self::CompareAndWrite(blocks)
            | Self::WriteSame { blocks, .. }
            | Self::SynchronizeCache { blocks, .. } => self.emit_blocks(&mut cdb, &blocks),
        }
        cdb
    }

    fn emit_mode_sense(&self, cdb: &mut [u8; 16]) {
        let Self::ModeSense {
            page,
            subpage,
            control,
            no_descriptors,
            long,
            allocation,
        } = *self
        else {
            return;
        };
        cdb[1] = u8::from(no_descriptors) << 3;
        cdb[2] = control << 6 | page & 0x3f;
        cdb[3] = subpage;
        if long {
            cdb[0] = Opcode::MODE_SENSE_10;
            put(cdb, 7, &allocation.to_be_bytes());
        } else {
            cdb[0] = Opcode::MODE_SENSE_6;
            cdb[4] = u8::try_from(allocation).unwrap_or(u8::MAX);
        }
    }

    fn emit_report_opcodes(&self, cdb: &mut [u8; 16]) {
        let Self::ReportOpcodes {
            one,
            timeouts,
            allocation,
        } = *self
        else {
            return;
        };
        cdb[0] = Opcode::MAINTENANCE_IN;
        cdb[1] = REPORT_OPCODES;
        cdb[2] = u8::from(timeouts) << 7;
        if let Some(Opcode { code, action }) = one {
            cdb[2] |= 1 + u8::from(action.is_some());
            cdb[3] = code;
            put(cdb, 4, &action.unwrap_or(0).to_be_bytes());
        }
        put(cdb, 6, &allocation.to_be_bytes());
    }

    /// Writes a command with blocks.
    fn emit_blocks(&self, cdb: &mut [u8; 16], blocks: &Blocks) {
        let [low, high] = [0, 1].map(|half| (blocks.count >> (16 * half)) as u16);
        // Not every command has every form.
        let form = match (self, blocks.form) {
            (Self::CompareAndWrite(_), _) => Form::Sixteen,
            (Self::Read(_) | Self::Write(_), form) => form,
            (_, Form::Sixteen) => Form::Sixteen,
            _ => Form::Ten,
        };
        match form {
            Form::Six => {
                let [_, a, b, c] = ((blocks.lba & 0x1f_ffff) as u32).to_be_bytes();
                // 256 is written as 0.
                (cdb[1], cdb[2], cdb[3], cdb[4]) = (a, b, c, blocks.count as u8);
            }
            Form::Ten => {
                put(cdb, 2, &(blocks.lba as u32).to_be_bytes());
                put(cdb, 7, &low.to_be_bytes());
            }
            Form::Twelve => {
                put(cdb, 2, &(blocks.lba as u32).to_be_bytes());
                put(cdb, 6, &blocks.count.to_be_bytes());
            }
            Form::Sixteen => {
                put(cdb, 2, &blocks.lba.to_be_bytes());
                put(cdb, 10, &high.to_be_bytes());
                put(cdb, 12, &low.to_be_bytes());
            }
        }
        if form != Form::Six {
            cdb[1] |= u8::from(blocks.dpo) << 4 | u8::from(blocks.fua) << 3;
        }
        cdb[0] = match (self, form) {
            (Self::Read(_), Form::Six) => Opcode::READ_6,
            (Self::Read(_), Form::Ten) => Opcode::READ_10,
            (Self::Read(_), Form::Twelve) => Opcode::READ_12,
            (Self::Read(_), Form::Sixteen) => Opcode::READ_16,
            (Self::Write(_), Form::Six) => Opcode::WRITE_6,
            (Self::Write(_), Form::Ten) => Opcode::WRITE_10,
            (Self::Write(_), Form::Twelve) => Opcode::WRITE_12,
            (Self::Write(_), Form::Sixteen) => Opcode::WRITE_16,
            (Self::Verify(_), Form::Sixteen) => Opcode::VERIFY_16,
            (Self::Verify(_), _) => Opcode::VERIFY_10,
            (Self::WriteSame { unmap, .. }, form) => {
                cdb[1] = u8::from(*unmap) << 3;
                match form {
                    Form::Sixteen => Opcode::WRITE_SAME_16,
                    _ => Opcode::WRITE_SAME_10,
                }
            }
            (Self::SynchronizeCache { immediate, .. }, form) => {
                cdb[1] = u8::from(*immediate) << 1;
                match form {
                    Form::Sixteen => Opcode::SYNCHRONIZE_CACHE_16,
                    _ => Opcode::SYNCHRONIZE_CACHE_10,
                }
            }
            _ => Opcode::COMPARE_AND_WRITE,
        };
    }
}
