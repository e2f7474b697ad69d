//! Posting and polling: direct calls of the driver's functions, under a lock for which only the object's destroy
//! competes.

mod completion;
mod recv;
mod send;

use rustix::io::Errno;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{Acquire, Relaxed},
};
use verbs_core::{DeviceCap, PostError, QpCap, QpState, QpType};

use crate::convert;

pub(crate) use self::completion::completion_queue;
pub(crate) use self::recv::{ReceiveQueue, SharedReceiveQueue};
pub(crate) use self::send::{Lookups, SendQueue};

/// What a queue pair's queues check before they post.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) qp_type: QpType,
    pub(crate) caps: DeviceCap,
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

    /// Whether the queue pair has reached `least`, in the order of RESET, INIT, RTR and RTS.
    #[inline(always)]
    fn check_state(&self, least: QpState) -> Result<(), PostError> {
        match self.state.load(Acquire) < least as u8 {
            true => Err(PostError::State(self.state())),
            false => Ok(()),
        }
    }
}

/// A NIC that has been removed accepts what is posted, and nothing happens.
#[inline(always)]
fn present(removed: &AtomicBool) -> Result<(), PostError> {
    match removed.load(Relaxed) {
        true => Err(PostError::DeviceRemoved),
        false => Ok(()),
    }
}

/// The result of a post: `None` means that the object has been destroyed.
#[inline(always)]
fn answer(posted: Option<Result<(), Errno>>, depth: u32) -> Result<(), PostError> {
    match posted {
        Some(Ok(())) => Ok(()),
        Some(Err(errno)) => Err(refused(errno, depth)),
        None => Err(PostError::Destroyed),
    }
}

/// Why the driver refused a post to a queue with room for `depth`.
#[cold]
fn refused(errno: Errno, depth: u32) -> PostError {
    match errno {
        Errno::NOMEM => PostError::Full { depth },
        Errno::IO | Errno::NODEV => PostError::DeviceRemoved,
        _ => PostError::Unsupported,
    }
}
