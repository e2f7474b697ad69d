//! A target: lets initiators log in, and executes their commands on logical units.
//!
//! It has no thread of its own. The thread that drives the device also drives the target: every login and every
//! channel makes progress in the completions of its verbs and work requests, under NoBlock, and posts and polls
//! directly. Threads of a logical unit are that unit's business.
//!
//! ```no_run
//! # async fn example(device: std::sync::Arc<verbs_core::Device>) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use ulp_srp::lun::MemoryUnit;
//! use ulp_srp::target::{Target, TargetConfig};
//!
//! let config = TargetConfig::new("0000000000000001505400fffe770001".parse()?);
//! let target = Target::open(device, config).await?;
//! target.export(0, Arc::new(MemoryUnit::new(64 << 20, 512)?)).await?;
//! let at = target.listen("0.0.0.0:5555").await?;
//! println!("listening on {at}");
//! # Ok(())
//! # }
//! ```
//!
//! # Hostile initiators
//! A malformed unit, or one beyond the request limit, ends its channel, and no other. Descriptors are used as
//! received: the initiator's own device checks them, and a key that it did not give out ends the channel. A
//! command gets only what it asked for: a block of the unit, or data of its own reply, never older contents of a
//! buffer.

mod channel;
mod command;
mod config;
mod counters;
mod error;
mod event;
mod manage;
mod nexus;
mod units;

pub(crate) use command::{pool, task, transfer, work};
pub(crate) use nexus::{keepalive, login};

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use futures::future::{AbortHandle, Abortable};
use futures::{Stream, StreamExt};
use verbs_cm::resolver::Address;
use verbs_cm::wire::ServiceId;
use verbs_cm::{ConnectRequest, Manager};
use verbs_core::sync::{Arc, Mutex, OnceLock};
use verbs_core::{Device, Pd, task as tasks};

use crate::iu::{LogoutReason, PortId};
use crate::lun::LogicalUnit;
use crate::scsi::Code;

pub use config::TargetConfig;
pub use counters::Counters;
pub use error::TargetError;
pub use event::{ChannelEnd, TargetEvent};
pub use nexus::{ChannelId, ChannelInfo};

use event::Listener;
use nexus::{Hall, Order};
use pool::Pool;
use units::{Unit, Units};

/// Connection requests that wait until the target handles them.
const BACKLOG: u32 = 32;

/// A target. Dropping it ends its channels; [`Target::close`] waits until they have.
pub struct Target {
    house: Arc<House>,
    listeners: Mutex<Vec<AbortHandle>>,
}

/// What all channels of a target share.
pub(crate) struct House {
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Pd,
    pub(crate) config: TargetConfig,
    pool: Pool,
    units: Mutex<Arc<Units>>,
    hall: Hall,
    listener: OnceLock<Listener>,
}

impl House {
    fn units(&self) -> Arc<Units> {
        Arc::clone(&self.units.lock())
    }

    fn tell(&self, event: &TargetEvent<'_>) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }
}

impl Target {
    /// Opens a target without units, which does not listen yet.
    ///
    /// # Errors
    /// [`TargetError::Verb`].
    pub async fn open(device: Arc<Device>, config: TargetConfig) -> Result<Self, TargetError> {
        let config = config.checked();
        let pd = device.alloc_pd().await;
        let pd = pd.map_err(TargetError::verb("allocate a protection domain"))?;
        let pool = Pool::new(&pd, config.buffers, config.buffer_bytes).await;
        let pool = pool.map_err(TargetError::verb("register the buffers"))?;
        Ok(Self {
            house: Arc::new(House {
                device,
                pd,
                config,
                pool,
                units: Mutex::default(),
                hall: Hall::default(),
                listener: OnceLock::new(),
            }),
            listeners: Mutex::default(),
        })
    }

    /// Sets a listener for logins, refusals, logouts and failures: it is called under NoBlock, on the thread
    /// where the event happens. Only the first listener is kept.
    pub fn on_event(&self, listener: impl Fn(&TargetEvent<'_>) + Send + Sync + 'static) {
        let _first = self.house.listener.set(Arc::new(listener));
    }

    /// Adds a logical unit under that number. Initiators that are logged in are notified.
    ///
    /// # Errors
    /// [`TargetError::LunTaken`], [`TargetError::Lun`], [`TargetError::BlockSize`], [`TargetError::Verb`].
    pub async fn export(&self, number: u16, unit: Arc<dyn LogicalUnit>) -> Result<(), TargetError> {
        let house = &self.house;
        let unit = Unit::new(&house.pd, number, unit, house.config.buffer_bytes).await?;
        let mut units = house.units.lock();
        let others: Vec<u16> = units.numbers().collect();
        *units = Arc::new(units.with(Arc::new(unit))?);
        drop(units);
        for shared in house.hall.channels() {
            for other in &others {
                shared.nexus.attend(*other, Code::LUNS_CHANGED);
            }
            shared.nexus.attend(number, Code::POWER_ON);
        }
        Ok(())
    }

    /// Listens through the RDMA connection manager; returns the address, with the assigned port number.
    ///
    /// # Errors
    /// [`TargetError::Listen`].
    pub async fn listen(&self, at: impl Into<Address>) -> Result<SocketAddr, TargetError> {
        let listener = verbs_cm::listen(&self.house.device, at).backlog(BACKLOG);
        let listener = listener.await?;
        let local = listener.local_addr();
        self.serve(listener);
        Ok(local)
    }

    /// Listens for a service by its number, as initiators of native InfiniBand request it.
    ///
    /// # Errors
    /// [`TargetError::Listen`].
    pub async fn listen_service(&self, service: ServiceId) -> Result<(), TargetError> {
        let manager = Manager::of_port(&self.house.device, self.house.config.port);
        let listener = manager.listen_service(service, BACKLOG).await?;
        self.serve(listener);
        Ok(())
    }

    fn serve(&self, mut requests: impl Stream<Item = ConnectRequest> + Send + Unpin + 'static) {
        let (handle, registration) = AbortHandle::new_pair();
        let house = Arc::clone(&self.house);
        let serving = async move {
            while let Some(request) = requests.next().await {
                tasks::detach(login::login(Arc::clone(&house), request));
            }
        };
        tasks::detach(async move {
            // It ends when it is aborted, and there is nothing to report.
            let _ended = Abortable::new(serving, registration).await;
        });
        self.listeners.lock().push(handle);
    }

    /// The name of the target's port.
    pub fn port_id(&self) -> PortId {
        self.house.config.port_id
    }

    /// The current channels, oldest first. A channel that is ending is listed until none of its work is in
    /// progress.
    pub fn channels(&self) -> Vec<ChannelInfo> {
        let channels = self.house.hall.channels();
        channels.iter().map(|shared| shared.info()).collect()
    }

    /// Logins that were answered but not confirmed by their senders.
    pub fn half_open(&self) -> usize {
        self.house.hall.half_open()
    }

    /// The counters of all channels, including those that have ended.
    pub fn counters(&self) -> Counters {
        self.house.hall.total()
    }

    /// Ends a channel and notifies the initiator. Does nothing if the channel has already ended.
    pub fn end(&self, channel: ChannelId) {
        let hall = &self.house.hall;
        hall.end(|shared| shared.id == channel, LogoutReason::UNSPECIFIED);
    }

    /// Changes the request limit of a channel: raises it at once by a CRED_REQ, up to the configured
    /// `request_limit`, and lowers it, to no less than 1, as commands end.
    pub fn adjust(&self, channel: ChannelId, delta: i32) {
        let mut channels = self.house.hall.channels().into_iter();
        if let Some(shared) = channels.find(|shared| shared.id == channel) {
            shared.order(Order::Adjust(delta));
        }
    }

    /// Tells all initiators that a unit has another number of blocks: by an AER_REQ, and by a unit attention at
    /// the next command.
    pub fn capacity_changed(&self, number: u16) {
        let Some(unit) = self.house.units().find(number).cloned() else {
            return;
        };
        unit.refresh();
        let (unit, code) = (number, Code::CAPACITY_CHANGED);
        for shared in self.house.hall.channels() {
            shared.nexus.attend(unit, code);
            shared.order(Order::Event { unit, code });
        }
    }

    /// Ends all channels, and completes when none of their work is in progress.
    ///
    /// # Cancel safety
    /// The channels end even if the future is dropped.
    pub async fn close(self) {
        self.stop();
        let hall = &self.house.hall;
        poll_fn(|cx| match hall.is_empty(cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    fn stop(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.iter().for_each(AbortHandle::abort);
        self.house.hall.close();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("port_id", &self.port_id())
            .finish_non_exhaustive()
    }
}
