//! The machine of a queue pair for datagrams (IBTA vol. 1, 9.8.3).
//!
//! Each work request is one packet, and names its destination. A datagram is taken if its Q_Key is the queue pair's own
//! and a receive with room for it waits; if not, it is dropped, and this is not reported. 40 bytes come before the
//! payload: the global route header, or its substitute.

use std::net::IpAddr;

use verbs_core::mad::sm::PERMISSIVE_LID;
use verbs_core::mem::Unmapped;
use verbs_core::{
    Access, Datagram, Dest, Lid, PKey, Psn, Qpn, SendFlags, SendOp, WcCause, WcFlags, WcOpcode,
    WcStatus,
};

use crate::link::Local;
use crate::queue::cq::{Cqe, Origin};
use crate::queue::send::Scratch;
use crate::transport::completion;
use crate::transport::pieces::{Pieces, Refused, Source, scatter};
use crate::transport::rc::Flight;
use crate::transport::{Ends, Events, Fill, Incoming};
use crate::wire::{
    Bth, BthFlags, Deth, Envelope, Grh, Head, ImmDt, Message, Opcode, Operation, ROCE_PORT, Service,
};

/// The hop limit that a receiver is shown: links do not report what was left of it.
const HOP_LIMIT: u8 = 64;

/// Takes the datagrams that the machine sends.
pub(crate) trait Post {
    /// The partition with that index.
    fn partition(&self, index: u16) -> Option<PKey>;

    /// Sends a packet with `len` bytes of payload, which `fill` writes, to there. `false`: there is no room now. A
    /// packet without a route is lost.
    ///
    /// # Errors
    /// What `fill` fails with; there is no packet then.
    fn post(
        &mut self,
        to: &Datagram,
        head: &Head,
        len: usize,
        fill: Fill<'_>,
    ) -> Result<bool, Unmapped>;
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ud {
    /// The number of the next packet; `None` before the first, which takes it from the path.
    next: Option<Psn>,
    /// A work request ended in error: nothing is sent until the queue pair is resumed.
    failed: bool,
}

/// The receive that a datagram is written to.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one datagram; a box would allocate"
)]
enum Room<'r> {
    Own(crate::queue::recv::Waiting<'r>),
    Shared(crate::queue::srq::Seen),
}

impl Ud {
    /// The queue pair is in RTS again after SQE.
    pub(crate) fn resume(&mut self) {
        self.failed = false;
    }

    /// Puts out what there is to send. Returns whether there is more to send when the link has room.
    pub(crate) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        post: &mut dyn Post,
        events: &mut Events,
    ) -> bool {
        let mut scratch = Scratch::default();
        while let Some(at) = ends.sends.next() {
            if self.failed || !ends.may_begin {
                return false;
            }
            let wr = ends.sends.read(at, &mut scratch);
            let Dest::Datagram(to) = wr.dest else {
                self.fail(ends, at, WcStatus::LocQpOpErr, 0, events);
                return false;
            };
            let flight = Flight::of(&wr, ends.path);
            if flight.len > ends.path.mtu.bytes() {
                self.fail(
                    ends,
                    at,
                    WcStatus::LocLenErr,
                    WcCause::TooLong.code(),
                    events,
                );
                return false;
            }
            let mut pieces = Pieces::new();
            let source = match Source::check(ends, &wr, Access::empty(), &mut pieces) {
                Ok(source) => source,
                Err(Refused(why)) => {
                    self.fail(ends, at, WcStatus::LocProtErr, why, events);
                    return false;
                }
            };
            let psn = self.next.unwrap_or(Psn::new(ends.path.sq_psn));
            let solicited = wr.flags.contains(SendFlags::SOLICITED);
            let named = post
                .partition(to.pkey_index)
                .filter(|_| ends.path.is_special);
            let pkey = named.unwrap_or(ends.path.pkey);
            let head = head(ends, to, &wr.op, (psn, pkey), solicited);
            let fill: Fill<'_> = &mut |out| source.read(0, out);
            match post.post(to, &head, flight.len as usize, fill) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(unmapped) => {
                    let Refused(why) = unmapped.into();
                    self.fail(ends, at, WcStatus::LocProtErr, why, events);
                    return false;
                }
            }
            self.next = Some(psn.add(1));
            ends.sends.set_psn(psn.add(1).value());
            if !completion::send_success(ends, at, &flight, events) {
                return false;
            }
        }
        false
    }

    fn fail(&mut self, ends: &Ends<'_>, at: u32, status: WcStatus, why: u32, events: &mut Events) {
        self.failed = true;
        completion::fail_sends(ends, at, status, why, events);
    }
}

/// Takes a datagram whose partition is right.
pub(crate) fn receive(ends: &Ends<'_>, packet: &Incoming<'_>, events: &mut Events) {
    let head = packet.head;
    let Some(deth) = head.ext().deth else { return };
    let fits = head
        .opcode()
        .check_payload(packet.payload.len(), ends.path.mtu)
        .is_ok();
    if head.opcode().facts().message != Message::Send || !fits {
        ends.counters.malformed.up();
        return;
    }
    // Queue pair 0 does not check it (IBTA vol. 1, 10.2.5).
    if deth.qkey != ends.path.qkey && ends.qpn != Qpn::new(0) {
        ends.counters.bad_qkeys.up();
        return;
    }
    let len = (Grh::LEN + packet.payload.len()) as u32;
    let Some(room) = Room::find(ends, len, events) else {
        ends.counters.dropped.up();
        return;
    };
    let global = packet.local.is_none_or(|local| local.global);
    let area = global.then(|| header(packet)).flatten();
    let filled = room.fill(ends, 0, &area.unwrap_or([0; Grh::LEN]));
    let filled = filled.and_then(|()| room.fill(ends, Grh::LEN as u32, packet.payload));
    let cqe = match filled {
        Ok(()) => {
            let flags = if global {
                WcFlags::GRH
            } else {
                WcFlags::empty()
            };
            let solicited = head.bth().flags.contains(BthFlags::SOLICITED);
            let local = packet.local;
            let origin = Origin {
                qpn: deth.src_qpn,
                lid: local.map_or(Lid(0), |Local { slid, .. }| slid),
                sl: local.map_or(0, |Local { sl, .. }| sl),
                pkey_index: packet.pkey_index,
                path_bits: local.map_or(0, |local| path_bits(local.dlid, ends.path.lmc)),
            };
            let cqe = Cqe::success(room.wr_id(), ends.qpn, WcOpcode::Recv, len)
                .solicited(solicited)
                .datagram(&origin, flags);
            let immdt = head.ext().immdt;
            immdt.map_or(cqe, |immdt| cqe.imm(immdt.imm))
        }
        Err(Refused(why)) => {
            events.fail = true;
            Cqe::failure(room.wr_id(), ends.qpn, WcStatus::LocProtErr, why)
        }
    };
    completion::receive(ends, &cqe, || room.consume(), events);
}

/// The low bits of a LID of a port with 2^`lmc` LIDs; 0 for a group's, which belongs to no port.
fn path_bits(dlid: Lid, lmc: u8) -> u8 {
    match dlid.is_multicast() || dlid == PERMISSIVE_LID {
        true => 0,
        false => dlid.0.to_be_bytes()[1] & ((1 << lmc) - 1),
    }
}

impl<'r> Room<'r> {
    /// The oldest receive, if it has room for that many bytes; one that has not stays in place.
    fn find(ends: &Ends<'r>, len: u32, events: &mut Events) -> Option<Self> {
        let Some(srq) = ends.srq else {
            let waiting = ends.recvs.next();
            let waiting = waiting.filter(|waiting| waiting.total() >= u64::from(len));
            return waiting.map(Self::Own);
        };
        loop {
            let seen = srq.look()?;
            if seen.total < u64::from(len) && srq.is_oldest(&seen) {
                return None;
            }
            // If another thread has taken it first, the next one is looked at.
            if let Some(limit) = srq.take(&seen) {
                events.srq_limit |= limit;
                return Some(Self::Shared(seen));
            }
        }
    }

    fn wr_id(&self) -> u64 {
        match self {
            Self::Own(waiting) => waiting.wr_id(),
            Self::Shared(seen) => seen.wr_id,
        }
    }

    fn fill(&self, ends: &Ends<'_>, offset: u32, payload: &[u8]) -> Result<(), Refused> {
        match self {
            Self::Own(waiting) => {
                let pieces = (0..waiting.pieces()).map(|number| waiting.piece(number));
                scatter(ends, pieces, ends.pd, offset, payload)
            }
            Self::Shared(seen) => {
                let pd = ends.srq.map_or(ends.pd, |srq| srq.pd);
                let pieces = seen.pieces.iter().copied();
                scatter(ends, pieces, pd, offset, payload)
            }
        }
    }

    fn consume(&self) {
        if let Self::Own(waiting) = self {
            waiting.consume();
        }
    }
}

fn head(
    ends: &Ends<'_>,
    to: &Datagram,
    op: &SendOp,
    (psn, pkey): (Psn, PKey),
    solicited: bool,
) -> Head {
    let mut flags = BthFlags::empty();
    flags.set(BthFlags::SOLICITED, solicited);
    Head::build(|ext| {
        ext.deth = Some(Deth {
            // Consumers may not choose a key with the high bit (IBTA vol. 1, 10.2.5).
            qkey: if to.qkey.is_controlled() {
                ends.path.qkey
            } else {
                to.qkey
            },
            src_qpn: ends.qpn,
        });
        let operation = match *op {
            SendOp::SendWithImm(imm) => {
                ext.immdt = Some(ImmDt { imm });
                Operation::SendOnlyImm
            }
            _ => Operation::SendOnly,
        };
        Bth {
            opcode: Opcode::new(Service::Ud, operation).expect("datagrams have both operations"),
            flags,
            pkey,
            dest_qpn: to.qpn,
            psn,
        }
    })
}

/// The bytes in front of the payload: the header that the packet arrived with. For InfiniBand that is the GRH, for
/// RoCEv2 the IP header.
fn header(packet: &Incoming<'_>) -> Option<[u8; Grh::LEN]> {
    let len = packet.head.packet_len(packet.payload.len());
    if packet.local.is_some() {
        let mut out = [0; Grh::LEN];
        let grh = Grh {
            traffic_class: packet.tclass,
            payload_len: u16::try_from(len).ok()?,
            hop_limit: HOP_LIMIT,
            sgid: packet.src.into(),
            dgid: packet.dst.into(),
            ..Grh::default()
        };
        grh.emit(&mut out);
        return Some(out);
    }
    let mut envelope = match (packet.src, packet.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Envelope::v4(src, dst, ROCE_PORT),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Envelope::v6(src, dst, ROCE_PORT),
        _ => return None,
    };
    envelope.traffic_class = packet.tclass;
    envelope.receive_area(len).ok()
}
