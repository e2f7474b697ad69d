//! A work request in the making.

use std::ops::Range;

use verbs_core::{SendFlags, SendOp, Sge};

use crate::sim::Draw;
use crate::sim::coverage::Operation;
use crate::sim::run::conn::Place;

/// See the module's documentation.
pub(super) struct Draft {
    pub(super) operation: Operation,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    /// Local pieces, or the bytes that are copied while posting.
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Option<Vec<u8>>,
    /// What the responder gets, for operations that bring something.
    pub(super) bytes: Vec<u8>,
    pub(super) len: usize,
    pub(super) back: Option<Range<usize>>,
    pub(super) target: Option<(Place, Range<usize>)>,
    pub(super) imm: Option<u32>,
}

impl Draft {
    pub(super) fn new(operation: Operation, op: SendOp) -> Self {
        Self {
            operation,
            op,
            flags: SendFlags::empty(),
            sges: Vec::new(),
            inline: None,
            bytes: Vec::new(),
            len: 0,
            back: None,
            target: None,
            imm: None,
        }
    }

    /// What the table says about it, besides the operation.
    pub(super) fn ways(&self) -> Vec<Operation> {
        let ways = [
            (self.inline.is_some(), Operation::Inline),
            (
                self.inline.is_none() && self.sges.len() > 1,
                Operation::Gathered,
            ),
            (self.flags.contains(SendFlags::FENCE), Operation::Fenced),
            (
                self.flags.contains(SendFlags::SOLICITED),
                Operation::Solicited,
            ),
            (
                !self.flags.contains(SendFlags::SIGNALED),
                Operation::Unsignaled,
            ),
        ];
        ways.into_iter()
            .filter_map(|(is, way)| is.then_some(way))
            .collect()
    }
}

/// The lengths of up to `max` pieces of `len` bytes.
pub(super) fn cut(draw: &mut Draw, len: usize, max: usize) -> Vec<usize> {
    let mut pieces = Vec::new();
    let mut left = len;
    for _ in 1..draw.within(1..=max.max(1) as u64) {
        let piece = draw.below(left + 1);
        pieces.push(piece);
        left -= piece;
    }
    pieces.push(left);
    pieces
}

/// A number as atomics have it in memory.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}
