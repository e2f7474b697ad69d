//! Multicast groups on links that refuse to join, and senders that have the number of a receiver.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::link::{
    Arrival, Burst, Cable, CableEnd, Change, Feedback, PacketLink, Route, Sent, Waiter,
};
use verbs_core::{Av, Error, Lid, Mtu, Qpn, Recv, Send};

use crate::bed::{Bed, End, QKEY, Way, to};

/// A link that joins no group while `refuses` is set, and whose numbers equal those of every other link of its kind.
#[derive(Debug)]
struct Refusing {
    link: CableEnd,
    refuses: Arc<AtomicBool>,
    drawn: u64,
}

impl Refusing {
    fn new(link: CableEnd, refuses: &Arc<AtomicBool>) -> Self {
        let refuses = Arc::clone(refuses);
        let drawn = 0;
        Self {
            link,
            refuses,
            drawn,
        }
    }
}

impl PacketLink for Refusing {
    fn addresses(&self) -> &[IpAddr] {
        self.link.addresses()
    }
    fn mtu(&self) -> Mtu {
        self.link.mtu()
    }
    fn burst_limit(&self, route: &Route) -> usize {
        self.link.burst_limit(route)
    }
    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.link.transmit(burst)
    }
    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.link.receive(sink)
    }
    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.link.feedback(route, news);
    }
    fn entropy(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }
    fn change(&mut self) -> Option<Change> {
        self.link.change()
    }
    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.link.waiter()
    }
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        match self.refuses.load(Relaxed) {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => self.link.join(group),
        }
    }
    fn leave(&mut self, group: IpAddr) {
        self.link.leave(group);
    }
}

fn post_receives(end: &mut End, count: u64) {
    for wr_id in 0..count {
        end.qp
            .post_recv(Recv::new(wr_id).into(end.mr.slice(0..200)))
            .unwrap();
    }
}

fn send(end: &mut End, group: verbs_core::Gid) {
    let there = to(Av::to_gid(1, 0, group), Qpn::MULTICAST, QKEY);
    end.qp
        .post_send(Send::new(9).inline(b"x").to(&there))
        .unwrap();
}

/// Goal: a queue pair whose port could not join a group is not attached to it: it takes none of the places of the
/// group, and gets nothing. Method: more refusals than places, while another queue pair of the port is attached.
#[test]
fn a_group_that_cannot_be_joined_is_not_attached() {
    let [a, b] = [1, 2].map(|host| IpAddr::from(Ipv4Addr::new(10, 0, 0, host)));
    let (a, b) = Cable::new().plug(&[a], &[b]);
    let refuses = Arc::new(AtomicBool::new(false));
    let b = Refusing::new(b, &refuses);
    let clock = VirtualClock::new();
    let hcas = [
        Hca::over(a).clock(clock.clone()).build(),
        Hca::over(b).clock(clock.clone()).build(),
    ];
    let bed = Bed::of(Way::V4, hcas, clock);
    let (mut sender, mut here, mut refused) =
        (bed.datagrams(0), bed.datagrams(1), bed.datagrams(1));
    let group = bed.group(1);
    let attached = here.qp.attach_mcast(group, Lid(0)).wait().unwrap();
    refuses.store(true, Relaxed);
    for _ in 0..65 {
        let answer = refused.qp.attach_mcast(group, Lid(0)).wait();
        assert_eq!(answer.unwrap_err(), Error::DeviceFailed);
    }
    let mut deliver = |here: &mut End, refused: &mut End| {
        post_receives(here, 2);
        post_receives(refused, 2);
        send(&mut sender, group);
        (bed.poll(here).len(), bed.poll(refused).len())
    };
    assert_eq!(deliver(&mut here, &mut refused), (1, 0));
    refuses.store(false, Relaxed);
    let second = refused.qp.attach_mcast(group, Lid(0)).wait().unwrap();
    assert_eq!(deliver(&mut here, &mut refused), (1, 1));
    drop((attached, second));
    assert_eq!(deliver(&mut here, &mut refused), (0, 0));
}

/// Goal: a queue pair that excludes its own datagrams receives those of another host's queue pair with the same number.
/// Method: two HCAs on links that draw the same numbers.
#[test]
fn a_namesake_on_another_host_is_heard() {
    for way in [Way::V4, Way::V6] {
        let clock = VirtualClock::new();
        let (a, b) = Cable::new().plug(&[way.host(1)], &[way.host(2)]);
        let refuses = Arc::new(AtomicBool::new(false));
        let hcas = [a, b].map(|end| {
            let link = Refusing::new(end, &refuses);
            Hca::over(link).clock(clock.clone()).build()
        });
        let bed = Bed::of(way, hcas, clock);
        let mut ends =
            [0, 1].map(|number| bed.datagrams_of(number, |init| init.block_multicast_loopback()));
        assert_eq!(ends[0].qp.qpn(), ends[1].qp.qpn());
        let group = bed.group(1);
        let attached = ends
            .each_ref()
            .map(|end| end.qp.attach_mcast(group, Lid(0)).wait().unwrap());
        for end in &mut ends {
            post_receives(end, 2);
        }
        for from in 0..2 {
            send(&mut ends[from], group);
            let came = ends.each_mut().map(|end| bed.poll(end).len());
            assert_eq!(came, [from, 1 - from], "{way:?}");
        }
        drop(attached);
    }
}
