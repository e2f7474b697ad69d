//! The connection manager of a device, as programs hold it.

use std::fmt;

use futures::FutureExt;
use futures::future::{self, BoxFuture, Shared};
use verbs_core::sync::Arc;
use verbs_core::{Device, PortCaps};

use crate::error::Error;
use crate::hub::{Counts, Hub, Modifier};
use crate::provided::Provided;
use crate::resolver::Resolver;
use crate::step::Step;

/// Makes connections and listens on a port of a device. All managers of one port are the same one;
/// [`connect`](crate::connect()) and [`listen`](crate::listen()) use it too.
///
/// A manager that has been [opened](Manager::open) keeps the port's queue pair 1 open, and remembers
/// connections in timewait; else that ends with the last connection and listener. Programs that make
/// connections again and again keep one.
#[derive(Clone)]
pub struct Manager {
    port: u8,
    opening: Shared<BoxFuture<'static, Result<Way, Error>>>,
}

/// How connections are made on a port: what the provider says of it decides, never a name.
#[derive(Clone)]
pub(crate) enum Way {
    /// By messages of the InfiniBand connection manager on queue pair 1.
    Messages(Arc<Hub>),
    /// By the provider's own verbs.
    Verbs(Arc<Provided>),
}

impl Manager {
    /// The manager of the device's first port; it is opened when it is needed.
    pub fn of(device: &Device) -> Self {
        Self::of_port(device, 1)
    }

    /// The manager of that port.
    pub fn of_port(device: &Device, port: u8) -> Self {
        let caps = device.query_provider(port).caps;
        let opening = if caps.contains(PortCaps::IB_CM | PortCaps::MAD) {
            let hub = Hub::of(device, port);
            async move { Ok(Way::Messages(hub.await?)) }.boxed()
        } else if caps.has_cm_verbs() {
            let provided = Provided::of(device, port);
            future::ready(Ok(Way::Verbs(provided))).boxed()
        } else {
            future::ready(Err(Error::NoManager(port))).boxed()
        };
        Self {
            port,
            opening: opening.shared(),
        }
    }

    /// Opens it now: makes the port's queue pair 1, unless it exists.
    ///
    /// # Errors
    /// [`Error::NoManager`], [`Error::Verb`], [`Error::Service`].
    pub fn open(&self) -> Step<()> {
        let manager = self.clone();
        Step::new(async move { manager.way().await.map(drop) })
    }

    /// Has addresses looked up elsewhere from now on, for all users of the manager.
    ///
    /// # Errors
    /// As [`Manager::open`].
    pub fn use_resolver(&self, resolver: Arc<dyn Resolver>) -> Step<()> {
        let manager = self.clone();
        Step::new(async move {
            match manager.way().await? {
                Way::Messages(hub) => hub.set_resolver(resolver),
                Way::Verbs(provided) => provided.set_resolver(resolver),
            }
            Ok(())
        })
    }

    /// Ends when the messages to peers so far have left, rejections among them, so that the program may end.
    /// Opens the manager.
    ///
    /// # Errors
    /// As [`Manager::open`].
    pub fn drained(&self) -> Step<()> {
        let manager = self.clone();
        Step::new(async move {
            match manager.way().await? {
                Way::Messages(hub) => hub.drained().await,
                // Telling is the provider's.
                Way::Verbs(_) => {}
            }
            Ok(())
        })
    }

    /// Ends all connections of the manager, for a program that ends: the peers of those that are there are told
    /// (DREQ), those on their way are rejected or taken back, and queue pairs go to ERR. Ends when the peers
    /// have answered, or did not in spite of all retries, which may take minutes: callers set a time of their
    /// own. Connections that the provider's verbs have made are ended by dropping them. Opens the manager.
    ///
    /// # Errors
    /// As [`Manager::open`].
    ///
    /// # Cancel safety
    /// The peers are told once when it begins; a future that is dropped does not wait for their answers.
    ///
    /// ```no_run
    /// # async fn example(dev: &verbs_core::Device) -> Result<(), verbs_cm::Error> {
    /// // The program was told to end.
    /// verbs_cm::Manager::of(dev).disconnect_all().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn disconnect_all(&self) -> Step<()> {
        let manager = self.clone();
        Step::new(async move {
            if let Way::Messages(hub) = manager.way().await? {
                hub.disconnect_all().await;
            }
            Ok(())
        })
    }

    /// Connections in any state, those in timewait among them, and resolutions under way. Opens the
    /// manager.
    ///
    /// # Errors
    /// As [`Manager::open`].
    pub fn count(&self) -> Step<Counts> {
        let manager = self.clone();
        Step::new(async move {
            match manager.way().await? {
                Way::Messages(hub) => Ok(hub.counts()),
                Way::Verbs(_) => Ok(Counts::default()),
            }
        })
    }

    /// Has all modifies of queue pairs carried out elsewhere; for benchmarks.
    #[doc(hidden)]
    pub fn modify_by(&self, modifier: Arc<Modifier>) -> Step<()> {
        let manager = self.clone();
        Step::new(async move {
            manager.by_messages().await?.modify_by(modifier);
            Ok(())
        })
    }

    /// The way of those that have one only: by messages.
    pub(crate) async fn by_messages(&self) -> Result<Arc<Hub>, Error> {
        match self.way().await? {
            Way::Messages(hub) => Ok(hub),
            Way::Verbs(_) => Err(Error::NoManager(self.port)),
        }
    }

    pub(crate) async fn way(&self) -> Result<Way, Error> {
        self.opening.clone().await
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
