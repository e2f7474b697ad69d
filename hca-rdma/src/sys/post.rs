//! What is posted.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use verbs_abi as abi;
use verbs_abi::opcode;
use verbs_core::{Payload, Remote, SendFlags, SendOp, SendWr, Sge};

use super::{Ah, Qp, Srq, check};

pub(super) type PostSend =
    unsafe extern "C" fn(*mut abi::Qp, *const abi::SendWr, *mut *const abi::SendWr) -> c_int;
pub(super) type PostRecv<T> = abi::PostRecv<T>;

/// Work requests that are posted with one doorbell.
pub(crate) const BATCH: usize = 16;

/// A work request and what it needs besides: the piece that stands for inline bytes.
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
        // SAFETY: the queue pair is there; work request, list and inline bytes are read during the call, in which they stay
        // where they are. Memory is reached by keys, which the device checks.
        check(unsafe {
            Built::link(built);
            (self.post_send)(self.raw.as_ptr(), &raw const (*built).wr, &mut bad)
        })
    }

    /// Posts several with one doorbell, [`BATCH`] at most. An error comes with the number of those that were posted.
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
            // SAFETY: there are so many, which stay where they are until the call is over.
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
        // SAFETY: the queue pair is there.
        unsafe { receive(self.raw.as_ptr(), self.post_recv, wr_id, sges) }
    }
}

impl Srq {
    /// Posts one receive.
    #[inline]
    pub(crate) fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        // SAFETY: the queue is there.
        unsafe { receive(self.raw.as_ptr(), self.post, wr_id, sges) }
    }
}

/// Posts a receive to a queue.
///
/// # Safety
/// The queue is there, and `post` is its function.
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
    // SAFETY: the caller's word for the queue; work request and list, whose elements are laid out as `ibv_sge`, are read
    // during the call.
    check(unsafe { post(queue, &wr, &mut bad) })
}

impl Built {
    #[inline(always)]
    fn new() -> Self {
        // SAFETY: all of it are numbers and pointers, which zero is one of.
        unsafe { zeroed() }
    }

    /// Fills in the work request as C has it; `None` for operations that `ibv_post_send` has not.
    #[inline(always)]
    fn fill(&mut self, wr: &SendWr<'_>, to: Option<To<'_>>) -> Option<()> {
        let c = &mut self.wr;
        c.wr_id = wr.wr_id;
        // With this flag C reads the bytes that pieces name without asking for a key: it stands for inline bytes only.
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
        operation(c, wr.op)
    }

    /// Has it point at its own inline piece, if it has inline bytes.
    ///
    /// # Safety
    /// It stays where it is until it has been posted.
    #[inline(always)]
    unsafe fn link(this: *mut Self) {
        // SAFETY: the caller's word.
        unsafe {
            if (*this).wr.send_flags & SendFlags::INLINE.bits() != 0 {
                (*this).wr.sg_list = &raw const (*this).inline;
            }
        }
    }
}

/// Fills in what the operation is about.
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
        _ => return None,
    };
    c.opcode = opcode;
    Some(())
}
