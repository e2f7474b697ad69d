//! The connection manager's messages against captures of Linux, against random values, and against
//! a stored corpus.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod captures;
mod corpus;
mod golden;
mod properties;
