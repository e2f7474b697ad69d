//! The hosts, links and flows of a run, and what happens to them in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use hca_sim::ReactionPoint;
use verbs_link::time::Instant;

use super::link::{Link, Packet, Pfc, time_of};
use super::pattern::Ends;
use super::tree::{LinkId, Origin, Path, Tree};
use super::{Completion, FlowReport, FlowRun};
use crate::Draw;

/// Bytes of a packet on a link at most.
const MTU: u64 = 1024;
/// A switch that holds more bytes than this from one link tells the sender of the link to pause.
const PAUSE_AT: usize = 256 << 10;
/// After a pause, a switch that holds no more bytes than this from the link tells the sender to resume.
const RESUME_AT: usize = 224 << 10;
/// The least time between two notifications to a sender.
const NOTIFY_EVERY: Duration = Duration::from_micros(50);
/// Flows begin within that time.
const BEGIN_WITHIN: Duration = Duration::from_micros(1);

/// Something that happens at a time.
#[derive(Debug)]
enum Event {
    Begins(usize),
    /// A host has a packet to send.
    Due(usize),
    /// A packet has left; it had come by the other link.
    Sent(LinkId, Packet, Option<LinkId>),
    Arrives(LinkId, Packet),
    /// The sender of a link hears what its end tells.
    Told(LinkId, Pfc),
    /// The sender of a flow gets a notification.
    Notified(usize),
}

/// An entry of the agenda, the earliest first, and those of one time in the order in which they were made.
struct Entry(Reverse<(Instant, u64)>, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

struct Sender {
    ends: Ends,
    path: Path,
    point: Option<ReactionPoint>,
    /// Bytes that are still to be sent, and to come.
    left: u64,
    to_come: u64,
    begun: Instant,
    ended: Instant,
    /// When its receiver has sent the last notification.
    notified: Option<Instant>,
}

#[derive(Default)]
struct Host {
    /// Flows with something to send, by when they may: of two at a time, the one that has waited longer.
    ready: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    /// When it is called next.
    due: Option<Instant>,
}

pub(super) struct World {
    run: FlowRun,
    tree: Tree,
    draw: Draw,
    now: Instant,
    agenda: BinaryHeap<Entry>,
    entries: u64,
    links: Vec<Link>,
    hosts: Vec<Host>,
    flows: Vec<Sender>,
    report: FlowReport,
}

impl World {
    pub(super) fn new(run: FlowRun, tree: Tree) -> Self {
        let mut draw = Draw::new(run.seed);
        let ends = run.pattern.flows(tree.hosts(), &mut draw);
        let mut world = Self {
            run,
            tree,
            draw,
            now: Instant::ZERO,
            agenda: BinaryHeap::new(),
            entries: 0,
            links: (0..tree.links()).map(|_| Link::default()).collect(),
            hosts: (0..tree.hosts()).map(|_| Host::default()).collect(),
            flows: Vec::new(),
            report: FlowReport {
                flows: Vec::new(),
                pauses: 0,
                marked: 0,
                notified: 0,
                longest: 0,
                took: Duration::ZERO,
            },
        };
        for (number, ends) in ends.into_iter().enumerate() {
            let choice = world.draw.below(tree.hosts());
            world.flows.push(Sender {
                ends,
                path: tree.path(ends.from, ends.to, choice),
                point: run.congestion.map(ReactionPoint::new),
                left: run.bytes,
                to_come: run.bytes,
                begun: Instant::ZERO,
                ended: Instant::ZERO,
                notified: None,
            });
            let mut after = world.draw.duration(Duration::ZERO..=BEGIN_WITHIN);
            if ends.is_bystander {
                after += run.bystanders_after;
            }
            world.after(after, Event::Begins(number));
        }
        world
    }

    /// Lets everything happen.
    pub(super) fn run(mut self) -> FlowReport {
        while let Some(Entry(Reverse((at, _)), event)) = self.agenda.pop() {
            self.now = at;
            match event {
                Event::Begins(flow) => self.begin(flow),
                Event::Due(host) => {
                    self.hosts[host].due = None;
                    self.send(host);
                }
                Event::Sent(link, packet, via) => self.sent(link, packet, via),
                Event::Arrives(link, packet) => self.arrive(link, packet),
                Event::Told(link, told) => {
                    self.links[link].set(told);
                    self.go_on(link);
                }
                Event::Notified(flow) => {
                    self.report.notified += 1;
                    if let Some(point) = &mut self.flows[flow].point {
                        point.notified(at);
                    }
                }
            }
        }
        let completions = self.flows.iter().map(|flow| self.completion(flow));
        self.report.flows = completions.collect();
        self.report
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.at(self.now + time, event);
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.entries += 1;
        self.agenda.push(Entry(Reverse((at, self.entries)), event));
    }

    fn begin(&mut self, flow: usize) {
        self.flows[flow].begun = self.now;
        if self.run.bytes == 0 {
            self.flows[flow].ended = self.now;
            return;
        }
        let host = self.flows[flow].ends.from;
        self.wait(host, self.now, flow);
        self.send(host);
    }

    /// A flow may send from that time on.
    fn wait(&mut self, host: usize, from: Instant, flow: usize) {
        self.entries += 1;
        let entry = Reverse((from, self.entries, flow));
        self.hosts[host].ready.push(entry);
    }

    /// A host sends the packet that may go now, if its link is free.
    fn send(&mut self, host: usize) {
        let link = self.tree.of_host(host);
        if self.links[link].is_taken() {
            return;
        }
        let Some(&Reverse((from, _, number))) = self.hosts[host].ready.peek() else {
            return;
        };
        if from > self.now {
            let due = &mut self.hosts[host].due;
            if due.is_none_or(|due| due > from) {
                *due = Some(from);
                self.at(from, Event::Due(host));
            }
            return;
        }
        self.hosts[host].ready.pop();
        let flow = &mut self.flows[number];
        let len = flow.left.min(MTU);
        flow.left -= len;
        let next = match &mut flow.point {
            Some(point) => {
                // What time has changed is worked out before.
                let _now = point.departure(self.now);
                point.sent(self.now, len);
                point.departure(self.now)
            }
            None => self.now,
        };
        if flow.left > 0 {
            self.wait(host, next, number);
        }
        let packet = Packet {
            flow: number as u32,
            len: len as u32,
            hop: 0,
            is_marked: false,
        };
        self.links[link].push(packet, None);
        self.start(link);
    }

    /// A link sends what waits for it, if it can.
    fn start(&mut self, link: LinkId) {
        if let Some((packet, via)) = self.links[link].start() {
            let time = time_of(packet.len, self.run.queue.rate);
            self.after(time, Event::Sent(link, packet, via));
        }
    }

    fn go_on(&mut self, link: LinkId) {
        self.start(link);
        if let Origin::Host(host) = self.tree.origin(link) {
            self.send(host);
        }
    }

    fn sent(&mut self, link: LinkId, packet: Packet, via: Option<LinkId>) {
        self.links[link].sent();
        if let Some(via) = via
            && let Some(told) = self.links[via].let_go(packet.len as usize, RESUME_AT)
        {
            self.after(self.run.delay, Event::Told(via, told));
        }
        self.after(self.run.delay, Event::Arrives(link, packet));
        self.go_on(link);
    }

    fn arrive(&mut self, link: LinkId, mut packet: Packet) {
        packet.hop += 1;
        let path = self.flows[packet.flow as usize].path;
        let Some(next) = path.link(packet.hop.into()) else {
            return self.deliver(packet);
        };
        let was_marked = packet.is_marked;
        self.links[next].mark(&mut packet, &self.run.queue, &mut self.draw);
        self.report.marked += u64::from(packet.is_marked && !was_marked);
        if let Some(told) = self.links[link].hold(packet.len as usize, PAUSE_AT) {
            self.report.pauses += 1;
            self.after(self.run.delay, Event::Told(link, told));
        }
        self.links[next].push(packet, Some(link));
        self.report.longest = self.report.longest.max(self.links[next].waiting());
        self.start(next);
    }

    /// A packet has come to its host.
    fn deliver(&mut self, packet: Packet) {
        let number = packet.flow as usize;
        let (now, delay) = (self.now, self.run.delay);
        let flow = &mut self.flows[number];
        flow.to_come -= u64::from(packet.len);
        if flow.to_come == 0 {
            flow.ended = now;
            self.report.took = now.since(Instant::ZERO);
        }
        let may_notify = flow
            .notified
            .is_none_or(|last| now.since(last) >= NOTIFY_EVERY);
        if packet.is_marked && may_notify {
            flow.notified = Some(now);
            // A notification waits behind nothing: it has a priority of its own.
            let back = delay * flow.path.len() as u32;
            self.after(back, Event::Notified(number));
        }
    }

    fn completion(&self, flow: &Sender) -> Completion {
        let hops = flow.path.len() as u32;
        let rate = self.run.queue.rate;
        let (packets, rest) = (self.run.bytes / MTU, self.run.bytes % MTU);
        let whole = time_of(MTU as u32, rate);
        // All leave the host one after the other; the longest waits at each switch until it has come whole.
        let longest = time_of(self.run.bytes.min(MTU) as u32, rate);
        let sending =
            whole * u32::try_from(packets).unwrap_or(u32::MAX) + time_of(rest as u32, rate);
        Completion {
            from: flow.ends.from,
            to: flow.ends.to,
            is_bystander: flow.ends.is_bystander,
            took: flow.ended.since(flow.begun),
            alone: sending + longest * (hops - 1) + self.run.delay * hops,
        }
    }
}
