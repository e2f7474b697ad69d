//! RDMA NICs: a provider for `verbs-core` over the system's rdma-core.
//!
//! A program that runs on the software HCA runs on a NIC by opening another device. rdma-core is loaded at run time:
//! building this crate needs neither its headers nor the library.
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
//! [`RdmaCore::follow`] keeps a [`verbs_core::DeviceList`] up to date with the NICs of the system.
//!
//! # Which threads make calls
//!
//! The kernel's calls for control verbs block, and `issue` must not (K2): they are made by the NIC's two command
//! threads, `rdma-memory` for registrations, which may take long, and `rdma-command` for the rest, each in the order of
//! issue. A verb that needs no call is answered in place. Posting, polling and arming call the driver's functions
//! directly. A third thread, `rdma-events`, waits for the descriptors of completion, asynchronous and connection
//! events, and for the timer. There are no other threads.
//!
//! Connections by address are made by librdmacm: see [`verbs_core::cm`] for the verbs. The command thread handles its
//! events, between verbs.
//!
//! # Differences from the software HCA
//!
//! - Registration pins the memory: it takes time, and counts against the limit of locked memory (`ulimit -l`), as
//!   queues do. [`Error::NoMemory`](verbs_core::Error::NoMemory) usually means that the limit is reached.
//! - A datagram can be sent to an address only while the same protection domain has an address handle for it, or
//!   shortly afterwards; otherwise [`PostError::Unreachable`](verbs_core::PostError::Unreachable).
//! - A NIC that is removed flushes nothing: posted work never completes. Clients are informed of the removal as with
//!   every device.
//! - A bind of a memory window names a window and a region of the NIC, by their current keys: otherwise
//!   [`PostError::Key`](verbs_core::PostError::Key). A window of type 1 takes the next key and no other. A bind that
//!   completed in error keeps its region and queue pair Busy until the window is bound again, made invalid or
//!   deallocated.
//! - The optional verbs are shared receive queues, multicast, memory windows, extended reliable connections, time stamps
//!   of completions, and resizing and moderation, where the driver has them. Fast registration, management datagrams and
//!   re-registration that keeps keys are refused with [`Error::Unsupported`](verbs_core::Error::Unsupported).
//!
//! The modules: [`Nic`] is the provider; `command` carries out verbs and `lane` is the thread that does so; `queue` has
//! posting and polling, `keys` what they look up; `cm` has connections; `event` waits for events; `convert` translates; `sys` is the door to C.

#![deny(unsafe_code)]

mod cm;
mod command;
mod convert;
mod error;
mod nic;
mod object;
mod queue;
mod shared;
#[expect(unsafe_code, reason = "calls of C functions: argued in each file")]
mod sys;
mod thread;

pub use object::native;
pub(crate) use object::{address, keys, slot};
pub(crate) use thread::{bell, event, lane, timer};

use verbs_core::DeviceList;
use verbs_core::sync::Arc;

pub use self::error::OpenError;
pub use self::nic::{Nic, Nics};

/// The libraries of rdma-core, loaded into this process for good.
#[derive(Clone, Copy)]
pub struct RdmaCore(&'static sys::Library);

impl RdmaCore {
    /// Loads `libibverbs.so.1` and `librdmacm.so.1` by the system's loader (which honours `LD_LIBRARY_PATH`).
    ///
    /// # Errors
    /// [`OpenError::NoLibrary`], [`OpenError::NoFunction`]. librdmacm may be missing.
    ///
    /// # Context
    /// Reads files: not for use under NoBlock. Neither are the calls below.
    pub fn load() -> Result<Self, OpenError> {
        sys::Library::load().map(Self)
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

    /// Begins to keep a list of devices up to date with the NICs of the system; [`Nics::look`] puts them there.
    pub fn follow(self, list: &DeviceList) -> Nics {
        Nics::new(self, list)
    }
}

impl std::fmt::Debug for RdmaCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RdmaCore")
    }
}
