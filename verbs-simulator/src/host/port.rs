//! The port of a program: the link of the product, stepped by the run, and killed in the middle of what it does.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use verbs_core::host::{Block, HostPorts};
use verbs_core::mem::Unmapped;
use verbs_core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Mtu, Qpn, Seed};
use verbs_link::ring::{Mapped, Shared as _, Word};
use verbs_link::time::{Due, Instant, VirtualClock};
use verbs_link::{
    Arrival, Burst, Change, Feedback, FillWindow, Ident, Joined, LinkCounters, LongPacket,
    PacketLink, Route, Sent, Waiter,
};
use verbs_wire::target::{About, Phase, TargetMessage};
use verbs_wire::{Bth, BthView, Deth, Icrc, ROCE_PORT};

use super::mutant::HostMutant;
use super::place::{Note, Place, Program};
use crate::Draw;

/// Queue pairs that a port claims to have beyond its own, so that it leases more blocks.
const CLAIMED: usize = 300;
/// The queue pair of general services.
const GSI: Qpn = Qpn::new(1);

/// What a run knows of a program, and does to it.
pub(super) struct Process {
    pub(super) number: Program,
    place: Place,
    clock: VirtualClock,
    is_dead: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listener: Option<Weak<dyn Due>>,
    waiter: Option<Arc<dyn Waiter>>,
    /// A second descriptor of its line.
    line: Option<OwnedFd>,
    /// Calls of its link until it dies.
    fuse: Option<u32>,
    wakers: Vec<Waker>,
    /// Of a mutant: blocks that are gone, and packets of a neighbour, which are handed up unchecked.
    early: VecDeque<Block>,
    foreign: VecDeque<Vec<u8>>,
}

impl Process {
    pub(super) fn new(number: Program, place: Place, clock: VirtualClock) -> Arc<Self> {
        Arc::new(Self {
            number,
            place,
            clock,
            is_dead: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Relaxed)
    }

    /// Whether it is dead; wakes the task when it dies.
    pub(super) fn poll_dead(&self, cx: &Context<'_>) -> bool {
        if !self.is_dead() {
            let mut state = self.state.lock();
            if !state.wakers.iter().any(|known| known.will_wake(cx.waker())) {
                state.wakers.push(cx.waker().clone());
            }
        }
        self.is_dead()
    }

    /// Connects to the daemon; the run keeps a hold of the line.
    pub(super) fn connect(&self) -> rustix::io::Result<OwnedFd> {
        if self.is_dead() {
            return Err(rustix::io::Errno::CONNREFUSED);
        }
        let socket = self.place.connect()?;
        self.state.lock().line = Some(rustix::io::fcntl_dupfd_cloexec(&socket, 0)?);
        Ok(socket)
    }

    /// It dies after so many further calls of its link, if any.
    pub(super) fn light(&self, fuse: Option<u32>) {
        self.state.lock().fuse = fuse;
    }

    /// Dies: from now on, nothing of it is seen by others except what it has done before.
    pub(super) fn die(&self) {
        if self.is_dead.swap(true, Relaxed) {
            return;
        }
        let (line, wakers) = {
            let mut state = self.state.lock();
            (state.line.take(), std::mem::take(&mut state.wakers))
        };
        if let Some(line) = line {
            // The daemon reads what was sent before, and then the end.
            let _ = shutdown(&line, Shutdown::Both);
        }
        self.place.died(self.clock.now(), self.number);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Its HCA has a turn.
    pub(super) fn turn(&self, now: Instant) {
        if self.is_dead() {
            return;
        }
        let (listener, waiter) = {
            let state = self.state.lock();
            (state.listener.clone(), state.waiter.clone())
        };
        if let Some(waiter) = waiter {
            waiter.wait(Some(Duration::ZERO), true);
        }
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            listener.due(now, 0);
        }
    }

    /// A mutant: the program hears of the end of a block at once.
    pub(super) fn hears_early(&self, block: Block) {
        self.state.lock().early.push_back(block);
    }

    /// A mutant: the program takes that packet of a neighbour.
    pub(super) fn takes_foreign(&self, packet: Vec<u8>) {
        self.state.lock().foreign.push_back(packet);
    }

    /// Whether it dies in this call.
    fn burns(&self) -> bool {
        let mut state = self.state.lock();
        match &mut state.fuse {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}

/// See the module's documentation.
pub(super) struct HostPort {
    process: Arc<Process>,
    link: Joined,
    draw: Draw,
    mutant: Option<HostMutant>,
    /// What it claims to have of queue pairs.
    claimed: usize,
    numbers: Vec<Range<u32>>,
}

impl HostPort {
    pub(super) fn new(
        process: &Arc<Process>,
        link: Joined,
        mut draw: Draw,
        mutant: Option<HostMutant>,
    ) -> Self {
        process.state.lock().waiter = link.waiter();
        let claimed = if draw.below(4) == 0 { CLAIMED } else { 0 };
        Self {
            process: Arc::clone(process),
            link,
            draw,
            mutant,
            claimed,
            numbers: Vec::new(),
        }
    }

    /// Sends packets, and dies on the way.
    fn die_sending(&mut self, send: impl FnOnce(&mut Joined)) {
        if self.draw.below(4) == 0 {
            return self.process.die();
        }
        let rings = self.process.place.written_by(self.process.number);
        let before: Vec<_> = rings.iter().map(Published::of).collect();
        send(&mut self.link);
        for published in before {
            match self.draw.below(3) {
                0 => {}
                _ if self.mutant == Some(HostMutant::TailFirst) => published.unwrite(),
                _ => published.unpublish(),
            }
        }
        self.process.die();
    }

    /// The blocks that the port has got since the last call.
    fn note_numbers(&mut self) {
        let Some(numbers) = self.link.numbers(0) else {
            return;
        };
        if numbers.len() == self.numbers.len() {
            return;
        }
        let numbers = numbers.to_vec();
        let now = self.process.clock.now();
        for range in &numbers {
            if !self.numbers.contains(range)
                && let Some(block) = Block::of(Qpn::new(range.start))
            {
                self.process.place.leased(now, block, self.process.number);
            }
        }
        self.numbers = numbers;
    }

    /// Packets of a neighbour that a mutant does not check.
    fn take_foreign(&self, sink: &mut dyn FnMut(&Arrival<'_>)) {
        let foreign = std::mem::take(&mut self.process.state.lock().foreign);
        let Some(&here) = self.link.addresses().first() else {
            return;
        };
        for packet in foreign {
            sink(&Arrival {
                src: here,
                dst: here,
                sport: ROCE_PORT,
                tclass: 0,
                ident: Ident::Unsealed,
                local: None,
                bytes: &packet,
                long: None,
            });
        }
    }
}

/// That packet, if a target comes home with it, with one message more than the target has executed.
fn ahead(packet: &[u8]) -> Option<Vec<u8>> {
    let (heads, message) = packet.split_at_checked(Bth::LEN + Deth::LEN)?;
    let (message, icrc) = message.split_last_chunk::<{ Icrc::LEN }>()?;
    let mut message = TargetMessage::parse(message).ok()?;
    let About::Report(Phase::Over, standing) = &mut message.about else {
        return None;
    };
    standing.expected = standing.expected.add(1);
    Some([heads, &message.emit(), icrc].concat())
}

/// What a ring had in it before its writer wrote.
struct Published {
    ring: Mapped,
    tail: u64,
    bytes: Vec<u8>,
}

impl Published {
    fn of(ring: &Mapped) -> Self {
        let mut bytes = vec![0; ring.capacity() as usize];
        ring.read(0, &mut bytes);
        Self {
            ring: ring.clone(),
            tail: ring.load(Word::Tail),
            bytes,
        }
    }

    /// The writer has died before it published: its bytes are there, and nobody is told.
    fn unpublish(self) {
        self.ring.store(Word::Tail, self.tail);
    }

    /// The writer, a mutant, has published and died before all of its bytes were there: at most the length is.
    fn unwrite(self) {
        let tail = self.ring.load(Word::Tail);
        let (capacity, len) = (self.bytes.len() as u64, 8);
        for position in (self.tail + len..tail).step_by(8) {
            let at = position % capacity;
            let old = &self.bytes[at as usize..at as usize + 8];
            self.ring.write(at, old);
        }
    }
}

impl PacketLink for HostPort {
    fn addresses(&self) -> &[IpAddr] {
        self.link.addresses()
    }

    fn mtu(&self) -> Mtu {
        self.link.mtu()
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.link.burst_limit(route)
    }

    fn burst_bytes(&self) -> usize {
        self.link.burst_bytes()
    }

    fn seals(&self, route: &Route, dest: Qpn) -> bool {
        self.link.seals(route, dest)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        if self.process.is_dead() {
            return Sent::Gone;
        }
        if self.process.burns() {
            self.die_sending(|link| {
                let _lost = link.transmit(burst);
            });
            return Sent::Gone;
        }
        self.link.transmit(burst)
    }

    fn take_long(&mut self) {
        self.link.take_long();
    }

    fn longest(&mut self, route: &Route, dest: Qpn) -> Option<usize> {
        self.link.longest(route, dest)
    }

    fn transmit_long(
        &mut self,
        packet: &LongPacket<'_>,
        fill: FillWindow<'_>,
    ) -> Result<Sent, Unmapped> {
        if self.process.is_dead() {
            return Ok(Sent::Gone);
        }
        if self.process.burns() {
            self.die_sending(|link| {
                let _lost = link.transmit_long(packet, fill);
            });
            return Ok(Sent::Gone);
        }
        self.link.transmit_long(packet, fill)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        if self.process.is_dead() {
            return 0;
        }
        let burns = self.process.burns();
        if burns && self.draw.below(2) == 0 {
            self.process.die();
            return 0;
        }
        if !self.process.state.lock().early.is_empty() {
            return 0;
        }
        self.note_numbers();
        let mut dests = BTreeSet::new();
        let mut sink = |arrival: &Arrival<'_>| {
            let bth = arrival.bytes.first_chunk::<{ Bth::LEN }>();
            dests.extend(bth.map(|bth| BthView::of(bth).dest_qpn()));
            match (self.mutant == Some(HostMutant::SkippedRequest))
                .then(|| ahead(arrival.bytes))
                .flatten()
            {
                Some(bytes) => sink(&Arrival {
                    bytes: &bytes,
                    ..*arrival
                }),
                None => sink(arrival),
            }
        };
        let count = self.link.receive(&mut sink);
        self.take_foreign(&mut sink);
        // A block may have come before them.
        self.note_numbers();
        let is_its = |qpn: &Qpn| {
            let is_among = |range: &Range<u32>| range.contains(&qpn.value());
            [GSI, Qpn::MULTICAST].contains(qpn) || self.numbers.iter().any(is_among)
        };
        for qpn in dests.into_iter().filter(|qpn| !is_its(qpn)) {
            let process = &self.process;
            let what = format!("program {} got a packet for {qpn:?}", process.number);
            process.place.violated(process.clock.now(), what);
        }
        if burns {
            self.process.die();
        }
        count
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        self.draw.number()
    }

    fn seed(&mut self) -> Seed {
        Seed::from(self.entropy())
    }

    fn change(&mut self) -> Option<Change> {
        self.link.change()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn attach(&mut self, listener: Weak<dyn Due>) {
        self.process.state.lock().listener = Some(listener);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.link.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.link.leave(group);
    }

    fn numbers(&mut self, used: usize) -> Option<&[Range<u32>]> {
        self.note_numbers();
        self.link.numbers(used + self.claimed)
    }

    fn gone(&mut self) -> Option<Range<u32>> {
        let early = self.process.state.lock().early.pop_front();
        let gone = early.map(Block::qpns).or_else(|| self.link.gone())?;
        let process = &self.process;
        let block = Block::of(Qpn::new(gone.start))?;
        let numbers = [block.number().into(), process.number.into()];
        let now = process.clock.now();
        process.place.note(now, Note::Gone, numbers);
        let unread = process.place.unread(block, process.number);
        if unread > 0 {
            let number = process.number;
            let what =
                format!("program {number} hears that {block:?} is gone, {unread} bytes unread");
            process.place.violated(now, what);
        }
        Some(gone)
    }

    fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        self.link.host_ports()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

impl fmt::Debug for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPort")
            .field("process", &self.process.number)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
