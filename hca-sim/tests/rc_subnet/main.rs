//! Reliable connections across a simulated subnet: the scenarios of `rc`, where messages are placed directly,
//! must end in the same completions, states and bytes when their packets pass switches.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod damage;
#[path = "../rc/depths.rs"]
mod depths;
#[path = "../rc/ends.rs"]
mod ends;
#[path = "../rc/faults.rs"]
mod faults;
#[path = "../rc/hands.rs"]
mod hands;
#[path = "../rc/operations.rs"]
mod operations;
#[path = "../rc/states.rs"]
mod states;

/// Packets pass a switch that a manager has set up.
mod way {
    use std::cell::RefCell;
    use std::sync::{Arc, Weak};
    use std::time::Duration;

    use futures::executor::block_on;
    use hca_sim::clock::VirtualClock;
    use hca_sim::link::fabric::{Packet, PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
    use hca_sim::link::{Faults, Faulty};
    use hca_sim::{Builder, Hca};
    use verbs_core::mad::sm::PERMISSIVE_LID;
    use verbs_core::time::Instant;
    use verbs_core::{Av, Qp};

    /// Whether a requester learns more of its peer's reasons than a NAK says.
    pub(crate) const PEER_SAYS_WHY: bool = false;

    thread_local! {
        static HCAS: RefCell<Vec<Weak<Hca>>> = const { RefCell::new(Vec::new()) };
    }

    /// What iWARP lacks is refused, a SEND or WRITE is done when it was handed over, and a connection ends at both ends.
    pub(crate) const IS_IWARP: bool = false;

    /// Two HCAs that reach each other through one switch, after a recorded sweep of OpenSM.
    pub(crate) fn hcas(clock: &VirtualClock, change: fn(Builder) -> Builder) -> [Arc<Hca>; 2] {
        damaged(clock, change, Faults::NONE)
    }

    /// The same, on ports that receive packets with these faults.
    pub(crate) fn damaged(
        clock: &VirtualClock,
        change: fn(Builder) -> Builder,
        faults: Faults,
    ) -> [Arc<Hca>; 2] {
        let text = include_str!("../data/opensm/net-1sw-2ca");
        let topology = Topology::parse(text).unwrap();
        let [a, b] = ["HcaA", "HcaB"].map(|name| PortRef {
            node: topology.find(name).unwrap(),
            port: 1,
        });
        let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
        subnet.with(Instant::ZERO, |subnet| sweep(subnet, a));
        assert_eq!(
            subnet.with(Instant::ZERO, |subnet| subnet.port_counts()),
            (4, 4)
        );
        let hcas = [(a, 1), (b, 2)].map(|(at, seed)| {
            let port = subnet.attach(at, seed).unwrap();
            assert!(subnet.attach(at, seed).is_none(), "it is taken");
            let port = Faulty::new(port, seed).receiving(faults);
            change(Hca::over(port).clock(clock.clone())).build()
        });
        let known = hcas.each_ref().map(Arc::downgrade);
        HCAS.with_borrow_mut(|all| all.extend(known));
        hcas
    }

    fn sweep(subnet: &mut Subnet, at: PortRef) {
        for line in include_str!("../data/opensm/sweep.trace").lines() {
            let Some(line) = line.strip_prefix("SM>SMA") else {
                continue;
            };
            let digits = line.split('\t').nth(4).unwrap().as_bytes();
            let mut mad = Box::new([0; 256]);
            for (byte, digits) in mad.iter_mut().zip(digits.chunks(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
            }
            // The recorded nodes support 2048 bytes; these support 4096, which the scenarios need.
            let sets_port = mad[3] == 2 && mad[17] == 0x15;
            if sets_port && mad[100] >> 4 == 4 {
                mad[100] = 0x50 | mad[100] & 15;
            }
            let packet = Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad);
            subnet.send(Instant::ZERO, at, packet);
            while subnet.poll_delivery().is_some() {}
        }
        while subnet.poll_event().is_some() {}
    }

    /// The address of that HCA's port.
    pub(crate) fn address(hca: &Hca) -> Av {
        Av::to_gid(1, 0, hca.gid())
    }

    /// Makes them the two ends of a connection.
    pub(crate) fn connect(a: &mut Qp, b: &mut Qp) {
        block_on(hca_sim::connect(a, b)).unwrap();
    }

    /// Moves the clock on, and lets everything happen that is due until then.
    pub(crate) fn advance(clock: &VirtualClock, time: Duration) {
        let end = clock.now() + time;
        settle();
        while let Some(next) = clock.next_deadline().filter(|&next| next <= end) {
            clock.run_until(next);
            settle();
        }
        clock.run_until(end);
    }

    /// Lets everything happen that can happen at this time.
    pub(crate) fn settle() {
        let hcas: Vec<_> = HCAS.with_borrow(|all| all.iter().filter_map(Weak::upgrade).collect());
        while hcas.iter().fold(false, |any, hca| hca.turn() | any) {}
    }
}
