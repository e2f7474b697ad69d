//! The part of a session of the services other than reliable connections at one node: memory, queues, and posted work.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use verbs_core::{
    Access, Cq, Error, Mtu, Pd, PostError, Qp, QpAttr, QpInit, QpState, QpType, Qpn, Recv, Refused,
    Srq, Wc, WcStatus, Xrcd,
};

use crate::check::{Rule, SendModel, Tag};
use crate::mutant::{FaultyPoller, Mutant};
use crate::run::area::Region;
use crate::run::listener::Listener;
use crate::run::posted::{Out, pieces};
use crate::run::world::{Lease, World};
use crate::{Draw, Ppm};

/// Entries of completion queues: more than a session ever has outstanding.
const CQE: u32 = 256;
/// The most bytes of a message.
pub(crate) const MESSAGE_MAX: usize = 6000;
/// Bytes of the place of a receive, or of a message to send: the longest message, and a header.
pub(crate) const SLOT: usize = 6144;
/// Places of receives, and as many of messages.
const SLOTS: usize = 8;
/// Target of the peer's WRITEs, and source of its READs.
pub(crate) const TARGET: Range<usize> = 2 * SLOTS * SLOT..2 * SLOTS * SLOT + PIECE;
/// The place of results of READs.
pub(crate) const BACK: Range<usize> = TARGET.end..TARGET.end + PIECE;
const PIECE: usize = 4096;

/// See the module's documentation.
pub(crate) struct Endpoint {
    pub(crate) lease: Lease,
    /// A number that is unique in the run.
    pub(crate) id: u16,
    pub(crate) pd: Option<Pd>,
    pub(crate) region: Region,
    /// One for sends and one for receives, or one for both.
    pub(crate) cqs: Vec<Cq>,
    /// One for each of the queues, or none at all.
    listeners: Vec<Listener>,
    poller: FaultyPoller,
    pub(crate) srq: Option<Srq>,
    pub(crate) qp: Option<Qp>,
    pub(crate) qpn: Qpn,
    pub(crate) sizes: Sizes,
    pub(crate) sends: SendModel<Out>,
    /// Receives that wait, in order.
    receives: VecDeque<Receive>,
    pub(crate) free: [Vec<usize>; 2],
    /// Work requests posted so far.
    pub(crate) posted: u64,
    /// Messages sent so far.
    messages: u16,
    pub(crate) quiet: usize,
    /// The queue pair was taken to ERR, or is about to be.
    pub(crate) broken: bool,
    /// A work request was posted that must fail, and its permitted status.
    pub(crate) failing: Option<(u64, WcStatus)>,
}

/// Sizes of the queues of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) send_depth: u32,
    recv_depth: u32,
    pub(crate) sges: u32,
    pub(crate) inline: u32,
    pub(crate) mtu: Mtu,
}

/// A receive that waits.
pub(crate) struct Receive {
    wr_id: u64,
    slot: usize,
    len: usize,
}

/// What arrived in a receive.
pub(crate) struct Received {
    /// The bytes before, and now.
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
}

impl Sizes {
    fn draw(draw: &mut Draw) -> Self {
        Self {
            send_depth: draw.within(2..=16) as u32,
            recv_depth: draw.within(2..=SLOTS as u64) as u32,
            sges: draw.within(1..=4) as u32,
            inline: *draw.pick(&[0, 64, 256]),
            mtu: *draw.pick(&[Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B4096]),
        }
    }

    /// The length of a message of at most `max` bytes.
    pub(crate) fn length(&self, draw: &mut Draw, max: usize) -> usize {
        let mtu = self.mtu.bytes() as usize;
        let len = match draw.below(6) {
            0 => draw.below(8),
            1..=2 => draw.within(1..=200) as usize,
            3 => mtu + draw.below(3) - 1,
            _ => draw.below(MESSAGE_MAX),
        };
        len.min(max)
    }
}

impl Endpoint {
    /// An endpoint on a machine; `None` if there is no memory.
    pub(crate) fn new(world: &World, lease: Lease, draw: &mut Draw) -> Option<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let slots = |first| (first..first + SLOTS).rev().collect();
        Some(Self {
            lease,
            id: world.name(),
            pd: None,
            region: Region::new(BACK.end, access, 0x5_0000_0000, draw)?,
            cqs: Vec::new(),
            listeners: Vec::new(),
            poller: FaultyPoller::new(world.options.mutant, draw.fork()),
            srq: None,
            qp: None,
            qpn: Qpn::new(0),
            sizes: Sizes::draw(draw),
            sends: SendModel::default(),
            receives: VecDeque::new(),
            free: [slots(0), slots(SLOTS)],
            posted: 0,
            messages: 0,
            quiet: 0,
            broken: false,
            failing: None,
        })
    }

    /// Makes everything except the queue pair. `None`: a fault prevented it.
    pub(crate) async fn build(
        &mut self,
        world: &World,
        draw: &mut Draw,
        domain: Option<&Xrcd>,
    ) -> Option<()> {
        let lease = &self.lease;
        let device = lease.device()?;
        let pd = world.verb(lease, device.alloc_pd()).await.ok()?;
        let pd = self.pd.insert(pd);
        let request = pd.register(
            verbs_core::sync::Arc::clone(&self.region.memory),
            self.region.access,
        );
        let request = request.iova(self.region.iova);
        self.region.mr = Some(world.verb(lease, request).await.ok()?);
        for _ in 0..=draw.below(2) {
            let mut request = device.create_cq(CQE);
            // On every other endpoint: the queues of the others are never armed.
            if self.id.is_multiple_of(2) {
                let listener = Listener::default();
                if world.options.mutant != Some(Mutant::SilentError) {
                    request = request.handler(listener.handler());
                }
                self.listeners.push(listener);
            }
            self.cqs.push(world.verb(lease, request).await.ok()?);
        }
        let Sizes {
            recv_depth, sges, ..
        } = self.sizes;
        if let Some(domain) = domain {
            let cq = self.cqs.last()?;
            let request = pd.create_xrc_srq(domain, cq, recv_depth, sges);
            self.srq = Some(world.verb(lease, request).await.ok()?);
        } else if draw.chance(Ppm::percent(33)) {
            let request = pd.create_srq(recv_depth, sges);
            self.srq = Some(world.verb(lease, request).await.ok()?);
        }
        Some(())
    }

    /// Makes the queue pair, in RESET.
    pub(crate) async fn create_qp(
        &mut self,
        world: &World,
        qp_type: QpType,
        change: impl FnOnce(QpInit<'_>) -> QpInit<'_>,
    ) -> Option<()> {
        let Sizes {
            send_depth,
            recv_depth,
            sges,
            inline,
            ..
        } = self.sizes;
        let (first, last) = (self.cqs.first()?, self.cqs.last()?);
        let mut init = match qp_type {
            QpType::XrcSend => QpInit::xrc(first),
            _ => QpInit::of(qp_type, first, last),
        };
        init = init
            .depth(send_depth, recv_depth)
            .sges(sges, sges)
            .inline(inline);
        if let (Some(srq), true) = (&self.srq, qp_type != QpType::XrcSend) {
            init = init.srq(srq);
        }
        let request = self.pd.as_ref()?.create_qp(change(init));
        let qp = world.verb(&self.lease, request).await.ok()?;
        self.qpn = qp.qpn();
        self.qp = Some(qp);
        Some(())
    }

    /// Changes the queue pair in some steps.
    pub(crate) async fn modify(&self, world: &World, steps: &[QpAttr]) -> Option<()> {
        for &attr in steps {
            let qp = self.qp.as_ref()?;
            world.verb(&self.lease, qp.modify(attr)).await.ok()?;
        }
        Some(())
    }

    /// A tag for the next message.
    pub(crate) fn next_tag(&mut self) -> Tag {
        self.messages += 1;
        Tag {
            sender: self.id,
            seq: self.messages,
        }
    }

    /// The completions, in order, of sends and of receives.
    pub(crate) fn poll(&mut self, world: &World) -> Vec<Wc> {
        let mut all = Vec::new();
        let is_removed = self.lease.removed.get();
        for (queue, cq) in self.cqs.iter_mut().enumerate() {
            let mut out = [Wc::default(); 16];
            let mut of_queue = Vec::new();
            loop {
                let polled = cq.poll(&mut out);
                if polled.is_empty() {
                    break;
                }
                let (now, journal) = (world.sim.now(), world.sim.journal());
                let name = u64::from(self.id) << 8 | queue as u64;
                polled
                    .iter()
                    .for_each(|wc| journal.completion(now, name, wc));
                of_queue.extend_from_slice(polled);
                all.extend(self.poller.pass(polled));
            }
            let listener = self.listeners.get_mut(queue).filter(|_| !is_removed);
            if let Some(listener) = listener
                && let Err(what) = listener.polled(cq, &of_queue)
            {
                world.violated(Rule::Liveness, what);
            }
        }
        all
    }

    /// Posts a receive with room for that many bytes. `false`: there is no place, or no queue.
    pub(crate) fn post_receive(&mut self, world: &World, draw: &mut Draw, len: usize) -> bool {
        let Some(&slot) = self.free[0].last() else {
            return false;
        };
        let Some(mr) = &self.region.mr else {
            return false;
        };
        self.posted += 1;
        let wr_id = self.posted << 1 | 1;
        let range = slot * SLOT..slot * SLOT + len;
        let sges = pieces(draw, mr, range, self.sizes.sges);
        let recv = Recv::new(wr_id).scatter(&sges);
        let posted = match (&mut self.srq, &mut self.qp) {
            (Some(srq), _) => srq.post_recv(recv),
            (None, Some(qp)) => qp.post_recv(recv),
            (None, None) => return false,
        };
        match posted {
            Ok(()) => {
                self.free[0].pop();
                self.region.model.lend(wr_id, wr_id, slot * SLOT, len);
                self.receives.push_back(Receive { wr_id, slot, len });
                true
            }
            Err(PostError::Full { .. })
                if self.receives.len() >= self.sizes.recv_depth as usize =>
            {
                false
            }
            Err(PostError::DeviceRemoved) if self.lease.removed.get() => false,
            Err(error) => {
                let waiting = self.receives.len();
                let what = format!("a receive with {waiting} waiting was refused: {error}");
                world.violated(Rule::Post, what);
                false
            }
        }
    }

    /// A receive has completed. Returns its content. Returns nothing, and reports a violation, if it is not its turn.
    pub(crate) fn received(&mut self, world: &World, wc: &Wc) -> Option<Received> {
        let mine = |receive: &Receive| receive.wr_id == wc.wr_id;
        let place = self.receives.iter().position(mine);
        // Receives of a shared queue are taken in order, but may complete in another.
        let place = place.filter(|&place| place == 0 || self.srq.is_some());
        let Some(receive) = place.and_then(|place| self.receives.remove(place)) else {
            let what = format!(
                "receive {:#x} is not the one whose turn it is: {}",
                wc.wr_id, wc.status
            );
            world.violated(Rule::Order, what);
            return None;
        };
        let at = receive.slot * SLOT;
        self.free[0].push(receive.slot);
        let before = self.region.model.settled(at..at + receive.len).to_vec();
        let after = match wc.is_ok() {
            true => self.region.model.reclaim(wc.wr_id, wc.wr_id),
            false => {
                self.region.model.give_up(wc.wr_id, wc.wr_id);
                Vec::new()
            }
        };
        Some(Received { before, after })
    }

    /// A completion of the send queue. Returns what has ended with it; the one that it is for comes last.
    pub(crate) fn ended(&mut self, world: &World, wc: &Wc) -> Vec<Out> {
        let orphaned = self.lease.removed.get();
        let failed = self.sends.has_failed();
        let explained = match wc.status {
            WcStatus::WrFlushErr => self.broken || failed || orphaned,
            status => self.failing.is_none_or(|failing| match status {
                WcStatus::Success => failing.0 != wc.wr_id,
                _ => true,
            }),
        };
        if !explained {
            let what = format!(
                "work request {:#x} ended without cause: {}",
                wc.wr_id, wc.status
            );
            world.violated(Rule::Status, what);
        }
        let retired = match self.sends.complete(wc.wr_id, wc.status) {
            Ok(retired) => retired,
            Err(what) => {
                world.violated(Rule::Order, what);
                return Vec::new();
            }
        };
        let silent = retired.silent.into_iter();
        let all: Vec<Out> = silent
            .chain([retired.ended])
            .map(|sent| sent.what)
            .collect();
        all.iter().for_each(|out| self.free[1].extend(out.slot));
        all
    }

    /// Whether the completion belongs to this queue pair, as it must.
    pub(crate) fn is_mine(&self, world: &World, wc: &Wc, qpn: Qpn) -> bool {
        if wc.qpn != qpn {
            let what = format!(
                "a completion for {:#x} of {}, which is not {qpn}",
                wc.wr_id, wc.qpn
            );
            world.violated(Rule::Result, what);
        }
        wc.qpn == qpn
    }

    /// Checks that every byte has a permitted value.
    pub(crate) fn look(&mut self, world: &World) {
        if let Err(what) = self.region.model.check() {
            world.violated(Rule::Memory, what);
        }
    }

    /// The queue pair was reset: work posted to it no longer makes completions.
    pub(crate) fn forget(&mut self) {
        let sends = self.sends.reset();
        self.free[1].extend(sends.into_iter().filter_map(|sent| sent.what.slot));
        (self.broken, self.failing, self.quiet) = (false, None, 0);
        if self.srq.is_none() {
            self.forget_receives();
        }
    }

    /// Receives that no message will complete.
    pub(crate) fn forget_receives(&mut self) {
        for Receive { wr_id, slot, .. } in std::mem::take(&mut self.receives) {
            self.region.model.give_up(wr_id, wr_id);
            self.free[0].push(slot);
        }
    }

    /// Work requests that have no completion although the queue pair was flushed.
    pub(crate) fn account(&self, world: &World) {
        let sends = self.sends.unaccounted();
        let recvs = if self.srq.is_some() {
            0
        } else {
            self.receives.len()
        };
        if sends + recvs != 0 {
            let what = format!("{sends} sends and {recvs} receives were not flushed");
            world.violated(Rule::Completion, what);
        }
    }

    /// Destroys the queue pair; the device may have been removed.
    pub(crate) async fn destroy_qp(&mut self, world: &World) {
        self.broken = true;
        if let Some(qp) = self.qp.take() {
            let done = world.verb(&self.lease, qp.destroy()).await;
            gone(world, done);
        }
    }

    /// Destroys everything except the queue pair, which has been destroyed already.
    pub(crate) async fn tear_down(&mut self, world: &World) {
        self.forget_receives();
        let lease = &self.lease;
        if let Some(srq) = self.srq.take() {
            let done = world.verb(lease, srq.destroy()).await;
            gone(world, done);
        }
        while let Some(cq) = self.cqs.pop() {
            let done = world.verb(lease, cq.destroy()).await;
            gone(world, done);
        }
        if let Some(mr) = self.region.mr.take() {
            let done = world.verb(lease, mr.dereg()).await;
            gone(world, done);
        }
        if let Some(pd) = self.pd.take() {
            let done = world.verb(lease, pd.dealloc()).await;
            gone(world, done);
        }
    }

    /// Whether it has a working queue pair, as far as is known.
    pub(crate) fn is_healthy(&self) -> bool {
        self.qp.is_some() && !self.broken && self.failing.is_none()
    }

    /// Sends again after SQE, as soon as everything was flushed. `None`: a fault prevented it.
    pub(crate) async fn mend(&mut self, world: &World) -> Option<()> {
        if self.failing.is_none() || self.broken || !self.sends.is_empty() {
            return Some(());
        }
        let qp = self.qp.as_ref()?;
        let rts = qp.modify(QpAttr::to(QpState::Rts));
        world.verb(&self.lease, rts).await.ok()?;
        self.sends.mend();
        (self.failing, self.quiet) = (None, 0);
        Some(())
    }
}

/// If a destroy returns its handle, there is no explanation for that.
pub(crate) fn gone<H: Send + 'static>(world: &World, destroyed: Result<(), Refused<H>>) {
    if let Err(refused) = destroyed
        && refused.handle.is_some()
    {
        let what = format!("a destroy gave the handle back: {}", refused.error);
        world.violated(Rule::Verb, what);
    }
}

/// Whether a destroy is refused because the object is in use, and the handle was returned (K10).
pub(crate) fn is_busy(error: &Error) -> bool {
    *error == Error::Busy
}

/// A pause between two steps.
pub(crate) fn pause(draw: &mut Draw) -> Duration {
    draw.duration(Duration::from_nanos(100)..=Duration::from_micros(60))
}
