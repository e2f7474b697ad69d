//! What clients in other processes and the host of a subnet say to each other, and what carries it.

pub mod message;
pub mod place;
pub mod ring;
pub mod socket;
