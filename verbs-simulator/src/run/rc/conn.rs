//! A connection of a session: its two queue pairs, and what is under way between them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

use verbs_core::{Access, Av, CmEndpoint, Mtu, Path, Psn, Qp, QpAttr, Qpn, WcStatus};

use crate::check::{Read, SendModel};
use crate::coverage::{Cell, Coverage, Operation};
use crate::{Draw, Hits, Ppm};

/// See the module's documentation.
pub(crate) struct Conn {
    pub(crate) index: usize,
    /// `None` before they are made, and after they are destroyed.
    pub(crate) qps: [Option<Qp>; 2],
    pub(crate) qpns: [Qpn; 2],
    /// What each end requests.
    pub(crate) lanes: [Lane; 2],
    /// Receives posted at each end, unless the end has a shared receive queue: `wr_id` and slot.
    pub(crate) recvs: [VecDeque<(u64, usize)>; 2],
    pub(crate) attrs: Attrs,
    /// An operation or a result was seen that takes it to ERR sooner or later.
    pub(crate) broken: bool,
    /// One end may have moved to a path that the other has not armed.
    pub(crate) parted: bool,
    /// It carries messages.
    pub(crate) live: bool,
    /// Of a stream: its endpoints, and the address that has connected.
    pub(crate) endpoints: Vec<(usize, CmEndpoint)>,
    pub(crate) from: Option<SocketAddr>,
}

/// One direction of a connection.
#[derive(Default)]
pub(crate) struct Lane {
    pub(crate) sends: SendModel<What>,
    pub(crate) seq: u64,
    /// Work requests since the last one that makes a completion.
    pub(crate) quiet: usize,
    /// Messages that take a receive each, in order.
    pub(crate) messages: VecDeque<Message>,
    /// How many of them the responder has acknowledged, and how many receives have completed.
    pub(crate) confirmed: u64,
    pub(crate) received: u64,
    /// Over a stream: how many of them were handed over and not confirmed, and the last work request that nothing has
    /// confirmed yet.
    pub(crate) unconfirmed: u64,
    pub(crate) unsettled: Option<u64>,
    /// The statuses that an invalid work request may end in; `None` if none was posted.
    pub(crate) failing: Option<(u64, &'static [WcStatus])>,
    /// The place of the next result.
    pub(crate) back: usize,
    /// The source area has been registered by a work request, and not been invalidated.
    pub(crate) registered: bool,
}

/// A message that takes a receive.
pub(crate) struct Message {
    pub(crate) seq: u64,
    pub(crate) imm: Option<u32>,
    pub(crate) len: usize,
    /// What arrives in the receive; nothing for a WRITE.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// A work request, for the time when it ends.
pub(crate) struct What {
    pub(crate) seq: u64,
    pub(crate) operation: Operation,
    /// How it was posted, for the table.
    pub(crate) variants: Vec<Operation>,
    /// It takes a receive.
    pub(crate) receives: bool,
    /// The place of its result.
    pub(crate) back: Option<Range<usize>>,
    /// The permitted values of the result.
    pub(crate) read: Option<Read>,
    /// The range that it reaches, and the region.
    pub(crate) target: Option<(Place, Range<usize>)>,
    pub(crate) at_post: Seen,
}

/// A region of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Main,
    Spare,
    ReadOnly,
}

/// The faults that have occurred so far on the path of a work request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) hits: Hits,
    pub(crate) flaps: u64,
    /// Messages for which there was no receive.
    pub(crate) rnr_naks: u64,
}

impl Seen {
    /// Enters into the table what has happened to work requests of those rows since `was`.
    pub(crate) fn note(
        &self,
        coverage: &mut Coverage,
        rows: impl Iterator<Item = Operation>,
        was: Self,
        failed: bool,
        orphaned: bool,
    ) {
        let (hits, before) = (self.hits, was.hits);
        let met = [
            (hits.lost > before.lost, Cell::Loss),
            (hits.dropped > before.dropped, Cell::Drop),
            (hits.duplicated > before.duplicated, Cell::Duplication),
            (hits.reordered > before.reordered, Cell::Reordering),
            (hits.corrupted > before.corrupted, Cell::Corruption),
            (self.flaps > was.flaps, Cell::Flap),
            (self.rnr_naks > was.rnr_naks, Cell::Rnr),
            (failed, Cell::QpError),
            (orphaned, Cell::Removal),
        ];
        for row in rows {
            if met.iter().all(|&(met, _)| !met) {
                coverage.hit(row, Cell::Clean);
            }
            met.iter()
                .filter(|&&(met, _)| met)
                .for_each(|&(_, cell)| coverage.hit(row, cell));
        }
    }
}

/// How a connection is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attrs {
    pub(crate) mtu: Mtu,
    pub(crate) gid_index: u16,
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) sges: u32,
    pub(crate) inline: u32,
    pub(crate) signal_all: bool,
    pub(crate) timeout: u8,
    retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rd_atomic: u8,
    psns: [u32; 2],
}

impl Attrs {
    pub(crate) fn draw(draw: &mut Draw) -> Self {
        let small = |draw: &mut Draw, range| draw.within(range) as u8;
        let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        // Close to the end of the numbers in some runs, so that they wrap.
        let mut psn = || match draw.below(2) {
            0 => 0xff_ffff - draw.within(0..=40) as u32,
            _ => draw.within(0..=0xff_ffff) as u32,
        };
        let psns = [psn(), psn()];
        Self {
            mtu: *draw.pick(&mtus),
            gid_index: draw.below(2) as u16,
            send_depth: draw.within(2..=32) as u32,
            recv_depth: draw.within(1..=16) as u32,
            sges: draw.within(1..=4) as u32,
            inline: *draw.pick(&[0, 16, 64, 256]),
            signal_all: draw.chance(Ppm::percent(20)),
            timeout: small(draw, 10..=12),
            retry_cnt: small(draw, 3..=7),
            rnr_retry: if draw.chance(Ppm::percent(60)) {
                7
            } else {
                small(draw, 0..=6)
            },
            min_rnr_timer: small(draw, 1..=12),
            rd_atomic: small(draw, 1..=16),
            psns,
        }
    }

    /// The three steps that connect one end: its number, the peer's address, and the peer.
    pub(crate) fn steps(&self, end: usize, av: Av, dest_qpn: Qpn) -> [QpAttr; 3] {
        let path = Path {
            av,
            dest_qpn,
            rq_psn: Psn::new(self.psns[1 - end]),
            mtu: self.mtu,
        };
        let rtr = QpAttr {
            max_dest_rd_atomic: Some(self.rd_atomic),
            min_rnr_timer: Some(self.min_rnr_timer),
            ..QpAttr::rtr(&path)
        };
        let rts = QpAttr {
            timeout: Some(self.timeout),
            retry_cnt: Some(self.retry_cnt),
            rnr_retry: Some(self.rnr_retry),
            max_rd_atomic: Some(self.rd_atomic),
            ..QpAttr::rts(Psn::new(self.psns[end]))
        };
        [
            QpAttr::init(
                1,
                Access::REMOTE | Access::FLUSH_GLOBAL | Access::LOCAL_WRITE,
            ),
            rtr,
            rts,
        ]
    }
}

impl Conn {
    pub(crate) fn new(index: usize, attrs: Attrs) -> Self {
        Self {
            index,
            qps: [None, None],
            qpns: [Qpn::new(0); 2],
            lanes: Default::default(),
            recvs: Default::default(),
            attrs,
            broken: false,
            parted: false,
            live: false,
            endpoints: Vec::new(),
            from: None,
        }
    }

    /// The number of a direction, for the models of memory.
    pub(crate) fn lane(&self, end: usize) -> u64 {
        (self.index * 2 + end) as u64
    }

    /// A number for a work request on the send queue of that end.
    pub(crate) fn send_id(&self, end: usize) -> u64 {
        self.lanes[end].seq << 8 | (self.index as u64) << 1
    }
}

/// The connection that a `wr_id` belongs to; `None` for a receive that several share.
pub(crate) fn conn_of(wr_id: u64) -> Option<usize> {
    let index = (wr_id >> 1 & 0x7f) as usize;
    (index != SHARED).then_some(index)
}

/// Whether a `wr_id` belongs to a receive.
pub(crate) const fn is_receive(wr_id: u64) -> bool {
    wr_id & 1 == 1
}

/// A number for a receive; `conn` is `None` for one that several connections share.
pub(crate) fn recv_id(seq: u64, conn: Option<usize>) -> u64 {
    seq << 8 | (conn.unwrap_or(SHARED) as u64) << 1 | 1
}

const SHARED: usize = 0x7f;
