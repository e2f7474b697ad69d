//! When the engine's thread polls for packets before it sleeps.
//!
//! A thread that sleeps is woken by the next packet, which takes longer than the packet's own way. Where a receiver
//! asks for it ([`Attend::busy_polls`](crate::time::Attend::busy_polls)), the thread therefore polls for
//! [`BUSY_POLL`] after the last packets, and gives the processor to other threads after each poll. If it does not have
//! the processor back within [`TAKEN`], other threads need it: they would delay the next packet by far more than a
//! wake-up does. Then the thread sleeps as usual for a while, which doubles each time that this happens again soon.

use std::time::Duration;

use verbs_core::sync::thread;

use crate::time::attend::Attendance;
use crate::time::{Instant, WallClock};

/// How long the thread polls after the last packets.
const BUSY_POLL: Duration = Duration::from_micros(50);
/// The longest that a processor is away that no other thread needs.
const TAKEN: Duration = Duration::from_micros(100);
/// How long the thread does not poll after the processor was needed.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The maximum that this time doubles to.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Whether the thread may poll.
#[derive(Default)]
pub(super) struct BusyPoll {
    /// Not before this.
    paused_until: Instant,
    /// The length of the last pause.
    pause: Duration,
}

impl BusyPoll {
    /// The receiver has just had packets: polls until none has come for [`BUSY_POLL`]. `between` calls what is due
    /// then.
    pub(super) fn run(
        &mut self,
        attendance: &Attendance,
        clock: &WallClock,
        mut between: impl FnMut(Instant),
    ) {
        let mut now = clock.now();
        let mut last = now;
        while now >= self.paused_until && now.since(last) < BUSY_POLL && attendance.busy_polls(now)
        {
            if attendance.call() {
                last = clock.now();
            }
            let left = clock.now();
            thread::yield_now();
            now = clock.now();
            if now.since(left) > TAKEN {
                self.crowded(now);
            }
            between(now);
        }
    }

    /// Other threads need the processor.
    fn crowded(&mut self, now: Instant) {
        // A pause that was followed by as long a time without one was long enough.
        let soon = now.since(self.paused_until) < self.pause;
        let pause = if soon { self.pause * 2 } else { PAUSE_MIN };
        self.pause = pause.clamp(PAUSE_MIN, PAUSE_MAX);
        self.paused_until = now + self.pause;
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn pauses_double_where_others_need_the_processor_and_are_short_again_later() {
        let mut poll = BusyPoll::default();
        let mut now = 1_000;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            poll.crowded(at(now));
            let pause = poll.paused_until.since(at(now)).as_millis() as u64;
            pauses.push(pause);
            now += pause + 1;
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
        now += 2_000;
        poll.crowded(at(now));
        assert_eq!(poll.pause, PAUSE_MIN);
    }
}
