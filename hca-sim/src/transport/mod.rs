//! The transport's machines: sans-IO. Packets, work requests and the time go in; packets and completions
//! come out. No locks, clocks, sockets or wakers inside.

mod completion;
mod machine;
mod pieces;
pub(crate) mod rc;
pub(crate) mod timing;
pub(crate) mod tx;
mod uc;
mod ud;

use std::net::IpAddr;

use verbs_core::mem::{MrTable, Pin, Who};
use verbs_core::qp::QpCore;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Access, EventType, Mtu, PKey, QKey, Qpn};

use crate::clock::Instant;
use crate::link::Local;
use crate::queue::base::counters::Counters;
use crate::queue::cq::CqRing;
use crate::queue::recv::RecvRing;
use crate::queue::send::SendRing;
use crate::queue::srq::SharedReceives;
use crate::wire::{Head, Service};

pub(crate) use machine::Machine;
pub(crate) use tx::TxContext;
pub(crate) use ud::Post;

/// What a connected machine works on: the parts of its queue pair, which nobody else uses meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// What keeps memory and rings from being taken away.
    pub(crate) pin: &'a Pin,
    pub(crate) now: Instant,
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) path: &'a Path,
    /// The queue pair may begin messages: it is in RTS. In SQD it only ends those that it has begun.
    pub(crate) may_begin: bool,
    pub(crate) sends: &'a SendRing,
    pub(crate) recvs: &'a RecvRing,
    pub(crate) srq: Option<&'a Arc<SharedReceives>>,
    pub(crate) send_cq: &'a Arc<CqRing>,
    pub(crate) recv_cq: &'a Arc<CqRing>,
    /// Shared, because a key that a SEND invalidates is given back when nobody can be using it any more.
    pub(crate) mrs: &'a Arc<MrTable>,
    pub(crate) counters: &'a Counters,
    /// Whom a memory window of type 2 is bound to.
    pub(crate) core: Option<&'a Weak<QpCore>>,
}

impl Ends<'_> {
    /// The queue pair, for looks at memory.
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

/// What a queue pair's attributes say about its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) service: Service,
    pub(crate) dest_qpn: Qpn,
    pub(crate) pkey: PKey,
    /// Of queue pairs 0 and 1, whose datagrams name their partition themselves.
    pub(crate) is_special: bool,
    /// The port has 2^n LIDs.
    pub(crate) lmc: u8,
    /// Of a queue pair for datagrams: the one that datagrams to it have to bring.
    pub(crate) qkey: QKey,
    pub(crate) mtu: Mtu,
    /// What the peer may do here.
    pub(crate) access: Access,
    /// Local ACK timeout as the IBTA's code; 0 for none.
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// The delay that is asked for when no receive is posted, as the IBTA's code.
    pub(crate) min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub(crate) max_rd_atomic: u8,
    /// READs and atomics remembered as responder.
    pub(crate) max_dest_rd_atomic: u8,
    /// The first numbers, as the transitions to RTR and RTS set them.
    pub(crate) sq_psn: u32,
    pub(crate) rq_psn: u32,
}

impl Path {
    /// Whether packets of that service are for this queue pair. Reliable connections have some that no
    /// specification has.
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
    /// Which entry of the P_Key table lets it in.
    pub(crate) pkey_index: u16,
    pub(crate) head: Head,
    /// Without pad.
    pub(crate) payload: &'a [u8],
}

/// Where machines put packets.
pub(crate) trait Outlet {
    /// Whether a packet can be put now. If not, the machine is called again when one can.
    fn is_ready(&mut self) -> bool;

    /// Whether acknowledgements are to leave now. If not, the machine is soon called again, and one
    /// acknowledgement then tells what several would have. What is not good news leaves at once.
    fn acknowledges(&self) -> bool {
        true
    }

    /// A packet with `len` bytes of payload, which `fill` writes; it is given exactly so many. Only
    /// after [`Outlet::is_ready`]. `again`: it was sent before, so it must not depend on anything that
    /// may have been wrong with the first try.
    fn put(&mut self, head: &Head, len: usize, again: bool, fill: &mut dyn FnMut(&mut [u8]));
}

/// What a machine's work leads to for others, to be seen to when the machine is free again and no pin is
/// held.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub(crate) struct Notes {
    pub(crate) fire_send: bool,
    pub(crate) fire_recv: bool,
    pub(crate) overrun_send: bool,
    pub(crate) overrun_recv: bool,
    /// The limit event of the shared receive queue is due.
    pub(crate) srq_limit: bool,
    /// The first packet came, or something else shows that the peer is there.
    pub(crate) contact: bool,
    /// The queue pair must go to ERR.
    pub(crate) fail: bool,
    /// Its send queue has failed, and only that: it must go to SQE.
    pub(crate) fail_sends: bool,
    /// An event about the queue pair that no completion tells.
    pub(crate) event: Option<EventType>,
    /// The position in the send ring of a work request that was completed in error. It stays in the ring
    /// until the flush, so that the poster does not take the ring for drained.
    pub(crate) failed: Option<u32>,
    /// Indices of keys that have let something go: one that a work request has named, one that the peer has.
    pub(crate) settle: [Option<u32>; 2],
    /// There is more to do as soon as that was done.
    pub(crate) again: bool,
    /// There is more to do as soon as nobody is looking at what the key with that index stood for.
    pub(crate) later: Option<u32>,
}
