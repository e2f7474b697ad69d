//! A run before it begins: its options, its plan, its nodes, and the faults to come.

pub(crate) mod faults;
pub(crate) mod machine;
pub(crate) mod options;
pub(crate) mod plan;
