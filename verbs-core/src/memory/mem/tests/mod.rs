//! Tests of the whole module: keys against a reference model, grace periods between real threads, and the proof
//! that no write lands after deregistration.

mod fire;
#[cfg(not(miri))]
mod gone;
mod grace_jobs;
mod keys;
mod model;
mod registration;
mod windows;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::barrier::WITHOUT;
use super::grace;
use super::{
    Access, Extent, Fault, Keys, Layout, Memory, MrTable, PageList, Region, Span, Stopped,
    TouchWord, Unmapped, Who, Window, WindowType, pin,
};
use crate::addr::{LKey, RKey};
use crate::error::{Attr, ByteCount, Error, Why};
use crate::sync::plain::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Arc, Mutex, spin_loop, thread};
use crate::wr::{Binding, Registration};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const PD: u32 = 7;
const WHO: Who = Who { pd: PD, qpn: 7 };
/// How long a test waits for other threads.
const PATIENCE: Duration = Duration::from_secs(60);

fn memory(len: usize) -> Arc<Memory> {
    Arc::new(Memory::alloc(len).unwrap())
}

fn flag() -> (Arc<AtomicBool>, impl FnOnce() + Send + 'static) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    (flag, move || {
        assert!(!set.swap(true, AcqRel), "a job runs once");
    })
}

/// Spins until `done`, which other threads make true.
#[track_caller]
fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "no other thread has done it");
        spin_loop();
        thread::yield_now();
    }
}

/// A table, and a key allocated in it for 4 pages.
fn fast(table: &MrTable) -> LKey {
    table.allocate(PD, Layout::Gaps, 4).unwrap()
}

/// Stages pieces, as (offset, length) of `memory`, and registers them under that key.
fn register(
    table: &MrTable,
    key: LKey,
    memory: &Arc<Memory>,
    pieces: &[(usize, u32)],
    access: Access,
) -> Result<(), Stopped> {
    let mut list = PageList::new(4).unwrap();
    let extents = pieces.iter().map(|&(offset, len)| Extent {
        memory,
        offset,
        len,
    });
    assert_eq!(list.fill(Layout::Gaps, extents), Ok(pieces.len()));
    let iova = list.addr();
    let mapping = table.stage(key.index(), &mut list).unwrap();
    let what = Registration {
        key,
        access,
        iova,
        mapping,
    };
    table.map(&what, PD)
}
