//! What carries the connection manager's messages: management datagrams of the port's service; or the device itself, which
//! makes connections by its own verbs, as iWARP does.

use std::sync::Arc;

use hca_sim::clock::Clock;
use verbs_core::Timer;
use verbs_core::cm::CmBinder;
use verbs_core::host::HostPorts;
use verbs_core::mad::{Address, MadAgent, MadBytes, MadService, PortInfo};
use verbs_core::time::Instant;

/// How peers are reached.
pub(in crate::rdmacm) enum Carrier {
    Mads {
        service: MadService,
        agent: MadAgent,
    },
    Verbs {
        binder: CmBinder,
        port: Arc<PortInfo>,
        clock: Clock,
    },
}

impl Carrier {
    pub(in crate::rdmacm) fn now(&self) -> Instant {
        match self {
            Self::Mads { service, .. } => service.now(),
            Self::Verbs { clock, .. } => clock.now(),
        }
    }

    /// What is known of the port.
    pub(in crate::rdmacm) fn port(&self) -> Arc<PortInfo> {
        match self {
            Self::Mads { service, .. } => service.port(),
            Self::Verbs { port, .. } => Arc::clone(port),
        }
    }

    /// The port numbers that are shared with other processes, if they are. Those of TCP are the system's.
    pub(in crate::rdmacm) fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        match self {
            Self::Mads { service, .. } => service.device().provider_of().host_ports(),
            Self::Verbs { .. } => None,
        }
    }

    pub(in crate::rdmacm) fn timer(&self) -> Option<Arc<dyn Timer>> {
        match self {
            Self::Mads { service, .. } => service.timer().cloned(),
            Self::Verbs { .. } => None,
        }
    }

    pub(in crate::rdmacm) fn send(&self, mads: Vec<(Address, MadBytes)>) {
        if let Self::Mads { agent, .. } = self {
            agent.send(mads);
        }
    }

    /// Ends when what was sent has left.
    pub(in crate::rdmacm) fn drained(&self) -> impl Future<Output = ()> + use<> {
        let leaves = match self {
            Self::Mads { service, .. } => Some(service.drained()),
            Self::Verbs { .. } => None,
        };
        async move {
            if let Some(leaves) = leaves {
                leaves.await;
            }
        }
    }

    /// What binds endpoints, where the device makes connections itself.
    pub(in crate::rdmacm) fn binder(&self) -> Option<&CmBinder> {
        match self {
            Self::Mads { .. } => None,
            Self::Verbs { binder, .. } => Some(binder),
        }
    }
}
