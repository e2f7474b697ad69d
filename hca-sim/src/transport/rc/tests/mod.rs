//! Two machines with a wire between them, in virtual time.
//!
//! Queues, completion queues and memory are the real ones; only the device around them is missing. Packets travel as
//! bytes. The wire can lose, repeat, delay and damage them, as a seed decides.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use verbs_core::mem::{Memory, MrTable, Region, Unmapped, Who, pin};
use verbs_core::sync::Arc;
use verbs_core::{
    Access, EventType, Extent, Guid, LKey, Layout, Lid, Mtu, PKey, PageList, QKey, QpCap, Qpn,
    RKey, RawCq, RawRecvQueue, Registration, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};

use super::Rc;
use crate::clock::{Instant, VirtualClock};
use crate::engine::Engine;
use crate::link::{FillWindow, Loopback};
use crate::port::{Gids, Port};
use crate::queue::base::counters::Counters;
use crate::queue::cq::{CqPoller, CqRing, Cqe};
use verbs_core::slab_alloc::SlabAlloc;

use crate::queue::recv::RecvRing;
use crate::queue::send::{Scratch, SendRing};
use crate::queue::srq::{SharedPoster, SharedReceives};
use crate::rng::Rng;
use crate::transport::{Ends, Events, Fill, Outlet, Path};
use crate::wire::{Head, Packet, Service};

mod bottleneck;
mod captures;
mod faults;
mod last;
mod long;
mod netem;
mod operations;
mod recovery;
mod repeats;
mod retries;
mod rights;
mod storms;

const PD: u32 = 3;
const MEMORY: usize = 1 << 20;
/// Where all regions begin, so that packets are the same in every run.
const BASE: u64 = 0x7fff_1230_0000;

/// One queue pair with everything that it works on.
struct Machine {
    rc: Rc,
    qpn: Qpn,
    path: Path,
    may_begin: bool,
    sends: SendRing,
    recvs: RecvRing,
    srq: Option<(Arc<SharedReceives>, SharedPoster)>,
    send_cq: Arc<CqRing>,
    recv_cq: Arc<CqRing>,
    send_poller: CqPoller,
    recv_poller: CqPoller,
    mrs: Arc<MrTable>,
    counters: Counters,
    memory: Arc<Memory>,
    lkey: LKey,
    rkey: RKey,
    posted_sends: u32,
    posted_recvs: u32,
    /// In ERR and flushed.
    dead: bool,
    contacts: u32,
    /// How often the limit of the shared receive queue was reached.
    limits: u32,
    events: Vec<EventType>,
    /// Packets that the outlet takes at once.
    room: usize,
    /// The most bytes of payload of long packets, if it sends any.
    longest: Option<usize>,
}

/// An outlet that takes that many packets.
struct Out<'a> {
    packets: &'a mut Vec<(Vec<u8>, bool)>,
    room: usize,
    longest: Option<usize>,
}

impl Outlet for Out<'_> {
    fn is_ready(&mut self) -> bool {
        self.packets.len() < self.room
    }

    fn put(
        &mut self,
        head: &Head,
        len: usize,
        again: bool,
        fill: Fill<'_>,
    ) -> Result<(), Unmapped> {
        assert!(self.packets.len() < self.room, "put only when ready");
        let mut bytes = vec![0; head.packet_len(len)];
        let start = head.emit(len, &mut bytes).unwrap();
        fill(&mut bytes[start..start + len])?;
        self.packets.push((bytes, again));
        Ok(())
    }

    fn longest(&mut self, _: Qpn) -> Option<usize> {
        self.longest
    }

    fn put_long(
        &mut self,
        head: &Head,
        len: usize,
        fill: FillWindow<'_>,
    ) -> Result<bool, Unmapped> {
        let memory = Memory::alloc(len).unwrap();
        fill(memory.window(0, len).unwrap())?;
        let mut payload = vec![0; len];
        memory.read(0, &mut payload).unwrap();
        self.put(head, len, false, &mut |out| {
            out.copy_from_slice(&payload);
            Ok(())
        })?;
        Ok(true)
    }
}

/// The attributes of a machine of that number.
fn path(qpn: u32) -> Path {
    Path {
        service: Service::Rc,
        qkey: QKey(0),
        dest_qpn: Qpn::new(qpn ^ 1),
        pkey: PKey::DEFAULT,
        is_special: false,
        lmc: 0,
        mtu: Mtu::B1024,
        access: Access::REMOTE,
        timeout: 10,
        retry_cnt: 6,
        rnr_retry: 6,
        min_rnr_timer: 1,
        fences: true,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        sq_psn: 0,
        rq_psn: 0,
        flags: crate::wire::BthFlags::empty(),
        migration: None,
        may_migrate: false,
    }
}

impl Machine {
    fn new(qpn: u32, shared: bool) -> Self {
        let cap = QpCap {
            max_send_wr: 32,
            max_recv_wr: 32,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let memory = Arc::new(Memory::alloc(MEMORY).unwrap());
        let mrs = Arc::new(MrTable::new(16, 5));
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let region = region_of(&memory, access, PD);
        let (lkey, rkey) = mrs.register(region).unwrap();
        let ring = || Arc::new(CqRing::new(256, Arc::default(), None, true).unwrap());
        let (send_cq, recv_cq) = (ring(), ring());
        let link = Loopback::with_seed(1).directory;
        let engine = Engine::new(VirtualClock::new());
        let (names, gids) = ((Lid(1), Guid(1)), Gids::default());
        let port = Port::new(names, gids, link, Arc::clone(&mrs), engine, None);
        let port = Arc::new(port);
        let srq = shared.then(|| {
            let port = Arc::clone(&port);
            let receives =
                Arc::new(SharedReceives::new(port.removed.clone(), PD, None, 32, 4).unwrap());
            (Arc::clone(&receives), SharedPoster::new(receives))
        });
        Self {
            rc: Rc::new(&cap).unwrap(),
            qpn: Qpn::new(qpn),
            path: path(qpn),
            may_begin: true,
            sends: SendRing::new(&SlabAlloc::default(), &cap, Service::Rc).unwrap(),
            recvs: RecvRing::new(&SlabAlloc::default(), 32, 4).unwrap(),
            srq,
            send_poller: CqPoller::new(Arc::clone(&send_cq), None),
            recv_poller: CqPoller::new(Arc::clone(&recv_cq), None),
            send_cq,
            recv_cq,
            mrs,
            counters: Counters::default(),
            memory,
            lkey,
            rkey,
            posted_sends: 0,
            posted_recvs: 0,
            dead: false,
            contacts: 0,
            limits: 0,
            events: Vec::new(),
            room: 16,
            longest: None,
        }
    }

    /// Runs the machine on its ends; afterwards acts on its events as a device does.
    fn with<T>(&mut self, now: u64, run: impl FnOnce(&mut Rc, &Ends<'_>, &mut Events) -> T) -> T {
        let mut events = Events::default();
        let pin = pin();
        let ends = Ends {
            pin: &pin,
            now: Instant::from_nanos(now),
            qpn: self.qpn,
            pd: PD,
            path: &self.path,
            may_begin: self.may_begin,
            sends: &self.sends,
            recvs: &self.recvs,
            srq: self.srq.as_ref().map(|(srq, _)| srq),
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            mrs: &self.mrs,
            counters: &self.counters,
            core: None,
        };
        let result = run(&mut self.rc, &ends, &mut events);
        drop(pin);
        assert!(!events.overrun_send && !events.overrun_recv);
        self.contacts += u32::from(events.contact);
        self.limits += u32::from(events.srq_limit);
        self.events.extend(events.event);
        if events.fail {
            self.dead = true;
            if let Some(at) = events.failed {
                assert_eq!(self.sends.next(), Some(at), "the oldest one failed");
                self.sends.executed(at);
            }
        }
        result
    }

    fn receive(&mut self, now: u64, bytes: &[u8]) {
        let packet = Packet::parse(bytes).unwrap();
        assert_eq!(packet.head.bth().dest_qpn, self.qpn);
        let len = packet.payload.len();
        let memory = Memory::alloc(len.max(1)).unwrap();
        memory.write(0, packet.payload).unwrap();
        let is_long = len > self.path.mtu.bytes() as usize && self.longest.is_some();
        if !self.dead {
            self.with(now, |rc, ends, events| match is_long {
                true => {
                    let payload = memory.window(0, len).unwrap();
                    rc.receive(ends, &packet.head, payload, events);
                }
                false => rc.receive(ends, &packet.head, packet.payload, events),
            });
        }
    }

    /// What it sends now, and whether it would send more.
    fn transmit(&mut self, now: u64) -> (Vec<(Vec<u8>, bool)>, bool) {
        let mut packets = Vec::new();
        let mut out = Out {
            packets: &mut packets,
            room: self.room,
            longest: self.longest,
        };
        let more = self.with(now, |rc, ends, events| rc.transmit(ends, &mut out, events));
        (packets, more)
    }

    /// The steps of a device on a change to ERR.
    fn flush(&mut self) {
        let flushed = |qpn, wr_id| Cqe::failure(wr_id, qpn, WcStatus::WrFlushErr, 0);
        let pin = pin();
        let mut scratch = Scratch::default();
        while let Some(at) = self.sends.next() {
            let wr_id = self.sends.read(at, &mut scratch).wr_id;
            let way = self.send_cq.enter(&pin).unwrap();
            let cqe = flushed(self.qpn, wr_id);
            self.send_cq.push(way, &cqe, |_| {}).unwrap();
            self.sends.executed(at);
        }
        let mut receives: Vec<u64> = self
            .rc
            .abandon()
            .into_iter()
            .map(|(wr_id, _)| wr_id)
            .collect();
        while let Some(waiting) = self.recvs.next() {
            receives.push(waiting.wr_id());
            waiting.consume();
        }
        for wr_id in receives {
            let way = self.recv_cq.enter(&pin).unwrap();
            let cqe = flushed(self.qpn, wr_id);
            self.recv_cq.push(way, &cqe, |_| {}).unwrap();
        }
    }

    fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge {
            addr: BASE + offset as u64,
            len,
            lkey: self.lkey,
        }
    }

    fn remote(&self, offset: usize) -> verbs_core::Remote {
        verbs_core::Remote {
            addr: BASE + offset as u64,
            rkey: self.rkey,
        }
    }

    fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) {
        self.sends.append(self.posted_sends, &wr.into());
        self.posted_sends += 1;
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Some((_, poster)) = &mut self.srq {
            return poster.post(wr_id, sges).unwrap();
        }
        self.recvs.publish(self.posted_recvs, wr_id, sges);
        self.posted_recvs += 1;
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    fn poll_sends(&mut self) -> Vec<Wc> {
        poll(&mut self.send_poller)
    }

    fn poll_recvs(&mut self) -> Vec<Wc> {
        poll(&mut self.recv_poller)
    }

    fn send_statuses(&mut self) -> Vec<(u64, WcStatus)> {
        statuses(self.poll_sends())
    }

    fn recv_statuses(&mut self) -> Vec<(u64, WcStatus)> {
        statuses(self.poll_recvs())
    }
}

fn poll(poller: &mut CqPoller) -> Vec<Wc> {
    let mut all = vec![Wc::default(); 256];
    let n = poller.poll(&mut all);
    all.truncate(n);
    all
}

fn statuses(wcs: Vec<Wc>) -> Vec<(u64, WcStatus)> {
    wcs.into_iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// All of a machine's memory, at [`BASE`].
fn region_of(memory: &Arc<Memory>, access: Access, pd: u32) -> Region {
    Region {
        iova: BASE,
        ..Region::new(Arc::clone(memory), access, pd)
    }
}

/// A fast registration of all of that memory.
fn register_fast(mrs: &MrTable, memory: &Arc<Memory>, access: Access, pd: u32) -> RKey {
    let what = stage_fast(mrs, memory, access, pd);
    mrs.map(&what, pd).unwrap();
    RKey::new(what.key.value())
}

/// The same, which a work request is still to carry out.
fn stage_fast(mrs: &MrTable, memory: &Arc<Memory>, access: Access, pd: u32) -> Registration {
    let key = mrs.allocate(pd, Layout::Gaps, 1).unwrap();
    let mut list = PageList::new(1).unwrap();
    let whole = Extent {
        memory,
        offset: 0,
        len: memory.len() as u32,
    };
    assert_eq!(list.fill(Layout::Gaps, [whole]), Ok(1));
    Registration {
        key,
        access,
        iova: BASE,
        mapping: mrs.stage(key.index(), &mut list).unwrap(),
    }
}

/// The faults of the wire, in percent of packets.
#[derive(Clone, Copy, Default)]
struct Weather {
    loss: u32,
    repeats: u32,
    delays: u32,
}

/// Changes a packet of bytes on its way from that side; `false` loses it.
type Filter = Box<dyn FnMut(usize, &mut Vec<u8>) -> bool>;

/// Two connected machines.
struct Pair {
    ends: [Machine; 2],
    now: u64,
    rng: Rng,
    weather: Weather,
    /// Both directions of a path that is far from ideal, in place of the weather.
    netem: Option<[netem::Netem; 2]>,
    /// By the time of arrival: the receiving side, and the packet.
    wire: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    count: u64,
    filter: Option<Filter>,
    /// Everything that was put on the wire: the side that sent it, whether it was marked as sent before, the packet.
    log: Vec<(usize, bool, Vec<u8>)>,
}

impl Pair {
    fn new() -> Self {
        Self::with(false, 0)
    }

    fn with(shared: bool, seed: u64) -> Self {
        Self {
            ends: [Machine::new(0x10, shared), Machine::new(0x11, shared)],
            now: 0,
            rng: Rng::new(seed),
            weather: Weather::default(),
            netem: None,
            wire: BTreeMap::new(),
            count: 0,
            filter: None,
            log: Vec::new(),
        }
    }

    /// Both send long packets, with payloads of so many bytes at most.
    fn long(mut self, longest: Option<usize>) -> Self {
        for end in &mut self.ends {
            end.longest = longest;
        }
        self
    }

    fn paths(&mut self, change: impl Fn(&mut Path)) {
        for end in &mut self.ends {
            change(&mut end.path);
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        percent != 0 && self.rng.within(0..100) < percent
    }

    fn put(&mut self, from: usize, mut bytes: Vec<u8>) {
        let keeps = self
            .filter
            .as_mut()
            .is_none_or(|filter| filter(from, &mut bytes));
        if !keeps || self.chance(self.weather.loss) {
            return;
        }
        if let Some(ways) = &mut self.netem {
            for at in ways[from].carry(self.now, bytes.len(), &mut self.rng) {
                self.count += 1;
                self.wire
                    .insert((at, self.count), (1 - from, bytes.clone()));
            }
            return;
        }
        loop {
            let late = match self.chance(self.weather.delays) {
                true => u64::from(self.rng.within(0..400)) * 100,
                false => 0,
            };
            self.count += 1;
            let at = (self.now + 1_000 + late, self.count);
            self.wire.insert(at, (1 - from, bytes.clone()));
            if !self.chance(self.weather.repeats) {
                break;
            }
        }
    }

    /// Both machines send what they can.
    fn send_all(&mut self) {
        for from in 0..2 {
            loop {
                let (packets, more) = self.ends[from].transmit(self.now);
                for (bytes, again) in packets {
                    self.log.push((from, again, bytes.clone()));
                    self.put(from, bytes);
                }
                if !more {
                    break;
                }
            }
        }
    }

    /// Processes the next event. `false`: there will never be one.
    fn step(&mut self) -> bool {
        self.send_all();
        let arrival = self.wire.keys().next().map(|key| key.0);
        let deadline = (0..2)
            .filter(|&i| !self.ends[i].dead)
            .filter_map(|i| self.ends[i].rc.deadline())
            .map(Instant::as_nanos)
            .min();
        let Some(next) = arrival.into_iter().chain(deadline).min() else {
            return false;
        };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, (to, bytes)) = self.wire.pop_first().unwrap();
            self.ends[to].receive(self.now, &bytes);
        } else {
            for end in self.ends.iter_mut().filter(|end| !end.dead) {
                end.with(self.now, |rc, ends, events| rc.expire(ends, events));
            }
        }
        true
    }

    /// Runs until there will never be another event, or that time is over.
    fn run_for(&mut self, time: Duration) {
        let end = self.now + u64::try_from(time.as_nanos()).unwrap();
        while self.now < end && self.step() {}
    }

    /// Runs until all work requests of both are finished and no events are left. Flushes a machine that is in ERR.
    fn run(&mut self) {
        for _ in 0..200_000 {
            if !self.step() {
                for end in self.ends.iter_mut().filter(|end| end.dead) {
                    end.flush();
                }
                assert!(
                    self.ends.iter().all(|end| end.sends.next().is_none()),
                    "nothing happens, and work requests are left"
                );
                return;
            }
        }
        panic!("it does not end");
    }

    /// The packets that one side sent, parsed, as (opcode, psn, bytes of payload).
    fn sent_by(&self, side: usize) -> Vec<(u8, u32, usize)> {
        let sent = self.log.iter().filter(|(from, ..)| *from == side);
        sent.map(|(_, _, bytes)| {
            let packet = Packet::parse(bytes).unwrap();
            let bth = packet.head.bth();
            (bth.opcode.to_u8(), bth.psn.value(), packet.payload.len())
        })
        .collect()
    }

    /// The syndromes that one side sent.
    fn syndromes_of(&self, side: usize) -> Vec<u8> {
        let sent = self.log.iter().filter(|(from, ..)| *from == side);
        sent.filter_map(|(_, _, bytes)| {
            let packet = Packet::parse(bytes).unwrap();
            packet.head.ext().aeth.map(|aeth| aeth.syndrome.to_u8())
        })
        .collect()
    }
}

/// Bytes that differ from place to place and from number to number.
fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mix = |i: u64| (number.wrapping_mul(0x9e37_79b9) ^ i.wrapping_mul(31) ^ (i >> 8)) as u8;
    (0..len as u64).map(mix).collect()
}

/// A work request with those pieces.
fn wr<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: verbs_core::Payload::List(sges),
        dest: verbs_core::Dest::Peer,
    }
}
