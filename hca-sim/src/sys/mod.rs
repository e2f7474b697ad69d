//! The door to what no safe crate offers: socket calls with control messages of UDP offload.
//!
//! Addresses and control messages cross it as bytes that safe code has written and will read, so that
//! only the calls themselves stand here.

mod socket;

pub(crate) use socket::{BATCH_MAX, Slot, receive, send, set_option};
