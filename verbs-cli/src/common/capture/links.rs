//! Captures of all links of a subnet: an interface for each port that sends.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use hca_sim::link::fabric::{Carried, NodeId, PortRef, Topology};
use hca_sim::link::pcap::{Interface, LinkType, Note, PcapNgWriter};

use super::{CaptureFile, since_epoch};

/// A capture in progress. Each packet is in it once for each link that it passes, as it leaves the port whose name its
/// interface has.
pub(crate) struct LinkCapture {
    pcap: PcapNgWriter<CaptureFile>,
    file: CaptureFile,
    /// Those of the nodes.
    names: BTreeMap<NodeId, String>,
    interfaces: BTreeMap<PortRef, Interface>,
    /// The time since the Unix epoch at which the subnet's time began.
    epoch: Duration,
}

impl LinkCapture {
    /// Creates the file for a subnet of that topology, whose time begins now.
    pub(crate) fn create(path: &Path, topology: &Topology) -> io::Result<Self> {
        let file = CaptureFile::create(path)?;
        let names = topology.nodes().iter().map(|node| node.name.clone());
        let names = (0..).map(NodeId).zip(names);
        Ok(Self {
            pcap: PcapNgWriter::new(file.clone())?,
            file,
            names: names.collect(),
            interfaces: BTreeMap::new(),
            epoch: since_epoch(),
        })
    }

    /// Adds packets that have left their ports. An error is told at the end.
    pub(crate) fn write(&mut self, carried: impl Iterator<Item = Carried>) {
        for packet in carried {
            // The file keeps its first error.
            let _kept = self.add(&packet);
        }
    }

    fn add(&mut self, packet: &Carried) -> io::Result<()> {
        let from = packet.from;
        let interface = match self.interfaces.get(&from) {
            Some(interface) => *interface,
            None => {
                let node = self.names.get(&from.node);
                let name = format!("{}:{}", node.map_or("", String::as_str), from.port);
                let interface = self.pcap.interface(&name, LinkType::InfiniBand)?;
                self.interfaces.insert(from, interface);
                interface
            }
        };
        let since = Duration::from_nanos(packet.at.as_nanos());
        let note = Note::new(interface, self.epoch.saturating_add(since));
        let note = note.outbound().comment(packet.fate());
        self.pcap.frame(&note, &packet.frame(), &packet.transport())
    }

    /// Flushes it, and tells why it ended early, if it did.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.file.finish()
    }
}
