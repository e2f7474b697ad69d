//! RDMA NICs: a provider for `verbs-core` over the system's rdma-core.
//!
//! A program that runs on the software HCA runs on a NIC by opening another device. rdma-core is loaded when it is asked
//! for: this crate needs neither its headers nor the library to be built.
//!
//! ```no_run
//! use hca_rdma::RdmaCore;
//! use verbs_core::Device;
//!
//! let rdma = RdmaCore::load()?;
//! println!("{:?}", rdma.devices()?);
//! let nic = rdma.open("rxe0")?;
//! let device = Device::open(nic).wait()?;
//! let pd = device.alloc_pd().wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which way calls run
//!
//! The kernel's calls for control verbs wait, and `issue` must not (K2): they are made by the NIC's two command threads,
//! `rdma-memory` for registrations, which may take long, and `rdma-command` for the rest, each in the order of issue. What
//! needs no call is answered in place. Posting, polling and arming go directly to the driver's functions. A third thread,
//! `rdma-events`, waits at the descriptors of completion and asynchronous events. There are no other threads.
//!
//! # What is different from the software HCA
//!
//! - Registration pins the memory: it takes time, and counts against the limit of locked memory (`ulimit -l`), as queues
//!   do. [`Error::NoMemory`](verbs_core::Error::NoMemory) usually says that the limit is reached.
//! - A datagram can be sent to an address only while, or shortly after, an address handle of the same protection domain
//!   has it; otherwise [`PostError::Unreachable`](verbs_core::PostError::Unreachable).
//! - A NIC that is taken away flushes nothing: completions of what was posted never come. Clients hear of the removal as
//!   everywhere.
//! - Of the optional verbs there are shared receive queues, multicast, and resizing and moderation where the driver has
//!   them. Extended reliable connections, memory windows, fast registration, management datagrams, timestamps and re-registration that
//!   keeps keys are refused with [`Error::Unsupported`](verbs_core::Error::Unsupported).
//!
//! Where to look: [`Nic`] is the provider; `command` carries out verbs and `lane` is the thread that does; `queue` has what
//! is posted to and polled; `event` waits for events; `convert` translates; `sys` is the door to C.

#![deny(unsafe_code)]

mod address;
mod command;
mod convert;
mod error;
mod event;
mod lane;
mod nic;
mod queue;
mod shared;
mod slot;
#[expect(unsafe_code, reason = "calls of C functions: argued in each file")]
mod sys;

use std::path::Path;

use verbs_core::sync::Arc;

pub use self::error::OpenError;
pub use self::nic::Nic;

/// The libraries of rdma-core, loaded into this process, where they stay.
#[derive(Clone, Copy)]
pub struct RdmaCore(&'static sys::Library);

impl RdmaCore {
    /// Loads `libibverbs.so.1` and `librdmacm.so.1` as the system's loader finds them (`LD_LIBRARY_PATH` counts).
    ///
    /// # Errors
    /// [`OpenError::NoLibrary`], [`OpenError::NoFunction`]. librdmacm may be missing.
    ///
    /// # Context
    /// Reads files: not for use under NoBlock. Neither are the calls below.
    pub fn load() -> Result<Self, OpenError> {
        sys::Library::load(None).map(Self)
    }

    /// As [`RdmaCore::load`], from that folder.
    ///
    /// # Errors
    /// As there.
    pub fn load_from(folder: impl AsRef<Path>) -> Result<Self, OpenError> {
        sys::Library::load(Some(folder.as_ref())).map(Self)
    }

    /// The names of the system's devices, such as `mlx5_0`.
    ///
    /// # Errors
    /// [`OpenError::List`].
    pub fn devices(&self) -> Result<Vec<String>, OpenError> {
        sys::device_names(self.0)
    }

    /// Opens the device of that name, as a provider for [`Device::open`](verbs_core::Device::open).
    ///
    /// # Errors
    /// [`OpenError`] says what is missing.
    pub fn open(&self, name: &str) -> Result<Arc<Nic>, OpenError> {
        Nic::open(self.0, name)
    }
}

impl std::fmt::Debug for RdmaCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RdmaCore")
    }
}
