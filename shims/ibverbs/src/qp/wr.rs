//! Work requests that are built by calls: `ibv_wr_start`, one call for the operation, others for its address and its
//! data, and `ibv_wr_complete`, which posts all of them.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use parking_lot::lock_api::RawMutex as _;
use verbs_abi::{self as abi, Ah, DataBuf, MwBindInfo, QpEx, QpExOps};
use verbs_core::wr::Placement;
use verbs_core::{Access, FlushRange, LKey, QpType, RKey, Remote, SendFlags, SendOp, Sge, Srqn};

use super::building::{Building, Built, Data, One, To};
use super::pair::Qp;
use super::post::{binding, datagram};
use crate::call::live::look;
use crate::call::{Errno, caught, set_errno};
use crate::srq::recv::bytes;

/// `ibv_qp_create_send_ops_flags`, and the types of queue pair that have the operation (IBTA vol. 1, table 48).
pub(super) mod send_ops {
    use verbs_core::QpType;

    pub(super) const RDMA_WRITE: u64 = 1;
    pub(super) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(super) const SEND: u64 = 1 << 2;
    pub(super) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(super) const RDMA_READ: u64 = 1 << 4;
    pub(super) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(super) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(super) const LOCAL_INV: u64 = 1 << 7;
    pub(super) const BIND_MW: u64 = 1 << 8;
    pub(super) const SEND_WITH_INV: u64 = 1 << 9;
    pub(super) const FLUSH: u64 = 1 << 11;
    pub(in crate::qp) const ATOMIC_WRITE: u64 = 1 << 12;

    const DATAGRAM: u64 = SEND | SEND_WITH_IMM;
    const UNRELIABLE: u64 =
        DATAGRAM | RDMA_WRITE | RDMA_WRITE_WITH_IMM | BIND_MW | LOCAL_INV | SEND_WITH_INV;
    const RELIABLE: u64 =
        UNRELIABLE | RDMA_READ | ATOMIC_CMP_AND_SWP | ATOMIC_FETCH_AND_ADD | FLUSH | ATOMIC_WRITE;

    pub(super) const fn of(qp_type: QpType) -> u64 {
        match qp_type {
            QpType::Rc | QpType::XrcSend => RELIABLE,
            QpType::Uc => UNRELIABLE,
            QpType::Ud => DATAGRAM,
            _ => 0,
        }
    }
}

/// The functions for a queue pair of that type with these operations.
pub(super) fn ops(qp_type: QpType, wanted: u64) -> Result<QpExOps, Errno> {
    if wanted & !send_ops::of(qp_type) != 0 {
        return Err(Errno::NOTSUP);
    }
    macro_rules! if_wanted {
        ($($field:ident : $bit:ident,)*) => {
            QpExOps {
                $($field: (wanted & send_ops::$bit != 0).then_some($field),)*
                wr_set_ud_addr: (qp_type == QpType::Ud).then_some(wr_set_ud_addr),
                wr_set_xrc_srqn: (qp_type == QpType::XrcSend).then_some(wr_set_xrc_srqn),
                wr_set_inline_data: Some(wr_set_inline_data),
                wr_set_inline_data_list: Some(wr_set_inline_data_list),
                wr_set_sge: Some(wr_set_sge),
                wr_set_sge_list: Some(wr_set_sge_list),
                wr_start: Some(wr_start),
                wr_complete: Some(wr_complete),
                wr_abort: Some(wr_abort),
                ..QpExOps::default()
            }
        };
    }
    Ok(if_wanted! {
        wr_rdma_write: RDMA_WRITE,
        wr_rdma_write_imm: RDMA_WRITE_WITH_IMM,
        wr_send: SEND,
        wr_send_imm: SEND_WITH_IMM,
        wr_rdma_read: RDMA_READ,
        wr_atomic_cmp_swp: ATOMIC_CMP_AND_SWP,
        wr_atomic_fetch_add: ATOMIC_FETCH_AND_ADD,
        wr_local_inv: LOCAL_INV,
        wr_bind_mw: BIND_MW,
        wr_send_inv: SEND_WITH_INV,
        wr_atomic_write: ATOMIC_WRITE,
        wr_flush: FLUSH,
    })
}

/// `ibv_qp_to_qp_ex`: NULL for a queue pair that was not created with operations.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut abi::Qp) -> *mut QpEx {
    // SAFETY: the program does not destroy it now.
    match unsafe { look::<Qp, _>(qp) } {
        Ok(Qp {
            building: Some(_), ..
        }) => qp.cast(),
        _ => {
            set_errno(Errno::NOTSUP);
            null_mut()
        }
    }
}

/// The queue pair and the work requests that are being built on it.
///
/// # Safety
/// A queue pair that has these functions, between start and end, on the thread that has started.
unsafe fn building<'a>(qp: *mut QpEx) -> (&'a Qp, &'a Building, &'a mut Built) {
    // SAFETY: guaranteed by the caller; only queue pairs with a builder have these functions.
    unsafe {
        let owner = &*qp.cast::<Qp>();
        let Some(building) = &owner.building else {
            unreachable!("a queue pair with these functions builds work requests")
        };
        (owner, building, &mut *building.built.get())
    }
}

unsafe extern "C" fn wr_start(qp: *mut QpEx) {
    // SAFETY: a queue pair that the program does not destroy now.
    unsafe {
        let owner = &*qp.cast::<Qp>();
        if let Some(building) = &owner.building {
            building.lock.lock();
        }
        building(qp).2.clear();
    }
}

unsafe extern "C" fn wr_abort(qp: *mut QpEx) {
    // SAFETY: after wr_start on this thread.
    unsafe { building(qp).1.lock.unlock() }
}

unsafe extern "C" fn wr_complete(qp: *mut QpEx) -> c_int {
    // SAFETY: after wr_start on this thread.
    let (owner, building, built) = unsafe { building(qp) };
    let posted = caught(|| built.post(&owner.send));
    // SAFETY: as above.
    unsafe { building.lock.unlock() }
    posted.map_or_else(|errno| errno.0, |()| 0)
}

/// Begins the next work request.
///
/// # Safety
/// As [`building`].
unsafe fn begin<'a>(qp: *mut QpEx, op: SendOp) -> (&'a Building, &'a mut Built) {
    // SAFETY: guaranteed by the caller; the program has set the fields before.
    let ((_, building, built), wr_id, flags) =
        unsafe { (building(qp), (*qp).wr_id, (*qp).wr_flags) };
    let end = built.sges.len();
    built.wrs.push(One {
        wr_id,
        op,
        flags: SendFlags::from_bits_truncate(flags),
        data: Data::Sges(end..end),
        to: To::Peer,
        mw: null_mut(),
    });
    (building, built)
}

fn remote(rkey: u32, addr: u64) -> Remote {
    let rkey = RKey::new(rkey);
    Remote { addr, rkey }
}

macro_rules! begins {
    ($($name:ident($($arg:ident : $Type:ty),*) => $op:expr;)*) => { $(
        unsafe extern "C" fn $name(qp: *mut QpEx, $($arg: $Type),*) {
            // SAFETY: after wr_start on this thread.
            unsafe { begin(qp, $op) };
        }
    )* };
}

begins! {
    wr_send() => SendOp::Send;
    wr_send_imm(imm: u32) => SendOp::SendWithImm(u32::from_be(imm));
    wr_send_inv(key: u32) => SendOp::SendWithInv(RKey::new(key));
    wr_local_inv(key: u32) => SendOp::LocalInv(RKey::new(key));
    wr_rdma_read(rkey: u32, addr: u64) => SendOp::Read(remote(rkey, addr));
    wr_rdma_write(rkey: u32, addr: u64) => SendOp::Write(remote(rkey, addr));
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) => SendOp::WriteWithImm(remote(rkey, addr), u32::from_be(imm));
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) => SendOp::CompareSwap {
        remote: remote(rkey, addr),
        compare,
        swap,
    };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) => SendOp::FetchAdd { remote: remote(rkey, addr), add };
}

/// `wr_atomic_write`: the 8 bytes are copied now.
unsafe extern "C" fn wr_atomic_write(qp: *mut QpEx, rkey: u32, addr: u64, value: *const c_void) {
    // SAFETY: after wr_start on this thread; the program passes 8 bytes.
    unsafe {
        let (_, built) = begin(qp, SendOp::AtomicWrite(remote(rkey, addr)));
        built.inline([bytes(value, 8)], 8);
    }
}

/// The types are `ibv_placement_type`, the levels `ibv_selectivity_level`.
unsafe extern "C" fn wr_flush(
    qp: *mut QpEx,
    rkey: u32,
    addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    const RANGE: u8 = 0;
    const MR: u8 = 1;
    let len = match level {
        RANGE => u32::try_from(len).map(Some).map_err(|_| Errno::INVAL),
        MR => Ok(None),
        _ => Err(Errno::INVAL),
    };
    let wanted = Placement::from_bits(placement).ok_or(Errno::INVAL);
    let op = SendOp::Flush(FlushRange {
        remote: remote(rkey, addr),
        len: len.unwrap_or_default(),
        placement: wanted.unwrap_or_default(),
    });
    // SAFETY: after wr_start on this thread.
    let (_, built) = unsafe { begin(qp, op) };
    if let Some(errno) = len.err().or(wanted.err()) {
        built.wrong.get_or_insert(errno);
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut QpEx,
    mw: *mut abi::Mw,
    rkey: u32,
    info: *const MwBindInfo,
) {
    let rkey = RKey::new(rkey);
    // SAFETY: after wr_start on this thread; the program destroys neither now.
    unsafe {
        let what = info.as_ref().ok_or(Errno::INVAL);
        let what = what.and_then(|info| binding(mw, rkey, info));
        let op = SendOp::BindMw(what.unwrap_or(verbs_core::Binding {
            mw: rkey,
            rkey,
            lkey: LKey::default(),
            access: Access::empty(),
            addr: 0,
            len: 0,
        }));
        let (_, built) = begin(qp, op);
        if let Err(errno) = what {
            built.wrong.get_or_insert(errno);
        }
        if let Some(one) = built.wrs.last_mut() {
            one.mw = mw;
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut QpEx, ah: *mut Ah, qpn: u32, qkey: u32) {
    // SAFETY: after wr_start on this thread; a handle that is not destroyed now.
    let (built, to) = unsafe { (building(qp).2, datagram(ah, qpn, qkey)) };
    match to {
        Ok(to) => {
            if let Some(one) = built.last() {
                one.to = To::Datagram(to);
            }
        }
        Err(errno) => {
            built.wrong.get_or_insert(errno);
        }
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut QpEx, srqn: u32) {
    // SAFETY: after wr_start on this thread.
    if let Some(one) = unsafe { building(qp) }.2.last() {
        one.to = To::Srq(Srqn::new(srqn));
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut QpEx, lkey: u32, addr: u64, len: u32) {
    let lkey = LKey::new(lkey);
    // SAFETY: after wr_start on this thread.
    unsafe { building(qp) }.2.gather(&[Sge { addr, len, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut QpEx, count: usize, list: *const abi::Sge) {
    // SAFETY: after wr_start on this thread; the program passes that many entries, laid out like this library's.
    unsafe {
        let one = building(qp).2;
        match count {
            0 => one.gather(&[]),
            count if list.is_aligned() => {
                one.gather(std::slice::from_raw_parts(list.cast::<Sge>(), count));
            }
            count => {
                let list = list.cast::<Sge>();
                let pieces: Vec<_> = (0..count).map(|n| list.add(n).read_unaligned()).collect();
                one.gather(&pieces);
            }
        }
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut QpEx, addr: *const c_void, length: usize) {
    // SAFETY: after wr_start on this thread; the program passes the bytes.
    unsafe {
        let (_, building, built) = building(qp);
        built.inline([bytes(addr, length)], building.inline_max);
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    // SAFETY: after wr_start on this thread; the program passes that many buffers.
    unsafe {
        let (_, building, built) = building(qp);
        let pieces = (0..count).map(|n| {
            let buffer = list.add(n).read_unaligned();
            bytes(buffer.addr, buffer.length)
        });
        built.inline(pieces, building.inline_max);
    }
}
