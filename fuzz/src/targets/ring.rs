//! Memory that two processes share: rings, and the packets of a neighbour in them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::rc::Rc;

use hca_sim::link::fabric::ring::{Bell, Broken, HEAD_MAX, Next, Reader, Shared, Word, Writer};
use verbs_core::host::channel::Head;
use verbs_core::host::message::Packets;
use verbs_core::mem::Window;
use verbs_link::{Bounds, Inbound, Taken};

use crate::Script;

/// Memory that two processes share, as one of them sees it while the other writes anything.
#[derive(Clone, Default)]
struct Memory(Rc<Inner>);

struct Inner {
    words: RefCell<[u64; Word::COUNT]>,
    bytes: verbs_core::Memory,
}

/// Room for long messages with payloads of half a KiB.
const CAPACITY: usize = 4096;

impl Default for Inner {
    fn default() -> Self {
        Self {
            words: RefCell::default(),
            bytes: verbs_core::Memory::alloc(CAPACITY).expect("there is memory"),
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
        Word::Long => 5,
    }
}

impl Shared for Memory {
    fn capacity(&self) -> u64 {
        CAPACITY as u64
    }

    fn load(&self, word: Word) -> u64 {
        self.0.words.borrow()[index(word)]
    }

    fn store(&self, word: Word, value: u64) {
        self.0.words.borrow_mut()[index(word)] = value;
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.0.bytes.read(at as usize, into).expect("in the ring");
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.0.bytes.write(at as usize, from).expect("in the ring");
    }

    fn window(&self, at: u64, len: usize) -> Window<'_> {
        self.0.bytes.window(at as usize, len).expect("in the ring")
    }
}

impl Memory {
    fn harm_word(&self, script: &mut Script<'_>) {
        let word = script.below(Word::COUNT);
        let old = self.0.words.borrow()[word];
        let new = match script.below(4) {
            0 => script.u64(),
            1 => old.wrapping_sub(8 * script.below(64) as u64),
            _ => old.wrapping_add(8 * script.below(64) as u64),
        };
        self.0.words.borrow_mut()[word] = new;
    }

    fn harm_byte(&self, script: &mut Script<'_>) {
        let at = script.below(CAPACITY);
        let byte = [script.byte()];
        self.0.bytes.write(at, &byte).expect("in the ring");
    }
}

/// Writes a message: a head, and unless `len` is 0, a payload of so many bytes.
fn write(writer: &mut Writer<Memory>, head: &[u8], len: usize) -> Result<Option<Bell>, Broken> {
    if len == 0 {
        return writer.write(head.len(), std::iter::once(head));
    }
    let payload = vec![len as u8; len];
    let pieces = (head.len(), std::iter::once(head));
    let written = writer.write_long(pieces, len, |memory, at| {
        memory.window(at, len).write_from(&payload).map(drop)
    });
    Ok(written?.expect("the memory is there"))
}

/// Whether a payload is what [`write`] writes.
fn is_payload(window: Window<'_>) -> bool {
    let mut bytes = vec![0; window.len() as usize];
    window.read_into(&mut bytes).expect("the memory is there");
    let byte = bytes.len() as u8;
    bytes.iter().all(|&one| one == byte)
}

/// A ring whose other end writes anything into the shared memory: an end reads and writes within the ring, or is
/// broken; messages between honest ends arrive unchanged.
pub(crate) fn ring(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let memory = Memory::default();
    let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory.clone()));
    reader.take_long();
    let (mut is_honest, mut expected) = (true, VecDeque::new());
    let mut room = [0; CAPACITY];
    while let Some(what) = script.step(256) {
        let failed = match what % 8 {
            0..=2 => {
                let longest = writer.longest_payload().unwrap_or(0);
                let (message, payload) = match script.below(2) {
                    0 => (vec![what; script.below(writer.longest() + 1)], 0),
                    _ => (
                        vec![what; script.below(HEAD_MAX + 1)],
                        script.below(longest + 1),
                    ),
                };
                let written = write(&mut writer, &message, payload);
                if matches!(written, Ok(Some(_))) {
                    expected.push_back((message, payload));
                }
                written.is_err()
            }
            3..=5 => match reader.next(&mut room) {
                Ok(None) => {
                    assert!(!is_honest || expected.is_empty(), "a message is missing");
                    false
                }
                Ok(Some(Next::Whole(len))) => {
                    let expected = expected.pop_front();
                    let got = (room[..len].to_vec(), 0);
                    assert!(!is_honest || expected == Some(got), "another message");
                    false
                }
                Ok(Some(Next::Long(long))) => {
                    let is_right = is_payload(reader.shared().window(long.at, long.len));
                    let is_expected = expected.pop_front().is_some_and(|(head, len)| {
                        len == long.len && room[..long.head].starts_with(&head)
                    });
                    assert!(!is_honest || is_right && is_expected, "another message");
                    reader.finish(long);
                    false
                }
                Err(_) => true,
            },
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
    inbound.take_long();
    let (mut is_honest, mut expected) = (true, VecDeque::new());
    let mut room = [0; CAPACITY];
    let mut last = None;
    while let Some(what) = script.step(256) {
        match what % 8 {
            0..=3 => {
                let (message, src, may) = neighbours_packets(&mut script, last);
                let longest = writer.longest_payload().unwrap_or(0);
                let payload = match message.len() <= HEAD_MAX && may {
                    true => script.below(2) * script.below(longest + 1),
                    false => 0,
                };
                match write(&mut writer, &message, payload) {
                    Ok(Some(_)) => {
                        last = Some(src);
                        expected.push_back((may.then(|| said(&message, payload)), may));
                    }
                    Ok(None) => {}
                    Err(_) => assert!(!is_honest, "the reader breaks no rule"),
                }
            }
            4 | 5 => {
                let taken = take(&mut inbound, &mut room, is_honest);
                let Ok(taken) = taken else {
                    assert!(!is_honest, "an honest neighbour is broken off");
                    break;
                };
                if is_honest {
                    assert_eq!(taken, expected.pop_front(), "another message");
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

/// What a message says, and whether a neighbour may send it: otherwise only that it may not.
type Said = (Option<(Vec<u8>, usize)>, bool);

/// Takes a message, if there is one.
fn take(
    inbound: &mut Inbound<Memory>,
    room: &mut [u8],
    is_honest: bool,
) -> Result<Option<Said>, Broken> {
    let bounds = Bounds {
        addresses: &[HERE],
        numbers: &[NUMBERS],
    };
    let mut said = None;
    let mut sink = |packets: &Packets<'_>, payload: Option<Window<'_>>| {
        assert_eq!((packets.src, packets.dst), (HERE, HERE));
        for packet in packets.packets() {
            let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
            assert!(NUMBERS.contains(&qpn), "a foreign number {qpn:x}");
        }
        assert!(
            !is_honest || payload.is_none_or(is_payload),
            "another payload"
        );
        let len = payload.map_or(0, |payload| payload.len() as usize);
        said = Some((plain(head_of(packets), packets.bytes), len));
    };
    let taken = inbound.take(room, &bounds, &mut sink)?;
    Ok(taken.map(|taken| (said, matches!(taken, Taken::Packets(_)))))
}

/// What a message says that is written with a payload of so many bytes.
fn said(message: &[u8], len: usize) -> (Vec<u8>, usize) {
    let (head, bytes) = Head::take(message).expect("a message");
    let bytes = match len {
        0 => bytes,
        // Of a long message, only the first packet counts.
        _ => &bytes[..usize::from(head.segment)],
    };
    (plain(head, bytes), len)
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
