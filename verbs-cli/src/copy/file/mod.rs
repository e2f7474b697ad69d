//! The file that is read, and the file that is written.

pub(crate) mod sink;
pub(crate) mod source;
