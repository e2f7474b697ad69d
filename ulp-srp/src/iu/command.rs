//! CMD: a SCSI command.

use verbs_core::mad::{Bits, Blob};
use verbs_core::wire_record;

use crate::iu::Unit;
use crate::iu::buffer::DataBuffer;
use crate::iu::error::{IuError, fixed, part, place};
use crate::iu::ids::{Lun, Tag, TaskAttribute};

wire_record! {
    /// The part of a [`Cmd`] before the additional bytes and the data buffers.
    pub struct CmdHeader, CmdHeaderView: 48 bytes {
        /// Whether a successful answer is a solicited event.
        solicit_success: bool = (1, 6, 1),
        /// Whether any other answer is a solicited event.
        solicit_failure: bool = (1, 5, 1),
        /// Format of the data-out buffer.
        data_out_format: Bits<4> = (5, 0, 4),
        /// Format of the data-in buffer.
        data_in_format: Bits<4> = (5, 4, 4),
        /// Descriptors of the data-out buffer that are in the unit, if the buffer is indirect.
        data_out_count: u8 = (6, 0, 8),
        /// Descriptors of the data-in buffer that are in the unit, if the buffer is indirect.
        data_in_count: u8 = (7, 0, 8),
        /// The command's tag.
        tag: Tag = (8, 0, 64),
        /// Logical unit.
        lun: Lun = (20, 0, 64),
        /// How it is ordered.
        attribute: TaskAttribute = (29, 5, 3),
        /// Additional bytes of the command descriptor block, after the first 16, in words of four bytes.
        additional_words: Bits<6> = (31, 0, 6),
        /// Command descriptor block.
        cdb: Blob<16> = (32, 0, 128),
    }
}

/// A SCSI command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cmd<'a> {
    /// Whether a successful answer is a solicited event.
    pub solicit_success: bool,
    /// Whether any other answer is a solicited event.
    pub solicit_failure: bool,
    /// The command's tag.
    pub tag: Tag,
    /// Logical unit.
    pub lun: Lun,
    /// How it is ordered.
    pub attribute: TaskAttribute,
    /// What to do.
    pub cdb: Cdb<'a>,
    /// The data for the logical unit.
    pub data_out: DataBuffer<'a>,
    /// The buffer for the data from the logical unit.
    pub data_in: DataBuffer<'a>,
}

/// A command descriptor block: 16 bytes, and up to 252 more in words of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cdb<'a> {
    first: Blob<16>,
    additional: &'a [u8],
}

impl<'a> Cdb<'a> {
    /// Bytes after the first 16, at most.
    pub const ADDITIONAL_MAX: usize = 63 * 4;

    /// Bytes of the longest one.
    pub const MAX: usize = 16 + Self::ADDITIONAL_MAX;

    /// A block of these bytes, padded with zeros to 16.
    ///
    /// # Errors
    /// [`IuError::CdbLength`] if there are none, or 17 or more and not a multiple of 4, or too many.
    pub fn new(bytes: &'a [u8]) -> Result<Self, IuError> {
        let wrong = IuError::CdbLength(bytes.len());
        let (first, additional) = match bytes.split_first_chunk::<16>() {
            Some((first, additional)) => (Blob(*first), additional),
            None => (Blob::new(bytes).map_err(|_| wrong)?, [].as_slice()),
        };
        let fits = !bytes.is_empty() && bytes.len() <= Self::MAX;
        if !fits || !additional.len().is_multiple_of(4) {
            return Err(wrong);
        }
        Ok(Self { first, additional })
    }

    /// The first 16 bytes, in which all but a few commands fit.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.first.0
    }

    /// The bytes after the first 16.
    pub const fn additional(&self) -> &'a [u8] {
        self.additional
    }

    /// Operation code.
    pub const fn opcode(&self) -> u8 {
        self.first.0[0]
    }
}

impl<'a> Cmd<'a> {
    /// Where immediate data begin in the units of Linux, and of this crate's initiator: after the header, 16
    /// additional bytes of command descriptor block, and the length.
    pub const IMMEDIATE_OFFSET: u16 = 68;

    /// Reads a unit whose type has been checked.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, IuError> {
        let head = CmdHeader::parse(CmdHeaderView::of(fixed(Unit::Cmd, bytes)?));
        let words = head.additional_words.value();
        let (additional, at) = part(Unit::Cmd, bytes, CmdHeader::LEN, words * 4)?;
        let read = |format: Bits<4>, count, at| DataBuffer::read(format.byte(), count, bytes, at);
        let (data_out, at) = read(head.data_out_format, head.data_out_count, at)?;
        let (data_in, _) = read(head.data_in_format, head.data_in_count, at)?;
        if matches!(data_in, DataBuffer::Immediate(_)) {
            return Err(IuError::Format(head.data_in_format.byte()));
        }
        Ok(Self {
            solicit_success: head.solicit_success,
            solicit_failure: head.solicit_failure,
            tag: head.tag,
            lun: head.lun,
            attribute: head.attribute,
            cdb: Cdb {
                first: head.cdb,
                additional,
            },
            data_out,
            data_in,
        })
    }

    /// The immediate data in the bytes of the unit, if it has any: from the offset agreed on at login.
    ///
    /// # Errors
    /// [`IuError::Truncated`] if they are incomplete; [`IuError::Contradiction`] if they would begin inside the
    /// fields that describe them.
    pub fn immediate<'b>(&self, bytes: &'b [u8], offset: u16) -> Result<&'b [u8], IuError> {
        let DataBuffer::Immediate(len) = self.data_out else {
            return Ok(&[]);
        };
        if usize::from(offset) < self.emitted_len() {
            return Err(IuError::Contradiction(
                "immediate data begin inside the command",
            ));
        }
        part(Unit::Cmd, bytes, usize::from(offset), len).map(|(data, _)| data)
    }

    /// Writes the unit, without immediate data; returns its length.
    ///
    /// # Errors
    /// [`IuError::NoRoom`]; [`IuError::TooMany`] descriptors; [`IuError::Format`] for immediate data-in.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, IuError> {
        let len = self.emitted_len();
        if matches!(self.data_in, DataBuffer::Immediate(_)) {
            return Err(IuError::Format(self.data_in.format()));
        }
        let head = CmdHeader {
            solicit_success: self.solicit_success,
            solicit_failure: self.solicit_failure,
            data_out_format: Bits::truncated(self.data_out.format().into()),
            data_in_format: Bits::truncated(self.data_in.format().into()),
            data_out_count: self.data_out.count()?,
            data_in_count: self.data_in.count()?,
            tag: self.tag,
            lun: self.lun,
            attribute: self.attribute,
            additional_words: Bits::truncated((self.cdb.additional.len() / 4) as u32),
            cdb: self.cdb.first,
        };
        let out = place(Unit::Cmd, out, len)?;
        if let Some((place, rest)) = out.split_first_chunk_mut() {
            head.emit(place);
            place[0] = Unit::Cmd.code();
            let (additional, rest) = rest.split_at_mut(self.cdb.additional.len());
            additional.copy_from_slice(self.cdb.additional);
            let (data_out, data_in) = rest.split_at_mut(self.data_out.emitted_len());
            self.data_out.write(data_out);
            self.data_in.write(data_in);
        }
        Ok(len)
    }

    /// Bytes on the wire, without immediate data.
    pub fn emitted_len(&self) -> usize {
        CmdHeader::LEN
            + self.cdb.additional.len()
            + self.data_out.emitted_len()
            + self.data_in.emitted_len()
    }
}
