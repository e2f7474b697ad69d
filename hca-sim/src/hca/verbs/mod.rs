//! The verbs: each takes its command apart and hands it to the object that it is about.

mod address;
pub(super) mod device;
mod memory;
pub(super) mod queues;
mod windows;
mod xrc;
