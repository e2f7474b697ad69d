//! Names of pending requests.

use std::fmt;

/// Names a pending request; never reused while a caller could still mean the old one (K13).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}.{}", self.index, self.generation)
    }
}
