//! Formats of RDS, from the outside.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod corpus;
mod golden;
mod properties;
