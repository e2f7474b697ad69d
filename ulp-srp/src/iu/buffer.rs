//! Where a command's data are: direct, indirect and immediate data buffers.

use std::fmt;

use verbs_core::mad::field::{Field, Run};
use verbs_core::wire_record;

use crate::iu::Unit;
use crate::iu::error::{IuError, fixed, part};
use crate::iu::ids::MemoryDescriptor;

/// Where the data of one direction are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DataBuffer<'a> {
    /// There are none.
    #[default]
    None,
    /// In one piece of the initiator's memory.
    Direct(MemoryDescriptor),
    /// In several pieces.
    Indirect(Indirect<'a>),
    /// This many bytes inside the command's unit, at the offset agreed on at login; data-out only.
    Immediate(u32),
}

/// A data buffer in several pieces: a table of descriptors in the initiator's memory. The first of them, or all,
/// are also in the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indirect<'a> {
    /// The address and the length of the table.
    pub table: MemoryDescriptor,
    /// Bytes of all pieces together.
    pub total_len: u32,
    /// The descriptors that are in the command: the head of the table.
    pub partial: Descriptors<'a>,
}

/// Memory descriptors, as values or as received in a unit.
#[derive(Clone, Copy)]
pub struct Descriptors<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Values(&'a [MemoryDescriptor]),
    /// A multiple of 16 bytes.
    Bytes(&'a [u8]),
}

wire_record! {
    /// The part of an indirect data buffer before the descriptors.
    struct Table, TableView: 20 bytes {
        table: MemoryDescriptor = (0, 0, 128),
        total_len: u32 = (16, 0, 32),
    }
}

/// Codes of the formats.
const NONE: u8 = 0;
const DIRECT: u8 = 1;
const INDIRECT: u8 = 2;
const IMMEDIATE: u8 = 3;

impl<'a> DataBuffer<'a> {
    /// Bytes of data.
    pub fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Direct(piece) => piece.len,
            Self::Indirect(indirect) => indirect.total_len,
            Self::Immediate(len) => *len,
        }
    }

    /// Whether there are no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that describe it in the command.
    pub fn emitted_len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Direct(_) => MemoryDescriptor::LEN,
            Self::Indirect(indirect) => Table::LEN + indirect.partial.byte_len(),
            Self::Immediate(_) => 4,
        }
    }

    /// Code of the format.
    pub(crate) const fn format(&self) -> u8 {
        match self {
            Self::None => NONE,
            Self::Direct(_) => DIRECT,
            Self::Indirect(_) => INDIRECT,
            Self::Immediate(_) => IMMEDIATE,
        }
    }

    /// The count of descriptors in the command's header: zero unless the buffer is indirect.
    pub(crate) fn count(&self) -> Result<u8, IuError> {
        match self {
            Self::Indirect(indirect) => {
                let count = indirect.partial.len();
                u8::try_from(count).map_err(|_| IuError::TooMany(count))
            }
            _ => Ok(0),
        }
    }

    /// Reads a buffer in that format at that offset of a command; returns it and the offset of its end.
    pub(crate) fn read(
        format: u8,
        count: u8,
        bytes: &'a [u8],
        at: usize,
    ) -> Result<(Self, usize), IuError> {
        let take = |at, len| part(Unit::Cmd, bytes, at, len);
        match format {
            NONE => Ok((Self::None, at)),
            // Revision 10 and WinOF count the single descriptor, revision 16a and Linux do not.
            DIRECT => {
                let (piece, end) = take(at, 16)?;
                Ok((Self::Direct(MemoryDescriptor::read(piece, WHOLE)), end))
            }
            INDIRECT => {
                let (head, end) = take(at, 20)?;
                let head = Table::parse(TableView::of(fixed(Unit::Cmd, head)?));
                let (partial, end) = take(end, u32::from(count) * 16)?;
                let indirect = Indirect {
                    table: head.table,
                    total_len: head.total_len,
                    partial: Descriptors(Source::Bytes(partial)),
                };
                Ok((Self::Indirect(indirect), end))
            }
            IMMEDIATE => {
                let (len, end) = take(at, 4)?;
                Ok((Self::Immediate(u32::read(len, WORD)), end))
            }
            other => Err(IuError::Format(other)),
        }
    }

    /// Writes it into [`DataBuffer::emitted_len`] bytes.
    pub(crate) fn write(&self, out: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Direct(piece) => piece.write(out, WHOLE),
            Self::Immediate(len) => len.write(out, WORD),
            Self::Indirect(indirect) => {
                let Some((head, rest)) = out.split_first_chunk_mut() else {
                    return;
                };
                let table = Table {
                    table: indirect.table,
                    total_len: indirect.total_len,
                };
                table.emit(head);
                for (piece, out) in indirect.partial.iter().zip(rest.chunks_exact_mut(16)) {
                    piece.write(out, WHOLE);
                }
            }
        }
    }
}

const WHOLE: Run = Run {
    byte: 0,
    bit: 0,
    width: 128,
};
const WORD: Run = Run {
    byte: 0,
    bit: 0,
    width: 32,
};

impl Indirect<'_> {
    /// Whether the command contains the whole table, so nothing must be fetched.
    pub fn is_complete(&self) -> bool {
        self.partial.byte_len() as u64 == u64::from(self.table.len)
    }
}

impl<'a> Descriptors<'a> {
    /// The given descriptors.
    pub const fn new(pieces: &'a [MemoryDescriptor]) -> Self {
        Self(Source::Values(pieces))
    }

    /// The descriptors in the bytes of a table; `None` if the length is not a multiple of 16.
    pub const fn of_table(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len().is_multiple_of(MemoryDescriptor::LEN) {
            Some(Self(Source::Bytes(bytes)))
        } else {
            None
        }
    }

    /// The number of descriptors.
    pub const fn len(&self) -> usize {
        match self.0 {
            Source::Values(pieces) => pieces.len(),
            Source::Bytes(bytes) => bytes.len() / MemoryDescriptor::LEN,
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all pieces; cannot overflow.
    pub fn total_len(&self) -> u64 {
        self.iter().map(|piece| u64::from(piece.len)).sum()
    }

    /// The descriptors, in order.
    pub fn iter(&self) -> impl Iterator<Item = MemoryDescriptor> + use<'a> {
        let (values, bytes): (&'a [MemoryDescriptor], &'a [u8]) = match self.0 {
            Source::Values(values) => (values, &[]),
            Source::Bytes(bytes) => (&[], bytes),
        };
        let read = |bytes: &'a [u8]| MemoryDescriptor::read(bytes, WHOLE);
        let read = bytes.chunks_exact(MemoryDescriptor::LEN).map(read);
        values.iter().copied().chain(read)
    }

    /// Writes them as a table.
    pub fn emit(&self, out: &mut [u8]) {
        for (piece, out) in self.iter().zip(out.chunks_exact_mut(MemoryDescriptor::LEN)) {
            piece.write(out, WHOLE);
        }
    }

    const fn byte_len(&self) -> usize {
        self.len() * MemoryDescriptor::LEN
    }
}

impl PartialEq for Descriptors<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Descriptors<'_> {}

impl fmt::Debug for Descriptors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
