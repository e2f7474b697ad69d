//! Fat trees, built in code.

use super::{NodeId, Topology, TopologyError};

/// A tree of three levels: pods of leaves and spines, and cores above the spines.
///
/// Each leaf has a link to each spine of its pod; each spine has one to `cores / spines` cores, a share of its
/// own, so every core reaches every pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Pods.
    pub pods: u8,
    /// Leaves of each pod.
    pub leaves: u8,
    /// Spines of each pod.
    pub spines: u8,
    /// Cores, of all pods together; a multiple of `spines`.
    pub cores: u8,
    /// Adapters at each leaf.
    pub hosts: u8,
}

impl FatTree {
    /// 64 adapters, 8 switches.
    pub const SMALL: Self = Self::of(2, 2, 1, 2, 16);
    /// 256 adapters, 32 switches.
    pub const MEDIUM: Self = Self::of(4, 4, 2, 8, 16);
    /// 1,024 adapters, 128 switches.
    pub const LARGE: Self = Self::of(8, 8, 4, 32, 16);

    const fn of(pods: u8, leaves: u8, spines: u8, cores: u8, hosts: u8) -> Self {
        Self {
            pods,
            leaves,
            spines,
            cores,
            hosts,
        }
    }

    /// The tree with that many adapters: 64, 256 or 1024.
    pub const fn with_hosts(hosts: usize) -> Option<Self> {
        match hosts {
            64 => Some(Self::SMALL),
            256 => Some(Self::MEDIUM),
            1024 => Some(Self::LARGE),
            _ => None,
        }
    }

    /// Its nodes and links. Adapters are called `host1` and so on, in order of their leaves.
    ///
    /// # Errors
    /// [`TopologyError::NoPort`] when the cores are not a multiple of the spines,
    /// [`TopologyError::Limit`] when a switch would have more than 254 ports.
    pub fn topology(self) -> Result<Topology, TopologyError> {
        let ports = |down: u8, up: u8| {
            let max = 254;
            let what = "ports of a switch";
            let sum = down.checked_add(up).filter(|&sum| usize::from(sum) <= max);
            sum.ok_or(TopologyError::Limit { what, max })
        };
        let mut topology = Topology::new();
        let share = self.cores.checked_div(self.spines).unwrap_or(0);
        let mut cores: Vec<NodeId> = Vec::new();
        for core in 1..=self.cores {
            cores.push(topology.switch(&format!("core{core}"), self.pods)?);
        }
        let mut host = 0;
        for pod in 1..=self.pods {
            let mut spines = Vec::new();
            for spine in 1..=self.spines {
                let name = format!("spine{pod}-{spine}");
                let id = topology.switch(&name, ports(self.leaves, share)?)?;
                let first = usize::from(spine - 1) * usize::from(share);
                let own = cores.iter().skip(first).take(share.into());
                for (port, &core) in (self.leaves + 1..).zip(own) {
                    topology.link((id, port), (core, pod))?;
                }
                spines.push(id);
            }
            for leaf in 1..=self.leaves {
                let name = format!("leaf{pod}-{leaf}");
                let id = topology.switch(&name, ports(self.hosts, self.spines)?)?;
                for port in 1..=self.hosts {
                    host += 1;
                    let hca = topology.hca(&format!("host{host}"), 1)?;
                    topology.link((id, port), (hca, 1))?;
                }
                for (port, &spine) in (self.hosts + 1..).zip(&spines) {
                    topology.link((id, port), (spine, leaf))?;
                }
            }
        }
        Ok(topology)
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_trees_have_the_nodes_that_they_say() {
        for (hosts, switches) in [(64, 8), (256, 32), (1024, 128)] {
            let tree = FatTree::with_hosts(hosts).expect("one of ours");
            let topology = tree.topology().expect("it fits");
            let nodes = topology.nodes();
            let found = nodes.iter().filter(|node| node.is_switch()).count();
            assert_eq!((found, nodes.len() - found), (switches, hosts));
            // Each host has a link, each leaf one to each spine, each spine its share of cores.
            let pods = usize::from(tree.pods);
            let up = pods * usize::from(tree.leaves) * usize::from(tree.spines);
            let top = pods * usize::from(tree.cores);
            assert_eq!(topology.links().len(), hosts + up + top);
        }
        assert_eq!(FatTree::with_hosts(65), None);
    }
}
