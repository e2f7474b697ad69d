//! Service types other than the reliable connection, on a loopback link and over packets: each scenario runs on both
//! and must end the same.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod bed;
mod joins;
mod multicast;
mod sources;
mod special;
mod uc;
mod ud;
mod xrc;
