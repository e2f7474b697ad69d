//! The destinations of a port's packets, and the sources that packets may come from.

use std::net::{IpAddr, Ipv6Addr};

use verbs_core::mad::sm::{BadKey, PERMISSIVE_LID};
use verbs_core::{Av, Gid, Lid, Qpn};

use crate::link::{Local, Route};
use crate::port::Port;
use crate::transport::Incoming;

/// The address of packets that have none.
const NOWHERE: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

impl Port {
    /// The route that an address vector describes, if there is one from here.
    pub(crate) fn route(&self, av: &Av) -> Option<Route> {
        let global = av.global;
        let src = self.gid(global.map_or(0, |global| global.sgid_index))?;
        let (dgid, local) = if let Some(slid) = self.slid(av) {
            let local = Local {
                slid,
                dlid: av.dlid,
                sl: av.sl,
                global: global.is_some(),
            };
            // Without a header for it, an address is not needed.
            let dgid = global.map_or(Gid::from(NOWHERE), |global| global.dgid);
            (dgid, Some(local))
        } else if self.is_wire() {
            (global?.dgid, None)
        } else {
            let (dgid, dlid) = match global {
                Some(global) if global.dgid.is_multicast() => (global.dgid, av.dlid),
                _ => self.link.lock().address_of(av)?,
            };
            let local = Local {
                slid: self.lid,
                dlid,
                sl: av.sl,
                global: global.is_some(),
            };
            (dgid, Some(local))
        };
        let src = if global.is_none() && self.managed.is_some() {
            Gid::from(NOWHERE)
        } else {
            src
        };
        let (src, dst) = (IpAddr::from(src), IpAddr::from(dgid));
        (src.is_ipv4() == dst.is_ipv4()).then_some(Route {
            src,
            dst,
            tclass: global.map_or(0, |global| global.traffic_class),
            hop_limit: global.map_or(64, |global| global.hop_limit),
            local,
        })
    }

    /// On a managed port, the LID that packets are sent from: directed routes need no LID.
    fn slid(&self, av: &Av) -> Option<Lid> {
        self.managed.as_ref()?;
        let settings = self.settings.lock();
        let info = settings.info.as_ref()?;
        Some(match av.dlid {
            PERMISSIVE_LID => PERMISSIVE_LID,
            _ => info.lid_of(av.src_path_bits),
        })
    }

    /// Reports a packet whose key does not match to the subnet manager, if there is one.
    pub(crate) fn report(&self, packet: &Incoming<'_>, is_qkey: bool) {
        let (Some(managed), Some(local)) = (&self.managed, packet.local) else {
            return;
        };
        let (bth, deth) = (packet.head.bth(), packet.head.ext().deth);
        let qkey = deth.map_or(0, |deth| deth.qkey.0);
        let gids = if local.global {
            [Gid::from(packet.src).0, Gid::from(packet.dst).0]
        } else {
            [[0; 16]; 2]
        };
        managed.report(&BadKey {
            is_qkey,
            key: if is_qkey { qkey } else { bth.pkey.0.into() },
            sl: local.sl,
            from: local.slid,
            src_qpn: deth.map_or(Qpn::new(0), |deth| deth.src_qpn),
            dest_qpn: bth.dest_qpn,
            gids,
        });
    }

    /// Whether a packet comes from the address that a connection's own packets are sent to.
    pub(crate) fn is_peer(&self, own: &Route, packet: &Incoming<'_>) -> bool {
        let is_by_address = own.dst == packet.src && own.src == packet.dst;
        match (own.local, packet.local) {
            (Some(own), Some(came)) if self.managed.is_some() => {
                let is_by_lid = own.dlid == Lid(0) || own.dlid == came.slid;
                is_by_lid && (is_by_address || !own.global || !came.global)
            }
            _ => is_by_address,
        }
    }
}
