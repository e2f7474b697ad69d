//! What is posted to and polled: direct calls of the driver's functions, under a lock that only the object's destroy
//! competes for.

mod completion;
mod recv;
mod send;

use rustix::io::Errno;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{Acquire, Relaxed},
};
use verbs_core::{PostError, QpCap, QpState, QpType};

use crate::convert;

pub(crate) use self::completion::CompletionQueue;
pub(crate) use self::recv::{ReceiveQueue, SharedReceiveQueue};
pub(crate) use self::send::SendQueue;

/// What a queue pair's queues look at before they post.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) max_msg_sz: u32,
    pub(crate) removed: Arc<AtomicBool>,
    /// The state that the queue pair was last known to be in.
    pub(crate) state: Arc<AtomicU8>,
}

impl Limits {
    fn state(&self) -> QpState {
        convert::qp_state(self.state.load(Acquire).into())
    }

    #[inline(always)]
    fn check_present(&self) -> Result<(), PostError> {
        present(&self.removed)
    }

    /// Whether the queue pair has come so far as `least`, in the order of RESET, INIT, RTR and RTS.
    #[inline(always)]
    fn check_state(&self, least: QpState) -> Result<(), PostError> {
        match self.state.load(Acquire) < least as u8 {
            true => Err(PostError::State(self.state())),
            false => Ok(()),
        }
    }
}

/// A NIC that has been taken away takes what is posted, and nothing happens.
#[inline(always)]
fn present(removed: &AtomicBool) -> Result<(), PostError> {
    match removed.load(Relaxed) {
        true => Err(PostError::DeviceRemoved),
        false => Ok(()),
    }
}

/// What a post has come to: `None` says that the object has been destroyed.
#[inline(always)]
fn answer(posted: Option<Result<(), Errno>>, depth: u32) -> Result<(), PostError> {
    match posted {
        Some(Ok(())) => Ok(()),
        Some(Err(errno)) => Err(refused(errno, depth)),
        None => Err(PostError::Destroyed),
    }
}

/// Why the driver took nothing, of a queue with room for `depth`.
#[cold]
fn refused(errno: Errno, depth: u32) -> PostError {
    match errno {
        Errno::NOMEM => PostError::Full { depth },
        Errno::IO | Errno::NODEV => PostError::DeviceRemoved,
        _ => PostError::Unsupported,
    }
}
