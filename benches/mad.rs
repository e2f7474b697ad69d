//! A subnet management datagram, answered in the call that delivers it and by a thread that it is handed to.

use std::hint::black_box;
use std::sync::{Arc, mpsc};
use std::thread;

use hca_sim::Hca;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use verbs_core::mad::header::emit_header;
use verbs_core::mad::sm::{self, Hops, SmpHeader};
use verbs_core::mad::{
    AttributeId, Class, Later, MadArrival, MadBytes, MadHeader, MadVerdict, Method,
};
use verbs_core::{Lid, Provider, Qpn};

use crate::{Group, timed};

/// A Get of NodeInfo for an HCA on a subnet, as a manager sends to a busy node.
pub(crate) fn group() -> Group {
    let hca = node();
    let inline = {
        let hca = Arc::clone(&hca);
        move |times| {
            timed(|| {
                for _ in 0..times {
                    answer(&hca);
                }
            })
        }
    };
    let (ask, asked) = mpsc::sync_channel(1);
    let (tell, told) = mpsc::sync_channel(1);
    thread::spawn(move || {
        while asked.recv().is_ok() {
            answer(&hca);
            if tell.send(()).is_err() {
                return;
            }
        }
    });
    let worker = move |times| {
        timed(|| {
            for _ in 0..times {
                ask.send(()).expect("the worker lives");
                told.recv().expect("the worker lives");
            }
        })
    };
    (
        "answer a Get of NodeInfo".into(),
        vec![
            ("in the call that brings it", Box::new(inline)),
            ("by a worker thread", Box::new(worker)),
        ],
    )
}

/// An HCA next to a switch.
fn node() -> Arc<Hca> {
    let mut topology = Topology::new();
    let switch = topology.switch("Sw", 4).expect("a name of its own");
    let node = topology.hca("A", 1).expect("a name of its own");
    topology
        .link((switch, 3), (node, 1))
        .expect("ports are free");
    let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
    let at = PortRef { node, port: 1 };
    Hca::over(subnet.attach(at, 1).expect("it is free")).build()
}

fn answer(hca: &Hca) {
    let mut mad: MadBytes = [0; 256];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: Class::SUBN_DIRECTED,
        class_version: sm::CLASS_VERSION,
        method: Method::GET,
        attribute: AttributeId::NODE_INFO,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    let permissive = SmpHeader::directed(0);
    permissive.put(&mut mad);
    Hops::put_path(&mut mad, &[]).expect("no hop fits");
    let arrival = MadArrival {
        qpn: Qpn::new(0),
        port: 1,
        slid: Lid(0xffff),
        sl: 0,
        src_qpn: Qpn::new(0),
        pkey_index: 0,
        grh: None,
        mad: black_box(&mad),
        later: Later::default(),
    };
    let mut reply = [0; 256];
    let verdict = hca.process_mad(&arrival, &mut reply);
    assert_eq!(verdict, MadVerdict::Reply, "the node answers");
    black_box(reply);
}
