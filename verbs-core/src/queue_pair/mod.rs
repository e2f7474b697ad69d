//! Queue pairs: their attributes and states, and what datagrams and extended connections add.

pub mod ah;
pub mod mcast;
pub mod qp;
pub mod qp_attr;
pub mod qp_state;
pub mod xrcd;
