//! Work requests that were posted, and the pieces of their memory.

use std::ops::Range;

use verbs_core::{Mr, Sge};

use crate::sim::Draw;
use crate::sim::check::Read;
use crate::sim::coverage::Operation;
use crate::sim::run::conn::Seen;
use crate::sim::run::draft::cut;

/// A work request, for when it ends.
pub(super) struct Out {
    pub(super) slot: Option<usize>,
    pub(super) operation: Operation,
    /// Its number in the lane of its sender.
    pub(super) seq: u64,
    /// The stand whose receive or memory it reaches for, by its place in the session.
    pub(super) to: usize,
    /// It takes a receive.
    pub(super) receives: bool,
    /// Where its result goes, and what that may be.
    pub(super) read: Option<(Range<usize>, Read)>,
    pub(super) seen: Seen,
}

/// The pieces of a range.
pub(super) fn pieces(draw: &mut Draw, mr: &Mr, range: Range<usize>, max: u32) -> Vec<Sge> {
    let mut from = range.start;
    cut(draw, range.len(), max as usize)
        .into_iter()
        .map(|len| {
            from += len;
            mr.slice(from - len..from)
        })
        .collect()
}
