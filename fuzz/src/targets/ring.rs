//! Memory that two processes share: rings, and the packets of a neighbour in them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::rc::Rc;

use hca_sim::link::fabric::ring::{Reader, Shared, Word, Writer};
use verbs_core::host::channel::Head;
use verbs_core::host::message::Packets;
use verbs_link::{Bounds, Inbound, Taken};

use crate::Script;

/// Memory that two processes share, as one of them sees it while the other writes anything.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Inner>>);

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

impl Memory {
    fn harm_word(&self, script: &mut Script<'_>) {
        let word = script.below(5);
        let old = self.0.borrow().words[word];
        let new = match script.below(4) {
            0 => script.u64(),
            1 => old.wrapping_sub(8 * script.below(64) as u64),
            _ => old.wrapping_add(8 * script.below(64) as u64),
        };
        self.0.borrow_mut().words[word] = new;
    }

    fn harm_byte(&self, script: &mut Script<'_>) {
        let at = script.below(CAPACITY);
        self.0.borrow_mut().bytes[at] = script.byte();
    }
}

/// A ring whose other end writes anything into the shared memory: an end reads and writes within the ring, or is
/// broken; messages between honest ends arrive unchanged.
pub(crate) fn ring(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let memory = Memory::default();
    let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory.clone()));
    let (mut is_honest, mut expected) = (true, VecDeque::new());
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
                memory.harm_word(&mut script);
                false
            }
            _ => {
                is_honest = false;
                memory.harm_byte(&mut script);
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

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const AWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The queue pair numbers of the process that reads.
const NUMBERS: Range<u32> = 0x5010..0x6000;

/// A neighbour of a host writes packets, other messages and single bytes into the ring of a channel: what is handed up is
/// for the reader's own queue pairs, between addresses of the host, with the bytes that were written; and a neighbour that
/// keeps to the rules is never broken off.
pub(crate) fn channel(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let memory = Memory::default();
    let mut writer = Writer::new(memory.clone());
    let mut inbound = Inbound::new(Reader::new(memory.clone()));
    let bounds = Bounds {
        addresses: &[HERE],
        numbers: &[NUMBERS],
    };
    let (mut is_honest, mut expected) = (true, VecDeque::new());
    let mut room = [0; CAPACITY];
    let mut last = None;
    while let Some(what) = script.step(256) {
        match what % 8 {
            0..=3 => {
                let (message, src, may) = neighbours_packets(&mut script, last);
                let written = writer.write(message.len(), std::iter::once(&message[..]));
                match written {
                    Ok(Some(_)) => {
                        last = Some(src);
                        expected.push_back((message, may));
                    }
                    Ok(None) => {}
                    Err(_) => assert!(!is_honest, "the reader breaks no rule"),
                }
            }
            4 | 5 => {
                let mut got = Vec::new();
                let mut take = |packets: &Packets<'_>| {
                    assert_eq!((packets.src, packets.dst), (HERE, HERE));
                    for packet in packets.packets() {
                        let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
                        assert!(NUMBERS.contains(&qpn), "a foreign number {qpn:x}");
                    }
                    got = plain(head_of(packets), packets.bytes);
                };
                match inbound.take(&mut room, &bounds, &mut take) {
                    Ok(taken) if is_honest => {
                        let expected = expected.pop_front();
                        let may = expected.as_ref().map(|(_, may)| *may);
                        assert_eq!(taken.map(|taken| matches!(taken, Taken::Packets(_))), may);
                        if let Some((message, true)) = expected {
                            let (head, bytes) = Head::take(&message).expect("a message");
                            assert_eq!(got, plain(head, bytes), "other packets");
                        }
                    }
                    Ok(_) => {}
                    Err(_) => {
                        assert!(!is_honest, "an honest neighbour is broken off");
                        break;
                    }
                }
            }
            6 => {
                is_honest = false;
                memory.harm_word(&mut script);
            }
            _ => {
                is_honest = false;
                memory.harm_byte(&mut script);
                let _nobody_sleeps = inbound.bell();
                if inbound.has_message().is_err() {
                    break;
                }
            }
        }
    }
    script.steps().max(1)
}

/// A message that leaves out its addresses.
fn plain(head: Head, packets: &[u8]) -> Vec<u8> {
    let addresses = None;
    let (head, len) = Head { addresses, ..head }.bytes();
    [&head[..len], packets].concat()
}

fn head_of(packets: &Packets<'_>) -> Head {
    Head {
        addresses: None,
        tclass: packets.tclass,
        ident: packets.ident.expect("it is known"),
        segment: packets.segment,
    }
}

/// A message with packets, where they come from, and whether a neighbour may send them. If the message before came from
/// there, too, it need not say so.
fn neighbours_packets(script: &mut Script<'_>, last: Option<IpAddr>) -> (Vec<u8>, IpAddr, bool) {
    let count = 1 + script.below(3);
    let mut bytes = Vec::new();
    let mut may = true;
    for _ in 0..count {
        let qpn = script.pick(&[0x5010, 0x5fff, 0x5010, 1, 0x500f, 0x6000]);
        may &= NUMBERS.contains(&qpn);
        let [_, a, b, c] = qpn.to_be_bytes();
        bytes.extend([4, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, script.byte()]);
    }
    let src = script.pick(&[HERE, HERE, HERE, AWAY]);
    may &= src == HERE;
    let is_said = last != Some(src) || script.below(2) == 0;
    let head = Head {
        addresses: is_said.then_some((src, HERE)),
        tclass: script.byte(),
        ident: script.u16(),
        segment: 12,
    };
    let (head, len) = head.bytes();
    ([&head[..len], &bytes].concat(), src, may)
}
