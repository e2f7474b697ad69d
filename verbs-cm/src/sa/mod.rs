//! The subnet administrator's client: paths, multicast groups, services, nodes, and events of the subnet.
//!
//! The administrator runs beside the subnet manager, and is asked in datagrams on queue pair 1 (IBTA
//! vol. 1, chapter 15). There is one client for each port; [`SaClient`]s of a port are the same one. It
//! asks, asks again, waits and finds the answer, as one datagram or as a transfer of many.
//!
//! What is only asked for is a [`Step`] with records. What the administrator keeps for this port is an
//! object: a [`Group`] is left, a [`ServiceRegistration`] taken back and a [`Subscription`] ended when it
//! is dropped, by a request that need not be waited for. The administrator forgets all of it when another
//! manager takes over or the manager restarts; the port is told so by an event, and tells all again by
//! itself.
//!
//! # Context
//! Steps are requests: all may be issued from routines and handlers, none blocks but
//! [`Step::wait`], and there is no thread.
//!
//! ```no_run
//! use verbs_cm::sa::{Join, PathQuery, SaClient};
//! use verbs_core::{Device, Gid};
//!
//! # async fn example(device: &Device, peer: Gid, group: Gid) -> Result<(), verbs_cm::Error> {
//! let sa = SaClient::of(device, 1).await?;
//! let path = sa.path(PathQuery::to_gid(peer)).await?;
//! println!("LID {}, {:?}", path.dlid, path.sl);
//! let broadcast = sa.join(Join::full(group)).await?;
//! println!("MLID {}, Q_Key {:?}", broadcast.mlid(), broadcast.record().qkey);
//! broadcast.leave().await
//! # }
//! ```

mod cache;
mod client;
mod error;
mod group;
mod held;
mod notice;
mod path;
mod record;
mod service;

use std::fmt;

use verbs_core::Device;
use verbs_core::mad::sa::SaStatus;
use verbs_core::mad::{ClassPortInfo, MadService, Method, Retry};
use verbs_core::sync::Arc;

use crate::error::Error;
use crate::step::Step;
use client::Core;
use record::Question;

pub use cache::{PATHS_MAX, PathCache};
pub use error::SaError;
pub use group::{Group, Join};
pub use held::Change;
pub use notice::{NOTICES_MAX, Subscription};
pub use path::PathQuery;
pub use record::{Components, Record};
pub use service::{FOR_EVER, ServiceRegistration};

/// Asks the subnet administrator, for one port of a device. Clones are the same client.
#[derive(Clone)]
pub struct SaClient {
    core: Arc<Core>,
    retry: Retry,
}

impl SaClient {
    /// The client of that port; opens the port's service for management datagrams, unless it is open.
    ///
    /// It can be had before a manager has configured the port: what is asked until then fails with
    /// [`SaError::NoAdministrator`].
    ///
    /// # Errors
    /// [`Error::Verb`] where the port has no queue pair 1, [`Error::Service`].
    pub fn of(device: &Device, port: u8) -> Step<Self> {
        let opening = client::open(device, port);
        Step::new(async move {
            let core = opening.await?;
            Ok(Self {
                core,
                retry: Retry::default(),
            })
        })
    }

    /// The client of a port whose service is open.
    pub(crate) async fn over(service: MadService) -> Result<Self, Error> {
        let device = Arc::clone(service.device());
        Ok(Self {
            core: Core::of(device, service).await?,
            retry: Retry::default(),
        })
    }

    /// The same client, which waits for answers so long and asks so often. By default 2 s and three
    /// retries.
    #[must_use]
    pub fn with_retry(&self, retry: Retry) -> Self {
        Self {
            core: Arc::clone(&self.core),
            retry,
        }
    }

    /// Number of the port.
    pub fn port(&self) -> u8 {
        self.core.service.port().number
    }

    /// The one record whose fields that `mask` names are like those of `like`.
    ///
    /// # Errors
    /// [`Error::Sa`]: `Refused(NoRecords)` or `Refused(TooManyRecords)` where it is not exactly one;
    /// [`Error::Verb`].
    pub fn get<R: Record>(&self, like: &R, mask: R::Mask) -> Step<R> {
        let (client, question) = (self.clone(), Question::new(Method::GET, like, mask));
        Step::new(async move {
            let answer = client.core.ask(&question, client.retry).await?;
            answer.first().ok_or(SaError::Malformed.into())
        })
    }

    /// All records whose fields that `mask` names are like those of `like`; none is no error.
    ///
    /// # Errors
    /// [`Error::Sa`], [`Error::Verb`].
    pub fn table<R: Record>(&self, like: &R, mask: R::Mask) -> Step<Vec<R>> {
        let (client, question) = (self.clone(), Question::new(Method::GET_TABLE, like, mask));
        Step::new(async move {
            match client.core.ask(&question, client.retry).await {
                Ok(answer) => Ok(answer.all()),
                Err(Error::Sa(SaError::Refused(SaStatus::NoRecords))) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        })
    }

    /// What the administrator can do.
    ///
    /// # Errors
    /// [`Error::Sa`], [`Error::Verb`].
    pub fn class_port_info(&self) -> Step<ClassPortInfo> {
        self.get(&ClassPortInfo::default(), Components::default())
    }
}

impl fmt::Debug for SaClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaClient")
            .field("service", &self.core.service)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
