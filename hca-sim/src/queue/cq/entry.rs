//! Entries: the content of a completion as it is stored in a buffer, and the result of a push.

use verbs_core::{Lid, Qpn, RKey, SendFlags, WcFlags, WcOpcode, WcStatus};

/// In the word that the consumer arms: an event is wanted for solicited completions and errors.
pub(super) const WANT_SOLICITED: u32 = 0b01;
/// In the word that the consumer arms: an event is wanted for any completion.
pub(super) const WANT_NEXT: u32 = 0b11;
/// Above them, in what the consumer remembers: the number of completions that have to wait before the event.
pub(super) const COUNT_SHIFT: u32 = 2;

/// In an entry's first word, below opcode, flags and length.
pub(super) const LAP: u64 = 1;
pub(super) const HAS_TIME: u64 = 1 << 1;
/// As in the flags of the work request, so that no shift is needed.
pub(super) const SOLICITED: u64 = SendFlags::SOLICITED.bits() as u64;
pub(super) const STATUS_SHIFT: u32 = 3;
pub(super) const STATUS: u64 = 0x1f;
/// The bits of the status, all clear for a success.
pub(super) const FAILURE: u64 = STATUS << STATUS_SHIFT;
const _: () = assert!(SOLICITED == 1 << 2);
pub(super) const OPCODE_SHIFT: u32 = 8;
pub(super) const FLAGS_SHIFT: u32 = 16;
pub(super) const LENGTH_SHIFT: u32 = 32;

/// In an entry's first word, among the flags, where [`WcFlags`] has none: the fourth word describes a datagram. Such an
/// entry has [`HAS_TIME`] too, so that the short path of polling skips it; the time is 0 if the queue has no clock.
pub(super) const DATAGRAM: u64 = 1 << 31;
/// In an entry's first word, at such a place and for the same reason: it is an inline CQE
/// ([`crate::queue::cqe_inline`]), whose receive is in the second word and whose bytes are the second half.
pub(super) const INLINE_CQE: u64 = 1 << 30;
/// In the fourth word of a datagram's entry, above the sender's number.
pub(super) const SL_SHIFT: u32 = 24;
/// In the first word of a datagram's entry, among the flags, where [`WcFlags`] has none.
pub(super) const PATH_BITS_SHIFT: u32 = 23;
pub(super) const PATH_BITS: u64 = 0x7f;
const _: () = assert!(INLINE_CQE > PATH_BITS << PATH_BITS_SHIFT);
const _: () = assert!((WcFlags::all().bits() as u64) << FLAGS_SHIFT < 1 << PATH_BITS_SHIFT);
pub(super) const PKEY_SHIFT: u32 = 32;
pub(super) const SLID_SHIFT: u32 = 48;

/// In an entry's third word, above the queue pair's number.
pub(super) const IMM_SHIFT: u32 = 32;

/// The content of a completion, as it is stored in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub(crate) wr_id: u64,
    pub(super) what: u64,
    pub(super) who: u64,
    /// For a failure: the crate's own reason. For a datagram: its sender.
    pub(super) more: u64,
}

/// Where a datagram came from, as its completion reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) qpn: Qpn,
    pub(crate) lid: Lid,
    pub(crate) sl: u8,
    pub(crate) pkey_index: u16,
    /// Low bits of the LID that it was sent to.
    pub(crate) path_bits: u8,
}

impl Cqe {
    /// A success.
    #[inline(always)]
    pub(crate) const fn success(wr_id: u64, qpn: Qpn, opcode: WcOpcode, byte_len: u32) -> Self {
        let what = (byte_len as u64) << LENGTH_SHIFT | (opcode as u64) << OPCODE_SHIFT;
        Self {
            wr_id,
            what,
            who: qpn.value() as u64,
            more: 0,
        }
    }

    /// A failure. `vendor_err` is the crate's own reason.
    pub(crate) const fn failure(wr_id: u64, qpn: Qpn, status: WcStatus, vendor_err: u32) -> Self {
        let what = (status as u64) << STATUS_SHIFT;
        Self {
            wr_id,
            what,
            who: qpn.value() as u64,
            more: vendor_err as u64,
        }
    }

    /// Carries immediate data.
    #[inline(always)]
    pub(crate) const fn imm(mut self, imm: u32) -> Self {
        self.what |= (WcFlags::WITH_IMM.bits() as u64) << FLAGS_SHIFT;
        self.who |= (imm as u64) << IMM_SHIFT;
        self
    }

    /// Reports the key that the message has invalidated.
    pub(crate) const fn inv(mut self, key: RKey) -> Self {
        self.what |= (WcFlags::WITH_INV.bits() as u64) << FLAGS_SHIFT;
        self.who |= (key.value() as u64) << IMM_SHIFT;
        self
    }

    /// Describes a datagram from that origin, with those flags.
    pub(crate) fn datagram(mut self, origin: &Origin, flags: WcFlags) -> Self {
        let path_bits = (u64::from(origin.path_bits) & PATH_BITS) << PATH_BITS_SHIFT;
        self.what |= DATAGRAM | HAS_TIME | u64::from(flags.bits()) << FLAGS_SHIFT | path_bits;
        self.more = u64::from(origin.qpn.value())
            | u64::from(origin.sl & 15) << SL_SHIFT
            | u64::from(origin.pkey_index) << PKEY_SHIFT
            | u64::from(origin.lid.0) << SLID_SHIFT;
        self
    }

    /// Fires a queue that is armed for solicited completions, if the flags say so.
    #[inline(always)]
    pub(crate) const fn asked_for(mut self, flags: SendFlags) -> Self {
        self.what |= flags.bits() as u64 & SOLICITED;
        self
    }

    /// Fires a queue that is armed for solicited completions.
    #[inline(always)]
    pub(crate) const fn solicited(mut self, solicited: bool) -> Self {
        self.what |= (solicited as u64) << SOLICITED.trailing_zeros();
        self
    }

    /// Whether an event that is wanted in this form is due.
    pub(super) fn fires(what: u64, wanted: u32) -> bool {
        wanted == WANT_NEXT || what & (SOLICITED | FAILURE) != 0 && wanted != 0
    }
}

/// How a thread may push, found out by [`CqRing::enter`](super::CqRing::enter) and valid until the pin is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way(pub(super) u32);

impl Way {
    /// Alone, not armed, no time stamps.
    pub(super) const PLAIN: Self = Self(0);
    /// The same, but armed.
    pub(super) const ARMED: Self = Self(super::buffer::ARMED);
}

/// An entry that was pushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pushed {
    /// The event that the consumer wants is due; see [`CqRing::fire`](super::CqRing::fire).
    pub(crate) fire: bool,
}

/// The queue has no room: the completion is lost and the queue is in error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overrun;
