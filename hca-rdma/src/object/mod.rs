//! The library's objects behind handles and keys.

pub(crate) mod address;
pub(crate) mod keys;
pub mod native;
pub(crate) mod slot;
