//! A fat tree of two levels, its links, and the way of a packet.

/// The number of a link, which is one direction of a cable.
pub(super) type LinkId = usize;

/// Links of a path at most.
pub(super) const HOPS_MAX: usize = 4;

/// Leaves with as many hosts as links to spines, one to each: as much goes up as comes from below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// Leaves, spines, and hosts of each leaf.
    width: usize,
}

/// What is at the beginning of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Host(usize),
    Switch,
}

impl Tree {
    /// With that many hosts; `None` unless they are a square.
    pub(super) fn new(hosts: usize) -> Option<Self> {
        let width = hosts.isqrt();
        (width > 1 && width * width == hosts).then_some(Self { width })
    }

    pub(super) fn hosts(self) -> usize {
        self.width * self.width
    }

    /// All links: from hosts, from leaves up, from spines, and to hosts.
    pub(super) fn links(self) -> usize {
        4 * self.hosts()
    }

    /// The link of a host to its leaf.
    pub(super) fn of_host(self, host: usize) -> LinkId {
        host
    }

    pub(super) fn origin(self, link: LinkId) -> Origin {
        match link < self.hosts() {
            true => Origin::Host(link),
            false => Origin::Switch,
        }
    }

    fn up(self, leaf: usize, spine: usize) -> LinkId {
        self.hosts() + leaf * self.width + spine
    }

    fn down(self, spine: usize, leaf: usize) -> LinkId {
        2 * self.hosts() + spine * self.width + leaf
    }

    fn to_host(self, host: usize) -> LinkId {
        3 * self.hosts() + host
    }

    /// The links from one host to another, by the spine that is number `choice` of all.
    pub(super) fn path(self, from: usize, to: usize, choice: usize) -> Path {
        let (leaf, other) = (from / self.width, to / self.width);
        let spine = choice % self.width;
        let mut path = Path::default();
        path.push(self.of_host(from));
        if leaf != other {
            path.push(self.up(leaf, spine));
            path.push(self.down(spine, other));
        }
        path.push(self.to_host(to));
        path
    }
}

/// The links of a path, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    links: [LinkId; HOPS_MAX],
    len: usize,
}

impl Path {
    fn push(&mut self, link: LinkId) {
        self.links[self.len] = link;
        self.len += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The link behind so many others.
    pub(super) fn link(&self, hop: usize) -> Option<LinkId> {
        self.links[..self.len].get(hop).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: each link is one place, and paths are continuous. Method: all paths of a small tree; every link is used by some.
    #[test]
    fn paths_use_every_link() {
        let tree = Tree::new(16).expect("a square");
        let mut used = BTreeSet::new();
        for from in 0..16 {
            for to in (0..16).filter(|&to| to != from) {
                for spine in 0..4 {
                    let path = tree.path(from, to, spine);
                    let links: Vec<_> = (0..path.len()).filter_map(|hop| path.link(hop)).collect();
                    assert_eq!(links.len(), if from / 4 == to / 4 { 2 } else { 4 });
                    assert_eq!(tree.origin(links[0]), Origin::Host(from));
                    assert!(
                        links[1..]
                            .iter()
                            .all(|&link| tree.origin(link) == Origin::Switch)
                    );
                    used.extend(links);
                }
            }
        }
        assert_eq!(used, (0..tree.links()).collect());
        assert!(
            [0, 1, 2, 63, 1000]
                .map(Tree::new)
                .iter()
                .all(Option::is_none)
        );
    }
}
