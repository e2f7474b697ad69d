//! Work requests that were posted, and the pieces of their memory.

use std::ops::Range;

use verbs_core::{Mr, Sge};

use crate::Draw;
use crate::check::Read;
use crate::coverage::Operation;
use crate::run::conn::Seen;
use crate::run::wr_builder::cut;

/// A work request, for the time when it ends.
pub(crate) struct Out {
    pub(crate) slot: Option<usize>,
    pub(crate) operation: Operation,
    /// Its number in the lane of its sender.
    pub(crate) seq: u64,
    /// The endpoint whose receive or memory it uses, by its place in the session.
    pub(crate) to: usize,
    /// It takes a receive.
    pub(crate) receives: bool,
    /// The place of its result, and the permitted values.
    pub(crate) read: Option<(Range<usize>, Read)>,
    pub(crate) seen: Seen,
}

/// The pieces of a range.
pub(crate) fn pieces(draw: &mut Draw, mr: &Mr, range: Range<usize>, max: u32) -> Vec<Sge> {
    let mut from = range.start;
    cut(draw, range.len(), max as usize)
        .into_iter()
        .map(|len| {
            from += len;
            mr.slice(from - len..from)
        })
        .collect()
}
