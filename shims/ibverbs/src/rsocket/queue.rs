//! The queue pair of a socket's id, with one completion queue and its channel for both directions.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs_abi::rdmacm::CmId;
use verbs_abi::{self as abi, QpInitAttr, RecvWr, SendWr, Wc};

use crate::call::Errno;
use crate::{cq, qp, rdmacm};

/// The queue pair of an id. Destroyed with its completion queue when dropped; the id is destroyed after it.
pub(super) struct Queue(*mut CmId);

// SAFETY: the id is an object of this library, and the socket's alone.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the id is the socket's, which no longer uses it.
        unsafe { rdmacm::destroy_qp(self.0) };
    }
}

impl Queue {
    /// A queue pair for an id that is on a device. `init` returns what it can do.
    pub(super) fn new(id: *mut CmId, init: &mut QpInitAttr) -> Result<Self, Errno> {
        // SAFETY: the id is the socket's.
        unsafe {
            let verbs = (*id).verbs;
            let channel = cq::create_comp_channel(verbs);
            if channel.is_null() {
                return Err(Errno::last());
            }
            let depth = init.cap.max_send_wr + init.cap.max_recv_wr;
            let queue = cq::create_cq(verbs, depth as c_int, id.cast(), channel, 0);
            if queue.is_null() {
                let errno = Errno::last();
                cq::destroy_comp_channel(channel);
                return Err(errno);
            }
            // They are destroyed with the id's queue pair.
            ((*id).recv_cq_channel, (*id).recv_cq) = (channel, queue);
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            (init.send_cq, init.recv_cq) = (queue, queue);
            match rdmacm::create_qp(id, null_mut(), init) {
                0 => Ok(Self(id)),
                _ => Err(Errno::last()),
            }
        }
    }

    /// The queue pair.
    pub(super) fn pair(&self) -> *mut abi::Qp {
        // SAFETY: the id exists as long as this.
        unsafe { (*self.0).qp }
    }

    /// The domain of its memory.
    pub(super) fn pd(&self) -> *mut abi::Pd {
        // SAFETY: as above.
        unsafe { (*self.0).pd }
    }

    /// Readable when completions have been pushed since [`arm`](Self::arm).
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: as above.
        unsafe { (*(*self.0).recv_cq_channel).fd }
    }

    /// Makes the descriptor readable with the next completion.
    pub(super) fn arm(&self) {
        // SAFETY: as above.
        unsafe {
            self.take_event();
            cq::req_notify_cq((*self.0).recv_cq, 0);
        }
    }

    /// Whether completions have been pushed since [`arm`](Self::arm); says so once.
    pub(super) fn take_event(&self) -> bool {
        let (mut queue, mut context) = (null_mut(), null_mut());
        let mut is_there = false;
        // SAFETY: as above; the channel does not block.
        unsafe {
            let channel = (*self.0).recv_cq_channel;
            while cq::get_cq_event(channel, &raw mut queue, &raw mut context) == 0 {
                cq::ack_cq_events(queue, 1);
                is_there = true;
            }
        }
        is_there
    }

    /// Takes completions, as many as there is room for.
    pub(super) fn poll<'a>(&self, into: &'a mut [Wc]) -> &'a [Wc] {
        // SAFETY: there is room for that many.
        let count =
            unsafe { cq::poll_cq((*self.0).recv_cq, into.len() as c_int, into.as_mut_ptr()) };
        &into[..usize::try_from(count).unwrap_or(0)]
    }

    /// # Safety
    /// The list and what it names exist until the completion, or are inline.
    pub(super) unsafe fn send(&self, wr: &mut SendWr) -> Result<(), Errno> {
        let mut bad = std::ptr::null();
        // SAFETY: the id's queue pair; guaranteed by the caller.
        match unsafe { qp::post_send(self.pair(), wr, &raw mut bad) } {
            0 => Ok(()),
            code => Err(Errno(code)),
        }
    }

    /// # Safety
    /// What the list names exists until the completion.
    pub(super) unsafe fn receive(&self, wr: &RecvWr) -> Result<(), Errno> {
        let mut bad = std::ptr::null();
        // SAFETY: the id's queue pair; guaranteed by the caller.
        match unsafe { qp::post_recv(self.pair(), wr, &raw mut bad) } {
            0 => Ok(()),
            code => Err(Errno(code)),
        }
    }
}
