//! What a sender must know of its peer's responder: one line per direction of a connection.
//!
//! A reliable connection's responder has exactly one peer, so the right to land messages can be
//! handed out as a whole. It has one holder at a time:
//!
//! ```text
//!   the word is not BARRED, and the sender's ring is empty  the poster, under a pin
//!   the sender's ring is not empty                          the sender's machine, under a pin
//!   the word was killed, and the grace period is over       the responder's own machine: it flushes
//! ```
//!
//! A direct path is alive while sender and responder fit: the sender in RTS, the responder in RTR, RTS or
//! SQD, each naming the other, the sender's next packet the one that the responder expects, one path
//! MTU. Control verbs that change one of these kill it, for good; connecting anew makes a new one. So a
//! sender that still knows the old one can only miss. BARRED is there unless the link between the two
//! is a bare loopback.
//!
//! The poster knows by itself whether its ring is empty, as it is the only one to fill it: the door
//! closes when it puts a work request into the ring, and opens again when the machine's count of
//! executed ones has caught up. Nothing can be overtaken, and no exchange is needed.

use std::fmt;

use verbs_core::mem::{MrTable, Pin, Seen, TouchWord, Touched};
use verbs_core::sync::{Arc, Weak};
use verbs_core::yard::Common;
use verbs_core::{Access, Mtu, Piece, Qpn};

use crate::queue::base::events::QpEvents;
use crate::queue::base::word::QpWord;
use crate::queue::cq::{CqBuffer, CqRing};
use crate::queue::recv::{Entries, RecvRing, Waiting};
use crate::queue::send::SendRing;
use crate::queue::srq::SharedReceives;

// What the word says is what stands in the way, so that one comparison with none of it does.
/// In the word: the poster may not land messages itself.
const BARRED: u32 = 1;
/// In the word: the responder is in RTR and has heard nothing yet. Only the machine lands messages
/// then, which tells the responder.
const FIRST: u32 = 1 << 1;
/// In the word: messages may ride in the completions of the receives ([`crate::queue::cqe_inline`]). Only the poster
/// changes it.
const LENDS: u32 = 1 << 2;
/// In the word: the responder has no room to remember READs and what else must not be done twice.
const FORGETS: u32 = 1 << 3;
/// In the word, shifted by this: what the responder denies, as [`Access::REMOTE`] and [`Access::FLUSH`] bits.
const RIGHTS_SHIFT: u32 = 4;

/// Who may land messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// The poster, or the machine.
    Direct,
    /// The machine only.
    Machine,
    /// The machine only; the responder waits in RTR for the first message.
    First,
}

/// What a responder lets its peer do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) access: Access,
    /// It has room to remember READs and what else it must not do twice.
    pub(crate) remembers: bool,
}

/// What a sender must know of a responder in order to place messages there.
pub(crate) struct Responder {
    pub(crate) qp: Weak<dyn QpEvents>,
    pub(crate) gate: Common<QpWord>,
    pub(crate) ring: Common<RecvRing>,
    /// Where receives are taken from instead of `ring`, which then has none.
    pub(crate) srq: Option<Arc<SharedReceives>>,
    /// What receives complete to.
    pub(crate) cq: Arc<CqRing>,
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) pd: u32,
    pub(crate) qpn: Qpn,
}

/// See the module's documentation.
// The first line is all that a short message looks at.
#[repr(C, align(64))]
pub(crate) struct DirectPath {
    word: TouchWord,
    pub(crate) ring: Common<RecvRing>,
    entries: Entries,
    /// What receives complete to, when the direct path was made.
    pub(crate) buffer: Arc<CqBuffer>,
    pub(crate) mrs: Arc<MrTable>,
    /// The responder's protection domain.
    pub(crate) pd: u32,
    pub(crate) qpn: Qpn,
    /// Where receives are taken from instead of `ring`, which then has none.
    pub(crate) srq: Option<Arc<SharedReceives>>,
    /// What receives complete to.
    pub(crate) cq: Arc<CqRing>,
    mtu: Mtu,
    /// The path MTU in bytes.
    mtu_bytes: u32,
    /// The responder itself, for what goes wrong there.
    pub(crate) responder: Weak<dyn QpEvents>,
    /// The responder's state, and what is asked of its poster.
    gate: Common<QpWord>,
}

const fn door_tag(door: Door) -> u32 {
    match door {
        Door::Direct => 0,
        Door::Machine => BARRED,
        Door::First => BARRED | FIRST,
    }
}

/// What says that any of those rights is denied.
const fn denial(rights: Access) -> u32 {
    let all = Access::REMOTE.union(Access::FLUSH);
    (rights.bits() & all.bits()) << RIGHTS_SHIFT
}

const fn tag(door: Door, granted: Granted) -> u32 {
    let forgets = if granted.remembers { 0 } else { FORGETS };
    door_tag(door) | forgets | denial(granted.access.complement())
}

impl DirectPath {
    /// The way into `responder`, which grants its peer those rights.
    pub(crate) fn new(responder: Responder, granted: Granted, mtu: Mtu, door: Door) -> Self {
        let Responder {
            qp,
            gate,
            ring,
            srq,
            cq,
            mrs,
            pd,
            qpn,
        } = responder;
        // Whoever had another direct path may have left riders behind.
        let lends = if ring.has_riders() { LENDS } else { 0 };
        Self {
            word: TouchWord::new(tag(door, granted) | lends),
            entries: ring.entries.clone(),
            ring,
            buffer: cq.buffer(),
            mrs,
            pd,
            qpn,
            srq,
            cq,
            mtu,
            mtu_bytes: mtu.bytes(),
            responder: qp,
            gate,
        }
    }

    /// The same way, with the buffer that the completion queue has now.
    pub(crate) fn renewed(&self) -> Self {
        Self {
            word: TouchWord::new(self.word.tag()),
            ring: self.ring.clone(),
            entries: self.entries.clone(),
            buffer: self.cq.buffer(),
            mrs: Arc::clone(&self.mrs),
            pd: self.pd,
            qpn: self.qpn,
            srq: self.srq.clone(),
            cq: Arc::clone(&self.cq),
            mtu: self.mtu,
            mtu_bytes: self.mtu_bytes,
            responder: Weak::clone(&self.responder),
            gate: self.gate.clone(),
        }
    }

    /// What the poster finds behind the door now, for later looks.
    pub(crate) fn view(&self) -> Seen {
        Seen::new(self.word.tag())
    }

    /// As [`DirectPath::admits_direct`], and that no message rides.
    #[inline(always)]
    pub(crate) fn admits_short(&self, pin: &Pin, view: Seen, need: Access) -> bool {
        !view.has_any(BARRED | LENDS | denial(need)) && self.word.admits_as_seen(pin, view)
    }

    /// Whether messages may ride, when it was viewed.
    #[inline(always)]
    pub(crate) fn lends(view: Seen) -> bool {
        view.has_any(LENDS)
    }

    /// Has messages ride from now on, or no more. For the poster, when nobody rides.
    pub(crate) fn lend(&self, lends: bool) {
        let flag = if lends { LENDS } else { 0 };
        let _ = self.word.update(|tag| Some(tag & !LENDS | flag));
        if lends {
            self.ring.forget_offers();
        }
        self.ask(QpWord::BERTHS, lends);
    }

    /// Whether the poster may land a message that needs those rights, as far as one look tells at
    /// something that is as it was when it was viewed.
    #[inline(always)]
    pub(crate) fn admits_direct(&self, pin: &Pin, view: Seen, need: Access) -> bool {
        !view.has_any(BARRED | denial(need)) && self.word.admits_as_seen(pin, view)
    }

    /// Whether the poster may land messages.
    pub(crate) fn admits_poster(&self, pin: &Pin) -> bool {
        self.word.admits(pin, BARRED, 0)
    }

    /// Whether it lives, so that the sender's machine may land messages.
    pub(crate) fn admits(&self, pin: &Pin) -> bool {
        self.word.admits(pin, 0, 0)
    }

    /// The oldest receive, if it has one piece, and that. For the consumer only.
    #[inline(always)]
    pub(crate) fn next_piece(&self) -> Option<(Waiting<'_>, Piece)> {
        self.ring.next_piece(&self.entries)
    }

    /// Counts the packets that a message of `len` bytes would have been, at both ends.
    #[inline(always)]
    pub(crate) fn advance(&self, sends: &SendRing, len: u32) {
        self.advance_by(sends, self.packets(len));
    }

    /// As [`DirectPath::advance`], of that many messages of one packet each.
    #[inline(always)]
    pub(crate) fn advance_by(&self, sends: &SendRing, packets: u32) {
        self.ring.expect(sends.advance(packets));
    }

    /// Packets that a message of `len` bytes would be.
    #[inline(always)]
    pub(crate) fn packets(&self, len: u32) -> u32 {
        if len <= self.mtu_bytes {
            1
        } else {
            self.packets_of_long(len)
        }
    }

    #[cold]
    fn packets_of_long(&self, len: u32) -> u32 {
        self.mtu.packets(len)
    }

    /// Whether the responder grants those rights.
    pub(crate) fn grants(&self, need: Access) -> bool {
        self.word.tag() & denial(need) == 0
    }

    /// Whether the responder has room to remember READs and what else it must not do twice.
    pub(crate) fn remembers(&self) -> bool {
        self.word.tag() & FORGETS == 0
    }

    /// Asks whoever posts receives there to call. A call may be missed; the RNR timer comes anyway.
    pub(crate) fn want(&self, wanted: bool) {
        self.ask(QpWord::CALL, wanted);
    }

    fn ask(&self, what: u8, wanted: bool) {
        self.gate.ask(what, wanted);
    }

    /// Whether the responder waits in RTR for the first message.
    pub(crate) fn awaits_first(&self) -> bool {
        self.word.tag() & FIRST != 0
    }

    /// Whether it is alive and the way into that queue pair.
    pub(crate) fn leads_into<Q>(&self, responder: &Arc<Q>) -> bool {
        self.is_alive() && std::ptr::addr_eq(self.responder.as_ptr(), Arc::as_ptr(responder))
    }

    /// Whether nobody has killed it.
    pub(crate) fn is_alive(&self) -> bool {
        !self.word.is_dead()
    }

    /// Sets what the responder grants and whether the poster may land messages.
    pub(crate) fn change(&self, granted: Granted, door: Door) -> Touched {
        let changed = self
            .word
            .update(|before| Some(before & LENDS | tag(door, granted)));
        changed.map_or(Touched::NOBODY, |(_, touched)| touched)
    }

    /// Takes it away from the sender, for good.
    pub(crate) fn kill(&self) -> Touched {
        self.word.kill().unwrap_or(Touched::NOBODY)
    }
}

impl fmt::Debug for DirectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectPath")
            .field("qpn", &self.qpn)
            .field("is_alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}
