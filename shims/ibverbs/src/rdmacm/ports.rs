//! Port numbers: which ids have which, at which addresses.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use slab::Slab;
use verbs_cm::wire::PortSpace;

/// Numbers that are given to ids that ask for none, as Linux has them.
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// The port numbers that ids of this process have.
pub(super) struct Ports {
    bound: Slab<Bound>,
    next: u16,
}

/// An id's hold of a port number, until it is [given back](Ports::give_back).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Binding {
    key: usize,
    pub(super) port: u16,
}

struct Bound {
    space: PortSpace,
    addr: SocketAddr,
    /// It shares the number with others that say so too, while none of them listens.
    shares: bool,
    listens: bool,
}

impl Ports {
    /// The search for free numbers begins where `seed` says.
    pub(super) fn new(seed: u64) -> Self {
        let offset = seed % EPHEMERAL.len() as u64;
        let next = EPHEMERAL.start() + offset as u16;
        Self {
            bound: Slab::new(),
            next,
        }
    }

    /// Binds that address, or a free number of it if its own is 0. `None` if another has it.
    pub(super) fn bind(
        &mut self,
        space: PortSpace,
        addr: SocketAddr,
        shares: bool,
    ) -> Option<Binding> {
        let mut wanted = Bound {
            space,
            addr,
            shares,
            listens: false,
        };
        if addr.port() != 0 {
            let is_taken = self
                .bound
                .iter()
                .any(|(_, other)| other.conflicts_with(&wanted));
            return (!is_taken).then(|| self.add(wanted));
        }
        for _ in EPHEMERAL {
            let port = self.next;
            self.next = if port == *EPHEMERAL.end() {
                *EPHEMERAL.start()
            } else {
                port + 1
            };
            let same =
                |(_, other): (usize, &Bound)| (other.space, other.addr.port()) == (space, port);
            if !self.bound.iter().any(same) {
                wanted.addr.set_port(port);
                return Some(self.add(wanted));
            }
        }
        None
    }

    fn add(&mut self, bound: Bound) -> Binding {
        let port = bound.addr.port();
        Binding {
            key: self.bound.insert(bound),
            port,
        }
    }

    /// The id listens from now on. False if another that shares the number does.
    pub(super) fn listen(&mut self, binding: &Binding) -> bool {
        let Some(mine) = self.bound.get(binding.key) else {
            return false;
        };
        let (space, addr) = (mine.space, mine.addr);
        let is_taken = self
            .bound
            .iter()
            .any(|(key, other)| key != binding.key && other.listens && other.overlaps(space, addr));
        if let Some(mine) = self.bound.get_mut(binding.key).filter(|_| !is_taken) {
            mine.listens = true;
        }
        !is_taken
    }

    pub(super) fn give_back(&mut self, binding: Binding) {
        self.bound.try_remove(binding.key);
    }
}

impl Bound {
    fn overlaps(&self, space: PortSpace, addr: SocketAddr) -> bool {
        let any = |ip: IpAddr| ip.is_unspecified();
        let (one, other) = (self.addr.ip(), addr.ip());
        self.space == space
            && self.addr.port() == addr.port()
            && (one == other || any(one) || any(other))
    }

    fn conflicts_with(&self, wanted: &Self) -> bool {
        let both_share = self.shares && wanted.shares && !self.listens;
        self.overlaps(wanted.space, wanted.addr) && !both_share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(ports: &mut Ports, space: PortSpace, addr: &str, shares: bool) -> Option<Binding> {
        ports.bind(space, addr.parse().expect("an address"), shares)
    }

    #[test]
    fn a_number_is_one_ids_at_an_address() {
        let (mut ports, tcp) = (Ports::new(5), PortSpace::Tcp);
        let first = bind(&mut ports, tcp, "127.0.0.2:7", false).expect("it is free");
        assert_eq!(first.port, 7);
        assert_eq!(bind(&mut ports, tcp, "127.0.0.2:7", false), None);
        assert_eq!(bind(&mut ports, tcp, "0.0.0.0:7", true), None);
        assert!(bind(&mut ports, tcp, "127.0.0.3:7", false).is_some());
        assert!(bind(&mut ports, PortSpace::Udp, "127.0.0.2:7", false).is_some());
        ports.give_back(first);
        assert!(bind(&mut ports, tcp, "127.0.0.2:7", false).is_some());
    }

    #[test]
    fn ids_that_say_so_share_a_number_and_one_of_them_listens() {
        let (mut ports, tcp) = (Ports::new(5), PortSpace::Tcp);
        let [one, other] =
            [0, 1].map(|_| bind(&mut ports, tcp, "127.0.0.2:7", true).expect("shared"));
        assert_eq!(bind(&mut ports, tcp, "127.0.0.2:7", false), None);
        assert!(ports.listen(&one) && !ports.listen(&other));
        assert_eq!(bind(&mut ports, tcp, "127.0.0.2:7", true), None);
        ports.give_back(one);
        assert!(ports.listen(&other));
    }

    #[test]
    fn free_numbers_run_out_and_come_back() {
        let (mut ports, tcp) = (Ports::new(3), PortSpace::Tcp);
        let mut last = None;
        let mut got = 0;
        while let Some(binding) = bind(&mut ports, tcp, "127.0.0.2:0", false) {
            (last, got) = (Some(binding), got + 1);
        }
        let last = last.expect("some were free");
        assert_eq!((got, last.port), (EPHEMERAL.len(), 32770));
        ports.give_back(last);
        assert_eq!(
            bind(&mut ports, tcp, "127.0.0.2:0", false).map(|binding| binding.port),
            Some(32770)
        );
    }
}
