//! What calls a port: timers and links in virtual time, the engine's thread, consumers of completions.

use verbs_core::Qpn;
use verbs_core::sync::atomic::Ordering::Release;

use crate::clock::Instant;
use crate::engine::{Attend, Due};
use crate::port::Port;
use crate::port::driver::ASK_LINK;
use crate::queue::cq::Pump;
use crate::queue::cqe_inline::Berths;

impl Due for Port {
    /// A link in virtual time has something, or any link may have room again. It is seen to even if somebody
    /// polls: in virtual time nobody comes back for it.
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

    fn poll(&self, often: bool) -> bool {
        self.driver().is_some_and(|driver| driver.poll(self, often))
    }

    fn stop(&self) {
        if let Some(driver) = self.driver() {
            driver.stop_polling();
        }
    }

    fn berths(&self, qpn: Qpn) -> Option<Berths> {
        let qp = self.link.lock().of(self.lid, qpn);
        qp.and_then(|qp| qp.berths())
    }
}

impl Attend for Port {
    fn attend(&self) {
        if let Some(driver) = self.driver() {
            driver.attend(self);
        }
    }

    fn polled_until(&self) -> Instant {
        self.driver()
            .map_or(Instant::ZERO, |driver| driver.pollers.left_until())
    }
}
