//! A session about keys: memory windows of every type, fast registrations and a pool, made valid and invalid by their
//! holder and by its peer, while the peer accesses memory through them.

mod access;
mod change;
mod judge;
mod objects;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use verbs_core::{Access, Av, Path, Psn, QpAttr, QpState, QpType, WcOpcode, WcStatus};

use crate::check::{KeyModel, Leads, Rule, Tag, Verdict};
use crate::run::area::Region;
use crate::run::conn::Seen;
use crate::run::endpoint::{Endpoint, pause};
use crate::run::keys::objects::Objects;
use crate::run::service;
use crate::run::world::{LIVE_MAX, World};
use crate::run::{Mode, endpoint};
use crate::{Draw, Ppm};

/// Connections of a session: the first has the holder's keys, the second is a stranger's, except for windows that are
/// bound to it.
const PAIRS: usize = 2;
/// Bytes that keys give access to, for each connection.
const SHOWN: usize = 8192;
/// The longest pause between two sessions.
const PAUSE: Duration = Duration::from_millis(3);

/// Runs sessions until the run quiesces.
pub(super) async fn run(world: Rc<World>, mut draw: Draw) {
    while !world.quiescing.get() {
        let pause = draw.duration(Duration::from_micros(100)..=PAUSE);
        world.sim.sleep(pause).await;
        let of_session = draw.fork();
        if !world.quiescing.get() {
            session(&world, of_session).await;
        }
    }
}

/// Builds a session, works on it and takes it down.
async fn session(world: &Rc<World>, mut draw: Draw) {
    let (a, b) = (draw.below(world.plan.nodes), draw.below(world.plan.nodes));
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let endpoints = service::endpoints(world, &mut draw, [a, b, a, b]);
    let shown = Region::new(PAIRS * SHOWN, access, 0x6_0000_0000, &mut draw);
    let (Some(endpoints), Some(shown)) = (endpoints, shown) else {
        return;
    };
    let mut session = Session {
        world,
        endpoints,
        shown,
        keys: KeyModel::default(),
        objects: Objects::default(),
        actions: BTreeMap::new(),
        seq: 0,
        told: Default::default(),
        dead: Vec::new(),
        failed: [false; PAIRS],
        wrong: [false; PAIRS],
        nudged: [false; PAIRS],
        psn: draw.within(0..=0xff_ffff) as u32,
        draw,
    };
    if session.build().await.is_some() && session.work().await.is_some() {
        session.drain().await;
    }
    session.end().await;
}

struct Session<'w> {
    world: &'w Rc<World>,
    draw: Draw,
    /// The peer and the holder of each connection.
    endpoints: [Endpoint; 2 * PAIRS],
    /// The memory that keys give access to.
    shown: Region,
    keys: KeyModel,
    objects: Objects,
    /// Work that was posted and has not ended, by its number.
    actions: BTreeMap<u64, Action>,
    seq: u64,
    /// SENDs with invalidate of each connection that have not been reported to the holder.
    told: [VecDeque<Told>; PAIRS],
    /// Keys that no longer give access to anything.
    dead: Vec<(u32, Leads)>,
    /// A work request of the connection has ended in error.
    failed: [bool; PAIRS],
    /// A work request was posted that must fail.
    wrong: [bool; PAIRS],
    /// The holder has posted a work request that waits for the network.
    nudged: [bool; PAIRS],
    psn: u32,
}

/// What a work request does.
#[derive(Clone, Debug)]
enum Action {
    /// The peer accesses memory.
    Reach {
        key: u32,
        verdict: Verdict,
        opcode: WcOpcode,
        /// It has a result.
        reads: bool,
    },
    /// A window is bound, and its previous key is no longer valid.
    Bind {
        window: usize,
        key: u32,
        old: u32,
    },
    /// A window of type 1 is unbound.
    Unbind {
        window: usize,
        old: u32,
    },
    Register {
        key: u32,
    },
    Invalidate {
        whose: Whose,
        key: u32,
    },
    SendInv,
    /// The holder writes no bytes, only to be answered.
    Nudge,
    /// It must end in this status, or it is a SEND that is reported only to the receiver.
    Wrong {
        legal: &'static [WcStatus],
    },
}

/// The object that the key belongs to.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Window(usize),
    Fast,
}

/// A SEND with invalidate.
struct Told {
    seq: u64,
    tag: Tag,
    len: usize,
    key: u32,
    /// `None`: no peer may make that key invalid by it.
    whose: Option<Whose>,
    /// The holder has acknowledged it.
    confirmed: bool,
    seen: Seen,
}

const fn peer(pair: usize) -> usize {
    2 * pair
}

const fn holder(pair: usize) -> usize {
    2 * pair + 1
}

impl Session<'_> {
    async fn build(&mut self) -> Option<()> {
        for endpoint in &mut self.endpoints {
            endpoint.build(self.world, &mut self.draw, None).await?;
        }
        let holder = &self.endpoints[holder(0)];
        let pd = holder.pd.as_ref()?;
        let memory = verbs_core::sync::Arc::clone(&self.shown.memory);
        let request = pd.register(memory, self.shown.access);
        let request = request.iova(self.shown.iova);
        self.shown.mr = Some(self.world.verb(&holder.lease, request).await.ok()?);
        self.objects.build(self.world, &holder.lease, pd).await?;
        for endpoint in &mut self.endpoints {
            endpoint
                .create_qp(self.world, QpType::Rc, |init| init)
                .await?;
        }
        for pair in 0..PAIRS {
            self.connect(pair).await?;
        }
        Some(())
    }

    /// Takes both ends of a connection from RESET to RTS, with numbers that no packet under way has.
    async fn connect(&mut self, pair: usize) -> Option<()> {
        self.psn = (self.psn + 0x20_0000) & 0xff_ffff;
        let psn = Psn::new(self.psn);
        let gid_index = self.draw.below(2) as u16;
        let timeout = self.draw.within(10..=12) as u8;
        let min_rnr_timer = self.draw.within(1..=12) as u8;
        for (at, to) in [(peer(pair), holder(pair)), (holder(pair), peer(pair))] {
            let to = &self.endpoints[to];
            let path = Path {
                av: match self.world.plan.mode {
                    Mode::Direct => Av::to_lid(1, to.lease.hca.lid()),
                    Mode::Packets | Mode::Streams => {
                        Av::to_gid(1, gid_index, to.lease.hca.gid_at(gid_index))
                    }
                },
                dest_qpn: to.qpn,
                rq_psn: psn,
                mtu: self.endpoints[peer(pair)].sizes.mtu,
            };
            let rtr = QpAttr {
                min_rnr_timer: Some(min_rnr_timer),
                ..QpAttr::rtr(&path)
            };
            let rts = QpAttr {
                timeout: Some(timeout),
                ..QpAttr::rts(psn)
            };
            let init = QpAttr::init(1, Access::REMOTE | Access::LOCAL_WRITE);
            let steps = [init, rtr, rts];
            self.endpoints[at].modify(self.world, &steps).await?;
        }
        let [a, b] = [peer(pair), holder(pair)].map(|at| self.endpoints[at].qpn);
        let network = self.world.sim.network();
        network.mutator(|mutator| mutator.connected(a, b));
        (self.failed[pair], self.wrong[pair]) = (false, false);
        self.nudged[pair] = false;
        Some(())
    }

    fn is_orphaned(&self) -> bool {
        service::is_orphaned(&self.endpoints)
    }

    fn seen(&self) -> Seen {
        service::seen(self.world, &self.endpoints, true)
    }

    /// Whether a connection has failed, or may at any time: then flushes and missing answers are no surprise.
    fn is_shaky(&self, pair: usize) -> bool {
        let may = |action: &Action| match action {
            Action::Reach { verdict, .. } => *verdict != Verdict::Must,
            _ => false,
        };
        self.failed[pair] || self.wrong[pair] || self.actions.values().any(may)
    }

    /// Whether work requests can be posted on both ends of that connection.
    fn is_healthy(&self, pair: usize) -> bool {
        let fit = |at: usize| self.endpoints[at].is_healthy();
        !self.failed[pair] && !self.wrong[pair] && fit(peer(pair)) && fit(holder(pair))
    }

    async fn work(&mut self) -> Option<()> {
        for _ in 0..self.draw.within(40..=150) {
            if self.world.quiescing.get() || self.is_orphaned() {
                break;
            }
            let pair = usize::from(self.draw.chance(Ppm::percent(20)));
            match self.draw.below(100) {
                0..=34 => drop(access::access(self, pair)),
                35..=52 => change::change(self).await,
                53..=56 => drop(change::nudge(self, pair)),
                57..=63 => self.post_receives(pair),
                64..=71 => drop(access::invalidate(self, pair)),
                72..=89 => self.world.sim.sleep(pause(&mut self.draw)).await,
                90..=92 => change::deallocate(self).await,
                93..=94 => drop(access::access_wrongly(self, pair)),
                95 => drop(access::invalidate_wrongly(self, pair)),
                96..=97 => drop(change::change_wrongly(self, pair)),
                _ => change::try_too_early(self, pair).await,
            }
            judge::reap(self);
            for pair in 0..PAIRS {
                self.mend(pair).await?;
            }
        }
        Some(())
    }

    fn post_receives(&mut self, pair: usize) {
        let endpoint = &mut self.endpoints[holder(pair)];
        for _ in 0..=self.draw.below(3) {
            if !endpoint.post_receive(self.world, &mut self.draw, endpoint::MESSAGE_MAX) {
                return;
            }
        }
    }

    /// Waits until what was posted on a connection has ended, helping where a receive is missing.
    async fn let_out(&mut self, pair: usize) {
        let begun = self.world.sim.now();
        loop {
            judge::reap(self);
            let ends = [peer(pair), holder(pair)].map(|at| &self.endpoints[at]);
            let waits = |endpoint: &&Endpoint| endpoint.sends.iter().any(|sent| sent.signaled);
            if self.failed[pair] || self.is_orphaned() || !ends.iter().any(waits) {
                return;
            }
            if self.world.sim.now() - begun > LIVE_MAX {
                let waiting = ends.map(|endpoint| endpoint.sends.len());
                let what = format!("a connection waits with {waiting:?} work requests");
                return self.world.violated(Rule::Liveness, what);
            }
            self.post_receives(pair);
            self.world.sim.sleep(Duration::from_micros(20)).await;
        }
    }

    /// Takes a connection on which something has failed, or must fail, through ERR and RESET.
    async fn mend(&mut self, pair: usize) -> Option<()> {
        if self.wrong[pair] {
            self.let_out(pair).await;
        }
        if !self.failed[pair] && !self.wrong[pair] {
            return Some(());
        }
        self.failed[pair] = true;
        let ends = [peer(pair), holder(pair)];
        for at in ends {
            self.endpoints[at].broken = true;
            let to = QpAttr::to(QpState::Err);
            self.endpoints[at].modify(self.world, &[to]).await?;
        }
        self.world.sim.sleep(Duration::from_nanos(1)).await;
        judge::reap(self);
        self.close(pair);
        for at in ends {
            let to = QpAttr::to(QpState::Reset);
            self.endpoints[at].modify(self.world, &[to]).await?;
        }
        judge::reap(self);
        for at in ends {
            self.endpoints[at].forget();
        }
        self.connect(pair).await
    }

    /// Everything on a connection has been flushed: updates keys and memory accordingly.
    fn close(&mut self, pair: usize) {
        for at in [peer(pair), holder(pair)] {
            self.endpoints[at].account(self.world);
            // Work requests without a completion that were not flushed have succeeded.
            let silent = self.endpoints[at].sends.iter().map(|sent| sent.what.seq);
            for seq in silent.collect::<Vec<_>>() {
                if let Some(action) = self.actions.remove(&seq) {
                    judge::done(self, pair, seq, &action);
                }
            }
        }
        for told in std::mem::take(&mut self.told[pair]) {
            let Some(whose) = told.whose else { continue };
            if told.confirmed && !self.is_orphaned() {
                let what = format!("{:?} was acknowledged, and nobody told of it", told.tag);
                self.world.violated(Rule::Completion, what);
            }
            self.keys.valid(told.key);
            self.objects.idle(whose);
        }
        if let Err(what) = self.shown.model.resolve(pair as u64) {
            self.world.violated(Rule::Memory, what);
        }
    }

    async fn drain(&mut self) {
        for pair in 0..PAIRS {
            self.let_out(pair).await;
        }
    }

    /// Takes everything down.
    async fn end(&mut self) {
        for pair in 0..PAIRS {
            change::try_too_early(self, pair).await;
        }
        self.endpoints
            .iter_mut()
            .for_each(|endpoint| endpoint.broken = true);
        self.failed = [true; PAIRS];
        if self.draw.chance(Ppm::percent(50)) {
            for pair in 0..PAIRS {
                self.endpoints[peer(pair)].destroy_qp(self.world).await;
            }
        }
        let lease = &self.endpoints[holder(0)].lease;
        self.objects.tear_down(self.world, lease).await;
        for endpoint in &mut self.endpoints {
            endpoint.destroy_qp(self.world).await;
        }
        judge::reap(self);
        for pair in 0..PAIRS {
            self.close(pair);
        }
        if let Some(mr) = self.shown.mr.take() {
            let lease = &self.endpoints[holder(0)].lease;
            let done = self.world.verb(lease, mr.dereg()).await;
            endpoint::gone(self.world, done);
        }
        for endpoint in &mut self.endpoints {
            endpoint.tear_down(self.world).await;
        }
    }
}
