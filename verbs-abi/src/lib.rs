//! The structures that C programs share with libibverbs, as rdma-core's `verbs.h` lays them out on 64-bit machines, and
//! in [`rdmacm`] those of librdmacm. Both sides use them: the C libraries of `shims/ibverbs`, which are called with them,
//! and `hca-rdma`, which calls the system's.
//!
//! Programs access their fields directly: each size and the offsets that programs use are checked at compile time, in
//! `layout`.
//!
//! Names are those of the header without `ibv_`, and so are the fields. Structures grow at their end, or at their front
//! where the header says so; these are the newest versions, and an older program does not look at the fields that it
//! does not know.

#![forbid(unsafe_code)]
#![expect(missing_docs, reason = "fields are those of the header")]

mod attr;
mod context;
mod ex;
mod layout;
mod object;
pub mod rdmacm;
mod words;
mod wr;

pub use attr::*;
pub use context::*;
pub use ex::*;
pub use object::*;
pub use words::*;
pub use wr::*;
