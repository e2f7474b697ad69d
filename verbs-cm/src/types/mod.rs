//! Limits, options, errors and events; what users say and what is known of connections.

pub(crate) mod address;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod info;
pub(crate) mod limit;
pub(crate) mod listed;
pub(crate) mod options;
pub(crate) mod pace;
pub(crate) mod params;
