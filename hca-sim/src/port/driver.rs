//! The driver of a port whose link carries packets: it drives the machines of the port's queue pairs.
//!
//! There is no thread that others wait for. Any thread that has a reason drives: the poster of a work request, a
//! consumer that polls an empty completion queue, a timer, and, when no consumer polls, the engine's thread, which
//! waits for packets. One thread at a time *holds* the driver ([`ReadyList`]); a poster that finds it held leaves its
//! queue pair on the list and returns.
//!
//! A round takes in what has arrived, then lets every queue pair that has a reason send what it may. The effects on
//! other objects are carried out after the driver has been released. Each thread does only its own part: a poster
//! sends; a consumer that polls all the time receives, and leaves the answers to the next poll or post, so that a
//! completion does not wait for its acknowledgement to be sent.

mod sleep;
mod visit;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use crossbeam_queue::SegQueue;
use verbs_core::combiner::Held;
use verbs_core::host::HostPorts;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak, panicking};
use verbs_core::{Mtu, Qpn, collect, defer};

pub(crate) use self::sleep::sleep;
pub(super) use self::visit::TurnTime;
use self::visit::Visit;
use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::engine::{Attend, Due};
use crate::link::{Change, LinkCounters, PacketLink, Refusal, Verifier, Waiter};
use crate::port::Port;
use crate::port::pollers::{Look, Pollers};
use crate::port::ready::ReadyList;
use crate::qp::QueuePair;
use crate::transport::Acks;
use crate::transport::tx::{TxContext, TxQueue};
use crate::wire::Head;

/// How long after the link had no room it is asked again, if nothing happens before.
const BLOCKED: Duration = Duration::from_micros(200);
/// The token of the timer for that.
pub(super) const ASK_LINK: u64 = 1;

/// See the module's documentation.
pub(crate) struct Driver {
    /// Queue pairs that have a reason for a round.
    ready: ReadyList<QueuePair>,
    /// Uncontended: only the holder locks it.
    work: Mutex<Work>,
    /// The jobs that [`Driver::alone`] was given.
    jobs: SegQueue<Job>,
    pub(super) waiter: Option<Arc<dyn Waiter>>,
    mtu: Mtu,
    /// No other process has queue pair numbers of the port's addresses.
    has_all_numbers: bool,
    /// The port is out of service.
    pub(super) down: AtomicBool,
    /// A timer is set to ask the link for room.
    pub(super) asks_link: AtomicBool,
    pub(super) pollers: Pollers,
    /// What the engine's thread has found were not only answers.
    requests: AtomicBool,
    /// The waiting thread was woken: the link may have changed.
    pub(super) news: AtomicBool,
    /// How often something changed that connections depend on.
    changes: AtomicU32,
    pub(super) hca: OnceLock<Weak<dyn LinkEvents>>,
    me: OnceLock<Weak<Port>>,
}

/// Receives the link's events: the HCA whose port it is. Called outside of locks.
pub(crate) trait LinkEvents: Send + Sync {
    /// Something has changed about the link, which has those addresses now.
    fn link_changed(&self, change: Change, addresses: &[IpAddr]);

    /// A host has refused a packet.
    fn refused(&self, refusal: &Refusal);
}

type Job = Box<dyn FnOnce(&mut Effects) + Send>;

/// The effects of a round; they are carried out even if the round panics, in a link of the user's for instance.
struct Noted<'p> {
    effects: Effects,
    /// Packets may wait that no other thread takes in.
    rest: bool,
    port: &'p Port,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if !self.effects.are_none() && panicking() {
            let port = self.port;
            self.effects.carry_out(&|cq| port.overrun(cq));
        }
    }
}

pub(super) struct Work {
    pub(super) link: Box<dyn PacketLink>,
    pub(super) tx_queue: TxQueue,
    pub(super) reception: Reception,
    /// The queue pairs that get a round; empty between rounds.
    pub(super) busy: Vec<Arc<QueuePair>>,
    /// The queue pairs that have an acknowledgement waiting; empty between rounds.
    pub(super) later: Vec<Arc<QueuePair>>,
}

/// What a packet that arrives is checked with.
pub(super) struct Reception {
    pub(super) verifier: Verifier,
    /// The headers of the last packet: large, so the next ones are read into the same place.
    pub(super) head: Head,
    /// Others than answers to this port's requests have arrived, since the engine's thread looked.
    pub(super) requests: bool,
    /// The queue pair that the last packet was for.
    pub(super) last: (Qpn, Weak<QueuePair>),
}

impl Driver {
    /// The driver of a port on that link.
    pub(crate) fn new(mut link: Box<dyn PacketLink>) -> Self {
        Self {
            has_all_numbers: link.numbers(0).is_none(),
            ready: ReadyList::default(),
            waiter: link.waiter(),
            mtu: link.mtu(),
            work: Mutex::new(Work {
                tx_queue: TxQueue::new(link.burst_bytes()),
                link,
                reception: Reception {
                    verifier: Verifier::new(),
                    head: Head::NOTICE,
                    requests: false,
                    last: (Qpn::new(0), Weak::new()),
                },
                busy: Vec::new(),
                later: Vec::new(),
            }),
            jobs: SegQueue::new(),
            down: AtomicBool::new(false),
            asks_link: AtomicBool::new(false),
            pollers: Pollers::default(),
            requests: AtomicBool::new(false),
            news: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            hca: OnceLock::new(),
            me: OnceLock::new(),
        }
    }

    /// Starts handling packets when no consumer polls.
    pub(crate) fn start(&self, port: &Arc<Port>, hca: Option<Weak<dyn LinkEvents>>) {
        if let Some(hca) = hca {
            let _ = self.hca.set(hca);
        }
        let _ = self.me.set(Arc::downgrade(port));
        let listener = Arc::downgrade(port) as Weak<dyn Due>;
        {
            let link = &mut self.work.lock().link;
            link.attach(listener);
            link.take_long();
        }
        if let Some(waiter) = &self.waiter {
            let whom = Arc::downgrade(port) as Weak<dyn Attend>;
            port.engine.attend_to(whom, Arc::clone(waiter));
        }
    }

    /// The largest path MTU.
    pub(crate) fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Whether the engine's thread receives packets when no consumer polls.
    pub(crate) fn has_thread(&self) -> bool {
        self.waiter.is_some()
    }

    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Acquire)
    }

    /// Something has changed that connections depend on: the GID table, the P_Key table.
    pub(crate) fn change(&self) {
        self.changes.fetch_add(1, AcqRel);
    }

    /// Takes the port in or out of service.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Release);
    }

    /// A queue pair has a reason for a round. Called outside any pin.
    pub(crate) fn serve(&self, qp: &Arc<QueuePair>) {
        self.ready.list(qp);
        if let Some(held) = self.ready.hold() {
            // Where a thread or a poller receives packets, a poster need not.
            let visit = if self.waiter.is_some() {
                Visit::Send
            } else {
                Visit::Both
            };
            self.drive(&qp.port, held, visit, None);
        }
    }

    /// Has `job` done while no queue pair's messages are worked on. Called outside any pin.
    pub(crate) fn alone(&self, port: &Port, job: impl FnOnce(&mut Effects) + Send + 'static) {
        self.jobs.push(Box::new(job));
        self.turn(port);
    }

    /// There may be packets. Returns whether there were; a caller that leaves them to another thread does not know.
    pub(crate) fn turn(&self, port: &Port) -> bool {
        let held = self.ready.hold();
        held.is_some_and(|held| self.drive(port, held, Visit::Both, None))
    }

    /// A consumer polls. If `often`, the engine's thread may leave packets to it for a while. Returns whether packets
    /// arrived.
    pub(crate) fn poll(&self, port: &Port, often: bool) -> bool {
        let now = often.then(|| port.engine.now());
        let is_left = now.is_some_and(|now| self.pollers.polled(now));
        let Some(held) = self.ready.try_hold() else {
            return false;
        };
        let visit = if is_left && self.waiter.is_some() {
            Visit::Receive
        } else {
            Visit::Both
        };
        let came = self.drive(port, held, visit, now);
        if !is_left
            && came
            && let Some(now) = now
        {
            self.pollers.was_faster(now);
        }
        came
    }

    /// A consumer will wait from now on. One that sleeps at the port takes in the packets for it, as the engine's thread
    /// would.
    pub(crate) fn consumer_waits(&self, port: &Port) {
        if !self.pollers.expects(|| port.engine.now()) {
            self.stop_polling();
        }
    }

    /// No packets are left to a consumer any longer.
    fn stop_polling(&self) {
        if !self.pollers.stop() {
            return;
        }
        if let Some(waiter) = &self.waiter {
            waiter.wake();
        }
    }

    /// Sends what is listed, acknowledgements too; a thread that drives now does so in its next round.
    fn send_what_was_left(&self, port: &Port) {
        if let Some(held) = self.ready.hold() {
            self.drive(port, held, Visit::Send, None);
        }
    }

    /// The engine's thread is awake. It handles packets unless they are left to a consumer that polls; returns whether
    /// there were any.
    pub(super) fn attend(&self, port: &Port) -> bool {
        self.news.store(true, Release);
        self.pollers.looks_at_replies();
        let now = port.engine.now();
        let look = self.pollers.look(now);
        if look == Look::Left {
            return false;
        }
        if self.pollers.any_asleep() {
            // It takes in packets. What was left to it while it was awake is sent now.
            if !self.ready.is_empty() {
                self.turn(port);
            }
            return false;
        }
        self.pollers.stop();
        let sent = port.counters.packets_sent.get();
        let came = match self.ready.hold() {
            Some(held) => self.drive(port, held, Visit::Attend, Some(now)),
            None => {
                // The thread that drives has been told. A port that is to be fast polls on.
                if !port.busy_polls() {
                    self.pollers.occupied(now);
                }
                false
            }
        };
        if came {
            self.pollers.was_slower();
        }
        // Answers to the requests of a consumer that runs do not count: it polls when it wants them.
        let requests = self.requests.swap(false, AcqRel);
        let waited = requests || port.counters.packets_sent.get() != sent;
        match look {
            Look::Gone if waited => self.pollers.gone(now),
            Look::Asleep if waited || came => self.pollers.gone(now),
            _ => {}
        }
        came
    }

    /// It takes a turn in the next round.
    pub(crate) fn list(&self, qp: &Arc<QueuePair>) {
        self.ready.list(qp);
    }

    /// Drives until no queue pair has a reason left; `now` is the time, if the caller has read it. Returns whether
    /// packets arrived.
    fn drive<'d>(
        &'d self,
        port: &Port,
        held: Held<'d>,
        visit: Visit,
        now: Option<Instant>,
    ) -> bool {
        // Leaving a pin inside may complete verbs, and their routines must not run under a lock.
        collect(|| self.drive_on(port, held, visit, now))
    }

    fn drive_on<'d>(
        &'d self,
        port: &Port,
        held: Held<'d>,
        mut visit: Visit,
        mut now: Option<Instant>,
    ) -> bool {
        let mut any = false;
        let note = || Noted {
            effects: Effects::default(),
            rest: false,
            port,
        };
        let turn = |noted: &mut Noted<'_>| {
            self.do_jobs(&mut noted.effects);
            let mut time = TurnTime::new(&port.engine, now.take());
            let work = &mut self.work.lock();
            let came = self.round(port, work, visit, &mut time, &mut noted.effects);
            any |= came;
            // Where no thread waits for packets, no other thread takes in the rest of them.
            noted.rest = came && self.waiter.is_none();
            // Another thread that entered in the meantime has something to send.
            visit = Visit::Both;
        };
        let settle = |noted: &mut Noted<'_>, marked: bool| {
            self.settle(port, &mut noted.effects, marked || noted.rest)
        };
        self.ready.drive(held, note, turn, settle);
        any
    }

    /// Carries out the effects of a turn. Returns whether there is a reason for another one; `more`: there is.
    fn settle(&self, port: &Port, effects: &mut Effects, more: bool) -> bool {
        if effects.only_fires() {
            effects.call_handlers();
            return more;
        }
        self.settle_all(port, effects, more)
    }

    // Apart, because most turns only fire.
    #[inline(never)]
    fn settle_all(&self, port: &Port, effects: &mut Effects, more: bool) -> bool {
        let (blocked, fed) = effects.take_packets();
        let (mut stalled, mut again) = (Vec::new(), Vec::new());
        for effect in effects.carry_out(&|cq| port.overrun(cq)) {
            match effect {
                Effect::Link(change) => self.tell(change),
                Effect::Stalled(qp) => stalled.push(qp),
                Effect::Again(qp) => again.push(qp),
                _ => {}
            }
        }
        let waits_for_room = blocked || !stalled.is_empty();
        let more = more || !again.is_empty();
        let has_fed = !fed.is_empty();
        for neighbour in fed {
            let now = port.engine.now();
            defer(move || neighbour.due(now, 0));
        }
        if !stalled.is_empty() {
            stalled.into_iter().for_each(|qp| qp.list());
        }
        if has_fed && waits_for_room {
            // The receivers have made room, or are about to on this very thread.
            if let (false, Some(me)) = (more, self.me.get().cloned()) {
                defer(move || {
                    if let Some(port) = me.upgrade() {
                        port.due(port.engine.now(), 0);
                    }
                });
            }
        } else if waits_for_room {
            self.ask_link_later(port);
        }
        if more {
            again.into_iter().for_each(|qp| qp.list());
        }
        more
    }

    /// Does the jobs that need no queue pair's messages to be worked on; called by the holder.
    fn do_jobs(&self, effects: &mut Effects) {
        // Checked first, because a pop from an empty queue costs a fence.
        if self.jobs.is_empty() {
            return;
        }
        while let Some(job) = self.jobs.pop() {
            job(effects);
        }
    }

    /// One round, by the holder. Returns whether packets arrived.
    fn round(
        &self,
        port: &Port,
        work: &mut Work,
        visit: Visit,
        time: &mut TurnTime<'_>,
        effects: &mut Effects,
    ) -> bool {
        match visit {
            Visit::Send => {
                // If nothing sends them before, the thread does so when no consumer polls any longer.
                let acks = if self.pollers.any_asleep() || self.pollers.left_until() <= time.now() {
                    Acks::Now
                } else {
                    Acks::Later
                };
                self.send(port, work, acks, time, effects);
                false
            }
            Visit::Receive => {
                if work.tx_queue.is_blocked() || !self.ready.is_empty() {
                    self.send(port, work, Acks::Now, time, effects);
                }
                let came = self.receive(port, work, time, effects);
                if !work.busy.is_empty() {
                    self.ready.append(&mut work.busy);
                }
                came
            }
            Visit::Both => {
                let came = self.receive(port, work, time, effects);
                self.send(port, work, Acks::Now, time, effects);
                came
            }
            Visit::Attend => {
                work.reception.requests = false;
                let came = self.receive(port, work, time, effects);
                if work.reception.requests {
                    self.requests.store(true, Release);
                }
                if self.send(port, work, Acks::WithReply, time, effects) {
                    self.pollers.left_replies(time.now());
                }
                came
            }
        }
    }

    /// Lets every queue pair that has a reason send. Returns whether acknowledgements wait.
    fn send(
        &self,
        port: &Port,
        work: &mut Work,
        mut acks: Acks,
        time: &mut TurnTime<'_>,
        effects: &mut Effects,
    ) -> bool {
        let Work {
            link,
            tx_queue,
            busy,
            later,
            ..
        } = work;
        tx_queue.flush(&mut **link);
        self.ready.gather(busy);
        if !busy.is_empty() {
            if busy.len() > 1 && busy.iter().any(|qp| qp.is_special()) {
                // A connection's end must not overtake the acknowledgement of what was sent over it.
                busy.sort_by_key(|qp| qp.is_special());
                acks = Acks::Now;
            }
            let mut mail = TxContext {
                tx_queue,
                link: &mut **link,
                counters: &port.counters,
                now: time.now(),
                down: self.down.load(Acquire),
                acks,
                deferred: false,
            };
            self.ready.serve(busy, |qp| {
                qp.round(Some(&mut mail), effects);
                if std::mem::take(&mut mail.deferred) {
                    later.push(qp);
                }
            });
            tx_queue.flush(&mut **link);
            tx_queue.rests();
        }
        effects.blocked |= tx_queue.is_blocked();
        while let Some(fed) = link.fed() {
            effects.few().fed.push(fed);
        }
        let wait = !later.is_empty();
        if wait {
            for qp in later.drain(..) {
                self.ready.list(&qp);
            }
        }
        wait
    }

    /// Joins a multicast group.
    ///
    /// # Errors
    /// The link's error.
    pub(crate) fn join(&self, group: IpAddr) -> io::Result<()> {
        self.work.lock().link.join(group)
    }

    /// Leaves a multicast group.
    pub(crate) fn leave(&self, group: IpAddr) {
        self.work.lock().link.leave(group);
    }

    /// The link had no room: it is asked again a little later, unless another thread does so before.
    fn ask_link_later(&self, port: &Port) {
        let Some(me) = self.me.get().and_then(Weak::upgrade) else {
            return;
        };
        if !self.asks_link.swap(true, AcqRel) {
            let _ = port.engine.after(BLOCKED, me, ASK_LINK);
        }
    }

    fn tell(&self, change: Change) {
        if let Some(hca) = self.hca.get().and_then(Weak::upgrade) {
            hca.link_changed(change, &self.addresses());
        }
    }

    /// Its port, where other processes have numbers of the port's addresses too.
    pub(super) fn port(&self) -> Option<Arc<Port>> {
        self.me.get().filter(|_| !self.has_all_numbers)?.upgrade()
    }

    /// The queue pair numbers that may be used, if other processes have the rest; `used` of them are in use.
    pub(crate) fn numbers(&self, used: usize) -> Option<Vec<Range<u32>>> {
        if self.has_all_numbers {
            return None;
        }
        self.work.lock().link.numbers(used).map(<[_]>::to_vec)
    }

    /// The port numbers that are shared with other processes.
    pub(crate) fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        self.work.lock().link.host_ports()
    }

    /// The link's counters. Waits for the current round, if there is one.
    pub(crate) fn link_counters(&self) -> LinkCounters {
        self.work.lock().link.counters()
    }

    /// The addresses that the link has now.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.work.lock().link.addresses().to_vec()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("mtu", &self.mtu)
            .field("down", &self.down)
            .finish_non_exhaustive()
    }
}
