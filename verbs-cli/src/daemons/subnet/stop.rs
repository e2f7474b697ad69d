//! The signal that ends a server, as something that a loop of `poll` waits for.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};
use verbs_core::sync::Arc;

use crate::ending::{Ending, Signal};

/// Tells when INT or TERM has come.
pub(crate) struct Stop {
    told: Pin<Box<dyn Future<Output = Signal> + Send>>,
    bell: Arc<Bell>,
}

/// A descriptor that is readable when the future is to be looked at.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Fails only when 2^64 - 2 wakes wait already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Stop {
    pub(crate) fn begin() -> io::Result<Self> {
        let ending = Ending::begin()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            told: Box::pin(async move { ending.told().await }),
            bell: Arc::new(Bell(eventfd(0, flags)?)),
        })
    }

    /// What to wait for after [`signal`](Self::signal) has said that there is none yet.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }

    /// The signal, if one has come. Not to be called after that.
    pub(crate) fn signal(&mut self) -> Option<Signal> {
        // A bell that was rung has done its work.
        let _ = rustix::io::read(&self.bell.0, &mut [0; 8]);
        let waker = Waker::from(Arc::clone(&self.bell));
        match self.told.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(signal) => Some(signal),
            Poll::Pending => None,
        }
    }
}
