//! Routes through switches: for each destination the port to leave through, and trees for groups.
//!
//! Packets wait for room at the next switch; a circle of such waits is a deadlock. Routes that first go up and
//! then down, in some order of all switches, close no circle. The order is by distance from the adapters: in fat
//! trees this makes every shortest route valid and uses all spines. If it leaves two switches with adapters
//! without a route, the order is by distance from one root, which never does. What remains are routes between
//! switches themselves in the first order (two spines have no route that goes up first): those take the shortest
//! path, and are counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use verbs_core::{Guid, Lid};

use crate::fabric::{End, Fabric};

#[cfg(test)]
mod tests;

/// A number for each switch, dense.
type Index = usize;

const FAR: u32 = u32::MAX;

/// Switches and the links between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switches {
    guids: Vec<Guid>,
    by_guid: BTreeMap<Guid, Index>,
    /// By switch: port, the switch at its other end.
    neighbours: Vec<Vec<(u8, Index)>>,
    /// Whether adapters are linked to it.
    is_leaf: Vec<bool>,
}

/// The contents of the linear tables after a sweep.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    /// By switch: LID, port.
    pub(crate) tables: BTreeMap<Guid, BTreeMap<u16, u8>>,
    /// Pairs of switches whose routes follow no order.
    pub(crate) unordered: u64,
}

impl Switches {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        let guids: Vec<_> = fabric.switches().map(|(guid, _)| guid).collect();
        let by_guid: BTreeMap<_, _> = guids.iter().copied().zip(0..).collect();
        let mut neighbours = vec![Vec::new(); guids.len()];
        let mut is_leaf = vec![false; guids.len()];
        for (&(from, port), &(to, _)) in &fabric.links {
            let Some(&index) = by_guid.get(&from) else {
                continue;
            };
            match by_guid.get(&to) {
                // A link of a switch to itself is useless.
                Some(&other) if other != index => push(&mut neighbours, index, (port, other)),
                Some(_) => {}
                None => {
                    if let Some(leaf) = is_leaf.get_mut(index) {
                        *leaf = true;
                    }
                }
            }
        }
        Self {
            guids,
            by_guid,
            neighbours,
            is_leaf,
        }
    }

    fn neighbours(&self, of: Index) -> &[(u8, Index)] {
        self.neighbours.get(of).map_or(&[], Vec::as_slice)
    }

    /// Links to the nearest of some switches.
    fn distances(&self, from: impl IntoIterator<Item = Index>) -> Vec<u32> {
        let mut found = vec![FAR; self.guids.len()];
        let mut queue = VecDeque::new();
        for start in from {
            if let Some(place) = found.get_mut(start) {
                *place = 0;
                queue.push_back((start, 0));
            }
        }
        while let Some((at, distance)) = queue.pop_front() {
            for &(_, next) in self.neighbours(at) {
                if let Some(place) = found.get_mut(next).filter(|place| **place == FAR) {
                    *place = distance + 1;
                    queue.push_back((next, distance + 1));
                }
            }
        }
        found
    }

    /// The switch nearest to the one farthest from it; the first, if there are several.
    fn centre(&self, among: &BTreeSet<Index>) -> Option<Index> {
        let reach = |&index: &Index| {
            let distances = self.distances([index]);
            let targets = among.iter().filter_map(|&target| distances.get(target));
            targets.copied().max().unwrap_or(0)
        };
        (0..self.guids.len()).min_by_key(reach)
    }

    /// An order in which every two leaves have a route that goes up and then down: larger is up.
    fn order(&self) -> Vec<(u32, Index)> {
        let leaves = self.is_leaf.iter().zip(0..).filter(|(is, _)| **is);
        let leaves: BTreeSet<Index> = leaves.map(|(_, index)| index).collect();
        let by_leaf = self.distances(leaves.iter().copied());
        let order: Vec<_> = by_leaf.into_iter().zip(0..).collect();
        let joins_all = |order: &[(u32, Index)]| {
            leaves.iter().all(|&to| {
                let (down, up) = self.ordered(order, to);
                leaves.iter().all(|&from| {
                    let far = |table: &[u32]| table.get(from).is_none_or(|&hops| hops == FAR);
                    !far(&down) || !far(&up)
                })
            })
        };
        if joins_all(&order) {
            return order;
        }
        let everybody: BTreeSet<_> = (0..self.guids.len()).collect();
        let root = self.centre(&everybody);
        let by_root = self.distances(root);
        by_root
            .into_iter()
            .map(|distance| FAR - distance)
            .zip(0..)
            .collect()
    }

    /// Hops from each switch to one: by going down only, and by going up first.
    fn ordered(&self, order: &[(u32, Index)], to: Index) -> (Vec<u32>, Vec<u32>) {
        let rank = |index: Index| order.get(index).copied().unwrap_or_default();
        let mut down = vec![FAR; self.guids.len()];
        let mut queue = VecDeque::from([(to, 0)]);
        if let Some(place) = down.get_mut(to) {
            *place = 0;
        }
        while let Some((at, hops)) = queue.pop_front() {
            for &(_, above) in self.neighbours(at) {
                if rank(above) > rank(at)
                    && let Some(place) = down.get_mut(above).filter(|place| **place == FAR)
                {
                    *place = hops + 1;
                    queue.push_back((above, hops + 1));
                }
            }
        }
        // From the top: all switches above are already decided.
        let mut from_top: Vec<_> = (0..self.guids.len()).collect();
        from_top.sort_by_key(|&index| std::cmp::Reverse(rank(index)));
        let mut up = vec![FAR; self.guids.len()];
        for at in from_top {
            let above = self.neighbours(at).iter().map(|&(_, next)| next);
            let above = above.filter(|&next| rank(next) > rank(at));
            let hops = |next: Index| {
                let of = |table: &[u32]| table.get(next).copied().unwrap_or(FAR);
                // A switch that can go down does so: a packet that has gone down once must not go up again.
                match of(&down) {
                    FAR => of(&up),
                    hops => hops,
                }
            };
            let best = above.map(hops).min().unwrap_or(FAR);
            if let Some(place) = up.get_mut(at) {
                *place = best.saturating_add(1);
            }
        }
        (down, up)
    }

    /// From each switch, the next neighbours on a route to one.
    fn next_hops(&self, order: &[(u32, Index)], to: Index) -> (Vec<Vec<u8>>, u64) {
        let rank = |index: Index| order.get(index).copied().unwrap_or_default();
        let (down, up) = self.ordered(order, to);
        let shortest = self.distances([to]);
        let of = |table: &[u32], index: Index| table.get(index).copied().unwrap_or(FAR);
        let mut unordered = 0;
        let hops = (0..self.guids.len()).map(|at| {
            let neighbours = self.neighbours(at).iter().copied();
            let chosen = |is_next: &dyn Fn(Index) -> bool| -> Vec<u8> {
                let next = neighbours.clone().filter(|&(_, next)| is_next(next));
                next.map(|(port, _)| port).collect()
            };
            if at == to {
                return Vec::new();
            }
            if of(&down, at) != FAR {
                let left = of(&down, at) - 1;
                return chosen(&|next| rank(next) < rank(at) && of(&down, next) == left);
            }
            if of(&up, at) != FAR {
                let left = of(&up, at) - 1;
                return chosen(&|next| {
                    let hops = match of(&down, next) {
                        FAR => of(&up, next),
                        hops => hops,
                    };
                    rank(next) > rank(at) && hops == left
                });
            }
            if of(&shortest, at) == FAR {
                return Vec::new();
            }
            unordered += 1;
            let left = of(&shortest, at) - 1;
            chosen(&|next| of(&shortest, next) == left)
        });
        let hops = hops.collect();
        (hops, unordered)
    }
}

/// The tables of all switches for all LIDs.
pub(crate) fn unicast(fabric: &Fabric) -> Routes {
    let switches = Switches::new(fabric);
    let order = switches.order();
    let mut routes = Routes::default();
    let mut load: BTreeMap<End, u32> = BTreeMap::new();
    let mut by_switch: BTreeMap<Index, Vec<(Lid, u8)>> = BTreeMap::new();
    for (end, port) in fabric.end_ports() {
        let at = fabric.switch_of(end);
        let at = at.and_then(|(guid, out)| Some((*switches.by_guid.get(&guid)?, out)));
        if let Some((index, out)) = at.filter(|_| port.info.lid != Lid(0)) {
            by_switch
                .entry(index)
                .or_default()
                .push((port.info.lid, out));
        }
    }
    for (to, lids) in by_switch {
        let (hops, unordered) = switches.next_hops(&order, to);
        routes.unordered += unordered;
        for (&guid, hops) in switches.guids.iter().zip(&hops) {
            let table = routes.tables.entry(guid).or_default();
            for &(lid, out) in &lids {
                if switches.guids.get(to) == Some(&guid) {
                    table.insert(lid.0, out);
                    continue;
                }
                // If several are equally good, the one with the least load.
                let least = |&port: &u8| load.get(&(guid, port)).copied().unwrap_or(0);
                if let Some(&port) = hops.iter().min_by_key(|port| least(port)) {
                    *load.entry((guid, port)).or_default() += 1;
                    table.insert(lid.0, port);
                }
            }
        }
    }
    routes
}

/// The ports of each switch that belong to a group: a tree that spans the switches with members. `receives` is
/// false for a member that only sends.
pub(crate) fn multicast(
    fabric: &Fabric,
    members: impl Iterator<Item = (End, bool)>,
) -> BTreeMap<Guid, BTreeSet<u8>> {
    let switches = Switches::new(fabric);
    let mut ports: BTreeMap<Guid, BTreeSet<u8>> = BTreeMap::new();
    let mut at = BTreeSet::new();
    for (end, receives) in members {
        let Some((guid, out)) = fabric.switch_of(end) else {
            continue;
        };
        at.extend(switches.by_guid.get(&guid));
        let place = ports.entry(guid).or_default();
        if receives {
            place.insert(out);
        }
    }
    let Some(root) = switches.centre(&at).filter(|_| at.len() > 1) else {
        return ports;
    };
    let distances = switches.distances([root]);
    let of = |index: Index| distances.get(index).copied().unwrap_or(FAR);
    let guid_of = |index: Index| switches.guids.get(index).copied().unwrap_or_default();
    let mut queue: Vec<Index> = at.into_iter().collect();
    let mut is_in: BTreeSet<Index> = queue.iter().copied().collect();
    while let Some(index) = queue.pop() {
        if index == root || of(index) == FAR {
            continue;
        }
        let above = switches.neighbours(index).iter();
        let parent = above.copied().find(|&(_, next)| of(next) + 1 == of(index));
        let Some((port, parent)) = parent else {
            continue;
        };
        ports.entry(guid_of(index)).or_default().insert(port);
        if let Some(&(there, back)) = fabric.links.get(&(guid_of(index), port)) {
            ports.entry(there).or_default().insert(back);
        }
        if is_in.insert(parent) {
            queue.push(parent);
        }
    }
    ports
}

fn push(lists: &mut [Vec<(u8, Index)>], at: Index, what: (u8, Index)) {
    if let Some(list) = lists.get_mut(at) {
        list.push(what);
    }
}
