//! What a sender must know of its peer's responder: one line per direction of a connection.
//!
//! A reliable connection's responder has exactly one peer, so the right to place messages can be handed out as a whole.
//! It has one holder at a time:
//! ```text
//!   the word is not BARRED, and the sender's ring is empty  the poster, under a pin
//!   the sender's ring is not empty                          the sender's machine, under a pin
//!   the word was killed, and the grace period is over       the responder's own machine: it flushes
//! ```
//!
//! A direct path is alive while sender and responder fit: the sender in RTS, the responder in RTR, RTS or SQD, each
//! naming the other, the sender's next packet the one that the responder expects, one path MTU. Control verbs that
//! change one of these kill it for good; connecting again makes a new one. So a sender that still has the old one finds
//! it dead and places nothing. BARRED is set unless the link between the two is a bare loopback.
//!
//! The poster knows by itself whether its ring is empty, because it alone fills the ring: the door closes when it puts
//! a work request into the ring, and opens again when the machine's count of executed requests has caught up. No
//! message can overtake another, and no exchange is needed.

use std::fmt;

use verbs_core::mem::{MrTable, Pin, Seen, TouchWord, Touched};
use verbs_core::slab_alloc::SlabArc;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Access, Mtu, Piece, Qpn};

use crate::queue::base::events::QpEvents;
use crate::queue::base::word::QpWord;
use crate::queue::cq::{CqBuffer, CqRing};
use crate::queue::recv::{Entries, RecvRing, Waiting};
use crate::queue::send::SendRing;
use crate::queue::srq::SharedReceives;

// The bits of the word are obstacles, so that one comparison shows that there is none.
/// In the word: the poster may not place messages itself.
const BARRED: u32 = 1;
/// In the word: the responder is in RTR and has heard nothing yet. Only the machine places messages then, which tells
/// the responder.
const FIRST: u32 = 1 << 1;
/// In the word: messages may be carried in the completions of the receives ([`crate::queue::cqe_inline`]). Only the
/// poster changes it.
const INLINE_CQES: u32 = 1 << 2;
/// In the word: the responder has no room to remember READs and other operations that must not be done twice.
const FORGETS: u32 = 1 << 3;
/// In the word, shifted by this: what the responder denies, as [`Access::REMOTE`] and [`Access::FLUSH`] bits.
const RIGHTS_SHIFT: u32 = 4;

/// Which threads may place messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// The poster, or the machine.
    Direct,
    /// The machine only.
    Machine,
    /// The machine only; the responder waits in RTR for the first message.
    First,
}

/// The operations that a responder permits its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) access: Access,
    /// It has room to remember READs and other operations that must not be done twice.
    pub(crate) remembers: bool,
}

/// The part of a responder that a sender needs in order to place messages there.
pub(crate) struct DirectReceiver {
    pub(crate) qp: Weak<dyn QpEvents>,
    pub(crate) gate: SlabArc<QpWord>,
    pub(crate) ring: SlabArc<RecvRing>,
    /// The shared queue that receives are taken from, if there is one; `ring` is empty in that case.
    pub(crate) srq: Option<Arc<SharedReceives>>,
    /// The completion queue of receives.
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
    pub(crate) ring: SlabArc<RecvRing>,
    entries: Entries,
    /// The buffer of the receives' completion queue when the direct path was made.
    pub(crate) buffer: Arc<CqBuffer>,
    pub(crate) mrs: Arc<MrTable>,
    /// The responder's protection domain.
    pub(crate) pd: u32,
    pub(crate) qpn: Qpn,
    /// The shared queue that receives are taken from, if there is one; `ring` is empty in that case.
    pub(crate) srq: Option<Arc<SharedReceives>>,
    /// The completion queue of receives.
    pub(crate) cq: Arc<CqRing>,
    mtu: Mtu,
    /// The path MTU in bytes.
    mtu_bytes: u32,
    /// The responder itself, for what goes wrong there.
    pub(crate) responder: Weak<dyn QpEvents>,
    /// The responder's state, and what is asked of the thread that posts its receives.
    gate: SlabArc<QpWord>,
}

const fn door_tag(door: Door) -> u32 {
    match door {
        Door::Direct => 0,
        Door::Machine => BARRED,
        Door::First => BARRED | FIRST,
    }
}

/// The bits that say that any of those rights is denied.
const fn denial(rights: Access) -> u32 {
    let all = Access::REMOTE.union(Access::FLUSH);
    (rights.bits() & all.bits()) << RIGHTS_SHIFT
}

const fn tag(door: Door, granted: Granted) -> u32 {
    let forgets = if granted.remembers { 0 } else { FORGETS };
    door_tag(door) | forgets | denial(granted.access.complement())
}

impl DirectPath {
    /// The path to `responder`, which grants its peer those rights.
    pub(crate) fn new(responder: DirectReceiver, granted: Granted, mtu: Mtu, door: Door) -> Self {
        let DirectReceiver {
            qp,
            gate,
            ring,
            srq,
            cq,
            mrs,
            pd,
            qpn,
        } = responder;
        // The sender of an earlier direct path may have left inline CQEs behind.
        let allowed = if ring.has_inline_cqes() {
            INLINE_CQES
        } else {
            0
        };
        Self {
            word: TouchWord::new(tag(door, granted) | allowed),
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

    /// The same path, with the buffer that the completion queue has now.
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

    /// The state behind the door as the poster sees it now, for later looks.
    pub(crate) fn view(&self) -> Seen {
        Seen::new(self.word.tag())
    }

    /// As [`DirectPath::admits_direct`], and that there are no inline CQEs.
    #[inline(always)]
    pub(crate) fn admits_short(&self, pin: &Pin, view: Seen, need: Access) -> bool {
        !view.has_any(BARRED | INLINE_CQES | denial(need)) && self.word.admits_as_seen(pin, view)
    }

    /// Whether inline CQEs were allowed when it was viewed.
    #[inline(always)]
    pub(crate) fn allows_inline_cqes(view: Seen) -> bool {
        view.has_any(INLINE_CQES)
    }

    /// Allows inline CQEs from now on, or forbids them. For the poster, when none is under way.
    pub(crate) fn allow_inline_cqes(&self, allowed: bool) {
        let flag = if allowed { INLINE_CQES } else { 0 };
        let _ = self.word.update(|tag| Some(tag & !INLINE_CQES | flag));
        if allowed {
            self.ring.forget_offers();
        }
        self.ask(QpWord::INLINE_CREDITS, allowed);
    }

    /// Whether the poster may place a message that needs those rights, as far as one look can tell, if nothing has
    /// changed since it was viewed.
    #[inline(always)]
    pub(crate) fn admits_direct(&self, pin: &Pin, view: Seen, need: Access) -> bool {
        !view.has_any(BARRED | denial(need)) && self.word.admits_as_seen(pin, view)
    }

    /// Whether the poster may place messages.
    pub(crate) fn admits_poster(&self, pin: &Pin) -> bool {
        self.word.admits(pin, BARRED, 0)
    }

    /// Whether it lives, so that the sender's machine may place messages.
    pub(crate) fn admits(&self, pin: &Pin) -> bool {
        self.word.admits(pin, 0, 0)
    }

    /// The oldest receive and its piece, if it has one piece. For the consumer only.
    #[inline(always)]
    pub(crate) fn next_piece(&self) -> Option<(Waiting<'_>, Piece)> {
        self.ring.next_piece(&self.entries)
    }

    /// Counts the packets that a message of `len` bytes would have been, at both ends.
    #[inline(always)]
    pub(crate) fn advance(&self, sends: &SendRing, len: u32) {
        self.advance_by(sends, self.packets(len));
    }

    /// As [`DirectPath::advance`], for that many messages of one packet each.
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

    /// Whether the responder has room to remember READs and other operations that must not be done twice.
    pub(crate) fn remembers(&self) -> bool {
        self.word.tag() & FORGETS == 0
    }

    /// Asks the thread that posts receives there to call. A call may be missed; the RNR timer expires anyway.
    pub(crate) fn want(&self, sender: Weak<dyn QpEvents>) {
        self.ring.keep_sender(sender);
        self.ask(QpWord::CALL, true);
    }

    /// The thread that posts receives there need not call.
    pub(crate) fn want_none(&self) {
        self.ask(QpWord::CALL, false);
    }

    fn ask(&self, what: u8, wanted: bool) {
        self.gate.ask(what, wanted);
    }

    /// Whether the responder waits in RTR for the first message.
    pub(crate) fn awaits_first(&self) -> bool {
        self.word.tag() & FIRST != 0
    }

    /// The responder has heard the first message. If `is_bare`, the poster may place the next ones itself.
    ///
    /// For the sender's machine, under no lock. A control verb that has looked before the message arrived may ask for the
    /// first message again; the next one answers that.
    pub(crate) fn has_heard(&self, is_bare: impl Fn() -> bool) {
        let opened = |tag: u32| {
            let obstacles = if is_bare() { FIRST | BARRED } else { FIRST };
            (tag & FIRST != 0).then_some(tag & !obstacles)
        };
        // Nothing is taken away, so no thread is waited for.
        let _ = self.word.update(opened);
    }

    /// Whether it is alive and is the path to that queue pair.
    pub(crate) fn leads_into<Q>(&self, responder: &Arc<Q>) -> bool {
        self.is_alive() && std::ptr::addr_eq(self.responder.as_ptr(), Arc::as_ptr(responder))
    }

    /// Whether it has not been killed.
    pub(crate) fn is_alive(&self) -> bool {
        !self.word.is_dead()
    }

    /// Sets what the responder grants and whether the poster may place messages.
    pub(crate) fn change(&self, granted: Granted, door: Door) -> Touched {
        let changed = self
            .word
            .update(|before| Some(before & INLINE_CQES | tag(door, granted)));
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
