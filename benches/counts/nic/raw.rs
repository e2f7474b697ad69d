//! Posting and polling as a C program does it: through the pointers of the context, into structures of the caller's.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::mem::zeroed;
use std::path::Path;
use std::ptr::{NonNull, null};

use hca_rdma::RdmaCore;
use verbs_abi as abi;
use verbs_core::{Remote, SendFlags, Sge};

/// Our own libraries, in that folder.
pub(super) fn load(folder: &Path) -> RdmaCore {
    // SAFETY: cargo has built them with this bench, for the ABI of rdma-core, and no other program writes to its folder.
    let loaded = unsafe { RdmaCore::load_from(folder) };
    loaded.expect("our library")
}

/// A queue pair, with its functions.
pub(crate) struct RawQp {
    qp: *mut abi::Qp,
    post_send:
        unsafe extern "C" fn(*mut abi::Qp, *const abi::SendWr, *mut *const abi::SendWr) -> c_int,
    post_recv: abi::PostRecv<abi::Qp>,
}

/// A completion queue, with its function.
pub(crate) struct RawCq {
    cq: *mut abi::Cq,
    poll: unsafe extern "C" fn(*mut abi::Cq, c_int, *mut abi::Wc) -> c_int,
}

impl RawQp {
    pub(crate) fn new(qp: NonNull<c_void>) -> Self {
        let qp = qp.as_ptr().cast::<abi::Qp>();
        // SAFETY: the queue pair exists, and its context as long.
        let ops = unsafe { &(*(*qp).context).ops };
        Self {
            qp,
            post_send: ops.post_send.expect("every driver has it"),
            post_recv: ops.post_recv.expect("every driver has it"),
        }
    }

    #[inline(always)]
    fn send(&self, wr: &abi::SendWr) {
        let mut bad = null();
        // SAFETY: the queue pair exists, the work request is read during the call.
        let code = unsafe { (self.post_send)(self.qp, wr, &mut bad) };
        assert_eq!(code, 0);
    }

    /// Posts a signaled WRITE of one piece.
    #[inline(always)]
    pub(crate) fn post_write(&self, wr_id: u64, sge: &Sge, to: Remote) {
        let mut wr = work(wr_id, sge, abi::opcode::RDMA_WRITE);
        wr.wr.rdma = abi::Rdma {
            remote_addr: to.addr,
            rkey: to.rkey.value(),
        };
        self.send(&wr);
    }

    /// Posts a signaled SEND of one piece.
    #[inline(always)]
    pub(crate) fn post_send(&self, wr_id: u64, sge: &Sge) {
        self.send(&work(wr_id, sge, abi::opcode::SEND));
    }

    /// Posts a receive of one piece.
    #[inline(always)]
    pub(crate) fn post_recv(&self, wr_id: u64, sge: &Sge) {
        let wr = abi::RecvWr {
            wr_id,
            next: null(),
            sg_list: std::ptr::from_ref(sge).cast(),
            num_sge: 1,
        };
        let mut bad = null();
        // SAFETY: the queue pair exists, the work request is read during the call.
        let code = unsafe { (self.post_recv)(self.qp, &wr, &mut bad) };
        assert_eq!(code, 0);
    }
}

/// Makes the device of the library one whose queue pairs reach each other within this process.
pub(crate) fn within_this_process() {
    // SAFETY: the process has one thread, as long as the library is not loaded.
    unsafe { std::env::set_var("VERBS_DEVICE", "loopback") };
}

#[inline(always)]
fn work(wr_id: u64, sge: &Sge, opcode: u32) -> abi::SendWr {
    // SAFETY: all fields are numbers and pointers, for which zero is valid.
    let mut wr: abi::SendWr = unsafe { zeroed() };
    wr.wr_id = wr_id;
    wr.sg_list = std::ptr::from_ref(sge).cast();
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = SendFlags::SIGNALED.bits();
    wr
}

impl RawCq {
    pub(crate) fn new(cq: NonNull<c_void>) -> Self {
        let cq = cq.as_ptr().cast::<abi::Cq>();
        // SAFETY: the queue exists, and its context as long.
        let ops = unsafe { &(*(*cq).context).ops };
        let poll = ops.poll_cq.expect("every driver has it");
        Self { cq, poll }
    }

    /// Takes the next completion, which waits, and returns its number.
    #[inline(always)]
    pub(crate) fn poll_one(&self) -> u64 {
        // SAFETY: all fields are numbers, for which zero is valid.
        let mut wc: abi::Wc = unsafe { zeroed() };
        // SAFETY: the queue exists, one completion is written during the call.
        let count = unsafe { (self.poll)(self.cq, 1, &mut wc) };
        assert_eq!(count, 1);
        black_box(&wc).wr_id
    }
}
