//! Readers of files, command lines and sockets: topologies, captures, messages, names.

use std::time::Duration;

use hca_sim::link::fabric::message::Message;
use hca_sim::link::fabric::{Subnet, SubnetConfig, Topology};
use hca_sim::link::pcap::reader::Capture;
use hca_sim::link::pcap::{LinkType, Note, PcapNgWriter};
use ulp_srp::initiator::Target;
use ulp_srp::iu::PortId;

use crate::Script;

/// A topology in a file. An accepted one has names that are found, and links between existing ports, at most one for
/// each; a subnet of it has as many nodes.
pub(crate) fn topology(bytes: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(bytes);
    let topology = match Topology::parse(&text) {
        Ok(topology) => topology,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return 1;
        }
    };
    let nodes = topology.nodes();
    assert!(
        nodes.len() <= text.lines().count(),
        "a line is one node at most"
    );
    for node in nodes {
        assert!((1..255).contains(&node.ports), "{node:?}");
        let found = topology.find(&node.name).map(|id| &nodes[id.0 as usize]);
        assert_eq!(found, Some(node), "a node that is not found by its name");
    }
    let mut ends: Vec<_> = topology.links().iter().flat_map(|link| link.ends).collect();
    for end in &ends {
        let ports = nodes[end.node.0 as usize].ports;
        assert!(end.port >= 1 && end.port <= ports, "{end:?} of {ports}");
    }
    ends.sort();
    ends.dedup();
    assert_eq!(
        ends.len(),
        2 * topology.links().len(),
        "a port with two links"
    );
    if nodes.len() < 64 {
        let subnet = Subnet::new(&topology, SubnetConfig::default());
        assert_eq!(subnet.len(), nodes.len());
    }
    1
}

/// Packets into a capture, which is then read: every record contains what was written.
pub(crate) fn capture(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let mut pcap = PcapNgWriter::new(Vec::new()).expect("memory takes all");
    let mut interfaces = Vec::new();
    for (name, link_type) in [("", LinkType::Ethernet), ("Sw 1:3", LinkType::RawIp)] {
        let interface = pcap.interface(name, link_type).expect("memory takes all");
        interfaces.push((name, interface));
    }
    let mut written = Vec::new();
    while script.step(32).is_some() {
        let (name, interface) = script.pick(&interfaces);
        let time = Duration::new(script.u32().into(), script.u32() % 1_000_000_000);
        let (one, other, long) = (script.below(80), script.below(80), script.below(40));
        let pieces = [script.take(one), script.take(other)];
        let comment = String::from_utf8_lossy(script.take(long)).into_owned();
        let is_inbound = script.pick(&[None, Some(true), Some(false)]);
        let note = Note::new(interface, time).comment(&comment);
        let note = match is_inbound {
            None => note,
            Some(true) => note.inbound(),
            Some(false) => note.outbound(),
        };
        pcap.packet(&note, &pieces).expect("a time that fits");
        written.push((name, time, comment, is_inbound, pieces.concat()));
    }
    let read = Capture::parse("", &pcap.finish().expect("memory takes all"));
    assert_eq!(read.packets.len(), written.len());
    for (packet, (name, time, comment, is_inbound, bytes)) in read.packets.iter().zip(written) {
        assert_eq!(packet.interface, name);
        assert_eq!((packet.at, packet.is_inbound), (time, is_inbound));
        assert_eq!((packet.len, &packet.bytes), (bytes.len(), &bytes));
        assert_eq!(packet.comment, comment);
    }
    script.steps().max(1)
}

/// A message between a subnet's host and a program: if it is accepted and written again, the result reads the same.
pub(crate) fn message(bytes: &[u8]) -> u32 {
    match Message::decode(bytes) {
        Ok(message) => {
            let again = message.encode();
            assert_eq!(Message::decode(&again), Ok(message));
            assert!(
                again.len() <= bytes.len() + 16,
                "{} of {}",
                again.len(),
                bytes.len()
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    1
}

/// Names of SRP ports and targets: if one is accepted and written again, the result is accepted, and for ports it is
/// the same.
pub(crate) fn names(bytes: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(port) = text.parse::<PortId>() {
        assert_eq!(port.to_string().parse(), Ok(port));
    }
    match text.parse::<Target>() {
        // The text of an address does not name the port.
        Ok(target) => assert!(target.to_string().parse::<Target>().is_ok(), "{target}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    1
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_text_of_a_target_is_read_again() {
        super::names(b"10.0.0.2:5555");
        super::names(b"id_ext=0000000000000001,ioc_guid=505400fffe770002,dest=10.0.0.2:5555");
    }
}
