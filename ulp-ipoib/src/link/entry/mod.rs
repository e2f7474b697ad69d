//! Entries of the tables that the interface's state holds: what is known of one neighbour, path, group or
//! connection. They know neither the state nor what follows from a change of it.

pub(super) mod active;
pub(super) mod group;
pub(super) mod neighbour;
pub(super) mod passive;
pub(super) mod path;
