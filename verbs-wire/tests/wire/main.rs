//! The wire formats against captures of Linux rxe, against random values, and against a stored
//! corpus.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod captures;
mod corpus;
mod errors;
mod fields;
mod frames;
mod iwarp;
mod properties;
mod sealing;
