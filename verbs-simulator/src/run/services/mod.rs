//! Sessions of the other services, and what they have in common.

pub(crate) mod endpoint;
pub(crate) mod pending_wr;
pub(crate) mod service;
pub(crate) mod uc;
pub(crate) mod ud;
pub(crate) mod unreliable;
pub(crate) mod xrc;
