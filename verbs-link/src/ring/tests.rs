//! Rings between ends that follow the rules, and ends whose peer does not.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_core::Memory;
use verbs_core::sync::thread::{self, Thread};
use verbs_core::sync::{Arc, Mutex};

use super::*;

const CAPACITY: u64 = 256;
/// Of a ring for long messages, with payloads of half a KiB at most.
const LONG_CAPACITY: u64 = 4096;

/// The memory of both ends, in one process.
#[derive(Clone)]
struct Plain(Arc<(Mutex<[u64; Word::COUNT]>, Memory)>);

impl Plain {
    fn new(capacity: u64) -> Self {
        let bytes = Memory::alloc(capacity as usize).expect("there is memory");
        Self(Arc::new((Mutex::new([0; Word::COUNT]), bytes)))
    }
}

impl Shared for Plain {
    fn capacity(&self) -> u64 {
        self.0.1.len() as u64
    }

    fn load(&self, word: Word) -> u64 {
        self.0.0.lock()[word as usize]
    }

    fn store(&self, word: Word, value: u64) {
        self.0.0.lock()[word as usize] = value;
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.0.1.read(at as usize, into).expect("within the ring");
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.0.1.write(at as usize, from).expect("within the ring");
    }

    fn window(&self, at: u64, len: usize) -> Window<'_> {
        self.0.1.window(at as usize, len).expect("within the ring")
    }
}

/// Writes a long message, whose payload is its head again and again.
fn write_long(writer: &mut Writer<Plain>, head: &[u8], len: usize) -> Result<Option<Bell>, Broken> {
    let payload = payload_of(head, len);
    let pieces = (head.len(), [head].into_iter());
    let written = writer.write_long(pieces, len, |memory, at| {
        memory.window(at, len).write_from(&payload).map(drop)
    });
    Ok(written?.expect("the memory is there"))
}

fn payload_of(head: &[u8], len: usize) -> Vec<u8> {
    head.iter().copied().cycle().take(len).collect()
}

/// The payload of a long message.
fn payload(reader: &Reader<Plain>, long: &Long) -> Vec<u8> {
    let mut bytes = vec![0; long.len];
    let window = reader.shared().window(long.at, long.len);
    window.read_into(&mut bytes).expect("the memory is there");
    bytes
}

fn message(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + number) as u8).collect()
}

/// What a peer that breaks the rules does between the steps of an end.
#[derive(Clone, Debug)]
enum Deed {
    Word(usize, u64),
    Bytes(u64, Vec<u8>),
    Own(usize),
    OwnLong(usize, usize),
}

fn deeds(capacity: u64) -> impl Strategy<Value = Vec<Deed>> {
    let value = prop_oneof![
        (0..2 * capacity / 8).prop_map(|steps| steps * 8),
        0..2 * capacity,
        any::<u64>(),
        Just(!7_u64),
    ];
    let both = (0..capacity, 0..capacity).prop_map(|(len, payload)| payload << 32 | len);
    let length = prop_oneof![0..2 * capacity, both, any::<u64>()];
    let longest = capacity as usize / 2 - 8;
    let longest_payload = capacity as usize / 8;
    let deed = prop_oneof![
        (0..Word::COUNT, value).prop_map(|(word, value)| Deed::Word(word, value)),
        (0..capacity / 8, length)
            .prop_map(|(at, len)| Deed::Bytes(at * 8, len.to_ne_bytes().to_vec())),
        (0..=longest).prop_map(Deed::Own),
        (1..=HEAD_MAX, 1..=longest_payload).prop_map(|(head, len)| Deed::OwnLong(head, len)),
    ];
    vec(deed, 1..60)
}

fn harm(shared: &Plain, deed: &Deed) {
    match deed {
        Deed::Word(word, value) => shared.0.0.lock()[*word] = *value,
        Deed::Bytes(at, bytes) => shared.write(*at, bytes),
        Deed::Own(_) | Deed::OwnLong(..) => {}
    }
}

proptest! {
    /// Goal: messages are read as written, whatever the lengths and whichever end is ahead; a writer without room
    /// finds some after the reader has rung, and at the latest when the ring is empty. Method: a queue beside the
    /// ring.
    #[test]
    fn messages_arrive_whole_and_in_order(steps in vec((any::<bool>(), 0..121_usize), 1..200)) {
        let shared = Plain::new(CAPACITY);
        let (mut writer, mut reader) = (Writer::new(shared.clone()), Reader::new(shared));
        prop_assert_eq!(writer.longest(), 120);
        prop_assert_eq!(writer.longest_payload(), None);
        let (mut expected, mut waits) = (VecDeque::new(), false);
        for (number, &(writes, len)) in steps.iter().enumerate() {
            if writes {
                let bytes = message(number, len);
                let (one, other) = bytes.split_at(len / 3);
                let written = writer.write(len, [one, other].into_iter()).unwrap();
                waits = written.is_none();
                prop_assert!(!waits || !expected.is_empty());
                if !waits {
                    expected.push_back(bytes);
                }
            } else {
                let mut into = [0; 120];
                let len = reader.read(&mut into).unwrap();
                prop_assert_eq!(len.map(|len| into[..len].to_vec()), expected.pop_front());
                let is_rung = reader.bell() == Bell::Ring;
                prop_assert!(!is_rung || waits);
                waits &= !is_rung;
                prop_assert!(!expected.is_empty() || !waits);
            }
        }
    }

    /// Goal: the same of long messages among others: their payloads are whole, too, and stay until they are finished.
    #[test]
    fn long_messages_arrive_whole_and_in_order(
        steps in vec((any::<bool>(), 1..=HEAD_MAX, 0..=512_usize), 1..200),
    ) {
        let shared = Plain::new(LONG_CAPACITY);
        let (mut writer, mut reader) = (Writer::new(shared.clone()), Reader::new(shared));
        prop_assert_eq!(writer.longest_payload(), None, "nobody takes them");
        reader.take_long();
        prop_assert_eq!(writer.longest_payload(), Some(512));
        let (mut expected, mut waits) = (VecDeque::new(), false);
        for (number, &(writes, head, len)) in steps.iter().enumerate() {
            if writes {
                let bytes = message(number, head);
                let written = match len {
                    0 => writer.write(head, [&bytes[..]].into_iter()),
                    len => write_long(&mut writer, &bytes, len),
                };
                waits = written.unwrap().is_none();
                prop_assert!(!waits || !expected.is_empty());
                if !waits {
                    expected.push_back((bytes, len));
                }
            } else {
                let mut into = [0; HEAD_MAX];
                let got = match reader.next(&mut into).unwrap() {
                    None => None,
                    Some(Next::Whole(len)) => Some((into[..len].to_vec(), 0)),
                    Some(Next::Long(long)) => {
                        let again = reader.next(&mut [0; HEAD_MAX]).unwrap();
                        prop_assert!(matches!(again, Some(Next::Long(_))), "it is not finished");
                        let (head, _) = expected.front().unwrap();
                        prop_assert!(long.head >= head.len());
                        prop_assert_eq!(payload(&reader, &long), payload_of(head, long.len));
                        let got = (into[..head.len()].to_vec(), long.len);
                        reader.finish(long);
                        Some(got)
                    }
                };
                prop_assert_eq!(got, expected.pop_front());
                let is_rung = reader.bell() == Bell::Ring;
                prop_assert!(!is_rung || waits);
                waits &= !is_rung;
                prop_assert!(!expected.is_empty() || !waits);
            }
        }
    }

    /// Goal: no write to the memory makes a reader panic, read beyond its buffer or the ring, or continue after an
    /// impossible value.
    #[test]
    fn a_reader_survives_any_writer(takes_long in any::<bool>(), deeds in deeds(LONG_CAPACITY)) {
        let shared = Plain::new(LONG_CAPACITY);
        let (mut reader, mut into) = (Reader::new(shared.clone()), [0; 100]);
        if takes_long {
            reader.take_long();
        }
        let watch = reader.watch();
        for deed in &deeds {
            harm(&shared, deed);
            let head = reader.head;
            match reader.next(&mut into) {
                Ok(Some(Next::Whole(len))) => prop_assert_eq!(reader.head, head + room_of(len)),
                Ok(Some(Next::Long(long))) => {
                    prop_assert!(takes_long && long.head <= into.len());
                    prop_assert_eq!(payload(&reader, &long).len(), long.len);
                    reader.finish(long);
                    prop_assert!(reader.head <= reader.tail);
                }
                Ok(None) | Err(Broken) => prop_assert_eq!(reader.head, head),
            }
            let _ = (reader.bell(), watch.sleep());
            watch.wake();
        }
    }

    /// Goal: no write to the memory makes a writer panic, or write more than the ring holds.
    #[test]
    fn a_writer_survives_any_reader(deeds in deeds(LONG_CAPACITY)) {
        let shared = Plain::new(LONG_CAPACITY);
        let mut writer = Writer::new(shared.clone());
        for deed in &deeds {
            harm(&shared, deed);
            match *deed {
                Deed::Own(len) => {
                    let bytes = message(0, len);
                    let _ = writer.write(len, [&bytes[..]].into_iter());
                }
                Deed::OwnLong(head, len) if writer.longest_payload().is_some() => {
                    let _ = write_long(&mut writer, &message(0, head), len);
                }
                _ => {}
            }
            prop_assert!(writer.tail - writer.head <= LONG_CAPACITY);
        }
    }

    /// Goal: a payload is within the ring, in one piece, behind what is in front of it, and all of a message takes less than
    /// half of the ring; a large one is in the middle of a page.
    #[test]
    fn payloads_have_their_place(
        position in 0..1_u64 << 40,
        shift in 12..=20_u32,
        head in 1..=HEAD_MAX as u64,
        eighths in 1..=64_u64,
    ) {
        let capacity = 1_u64 << shift;
        let len = (capacity / 8 * eighths / 64).max(1) as usize;
        let begin = position * LEN + LEN;
        let place = place_of(begin + head, len, capacity);
        prop_assert!(place >= begin + head);
        prop_assert!(place % capacity + len as u64 <= capacity);
        prop_assert!(room_of((place - begin) as usize + len) <= capacity / 2);
        let large = len >= PAGED_MIN;
        prop_assert_eq!(place % if large { PAGE } else { CACHE_LINE }, if large { IN_PAGE } else { 0 });
    }
}

#[test]
fn a_bell_is_rung_for_who_sleeps_and_for_nobody_else() {
    let shared = Plain::new(CAPACITY);
    let (mut writer, mut reader) = (Writer::new(shared.clone()), Reader::new(shared));
    let watch = reader.watch();
    let mut write = |bytes: &[u8]| writer.write(bytes.len(), [bytes].into_iter()).unwrap();
    assert_eq!(write(b"one"), Some(Bell::Quiet), "nobody sleeps");
    assert!(!watch.sleep(), "there is a message");
    assert_eq!(write(b"two"), Some(Bell::Quiet));
    let mut into = [0; 8];
    assert_eq!(reader.read(&mut into), Ok(Some(3)));
    assert_eq!(reader.read(&mut into), Ok(Some(3)));
    assert_eq!(reader.read(&mut into), Ok(None));
    assert!(watch.sleep());
    assert_eq!(write(b"three"), Some(Bell::Ring));
    assert_eq!(write(b"four"), Some(Bell::Quiet), "it is awake");
    assert_eq!(reader.bell(), Bell::Quiet, "nobody has waited for room");
}

#[test]
fn what_was_told_is_seen_with_what_follows() {
    let shared = Plain::new(CAPACITY);
    let (mut writer, reader) = (Writer::new(shared.clone()), Reader::new(shared));
    assert_eq!(reader.told(), 0);
    writer.tell();
    writer.tell();
    assert_eq!(reader.told(), 2);
}

/// Goal: two ends of mapped memory, each on a thread that sleeps when it has nothing to do, lose nothing and
/// never both sleep. Method: parking is the bell.
#[cfg(not(miri))]
#[test]
fn threads_at_both_ends_of_mapped_memory_go_on() {
    const MESSAGES: usize = 20_000;
    let (file, mut one) = Rings::create(512 << 10).expect("there is memory");
    let mut other = Rings::open(&file, 512 << 10, End::Second).expect("it is the same file");
    let len_of = |number: usize| (number * 7919) % 70_000;
    let unpark = |bell: Bell, whom: &Thread| {
        if bell == Bell::Ring {
            whom.unpark();
        }
    };
    let writing = thread::current();
    let reading = thread::spawn(move || {
        let (mut into, watch) = (vec![0; 70_000], other.reader.watch());
        for number in 0..MESSAGES {
            let len = loop {
                if let Some(len) = other.reader.read(&mut into).expect("it makes sense") {
                    break len;
                }
                unpark(other.reader.bell(), &writing);
                if watch.sleep() {
                    thread::park();
                    watch.wake();
                }
            };
            unpark(other.reader.bell(), &writing);
            assert_eq!(len, len_of(number));
            let ends = [into.first(), into[..len].last()];
            assert!(len == 0 || ends == [Some(&(number as u8)); 2]);
        }
    });
    for number in 0..MESSAGES {
        let bytes = vec![number as u8; len_of(number)];
        loop {
            let written = one.writer.write(bytes.len(), [&bytes[..]].into_iter());
            match written.expect("it makes sense") {
                Some(bell) => break unpark(bell, reading.thread()),
                None => thread::park(),
            }
        }
    }
    reading.join().expect("all have come");
}
