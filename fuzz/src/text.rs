//! What is read from files, command lines and sockets: topologies, captures, messages, names.

use std::time::Duration;

use hca_sim::link::fabric::message::Message;
use hca_sim::link::fabric::ring::{Reader, Shared, Word, Writer};
use hca_sim::link::fabric::{Subnet, SubnetConfig, Topology};
use hca_sim::link::pcap::{LinkType, PcapWriter};
use ulp_srp::initiator::Target;
use ulp_srp::iu::PortId;

use crate::Script;

/// A topology in a file. What is accepted has names that are found, and links between ports that there are, one
/// at most for each; a subnet of it has as many nodes.
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

/// Packets into a capture, which is then read: every record says what was written.
pub(crate) fn capture(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let link_type = script.pick(&[LinkType::RawIp, LinkType::Ethernet]);
    let mut pcap = PcapWriter::new(Vec::new(), link_type).expect("memory takes all");
    let mut written = Vec::new();
    while script.step(32).is_some() {
        let time = Duration::new(script.u32().into(), script.u32() % 1_000_000_000);
        let (one, other) = (script.below(80), script.below(80));
        let pieces = [script.take(one), script.take(other)];
        pcap.packet(time, &pieces).expect("a time that fits");
        written.push((time, pieces.concat()));
    }
    let file = pcap.finish().expect("memory takes all");
    let mut rest = &file[24..];
    for (time, packet) in &written {
        let (head, behind) = rest.split_at(16);
        let number = |at: usize| {
            let bytes = head[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes)
        };
        assert_eq!(Duration::new(number(0).into(), number(4)), *time);
        let (len, whole) = (number(8) as usize, number(12) as usize);
        assert_eq!((len, whole), (packet.len(), packet.len()));
        assert_eq!(&behind[..len], packet);
        rest = &behind[len..];
    }
    assert!(rest.is_empty());
    script.steps().max(1)
}

/// A message between a subnet's host and a program: what is accepted is written again to what reads the same.
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

/// Names of SRP ports and targets: what is accepted is written again to what is accepted, and of ports the same.
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

/// Memory that two processes share, as one of them sees it while the other writes what it likes.
#[derive(Clone, Default)]
struct Memory(std::rc::Rc<std::cell::RefCell<Inner>>);

struct Inner {
    words: [u64; 5],
    bytes: [u8; CAPACITY],
}

const CAPACITY: usize = 256;

impl Default for Inner {
    fn default() -> Self {
        Self {
            words: [0; 5],
            bytes: [0; CAPACITY],
        }
    }
}

fn index(word: Word) -> usize {
    match word {
        Word::Tail => 0,
        Word::Head => 1,
        Word::Sleeps => 2,
        Word::Waits => 3,
        Word::Told => 4,
    }
}

impl Shared for Memory {
    fn capacity(&self) -> u64 {
        CAPACITY as u64
    }

    fn load(&self, word: Word) -> u64 {
        self.0.borrow().words[index(word)]
    }

    fn store(&self, word: Word, value: u64) {
        self.0.borrow_mut().words[index(word)] = value;
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let at = at as usize;
        into.copy_from_slice(&self.0.borrow().bytes[at..at + into.len()]);
    }

    fn write(&self, at: u64, from: &[u8]) {
        let at = at as usize;
        self.0.borrow_mut().bytes[at..at + from.len()].copy_from_slice(from);
    }
}

/// A ring whose other end writes anything into the shared memory: an end reads and writes within the ring, or is
/// broken; messages between honest ends arrive as they were.
pub(crate) fn ring(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let memory = Memory::default();
    let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory.clone()));
    let (mut is_honest, mut expected) = (true, std::collections::VecDeque::new());
    let mut room = [0; CAPACITY];
    while let Some(what) = script.step(256) {
        let failed = match what % 8 {
            0..=2 => {
                let len = script.below(writer.longest() + 1);
                let message = vec![what; len];
                let written = writer.write(len, std::iter::once(&message[..]));
                if matches!(written, Ok(Some(_))) {
                    expected.push_back(message);
                }
                written.is_err()
            }
            3..=5 => {
                let read = reader.read(&mut room);
                if is_honest && let Ok(len) = read {
                    let got = len.map(|len| room[..len].to_vec());
                    assert_eq!(got, expected.pop_front(), "another message");
                }
                read.is_err()
            }
            6 => {
                is_honest = false;
                let word = script.below(5);
                let old = memory.0.borrow().words[word];
                let new = match script.below(4) {
                    0 => script.u64(),
                    1 => old.wrapping_sub(8 * script.below(64) as u64),
                    _ => old.wrapping_add(8 * script.below(64) as u64),
                };
                memory.0.borrow_mut().words[word] = new;
                false
            }
            _ => {
                is_honest = false;
                let at = script.below(CAPACITY);
                memory.0.borrow_mut().bytes[at] = script.byte();
                let _nobody_sleeps = reader.bell();
                reader.has_message().is_err()
            }
        };
        if failed {
            assert!(!is_honest, "a ring of honest ends is broken");
            break;
        }
    }
    script.steps().max(1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_text_of_a_target_is_read_again() {
        super::names(b"10.0.0.2:5555");
        super::names(b"id_ext=0000000000000001,ioc_guid=505400fffe770002,dest=10.0.0.2:5555");
    }
}
