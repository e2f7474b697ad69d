//! Posting: called through pointers, without any lookup.

use std::ffi::c_int;

use verbs_abi::{self as abi, MwBind, MwBindInfo, RecvWr, SendWr, opcode};
use verbs_core::{
    Access, Binding, Datagram, Dest, LKey, Payload, QKey, QpType, Qpn, RKey, Remote, SendFlags,
    SendOp, Sge, Srqn,
};

use super::pair::Qp;
use crate::call::live::look;
use crate::call::{Errno, caught, code};
use crate::memory::Mw;
use crate::qp::ah::Ah;
use crate::srq::recv::{aligned, answer, bytes, is_aligned, pieces, post_copied, receives};

/// Storage that a work request needs while it is posted.
struct Beside {
    datagram: Option<Datagram>,
    /// Inline bytes of several pieces.
    inline: Vec<u8>,
}

/// The operation of a send.
///
/// # Safety
/// The work request names valid memory and objects of the program.
#[inline(always)]
unsafe fn op_of(wr: &SendWr) -> Result<SendOp, Errno> {
    // SAFETY: the opcode selects the valid operands; all bit patterns of them are values.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = Remote {
        addr: rdma.remote_addr,
        rkey: RKey::new(rdma.rkey),
    };
    let word = Remote {
        addr: atomic.remote_addr,
        rkey: RKey::new(atomic.rkey),
    };
    let imm = u32::from_be(wr.imm_or_key);
    let key = RKey::new(wr.imm_or_key);
    Ok(match wr.opcode {
        opcode::SEND => SendOp::Send,
        opcode::SEND_WITH_IMM => SendOp::SendWithImm(imm),
        opcode::SEND_WITH_INV => SendOp::SendWithInv(key),
        opcode::RDMA_WRITE => SendOp::Write(remote),
        opcode::RDMA_WRITE_WITH_IMM => SendOp::WriteWithImm(remote, imm),
        opcode::RDMA_READ => SendOp::Read(remote),
        opcode::ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote: word,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        opcode::ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            remote: word,
            add: atomic.compare_add,
        },
        opcode::ATOMIC_WRITE => SendOp::AtomicWrite(remote),
        opcode::LOCAL_INV => SendOp::LocalInv(key),
        opcode::BIND_MW => {
            let bind = &wr.bind_mw;
            // SAFETY: guaranteed by the caller.
            SendOp::BindMw(unsafe { binding(bind.mw, RKey::new(bind.rkey), &bind.bind_info) }?)
        }
        _ => return Err(Errno::INVAL),
    })
}

/// The bind of a window to a part of a region, under that key.
///
/// # Safety
/// The program destroys neither now.
pub(super) unsafe fn binding(
    mw: *mut abi::Mw,
    rkey: RKey,
    info: &MwBindInfo,
) -> Result<Binding, Errno> {
    // SAFETY: guaranteed by the caller.
    let mw = unsafe { look::<Mw, _>(mw) }?;
    let lkey = match info.mr.is_null() {
        true => LKey::new(0),
        // SAFETY: guaranteed by the caller.
        false => LKey::new(unsafe { (*info.mr).lkey }),
    };
    Ok(Binding {
        mw: mw.rkey(),
        rkey,
        lkey,
        // Windows grant rights to peers; programs also pass local ones.
        access: Access::from_bits_retain(info.mw_access_flags) & Access::WINDOW,
        addr: info.addr,
        len: info.length,
    })
}

/// The destination of a datagram.
///
/// # Safety
/// A handle that the program does not destroy now.
#[inline(always)]
pub(super) unsafe fn datagram(ah: *const abi::Ah, qpn: u32, qkey: u32) -> Result<Datagram, Errno> {
    if ah.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    let av = unsafe { &*ah.cast::<Ah>() }.av();
    Ok(Datagram::new(av, Qpn::new(qpn), QKey(qkey)))
}

/// Whether its payload is in the program's own memory and is copied now.
#[inline(always)]
fn is_inline(wr: &SendWr) -> bool {
    wr.send_flags & SendFlags::INLINE.bits() != 0
        && matches!(
            wr.opcode,
            opcode::SEND
                | opcode::SEND_WITH_IMM
                | opcode::SEND_WITH_INV
                | opcode::RDMA_WRITE
                | opcode::RDMA_WRITE_WITH_IMM
                | opcode::ATOMIC_WRITE
        )
}

/// The bytes of a piece.
///
/// # Safety
/// As [`bytes`].
#[inline(always)]
unsafe fn piece<'a>(sge: &Sge) -> &'a [u8] {
    let at = std::ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: guaranteed by the caller.
    unsafe { bytes(at, sge.len as usize) }
}

/// The only piece of a work request, or its bytes if they are copied now.
///
/// # Safety
/// As [`bytes`].
#[inline(always)]
unsafe fn payload_of<'a>(wr: &SendWr, one: &Sge, flags: &mut SendFlags) -> Payload<'a> {
    if is_inline(wr) {
        // SAFETY: guaranteed by the caller.
        return Payload::Inline(unsafe { piece(one) });
    }
    flags.remove(SendFlags::INLINE);
    Payload::One(*one)
}

/// The work request in the device's form.
///
/// # Safety
/// The memory and the objects that the work request names belong to the program until the post returns.
#[inline(always)]
unsafe fn convert<'a>(
    qp: &Qp,
    wr: &SendWr,
    beside: &'a mut Beside,
) -> Result<verbs_core::SendWr<'a>, Errno> {
    // SAFETY: guaranteed by the caller.
    let (op, list) = unsafe { (op_of(wr)?, pieces(wr.sg_list, wr.num_sge)) };
    let mut flags = SendFlags::from_bits_truncate(wr.send_flags);
    let payload = match list {
        // SAFETY: guaranteed by the caller.
        [one] => unsafe { payload_of(wr, one, &mut flags) },
        list if is_inline(wr) => {
            for one in list {
                // SAFETY: guaranteed by the caller.
                beside.inline.extend_from_slice(unsafe { piece(one) });
            }
            Payload::Inline(&beside.inline)
        }
        list => {
            flags.remove(SendFlags::INLINE);
            Payload::List(list)
        }
    };
    let dest = match qp.qp_type() {
        QpType::Ud => {
            // SAFETY: for a queue pair for datagrams the union holds these operands.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: guaranteed by the caller.
            let to = unsafe { datagram(ud.ah, ud.remote_qpn, ud.remote_qkey) }?;
            Dest::Datagram(beside.datagram.insert(to))
        }
        QpType::XrcSend => Dest::Srq(Srqn::new(wr.remote_srqn)),
        _ => Dest::Peer,
    };
    Ok(verbs_core::SendWr {
        wr_id: wr.wr_id,
        op,
        flags,
        payload,
        dest,
    })
}

/// A window's key changes when the bind is posted.
///
/// # Safety
/// As [`convert`].
unsafe fn remember_bind(wr: &SendWr) {
    if wr.opcode == opcode::BIND_MW {
        // SAFETY: guaranteed by the caller.
        if let Ok(mw) = unsafe { look::<Mw, _>(wr.bind_mw.mw) } {
            mw.bound(RKey::new(wr.bind_mw.rkey));
        }
    }
}

/// `post_send`: stops at the first work request that is not accepted, and returns which.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    first: *const SendWr,
    bad: *mut *const SendWr,
) -> c_int {
    // SAFETY: a queue pair that the program does not destroy now, and its list.
    let plain = unsafe {
        let qp = &*qp.cast::<Qp>();
        let only = aligned(first).and_then(|wr| plain(qp, wr));
        only.map(|ours| (qp, ours))
    };
    let Some((qp, ours)) = plain else {
        // SAFETY: guaranteed by the caller.
        return unsafe { post_list(qp, first, bad) };
    };
    let posted = caught(|| Ok(qp.send.post(ours)?));
    // SAFETY: the program passes the place for the result.
    unsafe { answer(posted, bad, first) }
}

/// A work request alone that needs no storage beside it, in the device's form: a message, a WRITE or a READ of one
/// piece to the peer of the connection.
///
/// # Safety
/// As [`convert`].
#[inline(always)]
unsafe fn plain<'a>(qp: &Qp, wr: &SendWr) -> Option<verbs_core::SendWr<'a>> {
    if !wr.next.is_null() || wr.num_sge != 1 || !matches!(qp.qp_type(), QpType::Rc | QpType::Uc) {
        return None;
    }
    let is_plain = matches!(
        wr.opcode,
        opcode::SEND | opcode::RDMA_WRITE | opcode::RDMA_READ
    );
    if !is_plain {
        return None;
    }
    let mut flags = SendFlags::from_bits_truncate(wr.send_flags);
    // SAFETY: guaranteed by the caller: the list has one entry, laid out alike.
    let (op, payload) = unsafe {
        let one = &*wr.sg_list.cast::<Sge>();
        (op_of(wr).ok()?, payload_of(wr, one, &mut flags))
    };
    Some(verbs_core::SendWr {
        wr_id: wr.wr_id,
        op,
        flags,
        payload,
        dest: Dest::Peer,
    })
}

/// Posts a list of any work requests; apart because most are [`plain`].
///
/// # Safety
/// As [`post_send`].
#[inline(never)]
unsafe fn post_list(qp: *mut abi::Qp, first: *const SendWr, bad: *mut *const SendWr) -> c_int {
    // SAFETY: guaranteed by the caller.
    if !unsafe { is_aligned(first) } {
        // SAFETY: an aligned copy of what the program passes; that, and the place.
        return unsafe { post_copied(first, bad, |first, bad| post_list(qp, first, bad)) };
    }
    let mut next = first;
    let posted = caught(|| {
        // SAFETY: a queue pair that the program does not destroy now.
        let qp = unsafe { &*qp.cast::<Qp>() };
        // SAFETY: the program's list, until NULL.
        while let Some(wr) = unsafe { next.as_ref() } {
            let mut beside = Beside {
                datagram: None,
                inline: Vec::new(),
            };
            // SAFETY: the memory and the objects that it names belong to the program.
            let ours = unsafe { convert(qp, wr, &mut beside) }?;
            qp.send.post(ours)?;
            // SAFETY: as above.
            unsafe { remember_bind(wr) };
            next = wr.next;
        }
        Ok(())
    });
    // SAFETY: the program passes the place for the result.
    unsafe { answer(posted, bad, next) }
}

/// `ibv_bind_mw`, for a window of type 1: its key is the next one.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut abi::Qp,
    mw: *mut abi::Mw,
    bind: *mut MwBind,
) -> c_int {
    code(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (qp, bind) = unsafe { (look::<Qp, _>(qp)?, bind.as_ref().ok_or(Errno::INVAL)?) };
        // SAFETY: as above.
        let window = unsafe { look::<Mw, _>(mw) }?;
        let rkey = window.rkey().next();
        // SAFETY: as above.
        let op = SendOp::BindMw(unsafe { binding(mw, rkey, &bind.bind_info) }?);
        qp.send.post(verbs_core::SendWr {
            wr_id: bind.wr_id,
            op,
            flags: SendFlags::from_bits_truncate(bind.send_flags).difference(SendFlags::INLINE),
            payload: Payload::List(&[]),
            dest: Dest::Peer,
        })?;
        window.bound(rkey);
        Ok(())
    })
}

/// `post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    first: *const RecvWr,
    bad: *mut *const RecvWr,
) -> c_int {
    // SAFETY: a queue pair that the program does not destroy now, and its list.
    unsafe {
        let qp = &*qp.cast::<Qp>();
        receives(
            first,
            bad,
            |one| Ok(qp.recv.post(one)?),
            |some| qp.recv.post_batch(some),
        )
    }
}
