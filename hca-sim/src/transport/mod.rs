//! The transport's machines: sans-IO. Packets, work requests and the time are inputs; packets and completions are
//! outputs. No locks, clocks, sockets or wakers inside.

mod completion;
pub(crate) mod congestion;
pub(crate) mod iwarp;
mod machine;
mod pieces;
pub(crate) mod rc;
pub(crate) mod timing;
pub(crate) mod told;
pub(crate) mod tx;
mod uc;
mod ud;

use std::net::IpAddr;

use verbs_core::mem::{MrTable, Pin, Unmapped, Who, Window};
use verbs_core::qp::QpCore;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Access, EventType, MigState, Mtu, PKey, QKey, Qpn, WcStatus};

use crate::clock::Instant;
use crate::link::{FillWindow, Local};
use crate::queue::base::counters::Counters;
use crate::queue::cq::CqRing;
use crate::queue::recv::RecvRing;
use crate::queue::send::SendRing;
use crate::queue::srq::SharedReceives;
use crate::wire::{BthFlags, Head, Service};

pub(crate) use told::{Facts, Told, tell};

pub(crate) use machine::Machine;
pub(crate) use tx::TxContext;
pub(crate) use ud::Post;

/// The parts of a queue pair that a connected machine works on; no other thread uses them in the meantime.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// Keeps memory and rings from being taken away.
    pub(crate) pin: &'a Pin,
    pub(crate) now: Instant,
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) path: &'a Path,
    /// The queue pair may begin messages: it is in RTS. In SQD it only finishes those that it has begun.
    pub(crate) may_begin: bool,
    pub(crate) sends: &'a SendRing,
    pub(crate) recvs: &'a RecvRing,
    pub(crate) srq: Option<&'a Arc<SharedReceives>>,
    pub(crate) send_cq: &'a Arc<CqRing>,
    pub(crate) recv_cq: &'a Arc<CqRing>,
    /// Shared, because a key that a SEND invalidates is released when no thread can be using it any longer.
    pub(crate) mrs: &'a Arc<MrTable>,
    pub(crate) counters: &'a Counters,
    /// The queue pair that a memory window of type 2 is bound to.
    pub(crate) core: Option<&'a Weak<QpCore>>,
}

impl Ends<'_> {
    /// The queue pair, for checks of memory.
    pub(crate) fn who(&self) -> Who {
        self.who_in(self.pd)
    }

    /// The queue pair, in the protection domain of its shared receive queue.
    pub(crate) fn who_in(&self, pd: u32) -> Who {
        Who {
            pd,
            qpn: self.qpn.value(),
        }
    }
}

/// The parameters of a queue pair's connection, from its attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) service: Service,
    pub(crate) dest_qpn: Qpn,
    pub(crate) pkey: PKey,
    /// For queue pairs 0 and 1, whose datagrams name their partition themselves.
    pub(crate) is_special: bool,
    /// The port has 2^n LIDs.
    pub(crate) lmc: u8,
    /// For a queue pair for datagrams: the Q_Key that datagrams to it have to carry.
    pub(crate) qkey: QKey,
    pub(crate) mtu: Mtu,
    /// The peer's rights here.
    pub(crate) access: Access,
    /// Local ACK timeout as the IBTA's code; 0 for none.
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// The delay that is requested when no receive is posted, as the IBTA's code.
    pub(crate) min_rnr_timer: u8,
    /// What is fenced waits for earlier READs and atomics.
    pub(crate) fences: bool,
    /// READs and atomics outstanding as requester.
    pub(crate) max_rd_atomic: u8,
    /// READs and atomics remembered as responder.
    pub(crate) max_dest_rd_atomic: u8,
    /// The first numbers, as the transitions to RTR and RTS set them.
    pub(crate) sq_psn: u32,
    pub(crate) rq_psn: u32,
    /// What every packet says: whether this end has migrated.
    pub(crate) flags: BthFlags,
    /// State of path migration, where an alternate path was loaded.
    pub(crate) migration: Option<MigState>,
    /// Armed, with a way to go to.
    pub(crate) may_migrate: bool,
}

impl Path {
    /// Whether packets of that service are for this queue pair. Reliable connections have some that are in no
    /// specification.
    pub(crate) fn takes(&self, service: Service) -> bool {
        let added = match self.service {
            Service::Rc => Service::Own,
            Service::Xrc => Service::OwnXrc,
            own => own,
        };
        service == self.service || service == added
    }
}

/// A packet whose ICRC is right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// Traffic class, with the ECN bits as the network left them.
    pub(crate) tclass: u8,
    /// On links with LIDs.
    pub(crate) local: Option<Local>,
    /// The entry of the P_Key table that admits it.
    pub(crate) pkey_index: u16,
    pub(crate) head: &'a Head,
    /// Without pad; none of a long packet.
    pub(crate) payload: &'a [u8],
    /// The payload of a long packet.
    pub(crate) long: Option<Window<'a>>,
}

/// What becomes of acknowledgements in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// They are sent.
    Now,
    /// They are sent, except those to which a reply is expected at once.
    WithReply,
    /// They wait for a later round.
    Later,
}

/// Writes the payload of a packet.
pub(crate) type Fill<'f> = &'f mut dyn FnMut(&mut [u8]) -> Result<(), Unmapped>;

/// Takes the packets that machines send.
pub(crate) trait Outlet {
    /// Whether a packet can be put now. If not, the machine is called again when it can.
    fn is_ready(&mut self) -> bool;

    /// What becomes of acknowledgements now. For one that waits, the machine is soon called again; it then says what
    /// several would have. Negative answers are sent at once.
    fn acks(&self) -> Acks {
        Acks::Now
    }

    /// Whether an acknowledgement can be put now. It is short, and no rate holds it back.
    fn is_ready_to_answer(&mut self) -> bool {
        self.is_ready()
    }

    /// A packet with `len` bytes of payload, which `fill` writes; it is given exactly that many. Only after
    /// [`Outlet::is_ready`]. `again`: it was sent before, so it must not depend on anything that may have been wrong
    /// with the first try.
    ///
    /// # Errors
    /// What `fill` fails with; there is no packet then.
    fn put(&mut self, head: &Head, len: usize, again: bool, fill: Fill<'_>)
    -> Result<(), Unmapped>;

    /// The most bytes of payload that a long packet to that queue pair of the peer may have now; `None`: none can be put.
    fn longest(&mut self, _dest: Qpn) -> Option<usize> {
        None
    }

    /// A long packet, which stands for those of a message that its payload would fill. Only as [`Outlet::longest`] permits
    /// it. `false`: there is no room now.
    ///
    /// # Errors
    /// What `fill` fails with; there is no packet then.
    fn put_long(
        &mut self,
        _head: &Head,
        _len: usize,
        _fill: FillWindow<'_>,
    ) -> Result<bool, Unmapped> {
        Ok(false)
    }
}

/// The shortest payload for which a long packet is worth while.
const LONG_MIN: u32 = 1024;

/// The most bytes of payload that a long packet of a message of `len` bytes may have now, if there are any. Extended
/// connections have none, as their targets may be in several programs.
#[inline(always)]
fn longest(ends: &Ends<'_>, len: u32, outlet: &mut dyn Outlet) -> Option<usize> {
    let may_be_long = len >= LONG_MIN && matches!(ends.path.service, Service::Rc | Service::Uc);
    may_be_long
        .then(|| outlet.longest(ends.path.dest_qpn))
        .flatten()
}

/// How many packets of a message the next one stands for, if it can be a long one: there are `left` of them, and `len` bytes.
fn long_packets(longest: usize, mtu: Mtu, len: u32, left: u32) -> Option<u32> {
    let packets = u32::try_from(longest).ok()? >> mtu.shift();
    (len >= LONG_MIN && packets != 0).then_some(packets.min(left))
}

/// The events that follow from a machine's work, to be handled when the machine has been released and no pin is held.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub(crate) struct Events {
    pub(crate) fire_send: bool,
    pub(crate) fire_recv: bool,
    pub(crate) overrun_send: bool,
    pub(crate) overrun_recv: bool,
    /// The limit event of the shared receive queue is due.
    pub(crate) srq_limit: bool,
    /// The first packet arrived, or something else shows that there is a peer.
    pub(crate) contact: bool,
    /// The queue pair must go to ERR.
    pub(crate) fail: bool,
    /// Its send queue has failed, and only that: it must go to SQE.
    pub(crate) fail_sends: bool,
    /// An event about the queue pair that no completion reports.
    pub(crate) event: Option<EventType>,
    /// The position in the send ring of a work request that was completed in error. It stays in the ring until the
    /// flush, so that the poster does not take the ring for empty.
    pub(crate) failed: Option<u32>,
    /// Indices of keys that have something to release: one that a work request has named, one that the peer has named.
    pub(crate) settle: [Option<u32>; 2],
    /// There is more to do as soon as that was done.
    pub(crate) again: bool,
    /// There is more to do as soon as no thread is looking at what the key with that index stood for.
    pub(crate) later: Option<u32>,
    /// For a log.
    pub(crate) told: Told,
    /// The retries are used up, and the queue pair must move to its alternate path.
    pub(crate) migrate: bool,
    /// How the connection has failed, for a log.
    pub(crate) gave_up: Option<WcStatus>,
    /// Why, for a log: see [`Facts`].
    pub(crate) why_failed: u8,
    pub(crate) why_refused: u8,
}

impl Events {
    /// Whether there are none, except that handlers of completion queues wait.
    pub(crate) fn only_fires(&self) -> bool {
        let Self {
            fire_send: _,
            fire_recv: _,
            overrun_send,
            overrun_recv,
            srq_limit,
            contact,
            fail,
            fail_sends,
            event,
            failed,
            settle: [own, peers],
            again,
            later,
            told,
            migrate,
            gave_up,
            why_failed: _,
            why_refused: _,
        } = self;
        let any = *overrun_send | *overrun_recv | *srq_limit | *contact | *fail | *fail_sends;
        !(any | *again | *migrate)
            && told.is_empty()
            && (event.is_none() & failed.is_none() & gave_up.is_none())
            && (own.is_none() & peers.is_none() & later.is_none())
    }
}
