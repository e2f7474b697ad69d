//! A connection of a session: its two queue pairs, and what is on its way between them.

use std::collections::VecDeque;
use std::ops::Range;

use verbs_core::{Access, Av, Mtu, Path, Psn, Qp, QpAttr, Qpn, WcStatus};

use crate::sim::check::{Read, SendModel};
use crate::sim::coverage::{Cell, Coverage, Operation};
use crate::sim::{Draw, Hits, Ppm};

/// See the module's documentation.
pub(super) struct Conn {
    pub(super) index: usize,
    /// `None` before they were made, and after they were destroyed.
    pub(super) qps: [Option<Qp>; 2],
    pub(super) qpns: [Qpn; 2],
    /// What each end requests.
    pub(super) lanes: [Lane; 2],
    /// Receives posted at each end, unless that has a shared receive queue: `wr_id` and slot.
    pub(super) recvs: [VecDeque<(u64, usize)>; 2],
    pub(super) attrs: Attrs,
    /// Something was done, or seen, that takes it to ERR sooner or later.
    pub(super) broken: bool,
    /// It carries messages.
    pub(super) live: bool,
}

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) sends: SendModel<What>,
    pub(super) seq: u64,
    /// Work requests since the last one that makes a completion.
    pub(super) quiet: usize,
    /// Messages that take a receive each, in order.
    pub(super) messages: VecDeque<Message>,
    /// How many of them the responder has acknowledged, and how many receives have completed.
    pub(super) confirmed: u64,
    pub(super) received: u64,
    /// The statuses that a wrong work request may end in; `None` if none was posted.
    pub(super) evil: Option<(u64, &'static [WcStatus])>,
    /// Where the next result goes.
    pub(super) back: usize,
    /// What is sent from has been registered by a work request, and not been invalidated.
    pub(super) registered: bool,
}

/// A message that takes a receive.
pub(super) struct Message {
    pub(super) seq: u64,
    pub(super) imm: Option<u32>,
    pub(super) len: usize,
    /// What arrives in the receive; nothing for a WRITE.
    pub(super) bytes: Option<Vec<u8>>,
}

/// A work request, for when it ends.
pub(super) struct What {
    pub(super) seq: u64,
    pub(super) operation: Operation,
    /// How it was posted, for the table.
    pub(super) ways: Vec<Operation>,
    /// It takes a receive.
    pub(super) receives: bool,
    /// Where its result goes.
    pub(super) back: Option<Range<usize>>,
    /// What that may be.
    pub(super) read: Option<Read>,
    /// Where it reaches, in which region.
    pub(super) target: Option<(Place, Range<usize>)>,
    pub(super) at_post: Seen,
}

/// Which region of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Main,
    Spare,
    ReadOnly,
}

/// What has gone wrong so far where a work request goes.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) hits: Hits,
    pub(super) flaps: u64,
    /// Messages for which there was no receive.
    pub(super) rnr_naks: u64,
}

impl Seen {
    /// Enters into the table what has happened since `was` to work requests of those rows.
    pub(super) fn note(
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
pub(super) struct Attrs {
    pub(super) mtu: Mtu,
    pub(super) gid_index: u16,
    pub(super) send_depth: u32,
    pub(super) recv_depth: u32,
    pub(super) sges: u32,
    pub(super) inline: u32,
    pub(super) signal_all: bool,
    timeout: u8,
    retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_timer: u8,
    rd_atomic: u8,
    psns: [u32; 2],
}

impl Attrs {
    pub(super) fn draw(draw: &mut Draw) -> Self {
        let small = |draw: &mut Draw, range| draw.within(range) as u8;
        let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        // Close to the end of the numbers now and then, so that they wrap.
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

    /// The three steps that connect one end: its number, where the peer is, and who that is.
    pub(super) fn steps(&self, end: usize, av: Av, dest_qpn: Qpn) -> [QpAttr; 3] {
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
    pub(super) fn new(index: usize, attrs: Attrs) -> Self {
        Self {
            index,
            qps: [None, None],
            qpns: [Qpn::new(0); 2],
            lanes: Default::default(),
            recvs: Default::default(),
            attrs,
            broken: false,
            live: false,
        }
    }

    /// The number of a direction, for the models of memory.
    pub(super) fn lane(&self, end: usize) -> u64 {
        (self.index * 2 + end) as u64
    }

    /// A number for a work request on the send queue of that end.
    pub(super) fn send_id(&self, end: usize) -> u64 {
        self.lanes[end].seq << 8 | (self.index as u64) << 1
    }
}

/// The connection that a `wr_id` is of; `None` for a receive that several share.
pub(super) fn conn_of(wr_id: u64) -> Option<usize> {
    let index = (wr_id >> 1 & 0x7f) as usize;
    (index != SHARED).then_some(index)
}

/// Whether a `wr_id` is of a receive.
pub(super) const fn is_receive(wr_id: u64) -> bool {
    wr_id & 1 == 1
}

/// A number for a receive; `conn` is `None` for one that several connections share.
pub(super) fn recv_id(seq: u64, conn: Option<usize>) -> u64 {
    seq << 8 | (conn.unwrap_or(SHARED) as u64) << 1 | 1
}

const SHARED: usize = 0x7f;
