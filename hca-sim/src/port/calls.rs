//! The calls that a port gets: from timers and links in virtual time, the engine's thread, consumers of completions.

use verbs_core::Qpn;
use verbs_core::sync::atomic::Ordering::{Relaxed, Release};

use crate::clock::Instant;
use crate::engine::{Attend, Due};
use crate::port::driver::ASK_LINK;
use crate::port::{Driver, Port};
use crate::queue::cq::Pump;
use crate::queue::cqe_inline::Scatter;

impl Due for Port {
    /// A link in virtual time has something, or any link may have room again. This is handled even if a consumer polls:
    /// in virtual time no thread returns to it later.
    fn due(&self, _now: Instant, token: u64) {
        if let Some(driver) = self.driver() {
            if token == ASK_LINK {
                driver.asks_link.store(false, Release);
            }
            driver.turn(self);
        }
    }
}

impl Pump for Port {
    fn has_packets(&self) -> bool {
        self.is_wire()
    }

    fn has_thread(&self) -> bool {
        self.driver().is_some_and(Driver::has_thread)
    }

    fn polls_here(&self) {
        if let Some(driver) = self.driver() {
            driver.pollers.polls_here();
        }
    }

    fn poll(&self, often: bool) -> bool {
        self.driver().is_some_and(|driver| driver.poll(self, often))
    }

    fn stop(&self) {
        if let Some(driver) = self.driver() {
            driver.consumer_waits(self);
        }
    }

    fn scatter(&self, qpn: Qpn) -> Option<Scatter> {
        let qp = self.link.lock().of(self.lid, qpn);
        qp.and_then(|qp| qp.scatter())
    }
}

impl Attend for Port {
    fn attend(&self) -> bool {
        self.driver().is_some_and(|driver| driver.attend(self))
    }

    fn busy_polls(&self) -> bool {
        self.low_latency.load(Relaxed) != 0
    }

    fn answers_by(&self) -> Option<Instant> {
        self.driver()
            .and_then(|driver| driver.pollers.replies_until())
    }

    fn polled_until(&self) -> Instant {
        let now = self.engine.now();
        self.driver()
            .map_or(Instant::ZERO, |driver| driver.pollers.rests_until(now))
    }
}
