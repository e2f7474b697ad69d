//! The benchmarks, one a file: each measures rows of the table.

pub(crate) mod control;
pub(crate) mod latency;
pub(crate) mod load;
pub(crate) mod many;
pub(crate) mod message;
pub(crate) mod near;
pub(crate) mod rds;
pub(crate) mod registration;
pub(crate) mod stream;
pub(crate) mod wire;

use super::stage::Stage;
use super::{bed, duel, error, far, machine, method, table, tcp};
