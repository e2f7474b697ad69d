//! Commands of the protocols above verbs.

pub(crate) mod ipoib;
pub(crate) mod rds;
pub(crate) mod srp;
