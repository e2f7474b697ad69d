//! The structures that programs share with the library, as rdma-core's `verbs.h` lays them out on 64-bit
//! machines. Programs reach into them: each size and the offsets that programs use are checked when this is
//! compiled, in `layout`.
//!
//! Names are those of the header without `ibv_`. Structures grow at their end, or at their front where the header
//! says so; these are the newest, and what an older program does not know is where it does not look.

mod attr;
mod context;
mod ex;
mod layout;
mod object;
mod wr;

pub(crate) use attr::*;
pub(crate) use context::*;
pub(crate) use ex::*;
pub(crate) use object::*;
pub(crate) use wr::*;
