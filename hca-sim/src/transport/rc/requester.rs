//! The requester's sending half: work requests become packets.
//!
//! # How much is under way
//!
//! At most [`PACKETS_MAX`] request packets are unconfirmed. The peer is asked for an acknowledgement by
//! the last packet of what there is to send, by the one that fills the window, and every [`ASK_EVERY`]
//! packets in between: four bursts of 15 packets of 4 KiB, a quarter of the window, so that answers are
//! on their way while more is sent, and an answer's cost is shared by many packets. The window is 1 MiB
//! with the largest packets, which is what a socket with a receive buffer of 4 MiB has room for when its
//! reader is late, bookkeeping included; Linux rxe has a queue without a bound. READs are held back in
//! the same way by the data that they call for, [`RESPONSES_MAX`], but one READ may be of any size.

use verbs_core::{
    Access, Dest, Error, Psn, QpCap, Remote, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

use super::head;
use super::retry::{Retry, Verdict};
use super::window::{Flight, Kind, Window};
use crate::direct::local::{Local, execute};
use crate::queue::send::Scratch;
use crate::transport::completion;
use crate::transport::pieces::{Refused, Source};
use crate::transport::{Ends, Notes, Outlet, Path};
use crate::wire::{
    AtomicEth, BthFlags, Extended, Feth, Ieth, ImmDt, MaskEth, Operation, Place, Reth, XrcEth,
};

/// Request packets that are not confirmed.
pub(super) const PACKETS_MAX: u32 = 256;
/// Packets of a long transfer for each acknowledgement asked for.
pub(super) const ASK_EVERY: u32 = 64;
/// Response packets that READs have called for, unless there is only one READ.
pub(super) const RESPONSES_MAX: u32 = 512;

/// Sends requests and makes of the answers completions; the other half is in `completer`.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) window: Window,
    pub(super) retry: Retry,
    /// The first number has been taken from the path.
    started: bool,
    /// A work request ended in error: nothing is sent or taken any more.
    pub(super) failed: bool,
    /// Packets that may be unacknowledged now: all that may ever be, or fewer after a timeout. A peer that
    /// was slow and not gone still has the earlier copies to go through; each confirmation doubles it.
    limit: u32,
    /// Packets since the peer was asked for an acknowledgement.
    unasked: u32,
    /// The next packet asks for one, whatever follows it.
    ask: bool,
}

/// How far a work request was sent.
enum Step {
    /// As a whole.
    Sent,
    /// Until something has to be waited for that comes by itself.
    Held,
    /// Until the outlet was full.
    Full,
}

impl Requester {
    /// With room for a full send queue.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn new(cap: &QpCap) -> Result<Self, Error> {
        Ok(Self {
            window: Window::new(cap.max_send_wr)?,
            retry: Retry::default(),
            started: false,
            failed: false,
            unasked: 0,
            limit: PACKETS_MAX,
            ask: false,
        })
    }

    pub(super) fn reset(&mut self) {
        self.window.start(Psn::new(0));
        self.retry = Retry::default();
        self.started = false;
        self.failed = false;
        self.unasked = 0;
        self.limit = PACKETS_MAX;
        self.ask = false;
    }

    /// Sends what can be sent; whether more could be if the outlet had room.
    pub(super) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        notes: &mut Notes,
    ) -> bool {
        if !self.has_work(ends) {
            return false;
        }
        let mut scratch = Scratch::default();
        loop {
            if !outlet.is_ready() {
                return true;
            }
            match self.step(ends, outlet, &mut scratch, notes) {
                Step::Sent => {}
                Step::Held => return false,
                Step::Full => return true,
            }
            if !self.has_work(ends) {
                return false;
            }
        }
    }

    /// The peer has confirmed something: more may be under way.
    pub(super) fn widen(&mut self) {
        self.limit = (self.limit * 2).min(PACKETS_MAX);
    }

    /// A timer may have run out.
    pub(super) fn expire(&mut self, ends: &Ends<'_>, notes: &mut Notes) {
        if self.failed || self.retry.end_wait(ends.now) || !self.retry.is_silent(ends.now) {
            return;
        }
        ends.counters.timeouts.up();
        match self.retry.silent(ends.path) {
            Verdict::GiveUp => self.fail(ends, WcStatus::RetryExcErr, 0, notes),
            _ => {
                self.limit = 1;
                self.go_back();
            }
        }
    }

    /// Everything that is not confirmed is to be sent again.
    pub(super) fn go_back(&mut self) {
        self.window.go_back();
        self.unasked = 0;
    }

    /// Whether there is a packet at the cursor that may be sent as far as the queue pair's state goes.
    fn has_work(&mut self, ends: &Ends<'_>) -> bool {
        if self.failed || self.retry.is_waiting() {
            return false;
        }
        if !self.started {
            if !ends.may_begin {
                return false;
            }
            self.started = true;
            self.window.start(Psn::new(ends.path.sq_psn));
        }
        if self.window.is_idle() {
            let Some(at) = ends.sends.next() else {
                return false;
            };
            self.window.go_on_at(at);
        }
        let at = self.window.cursor().at;
        if at != self.window.begun() || self.may_begin(ends, at) {
            return true;
        }
        // The queue pair drains while the last packet has left the question to one that will not come.
        !ends.may_begin && self.ask_again()
    }

    fn may_begin(&self, ends: &Ends<'_>, at: u32) -> bool {
        ends.may_begin && ends.sends.is_filled(at)
    }

    /// Sends the packet before the cursor again if that is what makes the peer answer: whether it is.
    fn ask_again(&mut self) -> bool {
        let needed = self.unasked != 0 && self.window.cursor().at != self.window.base();
        if needed {
            self.window.step_back();
            self.ask = true;
        }
        needed
    }

    /// Sends the work request at the cursor.
    fn step(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        scratch: &mut Scratch,
        notes: &mut Notes,
    ) -> Step {
        let at = self.window.cursor().at;
        let wr = ends.sends.read(at, scratch);
        if wr.op.is_local() {
            return self.step_local(ends, &wr, notes);
        }
        let begins = at == self.window.begun();
        let flight = if begins {
            Flight::of(&wr, ends.path)
        } else {
            *self.window.flight(at)
        };
        if flight.kind != Kind::Plain && ends.path.max_rd_atomic == 0 {
            return self.refuse(ends, WcStatus::LocQpOpErr, 0, notes);
        }
        if self.is_held(ends.path, &flight, wr.flags, begins) {
            return Step::Held;
        }
        let need = match flight.kind {
            Kind::Plain | Kind::Done | Kind::Local => Access::empty(),
            Kind::Read | Kind::Atomic => Access::LOCAL_WRITE,
        };
        let source = match Source::check(ends, &wr, need) {
            Ok(source) => source,
            Err(Refused(why)) => return self.refuse(ends, WcStatus::LocProtErr, why, notes),
        };
        let flight = if begins {
            let flight = self.window.begin(flight);
            ends.sends.set_psn(self.window.next().value());
            flight
        } else {
            flight
        };
        match flight.kind {
            Kind::Plain => self.send_packets(ends, outlet, &wr, &flight, &source),
            _ => self.send_request(ends, outlet, &wr, &flight, &source),
        }
    }

    /// Whether a work request has to wait for answers to earlier ones.
    fn is_held(&self, path: &Path, flight: &Flight, flags: SendFlags, begins: bool) -> bool {
        let window = &self.window;
        let fenced = flags.contains(SendFlags::FENCE) && window.reads() != 0;
        let too_deep = flight.kind != Kind::Plain
            && (window.reads() >= u32::from(path.max_rd_atomic)
                || window.responses() != 0
                    && window.responses().saturating_add(flight.packets) > RESPONSES_MAX);
        fenced
            || too_deep
            || window.requests() >= self.limit
            || begins && !window.has_numbers(flight.packets)
    }

    /// A work request cannot be sent. It completes when all before it have.
    fn refuse(&mut self, ends: &Ends<'_>, status: WcStatus, why: u32, notes: &mut Notes) -> Step {
        if self.window.cursor().at == self.window.base() {
            self.fail(ends, status, why, notes);
            Step::Held
        } else if self.ask_again() {
            Step::Sent
        } else {
            Step::Held
        }
    }

    /// Sends packets of a SEND or WRITE.
    fn send_packets(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        wr: &SendWr<'_>,
        flight: &Flight,
        source: &Source<'_, '_>,
    ) -> Step {
        let at = self.window.cursor().at;
        loop {
            if self.window.requests() >= self.limit {
                return Step::Held;
            }
            if !outlet.is_ready() {
                return Step::Full;
            }
            let packet = self.window.cursor().packet;
            let is_last = packet + 1 == flight.packets;
            let place = match (packet, is_last) {
                (0, true) => Place::Only,
                (0, false) => Place::First,
                (_, false) => Place::Middle,
                (_, true) => Place::Last,
            };
            let (psn, again) = self.window.psn(flight);
            let mut flags = BthFlags::empty();
            flags.set(BthFlags::ACK_REQ, self.asks(ends, at, is_last));
            if is_last && wr.flags.contains(SendFlags::SOLICITED) && tells(&wr.op) {
                flags |= BthFlags::SOLICITED;
            }
            let (operation, ext) = request(wr, place, flight.len);
            let offset = packet << ends.path.mtu.shift();
            let len = (flight.len - offset).min(ends.path.mtu.bytes());
            let head = head(ends.path, operation, psn, flags, ext);
            outlet.put(&head, len as usize, again, &mut |out| {
                source.read(offset, out);
            });
            self.window.passed_packet(flight);
            self.retry.sent(ends.now, ends.path);
            if is_last {
                return Step::Sent;
            }
        }
    }

    /// Whether the packet at the cursor, of the work request at `at`, asks for an acknowledgement.
    fn asks(&mut self, ends: &Ends<'_>, at: u32, is_last: bool) -> bool {
        let next = at.wrapping_add(1);
        let follows = !is_last
            || !self.sends_nothing(ends, next)
                && (next != self.window.begun() || self.may_begin(ends, next));
        let asks = self.ask
            || !follows
            || self.unasked + 1 >= ASK_EVERY
            || self.window.requests() + 1 >= self.limit;
        self.ask = false;
        self.unasked = if asks { 0 } else { self.unasked + 1 };
        asks
    }

    /// Whether the work request at that position is there and sends nothing, so that it asks nobody.
    fn sends_nothing(&self, ends: &Ends<'_>, at: u32) -> bool {
        ends.sends.is_filled(at) && ends.sends.is_local(at)
    }

    /// A work request that sends nothing: it is carried out when its turn has come, an invalidate when all
    /// before it have ended; and it completes behind those.
    fn step_local(&mut self, ends: &Ends<'_>, wr: &SendWr<'_>, notes: &mut Notes) -> Step {
        let at = self.window.cursor().at;
        if at != self.window.begun() {
            self.window.passed_local();
            return Step::Sent;
        }
        let waits = at != self.window.base();
        let fenced = wr.flags.contains(SendFlags::FENCE) && self.window.reads() != 0;
        if waits && (fenced || matches!(wr.op, SendOp::LocalInv(_))) {
            return Step::Held;
        }
        let (local, settle) = execute(&wr.op, ends.mrs, ends.who(), ends.core);
        notes.settle[0] = notes.settle[0].or(settle);
        match local {
            Local::Fault(status, reason) => self.refuse(ends, status, reason, notes),
            // Somebody else is looking, who has posted an early invalidate for instance.
            Local::Later(index) => {
                notes.later = Some(index);
                Step::Held
            }
            Local::Done(_) => {
                let flight = self.window.begin(Flight::of(wr, ends.path));
                debug_assert_eq!(flight.packets, 0, "it sends nothing");
                self.window.passed_local();
                if !waits && !self.complete(ends, notes) {
                    return Step::Held;
                }
                // What was let go has to be settled before another is.
                if settle.is_some() {
                    notes.again = true;
                    return Step::Held;
                }
                Step::Sent
            }
        }
    }

    /// Sends the one packet of a READ or an atomic. A READ that has come in part is asked for the rest.
    fn send_request(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        wr: &SendWr<'_>,
        flight: &Flight,
        source: &Source<'_, '_>,
    ) -> Step {
        let offset = self.window.cursor().packet << ends.path.mtu.shift();
        let (operation, mut ext) = request(wr, Place::Only, flight.len);
        if let (Kind::Read, Some(reth)) = (flight.kind, &mut ext.reth) {
            reth.addr = reth.addr.wrapping_add(u64::from(offset));
            reth.dma_len -= offset;
        }
        let (psn, again) = self.window.psn(flight);
        let head = head(ends.path, operation, psn, BthFlags::ACK_REQ, ext);
        let len = match operation {
            Operation::AtomicWrite => 8,
            _ => 0,
        };
        outlet.put(&head, len, again, &mut |out| source.read(0, out));
        self.window.passed_request(flight);
        // The answer confirms everything before.
        self.unasked = 0;
        self.retry.sent(ends.now, ends.path);
        Step::Sent
    }

    /// Completes the oldest work request in error. The queue pair goes to ERR.
    pub(super) fn fail(
        &mut self,
        ends: &Ends<'_>,
        status: WcStatus,
        vendor_err: u32,
        notes: &mut Notes,
    ) {
        match status {
            WcStatus::RemInvReqErr
            | WcStatus::RemAccessErr
            | WcStatus::RemOpErr
            | WcStatus::RemInvRdReqErr => ends.counters.remote_errors.up(),
            _ => ends.counters.local_errors.up(),
        }
        self.failed = true;
        let at = self.window.base();
        if completion::send_failure(ends, at, status, vendor_err, notes) {
            notes.failed = Some(at);
            notes.fail = true;
        }
    }
}

impl Flight {
    pub(in crate::transport) fn of(wr: &SendWr<'_>, path: &Path) -> Self {
        let (kind, opcode) = match wr.op {
            SendOp::Write(_) | SendOp::WriteWithImm(..) => (Kind::Plain, WcOpcode::RdmaWrite),
            SendOp::Read(_) => (Kind::Read, WcOpcode::RdmaRead),
            SendOp::CompareSwap { .. } => (Kind::Atomic, WcOpcode::CompSwap),
            SendOp::FetchAdd { .. } => (Kind::Atomic, WcOpcode::FetchAdd),
            SendOp::MaskedCompareSwap { .. } => (Kind::Atomic, WcOpcode::MaskedCompSwap),
            SendOp::MaskedFetchAdd { .. } => (Kind::Atomic, WcOpcode::MaskedFetchAdd),
            SendOp::AtomicWrite(_) => (Kind::Done, WcOpcode::AtomicWrite),
            SendOp::Flush(_) => (Kind::Done, WcOpcode::Flush),
            SendOp::LocalInv(_) => (Kind::Local, WcOpcode::LocalInv),
            SendOp::RegMr(_) => (Kind::Local, WcOpcode::RegMr),
            SendOp::BindMw(_) => (Kind::Local, WcOpcode::BindMw),
            _ => (Kind::Plain, WcOpcode::Send),
        };
        // Posting has checked that a message is not longer than 2^31 bytes.
        let len = u32::try_from(wr.payload.len()).unwrap_or(1 << 31);
        let packets = match kind {
            Kind::Atomic | Kind::Done => 1,
            Kind::Local => 0,
            Kind::Plain | Kind::Read => path.mtu.packets(len),
        };
        Self {
            wr_id: wr.wr_id,
            packets,
            len,
            kind,
            opcode,
            signaled: wr.flags.contains(SendFlags::SIGNALED),
            ..Self::default()
        }
    }
}

/// Whether the receiver has a completion for it, so that a solicited event makes sense.
pub(in crate::transport) fn tells(op: &SendOp) -> bool {
    !matches!(op, SendOp::Write(_))
}

/// The opcode of a packet of such a message, and its extended headers.
pub(in crate::transport) fn request(
    wr: &SendWr<'_>,
    place: Place,
    len: u32,
) -> (Operation, Extended) {
    let mut ext = Extended::default();
    if let Dest::Srq(srqn) = wr.dest {
        ext.xrceth = Some(XrcEth { srqn });
    }
    let operation = match wr.op {
        SendOp::SendWithImm(imm) if place.is_last() => {
            ext.immdt = Some(ImmDt { imm });
            match place {
                Place::Only => Operation::SendOnlyImm,
                _ => Operation::SendLastImm,
            }
        }
        SendOp::SendWithInv(rkey) if place.is_last() => {
            ext.ieth = Some(Ieth { rkey });
            match place {
                Place::Only => Operation::SendOnlyInv,
                _ => Operation::SendLastInv,
            }
        }
        SendOp::Write(remote) => {
            ext.reth = place.is_first().then(|| reth(remote, len));
            write(place)
        }
        SendOp::WriteWithImm(remote, imm) => {
            ext.reth = place.is_first().then(|| reth(remote, len));
            ext.immdt = place.is_last().then_some(ImmDt { imm });
            match place {
                Place::Only => Operation::WriteOnlyImm,
                Place::Last => Operation::WriteLastImm,
                Place::First | Place::Middle => write(place),
            }
        }
        SendOp::Read(remote) => {
            ext.reth = Some(reth(remote, len));
            Operation::ReadRequest
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            ext.atomic = Some(atomic(remote, swap, compare));
            Operation::CompareSwap
        }
        SendOp::FetchAdd { remote, add } => {
            ext.atomic = Some(atomic(remote, add, 0));
            Operation::FetchAdd
        }
        SendOp::MaskedCompareSwap { .. }
        | SendOp::MaskedFetchAdd { .. }
        | SendOp::AtomicWrite(_)
        | SendOp::Flush(_) => newer(&wr.op, len, &mut ext),
        _ => match place {
            Place::First => Operation::SendFirst,
            Place::Middle => Operation::SendMiddle,
            Place::Last => Operation::SendLast,
            Place::Only => Operation::SendOnly,
        },
    };
    (operation, ext)
}

/// The operations that are answered once and have no pieces, beside the first two atomics.
fn newer(op: &SendOp, len: u32, ext: &mut Extended) -> Operation {
    match *op {
        SendOp::MaskedCompareSwap {
            remote,
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => {
            ext.atomic = Some(atomic(remote, swap, compare));
            ext.masks = Some(MaskEth {
                swap_or_boundary: swap_mask,
                compare: compare_mask,
            });
            Operation::MaskedCompareSwap
        }
        SendOp::MaskedFetchAdd {
            remote,
            add,
            boundary,
        } => {
            ext.atomic = Some(atomic(remote, add, 0));
            ext.masks = Some(MaskEth {
                swap_or_boundary: boundary,
                compare: 0,
            });
            Operation::MaskedFetchAdd
        }
        SendOp::AtomicWrite(remote) => {
            ext.reth = Some(reth(remote, len));
            Operation::AtomicWrite
        }
        SendOp::Flush(what) => {
            ext.feth = Some(Feth {
                placement: what.placement,
                selectivity: if what.len.is_some() {
                    Feth::RANGE
                } else {
                    Feth::REGION
                },
            });
            ext.reth = Some(reth(what.remote, what.len.unwrap_or(0)));
            Operation::Flush
        }
        _ => Operation::SendOnly,
    }
}

fn write(place: Place) -> Operation {
    match place {
        Place::First => Operation::WriteFirst,
        Place::Middle => Operation::WriteMiddle,
        Place::Last => Operation::WriteLast,
        Place::Only => Operation::WriteOnly,
    }
}

fn reth(remote: Remote, dma_len: u32) -> Reth {
    Reth {
        addr: remote.addr,
        rkey: remote.rkey,
        dma_len,
    }
}

fn atomic(remote: Remote, swap_or_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        addr: remote.addr,
        rkey: remote.rkey,
        swap_or_add,
        compare,
    }
}
