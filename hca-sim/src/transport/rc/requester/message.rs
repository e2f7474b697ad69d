//! Work requests as messages: the packets that they become, with their headers.

use verbs_core::{Dest, Psn, Remote, SendFlags, SendOp, SendWr, WcOpcode};

use super::window::{Flight, Kind};
use crate::transport::Path;
use crate::transport::rc::head::{bth, head};
use crate::wire::{
    AtomicEth, BthFlags, Extended, Feth, Head, Ieth, ImmDt, MaskEth, Operation, Place, Reth, XrcEth,
};

impl Flight {
    pub(in crate::transport) fn of(wr: &SendWr<'_>, path: &Path) -> Self {
        let (kind, opcode) = match wr.op {
            SendOp::Write(_) | SendOp::WriteWithImm(..) => (Kind::Plain, WcOpcode::RdmaWrite),
            SendOp::Read(_) | SendOp::ReadWithInv(_) => (Kind::Read, WcOpcode::RdmaRead),
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

/// What a packet says, the last of that work request or not, and with a request for an acknowledgement or without.
#[inline(always)]
pub(super) fn flags(wr: &SendWr<'_>, is_last: bool, asks: bool) -> BthFlags {
    let mut flags = BthFlags::empty();
    flags.set(BthFlags::ACK_REQ, asks);
    if is_last && wr.flags.contains(SendFlags::SOLICITED) && tells(&wr.op) {
        flags |= BthFlags::SOLICITED;
    }
    flags
}

/// The headers of a packet of a SEND or WRITE to the peer.
#[inline(always)]
pub(in crate::transport) fn head_of(
    wr: &SendWr<'_>,
    (place, len): (Place, u32),
    path: &Path,
    psn: Psn,
    flags: BthFlags,
) -> Head {
    if let (SendOp::Send, Dest::Peer) = (wr.op, wr.dest) {
        return Head::bare(bth(path, send(place), psn, flags));
    }
    head(path, psn, flags, |ext| request(wr, place, len, ext))
}

/// The operation of a packet of such a message; its extended headers are set.
pub(in crate::transport) fn request(
    wr: &SendWr<'_>,
    place: Place,
    len: u32,
    ext: &mut Extended,
) -> Operation {
    if let Dest::Srq(srqn) = wr.dest {
        ext.xrceth = Some(XrcEth { srqn });
    }
    match wr.op {
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
        | SendOp::Flush(_) => newer(&wr.op, len, ext),
        _ => send(place),
    }
}

/// The operations that are answered once and have no pieces, apart from the first two atomics.
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

fn send(place: Place) -> Operation {
    match place {
        Place::First => Operation::SendFirst,
        Place::Middle => Operation::SendMiddle,
        Place::Last => Operation::SendLast,
        Place::Only => Operation::SendOnly,
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
