//! Port numbers that several processes share: where a daemon of the host has the port's addresses, a listener asks it.

use std::net::{IpAddr, SocketAddr};

use futures::channel::oneshot;
use verbs_core::host::HostPorts;
use verbs_core::host::message::{NotListening, Service};
use verbs_core::sync::Arc;

use crate::error::Error;
use crate::hub::Hub;
use crate::wire::ServiceId;

/// A service that this process offers on its host. Given back when it is dropped.
#[derive(Debug)]
pub struct HostClaim {
    ports: Arc<dyn HostPorts>,
    service: Service,
}

impl HostClaim {
    /// Asks the host's daemon for a service, at one address or at all that the device has; requests come here from then on.
    ///
    /// # Errors
    /// Why it is not this process's.
    ///
    /// # Cancel safety
    /// A future that is dropped before the answer gives back what it gets.
    pub async fn new(
        ports: Arc<dyn HostPorts>,
        id: ServiceId,
        addr: Option<IpAddr>,
    ) -> Result<Self, NotListening> {
        let service = Service { id: id.0, addr };
        let (sender, answer) = oneshot::channel();
        let held = Arc::clone(&ports);
        ports.listen(
            service,
            Box::new(move |result| {
                let claim = result.map(|()| Self {
                    ports: held,
                    service,
                });
                let _ = sender.send(claim);
            }),
        );
        answer.await.unwrap_or(Err(NotListening::HostLost))
    }
}

/// As [`HostClaim::new`], where there is a daemon to be asked. `at` is the address for errors.
pub(crate) async fn claim(
    hub: &Hub,
    id: ServiceId,
    addr: Option<IpAddr>,
    at: SocketAddr,
) -> Result<Option<HostClaim>, Error> {
    let provider = hub.service.device().provider_of();
    let Some(ports) = provider.host_ports() else {
        return Ok(None);
    };
    match HostClaim::new(ports, id, addr).await {
        Ok(claim) => Ok(Some(claim)),
        Err(NotListening::InUse) => Err(Error::AddressInUse(at)),
        Err(other) => Err(Error::Host(other)),
    }
}

impl Drop for HostClaim {
    fn drop(&mut self) {
        self.ports.unlisten(self.service);
    }
}
