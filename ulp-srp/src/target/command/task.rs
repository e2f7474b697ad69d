//! A task: one request of an initiator, from its receipt to its answer.

use std::ops::Range;

use verbs_core::sync::Arc;
use verbs_core::{LKey, RKey};

use super::work::Work;
use crate::iu::{
    BufferFormats, Cmd, DataBuffer, Descriptors, Lun, MemoryDescriptor, Residual, ResponseCode,
    Status, Tag, TaskAttribute,
};
use crate::lun::Piece;
use crate::scsi::Sense;
use crate::target::nexus::Ticket;
use crate::target::units::Unit;

/// The step that a task is at.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Step {
    /// The slot is free.
    #[default]
    Free,
    /// Other tasks must end first.
    Held,
    /// It waits for a buffer: for the rest of its table, for its work, or for the data of its answer.
    Waiting(Need),
    /// The rest of its table is being fetched.
    Table,
    /// Its data are being fetched.
    Fetching,
    /// A logical unit has it.
    OnUnit,
    /// Its data and its answer are being posted.
    Answering,
    /// It is task management, and other tasks must end before its answer.
    Managing,
}

/// The purpose of a buffer.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Need {
    Table,
    Work,
    Reply,
}

/// How far the descriptors have been used.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Cursor {
    /// The next descriptor.
    pub(crate) piece: usize,
    /// Bytes of it that are used.
    pub(crate) offset: u32,
    /// Bytes of all descriptors.
    pub(crate) done: u32,
}

/// The answer to a task.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) sense: Option<Sense>,
    /// The response code, in place of a status.
    pub(crate) code: Option<ResponseCode>,
    /// The difference between the initiator's buffer and the data.
    pub(crate) residual: Residual,
}

/// A request to end the task.
#[derive(Debug)]
pub(crate) struct Abort {
    /// Whether the task is not answered, because its own initiator requested the abort.
    pub(crate) silent: bool,
    /// Dropped when the task has ended.
    pub(crate) _ticket: Option<Arc<Ticket>>,
}

/// Local memory from or to which data are moved.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) addr: u64,
    pub(crate) lkey: LKey,
}

#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) step: Step,
    pub(crate) tag: Tag,
    pub(crate) lun: Lun,
    pub(crate) attribute: TaskAttribute,
    /// Whether it is task management.
    pub(crate) manages: bool,
    pub(crate) solicit_success: bool,
    pub(crate) solicit_failure: bool,
    pub(crate) cdb: [u8; 16],
    /// Whether the initiator's buffer is for data from it.
    pub(crate) is_out: bool,
    /// Bytes of the initiator's buffer.
    pub(crate) buffer_len: u32,
    /// The pieces of that buffer; the vector's capacity is reused from task to task.
    pub(crate) pieces: Vec<MemoryDescriptor>,
    /// The part of the table that must be fetched, and the total length of all pieces.
    pub(crate) rest: Option<(MemoryDescriptor, u32)>,
    /// Where immediate data are in the receive buffer.
    pub(crate) immediate: Option<Range<usize>>,
    /// The key of its data, if it has only one.
    pub(crate) direct: Option<RKey>,
    pub(crate) work: Option<(Arc<Unit>, Work)>,
    /// Data of an answer, until there is a buffer for them.
    pub(crate) reply: Vec<u8>,
    pub(crate) piece: Option<Piece>,
    pub(crate) place: Place,
    /// Bytes to be moved.
    pub(crate) moving: u32,
    pub(crate) cursor: Cursor,
    pub(crate) answer: Answer,
    pub(crate) abort: Option<Abort>,
}

/// A command describes its data inconsistently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl Task {
    /// Frees the slot; the capacity for descriptors is kept.
    pub(crate) fn clear(&mut self) {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        *self = Self {
            pieces,
            ..Self::default()
        };
    }

    /// Copies the fields of a command.
    pub(crate) fn begin(&mut self, cmd: &Cmd<'_>) {
        self.clear();
        let pieces = std::mem::take(&mut self.pieces);
        *self = Self {
            tag: cmd.tag,
            lun: cmd.lun,
            attribute: cmd.attribute,
            solicit_success: cmd.solicit_success,
            solicit_failure: cmd.solicit_failure,
            cdb: *cmd.cdb.bytes(),
            is_out: !matches!(cmd.data_out, DataBuffer::None),
            pieces,
            ..Self::default()
        };
    }

    /// Copies the description of its data.
    pub(crate) fn describe(&mut self, cmd: &Cmd<'_>, entries_max: u32) -> Result<(), Nonsense> {
        let buffer = match (&cmd.data_out, &cmd.data_in) {
            (buffer, DataBuffer::None) | (DataBuffer::None, buffer) => buffer,
            // No supported command has data in both directions.
            _ => return Err(Nonsense),
        };
        self.buffer_len = buffer.len();
        match buffer {
            DataBuffer::None | DataBuffer::Immediate(_) => Ok(()),
            DataBuffer::Direct(piece) => {
                self.pieces.push(*piece);
                self.direct = Some(piece.rkey);
                Ok(())
            }
            DataBuffer::Indirect(indirect) => {
                let (table, partial) = (indirect.table, indirect.partial);
                let entries = table.len / 16;
                let named = u32::try_from(partial.len()).map_err(|_| Nonsense)?;
                if table.len % 16 != 0 || entries > entries_max || named > entries {
                    return Err(Nonsense);
                }
                self.pieces.extend(partial.iter());
                if named < entries {
                    let rest = MemoryDescriptor {
                        addr: table.addr.wrapping_add(u64::from(named) * 16),
                        len: table.len - named * 16,
                        ..table
                    };
                    self.rest = Some((rest, indirect.total_len));
                    return Ok(());
                }
                self.check_total(indirect.total_len)
            }
        }
    }

    /// Checks that all pieces together have the stated length.
    pub(crate) fn check_total(&self, total: u32) -> Result<(), Nonsense> {
        let sum: u64 = self.pieces.iter().map(|piece| u64::from(piece.len)).sum();
        match sum == u64::from(total) {
            true => Ok(()),
            false => Err(Nonsense),
        }
    }

    /// The next piece of the initiator's memory, and its offset in the data; advances the cursor.
    pub(crate) fn next_piece(&mut self) -> Option<(MemoryDescriptor, u32)> {
        let cursor = &mut self.cursor;
        while cursor.done < self.moving {
            let piece = self.pieces.get(cursor.piece)?;
            let left = piece.len - cursor.offset;
            let len = left.min(self.moving - cursor.done);
            let part = MemoryDescriptor {
                addr: piece.addr.wrapping_add(cursor.offset.into()),
                len,
                ..*piece
            };
            let at = cursor.done;
            cursor.done += len;
            if len == left {
                (cursor.piece, cursor.offset) = (cursor.piece + 1, 0);
            } else {
                cursor.offset += len;
            }
            if len > 0 {
                return Some((part, at));
            }
        }
        None
    }

    /// Whether it is task management, not a command.
    pub(crate) fn is_management(&self) -> bool {
        self.manages
    }

    /// Whether all data were moved.
    pub(crate) fn is_moved(&self) -> bool {
        self.cursor.done >= self.moving
    }

    /// Copies the rest of the table from the buffer that it was fetched into; returns the number of descriptors.
    pub(crate) fn take_table(&mut self) -> Result<usize, Nonsense> {
        let (piece, (rest, total)) = self.piece.take().zip(self.rest.take()).ok_or(Nonsense)?;
        let bytes = piece.part(0..rest.len as usize).to_vec();
        let more = Descriptors::of_table(&bytes).ok_or(Nonsense)?;
        self.pieces.extend(more.iter());
        self.check_total(total).map(|()| more.len())
    }

    /// Bytes from the initiator that the work has consumed.
    pub(crate) fn used(&self) -> u32 {
        match (&self.work, self.immediate.is_some()) {
            (Some((unit, work)), true) => work.data_out(unit.shape.block_bytes),
            _ => self.cursor.done,
        }
    }

    /// Starts moving data, from the first byte on.
    pub(crate) fn move_bytes(&mut self, bytes: u32) {
        (self.moving, self.cursor) = (bytes, Cursor::default());
    }
}

/// The supported formats.
pub(crate) fn formats() -> BufferFormats {
    BufferFormats::DIRECT | BufferFormats::INDIRECT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iu::Indirect;

    fn piece(addr: u64, len: u32) -> MemoryDescriptor {
        let rkey = RKey::new(7);
        MemoryDescriptor { addr, rkey, len }
    }

    fn described(
        pieces: &[MemoryDescriptor],
        table_len: u32,
        total_len: u32,
    ) -> Result<Task, Nonsense> {
        let cmd = Cmd {
            data_in: DataBuffer::Indirect(Indirect {
                table: piece(0x1000, table_len),
                total_len,
                partial: Descriptors::new(pieces),
            }),
            ..Cmd::default()
        };
        let mut task = Task::default();
        task.begin(&cmd);
        task.describe(&cmd, 8).map(|()| task)
    }

    #[test]
    fn data_go_to_their_pieces_in_order() {
        let pieces = [piece(0, 10), piece(100, 0), piece(200, 10), piece(300, 10)];
        let mut task = described(&pieces, 64, 30).unwrap();
        task.move_bytes(25);
        let moved: Vec<_> = std::iter::from_fn(|| task.next_piece())
            .map(|(part, at)| (part.addr, part.len, at))
            .collect();
        assert_eq!(moved, [(0, 10, 0), (200, 10, 10), (300, 5, 20)]);
        assert!(task.is_moved());
    }

    #[test]
    fn tables_have_to_be_what_they_say() {
        let pieces = [piece(0, 10), piece(0, u32::MAX)];
        assert_eq!(described(&pieces, 32, 9).err(), Some(Nonsense), "the sum");
        assert_eq!(described(&pieces, 31, 10).err(), Some(Nonsense), "no table");
        assert_eq!(described(&pieces, 16, 10).err(), Some(Nonsense), "too many");
        assert_eq!(
            described(&pieces, 9 * 16, 10).err(),
            Some(Nonsense),
            "too long"
        );
        let task = described(&pieces[..1], 64, 40).unwrap();
        assert_eq!(task.rest, Some((piece(0x1010, 48), 40)));
        let both = Cmd {
            data_in: DataBuffer::Direct(pieces[0]),
            data_out: DataBuffer::Direct(pieces[0]),
            ..Cmd::default()
        };
        assert_eq!(Task::default().describe(&both, 8), Err(Nonsense));
    }
}
