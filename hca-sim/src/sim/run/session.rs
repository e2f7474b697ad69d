//! A session: two ends, some connections between them, work on these, and an end to all of it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use verbs_core::sync::Arc;
use verbs_core::verb::VerbError;
use verbs_core::{
    Av, Cq, Error, Extent, FastMr, Layout, Pd, QpAttr, QpInit, QpState, Refused, Srq,
};

use crate::sim::check::Rule;
use crate::sim::plant::Spoiled;
use crate::sim::run::Mode;
use crate::sim::run::area::{AREA, Area, CONNS, Region, begin};
use crate::sim::run::conn::{Attrs, Conn, Place};
use crate::sim::run::transcript::{SESSIONS, SETTLE};
use crate::sim::run::world::{LIVE_MAX, Lease, World};
use crate::sim::{Draw, Ppm};

/// Entries of completion queues: more than a session ever has outstanding, so that none overruns.
const CQE: u32 = 1024;
/// The ECN bits of packets that may be marked: ECT(0) (RFC 3168, 5).
const ECT: u8 = 0b10;
/// The code for 20 ms, where much virtual time passes: every try costs.
const LONG_RNR_TIMER: u8 = 22;
/// Receives on a shared receive queue.
pub(super) const SRQ_DEPTH: u32 = 24;

/// See the module's documentation.
pub(super) struct Session {
    pub(super) world: Rc<World>,
    pub(super) draw: Draw,
    pub(super) ends: [End; 2],
    pub(super) conns: Vec<Conn>,
}

/// One end of a session.
pub(super) struct End {
    pub(super) lease: Lease,
    pub(super) pd: Option<Pd>,
    pub(super) main: Region,
    pub(super) spare: Region,
    pub(super) read_only: Region,
    /// What the first connection sends from, in pieces, for work requests to register.
    pub(super) fast: Option<FastMr>,
    /// For sends and receives, or one for both.
    pub(super) cqs: Vec<Cq>,
    pub(super) spoiled: Spoiled,
    pub(super) srq: Option<Srq>,
    /// Receives on the shared queue: `wr_id` and slot.
    pub(super) shared: BTreeMap<u64, usize>,
    /// Receives so far.
    pub(super) seq: u64,
    /// Slots of each receive area that are free, and the bytes of each. A connection uses its own area,
    /// so that none waits for another's; a shared queue uses all.
    pub(super) free: [Vec<usize>; CONNS],
    pub(super) slot: usize,
}

impl End {
    fn new(world: &World, lease: Lease, draw: &mut Draw) -> Option<Self> {
        let slot = *draw.pick(&[256, 1024, 4096]);
        Some(Self {
            lease,
            pd: None,
            main: Region::main(draw)?,
            spare: Region::spare(draw)?,
            read_only: Region::read_only(draw)?,
            fast: None,
            cqs: Vec::new(),
            spoiled: Spoiled::new(world.options.plant, draw.fork()),
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
    pub(super) fn slot_at(&self, slot: usize) -> usize {
        let per_area = AREA / self.slot;
        begin(slot / per_area, Area::In) + slot % per_area * self.slot
    }

    /// The region of that name.
    pub(super) fn region(&mut self, place: Place) -> &mut Region {
        match place {
            Place::Main => &mut self.main,
            Place::Spare => &mut self.spare,
            Place::ReadOnly => &mut self.read_only,
        }
    }

    /// Gives a slot back.
    pub(super) fn release(&mut self, slot: usize) {
        self.free[slot / (AREA / self.slot)].push(slot);
    }

    /// Makes everything but the queue pairs. `None`: a fault was in the way.
    async fn build(&mut self, world: &World, draw: &mut Draw) -> Option<()> {
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

/// Runs sessions until it is calm.
pub(super) async fn run(world: Rc<World>, mut draw: Draw) {
    while !world.calm.get() {
        if let Some(transcript) = &world.transcript {
            let session = &mut transcript.borrow_mut().session;
            *session += 1;
            if *session > SESSIONS {
                return;
            }
        }
        let (a, b) = (draw.below(world.plan.nodes), draw.below(world.plan.nodes));
        let mut end = |node| {
            let lease = world.lease(node)?;
            End::new(&world, lease, &mut draw)
        };
        let (Some(first), Some(second)) = (end(a), end(b)) else {
            world.sim.sleep(Duration::from_micros(50)).await;
            continue;
        };
        let mut session = Session {
            world: Rc::clone(&world),
            draw: draw.fork(),
            ends: [first, second],
            conns: Vec::new(),
        };
        if session.build().await.is_some() {
            session.work().await;
        }
        session.end().await;
        world.sim.sleep(Duration::from_micros(10)).await;
    }
}

impl Session {
    /// Whether a device has gone that it uses.
    pub(super) fn is_orphaned(&self) -> bool {
        self.ends.iter().any(|end| end.lease.removed.get())
    }

    async fn build(&mut self) -> Option<()> {
        for end in &mut self.ends {
            end.build(&self.world, &mut self.draw).await?;
        }
        // Who gets which shared receive is a matter of time when several wait for one.
        let shared = self.ends.iter().any(|end| end.srq.is_some());
        let alone = shared && self.world.transcript.is_some();
        for index in 0..=self.draw.below(if alone { 1 } else { CONNS }) {
            let mut attrs = Attrs::draw(&mut self.draw);
            if self.world.transcript.is_some() {
                attrs.min_rnr_timer = LONG_RNR_TIMER;
            }
            self.conns.push(Conn::new(index, attrs));
            for end in [0, 1] {
                self.create(index, end).await?;
            }
            self.connect(index).await?;
        }
        Some(())
    }

    async fn create(&mut self, index: usize, end: usize) -> Option<()> {
        let conn = &mut self.conns[index];
        let at = &self.ends[end];
        let Attrs {
            send_depth,
            recv_depth,
            sges,
            inline,
            signal_all,
            ..
        } = conn.attrs;
        let (send_cq, recv_cq) = (at.cqs.first()?, at.cqs.last()?);
        let mut init = QpInit::rc(send_cq, recv_cq)
            .depth(send_depth, recv_depth)
            .sges(sges, sges)
            .inline(inline);
        if signal_all {
            init = init.signal_all();
        }
        if let Some(srq) = &at.srq {
            init = init.srq(srq);
        }
        let pd = at.pd.as_ref()?;
        let qp = self.world.verb(&at.lease, pd.create_qp(init)).await.ok()?;
        conn.qpns[end] = qp.qpn();
        conn.qps[end] = Some(qp);
        Some(())
    }

    async fn connect(&mut self, index: usize) -> Option<()> {
        let conn = &mut self.conns[index];
        let [a, b] = conn.qpns;
        self.world
            .sim
            .network()
            .tamper(|tamper| tamper.connected(a, b));
        for end in [0, 1] {
            let peer = &self.ends[1 - end].lease.hca;
            let gid_index = conn.attrs.gid_index;
            let av = match self.world.plan.mode {
                Mode::Direct => Av::to_lid(1, peer.lid()),
                Mode::Packets => {
                    let mut av = Av::to_gid(1, gid_index, peer.gid_at(gid_index));
                    // Capable of being marked for congestion.
                    if let Some(global) = &mut av.global {
                        global.traffic_class = ECT;
                    }
                    av
                }
            };
            for attr in conn.attrs.steps(end, av, conn.qpns[1 - end]) {
                let qp = conn.qps[end].as_ref()?;
                let lease = &self.ends[end].lease;
                self.world.verb(lease, qp.modify(attr)).await.ok()?;
            }
        }
        conn.live = true;
        Some(())
    }

    async fn work(&mut self) {
        let max = if self.world.transcript.is_some() {
            80
        } else {
            400
        };
        let mut left = self.draw.within(20..=max);
        while !self.world.calm.get() && left != 0 && self.conns.iter().any(|conn| !conn.broken) {
            left -= 1;
            if self.is_orphaned() {
                break;
            }
            let index = self.draw.below(self.conns.len());
            let end = self.draw.below(2);
            match self.draw.below(100) {
                0..=54 => self.post_send(index, end),
                55..=74 => self.post_receives(index, end),
                75..=89 => {
                    let pause = Duration::from_nanos(100)..=Duration::from_micros(60);
                    let pause = self.draw.duration(pause);
                    self.world.sim.sleep(pause).await;
                }
                90..=97 => self.control(index, end).await,
                98 => self.post_evil(index, end),
                _ => self.break_up(index, end).await,
            }
            self.settle().await;
            self.reap();
        }
        // How often that looks is a matter of time; what comes behind it draws the same all the same.
        let behind = self.draw.fork();
        self.drain().await;
        self.draw = behind;
    }

    /// If runs are compared, lets everything come to an end.
    async fn settle(&self) {
        if self.world.transcript.is_some() {
            self.world.sim.sleep(SETTLE).await;
        }
    }

    /// Waits until everything that was posted has ended, helping where a receive is missing.
    async fn drain(&mut self) {
        let begun = self.world.sim.now();
        for index in 0..self.conns.len() {
            for end in [0, 1] {
                self.post_last(index, end);
            }
        }
        self.settle().await;
        let compared = self.world.transcript.is_some();
        let waits = self.draw.chance(Ppm::percent(50)) && !compared;
        loop {
            self.reap();
            let open =
                |conn: &Conn| !conn.broken && conn.lanes.iter().any(|lane| !lane.sends.is_empty());
            let Some(index) = self.conns.iter().position(open) else {
                return;
            };
            if self.is_orphaned() {
                return;
            }
            if self.world.sim.now() - begun > LIVE_MAX {
                let lanes = self.conns[index].lanes.iter().map(|lane| lane.sends.len());
                let what = format!(
                    "connection waits with {:?} work requests",
                    lanes.collect::<Vec<_>>()
                );
                return self.world.accuse(Rule::Liveness, what);
            }
            for end in [0, 1] {
                self.post_receives(index, end);
                self.post_last(index, end);
            }
            if waits && !self.await_completion(index).await {
                return;
            }
            self.settle().await;
            self.world.sim.sleep(Duration::from_micros(50)).await;
        }
    }

    /// Waits for an event of a completion queue. `false`: it was lost.
    async fn await_completion(&mut self, index: usize) -> bool {
        let waits = |lane: &crate::sim::run::conn::Lane| !lane.sends.is_empty();
        let Some(end) = self.conns[index].lanes.iter().position(waits) else {
            return true;
        };
        // The other end may have to post a receive for it first, so that is looked after meanwhile.
        let sim = self.world.sim.clone();
        let End { cqs, spoiled, .. } = &mut self.ends[end];
        let Some(cq) = cqs.first_mut() else {
            return true;
        };
        let woken = sim
            .timeout(Duration::from_millis(2), spoiled.ready(cq))
            .await;
        if woken.is_some() || self.conns[index].broken {
            return true;
        }
        let before = self.conns[index].lanes[end].sends.len();
        let counted = self.world.sim.counts().completions;
        self.reap();
        let polled = self.world.sim.counts().completions != counted;
        if polled && self.conns[index].lanes[end].sends.len() < before {
            let what = "completions wait, and the armed queue has not fired";
            self.world.accuse(Rule::Liveness, what);
            return false;
        }
        true
    }

    /// Takes one end of a connection down, or makes it stumble.
    async fn break_up(&mut self, index: usize, end: usize) {
        if !self.draw.chance(Ppm::percent(40)) {
            return;
        }
        self.conns[index].broken = true;
        let conn = &self.conns[index];
        let Some(qp) = &conn.qps[end] else { return };
        let _ = self.world.verb(&self.ends[end].lease, qp.to_error()).await;
    }

    /// Ends everything, in an order that is drawn, and looks at what is left.
    async fn end(&mut self) {
        for index in 0..self.conns.len() {
            self.close(index).await;
        }
        for end in [0, 1] {
            self.try_too_early(end).await;
        }
        for index in 0..self.conns.len() {
            for end in [0, 1] {
                if let Some(qp) = self.conns[index].qps[end].take() {
                    let lease = &self.ends[end].lease;
                    let destroyed = self.world.verb(lease, qp.destroy()).await;
                    self.conns[index].qps[end] = self.gone(destroyed);
                }
            }
        }
        self.settle().await;
        self.reap();
        self.look_back();
        for end in 0..2 {
            self.tear_down(end).await;
        }
    }

    /// A handle that a refused destroy has given back; that may not happen now.
    fn gone<H: Send + 'static>(&self, destroyed: Result<(), Refused<H>>) -> Option<H> {
        let Err(refused) = destroyed else { return None };
        let reason = refused.reason();
        if refused.handle.is_some() {
            let what = format!("a destroy gave the handle back: {reason}");
            self.world.accuse(Rule::Verb, what);
        }
        refused.handle
    }

    /// Takes a connection out of service, in one of several ways.
    async fn close(&mut self, index: usize) {
        let how = self.draw.below(4);
        self.conns[index].broken = true;
        for end in [0, 1] {
            let Some(qp) = &self.conns[index].qps[end] else {
                continue;
            };
            let lease = &self.ends[end].lease;
            let to = match how {
                0 => QpState::Err,
                1 if end == 0 => QpState::Err,
                2 => QpState::Reset,
                // Destroying it does as well.
                _ => continue,
            };
            // A fault may have kept it from being connected at all.
            let live = self.conns[index].live;
            let illegal = |error: &Error| !live && matches!(error, Error::Transition(_));
            let request = qp.modify(QpAttr::to(to));
            let done = self.world.verb_or(lease, request, illegal).await;
            if done.is_err() {
                continue;
            }
            if to == QpState::Reset {
                self.forget(index, end);
            } else {
                self.flushed(index, end).await;
            }
        }
    }

    /// Nothing may be left on a queue pair that has gone to ERR.
    async fn flushed(&mut self, index: usize, end: usize) {
        self.reap();
        // A message that is half way through a shared receive may take a moment more.
        self.world.sim.sleep(Duration::from_nanos(1)).await;
        self.reap();
        let conn = &self.conns[index];
        let (sends, recvs) = (conn.lanes[end].sends.unaccounted(), conn.recvs[end].len());
        if sends + recvs != 0 {
            let what = format!(
                "a queue pair in ERR has {sends} sends and {recvs} receives that were not flushed"
            );
            self.world.accuse(Rule::Completion, what);
        }
    }

    /// What is destroyed while it is in use answers Busy, and is as it was (K10).
    async fn try_too_early(&mut self, end: usize) {
        let uses = self.conns.iter().any(|conn| conn.qps[end].is_some());
        let world = Rc::clone(&self.world);
        let busy = |error: &Error| *error == Error::Busy;
        let at = &mut self.ends[end];
        if uses
            && self.draw.chance(Ppm::percent(30))
            && let Some(cq) = at.cqs.pop()
        {
            match world.verb_or(&at.lease, cq.destroy(), busy).await {
                Err(Refused {
                    error: Error::Busy,
                    busy: Some(busy),
                    handle: Some(cq),
                }) if busy.total > 0 => {
                    at.cqs.push(cq);
                }
                other => world.accuse(
                    Rule::Busy,
                    format!("a completion queue with queue pairs was destroyed: {other:?}"),
                ),
            }
        }
        let children = uses || at.main.mr.is_some() || at.srq.is_some();
        if children
            && self.draw.chance(Ppm::percent(30))
            && let Some(pd) = at.pd.take()
        {
            match world.verb_or(&at.lease, pd.dealloc(), busy).await {
                Err(Refused {
                    error: Error::Busy,
                    handle: Some(pd),
                    ..
                }) => at.pd = Some(pd),
                other => world.accuse(
                    Rule::Busy,
                    format!("a protection domain with objects was deallocated: {other:?}"),
                ),
            }
        }
    }

    /// What must be so when the queue pairs have gone.
    fn look_back(&mut self) {
        for conn in &self.conns {
            let sends: usize = conn.lanes.iter().map(|lane| lane.sends.unaccounted()).sum();
            let recvs: usize = conn.recvs.iter().map(|recvs| recvs.len()).sum();
            if sends + recvs != 0 {
                let what = format!("{sends} sends and {recvs} receives have no completion");
                self.world.accuse(Rule::Completion, what);
            }
        }
        for end in &mut self.ends {
            // Receives on a shared queue go with it, without a word.
            for (wr_id, _) in std::mem::take(&mut end.shared) {
                end.main.model.give_up(wr_id, wr_id);
            }
            for region in [&mut end.main, &mut end.spare, &mut end.read_only] {
                if let Some(transcript) = &self.world.transcript {
                    transcript.borrow_mut().memory(&region.model.certain());
                }
                for lane in 0..2 * CONNS as u64 {
                    if let Err(what) = region.model.resolve(lane) {
                        self.world.accuse(Rule::Memory, what);
                    }
                }
            }
        }
    }

    async fn tear_down(&mut self, end: usize) {
        let world = Rc::clone(&self.world);
        let mut order = [0, 1, 2, 3, 4];
        for at in (1..order.len()).rev() {
            order.swap(at, self.draw.below(at + 1));
        }
        for step in order {
            let at = &mut self.ends[end];
            match step {
                0..=2 => {
                    let regions = [&mut at.main, &mut at.spare, &mut at.read_only];
                    let mr = regions
                        .into_iter()
                        .nth(step)
                        .and_then(|region| region.mr.take());
                    if let Some(mr) = mr {
                        let done = world.verb(&at.lease, mr.dereg()).await;
                        self.gone(done);
                    }
                }
                3 => {
                    if let Some(srq) = at.srq.take() {
                        let done = world.verb(&at.lease, srq.destroy()).await;
                        self.gone(done);
                    }
                }
                _ => {
                    while let Some(cq) = self.ends[end].cqs.pop() {
                        let done = world.verb(&self.ends[end].lease, cq.destroy()).await;
                        self.gone(done);
                    }
                }
            }
        }
        if let Some(fast) = self.ends[end].fast.take() {
            let done = world.verb(&self.ends[end].lease, fast.free()).await;
            self.gone(done);
        }
        let at = &mut self.ends[end];
        if let Some(pd) = at.pd.take() {
            // A region whose reregistration the removal has ended goes by itself, a little later (K12).
            let removed = at.lease.removed.get();
            let busy = |error: &Error| removed && *error == Error::Busy;
            let done = match world.verb_or(&at.lease, pd.dealloc(), busy).await {
                Err(Refused {
                    error: Error::Busy,
                    handle: Some(pd),
                    ..
                }) if removed => world.verb(&at.lease, pd.dealloc_when_idle()).await,
                done => done,
            };
            self.gone(done);
        }
    }
}
