//! The consumer's part in riders ([`crate::queue::cqe_inline`]).

use verbs_core::mem::pin;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::Acquire;
use verbs_core::{Qpn, Wc, WcFlags, WcOpcode, WcStatus};

use super::CqPoller;
use super::poller::{Pump, clear_rest};
use crate::queue::cqe_inline::{Berths, KNOWN, Rider, Unloaded};

/// What a consumer has to know in order to unload.
#[derive(Debug)]
pub(super) struct Riders {
    /// Where queue pairs are looked up.
    port: Option<Arc<dyn Pump>>,
    known: [Option<Berths>; KNOWN],
    /// Which of those is given up for another one.
    oldest: usize,
}

impl Riders {
    pub(super) fn new(port: Option<Arc<dyn Pump>>) -> Self {
        let known = [const { None }; KNOWN];
        Self {
            port,
            known,
            oldest: 0,
        }
    }

    #[inline(always)]
    fn known(&self, qpn: Qpn) -> Option<&Berths> {
        let mut known = self.known.iter().flatten();
        known.find(|berths| berths.qpn == qpn)
    }

    /// Looks a queue pair up; `false`: there is none any more.
    #[cold]
    fn look_up(&mut self, qpn: Qpn) -> bool {
        let port = self.port.as_ref();
        let berths = port.and_then(|port| port.berths(qpn));
        let is_there = berths.is_some();
        let is_same = |berths: &Option<Berths>| berths.as_ref().is_some_and(|old| old.qpn == qpn);
        let place = self.known.iter().position(is_same).unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % KNOWN;
            self.oldest
        });
        self.known[place] = berths;
        is_there
    }
}

impl CqPoller {
    /// Polls the next entry, which is of a rider. `false`: not yet.
    #[inline(always)]
    pub(super) fn poll_rider(&mut self, wc: &mut Wc) -> bool {
        let Some(rider) = self.buffer.rider(self.head) else {
            return false;
        };
        let pin = pin();
        if let Some(berths) = self.riders.known(rider.qpn)
            && berths.ring.admits_pollers(&pin)
            // In this order: who has shut the door meanwhile has set aside what he has unloaded.
            && self.consumer.aside.load(Acquire) == 0
        {
            let unloaded = berths.unload(&pin, &rider);
            // Under the pin: see `CqRing::unload`.
            self.polled(self.head.wrapping_add(1));
            drop(pin);
            fill(wc, &rider, unloaded.wr_id);
            if unloaded.fault.is_some() {
                self.tell_fault(wc, &rider, unloaded);
            }
            return true;
        }
        drop(pin);
        self.poll_rider_slow(wc, &rider)
    }

    /// When the queue pair is not known, or somebody else unloads.
    #[cold]
    #[inline(never)]
    fn poll_rider_slow(&mut self, wc: &mut Wc, rider: &Rider) -> bool {
        if let Some(aside) = self.ring.take_aside(rider) {
            self.polled(self.head.wrapping_add(1));
            fill(wc, rider, aside.unloaded.wr_id);
            if let Some(reason) = aside.unloaded.fault {
                fail(wc, reason);
            }
            return true;
        }
        // Whoever is not found is being destroyed, and his riders are about to be set aside.
        if !self.riders.look_up(rider.qpn) {
            return false;
        }
        let pin = pin();
        let berths = self.riders.known(rider.qpn);
        let unloaded = berths
            .filter(|berths| berths.ring.admits_pollers(&pin))
            // It may have been unloaded and set aside since the first look.
            .filter(|berths| berths.ring.is_loaded(rider.receive))
            .map(|berths| berths.unload(&pin, rider));
        let Some(unloaded) = unloaded else {
            return false;
        };
        self.polled(self.head.wrapping_add(1));
        drop(pin);
        fill(wc, rider, unloaded.wr_id);
        if unloaded.fault.is_some() {
            self.tell_fault(wc, rider, unloaded);
        }
        true
    }

    /// The receive completes in error, and its queue pair goes to ERR. Outside of pins.
    #[cold]
    #[inline(never)]
    fn tell_fault(&self, wc: &mut Wc, rider: &Rider, unloaded: Unloaded) {
        fail(wc, unloaded.fault.unwrap_or(0));
        let berths = self.riders.known(rider.qpn);
        if let Some(qp) = berths.and_then(|berths| berths.qp.upgrade()) {
            qp.fail();
        }
    }
}

#[inline(always)]
fn fill(wc: &mut Wc, rider: &Rider, wr_id: u64) {
    wc.wr_id = wr_id;
    wc.status = WcStatus::Success;
    wc.opcode = WcOpcode::Recv;
    wc.flags = WcFlags::empty();
    wc.byte_len = rider.len;
    wc.qpn = rider.qpn;
    wc.imm = 0;
    clear_rest(wc);
}

fn fail(wc: &mut Wc, reason: u32) {
    wc.status = WcStatus::LocProtErr;
    wc.vendor_err = reason;
}
