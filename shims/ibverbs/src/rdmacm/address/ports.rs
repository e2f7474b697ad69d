//! Port numbers: which ids have which numbers, at which addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use verbs_cm::wire::PortSpace;

/// Numbers for ids that request none, as in Linux.
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// The port numbers that ids of this process have.
pub(in crate::rdmacm) struct Ports {
    /// By their numbers: the ids that have one, at one address each.
    bound: BTreeMap<(PortSpace, u16), Vec<Bound>>,
    next: u16,
    next_key: u64,
}

/// An id's hold of a port number, until it is [given back](Ports::give_back).
#[derive(Debug, PartialEq, Eq)]
pub(in crate::rdmacm) struct Binding {
    space: PortSpace,
    pub(in crate::rdmacm) port: u16,
    key: u64,
}

struct Bound {
    key: u64,
    ip: IpAddr,
    /// It shares the number with other ids that permit it too, as long as none of them listens.
    shares: bool,
    family_only: bool,
    listens: bool,
}

impl Ports {
    /// The search for free numbers begins at a position drawn from `seed`.
    pub(in crate::rdmacm) fn new(seed: u64) -> Self {
        let offset = seed % EPHEMERAL.len() as u64;
        let next = EPHEMERAL.start() + offset as u16;
        Self {
            bound: BTreeMap::new(),
            next,
            next_key: 0,
        }
    }

    /// Binds that address, or a free number of it if its own is 0. `None` if another id has it.
    pub(in crate::rdmacm) fn bind(
        &mut self,
        space: PortSpace,
        addr: SocketAddr,
        shares: bool,
        family_only: bool,
    ) -> Option<Binding> {
        let wanted = addr.ip();
        let add = |ports: &mut Self, port| ports.add(space, port, wanted, (shares, family_only));
        if addr.port() != 0 {
            let others = self.bound.get(&(space, addr.port()));
            let conflicts = |other: &Bound| {
                let both_share = other.shares && shares && !other.listens;
                other.overlaps(wanted, family_only) && !both_share
            };
            let is_taken = others.is_some_and(|others| others.iter().any(conflicts));
            return (!is_taken).then(|| add(self, addr.port()));
        }
        for _ in EPHEMERAL {
            let port = self.next;
            self.next = if port == *EPHEMERAL.end() {
                *EPHEMERAL.start()
            } else {
                port + 1
            };
            if !self.bound.contains_key(&(space, port)) {
                return Some(add(self, port));
            }
        }
        None
    }

    fn add(
        &mut self,
        space: PortSpace,
        port: u16,
        ip: IpAddr,
        (shares, family_only): (bool, bool),
    ) -> Binding {
        let key = self.next_key;
        self.next_key += 1;
        self.bound.entry((space, port)).or_default().push(Bound {
            key,
            ip,
            shares,
            family_only,
            listens: false,
        });
        Binding { space, port, key }
    }

    /// The id listens from now on. False if another id that shares the number listens already.
    pub(in crate::rdmacm) fn listen(&mut self, binding: &Binding) -> bool {
        let Some(all) = self.bound.get_mut(&(binding.space, binding.port)) else {
            return false;
        };
        let Some(place) = all.iter().position(|bound| bound.key == binding.key) else {
            return false;
        };
        let (ip, family_only) = (all[place].ip, all[place].family_only);
        let is_taken = all.iter().any(|other| {
            other.key != binding.key && other.listens && other.overlaps(ip, family_only)
        });
        all[place].listens |= !is_taken;
        !is_taken
    }

    pub(in crate::rdmacm) fn give_back(&mut self, binding: Binding) {
        let number = (binding.space, binding.port);
        if let Some(all) = self.bound.get_mut(&number) {
            all.retain(|bound| bound.key != binding.key);
            if all.is_empty() {
                self.bound.remove(&number);
            }
        }
    }
}

impl Bound {
    fn overlaps(&self, ip: IpAddr, family_only: bool) -> bool {
        if self.family_only && family_only && self.ip.is_ipv4() != ip.is_ipv4() {
            return false;
        }
        self.ip == ip || self.ip.is_unspecified() || ip.is_unspecified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(ports: &mut Ports, space: PortSpace, addr: &str, shares: bool) -> Option<Binding> {
        bind_only(ports, space, addr, (shares, false))
    }

    fn bind_only(
        ports: &mut Ports,
        space: PortSpace,
        addr: &str,
        (shares, family_only): (bool, bool),
    ) -> Option<Binding> {
        let addr = addr.parse().expect("an address");
        ports.bind(space, addr, shares, family_only)
    }

    /// Goal: wildcards of both families have one number if each says that it stands for its own family only.
    #[test]
    fn wildcards_of_two_families_have_one_number_if_both_say_so() {
        let (mut ports, tcp) = (Ports::new(5), PortSpace::Tcp);
        let only = (false, true);
        let six = bind_only(&mut ports, tcp, "[::]:7", only).expect("it is free");
        assert_eq!(bind(&mut ports, tcp, "0.0.0.0:7", false), None);
        let four = bind_only(&mut ports, tcp, "0.0.0.0:7", only).expect("of the other family");
        assert_eq!(bind_only(&mut ports, tcp, "127.0.0.2:7", only), None);
        assert!(ports.listen(&six) && ports.listen(&four));
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
