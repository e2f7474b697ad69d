//! The responder's memory: WRITEs, READs and atomics.

use verbs_core::mem::{Span, Unmapped, Window};
use verbs_core::sync::atomic::{Ordering::SeqCst, fence};
use verbs_core::{Access, Placement, Psn, WcCause, WcOpcode, WcStatus};

use super::receives::{Room, receive_cqe, take_shared};
use super::resources::What;
use super::responder::{Doing, Executed, INVALID, Refusal, Responder};
use crate::queue::base::limits::MAX_MESSAGE;
use crate::transport::completion;
use crate::transport::pieces::{Body, Refused, refused};
use crate::transport::{Ends, Events};
use crate::wire::{AtomicEth, Feth, Head, NakCode, Operation, Reth};

impl Responder {
    pub(super) fn write(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        reth: Option<Reth>,
        payload: impl Body,
        events: &mut Events,
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
        // A region may be deregistered between packets.
        let window = check(ends, whole, placed, n, Access::REMOTE_WRITE)?;
        if let Some(immdt) = head.ext().immdt {
            let room = if ends.srq.is_some() {
                let taken = self.taken.take();
                self.taken = taken.or_else(|| take_shared(ends, events));
                self.taken.as_ref().map(Room::shared)
            } else {
                ends.recvs.next().map(Room::own)
            };
            let room = room.ok_or(Refusal::NotReady)?;
            payload.write_to(window).map_err(lost)?;
            let opcode = WcOpcode::RecvRdmaWithImm;
            let wr_id = room.wr_id;
            let cqe = receive_cqe(ends, head, wr_id, opcode, Some(immdt.imm), whole.dma_len);
            if !completion::receive(ends, &cqe, || room.consume(), events) {
                return Err(Refusal::Stopped);
            }
            self.taken = None;
        } else {
            payload.write_to(window).map_err(lost)?;
        }
        self.doing = if place.is_last() {
            Doing::Nothing
        } else {
            let placed = placed + n;
            Doing::Write { whole, placed }
        };
        Ok(())
    }

    pub(super) fn read(&mut self, ends: &Ends<'_>, psn: Psn, reth: Reth) -> Executed {
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

    pub(super) fn atomic(&mut self, ends: &Ends<'_>, head: &Head, eth: AtomicEth) -> Executed {
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
        let span = check(ends, word, 0, 8, Access::REMOTE_ATOMIC)?;
        // The address is aligned, but the region may map it to memory that is not, or to two pieces.
        let word = span.window().and_then(Window::word).ok_or(INVALID)?;
        let original = match (head.opcode().operation(), head.ext().masks) {
            (Operation::CompareSwap, _) => word.compare_swap(eth.compare, eth.swap_or_add),
            (Operation::MaskedCompareSwap, Some(masks)) => {
                let swap = (eth.swap_or_add, masks.swap_or_boundary);
                word.masked_compare_swap((eth.compare, masks.compare), swap)
            }
            (Operation::MaskedFetchAdd, Some(masks)) => {
                word.masked_fetch_add(eth.swap_or_add, masks.swap_or_boundary)
            }
            _ => word.fetch_add(eth.swap_or_add),
        };
        let original = original.map_err(lost)?;
        self.remember(ends, head.bth().psn, 1, What::Atomic(original))
    }

    /// ATOMIC WRITE.
    pub(super) fn atomic_write(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        reth: Reth,
        payload: impl Body,
    ) -> Executed {
        let path = ends.path;
        let bytes = payload.bytes().ok_or(INVALID)?;
        let bytes = <[u8; 8]>::try_from(bytes).map_err(|_| INVALID)?;
        if !path.access.contains(Access::REMOTE_WRITE)
            || !self.resources.has_room(path.max_dest_rd_atomic)
            || reth.dma_len != 8
            || !reth.addr.is_multiple_of(8)
        {
            return Err(INVALID);
        }
        let span = check(ends, reth, 0, 8, Access::REMOTE_WRITE)?;
        let word = span.window().and_then(Window::word).ok_or(INVALID)?;
        word.store(bytes).map_err(lost)?;
        self.remember(ends, head.bth().psn, 1, What::Done)
    }

    /// FLUSH: what was written before is in memory, where every other access sees it. Nothing here outlives a power
    /// failure, so persistence is never granted.
    pub(super) fn flush(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        feth: Feth,
        reth: Reth,
    ) -> Executed {
        let path = ends.path;
        let (need, all) = (feth.placement.right(), Placement::all());
        if feth.placement.is_empty()
            || !all.contains(feth.placement)
            || !path.access.contains(need)
            || !self.resources.has_room(path.max_dest_rd_atomic)
        {
            return Err(INVALID);
        }
        match feth.selectivity {
            Feth::RANGE => check(ends, reth, 0, reth.dma_len, need).map(drop)?,
            Feth::REGION => {
                let granted = ends
                    .mrs
                    .grants(ends.pin, reth.rkey.value(), ends.who(), need);
                granted.map_err(|fault| {
                    let reason = WcCause::from(fault).code();
                    Refusal::Fault(NakCode::RemoteAccess, WcStatus::RemAccessErr, reason)
                })?;
            }
            _ => return Err(INVALID),
        }
        fence(SeqCst);
        self.remember(ends, head.bth().psn, 1, What::Done)
    }

    /// Remembers an operation that must not be done twice, to be answered.
    fn remember(&mut self, ends: &Ends<'_>, psn: Psn, packets: u32, what: What) -> Executed {
        if !self.resources.has_room(ends.path.max_dest_rd_atomic) {
            return Err(INVALID);
        }
        self.resources.push(ends.pd, psn, packets, what);
        self.newest_read = Some(psn);
        // Its answer acknowledges everything before it.
        self.answer = None;
        Ok(())
    }
}

/// Memory that the peer names, in the queue pair's protection domain.
pub(super) fn check<'p>(
    ends: &Ends<'p>,
    whole: Reth,
    offset: u32,
    len: u32,
    need: Access,
) -> Result<Span<'p>, Refusal> {
    check_in(ends, ends.pd, whole, offset, len, need)
}

/// Memory that the peer names, in that protection domain.
pub(super) fn check_in<'p>(
    ends: &Ends<'p>,
    pd: u32,
    whole: Reth,
    offset: u32,
    len: u32,
    need: Access,
) -> Result<Span<'p>, Refusal> {
    let addr = whole.addr.wrapping_add(u64::from(offset));
    let who = ends.who_in(pd);
    ends.mrs
        .find(ends.pin, whole.rkey.value(), addr, len, who, need)
        .ok_or_else(|| access_fault(ends))
}

/// The program has unmapped or protected the memory.
#[cold]
fn lost(_: Unmapped) -> Refusal {
    let why = WcCause::Unmapped.code();
    Refusal::Fault(NakCode::RemoteAccess, WcStatus::RemAccessErr, why)
}

/// The refusal of the last check, as a fault of the peer.
pub(super) fn access_fault(ends: &Ends<'_>) -> Refusal {
    let Refused(why) = refused(ends);
    Refusal::Fault(NakCode::RemoteAccess, WcStatus::RemAccessErr, why)
}
