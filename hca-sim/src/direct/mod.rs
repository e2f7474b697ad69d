//! Direct placement: a message between two queue pairs of this process, carried out whole by its poster.

pub(crate) mod local;
pub(crate) mod message;
pub(crate) mod path;
