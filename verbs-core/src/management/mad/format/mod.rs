//! What all management formats are made of: fields, the common header, codes of time.

pub(crate) mod class_port_info;
#[doc(hidden)]
pub mod field;
pub mod header;
pub mod time_code;
