//! Neighbours: the other processes of this host, with which memory is shared.

pub(super) mod channel;
pub(super) mod channels;
pub(super) mod inbound;
mod patience;
