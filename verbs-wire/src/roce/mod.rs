//! RoCEv2: IP and UDP headers, and the ICRC over them and the packet (IBTA annex A17).

pub mod envelope;
pub mod icrc;
pub mod seal;
