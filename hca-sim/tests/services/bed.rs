//! Two HCAs that reach each other, and queue pairs on them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use hca_sim::clock::VirtualClock;
use hca_sim::link::{Cable, Faults, Faulty};
use hca_sim::{Hca, Loopback};
use verbs_core::{
    Access, Av, Cq, Datagram, Device, Memory, Mr, Mtu, Path, Pd, Psn, QKey, Qp, QpInit, QpType,
    Qpn, Wc,
};

pub(crate) const QKEY: QKey = QKey(0x1111_2222);
pub(crate) const ROOM: usize = 1 << 16;

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Loopback,
    V4,
    V6,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Loopback, Self::V4, Self::V6];

    pub(crate) fn host(self, number: u8) -> IpAddr {
        match self {
            Self::V6 => IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into())),
            _ => IpAddr::from(Ipv4Addr::new(10, 0, 0, number)),
        }
    }
}

/// Two HCAs.
pub(crate) struct Bed {
    pub(crate) way: Way,
    pub(crate) hcas: [Arc<Hca>; 2],
    clock: VirtualClock,
}

/// A queue pair with its own completion queues and memory.
pub(crate) struct End {
    pub(crate) hca: Arc<Hca>,
    pub(crate) device: Device,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) qp: Qp,
}

impl Bed {
    pub(crate) fn new(way: Way) -> Self {
        Self::lossy(way, Faults::NONE)
    }

    /// Two HCAs that were made elsewhere.
    pub(crate) fn of(way: Way, hcas: [Arc<Hca>; 2], clock: VirtualClock) -> Self {
        Self { way, hcas, clock }
    }

    /// Over a cable with room for two packets.
    pub(crate) fn narrow(way: Way) -> Self {
        let clock = VirtualClock::new();
        let cable = Cable::new().burst_limit(2).room(2);
        let (a, b) = cable.plug(&[way.host(1)], &[way.host(2)]);
        let hcas = [a, b].map(|port| Hca::over(port).clock(clock.clone()).build());
        Self { way, hcas, clock }
    }

    /// Packets of the first one meet these faults, where packets can be seen.
    pub(crate) fn lossy(way: Way, faults: Faults) -> Self {
        let clock = VirtualClock::new();
        let hcas = if way == Way::Loopback {
            let link = Loopback::with_seed(1);
            [(); 2].map(|()| Hca::on(&link).clock(clock.clone()).build())
        } else {
            let (a, b) = Cable::new().plug(&[way.host(1)], &[way.host(2)]);
            let a = Faulty::new(a, 7).sending(faults);
            let a = Hca::over(a).clock(clock.clone()).build();
            [a, Hca::over(b).clock(clock.clone()).build()]
        };
        Self { way, hcas, clock }
    }

    /// Lets everything happen that can happen at this time.
    pub(crate) fn settle(&self) {
        while self.hcas.iter().fold(false, |any, hca| hca.turn() | any) {}
    }

    /// Lets time pass.
    pub(crate) fn advance(&self, time: Duration) {
        let end = self.clock.now() + time;
        self.settle();
        while let Some(next) = self.clock.next_deadline().filter(|&next| next <= end) {
            self.clock.run_until(next);
            self.settle();
        }
        self.clock.run_until(end);
    }

    /// The address of that HCA's port.
    pub(crate) fn address(&self, number: usize) -> Av {
        let hca = &self.hcas[number];
        match self.way {
            Way::Loopback => Av::to_lid(1, hca.lid()),
            Way::V4 | Way::V6 => Av::to_gid(1, 0, hca.gid()),
        }
    }

    /// The multicast group of that number.
    pub(crate) fn group(&self, number: u8) -> verbs_core::Gid {
        match self.way {
            Way::V4 => Ipv4Addr::new(224, 9, 9, number).into(),
            Way::V6 | Way::Loopback => {
                Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 9, number.into()).into()
            }
        }
    }

    /// A queue pair in RESET.
    pub(crate) fn end(
        &self,
        number: usize,
        qp_type: QpType,
        change: impl FnOnce(QpInit<'_>) -> QpInit<'_>,
    ) -> End {
        let hca = Arc::clone(&self.hcas[number]);
        let device = hca.open().wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(256).wait().unwrap();
        let access = Access::REMOTE | Access::LOCAL_WRITE;
        let mr = pd
            .register(Memory::alloc(ROOM).unwrap(), access)
            .wait()
            .unwrap();
        let init = QpInit::of(qp_type, &cq, &cq).depth(32, 32).inline(64);
        let qp = pd.create_qp(change(init)).wait().unwrap();
        End {
            hca,
            device,
            pd,
            cq,
            mr,
            qp,
        }
    }

    /// A queue pair for datagrams that takes and sends them.
    pub(crate) fn datagrams(&self, number: usize) -> End {
        self.datagrams_of(number, |init| init)
    }

    pub(crate) fn datagrams_of(
        &self,
        number: usize,
        change: impl FnOnce(QpInit<'_>) -> QpInit<'_>,
    ) -> End {
        let end = self.end(number, QpType::Ud, change);
        end.qp.init_datagram(1, QKEY).wait().unwrap();
        end.qp.ready_to_receive_datagrams().wait().unwrap();
        end.qp.ready_to_send(Psn::new(5)).wait().unwrap();
        end
    }

    /// Two connected queue pairs of that type.
    pub(crate) fn pair(&self, qp_type: QpType) -> [End; 2] {
        let ends = [0, 1].map(|number| self.end(number, qp_type, |init| init));
        for (number, end) in ends.iter().enumerate() {
            let peer = Path {
                av: self.address(1 - number),
                dest_qpn: ends[1 - number].qp.qpn(),
                rq_psn: Psn::new(7),
                mtu: Mtu::B1024,
            };
            let access = Access::REMOTE | Access::LOCAL_WRITE;
            end.qp.init(1, access).wait().unwrap();
            end.qp.ready_to_receive(&peer).wait().unwrap();
            end.qp.ready_to_send(Psn::new(7)).wait().unwrap();
        }
        ends
    }

    /// The completions of that end.
    pub(crate) fn poll(&self, end: &mut End) -> Vec<Wc> {
        self.settle();
        let mut all = Vec::new();
        let mut some = [Wc::default(); 16];
        loop {
            let count = end.cq.poll(&mut some).len();
            all.extend_from_slice(&some[..count]);
            if count == 0 {
                return all;
            }
        }
    }
}

impl End {
    /// The bytes of its memory there.
    pub(crate) fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        self.mr.read(range.start, &mut out).unwrap();
        out
    }
}

/// To that queue pair, with that key.
pub(crate) fn to(av: Av, qpn: Qpn, qkey: QKey) -> Datagram {
    Datagram::new(av, qpn, qkey)
}
