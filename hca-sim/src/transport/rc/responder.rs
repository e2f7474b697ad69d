//! The responder: executes the peer's requests in the order of their numbers, each once.
//!
//! Checks come in the order of the loopback's ([`crate::message`]), so that both ways end in the same
//! status. A fault is answered with a NAK and takes the queue pair to ERR; the receive that it concerns
//! completes in error, and if there is none, an event tells (IBTA vol. 1, 9.9.3).
//!
//! A receive of the queue pair's own stays on its queue until its message has ended. One of a shared
//! queue is taken when the message begins, as others take from it meanwhile.

use verbs_core::addr::Msn;
use verbs_core::mem::Window;
use verbs_core::{Access, Error, EventType, LKey, Psn, RKey, Sge, WcOpcode, WcStatus};

use super::completion;
use super::head;
use super::pieces::{Refused, refused, scatter};
use super::resources::{Resources, Slot, What};
use crate::cq::Cqe;
use crate::recv::Waiting;
use crate::send::MAX_MESSAGE;
use crate::srq::Seen;
use crate::transport::{Ends, Notes, Outlet};
use crate::wire::{
    Aeth, AtomicAckEth, AtomicEth, BthFlags, CreditCode, Extended, Head, Message, NakCode,
    Operation, Reth, RnrTimer, Syndrome,
};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Responder {
    /// The first number has been taken from the path.
    started: bool,
    expected: Psn,
    /// Messages executed.
    msn: u32,
    /// A NAK was sent; nothing more is until the expected number comes.
    silent: bool,
    doing: Doing,
    /// The receive from a shared queue that the SEND under way goes to.
    taken: Option<Seen>,
    /// The acknowledgement to send, when the answers in `resources` are.
    answer: Option<(Psn, Syndrome)>,
    resources: Resources,
    /// The number of the newest READ or atomic.
    newest_read: Option<Psn>,
}

/// The message of several packets that is under way.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    Send { placed: u32 },
    Write { whole: Reth, placed: u32 },
}

/// Why a packet is not executed.
enum Refusal {
    /// There is no receive.
    NotReady,
    /// Never: the NAK, the status of the receive under way if there is one, and the reason.
    Fault(NakCode, WcStatus, u32),
    /// It was, but the queue pair goes to ERR with it.
    Stopped,
}

type Executed = Result<(), Refusal>;

/// A message that breaks the rules, or asks for what the queue pair does not grant.
const INVALID: Refusal = Refusal::Fault(NakCode::InvalidRequest, WcStatus::RemInvReqErr, 0);

const ACK: Syndrome = Syndrome::Ack(CreditCode::UNKNOWN);

/// The receive that a message goes to.
enum Room<'r> {
    Own(Waiting<'r>),
    Shared(Seen),
}

impl Responder {
    /// With room for the READs and atomics of any peer.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            started: false,
            expected: Psn::new(0),
            msn: 0,
            silent: false,
            doing: Doing::Nothing,
            taken: None,
            answer: None,
            resources: Resources::new()?,
            newest_read: None,
        })
    }

    pub(super) fn reset(&mut self) {
        self.started = false;
        self.msn = 0;
        self.silent = false;
        self.doing = Doing::Nothing;
        self.taken = None;
        self.answer = None;
        self.resources.reset();
        self.newest_read = None;
    }

    pub(super) fn abandon(&mut self) -> Option<u64> {
        self.doing = Doing::Nothing;
        self.taken.take().map(|seen| seen.wr_id)
    }

    pub(super) fn is_answering(&mut self) -> bool {
        self.answer.is_some() || self.resources.first_due().is_some()
    }

    /// Takes a request.
    pub(super) fn receive(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: &[u8],
        notes: &mut Notes,
    ) {
        if !self.started {
            self.started = true;
            self.expected = Psn::new(ends.path.rq_psn);
        }
        let psn = head.bth().psn;
        match psn.since(self.expected) {
            0 => {
                self.silent = false;
                let executed = self.execute(ends, head, payload, notes);
                self.conclude(ends, psn, executed, notes);
            }
            1.. => {
                ends.counters.out_of_sequence.up();
                if !std::mem::replace(&mut self.silent, true) {
                    let nak = Syndrome::Nak(NakCode::PsnSequence);
                    self.answer = Some((self.expected, nak));
                }
            }
            _ => self.repeated(ends, psn, head),
        }
    }

    /// A request that has come before: is answered again, but not executed again.
    fn repeated(&mut self, ends: &Ends<'_>, psn: Psn, head: &Head) {
        ends.counters.duplicates.up();
        let depth = ends.path.max_dest_rd_atomic;
        let ext = head.ext();
        match (head.opcode().facts().message, ext.reth) {
            (Message::Send | Message::Write, _) => self.acknowledge_again(psn),
            (Message::Read, Some(reth)) => {
                self.resources.read_again(depth, psn, reth, ends.path.mtu);
            }
            (Message::Atomic, _) => self.resources.atomic_again(depth, psn),
            _ => {}
        }
    }

    /// Acknowledges the newest packet that may be: beyond a READ or atomic, that would tell the peer that
    /// its answer is not coming.
    fn acknowledge_again(&mut self, psn: Psn) {
        let is_last_kind = self.newest_read.is_none_or(|read| psn.since(read) > 0);
        let newest = if is_last_kind {
            self.expected.add(0x00ff_ffff)
        } else {
            psn
        };
        match self.answer {
            Some((_, Syndrome::Nak(_) | Syndrome::RnrNak(_))) => {}
            Some((pending, _)) if pending.since(newest) >= 0 => {}
            _ => self.answer = Some((newest, ACK)),
        }
    }

    /// Executes a request that is next, or says why not.
    fn execute(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: &[u8],
        notes: &mut Notes,
    ) -> Executed {
        let facts = head.opcode().facts();
        let follows = match self.doing {
            Doing::Nothing => facts.place.is_first(),
            Doing::Send { .. } => facts.message == Message::Send && !facts.place.is_first(),
            Doing::Write { .. } => facts.message == Message::Write && !facts.place.is_first(),
        };
        if !follows
            || head
                .opcode()
                .check_payload(payload.len(), ends.path.mtu)
                .is_err()
        {
            return Err(INVALID);
        }
        let ext = head.ext();
        match (facts.message, ext.reth, ext.atomic) {
            (Message::Send, ..) => self.send(ends, head, payload, notes),
            (Message::Write, reth, _) => self.write(ends, head, reth, payload, notes),
            (Message::Read, Some(reth), _) => self.read(ends, head.bth().psn, reth),
            (Message::Atomic, _, Some(eth)) => self.atomic(ends, head, eth),
            _ => Err(INVALID),
        }?;
        if facts.place.is_last() {
            self.msn = self.msn.wrapping_add(1);
        }
        if !matches!(facts.message, Message::Read) {
            self.advance(ends, 1);
        }
        let asks = head.bth().flags.contains(BthFlags::ACK_REQ);
        if asks && matches!(facts.message, Message::Send | Message::Write) {
            self.answer = Some((head.bth().psn, ACK));
        }
        Ok(())
    }

    fn advance(&mut self, ends: &Ends<'_>, packets: u32) {
        self.expected = self.expected.add(packets);
        ends.recvs.expect(self.expected.value());
    }

    /// Sees to what a packet that was not executed leads to.
    fn conclude(&mut self, ends: &Ends<'_>, psn: Psn, executed: Executed, notes: &mut Notes) {
        match executed {
            Ok(()) => {}
            Err(Refusal::NotReady) => {
                // The packets behind this one are on their way; nothing is to be said about them.
                self.silent = true;
                let timer = RnrTimer::from_u8(ends.path.min_rnr_timer).unwrap_or(RnrTimer::MAX);
                self.answer = Some((psn, Syndrome::RnrNak(timer)));
            }
            Err(Refusal::Fault(code, status, reason)) => {
                self.answer = Some((psn, Syndrome::Nak(code)));
                notes.fail = true;
                if !self.fail_receive(ends, status, reason, notes) {
                    notes.event = Some(match code {
                        NakCode::RemoteAccess => EventType::QpAccessErr,
                        _ => EventType::QpReqErr,
                    });
                }
            }
            Err(Refusal::Stopped) => notes.fail = true,
        }
    }

    /// Completes the receive of the SEND under way in error: whether there is one.
    fn fail_receive(
        &mut self,
        ends: &Ends<'_>,
        status: WcStatus,
        reason: u32,
        notes: &mut Notes,
    ) -> bool {
        let Some(room) = self.room(ends) else {
            return false;
        };
        let cqe = Cqe::failure(room.wr_id(), ends.qpn, status, reason);
        let completed = completion::receive(ends, &cqe, || room.consume(), notes);
        if completed {
            self.taken = None;
            self.doing = Doing::Nothing;
        }
        completed
    }

    /// The receive of the SEND under way.
    fn room<'r>(&self, ends: &Ends<'r>) -> Option<Room<'r>> {
        match (self.doing, &self.taken) {
            (Doing::Send { .. }, Some(seen)) => Some(Room::Shared(seen.clone())),
            (Doing::Send { .. }, None) => ends.recvs.next().map(Room::Own),
            _ => None,
        }
    }

    /// Takes a receive of a shared queue, if there is one.
    fn take_shared(&mut self, ends: &Ends<'_>, notes: &mut Notes) -> Option<Seen> {
        let srq = ends.srq?;
        loop {
            let seen = srq.look()?;
            // Losing it to somebody else means that the next one is looked at.
            if let Some(limit) = srq.take(&seen) {
                notes.srq_limit |= limit;
                return Some(seen);
            }
        }
    }

    fn send(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: &[u8],
        notes: &mut Notes,
    ) -> Executed {
        let place = head.opcode().facts().place;
        if place.is_first() {
            if ends.srq.is_some() {
                self.taken = Some(self.take_shared(ends, notes).ok_or(Refusal::NotReady)?);
            } else if ends.recvs.next().is_none() {
                return Err(Refusal::NotReady);
            }
            // From here on a fault concerns this receive.
            self.doing = Doing::Send { placed: 0 };
        }
        let Doing::Send { placed } = self.doing else {
            return Err(INVALID);
        };
        let placed = self.place(ends, placed, payload)?;
        self.doing = Doing::Send { placed };
        if !place.is_last() {
            return Ok(());
        }
        let ext = head.ext();
        if let Some(ieth) = ext.ieth
            && !invalidate(ends, ieth.rkey)
        {
            return self.invalidated_nothing(ends, head, notes);
        }
        let room = self.room(ends).ok_or(Refusal::Stopped)?;
        let imm = ext.immdt.map(|immdt| immdt.imm);
        let cqe = receive_cqe(ends, head, room.wr_id(), WcOpcode::Recv, imm, placed);
        if !completion::receive(ends, &cqe, || room.consume(), notes) {
            return Err(Refusal::Stopped);
        }
        self.taken = None;
        self.doing = Doing::Nothing;
        Ok(())
    }

    /// Writes a packet of a SEND into its receive; how many bytes of the message are there now.
    fn place(&self, ends: &Ends<'_>, placed: u32, payload: &[u8]) -> Result<u32, Refusal> {
        let own;
        let (total, pd) = match &self.taken {
            Some(seen) => (seen.total, ends.srq.map_or(ends.pd, |srq| srq.pd)),
            None => {
                own = ends.recvs.next().ok_or(Refusal::Stopped)?;
                let total = own.total();
                return fill(ends, placed, payload, total, ends.pd, pieces(own));
            }
        };
        let pieces = self
            .taken
            .iter()
            .flat_map(|seen| seen.pieces.iter().copied());
        fill(ends, placed, payload, total, pd, pieces)
    }

    /// The key that a SEND was to invalidate is none, or not this one's: the sender is told that all is
    /// well, and the queue pair goes to ERR (IBTA vol. 1, 9.9.3, class J).
    fn invalidated_nothing(&mut self, ends: &Ends<'_>, head: &Head, notes: &mut Notes) -> Executed {
        self.msn = self.msn.wrapping_add(1);
        self.advance(ends, 1);
        self.answer = Some((head.bth().psn, ACK));
        self.fail_receive(ends, WcStatus::RemInvReqErr, 0, notes);
        Err(Refusal::Stopped)
    }

    fn write(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        reth: Option<Reth>,
        payload: &[u8],
        notes: &mut Notes,
    ) -> Executed {
        let place = head.opcode().facts().place;
        let (whole, placed) = match (self.doing, reth) {
            (Doing::Write { whole, placed }, _) => (whole, placed),
            (_, Some(reth)) => (reth, 0),
            _ => return Err(INVALID),
        };
        if place.is_first() {
            let granted = ends.path.access.contains(Access::REMOTE_WRITE);
            if !granted || whole.dma_len > MAX_MESSAGE {
                return Err(INVALID);
            }
            check(ends, whole, 0, whole.dma_len, Access::REMOTE_WRITE)?;
        }
        let left = whole.dma_len - placed;
        let n = match u32::try_from(payload.len()) {
            Ok(n) if place.is_last() && n == left || !place.is_last() && n < left => n,
            _ => return Err(INVALID),
        };
        // A region may go away between packets.
        let window = check(ends, whole, placed, n, Access::REMOTE_WRITE)?;
        if let Some(immdt) = head.ext().immdt {
            let room = match ends.srq {
                Some(_) => self.take_shared(ends, notes).map(Room::Shared),
                None => ends.recvs.next().map(Room::Own),
            };
            let room = room.ok_or(Refusal::NotReady)?;
            window.write_from(payload);
            let opcode = WcOpcode::RecvRdmaWithImm;
            let wr_id = room.wr_id();
            let cqe = receive_cqe(ends, head, wr_id, opcode, Some(immdt.imm), whole.dma_len);
            if !completion::receive(ends, &cqe, || room.consume(), notes) {
                return Err(Refusal::Stopped);
            }
        } else {
            window.write_from(payload);
        }
        self.doing = if place.is_last() {
            Doing::Nothing
        } else {
            let placed = placed + n;
            Doing::Write { whole, placed }
        };
        Ok(())
    }

    fn read(&mut self, ends: &Ends<'_>, psn: Psn, reth: Reth) -> Executed {
        let path = ends.path;
        if !path.access.contains(Access::REMOTE_READ)
            || path.max_dest_rd_atomic == 0
            || reth.dma_len > MAX_MESSAGE
        {
            return Err(INVALID);
        }
        check(ends, reth, 0, reth.dma_len, Access::REMOTE_READ)?;
        let packets = path.mtu.packets(reth.dma_len);
        self.remember(ends, psn, packets, What::Read(reth))?;
        self.advance(ends, packets);
        Ok(())
    }

    fn atomic(&mut self, ends: &Ends<'_>, head: &Head, eth: AtomicEth) -> Executed {
        let path = ends.path;
        if !path.access.contains(Access::REMOTE_ATOMIC)
            || !self.resources.has_room(path.max_dest_rd_atomic)
            || !eth.addr.is_multiple_of(8)
        {
            return Err(INVALID);
        }
        let word = Reth {
            addr: eth.addr,
            rkey: eth.rkey,
            dma_len: 8,
        };
        let window = check(ends, word, 0, 8, Access::REMOTE_ATOMIC)?;
        let original = match head.opcode().operation() {
            Operation::CompareSwap => window.compare_swap(eth.compare, eth.swap_or_add),
            _ => window.fetch_add(eth.swap_or_add),
        };
        // The address is aligned, but the region may map it to memory that is not.
        let original = original.ok_or(INVALID)?;
        self.remember(ends, head.bth().psn, 1, What::Atomic(original))
    }

    /// Remembers a READ or an atomic, to be answered.
    fn remember(&mut self, ends: &Ends<'_>, psn: Psn, packets: u32, what: What) -> Executed {
        if !self.resources.has_room(ends.path.max_dest_rd_atomic) {
            return Err(INVALID);
        }
        self.resources.push(psn, packets, what);
        self.newest_read = Some(psn);
        // Its answer acknowledges everything before it.
        self.answer = None;
        Ok(())
    }

    /// Sends what is to be answered; whether more would be, had the outlet room.
    pub(super) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        notes: &mut Notes,
    ) -> bool {
        let aeth = |syndrome, msn| {
            Some(Aeth {
                syndrome,
                msn: Msn::new(msn),
            })
        };
        let msn = self.msn;
        while let Some(slot) = self.resources.first_due() {
            if !outlet.is_ready() {
                return true;
            }
            match slot.answer {
                What::Atomic(original) => {
                    let ext = Extended {
                        aeth: aeth(ACK, msn),
                        atomic_ack: Some(AtomicAckEth { original }),
                        ..Extended::default()
                    };
                    let operation = Operation::AtomicAcknowledge;
                    let head = head(ends.path, operation, slot.from, BthFlags::empty(), ext);
                    outlet.put(&head, 0, slot.again, &mut |_| {});
                    slot.done();
                }
                What::Read(part) => {
                    if send_response(ends, outlet, slot, part, aeth(ACK, msn)) {
                        continue;
                    }
                    let (psn, first_time) = (slot.from.add(slot.sent), !slot.answered);
                    slot.done();
                    if first_time {
                        self.resources.drop_due();
                        let fault = access_fault(ends);
                        self.conclude(ends, psn, Err(fault), notes);
                    }
                }
            }
        }
        let Some((psn, syndrome)) = self.answer else {
            return false;
        };
        if !outlet.is_ready() {
            return true;
        }
        self.answer = None;
        let ext = Extended {
            aeth: aeth(syndrome, self.msn),
            ..Extended::default()
        };
        let head = head(
            ends.path,
            Operation::Acknowledge,
            psn,
            BthFlags::empty(),
            ext,
        );
        outlet.put(&head, 0, false, &mut |_| {});
        false
    }
}

impl Room<'_> {
    fn wr_id(&self) -> u64 {
        match self {
            Self::Own(waiting) => waiting.wr_id(),
            Self::Shared(seen) => seen.wr_id,
        }
    }

    /// Takes it off its queue, if that has not been done.
    fn consume(&self) {
        if let Self::Own(waiting) = self {
            waiting.consume();
        }
    }
}

/// Sends the next packet of a READ's response. `false`: its memory may not be read any more.
fn send_response(
    ends: &Ends<'_>,
    outlet: &mut dyn Outlet,
    slot: &mut Slot,
    part: Reth,
    aeth: Option<Aeth>,
) -> bool {
    let mtu = ends.path.mtu;
    let offset = slot.sent << mtu.shift();
    let len = (part.dma_len - offset).min(mtu.bytes());
    let Ok(window) = check(ends, part, offset, len, Access::REMOTE_READ) else {
        return false;
    };
    let is_last = slot.sent + 1 == mtu.packets(part.dma_len);
    let operation = match (slot.sent, is_last) {
        (0, true) => Operation::ReadResponseOnly,
        (0, false) => Operation::ReadResponseFirst,
        (_, false) => Operation::ReadResponseMiddle,
        (_, true) => Operation::ReadResponseLast,
    };
    let ext = Extended {
        aeth: aeth.filter(|_| !matches!(operation, Operation::ReadResponseMiddle)),
        ..Extended::default()
    };
    let psn = slot.from.add(slot.sent);
    let head = head(ends.path, operation, psn, BthFlags::empty(), ext);
    outlet.put(&head, len as usize, slot.again, &mut |out| {
        window.read_into(out);
    });
    slot.sent += 1;
    if is_last {
        slot.done();
    }
    true
}

/// The pieces of a receive.
fn pieces(waiting: Waiting<'_>) -> impl Iterator<Item = Sge> {
    (0..waiting.pieces()).map(move |number| waiting.piece(number))
}

/// Writes a packet of a SEND into a receive; how many bytes of the message are there now.
fn fill(
    ends: &Ends<'_>,
    placed: u32,
    payload: &[u8],
    total: u64,
    pd: u32,
    pieces: impl Iterator<Item = Sge>,
) -> Result<u32, Refusal> {
    let end = u64::from(placed) + payload.len() as u64;
    if end > total.min(u64::from(MAX_MESSAGE)) {
        let code = NakCode::InvalidRequest;
        return Err(Refusal::Fault(code, WcStatus::LocLenErr, 0));
    }
    scatter(ends, pieces, pd, placed, payload).map_err(|Refused(why)| {
        Refusal::Fault(NakCode::RemoteOperational, WcStatus::LocProtErr, why)
    })?;
    u32::try_from(end).map_err(|_| INVALID)
}

/// Memory that the peer names.
fn check<'p>(
    ends: &Ends<'p>,
    whole: Reth,
    offset: u32,
    len: u32,
    need: Access,
) -> Result<Window<'p>, Refusal> {
    let addr = whole.addr.wrapping_add(u64::from(offset));
    ends.mrs
        .check(ends.pin, whole.rkey.value(), addr, len, ends.pd, need)
        .ok_or_else(|| access_fault(ends))
}

fn access_fault(ends: &Ends<'_>) -> Refusal {
    let Refused(why) = refused(ends);
    Refusal::Fault(NakCode::RemoteAccess, WcStatus::RemAccessErr, why)
}

/// Invalidates a key of this queue pair's protection domain; `false` if it is none.
fn invalidate(ends: &Ends<'_>, rkey: RKey) -> bool {
    let key = LKey::new(rkey.value());
    let is_ours = ends
        .mrs
        .query(key)
        .is_some_and(|region| region.pd == ends.pd);
    is_ours && ends.mrs.invalidate(key, || {}).is_ok()
}

fn receive_cqe(
    ends: &Ends<'_>,
    head: &Head,
    wr_id: u64,
    opcode: WcOpcode,
    imm: Option<u32>,
    len: u32,
) -> Cqe {
    let solicited = head.bth().flags.contains(BthFlags::SOLICITED);
    let cqe = Cqe::success(wr_id, ends.qpn, opcode, len).solicited(solicited);
    imm.map_or(cqe, |imm| cqe.imm(imm))
}
