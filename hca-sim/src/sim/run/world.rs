//! All that a run's tasks share: nodes, judges, and whether it is over.

use std::cell::{Cell, RefCell};
use std::future::{IntoFuture, pending, poll_fn};
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use verbs_core::verb::VerbError;
use verbs_core::{Device, Error, Kind, Request, Verb};

use crate::clock::Instant;
use crate::hca::Hca;
use crate::link::Loopback;
use crate::sim::check::{Court, Rule};
use crate::sim::coverage::VerbCell;
use crate::sim::run::machine::{Machine, addresses};
use crate::sim::run::transcript::Transcript;
use crate::sim::run::{Mode, Options, Plan, Report};
use crate::sim::{Coverage, Draw, Sim, Sink};

/// Virtual time in which a verb has to complete, whatever holds it back.
const VERB_MAX: Duration = Duration::from_secs(5);
/// Virtual time in which all work has to end when there are no more faults.
pub(super) const LIVE_MAX: Duration = Duration::from_secs(20);

/// Steps of the clock that a world is given to end; one that failed may never come to rest.
const STEPS_MAX: u32 = 100_000;

/// See the module's documentation.
pub(super) struct World {
    pub(super) sim: Sim,
    pub(super) options: Options,
    pub(super) plan: Plan,
    pub(super) coverage: RefCell<Coverage>,
    court: Court,
    loopback: Loopback,
    nodes: Vec<RefCell<Option<Rc<Machine>>>>,
    draw: RefCell<Draw>,
    /// No new work is begun, and there are no more faults.
    pub(super) calm: Cell<bool>,
    pub(super) posted: Cell<u64>,
    names: Cell<u16>,
    /// What two runs are compared by; `None` unless they are to be.
    pub(super) transcript: Option<RefCell<Transcript>>,
    /// Tasks that have not ended.
    pub(super) tasks: Cell<usize>,
    main: RefCell<Option<Waker>>,
}

/// The use of a machine; its device is not closed meanwhile.
pub(super) struct Lease(Rc<Machine>);

impl Deref for Lease {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.users.set(self.0.users.get() - 1);
    }
}

impl World {
    pub(super) fn new(options: &Options, capture: Option<Sink>) -> Rc<Self> {
        Self::with(options, capture, None)
    }

    /// A world in which nothing goes wrong, and everything settles before the next thing is done; what
    /// happens is written down.
    pub(super) fn in_lockstep(options: &Options) -> Rc<Self> {
        Self::with(options, None, Some(RefCell::default()))
    }

    fn with(
        options: &Options,
        capture: Option<Sink>,
        transcript: Option<RefCell<Transcript>>,
    ) -> Rc<Self> {
        let sim = Sim::new(options.seed);
        let mut draw = sim.draw();
        let mut plan = Plan::draw(options, &mut draw);
        if transcript.is_some() {
            plan = plan.without_faults();
        }
        if let Some(sink) = capture {
            // A sink that takes nothing gives an empty capture; the run is the same.
            let _ = sim.capture(sink);
        }
        sim.network().set_all(plan.weather);
        sim.network().tamper(|tamper| tamper.plant(options.plant));
        Rc::new(Self {
            options: *options,
            nodes: (0..plan.nodes).map(|_| RefCell::default()).collect(),
            loopback: Loopback::with_seed(draw.number()),
            plan,
            sim,
            coverage: RefCell::default(),
            court: Court::default(),
            draw: RefCell::new(draw),
            calm: Cell::new(false),
            posted: Cell::new(0),
            names: Cell::new(0),
            transcript,
            tasks: Cell::new(0),
            main: RefCell::default(),
        })
    }

    /// A stream of draws for one task.
    pub(super) fn draw(&self) -> Draw {
        self.draw.borrow_mut().fork()
    }

    /// Whether the run has posted as much as it may.
    pub(super) fn is_spent(&self) -> bool {
        let max = self.options.operations;
        max.is_some_and(|max| self.posted.get() >= max)
    }

    /// A number that nobody else has.
    pub(super) fn name(&self) -> u16 {
        self.names.set(self.names.get().wrapping_add(1));
        self.names.get()
    }

    pub(super) fn accuse(&self, rule: Rule, what: impl Into<String>) {
        self.court.accuse(rule, self.sim.now(), what);
        self.wake_main();
    }

    fn wake_main(&self) {
        if let Some(waker) = self.main.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for a future, or for a violation: then for ever shorter than that.
    pub(super) async fn unless_accused(&self, future: impl Future<Output = ()>) {
        let mut future = std::pin::pin!(future);
        poll_fn(|cx| {
            *self.main.borrow_mut() = Some(cx.waker().clone());
            if self.court.has_verdict() {
                return Poll::Ready(());
            }
            future.as_mut().poll(cx)
        })
        .await;
    }

    pub(super) fn start(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.tasks.set(self.tasks.get() + 1);
        let this = Rc::clone(self);
        self.sim.spawn(async move {
            task.await;
            this.tasks.set(this.tasks.get() - 1);
            this.wake_main();
        });
    }

    pub(super) async fn close_all(&self) {
        for node in 0..self.plan.nodes {
            self.take_down(node).await;
        }
    }

    /// Makes the HCA of a node and opens it.
    pub(super) async fn bring_up(&self, node: usize) {
        let clock = self.sim.clock().clone();
        let mut draw = self.draw();
        let seed = draw.number();
        let hca = match self.plan.mode {
            Mode::Packets => Hca::over(self.sim.network().attach(&addresses(node))),
            Mode::Direct => Hca::on(&self.loopback).seed(seed),
        };
        let hca = hca.name(format!("node{node}")).clock(clock.clone()).build();
        let config = self.plan.commands;
        let plant = self.options.plant;
        let (machine, front) = Machine::new(node, hca, &clock, config, (plant, draw));
        let opened = self.verb(&machine, Device::open(front)).await;
        let Ok(device) = opened else { return };
        let (journal, events) = (self.sim.journal().clone(), self.sim.clock().clone());
        device.on_event(move |event| journal.event(events.now(), node as u64, &event));
        machine.opened(device);
        self.nodes[node].replace(Some(Rc::new(machine)));
    }

    /// Closes the device of a node when nobody uses it any more, and looks whether anything is left.
    pub(super) async fn take_down(&self, node: usize) {
        let Some(machine) = self.nodes[node].borrow_mut().take() else {
            return;
        };
        let begun = self.sim.now();
        while machine.users.get() != 0 {
            // Nobody else finds the machine now, and a verb that is held back would never end.
            machine.fault.release();
            self.sim.sleep(Duration::from_micros(20)).await;
            if self.sim.now() - begun > LIVE_MAX {
                return self.accuse(Rule::Liveness, format!("node {node} is never left alone"));
            }
        }
        machine.fault.release();
        // Handles that were dropped are destroyed in the background.
        self.sim.sleep(Duration::from_millis(1)).await;
        let Some(device) = machine.take_device() else {
            return;
        };
        let (objects, census) = (device.objects(), machine.hca.census());
        if objects != 0 || census != [0; 8] {
            let what = format!(
                "node {node} has {objects} objects; its HCA (PDs, MRs, CQs, SRQs, QPs, AHs, XRCDs, attachments) {census:?}"
            );
            self.accuse(Rule::Counts, what);
        }
        if !device.in_flight().is_empty() {
            let what = format!(
                "node {node} has {} verbs in flight",
                device.in_flight().len()
            );
            self.accuse(Rule::Counts, what);
        }
        let _ = self.verb(&machine, device.close()).await;
    }

    /// The use of a node's machine; `None` if it is away.
    pub(super) fn lease(&self, node: usize) -> Option<Lease> {
        let machine = self.nodes[node].borrow().clone()?;
        if machine.removed.get() {
            return None;
        }
        machine.users.set(machine.users.get() + 1);
        Some(Lease(machine))
    }

    /// A machine without using it.
    pub(super) fn machine(&self, node: usize) -> Option<Rc<Machine>> {
        self.nodes[node].borrow().clone()
    }

    /// Issues a verb that nothing but a fault may refuse.
    pub(super) async fn verb<V: Verb>(
        &self,
        machine: &Machine,
        request: Request<'_, V>,
    ) -> Result<V::Output, V::Error> {
        self.verb_or(machine, request, |_| false).await
    }

    /// Issues a verb that may be refused with what is `legal`.
    pub(super) async fn verb_or<V: Verb>(
        &self,
        machine: &Machine,
        request: Request<'_, V>,
        legal: impl Fn(&Error) -> bool,
    ) -> Result<V::Output, V::Error> {
        let before = self.sim.now();
        let done = self.sim.timeout(VERB_MAX, request.into_future()).await;
        let Some(result) = done else {
            self.accuse(
                Rule::Liveness,
                format!("{} is never answered", V::KIND.name()),
            );
            return pending().await;
        };
        let error = result.as_ref().err().map(VerbError::reason);
        self.judge(machine, V::KIND, before, error, legal);
        result
    }

    /// Notes how a verb went, and whether it could go that way.
    pub(super) fn judge(
        &self,
        machine: &Machine,
        kind: Kind,
        before: Instant,
        error: Option<Error>,
        legal: impl Fn(&Error) -> bool,
    ) {
        let now = self.sim.now();
        self.sim
            .journal()
            .verb(now, machine.node as u64, kind, error.is_none());
        let (cell, explained) = match error {
            None if now > before => (VerbCell::Delayed, true),
            None => (VerbCell::Inline, true),
            Some(error) if legal(&error) && error == Error::Cancelled => {
                (VerbCell::Cancelled, true)
            }
            Some(error) if legal(&error) => (VerbCell::Refused, true),
            Some(Error::DeviceRemoved) => (VerbCell::Removed, machine.removed.get()),
            Some(Error::DeviceFailed) => (VerbCell::Failed, machine.was_injected(kind)),
            Some(Error::Dropped) => (VerbCell::Lost, machine.was_injected(kind)),
            Some(_) => (VerbCell::Refused, false),
        };
        self.coverage.borrow_mut().verb(kind, cell);
        if let (false, Some(error)) = (explained, error) {
            let rule = if error == Error::Busy {
                Rule::Busy
            } else {
                Rule::Verb
            };
            self.accuse(
                rule,
                format!("{} ended without cause: {error}", kind.name()),
            );
        }
    }

    /// Drops what tasks hold, and lets the clock run out: deadlines keep queue pairs alive, and these
    /// the clock.
    pub(super) fn end(&self) {
        self.sim.clear();
        self.nodes.iter().for_each(|node| drop(node.take()));
        for _ in 0..STEPS_MAX {
            if self.sim.clock().step().is_none() {
                break;
            }
        }
    }

    pub(super) fn report(&self) -> Report {
        Report {
            options: self.options,
            plan: self.plan.clone(),
            digest: self.sim.digest(),
            counts: self.sim.counts(),
            operations: self.posted.get(),
            end: self.sim.now(),
            coverage: self.coverage.borrow().clone(),
            violation: self.court.verdict(),
        }
    }
}
