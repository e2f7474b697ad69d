//! SEND, WRITE and READ from post to completion in one thread, beside a plain copy.

use std::cell::RefCell;
use std::hint::black_box;

use verbs_core::{Read, Recv, Send, SendWr, Sge, Write};

use super::Stage;
use super::bed::{Bed, DEPTH, End, POLL, pass, touched};
use super::error::BenchError;
use super::method::{Method, Subject};
use super::table::{Beside, Row};

/// Bytes of the messages.
const SIZES: [usize; 6] = [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];

/// From the source of a copy to its destination, beyond the size: no multiple of a page, or the two
/// would share cache sets and the low address bits by which processors guess at overlaps.
const APART: usize = 192;

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND/RECV, both CQEs",
            Self::Write => "WRITE, CQE",
            Self::Read => "READ, CQE",
        }
    }
}

/// Measures the operation by size: single posts and batches.
pub(crate) fn run(stage: &Stage, operation: Operation) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(SIZES.len());
    let mut rows = Vec::new();
    for bytes in SIZES {
        let [copy, single, batch] = measure(method, operation, bytes)?;
        for (figures, posted) in [(single, 1), (batch, POLL)] {
            let beside = Beside::new("memcpy", copy, figures);
            let row = Row::new(stage.bench, operation.name(), figures);
            rows.push(row.bytes(bytes).batch(posted).bandwidth().beside(beside));
        }
    }
    Ok(rows)
}

/// Figures of a plain copy, of single posts, and of batches.
fn measure(
    method: Method,
    operation: Operation,
    bytes: usize,
) -> Result<[super::method::Figures; 3], BenchError> {
    let span = bytes + APART;
    let mut memory =
        touched(span + bytes).map_err(BenchError::verb("allocate memory to copy in"))?;
    let (source, destination) = memory.as_mut_slice().split_at_mut(span);
    let copy = |times: u64| {
        for _ in 0..times {
            black_box(&mut *destination).copy_from_slice(black_box(&source[..bytes]));
        }
        Ok(())
    };

    let ends = Bed::new()?.ends(DEPTH, span + bytes)?;
    let ours = ends[0].mr.slice(0..bytes);
    let theirs = ends[1].mr.slice(span..span + bytes);
    let remote = ends[1].mr.remote(span);
    let wr = match operation {
        Operation::Send => SendWr::from(Send::new(2).from(ours).signaled()),
        Operation::Write => SendWr::from(Write::new(2, remote).from(ours).signaled()),
        Operation::Read => SendWr::from(Read::new(2, remote).into(ours).signaled()),
    };
    // Both ways of posting use the same queues and memory, in turns.
    let ends = RefCell::new(ends);
    let single = |times: u64| {
        let [a, b] = &mut *ends.borrow_mut();
        match operation {
            Operation::Send => sends(a, b, ours, theirs, times),
            Operation::Write => one_sided(a, times, || Write::new(2, remote).from(ours).signaled()),
            Operation::Read => one_sided(a, times, || Read::new(2, remote).into(ours).signaled()),
        }
    };
    let batch = |times: u64| {
        let [a, b] = &mut *ends.borrow_mut();
        batches(a, b, &[wr; POLL], theirs, operation, times)
    };
    let figures = method.measure(&mut [
        Subject::alone(1, copy),
        Subject::alone(1, single),
        Subject::alone(POLL as u64, batch),
    ])?;
    Ok([figures[0], figures[1], figures[2]])
}

/// SENDs in turn, each with its receive and both completions.
pub(crate) fn sends(
    a: &mut End,
    b: &mut End,
    from: Sge,
    into: Sge,
    times: u64,
) -> Result<(), BenchError> {
    for _ in 0..times {
        pass(&mut b.recv, &mut a.send, from, into)?;
        a.sent.take(1)?;
        b.received.take(1)?;
    }
    Ok(())
}

/// `wr` writes the work request down where it is posted, as a program would.
#[inline(always)]
fn one_sided<'w, W: Into<SendWr<'w>>>(
    a: &mut End,
    times: u64,
    wr: impl Fn() -> W,
) -> Result<(), BenchError> {
    for _ in 0..times {
        a.send.post(wr())?;
        a.sent.take(1)?;
    }
    Ok(())
}

fn batches(
    a: &mut End,
    b: &mut End,
    wrs: &[SendWr<'_>; POLL],
    into: Sge,
    operation: Operation,
    times: u64,
) -> Result<(), BenchError> {
    let received = operation == Operation::Send;
    let receives: [_; POLL] = std::array::from_fn(|id| Recv::new(id as u64).into(into));
    for _ in 0..times {
        if received {
            b.recv.post_batch(&receives)?;
        }
        a.send.post_batch(wrs)?;
        a.sent.take(POLL)?;
        if received {
            b.received.take(POLL)?;
        }
    }
    Ok(())
}
