//! Known paths: while nothing changes, packets follow an earlier packet's path without being checked at each port
//! again.

use std::collections::BTreeMap;

use verbs_core::mad::sm::{LinkState, PERMISSIVE_LID};
use verbs_core::{Lid, PKey};

use super::links::LinkFault;
use super::{Subnet, SubnetConfig};
use crate::topology::PortRef;

/// Paths that are remembered; beyond that, all are forgotten and found again.
const WAYS_MAX: usize = 65_536;

/// The fields that determine the path of an adapter's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The source port.
    pub from: PortRef,
    /// The destination LID: a port's, not a group's.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Partition.
    pub pkey: PKey,
}

/// The links of a path, each by the port that packets leave through and the port of arrival.
#[derive(Debug, Default)]
struct Way {
    links: Vec<(PortRef, PortRef)>,
    /// The virtual lane of the last link.
    vl: u8,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Ways(BTreeMap<Key, Way>);

type Key = (PortRef, Lid, u8, u16);

impl Ways {
    /// Something has changed that affects paths.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

impl Subnet {
    /// Carries packets at once, `words` words of four bytes in all; returns the receiver and the virtual lane.
    /// Returns `None`, with nothing done, if packets must be handled one by one ([`send`](Self::send)): if links
    /// have delays or faults, if packets are [recorded](super::Record), or if the packets do not arrive.
    pub fn carry(&mut self, bound: Bound, packets: u64, words: u64) -> Option<(PortRef, u8)> {
        if self.record.is_on() {
            return None;
        }
        let key = (bound.from, bound.dlid, bound.sl, bound.pkey.0);
        if !self.ways.0.contains_key(&key) {
            let way = self.find_way(bound)?;
            if self.ways.0.len() >= WAYS_MAX {
                self.ways.forget();
            }
            self.ways.0.insert(key, way);
        }
        let way = self.ways.0.get(&key)?;
        for &(out, into) in &way.links {
            let nodes = &mut self.nodes;
            let node = nodes.get_mut(out.node.index());
            if let Some(counts) = node.and_then(|node| node.pma.counts_mut(out.port)) {
                counts.xmit_packets += packets;
                counts.xmit_data += words;
            }
            let node = nodes.get_mut(into.node.index());
            if let Some(counts) = node.and_then(|node| node.pma.counts_mut(into.port)) {
                counts.rcv_packets += packets;
                counts.rcv_data += words;
            }
        }
        way.links.last().map(|&(_, at)| (at, way.vl))
    }

    /// The current path of packets, if they arrive at an adapter.
    fn find_way(&self, bound: Bound) -> Option<Way> {
        let SubnetConfig {
            link_delay,
            hops_max,
            ..
        } = self.config;
        let own = *self.port_info(bound.from)?;
        let leads_away = !bound.dlid.is_multicast()
            && bound.dlid != PERMISSIVE_LID
            && bound.dlid != Lid(0)
            && !own.has_lid(bound.dlid);
        if !leads_away || !link_delay.is_zero() {
            return None;
        }
        let mut way = Way::default();
        let (mut out, mut input) = (bound.from, bound.from.port);
        for _ in 0..hops_max {
            let into = self.next_port(out, input, bound, &mut way)?;
            let node = self.node(into.node)?;
            if !node.is_switch() {
                let info = self.port_info(into)?;
                return info.has_lid(bound.dlid).then_some(way);
            }
            let port = node.forward(bound.dlid)?;
            // Port 0 is the switch's own, and sent back out of its input port a packet would loop.
            if port == 0 || port == into.port {
                return None;
            }
            (out, input) = (PortRef { port, ..into }, into.port);
        }
        None
    }

    /// Where packets arrive that leave through `out`, having arrived through `input`.
    fn next_port(&self, out: PortRef, input: u8, bound: Bound, way: &mut Way) -> Option<PortRef> {
        let sma = self.node(out.node)?;
        let state = self.port_info(out)?.state;
        way.vl = sma.lane(input, out.port, bound.sl)?;
        let end = self
            .nodes
            .get(out.node.index())?
            .ends
            .get(usize::from(out.port));
        let end = end.and_then(Option::as_ref)?;
        let passes = state == LinkState::ACTIVE
            && sma.passes_partition(out.port, bound.pkey, false)
            && end.fault == LinkFault::default();
        let into = self.peer(out)?;
        let enters = matches!(
            self.port_info(into)?.state,
            LinkState::ARMED | LinkState::ACTIVE
        ) && self
            .node(into.node)?
            .passes_partition(into.port, bound.pkey, true);
        way.links.push((out, into));
        (passes && enters).then_some(into)
    }
}
