//! The two ends as they take turns, and the window between them.

pub(crate) mod receiver;
pub(crate) mod sender;
pub(crate) mod session;
pub(crate) mod window;
