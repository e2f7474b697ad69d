//! A stream of messages from one thread to another, within a fixed window.
//!
//! The one-way latency of bare cache lines stands beside: how far apart the two processors are
//! decides about the rate, and on a virtual machine it changes without notice.

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{AtomicU64, Ordering};
use verbs_core::{Send, Write};

use super::Stage;
use super::bed::{Bed, End, POLL};
use super::duel::{self, Duel};
use super::error::BenchError;
use super::latency::{SIGNALED, SIZES, WORD, cache_lines};
use super::machine::Patience;
use super::table::{Beside, Row};

/// Messages that are under way at most. Fixed, because a queue that runs half full moves more cache
/// lines at once than one that runs empty.
const WINDOW: u64 = 64;

/// The receiver says so after so many messages what it has consumed.
const CREDIT: u64 = 16;

/// Measures SEND and WRITE by size.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(SIZES.len());
    let mut rows = Vec::new();
    for bytes in SIZES {
        let lines = Default::default();
        let duels = vec![cache_lines(&lines), sends(bytes)?, writes(bytes)?];
        let figures = duel::measure(method, &stage.machine, duels)?;
        for (name, figure) in ["SEND", "WRITE"].into_iter().zip(&figures[1..]) {
            let beside = Beside::new("two cache lines", figures[0], *figure);
            let row = Row::new(stage.bench, name, *figure).bytes(bytes);
            rows.push(row.threads(2).bandwidth().beside(beside));
        }
    }
    Ok(rows)
}

/// Where the messages of a stream lie, at both ends.
#[derive(Clone, Copy, Debug)]
struct Slots {
    bytes: usize,
}

impl Slots {
    /// From one slot to the next: whole cache lines, and no power of two from a page on, which would
    /// put all slots into the same sets of a cache.
    fn stride(self) -> usize {
        let lines = self.bytes.next_multiple_of(64);
        if lines < 4096 { lines } else { lines + 192 }
    }

    /// Where the slot of that message begins. Messages count from 1.
    fn start(self, number: u64) -> usize {
        ((number - 1) % WINDOW) as usize * self.stride()
    }

    /// Where the word with its number lies.
    fn word(self, number: u64) -> usize {
        self.start(number) + self.bytes - WORD
    }

    fn range(self, number: u64) -> std::ops::Range<usize> {
        let start = self.start(number);
        start..start + self.bytes
    }

    fn ends(self) -> Result<[End; 2], BenchError> {
        Bed::new()?.ends(2 * WINDOW as u32, WINDOW as usize * self.stride())
    }
}

/// How far the receiver has come, as it tells the sender.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Consumed(AtomicU64);

/// The sending side of a stream.
struct Sender {
    end: End,
    slots: Slots,
    sent: u64,
    /// What the receiver had consumed when this was last looked at.
    known: u64,
    consumed: Arc<Consumed>,
}

impl Sender {
    fn new(end: End, slots: Slots, consumed: &Arc<Consumed>) -> Self {
        let consumed = Arc::clone(consumed);
        Self {
            end,
            slots,
            sent: 0,
            known: 0,
            consumed,
        }
    }

    /// Waits for room in the window and numbers the next message.
    #[inline]
    fn next(&mut self) -> Result<u64, BenchError> {
        if self.sent - self.known == WINDOW {
            self.wait(self.sent - WINDOW + 1)?;
        }
        self.sent += 1;
        let word = self.slots.word(self.sent);
        let stored = self.end.mr.memory().store_u64(word, self.sent);
        stored.map_err(BenchError::verb("number a message"))?;
        Ok(self.sent)
    }

    /// Waits until so many messages were consumed.
    fn wait(&mut self, until: u64) -> Result<(), BenchError> {
        let mut patience = Patience::new("room in the window");
        loop {
            self.known = self.consumed.0.load(Ordering::Acquire);
            if self.known >= until {
                return Ok(());
            }
            // A WRITE that failed is the cause, if there is one; no other completion is left here.
            patience
                .lose()
                .or_else(|stalled| self.end.sent.poll(1).and(Err(stalled)))?;
        }
    }
}

/// The receiving side of a stream. Holds the whole end, or the queue pair would go.
struct Receiver {
    end: End,
    slots: Slots,
    received: u64,
    consumed: Arc<Consumed>,
}

impl Receiver {
    fn new(end: End, slots: Slots, consumed: &Arc<Consumed>) -> Self {
        let consumed = Arc::clone(consumed);
        Self {
            end,
            slots,
            received: 0,
            consumed,
        }
    }

    /// Posts the receive of that message.
    #[inline]
    fn expect(&mut self, number: u64) -> Result<(), BenchError> {
        self.end.expect(number, self.slots.range(number))
    }

    /// Takes so many SENDs, looking into each.
    fn receive(&mut self, times: u64) -> Result<(), BenchError> {
        let last = self.received + times;
        let mut patience = Patience::new("SENDs");
        while self.received < last {
            let arrived = self.end.received.poll(POLL)?.len();
            if arrived == 0 {
                patience.lose()?;
                continue;
            }
            patience = Patience::new("SENDs");
            for _ in 0..arrived {
                self.received += 1;
                let (expected, got) = (self.received, self.arrived(self.received)?);
                if got != expected {
                    return Err(BenchError::Payload { expected, got });
                }
                self.expect(expected)?;
                self.tell(last);
            }
        }
        Ok(())
    }

    /// Watches so many WRITEs arrive.
    fn watch(&mut self, times: u64) -> Result<(), BenchError> {
        let last = self.received + times;
        while self.received < last {
            self.received += 1;
            let mut patience = Patience::new("a WRITE");
            while self.arrived(self.received)? != self.received {
                patience.lose()?;
            }
            self.tell(last);
        }
        Ok(())
    }

    /// The number that lies in the slot of that message.
    #[inline]
    fn arrived(&self, number: u64) -> Result<u64, BenchError> {
        let loaded = self.end.mr.memory().load_u64(self.slots.word(number));
        loaded.map_err(BenchError::verb("read a message"))
    }

    /// Tells the sender now and then, and in the end, how many messages were consumed.
    #[inline]
    fn tell(&self, last: u64) {
        if self.received.is_multiple_of(CREDIT) || self.received == last {
            self.consumed.0.store(self.received, Ordering::Release);
        }
    }
}

/// SENDs; the receiver polls completions, looks into each message and posts its receive again.
fn sends(bytes: usize) -> Result<Duel<'static>, BenchError> {
    let slots = Slots { bytes };
    let [a, b] = slots.ends()?;
    let consumed = Arc::<Consumed>::default();
    let mut sender = Sender::new(a, slots, &consumed);
    let mut receiver = Receiver::new(b, slots, &consumed);
    for number in 1..=WINDOW {
        receiver.expect(number)?;
    }
    let here = move |times| {
        for _ in 0..times {
            let number = sender.next()?;
            let message = sender.end.mr.slice(slots.range(number));
            let send = Send::new(number).from(message);
            if number.is_multiple_of(SIGNALED) {
                sender.end.send.post(send.signaled())?;
                sender.end.sent.take(1)?;
            } else {
                sender.end.send.post(send)?;
            }
        }
        sender.wait(sender.sent)
    };
    let there = move |times| receiver.receive(times);
    Ok(Duel {
        units: 1,
        here: Box::new(here),
        there: Box::new(there),
    })
}

/// WRITEs; the receiver polls the last word of each slot in turn.
fn writes(bytes: usize) -> Result<Duel<'static>, BenchError> {
    let slots = Slots { bytes };
    let [a, b] = slots.ends()?;
    let consumed = Arc::<Consumed>::default();
    let mut sender = Sender::new(a, slots, &consumed);
    let places: Vec<_> = (1..=WINDOW)
        .map(|number| b.mr.remote(slots.start(number)))
        .collect();
    let here = move |times| {
        for _ in 0..times {
            let number = sender.next()?;
            let message = sender.end.mr.slice(slots.range(number));
            let place = places[((number - 1) % WINDOW) as usize];
            let write = Write::new(number, place).from(message);
            if number.is_multiple_of(SIGNALED) {
                sender.end.send.post(write.signaled())?;
                sender.end.sent.take(1)?;
            } else {
                sender.end.send.post(write)?;
            }
        }
        sender.wait(sender.sent)
    };
    let mut receiver = Receiver::new(b, slots, &consumed);
    let there = move |times| receiver.watch(times);
    Ok(Duel {
        units: 1,
        here: Box::new(here),
        there: Box::new(there),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap() {
        for bytes in SIZES {
            let slots = Slots { bytes };
            assert!(slots.stride() >= bytes);
            assert_eq!(slots.stride() % 64, 0);
            assert_eq!(slots.range(1), 0..bytes);
            assert_eq!(slots.range(WINDOW + 1), slots.range(1));
            assert_eq!(slots.start(WINDOW), (WINDOW as usize - 1) * slots.stride());
            assert_eq!(slots.word(2) + WORD, slots.range(2).end);
        }
    }
}
