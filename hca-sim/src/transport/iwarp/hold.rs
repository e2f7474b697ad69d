//! A message that finds no receive. RFC 5041 (section 7.2) has it end the stream, as an RNIC has no place for it. Here it
//! can stay where it is: the stream is read no further until a receive is posted, and TCP holds the peer up. That is what
//! "receiver not ready" does on other transports, but for what is behind the message, which waits as well.

use std::time::Duration;

use crate::clock::Instant;

/// How long a message may wait. A program whose receives depend on what waits behind the message hears of it then.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long after a look in vain the next one is due, at first and at most.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    until: Instant,
    /// When to look for a receive again, at the latest.
    pub(super) again: Instant,
    pause: Duration,
}

impl Hold {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            until: now + PATIENCE,
            again: now + PAUSE,
            pause: PAUSE,
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// There was no receive.
    pub(super) fn goes_on(&mut self, now: Instant) {
        if self.again <= now {
            self.pause = (2 * self.pause).min(PAUSE_MAX);
            self.again = now + self.pause;
        }
    }
}
