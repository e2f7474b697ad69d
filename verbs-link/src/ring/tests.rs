//! Rings between ends that follow the rules, and ends whose peer does not.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_core::sync::Mutex;
use verbs_core::sync::thread::{self, Thread};

use super::*;

const CAPACITY: u64 = 256;

/// The memory of both ends, in one process.
#[derive(Clone)]
struct Plain(Arc<Mutex<([u64; 5], Vec<u8>)>>);

impl Plain {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(([0; 5], vec![0; CAPACITY as usize]))))
    }
}

impl Shared for Plain {
    fn capacity(&self) -> u64 {
        CAPACITY
    }

    fn load(&self, word: Word) -> u64 {
        self.0.lock().0[word as usize]
    }

    fn store(&self, word: Word, value: u64) {
        self.0.lock().0[word as usize] = value;
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let at = at as usize;
        into.copy_from_slice(&self.0.lock().1[at..at + into.len()]);
    }

    fn write(&self, at: u64, from: &[u8]) {
        let at = at as usize;
        self.0.lock().1[at..at + from.len()].copy_from_slice(from);
    }
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
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let value = prop_oneof![
        (0..2 * CAPACITY / 8).prop_map(|steps| steps * 8),
        0..2 * CAPACITY,
        any::<u64>(),
        Just(!7_u64),
    ];
    let length = prop_oneof![0..2 * CAPACITY, any::<u64>()];
    let deed = prop_oneof![
        (0..5_usize, value).prop_map(|(word, value)| Deed::Word(word, value)),
        (0..CAPACITY / 8, length)
            .prop_map(|(at, len)| Deed::Bytes(at * 8, len.to_ne_bytes().to_vec())),
        (0..121_usize).prop_map(Deed::Own),
    ];
    vec(deed, 1..60)
}

fn harm(shared: &Plain, deed: &Deed) {
    match deed {
        Deed::Word(word, value) => shared.0.lock().0[*word] = *value,
        Deed::Bytes(at, bytes) => shared.write(*at, bytes),
        Deed::Own(_) => {}
    }
}

proptest! {
    /// Goal: messages are read as written, whatever the lengths and whichever end is ahead; a writer without room
    /// finds some after the reader has rung, and at the latest when the ring is empty. Method: a queue beside the
    /// ring.
    #[test]
    fn messages_arrive_whole_and_in_order(steps in vec((any::<bool>(), 0..121_usize), 1..200)) {
        let shared = Plain::new();
        let (mut writer, mut reader) = (Writer::new(shared.clone()), Reader::new(shared));
        prop_assert_eq!(writer.longest(), 120);
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

    /// Goal: no write to the memory makes a reader panic, read beyond its buffer, or continue after an impossible
    /// value.
    #[test]
    fn a_reader_survives_any_writer(deeds in deeds()) {
        let shared = Plain::new();
        let (mut reader, mut into) = (Reader::new(shared.clone()), [0; 100]);
        let watch = reader.watch();
        for deed in &deeds {
            harm(&shared, deed);
            let head = reader.head;
            match reader.read(&mut into) {
                Ok(Some(len)) => prop_assert_eq!(reader.head, head + room_of(len)),
                Ok(None) | Err(Broken) => prop_assert_eq!(reader.head, head),
            }
            let _ = (reader.bell(), watch.sleep());
            watch.wake();
        }
    }

    /// Goal: no write to the memory makes a writer panic, or write more than the ring holds.
    #[test]
    fn a_writer_survives_any_reader(deeds in deeds()) {
        let shared = Plain::new();
        let mut writer = Writer::new(shared.clone());
        for deed in &deeds {
            harm(&shared, deed);
            if let Deed::Own(len) = *deed {
                let bytes = message(0, len);
                let _ = writer.write(len, [&bytes[..]].into_iter());
                prop_assert!(writer.tail - writer.head <= CAPACITY);
            }
        }
    }
}

#[test]
fn a_bell_is_rung_for_who_sleeps_and_for_nobody_else() {
    let shared = Plain::new();
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
    let shared = Plain::new();
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
