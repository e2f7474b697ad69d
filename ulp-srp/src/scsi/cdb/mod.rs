//! Commands: their descriptor blocks and operation codes.

pub(crate) mod command;
pub(crate) mod emit;
pub(crate) mod opcode;
pub(crate) mod unmap;
