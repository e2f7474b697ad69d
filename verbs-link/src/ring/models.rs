//! Models of a ring of two messages: a written message arrives once, whole and in order, and no end sleeps for
//! ever.
//!
//! The bytes are cells whose accesses loom tracks: a message that is read before it is whole, or overwritten before it
//! has been read, fails the model, as does a weaker order of the words.

use loom::cell::Cell;
use loom::sync::Notify;
use loom::thread;
use verbs_core::sync::atomic::Ordering::{Acquire, Release};

use super::*;

/// Bytes of a message, and of each copy.
const PIECE: usize = 8;
/// Two messages and their lengths.
const PIECES: usize = 4;

struct Place {
    words: [AtomicU64; 5],
    pieces: [Cell<u64>; PIECES],
}

#[derive(Clone)]
struct Memory(Arc<Place>);

impl Memory {
    fn new() -> Self {
        let zeros = || AtomicU64::new(0);
        Self(Arc::new(Place {
            words: std::array::from_fn(|_| zeros()),
            pieces: std::array::from_fn(|_| Cell::new(0)),
        }))
    }

    fn piece(&self, at: u64, len: usize) -> &Cell<u64> {
        assert_eq!(len, PIECE);
        &self.0.pieces[at as usize / PIECE]
    }
}

impl Shared for Memory {
    fn capacity(&self) -> u64 {
        (PIECE * PIECES) as u64
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
        let (memory, bells) = (Memory::new(), Bells::new());
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
