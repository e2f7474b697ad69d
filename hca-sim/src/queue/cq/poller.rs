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
use super::buffer::{ARMED, CqBuffer, CqConsumer, CqEntry};
use super::entry::{
    COUNT_SHIFT, DATAGRAM, FAILURE, FLAGS_SHIFT, HAS_TIME, IMM_SHIFT, INLINE_CQE, LAP,
    LENGTH_SHIFT, OPCODE_SHIFT, PATH_BITS, PATH_BITS_SHIFT, PKEY_SHIFT, SL_SHIFT, SLID_SHIFT,
    STATUS, STATUS_SHIFT, WANT_NEXT, WANT_SOLICITED,
};
use super::opcodes::OPCODES;
use super::scatter::ScatterCache;
use crate::queue::cqe_inline::Scatter;

/// The consumer's end.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CqPoller {
    pub(super) buffer: Arc<CqBuffer>,
    pub(super) consumer: Arc<CqConsumer>,
    pub(super) head: u32,
    pub(super) ring: Arc<CqRing>,
    /// If packets carry messages: the port, and how often there was nothing to poll since the queue was armed last and no
    /// longer is.
    packets: Option<PacketPort>,
    pub(super) scatter: ScatterCache,
    /// It can be armed for a number of completions.
    counts: bool,
}

/// A consumer's calls to its port.
pub(crate) trait Pump: Send + Sync + fmt::Debug {
    /// Whether packets carry all messages, so that a poll that finds nothing receives packets.
    fn has_packets(&self) -> bool;

    /// Whether a thread receives packets while no consumer polls all the time.
    fn has_thread(&self) -> bool;

    /// The consumer polls all the time from now on, on this thread.
    fn polls_here(&self);

    /// Receives packets; `often`: the consumer polls all the time. Returns whether packets arrived.
    fn poll(&self, often: bool) -> bool;

    /// The consumer is about to wait.
    fn stop(&self);

    /// What is needed to scatter the inline CQEs of that queue pair; `None` if it no longer exists.
    fn scatter(&self, qpn: Qpn) -> Option<Scatter>;
}

/// The consumer's view of the port when packets carry messages.
#[derive(Debug)]
struct PacketPort {
    port: Arc<dyn Pump>,
    has_thread: bool,
    idle: u32,
}

/// Polls without result after which a consumer counts as polling all the time.
const OFTEN: u32 = 16;

impl PacketPort {
    /// Has packets received. Returns whether some arrived whose answers were left to the next look.
    #[inline]
    fn look(&mut self, consumer: &CqConsumer) -> bool {
        if self.idle < OFTEN {
            return self.look_early(consumer);
        }
        self.port.poll(true)
    }

    /// One of the first looks. A consumer that has just been woken finds nothing: the thread that woke it has received.
    /// One whose queue is armed still may wait for the event at any time and say no more: packets are not left to it.
    #[cold]
    fn look_early(&mut self, consumer: &CqConsumer) -> bool {
        if !(self.has_thread && consumer.arm.load(Relaxed) != 0) {
            self.idle += 1;
        }
        if self.idle == OFTEN {
            self.port.polls_here();
            return self.port.poll(true);
        }
        if !self.has_thread {
            self.port.poll(false);
        }
        false
    }

    /// The consumer is about to wait.
    fn stop(&mut self) {
        self.idle = 0;
        self.port.stop();
    }

    /// The consumer polls no more for a while, whatever it waits for.
    #[inline]
    fn pause(&mut self) {
        // Before, nothing was left to it.
        if self.idle >= OFTEN {
            self.port.stop();
        }
        self.idle = 0;
    }
}

impl CqPoller {
    /// The one consumer of a new ring, of the HCA with that port.
    pub(crate) fn new(ring: Arc<CqRing>, port: Option<Arc<dyn Pump>>) -> Self {
        let wire = port.as_ref().filter(|port| port.has_packets());
        let packets = wire.map(|port| PacketPort {
            port: Arc::clone(port),
            has_thread: port.has_thread(),
            idle: 0,
        });
        Self {
            buffer: ring.buffer(),
            consumer: Arc::clone(&ring.consumer),
            head: 0,
            ring,
            packets,
            scatter: ScatterCache::new(port),
            counts: true,
        }
    }

    /// Whether it can be armed for a number of completions.
    pub(crate) fn counts(self, counts: bool) -> Self {
        Self { counts, ..self }
    }

    /// There was nothing to poll: checks whether the queue has another buffer, or packets have arrived that complete
    /// something.
    #[inline(never)]
    fn look_further(&mut self, out: &mut [Wc]) -> usize {
        if self.buffer.is_replaced() {
            self.change_lane();
            return self.poll(out);
        }
        let Some(packets) = &mut self.packets else {
            return 0;
        };
        if !packets.look(&self.consumer) {
            return self.poll_afresh(out);
        }
        let count = self.poll_afresh(out);
        if count != 0 {
            return count;
        }
        // What arrived completes nothing here, but has to be answered.
        if let Some(packets) = &mut self.packets {
            packets.look(&self.consumer);
        }
        self.poll_afresh(out)
    }

    /// Polls after a look for packets, which may have completed something.
    #[inline]
    fn poll_afresh(&mut self, out: &mut [Wc]) -> usize {
        let (CqEntry(words, cell), lap) = self.buffer.place(self.head);
        let what = words[0].load(Acquire);
        match out {
            [wc] if (what ^ lap) & (LAP | FAILURE | HAS_TIME) == 0 => {
                cell.read();
                fill(wc, what, words);
                self.polled(self.head.wrapping_add(1))
            }
            // Nothing is there, here or elsewhere.
            _ if (what ^ lap) & LAP != 0 && !self.buffer.is_replaced() => 0,
            [_] => self.poll_any(out),
            _ => self.poll_many(out),
        }
    }

    /// Everything left in this buffer is in the next one too, at the same position.
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
                // The next entry is not plain, or there is none.
                return all + self.poll_any(&mut out[all..]);
            }
        }
        all
    }

    /// Polls plain successes up to the end of a lap. Returns how many, and whether it reached the end of the lap or of
    /// `out`.
    #[inline(always)]
    fn poll_lap(&mut self, out: &mut [Wc]) -> (usize, bool) {
        let (entries, lap) = self.buffer.rest_of_lap(self.head);
        let most = entries.len().min(out.len());
        let mut count = 0;
        for (wc, CqEntry(words, cell)) in out.iter_mut().zip(entries) {
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

    /// Polls when there are entries with more than a plain success.
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
            if what & INLINE_CQE != 0 {
                if !self.poll_inline_cqe(wc) {
                    break;
                }
            } else {
                let (CqEntry(words, cell), _) = self.buffer.place(self.head);
                cell.read();
                fill(wc, what, words);
                if what & (FAILURE | HAS_TIME) != 0 {
                    fill_rest(wc, what, words);
                }
                self.polled(self.head.wrapping_add(1));
            }
            count += 1;
        }
        count
    }

    /// Arms for a number of completions: as for the next one, but an event that is due while fewer wait is held back
    /// ([`super::moderation`]).
    #[inline(never)]
    fn arm_for(&mut self, count: u32) -> Armed {
        let count = count.clamp(1, self.buffer.len());
        self.ring.expect_counts();
        let (wanted, before) = (
            self.consumer.want.load(Relaxed),
            self.consumer.arm.load(Relaxed),
        );
        let _ = self.arm(Arm::Next);
        // An event that is wanted already is raised no later than it would have been.
        let count = match (before, wanted >> COUNT_SHIFT) {
            (0, _) => count,
            (_, 0) => 1,
            (_, earlier) => count.min(earlier),
        };
        self.consumer
            .want
            .store(count << COUNT_SHIFT | WANT_NEXT, Relaxed);
        match self.ring.waiting_at_least(count) {
            true => Armed::Waiting,
            false => Armed::Empty,
        }
    }

    /// Frees the entries before that position, and returns how many there are.
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
        let (CqEntry(words, cell), lap) = self.buffer.place(head);
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

    #[inline]
    fn pause(&mut self) {
        if let Some(packets) = &mut self.packets {
            packets.pause();
        }
    }

    fn arm(&mut self, when: Arm) -> Armed {
        if let Arm::Count(count) = when
            && self.counts
        {
            return self.arm_for(count);
        }
        if let Some(packets) = &mut self.packets {
            packets.stop();
        }
        let ring = &self.ring;
        let want = match when {
            Arm::Next | Arm::Count(_) => WANT_NEXT,
            Arm::Solicited => WANT_SOLICITED,
        };
        ring.consumer.armer.store(my_number(), Relaxed);
        let armed = ring.consumer.arm.fetch_or(want, AcqRel);
        ring.consumer.want.store(armed | want, Relaxed);
        // Before the look at the mode, in case an owner is just taking the flag out of it.
        fence(SeqCst);
        if self.buffer.is_replaced() {
            // The flag of this one says nothing about the next one.
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

    fn peek(&mut self, most: u32) -> Option<u32> {
        if self.buffer.published(self.head).is_none() && self.buffer.is_replaced() {
            self.change_lane();
        }
        let waits = |&n: &u32| self.buffer.published(self.head.wrapping_add(n)).is_some();
        Some((0..most.min(self.buffer.len())).take_while(waits).count() as u32)
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
