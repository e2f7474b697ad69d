//! The transport's headers (IBTA vol. 1, chapter 9): BTH, extended headers, the opcode table, a whole packet.

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod datagram;
pub mod flush;
pub mod imm;
mod length;
pub mod opcode;
pub mod packet;
pub mod reth;
