//! The HCA's report of how its port is reached.

use verbs_core::{CmLimits, NodeType, PortCaps, ProviderAttr, TransportType};

#[expect(
    unsafe_code,
    reason = "the HCA's word for registered memory: argued in it"
)]
pub(super) mod vouch;

use crate::hca::verbs::device::check_port;
use crate::port::Port;
use crate::port::streams::PRIVATE_DATA_MAX;
use crate::queue::base::limits::RD_ATOMIC;

/// Over packets, connections are made by messages on queue pair 1, whatever the link; over streams, by verbs.
pub(super) fn provider_attr(port: &Port, number: u8) -> ProviderAttr {
    if check_port(number).is_err() {
        return ProviderAttr::default();
    }
    if let Some(streams) = &port.streams {
        let mut caps = PortCaps::IW_CM;
        caps.set(PortCaps::SOFTWARE, !streams.link.is_offloaded());
        return ProviderAttr {
            transport: TransportType::Iwarp,
            node: NodeType::Rnic,
            caps,
            cm: CmLimits {
                private_data: PRIVATE_DATA_MAX as u16,
                max_ird: RD_ATOMIC as u8,
                max_ord: RD_ATOMIC as u8,
            },
        };
    }
    let is_managed = port.managed.is_some();
    let transport = match port.driver() {
        Some(_) if !is_managed => TransportType::RoceV2,
        _ => TransportType::InfiniBand,
    };
    let mut caps = PortCaps::IB_CM | PortCaps::MAD | PortCaps::MCAST | PortCaps::SOFTWARE;
    caps.set(PortCaps::SMI | PortCaps::SA, is_managed);
    ProviderAttr {
        transport,
        node: NodeType::Ca,
        caps,
        cm: CmLimits::default(),
    }
}
