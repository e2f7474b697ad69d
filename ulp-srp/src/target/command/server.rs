//! The device server: what a command means for a logical unit, and which commands are answered at once.

use verbs_core::sync::Arc;

use super::work::{NOTHING, Work, out_of_range};
use crate::iu::Lun;
use crate::scsi::{
    Blocks, Capacity, Code, Command, Form, Inquiry, ModePages, Sense, capacity10, capacity16,
    mode_sense, report_luns, supported_opcodes, vpd,
};
use crate::target::nexus::Nexus;
use crate::target::units::{Unit, Units};

/// The well-known unit that answers REPORT LUNS, whatever other units exist.
const REPORT_LUNS: Lun = Lun(0xc101_0000_0000_0000);

/// What to do with a command.
#[derive(Debug)]
pub(crate) enum Plan {
    /// It is finished; these are its data.
    Done(Vec<u8>),
    /// It is refused.
    Refused(Sense),
    /// A unit must do work.
    Unit(Arc<Unit>, Work),
}

impl From<Result<Vec<u8>, Sense>> for Plan {
    fn from(result: Result<Vec<u8>, Sense>) -> Self {
        match result {
            Ok(data) => Self::Done(data),
            Err(sense) => Self::Refused(sense),
        }
    }
}

/// Decides what to do with a command.
pub(crate) fn plan(units: &Units, nexus: &Nexus, lun: Lun, cdb: &[u8]) -> Plan {
    let command = Command::parse(cdb);
    let unit = lun.number().and_then(|number| units.find(number));
    let Some(unit) = unit else {
        return without_unit(units, lun, command.map_err(Sense::from));
    };
    let is_about_the_unit = !matches!(
        command,
        Ok(Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. })
    );
    if is_about_the_unit && let Some(code) = nexus.attention(unit.number) {
        return Plan::Refused(Sense::attention(code));
    }
    match command {
        Err(error) => Plan::Refused(error.into()),
        Ok(command) => on_unit(units, nexus, unit, &command),
    }
}

/// Some commands are answered even where there is no unit.
fn without_unit(units: &Units, lun: Lun, command: Result<Command, Sense>) -> Plan {
    let unknown = Sense::illegal(Code::UNKNOWN_LUN);
    match command {
        Ok(Command::ReportLuns { select, allocation }) => luns(units, select, allocation),
        Ok(Command::Inquiry {
            page: None,
            allocation,
        }) => {
            let mut data = Inquiry::emit(None).to_vec();
            if lun == REPORT_LUNS {
                // A well-known unit, which is present.
                data[0] = 0x1e;
            }
            Plan::Done(cut(data, allocation.into()))
        }
        Ok(Command::RequestSense {
            descriptors,
            allocation,
        }) => Plan::Done(sense_data(&unknown, descriptors, allocation)),
        _ => Plan::Refused(unknown),
    }
}

fn on_unit(units: &Units, nexus: &Nexus, unit: &Arc<Unit>, command: &Command) -> Plan {
    let on = |work| Plan::Unit(Arc::clone(unit), work);
    match *command {
        Command::TestUnitReady => Plan::Done(Vec::new()),
        // Active, started, or stopped until it is used again: the unit always complies.
        Command::StartStopUnit { power: 0 | 1, .. } => Plan::Done(Vec::new()),
        Command::StartStopUnit { .. } => Plan::Refused(Sense::cdb_field(4)),
        Command::RequestSense {
            descriptors,
            allocation,
        } => {
            let sense = nexus.attention(unit.number).map(Sense::attention);
            let sense = sense.unwrap_or(NOTHING);
            Plan::Done(sense_data(&sense, descriptors, allocation))
        }
        Command::Inquiry { page, allocation } => {
            let identity = &unit.shape.identity;
            let data = match page {
                None => Ok(Inquiry::emit(Some(identity)).to_vec()),
                Some(page) => vpd(page, identity, &unit.limits).ok_or(Sense::cdb_field(2)),
            };
            data.map(|data| cut(data, allocation.into())).into()
        }
        Command::ReportLuns { select, allocation } => luns(units, select, allocation),
        Command::ModeSense { .. } => mode(unit, command).into(),
        Command::ReadCapacity10 => Plan::Done(capacity10(&capacity(unit)).to_vec()),
        Command::ReadCapacity16 { allocation } => {
            Plan::Done(cut(capacity16(&capacity(unit)).to_vec(), allocation))
        }
        Command::ReportOpcodes {
            one,
            timeouts,
            allocation,
        } => {
            let data = supported_opcodes(one, timeouts).ok_or(Sense::cdb_field(2));
            data.map(|data| cut(data, allocation)).into()
        }
        Command::SynchronizeCache { ref blocks, .. } => match check_range(unit, blocks) {
            Ok(()) => on(Work::Flush),
            Err(sense) => Plan::Refused(sense),
        },
        _ => match blocks_work(unit, command) {
            Ok(Some(work)) => on(work),
            Ok(None) => Plan::Done(Vec::new()),
            Err(sense) => Plan::Refused(sense),
        },
    }
}

/// The work of commands that move or change blocks; `None` if there is none.
fn blocks_work(unit: &Unit, command: &Command) -> Result<Option<Work>, Sense> {
    let (size, limits) = (unit.shape.block_bytes, &unit.limits);
    let changes = !matches!(command, Command::Read(_) | Command::Verify(_));
    if changes && unit.shape.read_only {
        return Err(Sense::new(
            crate::scsi::SenseKey::DataProtect,
            Code::WRITE_PROTECTED,
        ));
    }
    let work = match *command {
        Command::Read(blocks) => {
            let bytes = checked(unit, &blocks, limits.transfer)? * size;
            let (lba, fua) = (blocks.lba, blocks.fua);
            (bytes > 0).then_some(Work::Read { lba, bytes, fua })
        }
        Command::Write(blocks) => {
            let bytes = checked(unit, &blocks, limits.transfer)? * size;
            let (lba, durable) = (blocks.lba, blocks.fua);
            (bytes > 0).then_some(Work::Write {
                lba,
                bytes,
                durable,
            })
        }
        Command::Verify(blocks) => {
            let count = checked(unit, &blocks, u32::MAX)?.into();
            let lba = blocks.lba;
            (count > 0).then_some(Work::Verify { lba, count })
        }
        Command::CompareAndWrite(blocks) => {
            let count = checked(unit, &blocks, limits.compare_and_write.into())?;
            let (lba, bytes, durable) = (blocks.lba, 2 * count * size, blocks.fua);
            (count > 0).then_some(Work::Compare {
                lba,
                bytes,
                durable,
            })
        }
        Command::WriteSame { blocks, unmap } => {
            let max = u32::try_from(limits.write_same).unwrap_or(u32::MAX);
            let count = checked(unit, &blocks, max)?.into();
            // A count of 0 does not mean up to the end of the medium: the limits say so.
            if count == 0 {
                return Err(Sense::cdb_field(count_field(blocks.form)));
            }
            let lba = blocks.lba;
            Some(Work::Same { lba, count, unmap })
        }
        Command::Unmap { length: 0 } => None,
        Command::Unmap { length } if limits.unmap > 0 => Some(Work::Unmap { length }),
        _ => return Err(Sense::illegal(Code::INVALID_OPCODE)),
    };
    Ok(work)
}

/// The number of blocks, if they exist and are at most `max`.
fn checked(unit: &Unit, blocks: &Blocks, max: u32) -> Result<u32, Sense> {
    check_range(unit, blocks)?;
    match blocks.count <= max {
        true => Ok(blocks.count),
        false => Err(Sense::cdb_field(count_field(blocks.form))),
    }
}

fn check_range(unit: &Unit, blocks: &Blocks) -> Result<(), Sense> {
    let end = blocks.end().filter(|end| *end <= unit.blocks());
    end.map(drop)
        .ok_or_else(|| out_of_range(blocks.lba.max(unit.blocks())))
}

/// The offset of the block count in a CDB.
fn count_field(form: Form) -> u16 {
    match form {
        Form::Six => 4,
        Form::Ten => 7,
        Form::Twelve => 6,
        Form::Sixteen => 10,
    }
}

fn capacity(unit: &Unit) -> Capacity {
    let can_unmap = unit.limits.unmap > 0;
    Capacity {
        blocks: unit.blocks(),
        block_bytes: unit.shape.block_bytes,
        physical_exponent: 4096_u32
            .checked_div(unit.shape.block_bytes)
            .map_or(0, |blocks| blocks.trailing_zeros() as u8),
        thin: can_unmap,
        reads_zeros: can_unmap,
    }
}

fn mode(unit: &Unit, command: &Command) -> Result<Vec<u8>, Sense> {
    let Command::ModeSense {
        page,
        subpage,
        control,
        no_descriptors,
        long,
        allocation,
    } = *command
    else {
        return Ok(Vec::new());
    };
    let pages = ModePages {
        write_cache: unit.shape.write_cache,
        read_only: unit.shape.read_only,
        blocks: unit.blocks(),
        block_bytes: unit.shape.block_bytes,
    };
    let data = mode_sense(&pages, page, subpage, control, no_descriptors, long)?;
    Ok(cut(data, allocation.into()))
}

/// The only well-known unit is the one that answers this, and it need not be listed.
fn luns(units: &Units, select: u8, allocation: u32) -> Plan {
    let luns = match select {
        1 => Vec::new(),
        _ => units.luns(),
    };
    Plan::Done(cut(report_luns(&luns), allocation))
}

fn sense_data(sense: &Sense, descriptors: bool, allocation: u8) -> Vec<u8> {
    let data = match descriptors {
        true => sense.emit_descriptors(),
        false => sense.emit_fixed().to_vec(),
    };
    cut(data, allocation.into())
}

/// Cuts the data to the length that the initiator asked for.
fn cut(mut data: Vec<u8>, allocation: u32) -> Vec<u8> {
    data.truncate(allocation as usize);
    data
}
