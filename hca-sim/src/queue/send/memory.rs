//! The words of work requests of the memory management extensions.

use verbs_core::{
    Access, Binding, FlushRange, LKey, Placement, RKey, Registration, Remote, SendOp,
};

use super::op;

/// Operation, remote memory, a key or number of 32 bits, and four words.
type Words = (u64, Remote, u32, u64, u64, u64, u64);

/// In the second word of a FLUSH: all of the region.
const REGION: u64 = 1 << 32;

/// The words of such a work request.
pub(super) fn write(wr: &SendOp) -> Option<Words> {
    Some(match *wr {
        SendOp::MaskedCompareSwap {
            remote,
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => (
            op::MASKED_COMPARE_SWAP,
            remote,
            0,
            compare,
            swap,
            compare_mask,
            swap_mask,
        ),
        SendOp::MaskedFetchAdd {
            remote,
            add,
            boundary,
        } => (op::MASKED_FETCH_ADD, remote, 0, add, boundary, 0, 0),
        SendOp::AtomicWrite(to) => (op::ATOMIC_WRITE, to, 0, 0, 0, 0, 0),
        SendOp::ReadWithInv(from) => (op::READ_INV, from, 0, 0, 0, 0, 0),
        SendOp::Flush(what) => {
            let len = what.len.map_or(REGION, u64::from);
            let placement = u32::from(what.placement.bits());
            (op::FLUSH, what.remote, placement, len, 0, 0, 0)
        }
        SendOp::LocalInv(key) => (op::LOCAL_INV, Remote::default(), key.value(), 0, 0, 0, 0),
        SendOp::RegMr(what) => {
            let place = Remote {
                addr: what.iova,
                rkey: RKey::new(what.key.value()),
            };
            let access = u64::from(what.access.bits());
            (op::REG_MR, place, what.mapping, access, 0, 0, 0)
        }
        SendOp::BindMw(what) => {
            let place = Remote {
                addr: what.addr,
                rkey: what.rkey,
            };
            let (lkey, access) = (u64::from(what.lkey.value()), u64::from(what.access.bits()));
            (
                op::BIND_MW,
                place,
                what.mw.value(),
                lkey,
                access,
                what.len,
                0,
            )
        }
        _ => return None,
    })
}

/// The work request of these words.
pub(super) fn read(operation: u64, remote: Remote, low: u32, [a, b, c, d]: [u64; 4]) -> SendOp {
    match operation {
        op::MASKED_COMPARE_SWAP => SendOp::MaskedCompareSwap {
            remote,
            compare: a,
            swap: b,
            compare_mask: c,
            swap_mask: d,
        },
        op::MASKED_FETCH_ADD => SendOp::MaskedFetchAdd {
            remote,
            add: a,
            boundary: b,
        },
        op::ATOMIC_WRITE => SendOp::AtomicWrite(remote),
        op::READ_INV => SendOp::ReadWithInv(remote),
        op::FLUSH => SendOp::Flush(FlushRange {
            remote,
            len: (a & REGION == 0).then_some(a as u32),
            placement: Placement::from_bits_truncate(low as u8),
        }),
        op::LOCAL_INV => SendOp::LocalInv(RKey::new(low)),
        op::REG_MR => SendOp::RegMr(Registration {
            key: LKey::new(remote.rkey.value()),
            access: Access::from_bits_retain(a as u32),
            iova: remote.addr,
            mapping: low,
        }),
        op::BIND_MW => SendOp::BindMw(Binding {
            mw: RKey::new(low),
            rkey: remote.rkey,
            lkey: LKey::new(a as u32),
            access: Access::from_bits_retain(b as u32),
            addr: remote.addr,
            len: c,
        }),
        _ => SendOp::Send,
    }
}
