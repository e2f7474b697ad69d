//! Devices: how they are opened, listed and lost, what they can do and what happens on them; the provider behind one.

pub mod caps;
pub mod device;
pub mod device_list;
pub mod event;
pub mod extension;
pub(crate) mod fatal;
pub mod filter;
pub mod provider;
pub mod provider_attr;
pub mod timer;
