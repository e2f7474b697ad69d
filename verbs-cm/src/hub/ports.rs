//! Port numbers of the RDMA IP connection manager, and their holders.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::wire::PortSpace;

/// Numbers that are given to users that do not ask for one, as Linux has them.
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// The port numbers of one port. Many connections may be made from one number; listeners are kept
/// apart by the state machine, which looks at their addresses too.
#[derive(Debug)]
pub(crate) struct Ports {
    taken: BTreeSet<(PortSpace, u16)>,
    next: u16,
}

impl Ports {
    pub(crate) fn new(seed: u64) -> Self {
        let span = u64::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let offset = u16::try_from(seed % span).unwrap_or(0);
        Self {
            taken: BTreeSet::new(),
            next: EPHEMERAL.start() + offset,
        }
    }

    /// A free number; `None` when there is none.
    pub(crate) fn any(&mut self, space: PortSpace) -> Option<u16> {
        for _ in EPHEMERAL {
            let port = self.next;
            self.next = match port {
                last if last == *EPHEMERAL.end() => *EPHEMERAL.start(),
                port => port + 1,
            };
            if self.taken.insert((space, port)) {
                return Some(port);
            }
        }
        None
    }

    /// That number, unless it is taken.
    pub(crate) fn take(&mut self, space: PortSpace, port: u16) -> bool {
        self.taken.insert((space, port))
    }

    pub(crate) fn give_back(&mut self, space: PortSpace, port: u16) {
        self.taken.remove(&(space, port));
    }

    /// Numbers that are taken.
    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_run_out_and_come_back() {
        let mut ports = Ports::new(5);
        let first = ports.any(PortSpace::Tcp);
        assert_eq!(first, Some(32773));
        assert!(!ports.take(PortSpace::Tcp, 32773) && ports.take(PortSpace::Udp, 32773));
        let mut got = 1;
        while ports.any(PortSpace::Tcp).is_some() {
            got += 1;
        }
        assert_eq!(got, EPHEMERAL.len());
        ports.give_back(PortSpace::Tcp, 40000);
        assert_eq!(ports.any(PortSpace::Tcp), Some(40000));
    }
}
