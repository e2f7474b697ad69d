//! Domains of extended reliable connections, and the target queue pairs in them
//! (IBTA vol. 1, annex A14).
//!
//! A connection between two processes ends at a *target* queue pair, which has neither queues nor
//! completion queues. Each request names the shared receive queue that it is for; so one connection
//! serves all processes of a node whose shared receive queues are in the target's domain.
//!
//! ```
//! # use futures::executor::block_on;
//! # use std::sync::Arc;
//! # use verbs_core::testing::Null;
//! # use verbs_core::Device;
//! # block_on(async {
//! # let device = Device::open(Arc::new(Null::default())).await?;
//! let domain = device.alloc_xrcd().await?;
//! let pd = device.alloc_pd().await?;
//! let cq = device.create_cq(64).await?;
//! let srq = pd.create_xrc_srq(&domain, &cq, 32, 1).await?;
//! let target = domain.create_target_qp().await?;
//! println!("requests go to {} and name {}", target.qpn(), srq.srqn());
//! # Ok::<(), verbs_core::Error>(())
//! # }).unwrap();
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::addr::Qpn;
use crate::device::{Device, DeviceCore};
#[cfg(doc)]
use crate::error::Error;
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, core, destroy, handle};
use crate::qp::{Qp, QpCore};
use crate::qp_attr::QpCap;
use crate::request::Request;
use crate::sync::Arc;
use crate::verb::verb;

/// A domain: target queue pairs reach the shared receive queues that are in it.
///
/// Dropping the handle deallocates it when it is empty (K12).
pub struct Xrcd {
    core: Arc<XrcdCore>,
}

/// What a domain's requests act on.
#[derive(Debug)]
pub struct XrcdCore {
    base: Base,
    device: Child<DeviceCore>,
}

core!(XrcdCore { device });
handle!(Xrcd, XrcdCore, DeallocXrcd);

/// The name of a domain that several programs share: a file, as with `ibv_open_xrcd`. Programs that have the file open the
/// same domain. Its content and its path mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XrcdName {
    /// The number of the file's device.
    pub device: u64,
    /// The file's number on it.
    pub inode: u64,
}

impl XrcdName {
    /// The name that a file stands for.
    ///
    /// # Errors
    /// What the system says when it is asked about the file.
    pub fn of(file: &File) -> io::Result<Self> {
        let about = file.metadata()?;
        Ok(Self {
            device: about.dev(),
            inode: about.ino(),
        })
    }
}

/// Allocates a domain; arguments of the verb.
#[derive(Debug)]
pub struct AllocXrcd {
    device: Child<DeviceCore>,
    /// Under which name other programs find it; `None` for a domain of this program alone.
    pub name: Option<XrcdName>,
}

/// Creates a target queue pair; arguments of the verb.
#[derive(Debug)]
pub struct CreateTargetQp {
    xrcd: Child<XrcdCore>,
}

/// Opens a target queue pair that exists; arguments of the verb.
#[derive(Debug)]
pub struct OpenTargetQp {
    xrcd: Child<XrcdCore>,
    /// Its number.
    pub qpn: Qpn,
}

verb!(AllocXrcd, DeviceCore => Xrcd);
verb!(CreateTargetQp, XrcdCore => Qp, |qp| Some(Arc::<QpCore>::clone(qp.target())));
verb!(OpenTargetQp, XrcdCore => Qp, |qp| Some(Arc::<QpCore>::clone(qp.target())));

impl AllocXrcd {
    /// The domain, for a provider that has allocated it under that number.
    pub fn build(self, number: u32, private: Private) -> Xrcd {
        let base = Base::new(self.device.get(), ObjectKind::Xrcd, number, private);
        Xrcd {
            core: Arc::new(XrcdCore {
                base,
                device: self.device,
            }),
        }
    }
}

impl CreateTargetQp {
    /// The queue pair, for a provider that has created it under that number.
    pub fn build(self, qpn: Qpn, cap: QpCap, private: Private) -> Qp {
        Qp::target_of(self.xrcd, qpn, cap, private)
    }
}

impl OpenTargetQp {
    /// Another handle of the queue pair, for a provider that has found it.
    pub fn build(self, cap: QpCap, private: Private) -> Qp {
        let qpn = self.qpn;
        Qp::target_of(self.xrcd, qpn, cap, private)
    }
}

impl Device {
    /// Allocates a domain of extended reliable connections.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the device's `max_xrcd`, [`Error::NoCapability`] where the device has no
    /// such connections.
    pub fn alloc_xrcd(&self) -> Request<'_, AllocXrcd> {
        self.xrcd_of(None)
    }

    /// Opens the domain that a file names, and allocates it if nobody has.
    ///
    /// All who open it with the same file, in this process or in another one that shares the device, have one domain: a
    /// request that arrives at a target of one of them may name a shared receive queue of another. The domain ends with the
    /// last handle. A target ends with the process that has created it.
    ///
    /// On the software HCA, processes share a device when they are programs of one `verbs host`, at one address. Elsewhere
    /// only the process itself shares it. RDMA NICs by `hca-rdma` answer [`Error::Unsupported`].
    ///
    /// ```no_run
    /// # use futures::executor::block_on;
    /// # use std::fs::File;
    /// # use std::sync::Arc;
    /// # use verbs_core::testing::Null;
    /// # use verbs_core::{Device, xrcd::XrcdName};
    /// # block_on(async {
    /// # let device = Device::open(Arc::new(Null::default())).await?;
    /// let file = File::open("/tmp/job-17").expect("the job's file");
    /// let domain = device.open_xrcd(XrcdName::of(&file).expect("a file")).await?;
    /// # Ok::<(), verbs_core::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Device::alloc_xrcd`]; [`Error::Unsupported`] where the device has no shared domains.
    pub fn open_xrcd(&self, name: XrcdName) -> Request<'_, AllocXrcd> {
        self.xrcd_of(Some(name))
    }

    /// Allocates a domain, or opens the one of that name.
    pub fn xrcd_of(&self, name: Option<XrcdName>) -> Request<'_, AllocXrcd> {
        let device = Child::new(self.core(), ObjectKind::Xrcd);
        Request::new(self.core(), AllocXrcd { device, name })
    }
}

impl Xrcd {
    /// Creates a target queue pair, in state RESET.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the device's `max_qp`.
    pub fn create_target_qp(&self) -> Request<'_, CreateTargetQp> {
        let xrcd = Child::new(&self.core, ObjectKind::Qp);
        Request::new(&self.core, CreateTargetQp { xrcd })
    }

    /// Opens a target queue pair that exists in this domain: another handle, which sees its events too.
    /// The queue pair is destroyed with the last of its handles.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is no target queue pair of that number in the domain.
    pub fn open_target_qp(&self, qpn: Qpn) -> Request<'_, OpenTargetQp> {
        let xrcd = Child::new(&self.core, ObjectKind::Qp);
        Request::new(&self.core, OpenTargetQp { xrcd, qpn })
    }

    /// Deallocates the domain: Busy while it holds anything (K10).
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn dealloc(self) -> Request<'static, DeallocXrcd> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`Xrcd::dealloc`], but waits until the domain is empty instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn dealloc_when_idle(self) -> Request<'static, DeallocXrcd> {
        destroy(self, IfBusy::Wait)
    }

    pub(crate) fn core(&self) -> &Arc<XrcdCore> {
        &self.core
    }
}
