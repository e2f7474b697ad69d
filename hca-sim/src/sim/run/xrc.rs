//! A session on an extended reliable connection: one initiator, one target that several have opened, and
//! two processes with queues that requests name.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use verbs_core::{
    Access, Av, Dest, Path, Psn, Qp, QpAttr, QpState, QpType, Qpn, Refused, SendOp, Srqn, Wc,
    WcOpcode, WcStatus, Xrcd,
};

use crate::sim::check::{Arrived, Deliveries, Laws, Rule, Tag};
use crate::sim::coverage::Operation;
use crate::sim::run::Mode;
use crate::sim::run::conn::Seen;
use crate::sim::run::service;
use crate::sim::run::stand::{
    BACK, Data, MESSAGE_MAX, Out, Parcel, Stand, TARGET, gone, is_busy, pause,
};
use crate::sim::run::world::{LIVE_MAX, World};
use crate::sim::{Draw, Ppm};

/// The initiator's place among the stands; the processes come behind it.
const INI: usize = 0;
const STANDS: usize = 3;
/// The lane of what the initiator writes, and of the results that it reads; receives have lanes by their
/// numbers.
const LANE: u64 = u64::MAX;

struct Session<'w> {
    world: &'w Rc<World>,
    draw: Draw,
    stands: [Stand; STANDS],
    domain: Option<Xrcd>,
    /// Handles of the target, at least one.
    targets: Vec<Qp>,
    target: Qpn,
    messages: Deliveries<About>,
    /// Messages by the process that they are for, in order.
    expected: [VecDeque<Tag>; STANDS],
    /// How many of each the target has acknowledged, and how many were told of.
    confirmed: [u64; STANDS],
    told: [u64; STANDS],
    psn: u32,
    rnr_retry: u8,
}

/// What is known of a message.
struct About {
    to: usize,
    /// It is a WRITE, whose immediate data takes a receive.
    writes: bool,
    at_post: Seen,
}

/// Builds a session, works on it and takes it down.
pub(super) async fn run(world: &Rc<World>, mut draw: Draw) {
    let (a, b) = (draw.below(world.plan.nodes), draw.below(world.plan.nodes));
    let Some(stands) = service::stands(world, &mut draw, [a, b, b]) else {
        return;
    };
    let laws = Laws {
        repeats: false,
        overtakes: false,
    };
    let mut session = Session {
        world,
        stands,
        domain: None,
        targets: Vec::new(),
        target: Qpn::new(0),
        messages: Deliveries::new(laws),
        expected: Default::default(),
        confirmed: [0; STANDS],
        told: [0; STANDS],
        psn: draw.within(0..=0xff_ffff) as u32,
        rnr_retry: if draw.chance(Ppm::percent(70)) {
            7
        } else {
            draw.within(0..=6) as u8
        },
        draw,
    };
    if session.build().await.is_some() && session.work().await.is_some() {
        session.drain().await;
    }
    session.end().await;
}

impl Session<'_> {
    async fn build(&mut self) -> Option<()> {
        let lease = &self.stands[1].lease;
        let device = lease.device()?;
        let domain = self.world.verb(lease, device.alloc_xrcd()).await.ok()?;
        let domain = self.domain.insert(domain);
        let [ini, processes @ ..] = &mut self.stands;
        ini.build(self.world, &mut self.draw, None).await?;
        for process in processes {
            process
                .build(self.world, &mut self.draw, Some(domain))
                .await?;
        }
        ini.create_qp(self.world, QpType::XrcSend, |init| init)
            .await?;
        let request = domain.create_target_qp();
        let target = self.world.verb(&self.stands[1].lease, request).await.ok()?;
        self.target = target.qpn();
        self.targets.push(target);
        let queues = self.stands[1..]
            .iter()
            .filter_map(|stand| Some(stand.srq.as_ref()?.srqn()));
        let (queues, target) = (queues.collect::<Vec<_>>(), self.target);
        let network = self.world.sim.network();
        network.tamper(|tamper| tamper.queues(target, &queues));
        self.connect().await
    }

    /// Takes both ends from RESET to RTS, with numbers that no packet on its way has.
    async fn connect(&mut self) -> Option<()> {
        self.psn = (self.psn + 0x20_0000) & 0xff_ffff;
        let psn = Psn::new(self.psn);
        let gid_index = self.draw.below(2) as u16;
        let path = |to: &Stand, dest_qpn, mode| Path {
            av: match mode {
                Mode::Direct => Av::to_lid(1, to.lease.hca.lid()),
                Mode::Packets => Av::to_gid(1, gid_index, to.lease.hca.gid_at(gid_index)),
            },
            dest_qpn,
            rq_psn: psn,
            mtu: self.stands[INI].sizes.mtu,
        };
        let mode = self.world.plan.mode;
        let there = path(&self.stands[1], self.target, mode);
        let back = path(&self.stands[INI], self.stands[INI].qpn, mode);
        let init = QpAttr::init(1, Access::REMOTE | Access::LOCAL_WRITE);
        let rts = QpAttr {
            timeout: Some(self.draw.within(10..=12) as u8),
            retry_cnt: Some(self.draw.within(3..=7) as u8),
            rnr_retry: Some(self.rnr_retry),
            ..QpAttr::rts_of(QpType::XrcSend, psn)
        };
        let rtr = QpAttr {
            min_rnr_timer: Some(self.draw.within(1..=12) as u8),
            ..QpAttr::rtr_of(QpType::XrcRecv, &back)
        };
        let target = [init, rtr, QpAttr::rts_of(QpType::XrcRecv, psn)];
        self.modify_target(&target).await?;
        let steps = [init, QpAttr::rtr_of(QpType::XrcSend, &there), rts];
        self.stands[INI].modify(self.world, &steps).await
    }

    async fn modify_target(&self, steps: &[QpAttr]) -> Option<()> {
        for &attr in steps {
            let target = self.targets.first()?;
            let lease = &self.stands[1].lease;
            self.world.verb(lease, target.modify(attr)).await.ok()?;
        }
        Some(())
    }

    fn is_orphaned(&self) -> bool {
        service::is_orphaned(&self.stands)
    }

    async fn work(&mut self) -> Option<()> {
        for _ in 0..self.draw.within(20..=150) {
            if self.world.calm.get() || self.is_orphaned() || self.stands[INI].broken {
                break;
            }
            let process = 1 + self.draw.below(2);
            match self.draw.below(100) {
                0..=44 => self.request(process),
                45..=64 => self.post_receives(process),
                65..=90 => self.world.sim.sleep(pause(&mut self.draw)).await,
                91..=94 => self.open_or_close().await?,
                95 => self.post_evil(process),
                96 => self.reset().await?,
                97 => self.try_too_early().await?,
                _ => self.limit(process).await,
            }
            self.reap();
        }
        Some(())
    }

    fn srqn(&self, process: usize) -> Option<Srqn> {
        Some(self.stands[process].srq.as_ref()?.srqn())
    }

    /// Posts a request that names the queue of that process.
    fn request(&mut self, process: usize) {
        if !self.stands[INI].is_healthy() {
            return;
        }
        let len = self.stands[INI].sizes.length(&mut self.draw, MESSAGE_MAX);
        let _ = match self.draw.below(10) {
            0..=5 => self.send(process, len),
            6..=7 => self.write(process, len),
            _ => self.read(process, len),
        };
    }

    fn send(&mut self, process: usize, len: usize) -> Option<()> {
        let tag = self.stands[INI].next_tag();
        let named = len < Tag::LEN || self.draw.chance(Ppm::percent(30));
        let imm = named.then(|| tag.number());
        let op = imm.map_or(SendOp::Send, SendOp::SendWithImm);
        let data = Data::Bytes(tag.compose(len));
        self.post(process, tag, op, Operation::XrcSend, data, true)?;
        self.tell_later(process, tag, len, imm, false);
        Some(())
    }

    fn write(&mut self, process: usize, len: usize) -> Option<()> {
        let len = len.min(TARGET.len());
        let at = TARGET.start + self.draw.below(TARGET.len() - len + 1);
        let remote = self.stands[process].region.mr.as_ref()?.remote(at);
        let tag = self.stands[INI].next_tag();
        let imm = self.draw.chance(Ppm::percent(50)).then(|| tag.number());
        let op = match imm {
            Some(imm) => SendOp::WriteWithImm(remote, imm),
            None => SendOp::Write(remote),
        };
        let bytes = tag.compose(len);
        let data = Data::Bytes(bytes.clone());
        self.post(process, tag, op, Operation::XrcWrite, data, imm.is_some())?;
        if imm.is_some() {
            self.tell_later(process, tag, len, imm, true);
        }
        // It may take effect before READs that were posted earlier.
        for sent in self.stands[INI].sends.iter_mut() {
            if let (Some((_, read)), true) = (&mut sent.what.read, sent.what.to == process) {
                read.overtake(at, &bytes);
            }
        }
        let model = &mut self.stands[process].region.model;
        model.write(LANE, u64::from(tag.seq), at, bytes);
        Some(())
    }

    fn read(&mut self, process: usize, len: usize) -> Option<()> {
        let waits = |out: &Out| out.read.is_some();
        if self.stands[INI].sends.iter().any(|sent| waits(&sent.what)) {
            // There is room for one result.
            return None;
        }
        let len = len.min(TARGET.len());
        let at = TARGET.start + self.draw.below(TARGET.len() - len + 1);
        let remote = self.stands[process].region.mr.as_ref()?.remote(at);
        let tag = self.stands[INI].next_tag();
        let back = BACK.start..BACK.start + len;
        let data = Data::Into(back.clone());
        let op = SendOp::Read(remote);
        self.post(process, tag, op, Operation::XrcRead, data, false)?;
        let model = &mut self.stands[INI].region.model;
        model.lend(LANE, u64::from(tag.seq), back.start, len);
        Some(())
    }

    /// A message was posted that takes a receive.
    fn tell_later(&mut self, to: usize, tag: Tag, len: usize, imm: Option<u32>, writes: bool) {
        let at_post = service::seen(self.world, &self.stands, true);
        let about = About {
            to,
            writes,
            at_post,
        };
        self.messages.post(tag, len, imm, about);
        self.expected[to].push_back(tag);
    }

    fn post(
        &mut self,
        process: usize,
        tag: Tag,
        op: SendOp,
        operation: Operation,
        data: Data,
        receives: bool,
    ) -> Option<u64> {
        let srqn = self.srqn(process)?;
        let read = match (&op, &data) {
            (SendOp::Read(remote), Data::Into(back)) => {
                let region = &self.stands[process].region;
                let at = usize::try_from(remote.addr - region.iova).ok()?;
                Some(region.model.read(LANE, at..at + back.len()))
            }
            _ => None,
        };
        let parcel = Parcel {
            op,
            dest: Dest::Srq(srqn),
            operation,
            data,
            seq: u64::from(tag.seq),
            to: process,
            receives,
            read,
            seen: service::seen(self.world, &self.stands, true),
        };
        self.stands[INI].post(self.world, &mut self.draw, parcel)
    }

    fn post_receives(&mut self, process: usize) {
        for _ in 0..=self.draw.below(4) {
            let stand = &mut self.stands[process];
            if !stand.post_receive(self.world, &mut self.draw, MESSAGE_MAX) {
                return;
            }
        }
    }

    /// Posts a request that has to fail, and takes the connection down.
    fn post_evil(&mut self, process: usize) {
        if !self.stands[INI].is_healthy() {
            return;
        }
        let other = 3 - process;
        let (Some(named), Some(mr)) = (self.srqn(process), &self.stands[other].region.mr) else {
            return;
        };
        let (op, srqn, status) = match self.draw.below(3) {
            // No queue, or one of another target.
            0 => (SendOp::Send, Srqn::new(0xff_fff0), WcStatus::RemInvReqErr),
            // The memory of the process that is not named.
            1 => (SendOp::Write(mr.remote(0)), named, WcStatus::RemAccessErr),
            _ => (SendOp::Read(mr.remote(0)), named, WcStatus::RemAccessErr),
        };
        let data = match op {
            SendOp::Read(_) => Data::Into(BACK.start..BACK.start + 8),
            _ => Data::Bytes(vec![0; 8]),
        };
        let parcel = Parcel {
            op,
            dest: Dest::Srq(srqn),
            operation: Operation::XrcSend,
            data,
            seq: 0,
            to: process,
            receives: false,
            read: None,
            seen: service::seen(self.world, &self.stands, true),
        };
        let ini = &mut self.stands[INI];
        let posted = ini.post(self.world, &mut self.draw, parcel);
        ini.evil = posted.map(|wr_id| (wr_id, status));
        ini.broken |= posted.is_some();
    }

    /// Opens the target once more, or closes one handle of several.
    async fn open_or_close(&mut self) -> Option<()> {
        let lease = &self.stands[1].lease;
        if self.targets.len() > 1 && self.draw.chance(Ppm::percent(60)) {
            let at = self.draw.below(self.targets.len());
            let done = self
                .world
                .verb(lease, self.targets.remove(at).destroy())
                .await;
            gone(self.world, done);
        } else if self.targets.len() < 4 {
            let request = self.domain.as_ref()?.open_target_qp(self.target);
            let opened = self.world.verb(lease, request).await.ok()?;
            if opened.qpn() != self.target {
                let what = format!("{} was opened, and {} came", self.target, opened.qpn());
                self.world.accuse(Rule::Verb, what);
            }
            self.targets.push(opened);
        }
        Some(())
    }

    /// A domain with queues and targets answers Busy (K10).
    async fn try_too_early(&mut self) -> Option<()> {
        let lease = &self.stands[1].lease;
        let request = self.domain.take()?.dealloc();
        match self.world.verb_or(lease, request, is_busy).await {
            Err(Refused {
                handle: Some(domain),
                ..
            }) => {
                self.domain = Some(domain);
                Some(())
            }
            other => {
                let what = format!("a domain with a target was deallocated: {other:?}");
                self.world.accuse(Rule::Busy, what);
                None
            }
        }
    }

    async fn limit(&mut self, process: usize) {
        let stand = &self.stands[process];
        let Some(srq) = &stand.srq else { return };
        let limit = self.draw.below(2) as u32;
        let _ = self.world.verb(&stand.lease, srq.arm_limit(limit)).await;
        let _ = self.world.verb(&stand.lease, srq.query()).await;
    }

    /// Takes both ends through RESET: what was on its way is gone.
    async fn reset(&mut self) -> Option<()> {
        self.reap();
        self.stands[INI].broken = true;
        let to = QpAttr::to(QpState::Reset);
        self.stands[INI].modify(self.world, &[to]).await?;
        self.reap();
        self.stands[INI].forget();
        self.stands[INI].broken = true;
        self.modify_target(&[to]).await?;
        self.world.sim.sleep(Duration::from_nanos(1)).await;
        self.reap();
        self.settle_all();
        self.expected = Default::default();
        self.connect().await?;
        self.stands[INI].broken = false;
        Some(())
    }

    /// Nothing of the connection can take effect any more.
    fn settle_all(&mut self) {
        for stand in &mut self.stands {
            if let Err(what) = stand.region.model.resolve(LANE) {
                self.world.accuse(Rule::Memory, what);
            }
        }
    }

    /// Polls everything, and judges what came.
    fn reap(&mut self) {
        let polled: Vec<(usize, Wc)> = (0..STANDS)
            .flat_map(|at| {
                let polled = self.stands[at].poll(self.world);
                polled.into_iter().map(move |wc| (at, wc))
            })
            .collect();
        if polled.is_empty() {
            return;
        }
        // A failure explains the flushes of others, which may have been polled before it.
        let fails = |wc: &Wc| !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr);
        for (at, wc) in &polled {
            if *at == INI && fails(wc) {
                self.fail(wc);
            }
        }
        for (at, wc) in &polled {
            let qpn = if *at == INI {
                self.stands[INI].qpn
            } else {
                self.target
            };
            if !self.stands[*at].is_mine(self.world, wc, qpn) {
                continue;
            }
            if *at == INI {
                self.sent(wc);
            } else {
                self.received(*at, wc);
            }
        }
        for process in 1..STANDS {
            let (confirmed, told) = (self.confirmed[process], self.told[process]);
            if told < confirmed {
                let what = format!("{confirmed} messages were acknowledged, and {told} told of");
                self.world.accuse(Rule::Completion, what);
            }
        }
        self.stands
            .iter_mut()
            .for_each(|stand| stand.look(self.world));
    }

    /// A request ended in an error: whether there is cause for that one.
    fn fail(&mut self, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let ini = &mut self.stands[INI];
        let explained = match wc.status {
            WcStatus::RetryExcErr => self.world.plan.loses() || orphaned || ini.broken,
            WcStatus::RnrRetryExcErr => self.rnr_retry < 7,
            status => ini.evil == Some((wc.wr_id, status)),
        };
        if !explained {
            let what = format!(
                "work request {:#x} ended without cause: {}",
                wc.wr_id, wc.status
            );
            self.world.accuse(Rule::Status, what);
        }
        ini.broken = true;
    }

    fn sent(&mut self, wc: &Wc) {
        let ended = self.stands[INI].ended(self.world, wc);
        let last = ended.len();
        let (seen, orphaned) = (
            service::seen(self.world, &self.stands, true),
            self.is_orphaned(),
        );
        for (number, out) in ended.into_iter().enumerate() {
            let failed = !wc.is_ok() && number + 1 == last;
            let rows = std::iter::once(out.operation);
            let mut coverage = self.world.coverage.borrow_mut();
            seen.note(&mut coverage, rows, out.seen, failed && !orphaned, orphaned);
            drop(coverage);
            if failed {
                continue;
            }
            self.done(&out, (number + 1 == last).then_some(wc));
        }
    }

    /// A request did what it was to do.
    fn done(&mut self, out: &Out, wc: Option<&Wc>) {
        let opcode = match out.operation {
            Operation::XrcSend => WcOpcode::Send,
            Operation::XrcWrite => WcOpcode::RdmaWrite,
            _ => WcOpcode::RdmaRead,
        };
        if let Some(wc) = wc.filter(|wc| wc.opcode != opcode) {
            let what = format!(
                "work request {:#x} is {}, not {opcode}",
                wc.wr_id, wc.opcode
            );
            self.world.accuse(Rule::Result, what);
        }
        self.confirmed[out.to] += u64::from(out.receives);
        self.stands[out.to].region.model.settle(LANE, out.seq);
        if let Some((_, read)) = &out.read {
            let got = self.stands[INI].region.model.reclaim(LANE, out.seq);
            if let Some(at) = read.differs(&got) {
                let what = format!("byte {at} of a READ is one that the process never had there");
                self.world.accuse(Rule::Result, what);
            }
        }
    }

    fn received(&mut self, process: usize, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let broken = self.stands[INI].broken;
        let stand = &mut self.stands[process];
        let Some(received) = stand.received(self.world, wc) else {
            return;
        };
        if !wc.is_ok() {
            if wc.status != WcStatus::WrFlushErr || !(broken || orphaned) {
                let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
                self.world.accuse(Rule::Status, what);
            }
            return service::lost_receive(self.world, Operation::XrcReceive, orphaned);
        }
        let len = wc.byte_len as usize;
        let carries = wc.opcode == WcOpcode::Recv;
        let end = len.min(received.after.len());
        let arrived = Arrived {
            bytes: carries.then(|| &received.after[..end]),
            len,
            imm: wc.immediate(),
        };
        let may = |about: &About| match about {
            About { to, .. } if *to != process => Err("it named the other queue"),
            About { writes, .. } if *writes == carries => Err("it is the other operation"),
            About { .. } => Ok(()),
        };
        let tag = match self.messages.tell(stand.id, &arrived, may) {
            Ok(tag) => tag,
            Err(what) => return self.world.accuse(Rule::Delivery, what),
        };
        let behind = if carries { end } else { 0 };
        if received.after[behind..] != received.before[behind..] {
            let what = format!("receive {:#x} has bytes behind its message", wc.wr_id);
            self.world.accuse(Rule::Memory, what);
        }
        // What was sent before it to that process is in place.
        stand.region.model.settle(LANE, u64::from(tag.seq));
        self.told[process] += 1;
        if self.expected[process].pop_front() != Some(tag) {
            let what = format!("{tag:?} was told of, and one before it was not");
            self.world.accuse(Rule::Delivery, what);
        }
        let was = self.messages.about(tag).map(|about| about.at_post);
        let seen = service::seen(self.world, &self.stands, true);
        let rows = std::iter::once(Operation::XrcReceive);
        let mut coverage = self.world.coverage.borrow_mut();
        seen.note(
            &mut coverage,
            rows,
            was.unwrap_or_default(),
            false,
            orphaned,
        );
    }

    /// Waits until everything that was posted has ended, helping where a receive is missing.
    async fn drain(&mut self) {
        let begun = self.world.sim.now();
        loop {
            self.reap();
            let ini = &self.stands[INI];
            let waits = ini.sends.iter().any(|sent| sent.signaled);
            if !waits || ini.broken || self.is_orphaned() {
                return;
            }
            if self.world.sim.now() - begun > LIVE_MAX {
                let what = format!("an initiator waits with {} requests", ini.sends.len());
                return self.world.accuse(Rule::Liveness, what);
            }
            for process in 1..STANDS {
                self.post_receives(process);
            }
            self.world.sim.sleep(Duration::from_micros(50)).await;
        }
    }

    /// Takes everything down, from either end.
    async fn end(&mut self) {
        let from_target = self.draw.chance(Ppm::percent(50));
        if !from_target {
            self.stands[INI].destroy_qp(self.world).await;
        }
        self.stands[INI].broken = true;
        let lease = &self.stands[1].lease;
        for target in std::mem::take(&mut self.targets) {
            let done = self.world.verb(lease, target.destroy()).await;
            gone(self.world, done);
        }
        self.stands[INI].destroy_qp(self.world).await;
        self.reap();
        self.stands[INI].account(self.world);
        self.settle_all();
        for stand in &mut self.stands {
            stand.tear_down(self.world).await;
        }
        if let Some(domain) = self.domain.take() {
            let done = self
                .world
                .verb(&self.stands[1].lease, domain.dealloc())
                .await;
            gone(self.world, done);
        }
    }
}
