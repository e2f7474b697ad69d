//! The objects of libibverbs behind handles, for functions that this crate does not call, such as a driver's own
//! (`mlx5dv` and its like).
//!
//! A pointer is good until its object's destroy is issued, and only for functions of the library that [`crate::RdmaCore`]
//! has loaded. A caller keeps the object's rules: work requests that are posted behind a queue's back complete in its
//! completion queue, and this crate counts and checks none of them.
//!
//! ```no_run
//! # fn example(qp: &verbs_core::Qp) {
//! // As a `*mut ibv_qp`; `None` if the queue pair is not of this crate.
//! let qp = hca_rdma::native::qp(qp).map(|qp| qp.as_ptr());
//! # let _ = qp;
//! # }
//! ```

use std::ffi::c_void;
use std::ptr::NonNull;

use verbs_core::Qp;
use verbs_core::shared::CqRef;

use crate::command::{pair, queue};

/// The `ibv_qp` of a queue pair.
pub fn qp(qp: &Qp) -> Option<NonNull<c_void>> {
    pointer(pair::address(qp.target())?)
}

/// The `ibv_cq` of a completion queue.
pub fn cq(cq: &impl CqRef) -> Option<NonNull<c_void>> {
    pointer(queue::address(cq.cq_core())?)
}

fn pointer(address: usize) -> Option<NonNull<c_void>> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address))
}
