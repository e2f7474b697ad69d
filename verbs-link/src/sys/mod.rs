//! The door to what no safe crate offers: socket calls with control messages of UDP offload, and memory that
//! two processes share.
//!
//! Addresses and control messages cross it as bytes that safe code has written and will read, and shared
//! memory as a [`Memory`](verbs_core::Memory), which is only ever copied, so that only the calls themselves
//! stand here.

mod shared;
mod socket;

pub use shared::{create, map};
pub use socket::{BATCH_MAX, Slot, receive, send, set_option};
