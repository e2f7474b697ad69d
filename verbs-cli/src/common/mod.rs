//! What commands share: output, captures, pictures, exit codes, units, the end of a program.

pub(crate) mod capture;
pub(crate) mod ending;
pub(crate) mod exit;
pub(crate) mod file_id;
pub(crate) mod logging;
pub(crate) mod places;
pub(crate) mod report;
pub(crate) mod svg;
pub(crate) mod units;
