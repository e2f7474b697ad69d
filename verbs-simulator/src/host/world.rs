//! A run: its nodes, and who is killed when.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use hca_sim::Hca;
use verbs_core::host::message::No;
use verbs_core::sync::Arc;
use verbs_link::time::{Engine, Instant};
use verbs_link::{Answer, JoinError, Joined, Joining, PacketLink};

use super::flow::{ELSEWHERE, Flows};
use super::mutant::HostMutant;
use super::node::Node;
use super::place::{Note, Place, Program, TOLD};
use super::port::{HostPort, Process};
use super::program::{self, Bundle, address_of, while_alive};
use super::shared::{self, Domain};
use super::turns::Turns;
use crate::{Draw, Sim};

/// The host's address, and that of the host elsewhere.
pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(super) const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// How often a program looks for the daemon's answer, or for a daemon.
const LOOK: Duration = Duration::from_micros(20);

/// See the module's documentation.
pub(super) struct World {
    pub(super) sim: Sim,
    pub(super) place: Place,
    pub(super) turns: Arc<Turns>,
    pub(super) flows: RefCell<Flows>,
    pub(super) domain: Domain,
    slots: RefCell<Vec<Option<Arc<Process>>>>,
    bundles: RefCell<BTreeMap<Program, Rc<Bundle>>>,
    last: Cell<Program>,
    is_over: Cell<bool>,
    pub(super) kills: Cell<u64>,
    mutant: Option<HostMutant>,
}

impl World {
    pub(super) fn new(seed: u64, programs: usize, mutant: Option<HostMutant>) -> Rc<Self> {
        let sim = Sim::new(seed);
        let mut draw = sim.draw();
        let place = Place::default();
        let uplink = sim.network().attach(&[HERE]);
        let free = draw.within(3 * programs as u64..=12 * programs as u64) as u16;
        let node = Node::new(place.clone(), uplink, free, draw.fork(), mutant);
        let engine = Engine::new(sim.clock().clone());
        Rc::new(Self {
            turns: Turns::new(engine, node, draw.fork()),
            sim,
            place,
            flows: RefCell::default(),
            domain: Domain::default(),
            slots: RefCell::new(vec![None; programs]),
            bundles: RefCell::default(),
            last: Cell::new(ELSEWHERE),
            is_over: Cell::new(false),
            kills: Cell::new(0),
            mutant,
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// No program begins any longer, and none asks for connections.
    pub(super) fn end(&self) {
        self.is_over.set(true);
    }

    /// Whether that program is there.
    pub(super) fn is_alive(&self, program: Program) -> bool {
        let slots = self.slots.borrow();
        let mut all = slots.iter().flatten();
        all.any(|process| process.number == program && !process.is_dead())
    }

    /// The programs that are there.
    pub(super) fn alive(&self) -> Vec<Arc<Process>> {
        let slots = self.slots.borrow();
        let all = slots.iter().flatten();
        all.filter(|process| !process.is_dead()).cloned().collect()
    }

    /// The device of a program that is there, and the place where it listens.
    pub(super) fn bundle(&self, program: Program) -> Option<(Rc<Bundle>, SocketAddr)> {
        let bundle = self.bundles.borrow().get(&program).cloned()?;
        let slots = self.slots.borrow();
        let is_its = |process: &Option<Arc<Process>>| {
            process
                .as_ref()
                .is_some_and(|process| process.number == program)
        };
        let slot = slots.iter().position(is_its);
        let at = match slot {
            Some(slot) => address_of(HERE, slot),
            None => address_of(THERE, 0),
        };
        Some((bundle, at))
    }

    /// Whom a program connects to.
    pub(super) fn peer(&self, draw: &mut Draw, asks: Program) -> Option<(SocketAddr, Program)> {
        if asks != ELSEWHERE && draw.below(3) == 0 {
            return Some((address_of(THERE, 0), ELSEWHERE));
        }
        let slots = self.slots.borrow();
        let slot = draw.below(slots.len());
        let process = slots.get(slot)?.as_ref()?;
        let is_other = process.number != asks && !process.is_dead();
        is_other.then(|| (address_of(HERE, slot), process.number))
    }

    /// The host elsewhere.
    pub(super) async fn elsewhere(self: &Rc<Self>) -> Result<(), verbs_core::Error> {
        let link = self.sim.network().attach(&[THERE]);
        let hca = Hca::over(link).clock(self.sim.clock().clone()).build();
        let device = hca.open().await?;
        let bundle = Rc::new(Bundle::new(device, ELSEWHERE, None).await?);
        self.bundles
            .borrow_mut()
            .insert(ELSEWHERE, Rc::clone(&bundle));
        let serve = program::serve(Rc::clone(self), Rc::clone(&bundle), address_of(THERE, 0));
        self.sim.spawn(serve);
        shared::begin(self, &bundle);
        self.sim.spawn(program::ask(Rc::clone(self), bundle));
        Ok(())
    }

    /// One program after the other.
    pub(super) async fn slot(self: Rc<Self>, slot: usize) {
        let mut draw = self.sim.draw();
        while !self.is_over() {
            let pause = draw.duration(Duration::ZERO..=Duration::from_micros(400));
            self.sim.sleep(pause).await;
            let number = self.last.get() + 1;
            self.last.set(number);
            let (place, clock) = (self.place.clone(), self.sim.clock().clone());
            let process = Process::new(number, place, clock);
            self.live(slot, &process, draw.fork()).await;
            process.die();
        }
    }

    /// The life of a program.
    async fn live(self: &Rc<Self>, slot: usize, process: &Arc<Process>, mut draw: Draw) {
        let Some(link) = self.join(process).await else {
            return;
        };
        let again = Arc::clone(process);
        let link = link.clock(self.sim.clock().clone());
        let link = link.rejoins(move || again.connect());
        let port = HostPort::new(process, link, draw.fork(), self.mutant);
        let hca = Hca::over(port).clock(self.sim.clock().clone()).build();
        self.turns.add(Arc::clone(process));
        self.slots.borrow_mut()[slot] = Some(Arc::clone(process));
        let number = process.number;
        let lives = async {
            let device = hca.open().await.ok()?;
            let bundle = Bundle::new(device, number, Some(Arc::clone(process))).await;
            let bundle = Rc::new(bundle.ok()?);
            self.bundles.borrow_mut().insert(number, Rc::clone(&bundle));
            shared::begin(self, &bundle);
            for task in [true, false] {
                let (world, bundle, process) =
                    (Rc::clone(self), Rc::clone(&bundle), Arc::clone(process));
                self.sim.spawn(async move {
                    match task {
                        true => {
                            let serve = program::serve(world, bundle, address_of(HERE, slot));
                            while_alive(Some(&*process), serve).await
                        }
                        false => while_alive(Some(&*process), program::ask(world, bundle)).await,
                    };
                });
            }
            std::future::pending::<()>().await;
            Some(())
        };
        while_alive(Some(&**process), lives).await;
        self.bundles.borrow_mut().remove(&number);
        // What is left of it acts no longer: its verbs end at once, and its link is dead.
        hca.remove();
        self.died(number);
    }

    /// A program has died: who had connections to it has to know soon.
    fn died(self: &Rc<Self>, program: Program) {
        self.kills.set(self.kills.get() + 1);
        let (world, died) = (Rc::clone(self), self.sim.now());
        self.sim.spawn(async move {
            world.sim.sleep(TOLD).await;
            let when = (program, died, world.sim.now());
            let flows = world.flows.borrow();
            flows.judge_death(&world.place, when, |peer| world.is_alive(peer));
        });
    }

    /// An end has that connection.
    pub(super) fn established(&self, flow: u32, end: usize) {
        let now = self.sim.now();
        self.flows.borrow_mut().established(flow, end, now);
        self.place
            .note(now, Note::Established, [flow.into(), end as u64]);
    }

    /// An end knows that the connection is over.
    pub(super) fn over(&self, flow: u32, end: usize) {
        let now = self.sim.now();
        self.flows.borrow_mut().over(flow, end, now);
        self.place.note(now, Note::Over, [flow.into(), end as u64]);
    }

    /// So many messages have arrived.
    pub(super) fn received(&self, flow: u32, count: u64) {
        self.place
            .note(self.sim.now(), Note::Received, [flow.into(), count]);
        if let Some(flow) = self.flows.borrow_mut().get(flow) {
            flow.received = count;
        }
    }

    /// Becomes a client of the daemon. `None` if there is no room, or the daemon has just ended.
    async fn join(&self, process: &Arc<Process>) -> Option<Joined> {
        let socket = loop {
            match process.connect() {
                Ok(socket) => break socket,
                Err(_) if self.is_over() => return None,
                Err(_) => self.sim.sleep(LOOK).await,
            }
        };
        let mut joining = Joining::ask(socket, &[HERE], &process.number.to_string()).ok()?;
        loop {
            self.sim.sleep(LOOK).await;
            match joining.answer() {
                Ok(Answer::Waits(still)) => joining = still,
                Ok(Answer::Joined(mut link)) => {
                    // It may die before it has its HCA.
                    let numbers = link.numbers(0).unwrap_or_default().to_vec();
                    let blocks = numbers
                        .iter()
                        .map(|range| verbs_core::Qpn::new(range.start));
                    for block in blocks.filter_map(verbs_core::host::Block::of) {
                        self.place.leased(self.sim.now(), block, process.number);
                    }
                    return Some(*link);
                }
                Err(JoinError::Refused(No::Numbers) | JoinError::Socket(_)) => return None,
                Err(error) => {
                    let what = format!("program {} was not taken: {error}", process.number);
                    self.place.violated(self.sim.now(), what);
                    return None;
                }
            }
        }
    }

    /// Kills programs and daemons, until that time.
    pub(super) async fn kill(&self, until: Instant, mut draw: Draw) {
        while self.sim.now() < until && self.place.violation().is_none() {
            let pause = draw.duration(Duration::from_micros(100)..=Duration::from_millis(2));
            self.sim.sleep(pause).await;
            if draw.below(6) == 0 {
                self.turns.node.lock().light(Some(draw.below(60) as u32));
            } else if let Some(process) = self.turns.any() {
                process.light(Some(draw.below(80) as u32));
            }
        }
        self.turns.node.lock().light(None);
        self.alive().iter().for_each(|process| process.light(None));
    }
}
