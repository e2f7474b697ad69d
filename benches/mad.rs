//! A subnet management datagram, answered in the call that delivers it and by a thread that it is handed to.

mod settings;

use std::hint::black_box;
use std::sync::{Arc, mpsc};
use std::thread;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hca_sim::Hca;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use settings::{group, repeats, settings};
use verbs_core::mad::header::emit_header;
use verbs_core::mad::sm::{self, Hops, SmpHeader};
use verbs_core::mad::{
    AttributeId, Class, Later, MadArrival, MadBytes, MadHeader, MadVerdict, Method,
};
use verbs_core::{Lid, Provider, Qpn};

/// A Get of NodeInfo for an HCA on a subnet, as a manager sends to a busy node.
fn node_info(c: &mut Criterion) {
    let mut group = group(c, "get-of-node-info");
    let (hca, one) = (node(), Throughput::Elements(1));
    let id = BenchmarkId::from_parameter("in the call that brings it");
    repeats(&mut group, id, one.clone(), |times| {
        for _ in 0..times {
            answer(&hca);
        }
    });
    let (ask, asked) = mpsc::sync_channel(1);
    let (tell, told) = mpsc::sync_channel(1);
    let worker = thread::spawn(move || {
        while asked.recv().is_ok() {
            answer(&hca);
            if tell.send(()).is_err() {
                return;
            }
        }
    });
    let id = BenchmarkId::from_parameter("by a worker thread");
    repeats(&mut group, id, one, |times| {
        for _ in 0..times {
            ask.send(()).expect("the worker lives");
            told.recv().expect("the worker lives");
        }
    });
    drop(ask);
    worker.join().expect("it does not panic");
    group.finish();
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

criterion_group! {
    name = datagrams;
    config = settings();
    targets = node_info
}
criterion_main!(datagrams);
