//! Captures of all links of a subnet: an interface for each port that sends.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use hca_sim::link::fabric::{Carried, NodeId, PortRef, Topology};
use hca_sim::link::pcap::{Interface, LinkType, Note, PcapNgWriter};

use super::{CaptureError, CaptureFile, since_epoch};

/// A capture in progress. Each packet is in it once for each link that it passes, as it leaves the port whose name its
/// interface has.
pub(crate) struct LinkCapture {
    /// `None` after an error.
    pcap: Option<PcapNgWriter<CaptureFile>>,
    file: CaptureFile,
    /// Those of the nodes.
    names: BTreeMap<NodeId, String>,
    interfaces: BTreeMap<PortRef, Interface>,
    /// The time since the Unix epoch at which the subnet's time began.
    epoch: Duration,
}

impl LinkCapture {
    /// Creates the file for a subnet of that topology, whose time begins now.
    pub(crate) fn create(path: &Path, topology: &Topology) -> Result<Self, CaptureError> {
        let file = CaptureFile::create(path)?;
        let pcap = PcapNgWriter::new(file.clone()).map_err(CaptureError::at(path))?;
        let names = topology.nodes().iter().map(|node| node.name.clone());
        let names = (0..).map(NodeId).zip(names);
        Ok(Self {
            pcap: Some(pcap),
            file,
            names: names.collect(),
            interfaces: BTreeMap::new(),
            epoch: since_epoch(),
        })
    }

    /// Adds packets that have left their ports. An error ends the capture, and is told at the end.
    pub(crate) fn write(&mut self, carried: impl Iterator<Item = Carried>) {
        for packet in carried {
            let Some(mut pcap) = self.pcap.take() else {
                continue;
            };
            match self.add(&mut pcap, &packet) {
                // A packet that no capture can say is left out.
                Err(error) if error.kind() != io::ErrorKind::InvalidInput => {}
                _ => self.pcap = Some(pcap),
            }
        }
    }

    fn add(&mut self, pcap: &mut PcapNgWriter<CaptureFile>, packet: &Carried) -> io::Result<()> {
        let from = packet.from;
        let interface = match self.interfaces.get(&from) {
            Some(interface) => *interface,
            None => {
                let node = self.names.get(&from.node);
                let name = format!("{}:{}", node.map_or("", String::as_str), from.port);
                let interface = pcap.interface(&name, LinkType::InfiniBand)?;
                self.interfaces.insert(from, interface);
                interface
            }
        };
        let since = Duration::from_nanos(packet.at.as_nanos());
        let note = Note::new(interface, self.epoch.saturating_add(since));
        let note = note.outbound().comment(packet.fate());
        pcap.frame(&note, &packet.frame(), &packet.transport())
    }

    /// Flushes it, and tells why it ended early, if it did: the file keeps its first error.
    pub(crate) fn finish(&self) -> Result<(), CaptureError> {
        self.file.finish()
    }
}
