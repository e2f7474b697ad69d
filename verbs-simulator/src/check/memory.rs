//! The permitted values of every byte of a piece of registered memory.
//!
//! A byte has the value that was settled last, or that of one of the writes to it that are under way. Writes of one
//! *lane*, that is of one direction of a connection, take effect in order; those of different lanes touch different
//! bytes.

use std::ops::Range;

use verbs_core::Memory;
use verbs_core::sync::Arc;

/// Bytes that are compared at once.
const PIECE: usize = 256;

/// See the module's documentation.
pub(crate) struct MemoryModel {
    memory: Arc<Memory>,
    settled: Vec<u8>,
    pending: Vec<Pending>,
    scratch: Vec<u8>,
    /// Ranges that were lent and returned without any information about their bytes.
    unknown: Vec<Range<usize>>,
}

/// A write under way.
struct Pending {
    lane: u64,
    seq: u64,
    at: usize,
    len: usize,
    /// What it writes; `None` if that is not known, so that the bytes may have any value.
    bytes: Option<Vec<u8>>,
}

impl Pending {
    fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }

    fn allows(&self, at: usize, byte: u8) -> bool {
        self.range().contains(&at)
            && self
                .bytes
                .as_ref()
                .is_none_or(|bytes| bytes[at - self.at] == byte)
    }
}

/// What a READ may return: the earliest permitted values of its bytes, and what later writes may have made of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Read {
    pub(crate) floor: Vec<u8>,
    /// Offset into the floor, and bytes.
    pub(crate) later: Vec<(usize, Vec<u8>)>,
    /// The position of the first byte, if it matters.
    at: usize,
}

impl Read {
    /// What may be read if no write follows.
    pub(crate) fn of(floor: Vec<u8>) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }

    /// A WRITE was posted behind it that may take effect before it.
    pub(crate) fn overtake(&mut self, at: usize, bytes: &[u8]) {
        let (from, end) = (self.at, self.at + self.floor.len());
        let (start, end) = (at.max(from), end.min(at + bytes.len()));
        if start < end {
            let bytes = bytes[start - at..end - at].to_vec();
            self.later.push((start - from, bytes));
        }
    }

    /// The first offset at which these bytes cannot be what was read.
    pub(crate) fn differs(&self, got: &[u8]) -> Option<usize> {
        (0..self.floor.len()).find(|&at| {
            let Some(got) = got.get(at) else { return true };
            let later = |(offset, bytes): &(usize, Vec<u8>)| {
                at.checked_sub(*offset).and_then(|index| bytes.get(index)) == Some(got)
            };
            *got != self.floor[at] && !self.later.iter().any(later)
        })
    }
}

impl MemoryModel {
    /// The model of the current contents of memory; nothing else may touch it yet.
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        let mut model = Self {
            settled: vec![0; memory.len()],
            scratch: vec![0; memory.len()],
            pending: Vec::new(),
            unknown: Vec::new(),
            memory,
        };
        model.look();
        model.settled.clone_from(&model.scratch);
        model
    }

    fn look(&mut self) {
        self.memory
            .read(0, &mut self.scratch)
            .expect("the scratch is as long as the memory");
    }

    /// The owner writes.
    pub(crate) fn store(&mut self, at: usize, bytes: &[u8]) {
        self.memory
            .write(at, bytes)
            .expect("areas lie within their memory");
        self.settled[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The bytes after everything that is under way in that lane has taken effect.
    pub(crate) fn predict(&self, lane: u64, range: Range<usize>) -> Vec<u8> {
        let mut bytes = self.settled[range.clone()].to_vec();
        let of_lane = self.pending.iter().filter(|write| write.lane == lane);
        for write in of_lane {
            let Some(written) = &write.bytes else {
                continue;
            };
            let (start, end) = (
                write.at.max(range.start),
                range.end.min(write.at + write.len),
            );
            if start < end {
                bytes[start - range.start..end - range.start]
                    .copy_from_slice(&written[start - write.at..end - write.at]);
            }
        }
        bytes
    }

    /// What a READ that is posted now may return.
    pub(crate) fn read(&self, lane: u64, range: Range<usize>) -> Read {
        Read {
            at: range.start,
            ..Read::of(self.predict(lane, range))
        }
    }

    /// Whether a write of that lane is under way.
    pub(crate) fn is_under_way(&self, lane: u64) -> bool {
        self.pending.iter().any(|write| write.lane == lane)
    }

    /// A write is under way.
    pub(crate) fn write(&mut self, lane: u64, seq: u64, at: usize, bytes: Vec<u8>) {
        let len = bytes.len();
        self.pending.push(Pending {
            lane,
            seq,
            at,
            len,
            bytes: Some(bytes),
        });
    }

    /// The device may write anything there from now on.
    pub(crate) fn lend(&mut self, lane: u64, seq: u64, at: usize, len: usize) {
        self.pending.push(Pending {
            lane,
            seq,
            at,
            len,
            bytes: None,
        });
    }

    /// All writes of a lane up to that one have taken effect.
    pub(crate) fn settle(&mut self, lane: u64, seq: u64) {
        let Self {
            settled, pending, ..
        } = self;
        pending.retain(|write| {
            let over = write.lane == lane && write.seq <= seq;
            if let (true, Some(bytes)) = (over, &write.bytes) {
                settled[write.range()].copy_from_slice(bytes);
            }
            !over
        });
    }

    /// A message of a lane that may lose some was reported to the receiver: its own bytes are in place, and earlier
    /// writes that have not taken effect by now never will.
    ///
    /// # Errors
    /// A byte with a value that is not permitted.
    pub(crate) fn pass(&mut self, lane: u64, seq: u64) -> Result<(), String> {
        self.check()?;
        let is_over = |write: &Pending| write.lane == lane && write.seq <= seq;
        let (over, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(is_over);
        self.pending = pending;
        let over: Vec<Pending> = over;
        for write in &over {
            let range = write.range();
            let wrong = range.clone().find(|&at| {
                let got = self.scratch[at];
                !write.allows(at, got) && !self.pending.iter().any(|later| later.allows(at, got))
            });
            if let (Some(at), true) = (wrong, write.seq == seq) {
                return Err(format!(
                    "byte {at:#x} is not as a WRITE says that was told of"
                ));
            }
            self.settled[range.clone()].copy_from_slice(&self.scratch[range]);
        }
        Ok(())
    }

    /// Lent memory is returned: its current bytes, which are settled.
    pub(crate) fn reclaim(&mut self, lane: u64, seq: u64) -> Vec<u8> {
        let mine = |write: &Pending| write.lane == lane && write.seq == seq;
        let Some(place) = self.pending.iter().position(mine) else {
            return Vec::new();
        };
        let range = self.pending.remove(place).range();
        let mut bytes = vec![0; range.len()];
        self.memory
            .read(range.start, &mut bytes)
            .expect("what was lent lies within its memory");
        self.settled[range].copy_from_slice(&bytes);
        bytes
    }

    /// Lent memory is returned, and it is unknown whether anything was written there.
    pub(crate) fn give_up(&mut self, lane: u64, seq: u64) {
        let mine = |write: &&Pending| write.lane == lane && write.seq == seq;
        let range = self.pending.iter().find(mine).map(Pending::range);
        self.unknown.extend(range);
        let _ = self.reclaim(lane, seq);
    }

    /// The settled bytes.
    pub(crate) fn settled(&self, range: Range<usize>) -> &[u8] {
        &self.settled[range]
    }

    /// The settled bytes, with zeros where a write is under way or was given up.
    pub(crate) fn certain(&self) -> Vec<u8> {
        let mut bytes = self.settled.clone();
        let on_its_way = self.pending.iter().map(Pending::range);
        for range in on_its_way.chain(self.unknown.iter().cloned()) {
            bytes[range].fill(0);
        }
        bytes
    }

    /// That write can no longer take effect, if it has not: it counts as a write of the bytes that are there now.
    ///
    /// # Errors
    /// A byte with a value that is not permitted.
    pub(crate) fn freeze(&mut self, lane: u64, seq: u64) -> Result<(), String> {
        let mine = |write: &Pending| write.lane == lane && write.seq == seq;
        let Some(place) = self.pending.iter().position(mine) else {
            return Ok(());
        };
        self.check()?;
        let range = self.pending[place].range();
        self.pending[place].bytes = Some(self.scratch[range].to_vec());
        Ok(())
    }

    /// The lane has ended, and none of its writes can take effect any longer: the bytes that are there now stay.
    ///
    /// # Errors
    /// A byte with a value that is not permitted.
    pub(crate) fn resolve(&mut self, lane: u64) -> Result<(), String> {
        self.check()?;
        let Self {
            settled,
            pending,
            scratch,
            ..
        } = self;
        pending.retain(|write| {
            let over = write.lane == lane;
            if over {
                settled[write.range()].copy_from_slice(&scratch[write.range()]);
            }
            !over
        });
        Ok(())
    }

    /// Checks that every byte has a permitted value.
    ///
    /// # Errors
    /// The first byte that has not.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        self.look();
        if self.settled == self.scratch {
            return Ok(());
        }
        // Most of the bytes are settled: pieces of them are compared at once.
        let pieces = self.scratch.chunks(PIECE).zip(self.settled.chunks(PIECE));
        for (piece, (got, settled)) in pieces.enumerate() {
            if got == settled {
                continue;
            }
            for (index, (&got, &settled)) in got.iter().zip(settled).enumerate() {
                let at = piece * PIECE + index;
                let allowed =
                    got == settled || self.pending.iter().any(|write| write.allows(at, got));
                if !allowed {
                    return Err(format!(
                        "byte {at:#x} is {got:#04x}; it was {settled:#04x}, and nothing on its way makes it that"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> MemoryModel {
        MemoryModel::new(Arc::new(Memory::alloc(64).unwrap()))
    }

    #[test]
    fn a_byte_may_be_old_or_new_while_a_write_is_on_its_way_and_only_new_after() {
        let mut model = model();
        model.write(1, 1, 8, vec![7; 4]);
        assert_eq!(model.check(), Ok(()));
        model.memory.write(9, &[7]).unwrap();
        assert_eq!(model.check(), Ok(()), "bytes may be placed in any order");
        model.memory.write(12, &[7]).unwrap();
        assert!(model.check().is_err(), "one byte past the range");
        model.memory.write(12, &[0]).unwrap();
        model.settle(1, 1);
        assert!(model.check().is_err(), "two bytes are missing");
        model.memory.write(8, &[7; 4]).unwrap();
        assert_eq!(model.check(), Ok(()));
    }

    #[test]
    fn writes_of_a_lane_take_effect_in_order() {
        let mut model = model();
        model.write(1, 1, 0, vec![1; 2]);
        model.write(1, 2, 1, vec![2; 2]);
        assert_eq!(model.predict(1, 0..4), [1, 2, 2, 0]);
        assert_eq!(model.predict(2, 0..4), [0; 4]);
        model.memory.write(0, &[1, 1]).unwrap();
        model.settle(1, 1);
        assert_eq!(model.check(), Ok(()));
        assert_eq!(model.resolve(1), Ok(()));
        model.memory.write(1, &[2]).unwrap();
        assert!(model.check().is_err(), "too late");
    }

    #[test]
    fn a_write_that_was_told_of_is_whole_and_those_before_it_are_over() {
        let mut model = model();
        model.write(1, 1, 0, vec![1; 4]);
        model.write(1, 2, 8, vec![2; 4]);
        model.memory.write(0, &[1]).unwrap();
        model.memory.write(8, &[2; 3]).unwrap();
        assert!(model.pass(1, 2).is_err(), "a byte is missing");
        model.memory.write(11, &[2]).unwrap();
        model.write(1, 2, 8, vec![2; 4]);
        assert_eq!(model.pass(1, 2), Ok(()), "what was lost of 1 stays lost");
        model.memory.write(1, &[1]).unwrap();
        assert!(model.check().is_err(), "too late");
    }

    #[test]
    fn a_write_that_is_frozen_stays_as_far_as_it_came() {
        for applied in [false, true] {
            let mut model = model();
            model.write(1, 1, 0, vec![1; 4]);
            model.write(1, 2, 0, vec![2; 4]);
            model
                .memory
                .write(0, &[if applied { 2 } else { 0 }; 4])
                .unwrap();
            assert_eq!(model.freeze(1, 2), Ok(()));
            // The answer to the first arrived late.
            model.settle(1, 1);
            assert_eq!(model.check(), Ok(()));
            model.memory.write(0, &[2; 4]).unwrap();
            assert_eq!(model.check().is_ok(), applied);
        }
    }

    #[test]
    fn a_read_may_see_what_comes_behind_it() {
        let mut read = Read::of(vec![1, 1, 1]);
        read.overtake(1, &[2]);
        assert_eq!(read.differs(&[1, 1, 1]), None);
        assert_eq!(read.differs(&[1, 2, 1]), None);
        assert_eq!(read.differs(&[1, 1, 2]), Some(2));
        assert_eq!(read.differs(&[1, 1]), Some(2));
    }
}
