//! A session of datagrams: to one, to a group, with keys that are wrong, to nobody.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use verbs_core::{
    Av, Datagram, Dest, Gid, Lid, Mcast, Psn, QKey, QpAttr, QpState, QpType, Qpn, Refused, SendOp,
    Wc, WcFlags, WcOpcode, WcStatus,
};

use crate::clock::Instant;
use crate::sim::check::{Arrived, Deliveries, Rule, Tag};
use crate::sim::coverage::Operation;
use crate::sim::run::Mode;
use crate::sim::run::conn::Seen;
use crate::sim::run::parcel::{Data, Parcel};
use crate::sim::run::service::{self, Flying};
use crate::sim::run::stand::{Stand, gone, is_busy, pause};
use crate::sim::run::unreliable::{SMALL, Unreliable};
use crate::sim::run::world::World;
use crate::sim::{Draw, Ppm};

/// Queue pairs of a session.
const STANDS: usize = 3;
/// Bytes in front of the payload of a receive.
const HEADER: usize = 40;
/// Attachments of a queue pair to the session's group at most.
const ATTACHED_MAX: usize = 2;
/// Bytes of a datagram at most.
const DATAGRAM_MAX: usize = 4096;

struct Session<'w> {
    world: &'w Rc<World>,
    draw: Draw,
    stands: [Stand; STANDS],
    members: [Member; STANDS],
    messages: Deliveries<About>,
    flying: Flying,
    group: Gid,
    gid_index: u16,
    /// The Q_Key of most queue pairs. No other session has it: packets of one that has ended may be sent once
    /// more, to a group of the same address.
    key: QKey,
}

/// What concerns a queue pair besides its queues.
struct Member {
    key: QKey,
    /// Its own datagrams to the group do not come back to it.
    blocks: bool,
    /// Its attachments to the group; with two of them it gets one copy all the same.
    attached: Vec<Mcast>,
    /// When it may have left the group last; `None` if it never was in it.
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
pub(super) async fn run(world: &Rc<World>, mut draw: Draw) {
    let nodes = [(); STANDS].map(|()| draw.below(world.plan.nodes));
    let Some(stands) = service::stands(world, &mut draw, nodes) else {
        return;
    };
    let id = u32::from(stands[0].id);
    let key = QKey(0x1111_0000 | id);
    let members = [(); STANDS].map(|()| Member {
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
        stands,
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
        for (at, stand) in self.stands.iter_mut().enumerate() {
            stand.build(self.world, &mut self.draw, None).await?;
            let blocks = self.members[at].blocks;
            let request = stand.create_qp(self.world, QpType::Ud, |init| match blocks {
                true => init.block_multicast_loopback(),
                false => init,
            });
            request.await?;
        }
        let network = self.world.sim.network();
        for (stand, member) in self.stands.iter().zip(&self.members) {
            network.tamper(|tamper| tamper.keyed(stand.qpn, member.key));
        }
        for at in 0..STANDS {
            self.ready(at).await?;
        }
        Some(())
    }

    async fn work(&mut self) -> Option<()> {
        for _ in 0..self.draw.within(20..=200) {
            if self.world.calm.get() || self.is_orphaned() {
                break;
            }
            let at = self.draw.below(STANDS);
            match self.draw.below(100) {
                0..=44 => drop(self.send(at)),
                45..=64 => self.post_receives(at),
                65..=87 => self.world.sim.sleep(pause(&mut self.draw)).await,
                88..=92 => self.join_or_leave(at).await,
                93..=94 => self.stumble(at),
                95..=96 => self.reset(at).await?,
                97 => self.try_too_early(at).await?,
                98 => {
                    let qp = self.stands[at].qp.as_ref()?;
                    let _ = self.world.verb(&self.stands[at].lease, qp.query()).await;
                }
                _ => self.fail(at).await?,
            }
            self.reap();
            self.stands[at].mend(self.world).await?;
        }
        Some(())
    }

    /// Posts a datagram to somebody.
    fn send(&mut self, from: usize) -> Option<Tag> {
        let to = match self.draw.below(20) {
            0..=10 => To::One(self.draw.below(STANDS)),
            11..=18 => To::Group,
            _ => To::Nobody,
        };
        let len = self.stands[from].sizes.length(&mut self.draw, DATAGRAM_MAX);
        let wrong = self.draw.chance(Ppm::percent(10));
        let key = match to {
            _ if wrong => QKey(0x7777),
            To::One(to) => self.members[to].key,
            To::Group | To::Nobody => self.key,
        };
        self.post(from, to, len, key)
    }

    fn post(&mut self, from: usize, to: To, len: usize, key: QKey) -> Option<Tag> {
        if !self.stands[from].is_healthy() {
            return None;
        }
        let tag = self.stands[from].next_tag();
        let named = len < Tag::LEN || self.draw.chance(Ppm::percent(30));
        let imm = named.then(|| tag.number());
        let there = Datagram::new(self.way(to), self.number(to), key);
        let operation = match to {
            To::Group => Operation::Multicast,
            _ => Operation::Datagram,
        };
        let seen = service::seen(self.world, &self.stands, false);
        let parcel = Parcel {
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
        self.stands[from].post(self.world, &mut self.draw, parcel)?;
        let at = self.world.sim.now();
        let about = About { from, to, key, at };
        self.messages.post(tag, len, imm, about);
        self.flying.post(self.world, operation, seen);
        Some(tag)
    }

    fn number(&self, to: To) -> Qpn {
        match to {
            To::One(to) => self.stands[to].qpn,
            To::Group => Qpn::MULTICAST,
            To::Nobody => Qpn::new(self.stands[0].qpn.value() ^ 0x55_5555),
        }
    }

    fn way(&mut self, to: To) -> Av {
        let to = match to {
            To::One(to) => &self.stands[to],
            To::Nobody => &self.stands[0],
            To::Group => return Av::to_gid(1, self.gid_index, self.group),
        };
        match self.world.plan.mode {
            Mode::Direct if self.draw.chance(Ppm::percent(50)) => Av::to_lid(1, to.lease.hca.lid()),
            Mode::Direct => Av::to_gid(1, 0, to.lease.hca.gid()),
            Mode::Packets => Av::to_gid(1, self.gid_index, to.lease.hca.gid_at(self.gid_index)),
        }
    }

    fn post_receives(&mut self, at: usize) {
        for _ in 0..=self.draw.below(4) {
            let len = match self.draw.below(10) {
                0 => SMALL,
                1..=2 => 1000,
                _ => HEADER + DATAGRAM_MAX,
            };
            if !self.stands[at].post_receive(self.world, &mut self.draw, len) {
                return;
            }
        }
    }

    async fn join_or_leave(&mut self, at: usize) {
        let (stand, member) = (&self.stands[at], &mut self.members[at]);
        let joins = match member.attached.len() {
            0 => true,
            count => count < ATTACHED_MAX && self.draw.chance(Ppm::percent(30)),
        };
        if !joins {
            return self.detach(at).await;
        }
        let Some(qp) = &stand.qp else { return };
        // It may be a member from now on, whatever is said about it later.
        member.left = Some(self.world.sim.now());
        let request = qp.attach_mcast(self.group, Lid(0));
        let attached = self.world.verb(&stand.lease, request).await.ok();
        member.attached.extend(attached);
        member.left = Some(self.world.sim.now());
    }

    /// Undoes one attachment: it is in the group until that is over.
    async fn detach(&mut self, at: usize) {
        let (stand, member) = (&self.stands[at], &mut self.members[at]);
        let Some(mcast) = member.attached.pop() else {
            return;
        };
        let done = self.world.verb(&stand.lease, mcast.detach()).await;
        gone(self.world, done);
        member.left = Some(self.world.sim.now());
    }

    /// A queue pair that is attached to a group answers Busy (K10).
    async fn try_too_early(&mut self, at: usize) -> Option<()> {
        let stand = &mut self.stands[at];
        if self.members[at].attached.is_empty() {
            return Some(());
        }
        let request = stand.qp.take()?.destroy();
        match self.world.verb_or(&stand.lease, request, is_busy).await {
            Err(Refused {
                handle: Some(qp), ..
            }) => {
                stand.qp = Some(qp);
                Some(())
            }
            other => {
                let what = format!("a queue pair in a group was destroyed: {other:?}");
                self.world.accuse(Rule::Busy, what);
                None
            }
        }
    }

    /// Posts a work request that ends the send queue, and only that: SQE.
    fn stumble(&mut self, at: usize) {
        let there = Datagram::new(self.way(To::One(at)), self.stands[at].qpn, self.key);
        let stand = &mut self.stands[at];
        if !stand.is_healthy() {
            return;
        }
        let parcel = Parcel {
            op: SendOp::Send,
            dest: Dest::Datagram(&there),
            operation: Operation::Datagram,
            data: Data::Stranger,
            seq: 0,
            to: at,
            receives: false,
            fenced: false,
            read: None,
            seen: Seen::default(),
        };
        let posted = stand.post(self.world, &mut self.draw, parcel);
        if posted.is_some() {
            // What stands behind it is flushed.
            let _ = self.send(at);
        }
        self.stands[at].evil = posted.map(|wr_id| (wr_id, WcStatus::LocProtErr));
    }

    /// Whether a completion and what stands in front of a datagram say who has sent it.
    fn judge_origin(&self, wc: &Wc, bytes: &[u8], from: usize) -> Result<(), String> {
        let sender = &self.stands[from];
        let id = wc.wr_id;
        if wc.src_qpn != sender.qpn || wc.opcode != WcOpcode::Recv {
            let said = wc.src_qpn;
            return Err(format!(
                "receive {id:#x} is {} from {said}, not {}",
                wc.opcode, sender.qpn
            ));
        }
        // Somebody on the network may have sent it once more, from elsewhere.
        if self.world.plan.mode == Mode::Packets && self.world.plan.hostile {
            return Ok(());
        }
        let area = bytes.first_chunk();
        let back = area.and_then(|area| Av::reverse(1, wc, area, self.gid_index));
        let hca = &sender.lease.hca;
        let is_back = back.is_some_and(|back| match self.world.plan.mode {
            Mode::Packets => {
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
        let (from, to) = (self.draw.below(STANDS), self.draw.below(STANDS));
        let _ = self.gets_through(from, to).await;
    }

    /// Waits until everything has left, and takes everything down.
    async fn end(&mut self) {
        self.leave().await;
        for at in 0..STANDS {
            while !self.members[at].attached.is_empty() {
                self.detach(at).await;
            }
            self.stands[at].destroy_qp(self.world).await;
        }
        self.reap();
        self.land(true);
        for stand in &mut self.stands {
            stand.account(self.world);
            stand.tear_down(self.world).await;
        }
    }
}

impl<'w> Unreliable<'w> for Session<'w> {
    fn world(&self) -> &'w Rc<World> {
        self.world
    }

    fn stands(&mut self) -> &mut [Stand] {
        &mut self.stands
    }

    async fn ready(&mut self, at: usize) -> Option<()> {
        let psn = Psn::new(self.draw.within(0..=0xff_ffff) as u32);
        let steps = [
            QpAttr::init_datagram(1, self.members[at].key),
            QpAttr::to(QpState::Rtr),
            QpAttr::rts_of(QpType::Ud, psn),
        ];
        self.stands[at].modify(self.world, &steps).await
    }

    fn send_small(&mut self, from: usize, to: usize) -> Option<Tag> {
        self.post(from, To::One(to), SMALL / 4, self.members[to].key)
    }

    fn post_small(&mut self, at: usize) {
        self.stands[at].post_receive(self.world, &mut self.draw, SMALL);
    }

    fn was_told(&self, tag: Tag) -> bool {
        self.messages.was_told(tag)
    }

    fn sent(&mut self, at: usize, wc: &Wc) {
        let legal = match wc.status {
            WcStatus::Success | WcStatus::WrFlushErr => true,
            status => self.stands[at].evil == Some((wc.wr_id, status)),
        };
        if !legal || wc.is_ok() && wc.opcode != WcOpcode::Send {
            let what = format!(
                "work request {:#x} is {} and {}",
                wc.wr_id, wc.opcode, wc.status
            );
            self.world.accuse(Rule::Status, what);
        }
        let ended = self.stands[at].ended(self.world, wc);
        if let (Some(last), false) = (ended.last(), wc.is_ok()) {
            service::failed(self.world, last.operation, self.is_orphaned());
            service::recall(
                self.world,
                &self.stands[at],
                &mut self.messages,
                wc,
                last.seq,
            );
        }
    }

    fn received(&mut self, at: usize, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let stand = &mut self.stands[at];
        let Some(received) = stand.received(self.world, wc) else {
            return;
        };
        if !wc.is_ok() {
            if wc.status != WcStatus::WrFlushErr || !(stand.broken || orphaned) {
                let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
                self.world.accuse(Rule::Status, what);
            }
            return service::failed(self.world, Operation::DatagramReceive, orphaned);
        }
        let end = (wc.byte_len as usize).min(received.after.len()).max(HEADER);
        let arrived = Arrived {
            bytes: received.after.get(HEADER..end),
            len: (wc.byte_len as usize).saturating_sub(HEADER),
            imm: wc.immediate(),
        };
        let (me, members) = (stand.id, &self.members);
        let plan = &self.world.plan;
        let resent = plan.mode == Mode::Packets && plan.hostile;
        let may = |about: &About| may_take(about, at, &members[at], resent);
        let tag = match self.messages.tell(me, &arrived, may) {
            Ok(tag) => tag,
            Err(what) => return self.world.accuse(Rule::Delivery, what),
        };
        let from = self.messages.about(tag).map_or(0, |about| about.from);
        if let Err(what) = self.judge_origin(wc, &received.after, from) {
            self.world.accuse(Rule::Result, what);
        }
        if received.after[end..] != received.before[end..] {
            let what = format!("receive {:#x} has bytes behind its datagram", wc.wr_id);
            self.world.accuse(Rule::Memory, what);
        }
        let seen = service::seen(self.world, &self.stands, false);
        self.flying
            .post(self.world, Operation::DatagramReceive, seen);
    }

    fn land(&mut self, all: bool) {
        self.flying.land(self.world, &self.stands, all);
    }
}

/// Whether a datagram may come to the queue pair at that place.
/// `resent`: somebody on the network may have sent it once more, from elsewhere, so that it is not its own
/// as far as the port can tell.
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
