//! The responder's answers.

use verbs_core::addr::Msn;
use verbs_core::{Access, EventType, WcCause};

use super::head::head;
use super::rdma::check_in;
use super::resources::{Slot, What};
use super::responder::{ACK, Responder};
use crate::transport::pieces::Source;
use crate::transport::{Ends, Events, Outlet, Path, long_packets, longest};
use crate::wire::{Aeth, AtomicAckEth, BthFlags, NakCode, Operation, Reth, Syndrome};

impl Responder {
    /// Sends the answers that are due. Returns whether there is more to send when the outlet has room.
    pub(super) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        events: &mut Events,
    ) -> bool {
        let msn = self.msn;
        while let Some(slot) = self.resources.first_due() {
            if !outlet.is_ready() {
                return true;
            }
            match slot.answer {
                What::Atomic(original) => {
                    send_result(ends.path, outlet, slot, aeth(ACK, msn), Some(original));
                }
                What::Done => send_result(ends.path, outlet, slot, aeth(ACK, msn), None),
                What::Read(part) => {
                    match send_response(ends, outlet, slot, part, aeth(ACK, msn)) {
                        Response::Sent => continue,
                        Response::Full => return true,
                        Response::Gone => {}
                    }
                    let (psn, first_time) = (slot.from.add(slot.sent), !slot.answered);
                    slot.end();
                    if first_time {
                        self.resources.drop_due();
                        // It was there when the request came.
                        events.why_refused = WcCause::KeyGone as u8;
                        self.refuse(psn, NakCode::RemoteAccess, events);
                        events.event = Some(EventType::QpAccessErr);
                    }
                }
            }
        }
        if matches!(self.answer, Some((_, ACK))) && self.replies.waits(outlet.acks()) {
            return false;
        }
        self.acknowledge(ends.path, outlet)
    }

    /// The queue pair stops sending. Sends the answers that say what was executed, because the client may have seen it.
    /// Memory is no longer read: the response to a READ does not come, so what follows the READ is not acknowledged
    /// either. Returns whether there is more to send when the outlet has room.
    pub(super) fn transmit_last(&mut self, path: &Path, outlet: &mut dyn Outlet) -> bool {
        while let Some(slot) = self.resources.first_due() {
            let original = match slot.answer {
                What::Atomic(original) => Some(original),
                What::Done => None,
                What::Read(_) => {
                    self.answer = Some((slot.before(), ACK));
                    self.resources.drop_due();
                    break;
                }
            };
            if !outlet.is_ready() {
                return true;
            }
            send_result(path, outlet, slot, aeth(ACK, self.msn), original);
        }
        self.acknowledge(path, outlet)
    }

    /// Sends the acknowledgement, if one is due. Returns whether it waits for the outlet.
    #[inline]
    fn acknowledge(&mut self, path: &Path, outlet: &mut dyn Outlet) -> bool {
        let Some((psn, syndrome)) = self.answer else {
            return false;
        };
        if !outlet.is_ready_to_answer() {
            return true;
        }
        self.answer = None;
        let head = head(path, psn, BthFlags::empty(), |ext| {
            ext.aeth = aeth(syndrome, self.msn);
            Operation::Acknowledge
        });
        // It has no payload to fail with; so below.
        let _ = outlet.put(&head, 0, false, &mut |_| Ok(()));
        false
    }
}

fn aeth(syndrome: Syndrome, msn: u32) -> Option<Aeth> {
    Some(Aeth {
        syndrome,
        msn: Msn::new(msn),
    })
}

/// Sends the result of an operation that is not done twice: a value, or only that it was done.
fn send_result(
    path: &Path,
    outlet: &mut dyn Outlet,
    slot: &mut Slot,
    aeth: Option<Aeth>,
    original: Option<u64>,
) {
    let head = head(path, slot.from, BthFlags::empty(), |ext| {
        ext.aeth = aeth;
        ext.atomic_ack = original.map(|original| AtomicAckEth { original });
        match original {
            Some(_) => Operation::AtomicAcknowledge,
            None => Operation::ReadResponseOnly,
        }
    });
    let _ = outlet.put(&head, 0, slot.again, &mut |_| Ok(()));
    slot.done();
}

/// What became of the next packet of a READ's response.
enum Response {
    Sent,
    /// There is no room for it.
    Full,
    /// The memory may no longer be read.
    Gone,
}

/// Sends the next packet of a READ's response.
fn send_response(
    ends: &Ends<'_>,
    outlet: &mut dyn Outlet,
    slot: &mut Slot,
    part: Reth,
    aeth: Option<Aeth>,
) -> Response {
    let mtu = ends.path.mtu;
    let left = part.dma_len - (slot.sent << mtu.shift());
    let longest = (!slot.again).then(|| longest(ends, left, outlet)).flatten();
    let packets = mtu.packets(part.dma_len) - slot.sent;
    let long = longest.and_then(|longest| long_packets(longest, mtu, left, packets));
    let offset = slot.sent << mtu.shift();
    let packets = long.unwrap_or(1);
    let len = (part.dma_len - offset).min(packets << mtu.shift());
    let Ok(window) = check_in(ends, slot.pd, part, offset, len, Access::REMOTE_READ) else {
        return Response::Gone;
    };
    let is_last = slot.sent + packets == mtu.packets(part.dma_len);
    let operation = match (slot.sent + u32::from(slot.goes_on), is_last) {
        (0, true) => Operation::ReadResponseOnly,
        (0, false) => Operation::ReadResponseFirst,
        (_, false) => Operation::ReadResponseMiddle,
        (_, true) => Operation::ReadResponseLast,
    };
    let psn = slot.from.add(slot.sent);
    let head = head(ends.path, psn, BthFlags::empty(), |ext| {
        ext.aeth = aeth.filter(|_| !matches!(operation, Operation::ReadResponseMiddle));
        operation
    });
    let source = Source::One(window);
    let put = source.put(
        outlet,
        (&head, slot.again),
        (0, len as usize),
        long.is_some(),
    );
    match put {
        Ok(true) => {}
        Ok(false) => return Response::Full,
        Err(_) => return Response::Gone,
    }
    slot.sent += packets;
    if is_last {
        slot.done();
    }
    Response::Sent
}
