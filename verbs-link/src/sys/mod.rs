//! System calls that no safe crate offers, or none at the price of a call: socket calls with control messages of UDP
//! offload, memory that two processes share, clocks.
//!
//! Addresses and control messages are passed as bytes that safe code has written and will read, and shared memory as a
//! [`Memory`](verbs_core::Memory), which is only ever copied, so that only the calls themselves are here.

mod clock;
mod shared;
mod socket;
mod steer;

pub use clock::{monotonic_nanos, thread_clock, thread_sleeps, thread_time};
pub use shared::{create_file, map};
pub use socket::{BATCH_MAX, Slot, option, past_reset, receive, send, set_option, unsent};
pub use steer::{Filter, steer};
