//! Models of a ring of two messages: a written message arrives once, whole and in order, and no end sleeps for
//! ever.
//!
//! The bytes are cells whose accesses loom tracks: a message that is read before it is whole, or overwritten before it
//! has been read, fails the model, as does a weaker order of the words.

use loom::cell::Cell;
use loom::sync::Notify;
use loom::thread;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use super::*;

/// Bytes of a message, and of each copy.
const PIECE: usize = 8;
/// Two messages and their lengths.
const PIECES: usize = 4;
/// Two long messages, with heads of one piece, and room for neither of them beside those.
const LONG_PIECES: usize = 8;

struct Place {
    words: [AtomicU64; Word::COUNT],
    pieces: Vec<Cell<u64>>,
}

#[derive(Clone)]
struct Memory(Arc<Place>);

impl Memory {
    fn new(pieces: usize) -> Self {
        let zeros = || AtomicU64::new(0);
        Self(Arc::new(Place {
            words: std::array::from_fn(|_| zeros()),
            pieces: (0..pieces).map(|_| Cell::new(0)).collect(),
        }))
    }

    fn piece(&self, at: u64, len: usize) -> &Cell<u64> {
        assert_eq!(len, PIECE);
        &self.0.pieces[at as usize / PIECE]
    }
}

impl Shared for Memory {
    fn capacity(&self) -> u64 {
        (PIECE * self.0.pieces.len()) as u64
    }

    fn load(&self, word: Word) -> u64 {
        self.0.words[word as usize].load(Acquire)
    }

    fn store(&self, word: Word, value: u64) {
        self.0.words[word as usize].store(value, Release);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let value = self.piece(at, into.len()).get();
        into.copy_from_slice(&value.to_ne_bytes());
    }

    fn write(&self, at: u64, from: &[u8]) {
        let value = from.try_into().map(u64::from_ne_bytes);
        self.piece(at, from.len()).set(value.expect("a piece"));
    }

    fn window(&self, _: u64, _: usize) -> Window<'_> {
        unreachable!("the bytes of a model are cells")
    }
}

/// The bells of both ends.
#[derive(Clone)]
struct Bells {
    reader: Arc<Notify>,
    writer: Arc<Notify>,
}

impl Bells {
    fn new() -> Self {
        let bell = || Arc::new(Notify::new());
        Self {
            reader: bell(),
            writer: bell(),
        }
    }
}

fn ring(bell: Bell, whose: &Notify) {
    if bell == Bell::Ring {
        whose.notify();
    }
}

fn write(writer: &mut Writer<Memory>, number: u64, bells: &Bells) {
    let message = number.to_ne_bytes();
    loop {
        let written = writer.write(PIECE, [&message[..]].into_iter());
        match written.expect("the reader makes sense") {
            Some(bell) => return ring(bell, &bells.reader),
            None => bells.writer.wait(),
        }
    }
}

fn read(reader: &mut Reader<Memory>, sleeps: bool, bells: &Bells) -> u64 {
    let mut message = [0; PIECE];
    let watch = reader.watch();
    loop {
        let read = reader.read(&mut message).expect("the writer makes sense");
        if let Some(len) = read {
            assert_eq!(len, PIECE);
            ring(reader.bell(), &bells.writer);
            return u64::from_ne_bytes(message);
        }
        if !sleeps {
            thread::yield_now();
        } else if watch.sleep() {
            bells.reader.wait();
            watch.wake();
        }
    }
}

fn check(messages: u64, sleeps: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (memory, bells) = (Memory::new(PIECES), Bells::new());
        let mut writer = Writer::new(memory.clone());
        let mut reader = Reader::new(memory);
        let thread = {
            let bells = bells.clone();
            thread::spawn(move || (1..=messages).for_each(|it| write(&mut writer, it, &bells)))
        };
        for number in 1..=messages {
            assert_eq!(read(&mut reader, sleeps, &bells), number);
        }
        thread.join().expect("the writer does not panic");
    });
}

/// A reader that sleeps when there is nothing is woken for each message; this needs the fences of
/// [`Writer::write`] and [`Watch::sleep`].
#[test]
fn loom_ring_wakes_its_reader() {
    check(2, true);
}

/// A writer that finds no room is woken when there is some; this needs the fences of `has_room` and
/// [`Reader::read`].
#[test]
fn loom_ring_wakes_its_writer() {
    check(3, false);
}

fn write_long(writer: &mut Writer<Memory>, number: u64, bells: &Bells) {
    let bytes = number.to_ne_bytes();
    loop {
        let head = (PIECE, [&bytes[..]].into_iter());
        let written = writer.write_long(head, PIECE, |memory, at| {
            memory.write(at, &bytes);
            Ok::<_, ()>(())
        });
        match written.expect("the reader makes sense").expect("filled") {
            Some(bell) => return ring(bell, &bells.reader),
            None => bells.writer.wait(),
        }
    }
}

/// The payload of a long message is read where it was written: whole, and before it is overwritten. This needs the order of
/// [`Reader::finish`] as well.
#[test]
fn loom_ring_lends_payloads() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (memory, bells) = (Memory::new(LONG_PIECES), Bells::new());
        let mut writer = Writer::new(memory.clone());
        let mut reader = Reader::new(memory);
        reader.take_long();
        let thread = {
            let bells = bells.clone();
            thread::spawn(move || (1..=3).for_each(|it| write_long(&mut writer, it, &bells)))
        };
        for number in 1..=3_u64 {
            let mut head = [0; PIECE];
            let long = loop {
                match reader.next(&mut head).expect("the writer makes sense") {
                    Some(Next::Long(long)) => break long,
                    Some(Next::Whole(_)) => panic!("it is a long one"),
                    None => thread::yield_now(),
                }
            };
            let mut payload = [0; PIECE];
            reader.shared().read(long.at, &mut payload);
            assert_eq!([head, payload], [number.to_ne_bytes(); 2]);
            reader.finish(long);
            ring(reader.bell(), &bells.writer);
        }
        thread.join().expect("the writer does not panic");
    });
}
