//! A host in virtual time: its daemon, the programs that share its address, and a host elsewhere.
//!
//! The daemon is the product's ([`verbs_host::Daemon`]), and so are the programs' links ([`verbs_link::Joined`]), the
//! memory that they share, their HCAs and their connection managers. The run does what the system does otherwise: it gives
//! one of them a turn, as the seed decides, and passes on what they send. It kills programs in the middle of a transmit,
//! and daemons between any two steps, and starts others.
//!
//! What has to be true is checked beside the code under test:
//!
//! * No two programs have the same queue pair number, and no program has one whose last owner has died within two minutes.
//! * Every message arrives as it was sent, once, in order; what was confirmed has arrived.
//! * The same of messages to targets that several programs share.
//! * A program reads what a neighbour has written before it learns that this one is gone.
//! * A program gets packets for its own numbers only.
//! * When a program has died, its peers know soon, here and elsewhere.
//! * No program that keeps to the rules is sent away or reported.
//! * In the end, programs that live can connect; when all have ended, nothing of them is left.

mod flow;
mod hostile;
mod mutant;
mod node;
mod place;
mod port;
mod program;
mod shared;
mod turns;
mod world;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use verbs_core::host::number::REST;
use verbs_link::time::Instant;

use crate::Digest;
use flow::SETTLED;
pub use mutant::HostMutant;
use node::Left;
use program::connect;
use world::World;

/// Turns of waiting for a daemon to begin.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long programs that live may take to connect and to send something.
const PROGRESS: Duration = Duration::from_millis(100);

/// A run of a host with its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRun {
    /// Determines everything.
    pub seed: u64,
    /// For how long programs and daemons are killed; 10 ms by default.
    pub time: Duration,
    /// Programs at a time; drawn by default.
    pub programs: Option<usize>,
    /// A defect that the checkers have to find.
    pub mutant: Option<HostMutant>,
}

/// What a [`HostRun`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReport {
    /// The run.
    pub run: HostRun,
    /// Programs at a time.
    pub programs: usize,
    /// Whether a program beside them broke rules.
    pub is_hostile: bool,
    /// Programs that died.
    pub kills: u64,
    /// Daemons that were killed.
    pub daemons: u64,
    /// Connections that both ends have had, and messages that have arrived.
    pub connections: u64,
    /// See [`connections`](Self::connections).
    pub messages: u64,
    /// Messages that have arrived over targets that the programs share.
    pub shared: u64,
    /// The first rule that was broken, and when.
    pub violation: Option<(Instant, String)>,
    /// When the run was over.
    pub end: Instant,
    /// The digest of what has happened to programs, daemons and connections.
    pub digest: Digest,
}

impl HostRun {
    /// The run of that seed.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            time: Duration::from_millis(10),
            programs: None,
            mutant: None,
        }
    }

    /// Runs it.
    pub fn run(&self) -> HostReport {
        let mut draw = crate::Draw::new(self.seed ^ 0x0686_0557);
        let programs = self.programs.unwrap_or_else(|| 2 + draw.below(4)).max(2);
        let is_hostile = draw.below(3) == 0;
        let world = World::new(self.seed, programs, self.mutant);
        let ended = world.sim.run(self.all(&world, programs, is_hostile, draw));
        let now = world.sim.now();
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => world
                .place
                .violated(now, format!("a verb has failed: {error}")),
            Err(stalled) => world.place.violated(now, stalled.to_string()),
        }
        let flows = world.flows.borrow();
        let report = HostReport {
            run: *self,
            programs,
            is_hostile,
            kills: world.kills.get(),
            daemons: world.turns.node.lock().kills,
            connections: flows.count(),
            messages: flows.messages(),
            shared: world.domain.messages(),
            violation: world.place.violation(),
            end: now,
            digest: world.place.digest(),
        };
        drop(flows);
        world.sim.clear();
        report
    }

    async fn all(
        &self,
        world: &Rc<World>,
        programs: usize,
        is_hostile: bool,
        mut draw: crate::Draw,
    ) -> Result<(), verbs_core::Error> {
        world.turns.next(world.sim.now());
        world.elsewhere().await?;
        for slot in 0..programs {
            world.sim.spawn(Rc::clone(world).slot(slot));
        }
        if is_hostile {
            world
                .sim
                .spawn(hostile::run(Rc::clone(world), draw.fork(), self.mutant));
        }
        let until = world.sim.now() + self.time;
        world.kill(until, draw.fork()).await;
        settle(world, is_hostile).await;
        Ok(())
    }
}

/// Nobody is killed any longer: whoever is there makes progress, and then leaves nothing.
async fn settle(world: &Rc<World>, is_hostile: bool) {
    let sim = &world.sim;
    if world.place.violation().is_some() {
        return;
    }
    sim.sleep(PATIENCE).await;
    progress(world).await;
    world.end();
    sim.sleep(SETTLED).await;
    let alive = |program| world.is_alive(program);
    world
        .flows
        .borrow()
        .judge_arrivals(&world.place, sim.now(), alive);
    shared::judge(world);
    if !is_hostile {
        let broken = world.turns.node.lock().broken();
        if broken > 0 {
            let what = format!("{broken} lines or neighbours are said to break rules");
            world.place.violated(sim.now(), what);
        }
    }
    world.alive().iter().for_each(|process| process.die());
    sim.sleep(SETTLED).await;
    world.turns.idle(true);
    sim.sleep(REST + PATIENCE).await;
    let left = world.turns.node.lock().left(sim.now());
    if left != Some(Left::default()) {
        let what = format!("all programs have ended, and this is left of them: {left:?}");
        world.place.violated(sim.now(), what);
    }
}

/// Programs that live connect to each other, and to the host elsewhere.
async fn progress(world: &Rc<World>) {
    let alive = world.alive();
    let numbers: Vec<_> = alive.iter().map(|process| process.number).collect();
    for &asks in &numbers {
        for &to in numbers.iter().chain([&flow::ELSEWHERE]) {
            let (Some((bundle, _)), Some((_, at))) = (world.bundle(asks), world.bundle(to)) else {
                continue;
            };
            if asks == to {
                continue;
            }
            let tries = async {
                while world.is_alive(asks) && (!program::is_local(to) || world.is_alive(to)) {
                    if let Some(sends) = connect(world, &bundle, at, to).await {
                        return sends.run(world, 3, false).await == 3;
                    }
                    world.sim.sleep(PATIENCE / 100).await;
                }
                true
            };
            if world.sim.timeout(PROGRESS, tries).await != Some(true) {
                let what =
                    format!("program {asks} cannot send to program {to}, and both are there");
                world.place.violated(world.sim.now(), what);
            }
        }
    }
}

impl fmt::Display for HostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} programs{}, {} killed, {} daemons killed, {} connections, {} messages, {} over shared targets, ",
            self.programs,
            if self.is_hostile {
                " and a hostile one"
            } else {
                ""
            },
            self.kills,
            self.daemons,
            self.connections,
            self.messages,
            self.shared,
        )?;
        match &self.violation {
            None => write!(f, "clean, digest {}", self.digest),
            Some((at, what)) => write!(f, "failed at {at}: {what}"),
        }
    }
}
