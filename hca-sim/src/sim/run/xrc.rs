//! A session on an extended reliable connection: one initiator, one target that several have opened, and
//! two processes with queues that requests name.

mod judge;
mod request;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use verbs_core::{Access, Av, Path, Psn, Qp, QpAttr, QpState, QpType, Qpn, Refused, Xrcd};

use crate::sim::check::{Deliveries, Laws, Rule, Tag};
use crate::sim::run::Mode;
use crate::sim::run::conn::Seen;
use crate::sim::run::service;
use crate::sim::run::stand::{Stand, gone, is_busy, pause};
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
