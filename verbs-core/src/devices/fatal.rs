//! A device that has become unusable: each waiting task and queue is told, once.
//!
//! Failure and removal are the same to a device's user: nothing works on it any longer.
//! The first of the two counts. It wakes [`Fatal`] futures and fires the completion queues, armed or
//! not, so that a driver whose queues are idle finds out; the event is
//! [`DeviceFatal`](crate::EventType::DeviceFatal) in both cases.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::device::{Device, DeviceCore};
use crate::error::Error;
use crate::sync::Arc;

mod state;

pub(crate) use state::FatalState;

/// Completes when a device has become unusable; see [`Device::fatal`].
#[must_use = "futures do nothing unless polled"]
pub struct Fatal {
    device: Arc<DeviceCore>,
    /// Its entry among the waiting futures.
    entry: Option<u64>,
}

impl Device {
    /// Waits until the device can no longer be used, and says why: [`Error::DeviceRemoved`] or
    /// [`Error::DeviceFailed`], whichever came first, or [`Error::Closing`] when its close was accepted.
    /// Completes at once if that has happened already.
    ///
    /// The future borrows nothing and does not keep the device open. Any number may wait. See the
    /// [module](crate::device#surprise-removal) for what else is heard of a removal.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use futures::executor::block_on;
    /// use verbs_core::testing::Null;
    /// use verbs_core::{Device, Error};
    ///
    /// let device = Device::open(Arc::new(Null::default())).wait()?;
    /// let fatal = device.fatal();
    /// device.target().remove(); // the provider does this when its hardware is pulled
    /// assert_eq!(block_on(fatal), Error::DeviceRemoved);
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "removed")]
    pub fn fatal(&self) -> Fatal {
        Fatal {
            device: Arc::clone(self.core()),
            entry: None,
        }
    }
}

impl Future for Fatal {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        let device = Arc::clone(&self.device);
        match device.fatal.wait(self.entry, cx.waker()) {
            Ok(reason) => {
                self.entry = None;
                Poll::Ready(reason)
            }
            Err(entry) => {
                self.entry = Some(entry);
                Poll::Pending
            }
        }
    }
}

impl Drop for Fatal {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.device.fatal.forget(entry);
        }
    }
}

impl fmt::Debug for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fatal")
            .field("device", &self.device)
            .field("reason", &self.device.fatal.reason())
            .finish()
    }
}
