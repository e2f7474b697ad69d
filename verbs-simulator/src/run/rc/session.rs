//! A session: two ends, some connections between them, work on these, and the end of all of it.

use std::rc::Rc;
use std::time::Duration;

use verbs_core::{Av, Error, QpAttr, QpInit, QpState, Refused};

use crate::check::Rule;
use crate::run::Mode;
use crate::run::area::CONNS;
use crate::run::conn::{Attrs, Conn};
use crate::run::rc::post::receives;
use crate::run::rc::state::{End, Session};
use crate::run::rc::{post, reap, streams};
use crate::run::transcript::{SESSIONS, SETTLE};
use crate::run::world::{LIVE_MAX, World};
use crate::run::{control, failing};
use crate::{Draw, Ppm};

/// The ECN bits of packets that may be marked: ECT(0) (RFC 3168, 5).
const ECT: u8 = 0b10;
/// The code for 20 ms, where much virtual time passes: every retry takes time.
const LONG_RNR_TIMER: u8 = 22;

/// Runs sessions until the run quiesces.
pub(crate) async fn run(world: Rc<World>, mut draw: Draw) {
    while !world.quiescing.get() {
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
    async fn build(&mut self) -> Option<()> {
        for end in &mut self.ends {
            end.build(&self.world, &mut self.draw).await?;
        }
        // Which message gets which shared receive depends on timing when several wait for one.
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
        if self.world.plan.mode == Mode::Streams {
            return streams::connect_stream(self, index).await;
        }
        let conn = &self.conns[index];
        let [a, b] = conn.qpns;
        self.world
            .sim
            .network()
            .mutator(|mutator| mutator.connected(a, b));
        for end in [0, 1] {
            let gid_index = conn.attrs.gid_index;
            let av = self.way(end, gid_index);
            for attr in conn.attrs.steps(end, av, conn.qpns[1 - end]) {
                let qp = conn.qps[end].as_ref()?;
                let lease = &self.ends[end].lease;
                self.world.verb(lease, qp.modify(attr)).await.ok()?;
            }
        }
        self.conns[index].live = true;
        Some(())
    }

    /// The way from that end to the other one, between addresses of that index.
    pub(crate) fn way(&self, end: usize, gid_index: u16) -> Av {
        let peer = &self.ends[1 - end].lease.hca;
        if self.world.plan.mode == Mode::Direct {
            return Av::to_lid(1, peer.lid());
        }
        let mut av = Av::to_gid(1, gid_index, peer.gid_at(gid_index));
        // Capable of being marked for congestion.
        if let Some(global) = &mut av.global {
            global.traffic_class = ECT;
        }
        av
    }

    async fn work(&mut self) {
        let max = if self.world.transcript.is_some() {
            80
        } else {
            400
        };
        let mut left = self.draw.within(20..=max);
        while !self.world.quiescing.get() && left != 0 && self.conns.iter().any(|conn| !conn.broken)
        {
            left -= 1;
            if self.is_orphaned() {
                break;
            }
            let index = self.draw.below(self.conns.len());
            let end = self.draw.below(2);
            match self.draw.below(100) {
                0..=54 => post::post_send(self, index, end),
                55..=74 => receives::post(self, index, end),
                75..=89 => {
                    let pause = Duration::from_nanos(100)..=Duration::from_micros(60);
                    let pause = self.draw.duration(pause);
                    self.world.sim.sleep(pause).await;
                }
                90..=97 => control::control(self, index, end).await,
                98 => failing::post_failing(self, index, end),
                _ => self.break_up(index, end).await,
            }
            self.settle().await;
            reap::reap(self);
        }
        // How often that looks depends on timing; later draws are the same nevertheless.
        let behind = self.draw.fork();
        self.drain().await;
        self.draw = behind;
    }

    /// If runs are compared, waits until everything has ended.
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
                post::post_last(self, index, end);
            }
        }
        self.settle().await;
        let compared = self.world.transcript.is_some();
        let waits = self.draw.chance(Ppm::percent(50)) && !compared;
        let mode = self.world.plan.mode;
        loop {
            reap::reap(self);
            let open =
                |conn: &Conn| !conn.broken && conn.lanes.iter().any(|lane| lane.is_open(mode));
            let Some(index) = self.conns.iter().position(open) else {
                return streams::await_ends(self).await;
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
                return self.world.violated(Rule::Liveness, what);
            }
            for end in [0, 1] {
                receives::post(self, index, end);
                post::post_last(self, index, end);
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
        let waits = |lane: &crate::run::conn::Lane| !lane.sends.is_empty();
        let Some(end) = self.conns[index].lanes.iter().position(waits) else {
            return true;
        };
        // The other end may have to post a receive for it first, so this wait has a limit.
        let sim = self.world.sim.clone();
        let End { cqs, poller, .. } = &mut self.ends[end];
        let Some(cq) = cqs.first_mut() else {
            return true;
        };
        let woken = sim
            .timeout(Duration::from_millis(2), poller.ready(cq))
            .await;
        if woken.is_some() || self.conns[index].broken {
            return true;
        }
        let before = self.conns[index].lanes[end].sends.len();
        let counted = self.world.sim.counts().completions;
        reap::reap(self);
        let polled = self.world.sim.counts().completions != counted;
        if polled && self.conns[index].lanes[end].sends.len() < before {
            let what = "completions wait, and the armed queue has not fired";
            self.world.violated(Rule::Liveness, what);
            return false;
        }
        true
    }

    /// Takes one end of a connection down, or makes its send queue fail.
    async fn break_up(&mut self, index: usize, end: usize) {
        if !self.draw.chance(Ppm::percent(40)) {
            return;
        }
        self.conns[index].broken = true;
        let conn = &self.conns[index];
        let Some(qp) = &conn.qps[end] else { return };
        let _ = self.world.verb(&self.ends[end].lease, qp.to_error()).await;
    }

    /// Ends everything, in a drawn order, and checks what is left.
    async fn end(&mut self) {
        for index in 0..self.conns.len() {
            self.close(index).await;
        }
        for end in [0, 1] {
            self.try_too_early(end).await;
        }
        streams::unbind(self).await;
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
        reap::reap(self);
        self.look_back();
        for end in 0..2 {
            self.tear_down(end).await;
        }
    }

    /// Takes a connection out of service, by one of several methods.
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
                // Destroying it has the same effect.
                _ => continue,
            };
            // A fault may have prevented the connection.
            let live = self.conns[index].live;
            let illegal = |error: &Error| !live && matches!(error, Error::Transition(_));
            let request = qp.modify(QpAttr::to(to));
            let done = self.world.verb_or(lease, request, illegal).await;
            if done.is_err() {
                continue;
            }
            if to == QpState::Reset {
                reap::forget(self, index, end);
            } else {
                self.flushed(index, end).await;
            }
        }
    }

    /// Nothing may be left on a queue pair that has gone to ERR.
    async fn flushed(&mut self, index: usize, end: usize) {
        reap::reap(self);
        // A message that is half way through a shared receive may take a moment more.
        self.world.sim.sleep(Duration::from_nanos(1)).await;
        reap::reap(self);
        let conn = &self.conns[index];
        let (sends, recvs) = (conn.lanes[end].sends.unaccounted(), conn.recvs[end].len());
        if sends + recvs != 0 {
            let what = format!(
                "a queue pair in ERR has {sends} sends and {recvs} receives that were not flushed"
            );
            self.world.violated(Rule::Completion, what);
        }
    }

    /// An object that is destroyed while it is in use answers Busy, and is unchanged (K10).
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
                other => world.violated(
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
                other => world.violated(
                    Rule::Busy,
                    format!("a protection domain with objects was deallocated: {other:?}"),
                ),
            }
        }
    }

    /// What must hold when the queue pairs have been destroyed.
    fn look_back(&mut self) {
        for conn in &self.conns {
            let sends: usize = conn.lanes.iter().map(|lane| lane.sends.unaccounted()).sum();
            let recvs: usize = conn.recvs.iter().map(|recvs| recvs.len()).sum();
            if sends + recvs != 0 {
                let what = format!("{sends} sends and {recvs} receives have no completion");
                self.world.violated(Rule::Completion, what);
            }
        }
        for end in &mut self.ends {
            // Receives on a shared queue are dropped with it, without a completion.
            for (wr_id, _) in std::mem::take(&mut end.shared) {
                end.main.model.give_up(wr_id, wr_id);
            }
            for region in [&mut end.main, &mut end.spare, &mut end.read_only] {
                if let Some(transcript) = &self.world.transcript {
                    transcript.borrow_mut().memory(&region.model.certain());
                }
                for lane in 0..2 * CONNS as u64 {
                    if let Err(what) = region.model.resolve(lane) {
                        self.world.violated(Rule::Memory, what);
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
            // A region whose reregistration was ended by the removal is destroyed by itself, a little later (K12).
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
