//! The consumer's end of a completion queue: poll and arm.

use std::fmt;
use std::hint::cold_path;

use verbs_core::mem::{grace, my_number};
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use verbs_core::{Arm, Armed, Lid, Qpn, RawCq, Wc, WcFlags, WcStatus};

use super::CqRing;
use super::buffer::{ARMED, Consumer, CqBuffer, Entry};
use super::entry::{
    DATAGRAM, FAILURE, FLAGS_SHIFT, HAS_TIME, IMM_SHIFT, LAP, LENGTH_SHIFT, OPCODE_SHIFT,
    PATH_BITS, PATH_BITS_SHIFT, PKEY_SHIFT, RIDES, SL_SHIFT, SLID_SHIFT, STATUS, STATUS_SHIFT,
    WANT_NEXT, WANT_SOLICITED,
};
use super::opcodes::OPCODES;
use super::unload::Riders;
use crate::queue::cqe_inline::Berths;

/// The consumer's end.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CqPoller {
    pub(super) buffer: Arc<CqBuffer>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) head: u32,
    pub(super) ring: Arc<CqRing>,
    /// If packets carry messages: whose, and how often there was nothing to poll since it was armed last.
    packets: Option<Packets>,
    pub(super) riders: Riders,
}

/// What a consumer asks of its port.
pub(crate) trait Pump: Send + Sync + fmt::Debug {
    /// Whether packets carry all messages, so that a poll in vain takes packets in.
    fn has_packets(&self) -> bool;

    /// Takes packets in; `often`: the consumer polls all the time. Whether packets came.
    fn poll(&self, often: bool) -> bool;

    /// The consumer is about to wait.
    fn stop(&self);

    /// What it takes to unload the riders of that queue pair; `None` if it is gone.
    fn berths(&self, qpn: Qpn) -> Option<Berths>;
}

/// What a consumer has to know of the port when packets carry messages.
#[derive(Debug)]
struct Packets {
    port: Arc<dyn Pump>,
    idle: u32,
}

/// Polls in vain after which a consumer counts as somebody who polls all the time.
const OFTEN: u32 = 16;

impl Packets {
    /// Has packets taken in. Whether some came whose answers were left to the next look.
    fn look(&mut self) -> bool {
        self.idle = self.idle.saturating_add(1);
        let often = self.idle >= OFTEN;
        self.port.poll(often) && often
    }

    /// The consumer is about to wait.
    fn stop(&mut self) {
        self.idle = 0;
        self.port.stop();
    }
}

impl CqPoller {
    /// The one consumer of a new ring, of the HCA with that port.
    pub(crate) fn new(ring: Arc<CqRing>, port: Option<Arc<dyn Pump>>) -> Self {
        let wire = port.as_ref().filter(|port| port.has_packets());
        let packets = wire.map(|port| Packets {
            port: Arc::clone(port),
            idle: 0,
        });
        Self {
            buffer: ring.buffer(),
            consumer: Arc::clone(&ring.consumer),
            head: 0,
            ring,
            packets,
            riders: Riders::new(port),
        }
    }

    /// There was nothing to poll: looks whether the queue has another buffer, or packets have come that
    /// complete something.
    #[inline(never)]
    fn look_further(&mut self, out: &mut [Wc]) -> usize {
        if self.buffer.is_replaced() {
            self.change_lane();
            return self.poll(out);
        }
        let Some(packets) = &mut self.packets else {
            return 0;
        };
        if !packets.look() {
            return self.poll_any(out);
        }
        let count = self.poll_any(out);
        if count != 0 {
            return count;
        }
        // What came completes nothing here, and is to be answered.
        if let Some(packets) = &mut self.packets {
            packets.look();
        }
        self.poll_any(out)
    }

    /// Nothing is left in this buffer that is not in the next one too, at the same position.
    #[cold]
    fn change_lane(&mut self) {
        self.buffer = self.ring.buffer();
    }

    /// Polls into several, or none.
    #[inline(never)]
    fn poll_many(&mut self, out: &mut [Wc]) -> usize {
        let mut all = 0;
        while let Some(rest) = out.get_mut(all..).filter(|rest| !rest.is_empty()) {
            let (polled, is_over) = self.poll_lap(rest);
            all += polled;
            if !is_over {
                // What comes is not plain, or nothing is there.
                return all + self.poll_any(&mut out[all..]);
            }
        }
        all
    }

    /// Polls plain successes up to the end of a lap, and says whether it came to its end or that of `out`.
    #[inline(always)]
    fn poll_lap(&mut self, out: &mut [Wc]) -> (usize, bool) {
        let (entries, lap) = self.buffer.rest_of_lap(self.head);
        let most = entries.len().min(out.len());
        let mut count = 0;
        for (wc, Entry(words, cell)) in out.iter_mut().zip(entries) {
            let what = words[0].load(Acquire);
            if (what ^ lap) & (LAP | FAILURE | HAS_TIME) != 0 {
                break;
            }
            cell.read();
            fill(wc, what, words);
            count += 1;
        }
        let polled = self.polled(self.head.wrapping_add(count));
        (polled, polled == most)
    }

    /// Polls when there are entries that are more than a plain success.
    #[inline(never)]
    fn poll_any(&mut self, out: &mut [Wc]) -> usize {
        let mut count = 0;
        for wc in out {
            let mut next = self.buffer.published(self.head);
            if next.is_none() && self.buffer.is_replaced() {
                self.change_lane();
                next = self.buffer.published(self.head);
            }
            let Some(what) = next else {
                break;
            };
            if what & RIDES != 0 {
                if !self.poll_rider(wc) {
                    break;
                }
            } else {
                let (Entry(words, cell), _) = self.buffer.place(self.head);
                cell.read();
                fill(wc, what, words);
                fill_rest(wc, what, words);
                self.polled(self.head.wrapping_add(1));
            }
            count += 1;
        }
        count
    }

    /// Frees the entries before that position, and says how many they are.
    #[inline(always)]
    pub(super) fn polled(&mut self, head: u32) -> usize {
        let count = head.wrapping_sub(self.head);
        if count != 0 {
            self.head = head;
            self.consumer.head.store(head, Release);
        }
        count as usize
    }
}

impl RawCq for CqPoller {
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        // The first one without the preparations that a loop has.
        let head = self.head;
        let (Entry(words, cell), lap) = self.buffer.place(head);
        let what = words[0].load(Acquire);
        if (what ^ lap) & (LAP | FAILURE | HAS_TIME) != 0 {
            cold_path();
            return if (what ^ lap) & LAP != 0 {
                self.look_further(out)
            } else {
                self.poll_any(out)
            };
        }
        // One comparison for the most frequent number.
        let [wc] = out else {
            return self.poll_many(out);
        };
        cell.read();
        fill(wc, what, words);
        self.polled(head.wrapping_add(1))
    }

    fn arm(&mut self, when: Arm) -> Armed {
        if let Some(packets) = &mut self.packets {
            packets.stop();
        }
        let ring = &self.ring;
        let want = match when {
            Arm::Next => WANT_NEXT,
            Arm::Solicited => WANT_SOLICITED,
        };
        ring.consumer.armer.store(my_number(), Relaxed);
        let armed = ring.consumer.arm.fetch_or(want, AcqRel);
        ring.consumer.want.store(armed | want, Relaxed);
        // Before the look at the mode, for an owner that takes the flag out of it just now.
        fence(SeqCst);
        if self.buffer.is_replaced() {
            // The flag of this one says nothing about the one that follows.
            self.change_lane();
        }
        if self.buffer.mode().tag() & ARMED == 0
            && let Some(touched) = self.ring.tell_armed()
        {
            let later = Arc::clone(&self.ring);
            self.consumer.arming.store(true, Release);
            grace::after(touched, move || later.look_again());
            self.consumer.arming.swap(false, AcqRel);
            fence(SeqCst);
        }
        if self.buffer.published(self.head).is_none() && self.buffer.is_replaced() {
            self.change_lane();
        }
        match self.buffer.published(self.head) {
            Some(_) => Armed::Waiting,
            None => Armed::Empty,
        }
    }
}

/// The parts of a completion that a plain success has.
#[inline(always)]
pub(super) fn fill(wc: &mut Wc, what: u64, words: &[AtomicU64; 8]) {
    // Field by field: a whole `Wc` would be gathered in registers first.
    wc.wr_id = words[1].load(Relaxed);
    wc.status = WcStatus::Success;
    wc.opcode = OPCODES[usize::from((what >> OPCODE_SHIFT) as u8)];
    wc.flags = WcFlags::from_bits_retain((what >> FLAGS_SHIFT) as u16);
    wc.byte_len = (what >> LENGTH_SHIFT) as u32;
    let who = words[2].load(Relaxed);
    wc.qpn = Qpn::kept(who as u32);
    wc.imm = (who >> IMM_SHIFT) as u32;
    clear_rest(wc);
}

/// The parts that no success between two queue pairs has.
#[inline(always)]
pub(super) fn clear_rest(wc: &mut Wc) {
    wc.src_qpn = Qpn::default();
    wc.slid = Lid(0);
    wc.pkey_index = 0;
    wc.sl = 0;
    wc.dlid_path_bits = 0;
    wc.vendor_err = 0;
    wc.timestamp_ns = 0;
}

/// The parts that it does not have.
#[cold]
fn fill_rest(wc: &mut Wc, what: u64, words: &[AtomicU64; 8]) {
    if what & FAILURE != 0 {
        let status = (what >> STATUS_SHIFT & STATUS) as u8;
        wc.status = WcStatus::from_u8(status).unwrap_or(WcStatus::GeneralErr);
        wc.vendor_err = words[3].load(Relaxed) as u32;
    }
    if what & HAS_TIME != 0 {
        wc.timestamp_ns = words[4].load(Relaxed);
    }
    if what & DATAGRAM != 0 {
        let from = words[3].load(Relaxed);
        wc.flags = WcFlags::from_bits_truncate((what >> FLAGS_SHIFT) as u16);
        wc.src_qpn = Qpn::new(from as u32);
        wc.sl = (from >> SL_SHIFT) as u8 & 15;
        wc.dlid_path_bits = (what >> PATH_BITS_SHIFT & PATH_BITS) as u8;
        wc.pkey_index = (from >> PKEY_SHIFT) as u16;
        wc.slid = Lid((from >> SLID_SHIFT) as u16);
    }
}
