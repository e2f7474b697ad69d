//! The parts of a subnet.

pub(crate) mod fat_tree;
mod file;

use std::collections::BTreeMap;
use std::fmt;

use verbs_core::Guid;
use verbs_core::mad::sm::{LinkWidth, NodeType};

/// A node of a topology, numbered in the order of addition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As an index.
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A port of a node; port 0 is a switch itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRef {
    /// The node.
    pub node: NodeId,
    /// The port's number.
    pub port: u8,
}

impl fmt::Debug for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.node.0, self.port)
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name in files and commands; names are unique.
    pub name: String,
    /// Its description of itself.
    pub description: String,
    /// Adapter or switch.
    pub node_type: NodeType,
    /// Physical ports.
    pub ports: u8,
    /// The node's GUID. An adapter's port has this GUID plus the port's number.
    pub guid: Guid,
    /// Shared by all nodes of one box.
    pub system_guid: Guid,
    /// IEEE number of the vendor.
    pub vendor_id: u32,
    /// Kind of device.
    pub device_id: u16,
}

impl NodeSpec {
    /// Whether it forwards packets.
    pub fn is_switch(&self) -> bool {
        self.node_type == NodeType::SWITCH
    }
}

/// A link between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// One end.
    pub ends: [PortRef; 2],
    /// Widths that both ends may use.
    pub widths: LinkWidth,
    /// Speeds that both ends may use: 1 for 2.5 Gb/s a lane, 2 for 5, 4 for 10.
    pub speeds: u8,
    /// Extended speeds: 1 for 14 Gb/s a lane, 2 for 25, 4 for 50; 0 for none.
    pub speeds_extended: u8,
}

/// Why a topology is invalid. The line is that of the file, 0 for one that was built in code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Two nodes have the same name.
    #[error("line {line}: there are two nodes called {name:?}")]
    NameTaken {
        /// Where.
        line: usize,
        /// The name.
        name: String,
    },
    /// A node or a port has the GUID of another.
    #[error("line {line}: GUID {guid:#018x} of {name:?} is another's")]
    GuidTaken {
        /// Where.
        line: usize,
        /// The node.
        name: String,
        /// The GUID.
        guid: u64,
    },
    /// A link refers to a node that does not exist.
    #[error("line {line}: there is no node {name:?}")]
    NoNode {
        /// Where.
        line: usize,
        /// The name.
        name: String,
    },
    /// A node has no port of that number.
    #[error("line {line}: {name:?} has ports 1 to {max}, not {port}")]
    NoPort {
        /// Where.
        line: usize,
        /// The node.
        name: String,
        /// The number.
        port: u8,
        /// The highest port.
        max: u8,
    },
    /// A port has two links.
    #[error("line {line}: port {port} of {name:?} has a link already")]
    PortTaken {
        /// Where.
        line: usize,
        /// The node.
        name: String,
        /// The port.
        port: u8,
    },
    /// A line is not in the format.
    #[error("line {line}: {what}")]
    Syntax {
        /// Where.
        line: usize,
        /// What was expected.
        what: &'static str,
    },
    /// More than a subnet can have.
    #[error("more than {max} {what}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        max: usize,
    },
}

/// Nodes that a subnet has at most: as many as it has unicast LIDs.
pub(crate) const NODES_MAX: usize = 0xbfff;

/// The first of the GUIDs that are assigned automatically.
const HCA_GUIDS: u64 = 0x10_0000;
const SWITCH_GUIDS: u64 = 0x20_0000;

/// The vendor id of the nodes: one that no vendor has, so managers apply no workarounds.
const VENDOR: u32 = 0x0056_5242;

/// Nodes, and the links between them.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    nodes: Vec<NodeSpec>,
    links: Vec<LinkSpec>,
    names: BTreeMap<String, NodeId>,
    guids: BTreeMap<u64, NodeId>,
    taken: BTreeMap<PortRef, usize>,
    hca_guids: u64,
    switch_guids: u64,
}

impl Topology {
    /// An empty topology.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a switch with ports 1 to `ports`.
    ///
    /// # Errors
    /// [`TopologyError::NameTaken`], [`TopologyError::Limit`].
    pub fn switch(&mut self, name: &str, ports: u8) -> Result<NodeId, TopologyError> {
        let spec = self.switch_spec(name, ports);
        self.node(0, spec)
    }

    /// A switch that is not added yet.
    pub(super) fn switch_spec(&mut self, name: &str, ports: u8) -> NodeSpec {
        let guid = Guid(SWITCH_GUIDS + self.switch_guids);
        self.switch_guids += u64::from(ports) + 1;
        spec(name, NodeType::SWITCH, ports, guid)
    }

    /// Adds a channel adapter with ports 1 to `ports`.
    ///
    /// # Errors
    /// [`TopologyError::NameTaken`], [`TopologyError::Limit`].
    pub fn hca(&mut self, name: &str, ports: u8) -> Result<NodeId, TopologyError> {
        let spec = self.hca_spec(name, ports);
        self.node(0, spec)
    }

    /// An adapter that is not added yet.
    pub(super) fn hca_spec(&mut self, name: &str, ports: u8) -> NodeSpec {
        let guid = Guid(HCA_GUIDS + self.hca_guids);
        self.hca_guids += u64::from(ports) + 1;
        spec(name, NodeType::CA, ports, guid)
    }

    /// Adds a node of any kind.
    ///
    /// # Errors
    /// [`TopologyError::NameTaken`], [`TopologyError::GuidTaken`], [`TopologyError::Limit`].
    pub(super) fn node(&mut self, line: usize, spec: NodeSpec) -> Result<NodeId, TopologyError> {
        if self.nodes.len() >= NODES_MAX {
            return Err(TopologyError::Limit {
                what: "nodes",
                max: NODES_MAX,
            });
        }
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        if self.names.contains_key(&spec.name) {
            let name = spec.name;
            return Err(TopologyError::NameTaken { line, name });
        }
        let ports = if spec.is_switch() { 0 } else { spec.ports };
        for guid in spec.guid.0..=spec.guid.0.saturating_add(ports.into()) {
            if self.guids.insert(guid, id).is_some() {
                let name = spec.name;
                return Err(TopologyError::GuidTaken { line, name, guid });
            }
        }
        self.names.insert(spec.name.clone(), id);
        self.nodes.push(spec);
        Ok(id)
    }

    /// Connects two ports, four lanes wide, as fast as both support.
    ///
    /// # Errors
    /// [`TopologyError::NoPort`], [`TopologyError::PortTaken`].
    pub fn link(&mut self, a: (NodeId, u8), b: (NodeId, u8)) -> Result<(), TopologyError> {
        let [a, b] = [a, b].map(|(node, port)| PortRef { node, port });
        self.connect(
            0,
            LinkSpec {
                ends: [a, b],
                widths: LinkWidth::X1 | LinkWidth::X4,
                speeds: 7,
                speeds_extended: 0,
            },
        )
    }

    /// Connects two ports.
    ///
    /// # Errors
    /// [`TopologyError::NoPort`], [`TopologyError::PortTaken`].
    pub(super) fn connect(&mut self, line: usize, link: LinkSpec) -> Result<(), TopologyError> {
        let [a, b] = link.ends;
        let known = self.taken.get(&a).and_then(|&index| self.links.get(index));
        // Files list each link at both of its ends.
        if known.is_some_and(|known| known.ends == [b, a]) {
            return Ok(());
        }
        for end in link.ends {
            let Some(node) = self.nodes.get(end.node.index()) else {
                let name = format!("{:?}", end.node);
                return Err(TopologyError::NoNode { line, name });
            };
            let (name, port, max) = (node.name.clone(), end.port, node.ports);
            if port == 0 || port > max {
                return Err(TopologyError::NoPort {
                    line,
                    name,
                    port,
                    max,
                });
            }
            if self.taken.contains_key(&end) || a == b {
                return Err(TopologyError::PortTaken { line, name, port });
            }
        }
        for end in link.ends {
            self.taken.insert(end, self.links.len());
        }
        self.links.push(link);
        Ok(())
    }

    /// The nodes, in order of their numbers.
    pub fn nodes(&self) -> &[NodeSpec] {
        &self.nodes
    }

    /// The links.
    pub fn links(&self) -> &[LinkSpec] {
        &self.links
    }

    /// The node of that name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    /// The first adapter.
    pub fn first_hca(&self) -> Option<NodeId> {
        let index = self.nodes.iter().position(|node| !node.is_switch())?;
        u32::try_from(index).ok().map(NodeId)
    }
}

fn spec(name: &str, node_type: NodeType, ports: u8, guid: Guid) -> NodeSpec {
    NodeSpec {
        name: name.to_owned(),
        description: name.to_owned(),
        node_type,
        ports,
        guid,
        system_guid: guid,
        vendor_id: VENDOR,
        device_id: if node_type == NodeType::SWITCH { 2 } else { 1 },
    }
}
