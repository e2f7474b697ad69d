//! Beds that the benches share: objects that are made once, and operations on them that repeat.
//!
//! Empty without feature `beds`, which the benches switch on.

#![cfg(feature = "beds")]
#![deny(unsafe_code)]

pub mod awaited;
pub mod control;
pub mod ends;
pub mod pair;
pub mod rivals;
pub mod site;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long that takes.
pub fn timed(operation: impl FnOnce()) -> Duration {
    let start = Instant::now();
    operation();
    start.elapsed()
}

/// Two addresses of the loopback interface that no other bed of this process has, and none of another process either.
///
/// # Panics
/// When a process has taken 126 pairs.
pub fn hosts() -> [IpAddr; 2] {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let pair = NEXT.fetch_add(1, Relaxed);
    assert!(pair < 126, "a process has 126 pairs of addresses");
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = |last: u8| Ipv4Addr::new(127, 128 | high, low, last).into();
    [host(2 * pair + 1), host(2 * pair + 2)]
}
