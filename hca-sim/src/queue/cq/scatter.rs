//! The consumer's part in inline CQEs ([`crate::queue::cqe_inline`]).

use verbs_core::mem::pin;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::Acquire;
use verbs_core::{Qpn, Wc, WcFlags, WcOpcode, WcStatus};

use super::CqPoller;
use super::poller::{Pump, clear_rest};
use crate::queue::cqe_inline::{InlineCqe, KNOWN, Scatter, Scattered};

/// The consumer's state for scattering.
#[derive(Debug)]
pub(super) struct ScatterCache {
    /// Where queue pairs are looked up.
    port: Option<Arc<dyn Pump>>,
    known: [Option<Scatter>; KNOWN],
    /// Which of them is given up for another one.
    oldest: usize,
}

impl ScatterCache {
    pub(super) fn new(port: Option<Arc<dyn Pump>>) -> Self {
        let known = [const { None }; KNOWN];
        Self {
            port,
            known,
            oldest: 0,
        }
    }

    #[inline(always)]
    fn known(&self, qpn: Qpn) -> Option<&Scatter> {
        let mut known = self.known.iter().flatten();
        known.find(|scatter| scatter.qpn == qpn)
    }

    /// Looks a queue pair up; `false`: it no longer exists.
    #[cold]
    fn look_up(&mut self, qpn: Qpn) -> bool {
        let port = self.port.as_ref();
        let scatter = port.and_then(|port| port.scatter(qpn));
        let is_there = scatter.is_some();
        let is_same =
            |scatter: &Option<Scatter>| scatter.as_ref().is_some_and(|old| old.qpn == qpn);
        let place = self.known.iter().position(is_same).unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % KNOWN;
            self.oldest
        });
        self.known[place] = scatter;
        is_there
    }
}

impl CqPoller {
    /// Polls the next entry, which is an inline CQE. `false`: not yet.
    #[inline(always)]
    pub(super) fn poll_inline_cqe(&mut self, wc: &mut Wc) -> bool {
        let Some(inline_cqe) = self.buffer.inline_cqe(self.head) else {
            return false;
        };
        let pin = pin();
        if let Some(scatter) = self.scatter.known(inline_cqe.qpn)
            && scatter.ring.admits_pollers(&pin)
            // In this order: a thread that has shut the door in the meantime has set aside what it has scattered.
            && self.consumer.aside.load(Acquire) == 0
        {
            let scattered = scatter.place(&pin, &inline_cqe);
            // Under the pin: see `CqRing::scatter`.
            self.polled(self.head.wrapping_add(1));
            drop(pin);
            fill(wc, &inline_cqe, scattered.wr_id);
            if scattered.fault.is_some() {
                self.tell_fault(wc, &inline_cqe, scattered);
            }
            return true;
        }
        drop(pin);
        self.poll_inline_cqe_slow(wc, &inline_cqe)
    }

    /// For a queue pair that is not known, or while another thread scatters.
    #[cold]
    #[inline(never)]
    fn poll_inline_cqe_slow(&mut self, wc: &mut Wc, inline_cqe: &InlineCqe) -> bool {
        if let Some(aside) = self.ring.take_aside(inline_cqe) {
            self.polled(self.head.wrapping_add(1));
            fill(wc, inline_cqe, aside.scattered.wr_id);
            if let Some(reason) = aside.scattered.fault {
                fail(wc, reason);
            }
            return true;
        }
        // A queue pair that is not found is being destroyed, and its inline CQEs are about to be set aside.
        if !self.scatter.look_up(inline_cqe.qpn) {
            return false;
        }
        let pin = pin();
        let scatter = self.scatter.known(inline_cqe.qpn);
        let scattered = scatter
            .filter(|scatter| scatter.ring.admits_pollers(&pin))
            // It may have been scattered and set aside since the first look.
            .filter(|scatter| scatter.ring.is_pending(inline_cqe.receive))
            .map(|scatter| scatter.place(&pin, inline_cqe));
        let Some(scattered) = scattered else {
            return false;
        };
        self.polled(self.head.wrapping_add(1));
        drop(pin);
        fill(wc, inline_cqe, scattered.wr_id);
        if scattered.fault.is_some() {
            self.tell_fault(wc, inline_cqe, scattered);
        }
        true
    }

    /// The receive completes in error, and its queue pair goes to ERR. Called outside of pins.
    #[cold]
    #[inline(never)]
    fn tell_fault(&self, wc: &mut Wc, inline_cqe: &InlineCqe, scattered: Scattered) {
        fail(wc, scattered.fault.unwrap_or(0));
        let scatter = self.scatter.known(inline_cqe.qpn);
        if let Some(qp) = scatter.and_then(|scatter| scatter.qp.upgrade()) {
            qp.fail();
        }
    }
}

#[inline(always)]
fn fill(wc: &mut Wc, inline_cqe: &InlineCqe, wr_id: u64) {
    wc.wr_id = wr_id;
    wc.status = WcStatus::Success;
    wc.opcode = WcOpcode::Recv;
    wc.flags = WcFlags::empty();
    wc.byte_len = inline_cqe.len;
    wc.qpn = inline_cqe.qpn;
    wc.imm = 0;
    clear_rest(wc);
}

fn fail(wc: &mut Wc, reason: u32) {
    wc.status = WcStatus::LocProtErr;
    wc.vendor_err = reason;
}
