//! A session on an unreliable connection: messages that are reported are whole, once and in order; the rest are lost.

use std::rc::Rc;

use verbs_core::{Access, Av, Dest, Path, Psn, QpAttr, QpType, SendOp, Wc, WcOpcode, WcStatus};

use crate::check::{Arrived, Deliveries, Rule, Tag};
use crate::coverage::Operation;
use crate::run::Mode;
use crate::run::conn::Seen;
use crate::run::endpoint::{Endpoint, MESSAGE_MAX, TARGET, pause};
use crate::run::pending_wr::{Data, PendingWr};
use crate::run::service::{self, Flying};
use crate::run::unreliable::{SMALL, Unreliable};
use crate::run::world::World;
use crate::{Draw, Ppm};

/// The most WRITEs of a session: where packets may arrive twice, each may take effect until the end.
const WRITES_MAX: usize = 24;
struct Session<'w> {
    world: &'w Rc<World>,
    draw: Draw,
    endpoints: [Endpoint; 2],
    messages: Deliveries<About>,
    flying: Flying,
    /// The next packet number of each direction.
    psns: [u32; 2],
    writes: usize,
    gid_index: u16,
}

/// What is known of a message.
struct About {
    to: u16,
    /// It is a WRITE, whose immediate data takes a receive.
    writes: bool,
    /// How many bytes the receive must have room for.
    len: usize,
}

/// Builds a session, works on it and takes it down.
pub(crate) async fn run(world: &Rc<World>, mut draw: Draw) {
    let nodes = [(); 2].map(|()| draw.below(world.plan.nodes));
    let Some(endpoints) = service::endpoints(world, &mut draw, nodes) else {
        return;
    };
    let psns = [(); 2].map(|()| draw.within(0..=0xff_ffff) as u32);
    let mut session = Session {
        world,
        endpoints,
        messages: Deliveries::new(service::laws(world)),
        flying: Flying::default(),
        psns,
        writes: 0,
        gid_index: draw.below(2) as u16,
        draw,
    };
    if session.build().await.is_some() && session.work().await.is_some() {
        session.probe().await;
    }
    session.end().await;
}

impl Session<'_> {
    async fn build(&mut self) -> Option<()> {
        let mtu = self.endpoints[0].sizes.mtu;
        self.endpoints[1].sizes.mtu = mtu;
        for endpoint in &mut self.endpoints {
            endpoint.build(self.world, &mut self.draw, None).await?;
            endpoint
                .create_qp(self.world, QpType::Uc, |init| init)
                .await?;
        }
        for end in [0, 1] {
            self.ready(end).await?;
        }
        Some(())
    }

    async fn work(&mut self) -> Option<()> {
        for _ in 0..self.draw.within(20..=150) {
            if self.world.quiescing.get() || self.is_orphaned() {
                break;
            }
            let end = self.draw.below(2);
            match self.draw.below(100) {
                0..=44 => drop(self.send(end)),
                45..=64 => self.post_receives(end),
                65..=91 => self.world.sim.sleep(pause(&mut self.draw)).await,
                92..=93 => self.stumble(end),
                94..=96 => self.reset(end).await?,
                97..=98 => {
                    let qp = self.endpoints[end].qp.as_ref()?;
                    let _ = self
                        .world
                        .verb(&self.endpoints[end].lease, qp.query())
                        .await;
                }
                _ => self.fail(end).await?,
            }
            self.reap();
            self.endpoints[end].mend(self.world).await?;
        }
        Some(())
    }

    /// Posts a message.
    fn send(&mut self, end: usize) -> Option<Tag> {
        if !self.endpoints[end].is_healthy() {
            return None;
        }
        let len = self.endpoints[end]
            .sizes
            .length(&mut self.draw, MESSAGE_MAX);
        match self.draw.below(10) {
            0..=6 => self.send_message(end, len),
            7..=8 if self.writes < WRITES_MAX => self.write(end, len),
            _ => None,
        }
    }

    fn send_message(&mut self, end: usize, len: usize) -> Option<Tag> {
        let tag = self.endpoints[end].next_tag();
        let named = len < Tag::LEN || self.draw.chance(Ppm::percent(30));
        let imm = named.then(|| tag.number());
        let op = imm.map_or(SendOp::Send, SendOp::SendWithImm);
        let about = About {
            to: self.endpoints[1 - end].id,
            writes: false,
            len,
        };
        self.post(end, tag, op, Operation::UcSend, len, (imm, about))
    }

    fn write(&mut self, end: usize, len: usize) -> Option<Tag> {
        let len = len.min(TARGET.len());
        let at = TARGET.start + self.draw.below(TARGET.len() - len + 1);
        let remote = self.endpoints[1 - end].region.mr.as_ref()?.remote(at);
        let tag = self.endpoints[end].next_tag();
        let imm = self.draw.chance(Ppm::percent(50)).then(|| tag.number());
        let op = match imm {
            Some(imm) => SendOp::WriteWithImm(remote, imm),
            None => SendOp::Write(remote),
        };
        let about = About {
            to: self.endpoints[1 - end].id,
            writes: true,
            len: 0,
        };
        let tag = self.post(end, tag, op, Operation::UcWrite, len, (imm, about))?;
        self.writes += 1;
        let model = &mut self.endpoints[1 - end].region.model;
        model.write(lane(end), u64::from(tag.seq), at, tag.compose(len));
        Some(tag)
    }

    fn post(
        &mut self,
        end: usize,
        tag: Tag,
        op: SendOp,
        operation: Operation,
        len: usize,
        (imm, about): (Option<u32>, About),
    ) -> Option<Tag> {
        let seen = service::seen(self.world, &self.endpoints, false);
        let pending = PendingWr {
            op,
            dest: Dest::Peer,
            operation,
            data: Data::Bytes(tag.compose(len)),
            seq: u64::from(tag.seq),
            to: 1 - end,
            receives: imm.is_some() || !about.writes,
            fenced: false,
            read: None,
            seen,
        };
        self.endpoints[end].post(self.world, &mut self.draw, pending)?;
        self.messages.post(tag, len, imm, about);
        self.flying.post(self.world, operation, seen);
        Some(tag)
    }

    fn post_receives(&mut self, end: usize) {
        for _ in 0..=self.draw.below(4) {
            let len = match self.draw.below(10) {
                0 => SMALL,
                1..=2 => 1000,
                _ => MESSAGE_MAX,
            };
            if !self.endpoints[end].post_receive(self.world, &mut self.draw, len) {
                return;
            }
        }
    }

    /// Posts a work request that takes the send queue to SQE, and has no other effect.
    fn stumble(&mut self, end: usize) {
        let endpoint = &mut self.endpoints[end];
        if !endpoint.is_healthy() {
            return;
        }
        let pending = PendingWr {
            op: SendOp::Send,
            dest: Dest::Peer,
            operation: Operation::UcSend,
            data: Data::WrongLkey,
            seq: 0,
            to: 1 - end,
            receives: false,
            fenced: false,
            read: None,
            seen: Seen::default(),
        };
        let posted = endpoint.post(self.world, &mut self.draw, pending);
        if posted.is_some() {
            // Work behind it is flushed.
            let _ = self.send(end);
        }
        self.endpoints[end].failing = posted.map(|wr_id| (wr_id, WcStatus::LocProtErr));
    }

    /// Small messages get through in the end, in both directions.
    async fn probe(&mut self) {
        let _ = self.gets_through(0, 1).await && self.gets_through(1, 0).await;
    }

    /// Waits until everything has been sent, and takes everything down.
    async fn end(&mut self) {
        self.leave().await;
        for end in [0, 1] {
            self.endpoints[end].destroy_qp(self.world).await;
        }
        self.reap();
        self.land(true);
        for end in [0, 1] {
            self.endpoints[end].account(self.world);
            if let Err(what) = self.endpoints[end].region.model.resolve(lane(1 - end)) {
                self.world.violated(Rule::Memory, what);
            }
            self.endpoints[end].tear_down(self.world).await;
        }
    }
}

impl<'w> Unreliable<'w> for Session<'w> {
    fn world(&self) -> &'w Rc<World> {
        self.world
    }

    fn endpoints(&mut self) -> &mut [Endpoint] {
        &mut self.endpoints
    }

    /// Takes one end from RESET to RTS, with numbers that no packet under way has.
    async fn ready(&mut self, end: usize) -> Option<()> {
        self.psns[end] = (self.psns[end] + 0x20_0000) & 0xff_ffff;
        let peer = &self.endpoints[1 - end];
        let av = match self.world.plan.mode {
            Mode::Direct => Av::to_lid(1, peer.lease.hca.lid()),
            Mode::Packets | Mode::Streams => {
                Av::to_gid(1, self.gid_index, peer.lease.hca.gid_at(self.gid_index))
            }
        };
        let path = Path {
            av,
            dest_qpn: peer.qpn,
            rq_psn: Psn::new(self.psns[1 - end]),
            mtu: peer.sizes.mtu,
        };
        let steps = [
            QpAttr::init(1, Access::REMOTE | Access::LOCAL_WRITE),
            QpAttr::rtr_of(QpType::Uc, &path),
            QpAttr::rts_of(QpType::Uc, Psn::new(self.psns[end])),
        ];
        self.endpoints[end].modify(self.world, &steps).await
    }

    fn send_small(&mut self, from: usize, _: usize) -> Option<Tag> {
        if !self.endpoints[from].is_healthy() {
            return None;
        }
        self.send_message(from, SMALL / 4)
    }

    fn post_small(&mut self, at: usize) {
        self.endpoints[at].post_receive(self.world, &mut self.draw, SMALL);
    }

    fn was_told(&self, tag: Tag) -> bool {
        self.messages.was_told(tag)
    }

    fn sent(&mut self, end: usize, wc: &Wc) {
        let legal = match wc.status {
            WcStatus::Success | WcStatus::WrFlushErr => true,
            status => self.endpoints[end].failing == Some((wc.wr_id, status)),
        };
        if !legal {
            let what = format!("work request {:#x} ended in {}", wc.wr_id, wc.status);
            self.world.violated(Rule::Status, what);
        }
        let ended = self.endpoints[end].ended(self.world, wc);
        let Some(last) = ended.last() else { return };
        let opcode = match last.operation {
            Operation::UcWrite => WcOpcode::RdmaWrite,
            _ => WcOpcode::Send,
        };
        if wc.is_ok() && wc.opcode != opcode {
            let what = format!(
                "work request {:#x} is {}, not {opcode}",
                wc.wr_id, wc.opcode
            );
            self.world.violated(Rule::Result, what);
        }
        if !wc.is_ok() {
            let orphaned = self.is_orphaned();
            service::failed(self.world, last.operation, orphaned);
            service::recall(
                self.world,
                &self.endpoints[end],
                &mut self.messages,
                wc,
                last.seq,
            );
        }
    }

    fn received(&mut self, end: usize, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let endpoint = &mut self.endpoints[end];
        let Some(received) = endpoint.received(self.world, wc) else {
            return;
        };
        if !wc.is_ok() {
            // A shared receive that was too short for a message is lost with it.
            let too_long = wc.status == WcStatus::LocLenErr && endpoint.srq.is_some();
            let flushed = wc.status == WcStatus::WrFlushErr && (endpoint.broken || orphaned);
            if !(too_long || flushed) {
                let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
                self.world.violated(Rule::Status, what);
            }
            return service::failed(self.world, Operation::UcReceive, orphaned);
        }
        let len = wc.byte_len as usize;
        let carries = wc.opcode == WcOpcode::Recv;
        let arrived = Arrived {
            bytes: carries.then(|| &received.after[..len.min(received.after.len())]),
            len,
            imm: wc.immediate(),
        };
        let (me, room) = (endpoint.id, received.before.len());
        let may = |about: &About| match about {
            About { to, .. } if *to != me => Err("it was for somebody else"),
            About { writes, .. } if *writes == carries => Err("it is the other operation"),
            About { len, .. } if *len > room => Err("it has no room there"),
            _ => Ok(()),
        };
        let tag = match self.messages.tell(me, &arrived, may) {
            Ok(tag) => tag,
            Err(what) => return self.world.violated(Rule::Delivery, what),
        };
        let laws = self.messages.laws();
        if !laws.repeats
            && !laws.overtakes
            && let Err(what) = endpoint
                .region
                .model
                .pass(lane(1 - end), u64::from(tag.seq))
        {
            self.world.violated(Rule::Memory, what);
        }
        let seen = service::seen(self.world, &self.endpoints, false);
        self.flying.post(self.world, Operation::UcReceive, seen);
    }

    fn land(&mut self, all: bool) {
        self.flying.land(self.world, &self.endpoints, all);
    }
}

/// The lane of what an end writes at its peer; receives have lanes by their numbers.
const fn lane(end: usize) -> u64 {
    u64::MAX - end as u64
}
