//! Ports with several LIDs: each of them reaches the port, an answer is sent from the one that was asked, and a port is
//! given no LID that is not the first of its range.

use std::sync::Arc;

use futures::executor::block_on;
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::sm::{self, LinkState, PhysState, PortInfo};
use verbs_core::mad::{
    AttributeId, Bits, Class, Delivery, MadClient, MadHeader, MadService, Method, Retry, Status,
};
use verbs_core::{Access, Av, Lid, Memory, Mtu, Path, Psn, QpAttr, QpInit, Qpn, Recv, Send, Wc};

use crate::bed::{Bed, Node};
use crate::datagrams::End;
use crate::manager::{Manager, SPREAD, Smp, address, client};

fn spread() -> (Bed, Manager) {
    let (bed, manager) = Bed::managed();
    manager.spread();
    let attr = bed.nodes[2].device.query_port(1).wait().unwrap();
    assert_eq!((attr.lid, attr.lmc), (SPREAD[2], 2));
    (bed, manager)
}

/// Goal: a datagram to any of a port's LIDs arrives, reports which that was, and is answered from it to the one that it
/// came from. Method: all pairs of four LIDs, by LID alone and with a global header; bits that the port has no LIDs
/// for.
#[test]
fn datagrams_are_answered_from_the_lid_that_was_asked() {
    let (bed, _manager) = spread();
    let mut here = End::on(&bed.nodes[0], |init| init);
    let mut there = End::on(&bed.nodes[2], |init| init);
    for (bits, asked) in (0..4).flat_map(|bits| (0..4).map(move |asked| (bits, asked))) {
        let dlid = Lid(SPREAD[2].0 + asked);
        let global = (asked % 2 == 0).then(|| Av::to_gid(1, 0, bed.nodes[2].hca.gid()));
        let av = Av {
            dlid,
            // Of these, two count.
            src_path_bits: 0x7c | bits,
            ..global.unwrap_or(Av::to_lid(1, dlid))
        };
        here.send(av, there.qp.qpn(), b"hello");
        let [(wc, _)] = &there.came()[..] else {
            panic!("{av:?}: one datagram");
        };
        let from = Lid(SPREAD[0].0 + u16::from(bits));
        assert_eq!((wc.slid, u16::from(wc.dlid_path_bits)), (from, asked));
        let mut header = [0; 40];
        let at = 4096 + 256 * wc.wr_id as usize;
        there.mr.read(at, &mut header).unwrap();
        let back = Av::reverse(1, wc, &header, 0).unwrap();
        there.send(back, wc.src_qpn, b"back");
        let [(wc, _)] = &here.came()[..] else {
            panic!("{back:?}: one datagram");
        };
        assert_eq!((wc.slid, wc.dlid_path_bits), (dlid, bits));
        for (end, wr_id) in [(&mut here, 8), (&mut there, 8)] {
            let slot = end.mr.slice(4096 + 256 * 7..4096 + 256 * 8);
            end.qp.post_recv(Recv::new(wr_id - 1).into(slot)).unwrap();
        }
    }
}

/// Goal: management finds a port by each of its LIDs. Method: questions of both kinds to every LID of a port whose HCA
/// has a service, of one whose HCA has none, and of its own port.
#[test]
fn management_reaches_every_lid_of_a_port() {
    let (bed, manager) = spread();
    let _service = block_on(MadService::of(&bed.nodes[1].device, 1)).unwrap();
    let service = block_on(MadService::of(&bed.nodes[0].device, 1)).unwrap();
    let (client, deliveries) = client();
    let weak: Arc<dyn MadClient> = client;
    let agent = service
        .register(Class::PERF, 1, &[], Arc::downgrade(&weak))
        .unwrap();
    for base in SPREAD {
        for lid in (base.0..base.0 + 4).map(Lid) {
            let answer = manager.ask_lid(lid, Smp::get(AttributeId::NODE_INFO, 0));
            assert_eq!(header_of(&answer).status(), Status::OK, "{lid:?}");
            let mut mad = [0; 256];
            let header = MadHeader {
                base_version: 1,
                class: Class::PERF,
                class_version: 1,
                method: Method::GET,
                attribute: AttributeId::CLASS_PORT_INFO,
                ..MadHeader::default()
            };
            emit_header(&header, &mut mad);
            agent
                .request(address(lid, 1), &mad, Retry::default())
                .unwrap();
            match deliveries.recv().unwrap() {
                Delivery::Response { mad, .. } => {
                    assert_eq!(header_of(&mad).status(), Status::OK, "{lid:?}");
                }
                other => panic!("{lid:?}: {other:?}"),
            }
        }
    }
}

/// Goal: a connection works between any two LIDs of its ports, and takes packets only from the peer's. Method: a
/// message in each direction, between LIDs that are not the first; then an end whose packets are sent from a LID other
/// than the one that its peer expects.
#[test]
fn connections_go_between_the_lids_that_were_agreed_on() {
    let (bed, _manager) = spread();
    let lids = |bits: [u8; 2]| {
        let lid = |number: usize| Lid(SPREAD[number * 2].0 + u16::from(bits[number]));
        [lid(0), lid(1)]
    };
    let converse = |own: [u8; 2], told: [u8; 2]| {
        let mut ends = [0, 2].map(|node: usize| Connected::on(&bed.nodes[node]));
        let numbers = ends.each_ref().map(|end| end.qp.qpn());
        let [here, there] = lids(told);
        ends[0].connect(there, own[0], numbers[1]);
        ends[1].connect(here, own[1], numbers[0]);
        ends[0].send();
        ends[1].send();
        ends.map(|mut end| end.received())
    };
    assert_eq!(converse([1, 3], [1, 3]), [true, true]);
    assert_eq!(converse([0, 2], [0, 2]), [true, true]);
    assert_eq!(converse([0, 2], [1, 2]), [true, false], "from a stranger");
}

struct Connected {
    qp: verbs_core::Qp,
    cq: verbs_core::Cq,
    mr: verbs_core::Mr,
    _pd: verbs_core::Pd,
}

impl Connected {
    fn on(node: &Node) -> Self {
        let pd = node.device.alloc_pd().wait().unwrap();
        let cq = node.device.create_cq(16).wait().unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
        Self {
            qp,
            cq,
            mr,
            _pd: pd,
        }
    }

    fn connect(&mut self, to: Lid, src_path_bits: u8, peer: Qpn) {
        let path = Path {
            av: Av {
                src_path_bits,
                ..Av::to_lid(1, to)
            },
            dest_qpn: peer,
            rq_psn: Psn::new(0),
            mtu: Mtu::B1024,
        };
        let init = QpAttr::init(1, Access::empty());
        self.qp.modify(init).wait().unwrap();
        self.qp.modify(QpAttr::rtr(&path)).wait().unwrap();
        let ready = QpAttr {
            timeout: Some(0),
            ..QpAttr::rts(Psn::new(0))
        };
        self.qp.modify(ready).wait().unwrap();
        let recv = Recv::new(1).into(self.mr.slice(0..64));
        self.qp.post_recv(recv).unwrap();
    }

    fn send(&mut self) {
        let send = Send::new(2).from(self.mr.slice(64..128));
        self.qp.post_send(send).unwrap();
    }

    fn received(&mut self) -> bool {
        let mut wcs = [Wc::default(); 8];
        let came = self.cq.poll(&mut wcs);
        came.iter().any(|wc| wc.wr_id == 1 && wc.is_ok())
    }
}

/// Goal: a port's LID is the first of its range. Method: one that is not, which is refused and changes nothing.
#[test]
fn a_lid_that_is_not_the_first_is_refused() {
    let (_bed, manager) = spread();
    let before = manager.port(&[1, 2], 1);
    for (lid, lmc) in [(33, 2), (34, 2), (1, 1), (64, 7)] {
        let info = PortInfo {
            lid: Lid(lid),
            lmc: Bits::truncated(lmc),
            state: LinkState::NO_CHANGE,
            phys_state: PhysState::NO_CHANGE,
            ..before
        };
        let mut data = [0; PortInfo::LEN];
        info.emit(&mut data);
        let set = Smp {
            method: Method::SET,
            attribute: AttributeId::PORT_INFO,
            modifier: 1,
            data: &data,
        };
        let status = header_of(&manager.ask(&[1, 2], set)).status();
        assert_eq!(status, Status::BAD_VALUE | sm::DIRECTION, "{lid} {lmc}");
        assert_eq!(manager.port(&[1, 2], 1), before);
    }
}
