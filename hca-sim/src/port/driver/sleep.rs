//! A consumer that sleeps at the port: it waits for packets in the place of the engine's thread, and handles them.
//!
//! A program that waits for a completion would otherwise be woken by the engine's thread, which the packet wakes first.
//! [`Pollers`](crate::port::pollers::Pollers) says when the engine's thread leaves packets to it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::Driver;
use crate::engine::Attend;
use crate::port::Port;

/// From falling asleep to being awake.
struct Asleep<'d> {
    driver: &'d Driver,
    port: &'d Port,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let Driver {
            pollers, waiter, ..
        } = self.driver;
        if pollers.woke(self.port.engine.now())
            && let Some(waiter) = waiter
        {
            waiter.wake();
        }
    }
}

/// Waits until packets have arrived, which it handles, one of `also` is readable, or `timeout` is over. May return early.
/// `None` at once: the engine's thread waits for packets, because another consumer sleeps here, consumers have not come back
/// after their sleep, a queue pair is for low latency, or the link has no place for another thread. Called outside of locks.
pub(crate) fn sleep(
    port: &Port,
    also: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> Option<io::Result<()>> {
    let driver = port.driver()?;
    let waiter = driver.waiter.as_ref()?;
    // A port that is to be fast has a thread that polls.
    if !waiter.has_place(also.len()) || port.busy_polls() {
        return None;
    }
    if !driver.pollers.fall_asleep(port.engine.now()) {
        return None;
    }
    let asleep = Asleep { driver, port };
    // What was left to this thread while it was awake.
    driver.send_what_was_left(port);
    let waited = waiter.wait_beside(also, timeout);
    if let Some(Ok(())) = waited {
        driver.turn(port);
    }
    drop(asleep);
    waited
}
