//! One-way latency between two threads: half of a ping-pong, beside that of bare cache lines.

use verbs_core::sync::atomic::{AtomicU64, Ordering};
use verbs_core::{Remote, Send, Write};

use super::Stage;
use super::bed::{Bed, DEPTH, End};
use super::duel::{self, Duel, Party, WAYS};
use super::error::BenchError;
use super::machine::Patience;
use super::table::{Beside, Row};

/// Bytes of the messages; the last word of each carries its number.
pub(crate) const SIZES: [usize; 4] = [8, 64, 1 << 10, 4 << 10];

/// Bytes of that number.
pub(crate) const WORD: usize = 8;

/// One in so many messages is signalled, so that the queue gets its entries back.
pub(crate) const SIGNALED: u64 = 16;

/// Receives posted ahead.
const AHEAD: u64 = 8;

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
            rows.push(row.threads(2).beside(beside));
        }
    }
    Ok(rows)
}

/// A word on cache lines of its own; processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line(AtomicU64);

/// The limit: each thread writes its own line and reads the other's.
pub(crate) fn cache_lines(lines: &[Line; 2]) -> Duel<'_> {
    let party = |ours: usize, begins: bool| -> Party<'_> {
        let mut number = 0;
        Box::new(move |times| {
            for _ in 0..times {
                number += 1;
                if begins {
                    lines[ours].0.store(number, Ordering::Release);
                }
                let mut patience = Patience::new("the other cache line");
                while lines[1 - ours].0.load(Ordering::Acquire) != number {
                    patience.lose()?;
                }
                if !begins {
                    lines[ours].0.store(number, Ordering::Release);
                }
            }
            Ok(())
        })
    };
    Duel {
        units: WAYS,
        here: party(0, true),
        there: party(1, false),
    }
}

/// A thread's end of a ping-pong: what it sends lies at the start of its memory, what arrives behind.
struct Player {
    end: End,
    bytes: usize,
    /// Messages sent, and messages received.
    number: u64,
    /// Where the peer's messages go that are written.
    remote: Remote,
}

fn players(bytes: usize) -> Result<[Player; 2], BenchError> {
    let bed = Bed::new()?;
    let [a, b] = bed.ends(DEPTH, 2 * bytes.max(128))?;
    let places = [&b, &a].map(|peer| peer.mr.remote(bytes.max(128)));
    let player = |end, remote| Player {
        end,
        bytes,
        number: 0,
        remote,
    };
    Ok([player(a, places[0]), player(b, places[1])])
}

impl Player {
    /// Where messages arrive.
    fn inbox(&self) -> usize {
        self.bytes.max(128)
    }

    /// Numbers the next message.
    fn number(&mut self) -> Result<u64, BenchError> {
        self.number += 1;
        let memory = self.end.mr.memory();
        let stored = memory.store_u64(self.bytes - WORD, self.number);
        stored.map_err(BenchError::verb("number a message"))?;
        Ok(self.number)
    }

    /// The number of the message that arrived last.
    fn arrived(&self) -> Result<u64, BenchError> {
        let word = self.inbox() + self.bytes - WORD;
        let loaded = self.end.mr.memory().load_u64(word);
        loaded.map_err(BenchError::verb("read a message"))
    }

    fn send(&mut self) -> Result<(), BenchError> {
        let number = self.number()?;
        let send = Send::new(number).from(self.end.mr.slice(0..self.bytes));
        if !number.is_multiple_of(SIGNALED) {
            return Ok(self.end.send.post(send)?);
        }
        self.end.send.post(send.signaled())?;
        self.end.sent.take(1)
    }

    fn write(&mut self) -> Result<(), BenchError> {
        let number = self.number()?;
        let write = Write::new(number, self.remote).from(self.end.mr.slice(0..self.bytes));
        if !number.is_multiple_of(SIGNALED) {
            return Ok(self.end.send.post(write)?);
        }
        self.end.send.post(write.signaled())?;
        self.end.sent.take(1)
    }

    fn expect(&mut self) -> Result<(), BenchError> {
        let inbox = self.inbox();
        self.end.expect(0, inbox..inbox + self.bytes)
    }

    /// Waits for the completion of a receive, and looks into the message.
    fn receive(&mut self, expected: u64) -> Result<(), BenchError> {
        self.end.received.take(1)?;
        match self.arrived()? {
            got if got == expected => Ok(()),
            got => Err(BenchError::Payload { expected, got }),
        }
    }

    /// Waits until that message has been placed.
    fn watch(&mut self, expected: u64) -> Result<(), BenchError> {
        let mut patience = Patience::new("a WRITE");
        while self.arrived()? != expected {
            patience.lose()?;
        }
        Ok(())
    }
}

/// SENDs to and fro: both completion queues of receives are polled.
pub(crate) fn sends(bytes: usize) -> Result<Duel<'static>, BenchError> {
    let [mut a, mut b] = players(bytes)?;
    for player in [&mut a, &mut b] {
        for _ in 0..AHEAD {
            player.expect()?;
        }
    }
    Ok(Duel {
        units: WAYS,
        here: Box::new(move |times| {
            for _ in 0..times {
                a.send()?;
                // While the message is under way.
                a.expect()?;
                a.receive(a.number)?;
            }
            Ok(())
        }),
        there: Box::new(move |times| {
            for _ in 0..times {
                b.receive(b.number + 1)?;
                b.send()?;
                b.expect()?;
            }
            Ok(())
        }),
    })
}

/// WRITEs to and fro: both poll the memory that the other writes.
fn writes(bytes: usize) -> Result<Duel<'static>, BenchError> {
    let [mut a, mut b] = players(bytes)?;
    Ok(Duel {
        units: WAYS,
        here: Box::new(move |times| {
            for _ in 0..times {
                a.write()?;
                a.watch(a.number)?;
            }
            Ok(())
        }),
        there: Box::new(move |times| {
            for _ in 0..times {
                b.watch(b.number + 1)?;
                b.write()?;
            }
            Ok(())
        }),
    })
}
