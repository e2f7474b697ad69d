//! One end of a connection: its queue pair, made by messages of the connection manager or by the provider.

pub(crate) mod endpoint;
pub(crate) mod link;
pub(crate) mod provided;
pub(crate) mod refusals;
