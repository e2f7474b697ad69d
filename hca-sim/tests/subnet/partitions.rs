//! Partitions: which entry of a port's table admits a datagram, and by which one it is sent.

use verbs_core::wr::Datagram;
use verbs_core::{
    Access, Av, Cq, Lid, Memory, Mr, PKey, Pd, Psn, QKey, Qp, QpAttr, QpInit, QpType, Qpn, Recv,
    Send, Wc,
};

use crate::bed::{Bed, Node};
use crate::datagrams::set_pkeys;
use crate::manager::ADAPTERS;

/// The queue pair for general services of a port.
struct Gsi {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
}

impl Gsi {
    fn on(node: &Node) -> Self {
        let pd = node.device.alloc_pd().wait().unwrap();
        let cq = node.device.create_cq(16).wait().unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
        let init = QpInit::of(QpType::Gsi, &cq, &cq).depth(8, 8);
        let qp = pd.create_qp(init).wait().unwrap();
        let special = QpAttr::init_special(QKey::GSI);
        qp.modify(special).wait().unwrap();
        qp.ready_to_receive_datagrams().wait().unwrap();
        qp.ready_to_send(Psn::new(0)).wait().unwrap();
        Self {
            qp,
            cq,
            mr,
            _pd: pd,
        }
    }

    /// Sends a management datagram by that entry of its own table.
    fn send(&mut self, to: u16, pkey_index: u16) {
        let there = Datagram {
            av: Av::to_lid(1, Lid(to)),
            qpn: Qpn::new(1),
            qkey: QKey::GSI,
            pkey_index,
        };
        let send = Send::new(100).from(self.mr.slice(0..256)).to(&there);
        self.qp.post_send(send).unwrap();
    }

    fn post_recv(&mut self) {
        let recv = Recv::new(1).into(self.mr.slice(1024..1024 + 296));
        self.qp.post_recv(recv).unwrap();
    }

    /// Which entry admitted the one datagram that has arrived.
    fn came_by(&mut self) -> u16 {
        let mut wcs = [Wc::default(); 4];
        match *self.cq.poll(&mut wcs) {
            [wc] => wc.pkey_index,
            ref other => panic!("one datagram, and not {other:?}"),
        }
    }
}

/// Goal: queue pair 1 is in all partitions of its port: the consumer learns in which of them a datagram arrived, and
/// answers in the same one. Method: tables of two ports that have one partition in different places.
#[test]
fn management_datagrams_keep_to_their_partition() {
    let (bed, manager) = Bed::managed();
    let (shared, other) = (PKey(0x8777), PKey(0x8123));
    set_pkeys(&manager, ADAPTERS[1].2, &[PKey::DEFAULT, other, shared]);
    set_pkeys(&manager, ADAPTERS[2].2, &[PKey::DEFAULT, shared]);
    let [mut one, mut two] = [1, 2].map(|node: usize| Gsi::on(&bed.nodes[node]));
    for (leaves_by, comes_by) in [(0, 0), (2, 1)] {
        two.post_recv();
        one.send(3, leaves_by);
        let by = two.came_by();
        assert_eq!(by, comes_by);
        one.post_recv();
        two.send(2, by);
        assert_eq!(one.came_by(), leaves_by);
    }
    two.post_recv();
    one.send(3, 1);
    assert_eq!(two.cq.poll(&mut [Wc::default(); 4]).len(), 0, "not in it");
}
