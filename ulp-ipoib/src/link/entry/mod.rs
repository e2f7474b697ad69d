//! Entries of the tables in the interface's state: what is known of one neighbour, path, group or connection.
//! They do not know the state, nor the actions that follow from their changes.

pub(super) mod active;
pub(super) mod group;
pub(super) mod neighbour;
pub(super) mod passive;
pub(super) mod path;
