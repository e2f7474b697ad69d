//! What is computed of a sweep's result: LIDs, routes, and the forwarding tables of switches.

pub(crate) mod forward;
pub(crate) mod lids;
pub(crate) mod route;
pub(crate) mod tables;
