//! Information units: golden values, Linux's own units, properties, and the stored corpus of the fuzz targets.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod captures;
mod corpus;
mod golden;
mod properties;
