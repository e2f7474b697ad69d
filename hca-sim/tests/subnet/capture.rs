//! Packets as they are on the subnet's links.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::link::Captured;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use hca_sim::link::pcap::reader::Capture;
use hca_sim::link::pcap::{LinkType, PcapNgWriter};
use hca_sim::wire::{Frame, Packet};
use verbs_core::mad::AttributeId;
use verbs_core::{Lid, Qpn};

use crate::manager::{Manager, Smp};

/// A file in memory.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Goal: the packets in a capture of a port are packets of InfiniBand: route headers, transport, both CRCs right;
/// subnet management on virtual lane 15. Method: a question by a directed route and its answer, read with nothing but
/// the formats.
#[test]
fn captures_have_packets_of_infiniband() {
    let mut topology = Topology::new();
    let (switch, node) = (
        topology.switch("S1", 4).unwrap(),
        topology.hca("A", 1).unwrap(),
    );
    topology.link((switch, 1), (node, 1)).unwrap();
    let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
    let link = subnet.attach(PortRef { node, port: 1 }, 1).unwrap();
    let file = File::default();
    let pcap = PcapNgWriter::with_interface(file.clone(), "A:1", LinkType::InfiniBand).unwrap();
    let clock = VirtualClock::new();
    let link = Captured::new(link, pcap, clock.clone().into(), Duration::ZERO);
    let device = Hca::over(link).clock(clock).open().wait().unwrap();
    let manager = Manager::on(&device);
    manager.ask(&[1], Smp::get(AttributeId::NODE_INFO, 0));

    let capture = Capture::parse("A:1", &file.0.lock().unwrap());
    let mut methods = Vec::new();
    for packet in &capture.packets {
        assert_eq!(packet.link_type, 197, "LINKTYPE_ERF");
        let (frame, transport) = Frame::parse(&packet.bytes).unwrap();
        let permissive = Lid(0xffff);
        assert_eq!(
            (frame.vl, frame.slid, frame.dlid),
            (15, permissive, permissive)
        );
        let icrc = frame.icrc(transport.len()).unwrap();
        assert_eq!(icrc.verify(transport), Ok(()));
        let packet = Packet::parse(transport).unwrap();
        assert_eq!(packet.head.bth().dest_qpn, Qpn::new(0));
        methods.push(packet.payload[3]);
    }
    assert_eq!(methods, [0x01, 0x81], "Get and GetResp");
}
