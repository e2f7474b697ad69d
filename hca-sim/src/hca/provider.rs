//! What the HCA says of the ways to its port.

use verbs_core::{CmLimits, NodeType, PortCaps, ProviderAttr, TransportType};

use crate::hca::Hca;
use crate::hca::verbs::device::check_port;

impl Hca {
    /// Connections are made by messages on queue pair 1, whatever the link.
    pub(super) fn provider_attr(&self, port: u8) -> ProviderAttr {
        if check_port(port).is_err() {
            return ProviderAttr::default();
        }
        let is_managed = self.port.managed.is_some();
        let transport = match self.port.driver() {
            Some(_) if !is_managed => TransportType::RoceV2,
            _ => TransportType::InfiniBand,
        };
        let mut caps = PortCaps::IB_CM | PortCaps::MAD | PortCaps::MCAST;
        caps.set(PortCaps::SMI | PortCaps::SA, is_managed);
        ProviderAttr {
            transport,
            node: NodeType::Ca,
            caps,
            cm: CmLimits::default(),
        }
    }
}
