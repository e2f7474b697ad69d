//! Datagrams across the subnet: to ports and to multicast groups, and the fate of those whose keys do not match.

use hca_sim::Builder;
use verbs_core::mad::sm::{self, Notice, NoticeView, PKeyBlock, TrapNumber};
use verbs_core::mad::{AttributeId, Delivery, Method};
use verbs_core::wr::Datagram;
use verbs_core::{
    Access, Av, Cq, DeviceCap, Gid, Lid, Memory, Mr, PKey, Pd, Psn, QKey, Qp, QpAttr, QpInit,
    QpState, QpType, Qpn, Recv, Send, Wc, WcFlags,
};

use crate::bed::{Bed, Node};
use crate::manager::{ADAPTERS, Manager, Smp};

pub(crate) const QKEY: QKey = QKey(0x1111_2222);
const GROUP: Gid = Gid([
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
]);
const MLID: Lid = Lid(0xc003);

pub(crate) struct End {
    pub(crate) qp: Qp,
    cq: Cq,
    pub(crate) mr: Mr,
    _pd: Pd,
}

impl End {
    pub(crate) fn on(node: &Node, change: impl FnOnce(QpInit<'_>) -> QpInit<'_>) -> Self {
        let pd = node.device.alloc_pd().wait().unwrap();
        let cq = node.device.create_cq(64).wait().unwrap();
        let memory = Memory::alloc(1 << 16).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
        let init = QpInit::of(QpType::Ud, &cq, &cq).inline(64).depth(16, 16);
        let mut qp = pd.create_qp(change(init)).wait().unwrap();
        qp.modify(QpAttr::init_datagram(1, QKEY)).wait().unwrap();
        for wr_id in 0..8 {
            let at = 4096 + 256 * wr_id as usize;
            let recv = Recv::new(wr_id).into(mr.slice(at..at + 256));
            qp.post_recv(recv).unwrap();
        }
        qp.modify(QpAttr::to(QpState::Rtr)).wait().unwrap();
        let ready = QpAttr::rts_of(QpType::Ud, Psn::new(0));
        qp.modify(ready).wait().unwrap();
        Self {
            qp,
            cq,
            mr,
            _pd: pd,
        }
    }

    pub(crate) fn send(&mut self, av: Av, qpn: Qpn, text: &[u8]) {
        let there = Datagram {
            av,
            qpn,
            qkey: QKEY,
            pkey_index: 0,
        };
        let send = Send::new(100).inline(text).to(&there);
        self.qp.post_send(send).unwrap();
    }

    /// What has arrived: completions, and the bytes behind the place of the header.
    pub(crate) fn came(&mut self) -> Vec<(Wc, Vec<u8>)> {
        let mut wcs = [Wc::default(); 16];
        let wcs = self.cq.poll(&mut wcs).iter().copied();
        wcs.map(|wc| {
            let at = 4096 + 256 * wc.wr_id as usize;
            let mut bytes = vec![0; wc.byte_len as usize];
            self.mr.read(at, &mut bytes).unwrap();
            (wc, bytes.split_off(40))
        })
        .collect()
    }
}

/// Goal: a datagram arrives by LID alone, and with a global route header, which its receiver sees.
#[test]
fn datagrams_go_with_and_without_a_global_header() {
    let (bed, _manager) = Bed::managed();
    let mut here = End::on(&bed.nodes[0], |init| init);
    let mut there = End::on(&bed.nodes[2], |init| init);
    let by_lid = Av {
        sl: 3,
        ..Av::to_lid(1, Lid(3))
    };
    let with_both = Av {
        dlid: Lid(3),
        ..Av::to_gid(1, 0, bed.nodes[2].hca.gid())
    };
    let by_gid = Av::to_gid(1, 0, bed.nodes[2].hca.gid());
    let ways = [
        (by_lid, WcFlags::empty()),
        (with_both, WcFlags::GRH),
        (by_gid, WcFlags::GRH),
    ];
    for (av, flags) in ways {
        here.send(av, there.qp.qpn(), b"hello");
        let [(wc, bytes)] = &there.came()[..] else {
            panic!("{av:?}: one datagram");
        };
        assert_eq!((wc.flags, wc.slid, wc.sl), (flags, Lid(1), av.sl));
        assert_eq!((wc.src_qpn, &bytes[..]), (here.qp.qpn(), &b"hello"[..]));
        // And back on the same path.
        let mut header = [0; 40];
        there
            .mr
            .read(4096 + 256 * wc.wr_id as usize, &mut header)
            .unwrap();
        let back = Av::reverse(1, wc, &header, 0).unwrap();
        there.send(back, wc.src_qpn, b"back");
        assert_eq!(here.came()[0].1, b"back");
    }
}

/// Goal: a datagram to a group reaches the queue pairs that are attached to it, at the ports that switches forward it
/// to, once each; a sender can exclude itself, but not its neighbours.
#[test]
fn groups_reach_who_is_attached_where_switches_forward() {
    let (bed, manager) = Bed::managed();
    let mut ends: Vec<_> = [0, 0, 1, 2]
        .map(|node: usize| End::on(&bed.nodes[node], |init| init.block_multicast_loopback()))
        .into();
    let attached: Vec<_> = ends
        .iter()
        .map(|end| end.qp.attach_mcast(GROUP, MLID).wait().unwrap())
        .collect();
    let to_group = Av {
        dlid: MLID,
        ..Av::to_gid(1, 0, GROUP)
    };
    let deliver = |ends: &mut [End], from: usize| {
        ends[from].send(to_group, Qpn::MULTICAST, b"all");
        ends.iter_mut()
            .map(|end| end.came().len())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        deliver(&mut ends, 0),
        [0, 1, 0, 0],
        "no switch knows the group"
    );
    manager.set_group(MLID, [&[1, 3], &[1, 2]]);
    assert_eq!(
        deliver(&mut ends, 0),
        [0, 1, 0, 1],
        "the second adapter has not joined"
    );
    manager.set_group(MLID, [&[1, 2, 3], &[1, 2]]);
    assert_eq!(deliver(&mut ends, 0), [0, 1, 1, 1]);
    assert_eq!(deliver(&mut ends, 3), [1, 1, 1, 0]);
    drop(attached);
    assert_eq!(deliver(&mut ends, 3), [0; 4], "nobody is attached");
}

/// The port at the end of that path is in those partitions, and in no other.
pub(crate) fn set_pkeys(manager: &Manager, path: &[u8], keys: &[PKey]) {
    let mut block = PKeyBlock {
        keys: [PKey(0); 32],
    };
    block.keys[..keys.len()].copy_from_slice(keys);
    let mut data = [0; PKeyBlock::LEN];
    block.emit(&mut data);
    let what = Smp {
        method: Method::SET,
        attribute: AttributeId::PKEY_TABLE,
        modifier: 0,
        data: &data,
    };
    manager.ask(path, what);
}

/// A datagram queue pair on the first adapter, and one on the third whose partition the first does not have.
fn of_two_partitions(bed: &Bed, manager: &Manager) -> (End, End) {
    let foreign = PKey(0x8777);
    set_pkeys(manager, ADAPTERS[2].2, &[PKey::DEFAULT, foreign]);
    let here = End::on(&bed.nodes[0], |init| init);
    let there = End::on(&bed.nodes[2], |init| init);
    there.qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    let init = QpAttr {
        pkey_index: Some(1),
        ..QpAttr::init_datagram(1, QKEY)
    };
    there.qp.modify(init).wait().unwrap();
    there.qp.modify(QpAttr::to(QpState::Rtr)).wait().unwrap();
    (here, there)
}

/// Goal: the attributes of a port count the packets of other partitions if its device has BAD_PKEY_CNTR, and show zero
/// otherwise.
#[test]
fn a_port_counts_wrong_partitions_where_its_device_says_so() {
    let without: fn(Builder) -> Builder = |builder| builder.without(DeviceCap::BAD_PKEY_CNTR);
    let with: fn(Builder) -> Builder = |builder| builder;
    for (change, counted) in [(with, 1), (without, 0)] {
        let (bed, manager) = Bed::managed_with(change);
        let (mut here, mut there) = of_two_partitions(&bed, &manager);
        here.send(Av::to_lid(1, Lid(3)), there.qp.qpn(), b"foreign");
        assert_eq!(there.came().len(), 0);
        let port = bed.nodes[2].device.query_port(1).wait().unwrap();
        assert_eq!(port.bad_pkey_cntr, counted);
    }
}

/// Goal: a datagram of another partition, or with another Q_Key, is dropped, counted at the port, and reported to the
/// manager with its sender; a datagram with the right index of the table is accepted.
#[test]
fn keys_that_do_not_fit_are_reported() {
    let (bed, manager) = Bed::managed();
    let (mut here, mut there) = of_two_partitions(&bed, &manager);
    let by_lid = Av::to_lid(1, Lid(3));
    here.send(by_lid, there.qp.qpn(), b"foreign");
    assert_eq!(there.came().len(), 0);
    let notice = trap(&manager);
    assert_eq!(
        (notice.trap, notice.issuer_lid),
        (TrapNumber::BAD_P_KEY, Lid(3))
    );
    let port = manager.port(ADAPTERS[2].2, 1);
    assert_eq!((port.pkey_violations, port.qkey_violations), (1, 0));

    let mut other = End::on(&bed.nodes[1], |init| init);
    let there = Datagram {
        av: Av::to_lid(1, Lid(2)),
        qpn: other.qp.qpn(),
        qkey: QKey(7),
        pkey_index: 0,
    };
    here.qp
        .post_send(Send::new(1).inline(b"x").to(&there))
        .unwrap();
    assert_eq!(other.came().len(), 0);
    let notice = trap(&manager);
    assert_eq!(
        (notice.trap, notice.issuer_lid),
        (TrapNumber::BAD_Q_KEY, Lid(2))
    );
    // Its sender, the key, and the queue pairs at both ends (IBTA vol. 1, table 137).
    let details = &notice.details.0;
    assert_eq!(details[2..6], [0, 1, 0, 2]);
    assert_eq!(details[6..10], 7_u32.to_be_bytes());
    assert_eq!(details[11..14], here.qp.qpn().value().to_be_bytes()[1..]);
    assert_eq!(details[15..18], other.qp.qpn().value().to_be_bytes()[1..]);
    assert_eq!(manager.port(ADAPTERS[1].2, 1).qkey_violations, 1);
}

fn trap(manager: &Manager) -> Notice {
    let Delivery::Request { mad, .. } = manager.delivery() else {
        panic!("a trap is no answer");
    };
    let mut notice = [0; 80];
    notice[..64].copy_from_slice(sm::attribute(&mad));
    NoticeView::new(&notice).map(Notice::parse).unwrap()
}
