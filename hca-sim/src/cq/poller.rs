//! The consumer's end of a completion queue.

use verbs_core::mem::grace;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use verbs_core::{Arm, Armed, Qpn, RawCq, Wc, WcFlags, WcStatus};

use super::opcodes::OPCODES;
use super::{
    ARMED, CqRing, Entry, FAILURE, FLAGS_SHIFT, HAS_TIME, LAP, LENGTH_SHIFT, OPCODE_SHIFT,
    STATUS_SHIFT, WANT_NEXT, WANT_SOLICITED,
};
use crate::port::Port;

/// The consumer's end.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CqPoller {
    ring: Arc<CqRing>,
    head: u32,
    /// If packets carry messages: whose, and how often there was nothing to poll since it was armed last.
    packets: Option<Packets>,
}

/// What a consumer has to know of the port when packets carry messages.
#[derive(Debug)]
struct Packets {
    port: Arc<Port>,
    idle: u32,
}

/// Polls in vain after which a consumer counts as somebody who polls all the time.
const OFTEN: u32 = 16;

impl CqPoller {
    /// The one consumer of a new ring.
    pub(crate) fn new(ring: Arc<CqRing>, port: &Arc<Port>) -> Self {
        let packets = port.driver.is_some().then(|| Packets {
            port: Arc::clone(port),
            idle: 0,
        });
        Self {
            ring,
            head: 0,
            packets,
        }
    }

    /// There was nothing to poll: looks whether packets have come that complete something.
    #[cold]
    fn look_for_packets(&mut self, out: &mut [Wc]) -> usize {
        let Some(Packets { port, idle }) = &mut self.packets else {
            return 0;
        };
        *idle = idle.saturating_add(1);
        if let Some(driver) = &port.driver {
            driver.poll(port, *idle >= OFTEN);
        }
        self.take(out)
    }
}

impl CqPoller {
    /// Takes what has been completed.
    #[inline(always)]
    fn take(&mut self, out: &mut [Wc]) -> usize {
        let ring = &*self.ring;
        let mut head = self.head;
        for wc in out {
            let Entry(words) = ring.entry(head);
            let what = words[0].load(Acquire);
            if (what ^ ring.lap(head)) & LAP != 0 {
                break;
            }
            // Field by field: a whole `Wc` would be gathered in registers first.
            wc.wr_id = words[1].load(Relaxed);
            wc.timestamp_ns = 0;
            wc.byte_len = (what >> LENGTH_SHIFT) as u32;
            wc.flags = WcFlags::from_bits_truncate((what >> FLAGS_SHIFT) as u16);
            wc.opcode = OPCODES[usize::from((what >> OPCODE_SHIFT) as u8)];
            wc.status = WcStatus::Success;
            let who = words[2].load(Relaxed);
            wc.qpn = Qpn::new((who >> 32) as u32);
            wc.imm = who as u32;
            wc.src_qpn = Qpn::default();
            wc.vendor_err = 0;
            if what & (FAILURE | HAS_TIME) != 0 {
                fill_rest(wc, what, words);
            }
            head = head.wrapping_add(1);
        }
        let count = head.wrapping_sub(self.head);
        if count != 0 {
            self.head = head;
            ring.consumer.head.store(head, Release);
        }
        count as usize
    }
}

impl RawCq for CqPoller {
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        let count = self.take(out);
        if count != 0 || self.packets.is_none() {
            return count;
        }
        self.look_for_packets(out)
    }

    fn arm(&mut self, when: Arm) -> Armed {
        if let Some(Packets { port, idle }) = &mut self.packets {
            *idle = 0;
            if let Some(driver) = &port.driver {
                driver.stop_polling();
            }
        }
        let ring = &self.ring;
        let want = match when {
            Arm::Next => WANT_NEXT,
            Arm::Solicited => WANT_SOLICITED,
        };
        let armed = ring.consumer.arm.fetch_or(want, AcqRel);
        ring.consumer.want.store(armed | want, Relaxed);
        let first = ring
            .pushers
            .mode
            .update(|tag| (tag & ARMED == 0).then_some(tag | ARMED));
        if let Some((_, touched)) = first {
            let later = Arc::clone(ring);
            ring.consumer.arming.store(true, Release);
            grace::after(touched, move || later.look_again());
            ring.consumer.arming.swap(false, AcqRel);
        }
        fence(SeqCst);
        match ring.published(self.head) {
            Some(_) => Armed::Waiting,
            None => Armed::Empty,
        }
    }
}

/// The parts of a completion that a plain success does not have.
#[cold]
fn fill_rest(wc: &mut Wc, what: u64, words: &[AtomicU64; 8]) {
    if what & FAILURE != 0 {
        let status = (what >> STATUS_SHIFT) as u8 & 0x7f;
        wc.status = WcStatus::from_u8(status).unwrap_or(WcStatus::GeneralErr);
        wc.vendor_err = words[3].load(Relaxed) as u32;
    }
    if what & HAS_TIME != 0 {
        wc.timestamp_ns = words[4].load(Relaxed);
    }
}
