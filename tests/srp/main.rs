//! SRP between two software HCAs: the initiator of `ulp-srp` against a target that counts and misbehaves.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod bed;
mod ddbd;
mod disk;
mod faults;
mod limits;
mod load;
mod loss;
mod native;
mod outage;
mod script;
mod target;
