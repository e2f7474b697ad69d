//! Who drives the machines of a port whose link carries packets.
//!
//! There is no thread that others wait for. Whoever has a reason drives: the poster of a work request,
//! a consumer who polls an empty completion queue, a timer, and, when nobody polls, the engine's thread,
//! which waits for packets. One at a time *holds* the driver ([`Combiner`]); a poster who finds it held
//! leaves its queue pair on the list and goes.
//!
//! A round takes in what has come, then lets every queue pair that has a reason send what it may. What
//! that leads to for others is done after the driver was let go. Each does only what it is there for: a
//! poster sends; somebody who polls all the time takes in, and leaves the answers to the next poll or
//! post, so that a completion is not kept waiting for its acknowledgement.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak, panicking};
use verbs_core::{Mtu, Qpn, collect, defer};

use crate::engine::{Attend, Due};
use crate::link::{Change, LinkCounters, PacketLink, Refusal, Verifier, Waiter};
use crate::port::Port;
use crate::port::pollers::Pollers;
use crate::qp::QueuePair;
use crate::qp::effects::{Effects, ForDriver};
use crate::queue::base::combiner::{Combiner, Held};
use crate::transport::tx::{TxContext, TxQueue};

/// How long after a link had no room it is asked again, if nothing happens before.
const BLOCKED: Duration = Duration::from_micros(200);
/// The token of the timer for that.
pub(super) const ASK_LINK: u64 = 1;

/// See the module's documentation.
pub(crate) struct Driver {
    combiner: Combiner,
    /// Queue pairs that have a reason.
    listed: Mutex<Vec<Arc<QueuePair>>>,
    /// Uncontended: only the holder locks it.
    work: Mutex<Work>,
    /// What [`Driver::alone`] was asked for.
    jobs: Mutex<Vec<Job>>,
    has_jobs: AtomicBool,
    pub(super) waiter: Option<Arc<dyn Waiter>>,
    mtu: Mtu,
    /// The port is out of service.
    pub(super) down: AtomicBool,
    /// A timer is set to ask the link for room.
    pub(super) asks_link: AtomicBool,
    pub(super) pollers: Pollers,
    /// The thread that waits was woken: there may be news of the link.
    pub(super) news: AtomicBool,
    /// How often something changed that connections go by.
    changes: AtomicU32,
    pub(super) hca: OnceLock<Weak<dyn LinkEvents>>,
    me: OnceLock<Weak<Port>>,
}

/// What hears of the link: the HCA whose port it is. Called outside of locks.
pub(crate) trait LinkEvents: Send + Sync {
    /// Something has changed about the link, which has those addresses now.
    fn link_changed(&self, change: Change, addresses: &[IpAddr]);

    /// A host has refused a packet.
    fn refused(&self, refusal: &Refusal);
}

/// What somebody who holds the driver does first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// Sends what was posted.
    Send,
    /// Takes packets in, after the answers to those that came before have left.
    Receive,
    /// Takes packets in and sends.
    Both,
}

type Job = Box<dyn FnOnce(&mut Effects) + Send>;

/// What a round leads to; carried out as well if the round panics, in a link of the user's for instance.
struct Noted<'p> {
    effects: Effects,
    port: &'p Port,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if panicking() {
            let port = self.port;
            self.effects.carry_out(&|cq| port.overrun(cq));
        }
    }
}

pub(super) struct Work {
    pub(super) link: Box<dyn PacketLink>,
    pub(super) tx_queue: TxQueue,
    pub(super) verifier: Verifier,
    /// Who gets a round; empty between rounds.
    pub(super) busy: Vec<Arc<QueuePair>>,
    /// Who has an acknowledgement that waits; empty between rounds.
    pub(super) later: Vec<Arc<QueuePair>>,
    /// Whom the last packet was for.
    pub(super) last: (Qpn, Weak<QueuePair>),
}

impl Driver {
    /// The driver of a port on that link.
    pub(crate) fn new(link: Box<dyn PacketLink>) -> Self {
        Self {
            combiner: Combiner::default(),
            listed: Mutex::new(Vec::new()),
            waiter: link.waiter(),
            mtu: link.mtu(),
            work: Mutex::new(Work {
                tx_queue: TxQueue::new(link.burst_bytes()),
                link,
                verifier: Verifier::new(),
                busy: Vec::new(),
                later: Vec::new(),
                last: (Qpn::new(0), Weak::new()),
            }),
            jobs: Mutex::new(Vec::new()),
            has_jobs: AtomicBool::new(false),
            down: AtomicBool::new(false),
            asks_link: AtomicBool::new(false),
            pollers: Pollers::default(),
            news: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            hca: OnceLock::new(),
            me: OnceLock::new(),
        }
    }

    /// Has packets seen to from now on, when nobody polls.
    pub(crate) fn start(&self, port: &Arc<Port>, hca: Option<Weak<dyn LinkEvents>>) {
        if let Some(hca) = hca {
            let _ = self.hca.set(hca);
        }
        let _ = self.me.set(Arc::downgrade(port));
        let listener = Arc::downgrade(port) as Weak<dyn Due>;
        self.work.lock().link.attach(listener);
        if let Some(waiter) = &self.waiter {
            let whom = Arc::downgrade(port) as Weak<dyn Attend>;
            port.engine.attend_to(whom, Arc::clone(waiter));
        }
    }

    /// The largest path MTU.
    pub(crate) fn mtu(&self) -> Mtu {
        self.mtu
    }

    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Acquire)
    }

    /// Something has changed that connections go by: the GID table, the P_Key table.
    pub(crate) fn change(&self) {
        self.changes.fetch_add(1, AcqRel);
    }

    /// Takes the port in or out of service.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Release);
    }

    /// A queue pair has a reason. Outside any pin.
    pub(crate) fn serve(&self, qp: &Arc<QueuePair>) {
        self.list(qp);
        if let Some(held) = self.combiner.enter() {
            // Where a thread or a poller takes packets in, a poster need not.
            let visit = if self.waiter.is_some() {
                Visit::Send
            } else {
                Visit::Both
            };
            self.drive(&qp.port, held, visit);
        }
    }

    /// The queue pair is about to send nothing any more: acknowledgements that wait for a poller leave now. A peer that
    /// is owed one would ask a queue pair that is gone until its retries are exceeded. Outside any pin.
    pub(crate) fn acknowledge(&self, qp: &Arc<QueuePair>) {
        self.stop_polling();
        self.serve(qp);
    }

    /// Has `job` done while nobody's messages are worked on. Outside any pin.
    pub(crate) fn alone(&self, port: &Port, job: impl FnOnce(&mut Effects) + Send + 'static) {
        self.jobs.lock().push(Box::new(job));
        self.has_jobs.store(true, Release);
        self.turn(port);
    }

    /// There may be packets. Whether there were; who leaves that to somebody else does not know.
    pub(crate) fn turn(&self, port: &Port) -> bool {
        let held = self.combiner.enter();
        held.is_some_and(|held| self.drive(port, held, Visit::Both))
    }

    /// Somebody polls. If `often`, the engine's thread may leave packets to it for a while. Whether
    /// packets came.
    pub(crate) fn poll(&self, port: &Port, often: bool) -> bool {
        let often = often && self.pollers.polled(port.engine.now());
        let Some(held) = self.combiner.try_enter() else {
            return false;
        };
        let visit = if often && self.waiter.is_some() {
            Visit::Receive
        } else {
            Visit::Both
        };
        self.drive(port, held, visit)
    }

    /// Who has polled will wait from now on.
    pub(crate) fn stop_polling(&self) {
        if !self.pollers.stop() {
            return;
        }
        if let Some(waiter) = &self.waiter {
            waiter.wake();
        }
    }

    /// The engine's thread is awake. It sees to packets unless they are left to somebody who polls.
    pub(super) fn attend(&self, port: &Port) {
        self.news.store(true, Release);
        let now = port.engine.now();
        if now < self.pollers.left_until() {
            return;
        }
        let were_left = self.pollers.stop();
        let owes = were_left && !self.listed.lock().is_empty();
        let came = self.turn(port);
        if were_left && (owes || came) {
            self.pollers.gone(now);
        }
    }

    /// It takes a turn in the next round.
    pub(crate) fn list(&self, qp: &Arc<QueuePair>) {
        if !qp.worker.listed.swap(true, AcqRel) {
            self.listed.lock().push(Arc::clone(qp));
        }
    }

    /// Drives until nobody has a reason left. Whether packets came.
    fn drive<'d>(&'d self, port: &Port, held: Held<'d>, visit: Visit) -> bool {
        // What leaves a pin within may complete verbs, and their routines must not run under a lock.
        collect(|| self.drive_on(port, held, visit))
    }

    fn drive_on<'d>(&'d self, port: &Port, mut held: Held<'d>, mut visit: Visit) -> bool {
        let mut any = false;
        loop {
            let noted = &mut Noted {
                effects: Effects::default(),
                port,
            };
            let effects = &mut noted.effects;
            self.do_jobs(effects);
            let came = self.round(port, &mut self.work.lock(), visit, effects);
            any |= came;
            // Where nobody waits for packets, nobody else comes for the rest of them.
            let rest = came && self.waiter.is_none();
            // Let go first: what follows is foreign code, and may come back here.
            let more = held.release() || rest;
            let mut again = std::mem::take(&mut effects.again);
            let ForDriver {
                stalled,
                blocked,
                fed,
                news,
            } = effects.take_packets();
            let waits_for_room = blocked || !stalled.is_empty();
            again.extend(effects.carry_out(&|cq| port.overrun(cq)));
            let more = more || !again.is_empty();
            for change in news {
                self.tell(change);
            }
            let has_fed = !fed.is_empty();
            for neighbour in fed {
                let now = port.engine.now();
                defer(move || neighbour.due(now, 0));
            }
            stalled.into_iter().for_each(|qp| qp.list());
            if has_fed && waits_for_room {
                // Whom they are for has made room, or is about to on this very thread.
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
            again.into_iter().for_each(|qp| qp.list());
            if !more {
                return any;
            }
            // Who came meanwhile has something to send.
            visit = Visit::Both;
            match self.combiner.enter() {
                Some(again) => held = again,
                None => return any,
            }
        }
    }

    /// What is to be done while nobody's messages are worked on; by the holder.
    fn do_jobs(&self, effects: &mut Effects) {
        if self.has_jobs.load(Acquire) {
            self.has_jobs.store(false, Relaxed);
            let jobs = std::mem::take(&mut *self.jobs.lock());
            jobs.into_iter().for_each(|job| job(effects));
        }
    }

    /// One round, by the holder. Whether packets came.
    fn round(&self, port: &Port, work: &mut Work, visit: Visit, effects: &mut Effects) -> bool {
        match visit {
            Visit::Send => {
                // The thread comes by when nobody polls any more, if nobody does before.
                let acknowledges = self.pollers.left_until() <= port.engine.now();
                self.send(port, work, acknowledges, effects);
                false
            }
            Visit::Receive => {
                if work.tx_queue.is_blocked() || !self.listed.lock().is_empty() {
                    self.send(port, work, true, effects);
                }
                let came = self.receive(port, work, effects);
                self.listed.lock().append(&mut work.busy);
                came
            }
            Visit::Both => {
                let came = self.receive(port, work, effects);
                self.send(port, work, true, effects);
                came
            }
        }
    }

    /// Lets everybody who has a reason send; acknowledgements too, unless they come later.
    fn send(&self, port: &Port, work: &mut Work, acknowledges: bool, effects: &mut Effects) {
        let Work {
            link,
            tx_queue,
            busy,
            later,
            ..
        } = work;
        tx_queue.flush(&mut **link);
        busy.append(&mut self.listed.lock());
        let down = self.down.load(Acquire);
        let mut mail = TxContext {
            tx_queue,
            link: &mut **link,
            counters: &port.counters,
            down,
            acknowledges,
            deferred: false,
        };
        for qp in busy.drain(..) {
            // Whoever has a reason from now on lists it anew.
            qp.worker.listed.store(false, Release);
            qp.round(Some(&mut mail), effects);
            if std::mem::take(&mut mail.deferred) {
                later.push(qp);
            }
        }
        tx_queue.flush(&mut **link);
        effects.blocked |= tx_queue.is_blocked();
        effects.fed.extend(std::iter::from_fn(|| link.fed()));
        for qp in later.drain(..) {
            self.list(&qp);
        }
    }

    /// Joins a multicast group.
    ///
    /// # Errors
    /// The link's.
    pub(crate) fn join(&self, group: IpAddr) -> io::Result<()> {
        self.work.lock().link.join(group)
    }

    /// Leaves a multicast group.
    pub(crate) fn leave(&self, group: IpAddr) {
        self.work.lock().link.leave(group);
    }

    /// The link had no room: it is asked again a little later, if nobody comes before.
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

    /// What the link has counted. Waits for the round that is going on, if there is one.
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
