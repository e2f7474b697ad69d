//! Posting of work requests.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use verbs_abi as abi;
use verbs_abi::opcode;
use verbs_core::{Binding, Dest, Payload, Remote, SendFlags, SendOp, SendWr, Sge, WindowType};

use super::memory::Mr;
use super::{Ah, Mw, Qp, Srq, check};

pub(super) type PostSend =
    unsafe extern "C" fn(*mut abi::Qp, *const abi::SendWr, *mut *const abi::SendWr) -> c_int;
pub(super) type PostRecv<T> = abi::PostRecv<T>;

/// Work requests that are posted with one doorbell.
pub(crate) const BATCH: usize = 16;

/// A work request and what belongs to it: the piece for its inline bytes.
struct Built {
    wr: abi::SendWr,
    inline: abi::Sge,
}

/// The datagram's address and keys.
pub(crate) struct To<'a> {
    pub(crate) ah: &'a Ah,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

impl Qp {
    /// Posts one work request.
    #[inline]
    pub(crate) fn post_send(&self, wr: &SendWr<'_>, to: Option<To<'_>>) -> Result<(), Errno> {
        let mut built = Built::new();
        built.fill(wr, to).ok_or(Errno::OPNOTSUPP)?;
        let built = &raw mut built;
        let mut bad = null();
        // SAFETY: the queue pair exists; work request, list and inline bytes are read during the call, in which they
        // are not moved. Memory is accessed by keys, which the device checks.
        check(unsafe {
            Built::link(built);
            (self.post_send)(self.raw.as_ptr(), &raw const (*built).wr, &mut bad)
        })
    }

    /// Posts several with one doorbell, [`BATCH`] at most. An error carries the number of those that were posted.
    pub(crate) fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, Errno)> {
        let mut built = ArrayVec::<Built, BATCH>::new();
        for (n, wr) in wrs.iter().take(BATCH).enumerate() {
            let mut one = Built::new();
            one.fill(wr, None).ok_or((n, Errno::OPNOTSUPP))?;
            built.push(one);
        }
        let Some(last) = built.len().checked_sub(1) else {
            return Ok(());
        };
        let first = built.as_mut_ptr();
        for n in 0..=last {
            // SAFETY: there are that many, and they are not moved until the call is over.
            unsafe {
                let one = first.add(n);
                Built::link(one);
                if n < last {
                    (*one).wr.next = &raw const (*first.add(n + 1)).wr;
                }
            }
        }
        let mut bad = null();
        // SAFETY: as for one; the list ends with a null pointer.
        let code = unsafe { (self.post_send)(self.raw.as_ptr(), &raw const (*first).wr, &mut bad) };
        check(code).map_err(|errno| {
            let posted = built.iter().position(|one| std::ptr::eq(&one.wr, bad));
            (posted.unwrap_or(0), errno)
        })
    }

    /// Posts one receive.
    #[inline]
    pub(crate) fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        // SAFETY: the queue pair exists.
        unsafe { receive(self.raw.as_ptr(), self.post_recv, wr_id, sges) }
    }
}

/// A window, and what it is to be bound to.
pub(crate) struct Bind<'a> {
    pub(crate) mw: &'a Mw,
    /// The region; to unbind a window of type 1, by a length of 0, the one that it is bound to.
    pub(crate) mr: &'a Mr,
    pub(crate) window_type: WindowType,
    pub(crate) what: &'a Binding,
}

impl Qp {
    /// Posts the bind of a window. The caller has the lock of the window.
    pub(crate) fn bind(&self, wr_id: u64, flags: SendFlags, bind: Bind<'_>) -> Result<(), Errno> {
        let (mw, what) = (bind.mw.raw.as_ptr(), bind.what);
        let bind_info = abi::MwBindInfo {
            mr: bind.mr.raw.as_ptr(),
            addr: what.addr,
            length: what.len,
            mw_access_flags: what.access.bits(),
        };
        // SAFETY: the window exists, and the caller has its lock. Drivers take its current key from here: that of the
        // last bind that was posted, which the handle has, whether or not its completion was an error.
        unsafe { (*mw).rkey = what.mw.value() };
        if bind.window_type == WindowType::One {
            let mut bind = abi::MwBind {
                wr_id,
                send_flags: flags.bits(),
                bind_info,
            };
            // SAFETY: the context is open, its table does not change.
            let call = unsafe { (*self.context.raw.as_ptr()).ops.bind_mw };
            let call = call.ok_or(Errno::OPNOTSUPP)?;
            // SAFETY: all objects exist, the arguments are read during the call.
            return check(unsafe { call(self.raw.as_ptr(), mw, &mut bind) });
        }
        let mut built = Built::new();
        let wr = &mut built.wr;
        (wr.wr_id, wr.send_flags) = (wr_id, flags.bits());
        wr.opcode = opcode::BIND_MW;
        wr.bind_mw = abi::SendBind {
            mw,
            rkey: what.rkey.value(),
            bind_info,
        };
        let mut bad = null();
        // SAFETY: as above.
        check(unsafe { (self.post_send)(self.raw.as_ptr(), &built.wr, &mut bad) })
    }
}

impl Srq {
    /// Posts one receive.
    #[inline]
    pub(crate) fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        // SAFETY: the queue exists.
        unsafe { receive(self.raw.as_ptr(), self.post, wr_id, sges) }
    }
}

/// Posts a receive to a queue.
///
/// # Safety
/// The queue exists, and `post` is its function.
#[inline]
unsafe fn receive<T>(
    queue: *mut T,
    post: PostRecv<T>,
    wr_id: u64,
    sges: &[Sge],
) -> Result<(), Errno> {
    let wr = abi::RecvWr {
        wr_id,
        next: null(),
        sg_list: sges.as_ptr().cast(),
        num_sge: sges.len() as c_int,
    };
    let mut bad = null();
    // SAFETY: the caller guarantees the queue; work request and list, whose elements are laid out as `ibv_sge`, are
    // read during the call.
    check(unsafe { post(queue, &wr, &mut bad) })
}

impl Built {
    #[inline(always)]
    fn new() -> Self {
        // SAFETY: all fields are numbers and pointers, for which zero is valid.
        unsafe { zeroed() }
    }

    /// Fills in the C work request; `None` for operations that `ibv_post_send` does not have.
    #[inline(always)]
    fn fill(&mut self, wr: &SendWr<'_>, to: Option<To<'_>>) -> Option<()> {
        let c = &mut self.wr;
        c.wr_id = wr.wr_id;
        // With this flag C reads the bytes that pieces name without checking a key: it is set for inline bytes only.
        c.send_flags = (wr.flags - SendFlags::INLINE).bits();
        match &wr.payload {
            Payload::One(sge) => {
                c.sg_list = std::ptr::from_ref(sge).cast();
                c.num_sge = 1;
            }
            Payload::List(sges) => {
                c.sg_list = sges.as_ptr().cast();
                c.num_sge = sges.len() as c_int;
            }
            Payload::Inline(bytes) => {
                self.inline.addr = bytes.as_ptr().expose_provenance() as u64;
                self.inline.length = bytes.len() as u32;
                c.send_flags |= SendFlags::INLINE.bits();
                c.num_sge = 1;
            }
        }
        if let Some(To { ah, qpn, qkey }) = to {
            c.wr.ud = abi::Ud {
                ah: ah.raw.as_ptr(),
                remote_qpn: qpn,
                remote_qkey: qkey,
            };
        }
        if let Dest::Srq(srqn) = wr.dest {
            c.remote_srqn = srqn.value();
        }
        operation(c, wr.op)
    }

    /// Points it at its own inline piece, if it has inline bytes.
    ///
    /// # Safety
    /// It is not moved until it has been posted.
    #[inline(always)]
    unsafe fn link(this: *mut Self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if (*this).wr.send_flags & SendFlags::INLINE.bits() != 0 {
                (*this).wr.sg_list = &raw const (*this).inline;
            }
        }
    }
}

/// Fills in the operands of the operation.
#[inline(always)]
fn operation(c: &mut abi::SendWr, op: SendOp) -> Option<()> {
    let rdma = |Remote { addr, rkey }| abi::Rdma {
        remote_addr: addr,
        rkey: rkey.value(),
    };
    let atomic = |remote: Remote, compare_add, swap| abi::Atomic {
        remote_addr: remote.addr,
        compare_add,
        swap,
        rkey: remote.rkey.value(),
    };
    let opcode = match op {
        SendOp::Send => opcode::SEND,
        SendOp::SendWithImm(imm) => {
            c.imm_or_key = imm.to_be();
            opcode::SEND_WITH_IMM
        }
        SendOp::SendWithInv(key) => {
            c.imm_or_key = key.value();
            opcode::SEND_WITH_INV
        }
        SendOp::Write(to) => {
            c.wr.rdma = rdma(to);
            opcode::RDMA_WRITE
        }
        SendOp::WriteWithImm(to, imm) => {
            c.wr.rdma = rdma(to);
            c.imm_or_key = imm.to_be();
            opcode::RDMA_WRITE_WITH_IMM
        }
        SendOp::Read(from) => {
            c.wr.rdma = rdma(from);
            opcode::RDMA_READ
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            c.wr.atomic = atomic(remote, compare, swap);
            opcode::ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { remote, add } => {
            c.wr.atomic = atomic(remote, add, 0);
            opcode::ATOMIC_FETCH_AND_ADD
        }
        SendOp::LocalInv(key) => {
            c.imm_or_key = key.value();
            opcode::LOCAL_INV
        }
        _ => return None,
    };
    c.opcode = opcode;
    Some(())
}
