//! System calls: the monotonic clock, and how long a thread has run.

use std::time::Duration;

/// What the system's monotonic clock shows, in nanoseconds. `std::time` reads the same clock, and its arithmetic costs
/// as much again.
pub fn monotonic_nanos() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to `time`, which outlives it.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    debug_assert_eq!(result, 0, "every system has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The name of the clock that shows how long the calling thread has run; `None` if the system has none. Other threads of
/// the process may read it.
pub fn thread_clock() -> Option<i32> {
    let mut clock = 0;
    // SAFETY: the calling thread exists, and the call writes to `clock`, which outlives it.
    let result = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    (result == 0).then_some(clock)
}

/// How long a thread has run, by the clock of that name; `None` if it has ended. It may be another thread's time if the
/// system has given the name to a new one.
pub fn thread_time(clock: i32) -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to `time`, which outlives it; a name that stands for nothing is refused.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    (result == 0).then(|| Duration::new(time.tv_sec as u64, nanos))
}

/// Whether the thread with the clock of that name sleeps, rather than runs or waits for a processor; `None` where procfs
/// does not tell.
pub fn thread_sleeps(clock: i32) -> Option<bool> {
    // The name has the thread's number, inverted, above three bits.
    let thread = !(clock >> 3);
    let line = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The second field is a name in parentheses, which may contain anything.
    let state = line.rsplit_once(") ")?.1.chars().next()?;
    Some(state != 'R')
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use verbs_core::sync::plain::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use verbs_core::sync::{Arc, thread};

    use super::*;

    #[test]
    fn a_thread_s_time_passes_while_it_runs_and_ends_with_it() {
        const RUN: Duration = Duration::from_millis(2);
        /// The clock, once the thread has run; it is not 0.
        static CLOCK: AtomicU64 = AtomicU64::new(0);
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = thread::spawn(move || {
            let clock = thread_clock().unwrap();
            while thread_time(clock).unwrap() < RUN {}
            assert_eq!(thread_sleeps(clock), Some(false), "it runs");
            CLOCK.store(u64::from(clock.cast_unsigned()), Relaxed);
            while !ends.load(Relaxed) {
                thread::park();
            }
        });
        while CLOCK.load(Relaxed) == 0 {
            thread::yield_now();
        }
        let clock = (CLOCK.load(Relaxed) as u32).cast_signed();
        while !thread_sleeps(clock).unwrap() {
            thread::yield_now();
        }
        assert!(thread_time(clock).unwrap() >= RUN, "seen from here");
        end.store(true, Relaxed);
        thread.thread().unpark();
        thread.join().unwrap();
        assert_eq!(thread_time(clock), None);
        assert_eq!(thread_sleeps(clock), None);
    }
}
