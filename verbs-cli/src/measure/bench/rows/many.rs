//! Many queue pairs in turn: what one message costs when no cache holds all of them.

use verbs_core::{Mr, QpInit};

use super::Stage;
use super::bed::{Bed, Line, Poller, pass};
use super::error::BenchError;
use super::method::Subject;
use super::table::{Beside, Row};

/// Connections; each has two queue pairs.
const COUNTS: [usize; 4] = [1, 100, 1000, 10_000];
/// Fewer of them where there is no time to make that many.
const COUNTS_QUICK: usize = 3;

/// Bytes of the messages.
const BYTES: usize = 8;

/// Measures a SEND through one connection after another, from post to both completions.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let counts = if stage.quick {
        &COUNTS[..COUNTS_QUICK]
    } else {
        &COUNTS[..]
    };
    let bed = Bed::new()?;
    let crowds: Result<Vec<_>, _> = counts
        .iter()
        .map(|&count| Crowd::new(&bed, count))
        .collect();
    let subject = |mut crowd: Crowd| Subject::alone(1, move |times| crowd.run(times));
    let mut subjects: Vec<_> = crowds?.into_iter().map(subject).collect();
    let figures = stage.method.measure(&mut subjects)?;
    let row = |(&count, &figure)| {
        let row = Row::new(stage.bench, "SEND/RECV, both CQEs, round robin", figure).bytes(BYTES);
        let row = row.connections(count);
        if count == 1 {
            return row;
        }
        row.beside(Beside::new("1 connection", figures[0], figure))
    };
    Ok(counts.iter().zip(&figures).map(row).collect())
}

/// Connections that share their completion queues and memory.
struct Crowd {
    lines: Vec<[Line; 2]>,
    sent: Poller,
    received: Poller,
    mr: Mr,
    next: usize,
}

impl Crowd {
    fn new(bed: &Bed, count: usize) -> Result<Self, BenchError> {
        let (sends, receives) = (bed.cq(32)?, bed.cq(32)?);
        let init = QpInit::rc(&sends, &receives);
        let lines: Result<Vec<_>, _> = (0..count).map(|_| bed.lines([init, init])).collect();
        Ok(Self {
            lines: lines?,
            sent: Poller::new(sends),
            received: Poller::new(receives),
            mr: bed.memory(4096)?,
            next: 0,
        })
    }

    fn run(&mut self, times: u64) -> Result<(), BenchError> {
        let (from, into) = (self.mr.slice(0..BYTES), self.mr.slice(1024..1024 + BYTES));
        for _ in 0..times {
            let [a, b] = &mut self.lines[self.next];
            pass(&mut b.recv, &mut a.send, from, into)?;
            self.sent.take(1)?;
            self.received.take(1)?;
            self.next += 1;
            if self.next == self.lines.len() {
                self.next = 0;
            }
        }
        Ok(())
    }
}
