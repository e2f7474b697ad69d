//! An attached port as subnet management sees it.

use std::fmt;

use verbs_core::mad::sm::{BadKey, CapabilityMask};
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::sync::Arc;
use verbs_core::{Gid, Qpn};

use super::Inner;
use crate::agent::{Arrival, Processed};
use crate::subnet::Subnet;
use crate::topology::PortRef;
use verbs_link::{Managed, PortTables};

/// A port of a subnet, for its managers.
#[derive(Clone)]
pub(super) struct Manager {
    pub(super) inner: Arc<Inner>,
    pub(super) at: PortRef,
}

impl Manager {
    pub(super) fn new(inner: Arc<Inner>, at: PortRef) -> Self {
        Self { inner, at }
    }
}

impl Managed for Manager {
    fn tables(&self) -> PortTables {
        let shared = self.inner.state.lock();
        let tables = tables_of(&shared.subnet, self.at);
        tables.expect("a port that was attached stays")
    }

    fn process(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        let at = self.at;
        let processed = self.inner.act(|shared, now| {
            let arrival = Arrival {
                port: at.port,
                slid: incoming.slid,
                now,
            };
            let subnet = &mut shared.subnet;
            subnet.process(at.node, arrival, incoming.qpn, incoming.mad)
        });
        match processed {
            Processed::Reply(mad) => {
                *reply = *mad;
                MadVerdict::Reply
            }
            Processed::Consumed => MadVerdict::Consumed,
            Processed::NotMine => MadVerdict::NotMine,
        }
    }

    fn attend(&self, qpn: Qpn, attends: bool) {
        let mut shared = self.inner.state.lock();
        shared.subnet.attend(self.at, qpn, attends);
    }

    fn offer(&self, set: u32, clear: u32) {
        let [set, clear] = [set, clear].map(CapabilityMask::from_bits_retain);
        self.inner
            .act(|shared, now| shared.subnet.offer(now, self.at, set, clear));
    }

    fn report(&self, packet: &BadKey) {
        self.inner
            .act(|shared, now| shared.subnet.report(now, self.at, packet));
    }

    fn plug(&self, is_in: bool) {
        self.inner
            .act(|shared, now| shared.subnet.plug(now, self.at, is_in));
    }
}

/// The state of a port; `None` if there is no such port.
pub(crate) fn tables_of(subnet: &Subnet, at: PortRef) -> Option<PortTables> {
    let node = subnet.node(at.node)?;
    let port = node.port(at.port)?;
    let (node, info) = (node.node_info(at.port), *port.info());
    let gids = (0..info.guid_cap).map(|index| port.gid(index).unwrap_or(Gid::default()));
    Some(PortTables {
        node_guid: node.node_guid,
        system_guid: node.system_guid,
        info,
        gids: gids.collect(),
        pkeys: port.pkeys().to_vec(),
    })
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("at", &self.at).finish()
    }
}
