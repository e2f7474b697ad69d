//! A run after it has ended: its report and transcript, comparisons, and smaller runs that fail as well.

pub(crate) mod compare;
pub(crate) mod report;
pub(crate) mod shrink;
pub(crate) mod transcript;
