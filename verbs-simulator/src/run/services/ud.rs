//! A session of datagrams: to one queue pair, to a group, with wrong keys, to no queue pair.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use verbs_core::{
    Av, Datagram, Dest, Gid, Lid, Mcast, Psn, QKey, QpAttr, QpState, QpType, Qpn, Refused, SendOp,
    Wc, WcFlags, WcOpcode, WcStatus,
};
use verbs_link::time::Instant;

use crate::check::{Arrived, Deliveries, Rule, Tag};
use crate::coverage::Operation;
use crate::run::Mode;
use crate::run::conn::Seen;
use crate::run::endpoint::{Endpoint, gone, is_busy, pause};
use crate::run::pending_wr::{Data, PendingWr};
use crate::run::service::{self, Flying};
use crate::run::unreliable::{SMALL, Unreliable};
use crate::run::world::World;
use crate::{Draw, Ppm};

/// Queue pairs of a session.
const ENDPOINTS: usize = 3;
/// Bytes in front of the payload of a receive.
const HEADER: usize = 40;
/// The most attachments of a queue pair to the session's group.
const ATTACHED_MAX: usize = 2;
/// The most bytes of a datagram.
const DATAGRAM_MAX: usize = 4096;

struct Session<'w> {
    world: &'w Rc<World>,
    draw: Draw,
    endpoints: [Endpoint; ENDPOINTS],
    members: [Member; ENDPOINTS],
    messages: Deliveries<About>,
    flying: Flying,
    group: Gid,
    gid_index: u16,
    /// The Q_Key of most queue pairs. No other session has it: packets of a session that has ended may be sent once
    /// more, to a group of the same address.
    key: QKey,
}

/// The state of a queue pair other than its queues.
struct Member {
    key: QKey,
    /// Its own datagrams to the group are not delivered to it.
    blocks: bool,
    /// Its attachments to the group; with two of them it still gets one copy.
    attached: Vec<Mcast>,
    /// When it may last have left the group; `None` if it was never in it.
    left: Option<Instant>,
}

/// What is known of a datagram.
struct About {
    from: usize,
    to: To,
    key: QKey,
    at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    One(usize),
    Group,
    Nobody,
}

/// Builds a session, works on it and takes it down.
pub(crate) async fn run(world: &Rc<World>, mut draw: Draw) {
    let nodes = [(); ENDPOINTS].map(|()| draw.below(world.plan.nodes));
    let Some(endpoints) = service::endpoints(world, &mut draw, nodes) else {
        return;
    };
    let id = u32::from(endpoints[0].id);
    let key = QKey(0x1111_0000 | id);
    let members = [(); ENDPOINTS].map(|()| Member {
        key: if draw.chance(Ppm::percent(20)) {
            QKey(0x2222_0000 | id)
        } else {
            key
        },
        blocks: draw.chance(Ppm::percent(30)),
        attached: Vec::new(),
        left: None,
    });
    let gid_index = draw.below(2) as u16;
    let number = draw.below(3) as u8;
    let mut session = Session {
        world,
        endpoints,
        members,
        messages: Deliveries::new(service::laws(world)),
        flying: Flying::default(),
        group: match gid_index {
            0 => Gid::from(Ipv4Addr::new(224, 9, 9, number)),
            _ => Gid::from(Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 9, number.into())),
        },
        gid_index,
        key,
        draw,
    };
    if session.build().await.is_some() && session.work().await.is_some() {
        session.probe().await;
    }
    session.end().await;
}

impl Session<'_> {
    async fn build(&mut self) -> Option<()> {
        for (at, endpoint) in self.endpoints.iter_mut().enumerate() {
            endpoint.build(self.world, &mut self.draw, None).await?;
            let blocks = self.members[at].blocks;
            let request = endpoint.create_qp(self.world, QpType::Ud, |init| match blocks {
                true => init.block_multicast_loopback(),
                false => init,
            });
            request.await?;
        }
        let network = self.world.sim.network();
        for (endpoint, member) in self.endpoints.iter().zip(&self.members) {
            network.mutator(|mutator| mutator.keyed(endpoint.qpn, member.key));
        }
        for at in 0..ENDPOINTS {
            self.ready(at).await?;
        }
        Some(())
    }

    async fn work(&mut self) -> Option<()> {
        for _ in 0..self.draw.within(20..=200) {
            if self.world.quiescing.get() || self.is_orphaned() {
                break;
            }
            let at = self.draw.below(ENDPOINTS);
            match self.draw.below(100) {
                0..=44 => drop(self.send(at)),
                45..=64 => self.post_receives(at),
                65..=87 => self.world.sim.sleep(pause(&mut self.draw)).await,
                88..=92 => self.join_or_leave(at).await,
                93..=94 => self.stumble(at),
                95..=96 => self.reset(at).await?,
                97 => self.try_too_early(at).await?,
                98 => {
                    let qp = self.endpoints[at].qp.as_ref()?;
                    let _ = self.world.verb(&self.endpoints[at].lease, qp.query()).await;
                }
                _ => self.fail(at).await?,
            }
            self.reap();
            self.endpoints[at].mend(self.world).await?;
        }
        Some(())
    }

    /// Posts a datagram to a drawn destination.
    fn send(&mut self, from: usize) -> Option<Tag> {
        let to = match self.draw.below(20) {
            0..=10 => To::One(self.draw.below(ENDPOINTS)),
            11..=18 => To::Group,
            _ => To::Nobody,
        };
        let len = self.endpoints[from]
            .sizes
            .length(&mut self.draw, DATAGRAM_MAX);
        let wrong = self.draw.chance(Ppm::percent(10));
        let key = match to {
            _ if wrong => QKey(0x7777),
            To::One(to) => self.members[to].key,
            To::Group | To::Nobody => self.key,
        };
        self.post(from, to, len, key)
    }

    fn post(&mut self, from: usize, to: To, len: usize, key: QKey) -> Option<Tag> {
        if !self.endpoints[from].is_healthy() {
            return None;
        }
        let tag = self.endpoints[from].next_tag();
        let named = len < Tag::LEN || self.draw.chance(Ppm::percent(30));
        let imm = named.then(|| tag.number());
        let there = Datagram::new(self.address_vector(to), self.number(to), key);
        let operation = match to {
            To::Group => Operation::Multicast,
            _ => Operation::Datagram,
        };
        let seen = service::seen(self.world, &self.endpoints, false);
        let pending = PendingWr {
            op: imm.map_or(SendOp::Send, SendOp::SendWithImm),
            dest: Dest::Datagram(&there),
            operation,
            data: Data::Bytes(tag.compose(len)),
            seq: u64::from(tag.seq),
            to: 0,
            receives: true,
            fenced: false,
            read: None,
            seen,
        };
        self.endpoints[from].post(self.world, &mut self.draw, pending)?;
        let at = self.world.sim.now();
        let about = About { from, to, key, at };
        self.messages.post(tag, len, imm, about);
        self.flying.post(self.world, operation, seen);
        Some(tag)
    }

    fn number(&self, to: To) -> Qpn {
        match to {
            To::One(to) => self.endpoints[to].qpn,
            To::Group => Qpn::MULTICAST,
            To::Nobody => Qpn::new(self.endpoints[0].qpn.value() ^ 0x55_5555),
        }
    }

    fn address_vector(&mut self, to: To) -> Av {
        let to = match to {
            To::One(to) => &self.endpoints[to],
            To::Nobody => &self.endpoints[0],
            To::Group => return Av::to_gid(1, self.gid_index, self.group),
        };
        match self.world.plan.mode {
            Mode::Direct if self.draw.chance(Ppm::percent(50)) => Av::to_lid(1, to.lease.hca.lid()),
            Mode::Direct => Av::to_gid(1, 0, to.lease.hca.gid()),
            Mode::Packets | Mode::Streams => {
                Av::to_gid(1, self.gid_index, to.lease.hca.gid_at(self.gid_index))
            }
        }
    }

    fn post_receives(&mut self, at: usize) {
        for _ in 0..=self.draw.below(4) {
            let len = match self.draw.below(10) {
                0 => SMALL,
                1..=2 => 1000,
                _ => HEADER + DATAGRAM_MAX,
            };
            if !self.endpoints[at].post_receive(self.world, &mut self.draw, len) {
                return;
            }
        }
    }

    async fn join_or_leave(&mut self, at: usize) {
        let (endpoint, member) = (&self.endpoints[at], &mut self.members[at]);
        let joins = match member.attached.len() {
            0 => true,
            count => count < ATTACHED_MAX && self.draw.chance(Ppm::percent(30)),
        };
        if !joins {
            return self.detach(at).await;
        }
        let Some(qp) = &endpoint.qp else { return };
        // It may be a member from now on, whatever is reported about it later.
        member.left = Some(self.world.sim.now());
        let request = qp.attach_mcast(self.group, Lid(0));
        let attached = self.world.verb(&endpoint.lease, request).await.ok();
        member.attached.extend(attached);
        member.left = Some(self.world.sim.now());
    }

    /// Undoes one attachment: it is in the group until that is over.
    async fn detach(&mut self, at: usize) {
        let (endpoint, member) = (&self.endpoints[at], &mut self.members[at]);
        let Some(mcast) = member.attached.pop() else {
            return;
        };
        let done = self.world.verb(&endpoint.lease, mcast.detach()).await;
        gone(self.world, done);
        member.left = Some(self.world.sim.now());
    }

    /// A queue pair that is attached to a group answers Busy (K10).
    async fn try_too_early(&mut self, at: usize) -> Option<()> {
        let endpoint = &mut self.endpoints[at];
        if self.members[at].attached.is_empty() {
            return Some(());
        }
        let request = endpoint.qp.take()?.destroy();
        match self.world.verb_or(&endpoint.lease, request, is_busy).await {
            Err(Refused {
                handle: Some(qp), ..
            }) => {
                endpoint.qp = Some(qp);
                Some(())
            }
            other => {
                let what = format!("a queue pair in a group was destroyed: {other:?}");
                self.world.violated(Rule::Busy, what);
                None
            }
        }
    }

    /// Posts a work request that takes the send queue to SQE, and has no other effect.
    fn stumble(&mut self, at: usize) {
        let there = Datagram::new(
            self.address_vector(To::One(at)),
            self.endpoints[at].qpn,
            self.key,
        );
        let endpoint = &mut self.endpoints[at];
        if !endpoint.is_healthy() {
            return;
        }
        let pending = PendingWr {
            op: SendOp::Send,
            dest: Dest::Datagram(&there),
            operation: Operation::Datagram,
            data: Data::WrongLkey,
            seq: 0,
            to: at,
            receives: false,
            fenced: false,
            read: None,
            seen: Seen::default(),
        };
        let posted = endpoint.post(self.world, &mut self.draw, pending);
        if posted.is_some() {
            // Work behind it is flushed.
            let _ = self.send(at);
        }
        self.endpoints[at].failing = posted.map(|wr_id| (wr_id, WcStatus::LocProtErr));
    }

    /// Whether a completion and the header in front of a datagram name its sender.
    fn judge_origin(&self, wc: &Wc, bytes: &[u8], from: usize) -> Result<(), String> {
        let sender = &self.endpoints[from];
        let id = wc.wr_id;
        if wc.src_qpn != sender.qpn || wc.opcode != WcOpcode::Recv {
            let said = wc.src_qpn;
            return Err(format!(
                "receive {id:#x} is {} from {said}, not {}",
                wc.opcode, sender.qpn
            ));
        }
        // An attacker on the network may have sent it once more, from elsewhere.
        if self.world.plan.mode == Mode::Packets && self.world.plan.hostile {
            return Ok(());
        }
        let area = bytes.first_chunk();
        let back = area.and_then(|area| Av::reverse(1, wc, area, self.gid_index));
        let hca = &sender.lease.hca;
        let is_back = back.is_some_and(|back| match self.world.plan.mode {
            Mode::Packets | Mode::Streams => {
                let gid = hca.gid_at(self.gid_index);
                back.global.is_some_and(|global| global.dgid == gid)
            }
            Mode::Direct => {
                let global = back.global.is_none_or(|global| global.dgid == hca.gid());
                back.dlid == hca.lid() && global
            }
        });
        if !is_back || !wc.flags.contains(WcFlags::GRH) && self.world.plan.mode == Mode::Packets {
            return Err(format!(
                "receive {id:#x} does not say where it came from: {back:?}"
            ));
        }
        Ok(())
    }

    /// A small datagram gets through in the end.
    async fn probe(&mut self) {
        let (from, to) = (self.draw.below(ENDPOINTS), self.draw.below(ENDPOINTS));
        let _ = self.gets_through(from, to).await;
    }

    /// Waits until everything has been sent, and takes everything down.
    async fn end(&mut self) {
        self.leave().await;
        for at in 0..ENDPOINTS {
            while !self.members[at].attached.is_empty() {
                self.detach(at).await;
            }
            self.endpoints[at].destroy_qp(self.world).await;
        }
        self.reap();
        self.land(true);
        for endpoint in &mut self.endpoints {
            endpoint.account(self.world);
            endpoint.tear_down(self.world).await;
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

    async fn ready(&mut self, at: usize) -> Option<()> {
        let psn = Psn::new(self.draw.within(0..=0xff_ffff) as u32);
        let steps = [
            QpAttr::init_datagram(1, self.members[at].key),
            QpAttr::to(QpState::Rtr),
            QpAttr::rts_of(QpType::Ud, psn),
        ];
        self.endpoints[at].modify(self.world, &steps).await
    }

    fn send_small(&mut self, from: usize, to: usize) -> Option<Tag> {
        self.post(from, To::One(to), SMALL / 4, self.members[to].key)
    }

    fn post_small(&mut self, at: usize) {
        self.endpoints[at].post_receive(self.world, &mut self.draw, SMALL);
    }

    fn was_told(&self, tag: Tag) -> bool {
        self.messages.was_told(tag)
    }

    fn sent(&mut self, at: usize, wc: &Wc) {
        let legal = match wc.status {
            WcStatus::Success | WcStatus::WrFlushErr => true,
            status => self.endpoints[at].failing == Some((wc.wr_id, status)),
        };
        if !legal || wc.is_ok() && wc.opcode != WcOpcode::Send {
            let what = format!(
                "work request {:#x} is {} and {}",
                wc.wr_id, wc.opcode, wc.status
            );
            self.world.violated(Rule::Status, what);
        }
        let ended = self.endpoints[at].ended(self.world, wc);
        if let (Some(last), false) = (ended.last(), wc.is_ok()) {
            service::failed(self.world, last.operation, self.is_orphaned());
            service::recall(
                self.world,
                &self.endpoints[at],
                &mut self.messages,
                wc,
                last.seq,
            );
        }
    }

    fn received(&mut self, at: usize, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let endpoint = &mut self.endpoints[at];
        let Some(received) = endpoint.received(self.world, wc) else {
            return;
        };
        if !wc.is_ok() {
            if wc.status != WcStatus::WrFlushErr || !(endpoint.broken || orphaned) {
                let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
                self.world.violated(Rule::Status, what);
            }
            return service::failed(self.world, Operation::DatagramReceive, orphaned);
        }
        let end = (wc.byte_len as usize).min(received.after.len()).max(HEADER);
        let arrived = Arrived {
            bytes: received.after.get(HEADER..end),
            len: (wc.byte_len as usize).saturating_sub(HEADER),
            imm: wc.immediate(),
        };
        let (me, members) = (endpoint.id, &self.members);
        let plan = &self.world.plan;
        let resent = plan.mode == Mode::Packets && plan.hostile;
        let may = |about: &About| may_take(about, at, &members[at], resent);
        let tag = match self.messages.tell(me, &arrived, may) {
            Ok(tag) => tag,
            Err(what) => return self.world.violated(Rule::Delivery, what),
        };
        let from = self.messages.about(tag).map_or(0, |about| about.from);
        if let Err(what) = self.judge_origin(wc, &received.after, from) {
            self.world.violated(Rule::Result, what);
        }
        if received.after[end..] != received.before[end..] {
            let what = format!("receive {:#x} has bytes behind its datagram", wc.wr_id);
            self.world.violated(Rule::Memory, what);
        }
        let seen = service::seen(self.world, &self.endpoints, false);
        self.flying
            .post(self.world, Operation::DatagramReceive, seen);
    }

    fn land(&mut self, all: bool) {
        self.flying.land(self.world, &self.endpoints, all);
    }
}

/// Whether a datagram may be delivered to the queue pair at that place. `resent`: an attacker on the network may have
/// sent it once more, from elsewhere, so that the port cannot recognise it as the queue pair's own.
fn may_take(about: &About, at: usize, member: &Member, resent: bool) -> Result<(), &'static str> {
    if about.key != member.key {
        return Err("it came with another Q_Key");
    }
    let was_in = !member.attached.is_empty() || member.left.is_some_and(|left| left >= about.at);
    match about.to {
        To::One(to) if to == at => Ok(()),
        To::Group if member.blocks && about.from == at && !resent => {
            Err("it does not want its own")
        }
        To::Group if was_in => Ok(()),
        To::Group => Err("it is not in the group"),
        To::One(_) | To::Nobody => Err("it was for somebody else"),
    }
}
