//! The memory of a queue pair of the software HCA.
//!
//! The counts are of the bytes that the program requests from the allocator, everything included: the handle, the
//! object that requests act on, the poster's ends, the rings, and the device's tables, which grow.

use std::hint::black_box;

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::{Cq, Device, Pd, QpInit};

use crate::allocator;

/// Queue pairs over which the mean is taken; tables grow by doubling, so that some are half empty, and slots and cells
/// grow in pieces.
const COUNT: usize = 512;

struct Bed {
    _device: Device,
    pd: Pd,
    cq: Cq,
}

impl Bed {
    fn new() -> Self {
        let device = block_on(async { Hca::loopback().open().await }).expect("a device");
        let pd = device.alloc_pd().wait().expect("a PD");
        let cq = device.create_cq(16).wait().expect("a CQ");
        Self {
            _device: device,
            pd,
            cq,
        }
    }
}

/// Bytes of each of [`COUNT`] things.
fn each<T>(mut make: impl FnMut() -> T) -> i64 {
    let mut kept = Vec::with_capacity(COUNT);
    let before = allocator::bytes();
    kept.extend((0..COUNT).map(|_| make()));
    let each = (allocator::bytes() - before) / COUNT as i64;
    drop(black_box(kept));
    each
}

/// Fails above that many bytes. The target is lower: `docs/PERFORMANCE.md` says where the rest is used. Budgets are
/// lowered when the code gets better.
fn budget(what: &str, bytes: i64, most: i64) {
    println!("{what}: {bytes} bytes");
    assert!(bytes <= most, "{what}: {bytes} bytes instead of {most}");
    assert!(
        bytes > most - most / 8,
        "{what}: {bytes} bytes; lower the budget"
    );
}

#[test]
fn a_queue_pair_in_reset() {
    let bed = Bed::new();
    let init = QpInit::rc(&bed.cq, &bed.cq).depth(16, 16);
    let bytes = each(|| bed.pd.create_qp(init).wait().expect("a QP"));
    budget("a queue pair in RESET", bytes, 1_620);
}

#[test]
fn a_connected_queue_pair() {
    let bed = Bed::new();
    let init = QpInit::rc(&bed.cq, &bed.cq).depth(16, 16);
    let pair = each(|| {
        let mut pair = [(); 2].map(|()| bed.pd.create_qp(init).wait().expect("a QP"));
        let [a, b] = &mut pair;
        block_on(connect(a, b)).expect("connected");
        pair
    });
    // The formula is in `docs/PERFORMANCE.md`: half of it is 72 bytes for each send that has to wait.
    budget("a connected queue pair of 16 and 16", pair / 2, 4_000);
}
