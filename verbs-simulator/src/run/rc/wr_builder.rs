//! A work request that is being built.

use std::ops::Range;

use verbs_core::{SendFlags, SendOp, Sge};

use crate::Draw;
use crate::coverage::Operation;
use crate::run::conn::Place;

/// See the module's documentation.
pub(crate) struct WrBuilder {
    pub(crate) operation: Operation,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    /// Local pieces, or the bytes that are copied while posting.
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Option<Vec<u8>>,
    /// The bytes that the responder receives, for operations that carry some.
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: usize,
    pub(crate) back: Option<Range<usize>>,
    pub(crate) target: Option<(Place, Range<usize>)>,
    pub(crate) imm: Option<u32>,
}

impl WrBuilder {
    pub(crate) fn new(operation: Operation, op: SendOp) -> Self {
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

    /// Its rows of the table, apart from the operation.
    pub(crate) fn variants(&self) -> Vec<Operation> {
        let variants = [
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
        variants
            .into_iter()
            .filter_map(|(is, variant)| is.then_some(variant))
            .collect()
    }
}

/// The lengths of up to `max` pieces of `len` bytes.
pub(crate) fn cut(draw: &mut Draw, len: usize, max: usize) -> Vec<usize> {
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

/// A number in the form that atomics have in memory.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}
