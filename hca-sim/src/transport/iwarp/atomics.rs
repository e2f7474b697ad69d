//! The responder's atomics (RFC 7306, section 5).

use verbs_core::Access;
use verbs_core::mem::Window;
use verbs_wire::iwarp::{AtomicOperation, AtomicRequest, Cause};

use super::fault::{Fault, read_cause};
use super::outlet::Extensions;
use crate::transport::Ends;
use crate::transport::pieces::refused;

/// Carries one out: what was in memory before.
pub(super) fn execute(
    ends: &Ends<'_>,
    request: &AtomicRequest,
    has: Extensions,
) -> Result<u64, Fault> {
    if !(if is_masked(&request.operation) {
        has.masked
    } else {
        has.atomics
    }) {
        return Err(Fault::peer(Cause::RDMAP_OPCODE));
    }
    let path = ends.path;
    if !path.access.contains(Access::REMOTE_ATOMIC) || path.max_dest_rd_atomic == 0 {
        return Err(Fault::read(Cause::RDMAP_ACCESS));
    }
    // No code of the RFC says this.
    let misaligned = Fault::read(Cause::RDMAP_OPERATION);
    if !request.offset.is_multiple_of(8) {
        return Err(misaligned);
    }
    let (key, at, need) = (request.stag.value(), request.offset, Access::REMOTE_ATOMIC);
    let found = ends.mrs.find(ends.pin, key, at, 8, ends.who(), need);
    let span = found.ok_or_else(|| Fault::read(read_cause(refused(ends))))?;
    // The offset is aligned, but the region may map it to memory that is not, or to two pieces.
    let word = span.window().and_then(Window::word).ok_or(misaligned)?;
    let original = match request.operation {
        AtomicOperation::FetchAdd { add, mask: 0 } => word.fetch_add(add),
        AtomicOperation::FetchAdd { add, mask } => word.masked_fetch_add(add, mask),
        AtomicOperation::CmpSwap {
            swap,
            swap_mask: u64::MAX,
            compare,
            compare_mask: u64::MAX,
        } => word.compare_swap(compare, swap),
        AtomicOperation::CmpSwap {
            swap,
            swap_mask,
            compare,
            compare_mask,
        } => word.masked_compare_swap((compare, compare_mask), (swap, swap_mask)),
    };
    original.map_err(|unmapped| Fault::read(read_cause(unmapped.into())))
}

/// Whether it looks at some bits only, or at several numbers.
fn is_masked(operation: &AtomicOperation) -> bool {
    match *operation {
        AtomicOperation::FetchAdd { mask, .. } => mask != 0,
        AtomicOperation::CmpSwap {
            swap_mask,
            compare_mask,
            ..
        } => swap_mask & compare_mask != u64::MAX,
    }
}
