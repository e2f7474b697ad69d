//! The `verbs` command.

#![forbid(unsafe_code)]

fn main() {}
