//! Ids and channels of a socket, which are destroyed when they are dropped; and what their events contain.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use verbs_abi::rdmacm::{CmEvent, CmId, EventChannel};

use crate::call::Errno;
use crate::rdmacm;
use crate::rsocket::stream::wire::Hello;

/// An id. Peers are informed when it is dropped.
pub(super) struct OwnId(*mut CmId);

// SAFETY: the pointer is to an object of this library, which ends when this is dropped.
unsafe impl Send for OwnId {}

impl Drop for OwnId {
    fn drop(&mut self) {
        // SAFETY: the socket's own, which no longer uses it.
        unsafe { rdmacm::destroy_id(self.0) };
    }
}

impl OwnId {
    /// Takes over an id.
    ///
    /// # Safety
    /// Nothing else destroys it.
    pub(super) unsafe fn new(id: *mut CmId) -> Self {
        Self(id)
    }

    pub(super) fn at(&self) -> *mut CmId {
        self.0
    }

    /// Refuses the request that it is of.
    pub(super) fn reject(self) {
        // SAFETY: its own id.
        unsafe { rdmacm::reject(self.0, null(), 0) };
    }

    /// Data have arrived on its queue pair.
    pub(super) fn came_alive(&self) {
        /// `IBV_EVENT_COMM_EST`.
        const COMM_EST: u32 = 4;
        // SAFETY: its own id.
        unsafe { rdmacm::notify(self.0, COMM_EST) };
    }

    /// Has its events delivered to that channel. Nobody has events of it that were not acknowledged.
    pub(super) fn move_to(&self, channel: &Channel) -> Result<(), Errno> {
        // SAFETY: both exist.
        check(unsafe { rdmacm::migrate_id(self.0, channel.0) })
    }
}

/// A channel of events.
pub(super) struct Channel(*mut EventChannel);

// SAFETY: as for ids.
unsafe impl Send for Channel {}
// SAFETY: the queue behind it has its own lock.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the socket's own, which no longer uses it.
        unsafe { rdmacm::destroy_event_channel(self.0) };
    }
}

impl Channel {
    /// A channel that does not block.
    pub(super) fn new() -> Result<Self, Errno> {
        // SAFETY: there are no arguments.
        let channel = unsafe { rdmacm::create_event_channel() };
        if channel.is_null() {
            return Err(Errno::last());
        }
        let channel = Self(channel);
        // SAFETY: an open descriptor, that only this library reads.
        unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        Ok(channel)
    }

    /// A new id on it.
    pub(super) fn create_id(&self) -> Result<OwnId, Errno> {
        /// `RDMA_PS_TCP`.
        const TCP: u32 = 0x106;
        let mut id = null_mut();
        // SAFETY: the channel exists, and the place is for the result.
        check(unsafe { rdmacm::create_id(self.0, &raw mut id, null_mut(), TCP) })?;
        Ok(OwnId(id))
    }

    /// Readable while events wait.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: it exists as long as this.
        unsafe { (*self.0).fd }
    }

    /// The next event, if there is one.
    pub(super) fn next(&self) -> Option<*mut CmEvent> {
        if !rdmacm::has_event(self.0) {
            return None;
        }
        let mut told = null_mut();
        // SAFETY: the socket's channel, which does not block.
        (unsafe { rdmacm::get_cm_event(self.0, &raw mut told) } == 0).then_some(told)
    }
}

/// The peer's parameters in an event.
///
/// # Safety
/// An event that was taken and not acknowledged.
pub(super) unsafe fn hello_of(told: *mut CmEvent) -> Option<Hello> {
    // SAFETY: guaranteed by the caller; as many bytes as it says.
    unsafe {
        let conn = (*told).param.conn;
        if conn.private_data.is_null() {
            return None;
        }
        let data = std::slice::from_raw_parts(
            conn.private_data.cast::<u8>(),
            conn.private_data_len.into(),
        );
        Hello::parse(data)
    }
}

/// The error of a call of librdmacm.
pub(super) fn check(code: c_int) -> Result<(), Errno> {
    if code == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}
