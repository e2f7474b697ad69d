//! Management datagrams, and connections that the provider makes itself.

pub mod cm;
pub mod mad;
