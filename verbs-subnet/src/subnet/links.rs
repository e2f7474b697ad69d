//! Links: cables, training, and faults.

use verbs_core::mad::sm::PhysState;
use verbs_core::time::Instant;

use super::Subnet;
use crate::topology::{NodeId, PortRef};

/// The faults of a link, in packets per million, for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFault {
    /// Packets that vanish.
    pub lost_ppm: u32,
    /// Packets that arrive damaged: the receiver counts an error and drops them.
    pub damaged_ppm: u32,
}

/// What happens to a packet on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    Lost,
    Damaged,
}

impl Subnet {
    /// Pulls the cable out of a port, or puts it back. Returns whether there is a cable.
    pub fn plug(&mut self, now: Instant, at: PortRef, is_in: bool) -> bool {
        let Some(peer) = self.peer(at) else {
            return false;
        };
        for end in [at, peer] {
            if let Some(end) = self.end_mut(end) {
                end.is_plugged = is_in;
            }
        }
        if is_in {
            self.train(now, at);
        } else {
            self.cut(now, at, PhysState::POLLING);
        }
        for node in [at.node, peer.node] {
            self.settle(now, node);
        }
        self.handle_timeout(now);
        true
    }

    /// Makes the link at a port bad, for packets that leave there. Returns whether there is a link.
    pub fn set_fault(&mut self, at: PortRef, fault: LinkFault) -> bool {
        self.ways.forget();
        let end = self.end_mut(at);
        end.map(|end| end.fault = fault).is_some()
    }

    /// The port at the other end of the cable.
    pub fn peer(&self, at: PortRef) -> Option<PortRef> {
        let node = self.nodes.get(at.node.index())?;
        let end = node.ends.get(usize::from(at.port))?.as_ref()?;
        Some(end.peer)
    }

    fn end_mut(&mut self, at: PortRef) -> Option<&mut super::End> {
        let node = self.nodes.get_mut(at.node.index())?;
        node.ends.get_mut(usize::from(at.port))?.as_mut()
    }

    /// A manager has restarted a link, or switched it off. Returns the nodes that have changed.
    pub(super) fn restart(&mut self, now: Instant, at: PortRef, phys: PhysState) -> Vec<NodeId> {
        let Some(peer) = self.peer(at) else {
            return Vec::new();
        };
        if let Some(end) = self.end_mut(at) {
            end.is_disabled = phys == PhysState::DISABLED;
        }
        self.cut(now, at, phys);
        self.train(now, at);
        vec![at.node, peer.node]
    }

    /// Takes a link down at both of its ends. Reports the new state of this one.
    fn cut(&mut self, now: Instant, at: PortRef, phys: PhysState) {
        let Some(peer) = self.peer(at) else { return };
        for (end, phys) in [(at, Some(phys)), (peer, None)] {
            let disabled = self.end_mut(end).is_some_and(|end| end.is_disabled);
            let Some(node) = self.node_mut(end.node) else {
                continue;
            };
            let rest = if disabled {
                PhysState::DISABLED
            } else {
                PhysState::POLLING
            };
            let was_up = node.sma.port(end.port).map(|port| port.info().phys_state)
                == Some(PhysState::LINK_UP);
            node.sma.link_down(now, end.port, phys.unwrap_or(rest));
            if let Some(counts) = node.pma.counts_mut(end.port)
                && was_up
            {
                counts.link_downed += 1;
            }
        }
    }

    /// Brings a link up, if nothing prevents it.
    pub(super) fn train(&mut self, now: Instant, at: PortRef) {
        let Some(peer) = self.peer(at) else { return };
        let ready = [at, peer].map(|end| {
            let end = self.end_mut(end);
            end.is_some_and(|end| end.is_plugged && !end.is_disabled)
        });
        if ready != [true; 2] {
            return;
        }
        let (Some(&here), Some(&there)) = (self.port_info(at), self.port_info(peer)) else {
            return;
        };
        if [here, there]
            .iter()
            .any(|end| end.phys_state == PhysState::LINK_UP)
        {
            return;
        }
        for (end, other) in [(at, there), (peer, here)] {
            if let Some(node) = self.node_mut(end.node) {
                node.sma.link_up(now, end.port, &other);
            }
        }
    }

    /// Decides what happens to a packet that leaves there.
    pub(super) fn fate(&mut self, at: PortRef) -> Fate {
        let Some(fault) = self.end_mut(at).map(|end| end.fault) else {
            return Fate::Lost;
        };
        if fault == LinkFault::default() {
            return Fate::Arrives;
        }
        let drawn = self.rng.within(0..1_000_000);
        if drawn < fault.lost_ppm {
            Fate::Lost
        } else if drawn < fault.lost_ppm.saturating_add(fault.damaged_ppm) {
            Fate::Damaged
        } else {
            Fate::Arrives
        }
    }
}
