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
pub(crate) struct Claim {
    ports: Arc<dyn HostPorts>,
    service: Service,
}

/// Asks the host for a service, where there is a daemon to be asked; requests come here from then on. `at` is the address
/// for errors.
pub(crate) async fn claim(
    hub: &Hub,
    id: ServiceId,
    addr: Option<IpAddr>,
    at: SocketAddr,
) -> Result<Option<Claim>, Error> {
    let provider = hub.service.device().provider_of();
    let Some(ports) = provider.host_ports() else {
        return Ok(None);
    };
    let service = Service { id: id.0, addr };
    // A future that is dropped before the answer gives back what it gets.
    let (sender, answer) = oneshot::channel();
    let held = Arc::clone(&ports);
    ports.listen(
        service,
        Box::new(move |result| {
            let claim = result.map(|()| Claim {
                ports: held,
                service,
            });
            let _ = sender.send(claim);
        }),
    );
    match answer.await {
        Ok(Ok(claim)) => Ok(Some(claim)),
        Ok(Err(NotListening::InUse)) => Err(Error::AddressInUse(at)),
        Ok(Err(other)) => Err(Error::Host(other)),
        Err(_) => Err(Error::Host(NotListening::HostLost)),
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.ports.unlisten(self.service);
    }
}
