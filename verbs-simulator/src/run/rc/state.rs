//! What the parts of a session work on: its two ends, and the connections between them.

use std::collections::BTreeMap;
use std::rc::Rc;

use verbs_core::sync::Arc;
use verbs_core::verb::VerbError;
use verbs_core::{Cq, Extent, FastMr, Layout, Pd, Refused, Srq};

use crate::check::Rule;
use crate::mutant::FaultyPoller;
use crate::run::area::{AREA, Area, CONNS, Region, begin};
use crate::run::conn::{Conn, Place};
use crate::run::world::{Lease, World};
use crate::{Draw, Ppm};

/// Entries of completion queues: more than a session ever has outstanding, so that none overruns.
const CQE: u32 = 1024;
/// Receives on a shared receive queue.
pub(crate) const SRQ_DEPTH: u32 = 24;

/// A session.
pub(crate) struct Session {
    pub(crate) world: Rc<World>,
    pub(crate) draw: Draw,
    pub(crate) ends: [End; 2],
    pub(crate) conns: Vec<Conn>,
}

/// One end of a session.
pub(crate) struct End {
    pub(crate) lease: Lease,
    pub(crate) pd: Option<Pd>,
    pub(crate) main: Region,
    pub(crate) spare: Region,
    pub(crate) read_only: Region,
    /// The source area of the first connection, in pieces, for work requests to register.
    pub(crate) fast: Option<FastMr>,
    /// One for sends and one for receives, or one for both.
    pub(crate) cqs: Vec<Cq>,
    pub(crate) poller: FaultyPoller,
    pub(crate) srq: Option<Srq>,
    /// Receives on the shared queue: `wr_id` and slot.
    pub(crate) shared: BTreeMap<u64, usize>,
    /// Receives posted so far.
    pub(crate) seq: u64,
    /// Slots of each receive area that are free, and the bytes of each. A connection uses its own area, so that it does
    /// not wait for another's; a shared queue uses all.
    pub(crate) free: [Vec<usize>; CONNS],
    pub(crate) slot: usize,
}

impl End {
    pub(super) fn new(world: &World, lease: Lease, draw: &mut Draw) -> Option<Self> {
        let slot = *draw.pick(&[256, 1024, 4096]);
        Some(Self {
            lease,
            pd: None,
            main: Region::main(world.plan.mode, draw)?,
            spare: Region::spare(draw)?,
            read_only: Region::read_only(draw)?,
            fast: None,
            cqs: Vec::new(),
            poller: FaultyPoller::new(world.options.mutant, draw.fork()),
            srq: None,
            shared: BTreeMap::new(),
            seq: 0,
            free: std::array::from_fn(|area| {
                let per_area = AREA / slot;
                (area * per_area..(area + 1) * per_area).rev().collect()
            }),
            slot,
        })
    }

    /// Where a slot begins.
    pub(crate) fn slot_at(&self, slot: usize) -> usize {
        let per_area = AREA / self.slot;
        begin(slot / per_area, Area::In) + slot % per_area * self.slot
    }

    /// The region of that name.
    pub(crate) fn region(&mut self, place: Place) -> &mut Region {
        match place {
            Place::Main => &mut self.main,
            Place::Spare => &mut self.spare,
            Place::ReadOnly => &mut self.read_only,
        }
    }

    /// Frees a slot.
    pub(crate) fn release(&mut self, slot: usize) {
        self.free[slot / (AREA / self.slot)].push(slot);
    }

    /// Makes everything except the queue pairs. `None`: a fault prevented it.
    pub(super) async fn build(&mut self, world: &World, draw: &mut Draw) -> Option<()> {
        let lease = &self.lease;
        let device = lease.device()?;
        let pd = world.verb(lease, device.alloc_pd()).await.ok()?;
        let pd = self.pd.insert(pd);
        for region in [&mut self.main, &mut self.spare, &mut self.read_only] {
            let request = pd.register(Arc::clone(&region.memory), region.access);
            region.mr = Some(world.verb(lease, request.iova(region.iova)).await.ok()?);
        }
        let fast = pd.alloc_mr(4).layout(Layout::Gaps);
        let mut fast = world.verb(lease, fast).await.ok()?;
        let (first, mid) = (begin(0, Area::Out), 1 + draw.below(AREA - 1));
        let piece = |from: usize, to: usize| Extent {
            memory: &self.main.memory,
            offset: first + from,
            len: (to - from) as u32,
        };
        fast.map([piece(0, mid), piece(mid, AREA)]).ok()?;
        self.fast = Some(fast);
        for _ in 0..=draw.below(2) {
            self.cqs
                .push(world.verb(lease, device.create_cq(CQE)).await.ok()?);
        }
        if draw.chance(Ppm::percent(33)) {
            self.srq = Some(world.verb(lease, pd.create_srq(SRQ_DEPTH, 4)).await.ok()?);
        }
        Some(())
    }
}

impl Session {
    /// Whether a device that it uses was removed.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.ends.iter().any(|end| end.lease.removed.get())
    }

    /// A handle that a refused destroy has returned; that may not happen now.
    pub(crate) fn gone<H: Send + 'static>(&self, destroyed: Result<(), Refused<H>>) -> Option<H> {
        let Err(refused) = destroyed else { return None };
        let reason = refused.reason();
        if refused.handle.is_some() {
            let what = format!("a destroy gave the handle back: {reason}");
            self.world.violated(Rule::Verb, what);
        }
        refused.handle
    }
}
