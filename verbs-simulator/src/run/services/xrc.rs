//! A session on an extended reliable connection: one initiator, one target that several processes have opened, and two
//! processes with queues that requests name.

mod judge;
mod request;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use verbs_core::{Access, Av, Path, Psn, Qp, QpAttr, QpState, QpType, Qpn, Refused, Xrcd};

use crate::check::{Deliveries, Laws, Rule, Tag};
use crate::run::Mode;
use crate::run::conn::Seen;
use crate::run::endpoint::{Endpoint, gone, is_busy, pause};
use crate::run::service;
use crate::run::world::{LIVE_MAX, World};
use crate::{Draw, Ppm};

/// The initiator's place among the endpoints; the processes follow it.
const INI: usize = 0;
const ENDPOINTS: usize = 3;
/// The lane of what the initiator writes, and of the results that it reads; receives have lanes by their numbers.
const LANE: u64 = u64::MAX;

struct Session<'w> {
    world: &'w Rc<World>,
    draw: Draw,
    endpoints: [Endpoint; ENDPOINTS],
    domain: Option<Xrcd>,
    /// Handles of the target, at least one.
    targets: Vec<Qp>,
    target: Qpn,
    messages: Deliveries<About>,
    /// Messages by their destination process, in order.
    expected: [VecDeque<Tag>; ENDPOINTS],
    /// How many of each the target has acknowledged, and how many were reported.
    confirmed: [u64; ENDPOINTS],
    told: [u64; ENDPOINTS],
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
pub(crate) async fn run(world: &Rc<World>, mut draw: Draw) {
    let (a, b) = (draw.below(world.plan.nodes), draw.below(world.plan.nodes));
    let Some(endpoints) = service::endpoints(world, &mut draw, [a, b, b]) else {
        return;
    };
    let laws = Laws {
        repeats: false,
        overtakes: false,
    };
    let mut session = Session {
        world,
        endpoints,
        domain: None,
        targets: Vec::new(),
        target: Qpn::new(0),
        messages: Deliveries::new(laws),
        expected: Default::default(),
        confirmed: [0; ENDPOINTS],
        told: [0; ENDPOINTS],
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
        let lease = &self.endpoints[1].lease;
        let device = lease.device()?;
        let domain = self.world.verb(lease, device.alloc_xrcd()).await.ok()?;
        let domain = self.domain.insert(domain);
        let [ini, processes @ ..] = &mut self.endpoints;
        ini.build(self.world, &mut self.draw, None).await?;
        for process in processes {
            process
                .build(self.world, &mut self.draw, Some(domain))
                .await?;
        }
        ini.create_qp(self.world, QpType::XrcSend, |init| init)
            .await?;
        let request = domain.create_target_qp();
        let target = self
            .world
            .verb(&self.endpoints[1].lease, request)
            .await
            .ok()?;
        self.target = target.qpn();
        self.targets.push(target);
        let queues = self.endpoints[1..]
            .iter()
            .filter_map(|endpoint| Some(endpoint.srq.as_ref()?.srqn()));
        let (queues, target) = (queues.collect::<Vec<_>>(), self.target);
        let network = self.world.sim.network();
        network.mutator(|mutator| mutator.queues(target, &queues));
        self.connect().await
    }

    /// Takes both ends from RESET to RTS, with numbers that no packet under way has.
    async fn connect(&mut self) -> Option<()> {
        self.psn = (self.psn + 0x20_0000) & 0xff_ffff;
        let psn = Psn::new(self.psn);
        let gid_index = self.draw.below(2) as u16;
        let path = |to: &Endpoint, dest_qpn, mode| Path {
            av: match mode {
                Mode::Direct => Av::to_lid(1, to.lease.hca.lid()),
                Mode::Packets | Mode::Streams => {
                    Av::to_gid(1, gid_index, to.lease.hca.gid_at(gid_index))
                }
            },
            dest_qpn,
            rq_psn: psn,
            mtu: self.endpoints[INI].sizes.mtu,
        };
        let mode = self.world.plan.mode;
        let there = path(&self.endpoints[1], self.target, mode);
        let back = path(&self.endpoints[INI], self.endpoints[INI].qpn, mode);
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
        self.endpoints[INI].modify(self.world, &steps).await
    }

    async fn modify_target(&self, steps: &[QpAttr]) -> Option<()> {
        for &attr in steps {
            let target = self.targets.first()?;
            let lease = &self.endpoints[1].lease;
            self.world.verb(lease, target.modify(attr)).await.ok()?;
        }
        Some(())
    }

    fn is_orphaned(&self) -> bool {
        service::is_orphaned(&self.endpoints)
    }

    async fn work(&mut self) -> Option<()> {
        for _ in 0..self.draw.within(20..=150) {
            if self.world.quiescing.get() || self.is_orphaned() || self.endpoints[INI].broken {
                break;
            }
            let process = 1 + self.draw.below(2);
            match self.draw.below(100) {
                0..=44 => request::request(self, process),
                45..=64 => request::post_receives(self, process),
                65..=90 => self.world.sim.sleep(pause(&mut self.draw)).await,
                91..=94 => self.open_or_close().await?,
                95 => request::post_failing(self, process),
                96 => self.reset().await?,
                97 => self.try_too_early().await?,
                _ => self.limit(process).await,
            }
            judge::reap(self);
        }
        Some(())
    }

    /// Opens the target once more, or closes one handle of several.
    async fn open_or_close(&mut self) -> Option<()> {
        let lease = &self.endpoints[1].lease;
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
                self.world.violated(Rule::Verb, what);
            }
            self.targets.push(opened);
        }
        Some(())
    }

    /// A domain with queues and targets answers Busy (K10).
    async fn try_too_early(&mut self) -> Option<()> {
        let lease = &self.endpoints[1].lease;
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
                self.world.violated(Rule::Busy, what);
                None
            }
        }
    }

    async fn limit(&mut self, process: usize) {
        let endpoint = &self.endpoints[process];
        let Some(srq) = &endpoint.srq else { return };
        let limit = self.draw.below(2) as u32;
        let _ = self.world.verb(&endpoint.lease, srq.arm_limit(limit)).await;
        let _ = self.world.verb(&endpoint.lease, srq.query()).await;
    }

    /// Takes both ends through RESET: operations under way are lost.
    async fn reset(&mut self) -> Option<()> {
        judge::reap(self);
        self.endpoints[INI].broken = true;
        let to = QpAttr::to(QpState::Reset);
        self.endpoints[INI].modify(self.world, &[to]).await?;
        judge::reap(self);
        self.endpoints[INI].forget();
        self.endpoints[INI].broken = true;
        self.modify_target(&[to]).await?;
        self.world.sim.sleep(Duration::from_nanos(1)).await;
        judge::reap(self);
        self.settle_all();
        self.expected = Default::default();
        self.connect().await?;
        self.endpoints[INI].broken = false;
        Some(())
    }

    /// No operation of the connection can take effect any longer.
    fn settle_all(&mut self) {
        for endpoint in &mut self.endpoints {
            if let Err(what) = endpoint.region.model.resolve(LANE) {
                self.world.violated(Rule::Memory, what);
            }
        }
    }

    /// Waits until everything that was posted has ended, helping where a receive is missing.
    async fn drain(&mut self) {
        let begun = self.world.sim.now();
        loop {
            judge::reap(self);
            let ini = &self.endpoints[INI];
            let waits = ini.sends.iter().any(|sent| sent.signaled);
            if !waits || ini.broken || self.is_orphaned() {
                return;
            }
            if self.world.sim.now() - begun > LIVE_MAX {
                let what = format!("an initiator waits with {} requests", ini.sends.len());
                return self.world.violated(Rule::Liveness, what);
            }
            for process in 1..ENDPOINTS {
                request::post_receives(self, process);
            }
            self.world.sim.sleep(Duration::from_micros(50)).await;
        }
    }

    /// Takes everything down, from either end.
    async fn end(&mut self) {
        let from_target = self.draw.chance(Ppm::percent(50));
        if !from_target {
            self.endpoints[INI].destroy_qp(self.world).await;
        }
        self.endpoints[INI].broken = true;
        let lease = &self.endpoints[1].lease;
        for target in std::mem::take(&mut self.targets) {
            let done = self.world.verb(lease, target.destroy()).await;
            gone(self.world, done);
        }
        self.endpoints[INI].destroy_qp(self.world).await;
        judge::reap(self);
        self.endpoints[INI].account(self.world);
        self.settle_all();
        for endpoint in &mut self.endpoints {
            endpoint.tear_down(self.world).await;
        }
        if let Some(domain) = self.domain.take() {
            let done = self
                .world
                .verb(&self.endpoints[1].lease, domain.dealloc())
                .await;
            gone(self.world, done);
        }
    }
}
