//! TCP ports for the servers of tests.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Below the numbers that the system gives to sockets that ask for any (from 32768), so that no other test gets one
/// while its server is not there yet.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port without a listener, which no other test of this process is given.
pub(crate) fn free_port() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Processes of tests begin at different numbers.
    let first = (std::process::id() % 180) as u16 * 64;
    loop {
        let number = first.wrapping_add(GIVEN.fetch_add(1, Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", FIRST + number)).is_ok() {
            return FIRST + number;
        }
    }
}
