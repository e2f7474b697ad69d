//! From a key to the bytes behind it: the table, what verbs keep of a key, binds and fast registrations.

pub(crate) mod bind;
pub(crate) mod entry;
pub(crate) mod fast;
pub(crate) mod owner;
pub mod table;
