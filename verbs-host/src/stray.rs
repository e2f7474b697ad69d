//! Messages for the connection manager that belong to no client: a request for a service that no client offers, the
//! message of a connection whose client has ended. A manager without listeners answers them as the protocol requires.

use std::fmt;
use std::net::IpAddr;

use verbs_cm::{Cm, Config, Port};
use verbs_core::host::message::PortNews;
use verbs_core::mad::{Address, MadBytes, TimeCode};
use verbs_core::time::Instant;
use verbs_core::{Av, Gid, Guid, Lid, LinkLayer, Seed};

use crate::daemon::Mad;

/// The only port.
const PORT: u8 = 1;

pub(crate) struct Strays {
    cm: Cm,
    guid: Guid,
    addresses: Vec<IpAddr>,
}

impl Strays {
    pub(crate) fn new(port: &PortNews, guid: Guid, seed: Seed) -> Self {
        Self {
            cm: Cm::new(Config::default(), port_of(port, guid), 0, seed),
            guid,
            addresses: port.addresses.clone(),
        }
    }

    pub(crate) fn port_changed(&mut self, port: &PortNews) {
        self.addresses.clone_from(&port.addresses);
        self.cm.port_changed(port_of(port, self.guid));
    }

    /// A message from that peer, to one of the port's addresses.
    pub(crate) fn handle(&mut self, now: Instant, (peer, own): (IpAddr, IpAddr), mad: &MadBytes) {
        let Some(index) = self.addresses.iter().position(|&address| address == own) else {
            return;
        };
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        let from = Address::gsi(Av::to_gid(PORT, index, Gid::from(peer)));
        self.cm.handle(now, from, mad);
    }

    /// An answer.
    pub(crate) fn poll_mad(&mut self) -> Option<Mad> {
        // There are no connections, so there is nothing to report.
        while self.cm.poll_event().is_some() {}
        while self.cm.poll_qp_change().is_some() {}
        loop {
            let (to, mad) = self.cm.poll_transmit()?;
            let global = to.av.global;
            let own = global
                .and_then(|global| self.addresses.get(usize::from(global.sgid_index)).copied());
            if let Some((src, global)) = own.zip(global) {
                let dst = IpAddr::from(global.dgid);
                return Some(Mad { src, dst, mad });
            }
        }
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.cm.handle_timeout(now);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.cm.poll_timeout()
    }
}

fn port_of(port: &PortNews, guid: Guid) -> Port {
    let gids = (0..).zip(port.addresses.iter().map(|&address| Gid::from(address)));
    Port {
        number: PORT,
        ca_guid: guid,
        link_layer: LinkLayer::Ethernet,
        lid: Lid(0),
        gids: gids.collect(),
        mtu: port.mtu,
        ack_delay: TimeCode::new(15),
        migrates: false,
    }
}

impl fmt::Debug for Strays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Strays")
            .field("guid", &self.guid)
            .finish_non_exhaustive()
    }
}
