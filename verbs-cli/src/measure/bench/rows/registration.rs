//! Fast registration and local invalidate through the send queue, beside a SEND and RECV of 8 bytes.

use std::cell::RefCell;

use futures::executor::block_on;
use verbs_core::sync::Arc;
use verbs_core::{Access, Extent, FastMr, LocalInv, Memory};

use super::Stage;
use super::bed::{Bed, DEPTH, End, pass, touched};
use super::error::BenchError;
use super::method::{Method, Subject};
use super::table::{Beside, Row};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages of one registration.
const PAGES: [usize; 2] = [1, 256];
/// Bytes of the SEND beside it.
const BYTES: usize = 8;

/// Measures a registration and its invalidate by pages, of the same pages again and of others each time.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(PAGES.len());
    let mut rows = Vec::new();
    for pages in PAGES {
        let [send, pair, mapped] = measure(method, pages)?;
        for (name, figures) in [
            ("REG_MR + LOCAL_INV, both CQEs", pair),
            ("the same behind a mapping", mapped),
        ] {
            let beside = Beside::new("SEND/RECV of 8 bytes", send, figures);
            let row = Row::new(stage.bench, name, figures);
            rows.push(row.bytes(pages * PAGE).beside(beside));
        }
    }
    Ok(rows)
}

/// Figures of a SEND, of a registration with its invalidate, and of these with other pages each time.
fn measure(method: Method, pages: usize) -> Result<[super::method::Figures; 3], BenchError> {
    let bed = Bed::new()?;
    let ends = RefCell::new(bed.ends(DEPTH, PAGE)?);
    let count = u32::try_from(pages).unwrap_or(u32::MAX);
    let fast = block_on(async { bed.pd.alloc_mr(count).await });
    let mut fast = fast.map_err(BenchError::verb("allocate a region for fast registration"))?;
    let memory = touched(2 * pages * PAGE);
    let memory = Arc::new(memory.map_err(BenchError::verb("allocate the pages"))?);
    scatter(&mut fast, &memory, pages)?;
    let fast = RefCell::new(fast);
    let send = |times: u64| {
        let [a, b] = &mut *ends.borrow_mut();
        let (from, into) = (a.mr.slice(0..BYTES), b.mr.slice(0..BYTES));
        for _ in 0..times {
            pass(&mut b.recv, &mut a.send, from, into)?;
            a.sent.take(1)?;
            b.received.take(1)?;
        }
        Ok(())
    };
    let pair = |times: u64| {
        let ([a, _], fast) = (&mut *ends.borrow_mut(), &mut *fast.borrow_mut());
        (0..times).try_for_each(|_| register(a, fast))
    };
    let mapped = |times: u64| {
        let ([a, _], fast) = (&mut *ends.borrow_mut(), &mut *fast.borrow_mut());
        (0..times).try_for_each(|_| {
            scatter(fast, &memory, pages)?;
            register(a, fast)
        })
    };
    let figures = method.measure(&mut [
        Subject::alone(1, send),
        Subject::alone(1, pair),
        Subject::alone(1, mapped),
    ])?;
    Ok([figures[0], figures[1], figures[2]])
}

/// Maps every other page, so that no two are neighbours.
fn scatter(fast: &mut FastMr, memory: &Arc<Memory>, pages: usize) -> Result<(), BenchError> {
    let page = |page: usize| Extent {
        memory,
        offset: 2 * page * PAGE,
        len: PAGE as u32,
    };
    let mapped = fast.map((0..pages).map(page));
    mapped.map_err(BenchError::verb("map the pages")).map(drop)
}

/// Makes the key valid and invalid again, and takes both completions.
fn register(end: &mut End, fast: &mut FastMr) -> Result<(), BenchError> {
    let key = fast.next_key();
    end.send
        .post(fast.register(1, Access::REMOTE_READ).signaled())?;
    end.send.post(LocalInv::new(2, key).signaled())?;
    end.sent.take(1)?;
    end.sent.take(1)
}
