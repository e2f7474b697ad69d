//! The two clocks: the wall clock, and one that stands still until it is moved.

use std::time::Duration;

use verbs_core::sync::Arc;

use crate::time::agenda::Agenda;
use crate::time::{Instant, WallClock};

/// A clock. Clones show the same time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's monotonic clock.
    Wall(WallClock),
    /// A clock that stands still until a thread moves it.
    Virtual(VirtualClock),
}

impl Clock {
    /// The machine's monotonic clock, which starts now.
    pub fn wall() -> Self {
        Self::Wall(WallClock::default())
    }

    /// The time.
    pub fn now(&self) -> Instant {
        match self {
            Self::Wall(clock) => clock.now(),
            Self::Virtual(clock) => clock.now(),
        }
    }
}

impl From<VirtualClock> for Clock {
    fn from(clock: VirtualClock) -> Self {
        Self::Virtual(clock)
    }
}

/// A clock that stands still until the test moves it, and what is to happen on it.
///
/// Clones are the same clock. Several [engines](crate::time::Engine) may share one: their deadlines form a single
/// order, so the inputs decide a run. The thread that moves the clock runs what becomes due. One thread moves it, and
/// never from inside what is due.
///
/// ```
/// # use std::time::Duration;
/// # use verbs_link::time::VirtualClock;
/// let clock = VirtualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_micros(3));
/// assert_eq!(clock.now() - before, Duration::from_micros(3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    agenda: Arc<Agenda>,
}

impl VirtualClock {
    /// A clock at [`Instant::ZERO`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.agenda.virtual_now()
    }

    /// The next deadline of any engine.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.agenda.next_deadline()
    }

    /// Moves the clock on, and runs every callback that becomes due on the way at its time. Returns how many ran.
    pub fn advance(&self, duration: Duration) -> usize {
        self.run_until(self.now() + duration)
    }

    /// Moves the clock to `end`, and runs every callback that becomes due on the way at its time. Returns how many ran.
    /// Does not return while callbacks keep setting deadlines that are due at once.
    pub fn run_until(&self, end: Instant) -> usize {
        self.agenda.run_until(end)
    }

    /// Jumps to the next deadline of all engines and runs the callbacks that are due there. Returns the new time, or
    /// `None` if there is no deadline.
    ///
    /// Deadlines that are set in the meantime for the same instant wait for the next step.
    pub fn step(&self) -> Option<Instant> {
        let next = self.next_deadline()?;
        self.agenda.turn(|now| now.max(next));
        Some(self.now())
    }

    pub(crate) fn agenda(&self) -> &Arc<Agenda> {
        &self.agenda
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn instants_add_subtract_and_saturate() {
        let a = Instant::from_nanos(1_500_000_000);
        assert_eq!(
            a + Duration::from_millis(250) - a,
            Duration::from_millis(250)
        );
        assert_eq!(a - (a + Duration::from_nanos(1)), Duration::ZERO);
        assert_eq!(a + Duration::MAX, Instant::NEVER);
        assert_eq!(a.to_string(), "1.500000000 s");
    }

    #[test]
    fn a_wall_clock_moves_by_itself_and_never_back() {
        let clock = Clock::wall();
        let mut last = clock.now();
        let first = last;
        while last == first {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn a_virtual_clock_moves_only_when_moved() {
        let clock = VirtualClock::new();
        let same = Clock::from(clock.clone());
        assert_eq!(same.now(), Instant::ZERO);
        clock.run_until(Instant::from_nanos(7));
        clock.run_until(Instant::from_nanos(5));
        assert_eq!(same.now(), Instant::from_nanos(7), "never backwards");
        assert_eq!(clock.step(), None);
    }
}
