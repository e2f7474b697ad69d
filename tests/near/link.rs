//! Two links of one daemon that share memory already, and that no thread waits for.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use hca_sim::clock::VirtualClock;
use hca_sim::link::{
    Arrival, Burst, Change, Feedback, FillWindow, Joined, LinkCounters, LongPacket, PacketLink,
    Route, Sent, Waiter,
};
use verbs_core::mem::Unmapped;
use verbs_core::sync::Arc;
use verbs_core::{Mtu, Qpn};

use crate::daemon;

/// A link in virtual time: whoever runs the HCA looks at it.
#[derive(Debug)]
pub(crate) struct Polled(Joined);

/// Two of them. The daemon is a thread, which has nothing more to do.
pub(crate) fn neighbours(clock: &VirtualClock) -> [Polled; 2] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let address = Ipv4Addr::new(127, 79, 5, NEXT.fetch_add(1, Relaxed)).into();
    let mut links = daemon::start::<2>(address).map(|socket| {
        let link = Joined::join(socket, &[], "test").unwrap();
        link.clock(clock.clone())
    });
    let dests = links.each_mut().map(|link| {
        let numbers = link.numbers(0).unwrap().first().unwrap();
        Qpn::new(numbers.start)
    });
    // Both send by memory, and nothing is on its way through the daemon.
    while !links
        .iter()
        .all(|link| link.counters().shared_received != 0)
    {
        for (from, dest) in [(0, dests[1]), (1, dests[0])] {
            let [_, a, b, c] = dest.value().to_be_bytes();
            let packet = [4, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 0, 0, 0, 0, 0];
            let burst = Burst {
                route: route(address),
                segment: packet.len(),
                bytes: &packet,
            };
            // The daemon may not have read what went before.
            let _may_be_blocked = links[from].transmit(&burst);
            // The thread that waits for a link is not there to see that the daemon has said something.
            links[from]
                .waiter()
                .unwrap()
                .wait(Some(Duration::ZERO), false);
            links[from].receive(&mut |_| {});
        }
    }
    let mut quiet = 0;
    while quiet < 3 {
        let came = links.iter_mut().map(|link| link.receive(&mut |_| {}));
        quiet = if came.sum::<usize>() == 0 {
            quiet + 1
        } else {
            0
        };
    }
    links.map(Polled)
}

fn route(address: IpAddr) -> Route {
    Route {
        src: address,
        dst: address,
        tclass: 0,
        hop_limit: 64,
        local: None,
    }
}

impl PacketLink for Polled {
    fn addresses(&self) -> &[IpAddr] {
        self.0.addresses()
    }

    fn mtu(&self) -> Mtu {
        self.0.mtu()
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.0.burst_limit(route)
    }

    fn burst_bytes(&self) -> usize {
        self.0.burst_bytes()
    }

    fn seals(&self, route: &Route, dest: Qpn) -> bool {
        self.0.seals(route, dest)
    }

    fn take_long(&mut self) {
        self.0.take_long();
    }

    fn longest(&mut self, route: &Route, dest: Qpn) -> Option<usize> {
        self.0.longest(route, dest)
    }

    fn transmit_long(
        &mut self,
        packet: &LongPacket<'_>,
        fill: FillWindow<'_>,
    ) -> Result<Sent, Unmapped> {
        self.0.transmit_long(packet, fill)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.0.transmit(burst)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.0.receive(sink)
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.0.feedback(route, news);
    }

    fn entropy(&mut self) -> u64 {
        self.0.entropy()
    }

    fn change(&mut self) -> Option<Change> {
        self.0.change()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.0.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.0.leave(group);
    }

    fn numbers(&mut self, used: usize) -> Option<&[Range<u32>]> {
        self.0.numbers(used)
    }

    fn gone(&mut self) -> Option<Range<u32>> {
        self.0.gone()
    }

    fn counters(&self) -> LinkCounters {
        self.0.counters()
    }
}
