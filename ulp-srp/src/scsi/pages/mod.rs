//! What commands return about units: capacity, inquiry data, mode pages, lists of units.

pub(crate) mod capacity;
pub(crate) mod inquiry;
pub(crate) mod luns;
pub(crate) mod mode;
pub(crate) mod names;
pub(crate) mod vpd;
