//! What the responder sends.

use verbs_core::Access;
use verbs_core::addr::Msn;

use super::head;
use super::rdma::{access_fault, check_in};
use super::resources::{Slot, What};
use super::responder::{ACK, Responder};
use crate::transport::{Ends, Notes, Outlet};
use crate::wire::{Aeth, AtomicAckEth, BthFlags, Extended, Operation, Reth};

impl Responder {
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
                    send_result(ends, outlet, slot, aeth(ACK, msn), Some(original));
                }
                What::Done => send_result(ends, outlet, slot, aeth(ACK, msn), None),
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
        if syndrome == ACK && !outlet.acknowledges() {
            return false;
        }
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

/// Sends what came of an operation that is not done twice: a value, or only that it was done.
fn send_result(
    ends: &Ends<'_>,
    outlet: &mut dyn Outlet,
    slot: &mut Slot,
    aeth: Option<Aeth>,
    original: Option<u64>,
) {
    let operation = match original {
        Some(_) => Operation::AtomicAcknowledge,
        None => Operation::ReadResponseOnly,
    };
    let ext = Extended {
        aeth,
        atomic_ack: original.map(|original| AtomicAckEth { original }),
        ..Extended::default()
    };
    let head = head(ends.path, operation, slot.from, BthFlags::empty(), ext);
    outlet.put(&head, 0, slot.again, &mut |_| {});
    slot.done();
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
    let Ok(window) = check_in(ends, slot.pd, part, offset, len, Access::REMOTE_READ) else {
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
