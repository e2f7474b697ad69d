//! System call: the monotonic clock.

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
