//! The state that a run's tasks share: nodes, judges, and whether it is over.

use std::cell::{Cell, RefCell};
use std::future::{IntoFuture, pending, poll_fn};
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::Loopback;
use verbs_core::verb::VerbError;
use verbs_core::{Device, Error, Kind, Request, Verb};
use verbs_link::time::Instant;

use crate::check::{FirstViolation, Rule};
use crate::coverage::VerbCell;
use crate::run::machine::{Machine, addresses};
use crate::run::transcript::Transcript;
use crate::run::{Mode, Options, Plan, Report};
use crate::{Coverage, Draw, Sim, Sink};

/// Virtual time in which a verb has to complete, whatever delays it.
const VERB_MAX: Duration = Duration::from_secs(5);
/// The same for a connect, whose peer has ten seconds to be there and ten to answer.
const CONNECT_MAX: Duration = Duration::from_secs(21);
/// Virtual time in which all work has to end when there are no more faults.
pub(super) const LIVE_MAX: Duration = Duration::from_secs(20);

/// Steps of the clock that a world is given to end; a run that failed may never come to rest.
const STEPS_MAX: u32 = 100_000;

/// See the module's documentation.
pub(crate) struct World {
    pub(super) sim: Sim,
    pub(super) options: Options,
    pub(super) plan: Plan,
    pub(super) coverage: RefCell<Coverage>,
    violation: FirstViolation,
    loopback: Loopback,
    nodes: Vec<RefCell<Option<Rc<Machine>>>>,
    draw: RefCell<Draw>,
    /// No new work is begun, and there are no more faults.
    pub(super) quiescing: Cell<bool>,
    pub(super) posted: Cell<u64>,
    names: Cell<u16>,
    /// The data by which two runs are compared; `None` unless they are compared.
    pub(super) transcript: Option<RefCell<Transcript>>,
    /// Tasks that have not ended.
    pub(super) tasks: Cell<usize>,
    main: RefCell<Option<Waker>>,
}

/// The use of a machine; its device is not closed as long as it exists.
pub(crate) struct Lease(Rc<Machine>);

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

    /// A world without faults, in which everything ends before the next step; everything that happens is recorded.
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
        sim.network().set_all(plan.link_faults);
        sim.streams().configure(plan.stream_faults);
        sim.streams().inject(options.mutant);
        sim.network()
            .mutator(|mutator| mutator.inject(options.mutant));
        Rc::new(Self {
            options: *options,
            nodes: (0..plan.nodes).map(|_| RefCell::default()).collect(),
            loopback: Loopback::with_seed(draw.number()),
            plan,
            sim,
            coverage: RefCell::default(),
            violation: FirstViolation::default(),
            draw: RefCell::new(draw),
            quiescing: Cell::new(false),
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

    /// Whether the run has posted as many work requests as it may.
    pub(super) fn is_spent(&self) -> bool {
        let max = self.options.operations;
        max.is_some_and(|max| self.posted.get() >= max)
    }

    /// A number that is unique in the run.
    pub(super) fn name(&self) -> u16 {
        self.names.set(self.names.get().wrapping_add(1));
        self.names.get()
    }

    pub(super) fn violated(&self, rule: Rule, what: impl Into<String>) {
        self.violation.record(rule, self.sim.now(), what);
        self.wake_main();
    }

    fn wake_main(&self) {
        if let Some(waker) = self.main.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits until a future ends or a rule is broken, whichever comes first.
    pub(super) async fn unless_violated(&self, future: impl Future<Output = ()>) {
        let mut future = std::pin::pin!(future);
        poll_fn(|cx| {
            *self.main.borrow_mut() = Some(cx.waker().clone());
            if self.violation.is_some() {
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
            Mode::Streams => {
                let hca = Hca::over_streams(self.sim.streams().attach(&addresses(node)));
                match self.plan.peer_to_peer {
                    true => hca.peer_to_peer(),
                    false => hca,
                }
            }
        };
        let hca = hca.name(format!("node{node}")).clock(clock.clone()).build();
        let config = self.plan.commands;
        let mutant = self.options.mutant;
        let (machine, front) = Machine::new(node, hca, &clock, config, (mutant, draw));
        let opened = self.verb(&machine, Device::open(front)).await;
        let Ok(device) = opened else { return };
        let (journal, events) = (self.sim.journal().clone(), self.sim.clock().clone());
        device.on_event(move |event| journal.event(events.now(), node as u64, &event));
        machine.opened(device);
        self.nodes[node].replace(Some(Rc::new(machine)));
    }

    /// Closes the device of a node when it is no longer in use, and checks whether anything is left.
    pub(super) async fn take_down(&self, node: usize) {
        let Some(machine) = self.nodes[node].borrow_mut().take() else {
            return;
        };
        let begun = self.sim.now();
        while machine.users.get() != 0 {
            // No other task finds the machine now, and a verb that is held back would never end.
            machine.fault.release();
            self.sim.sleep(Duration::from_micros(20)).await;
            if self.sim.now() - begun > LIVE_MAX {
                return self.violated(Rule::Liveness, format!("node {node} is never left alone"));
            }
        }
        machine.fault.release();
        // Handles that were dropped are destroyed in the background.
        self.sim.sleep(Duration::from_millis(1)).await;
        let Some(device) = machine.take_device() else {
            return;
        };
        let (objects, counts) = (device.objects(), machine.hca.object_counts());
        let endpoints = machine.hca.cm_endpoints();
        if objects != 0 || counts != [0; 8] || endpoints != 0 {
            let what = format!(
                "node {node} has {objects} objects; its HCA (PDs, MRs, CQs, SRQs, QPs, AHs, XRCDs, attachments) {counts:?}, and {endpoints} endpoints"
            );
            self.violated(Rule::Counts, what);
        }
        if !device.in_flight().is_empty() {
            let what = format!(
                "node {node} has {} verbs in flight",
                device.in_flight().len()
            );
            self.violated(Rule::Counts, what);
        }
        let _ = self.verb(&machine, device.close()).await;
    }

    /// The use of a node's machine; `None` if it is removed.
    pub(super) fn lease(&self, node: usize) -> Option<Lease> {
        let machine = self.nodes[node].borrow().clone()?;
        if machine.removed.get() {
            return None;
        }
        machine.users.set(machine.users.get() + 1);
        Some(Lease(machine))
    }

    /// A machine, without marking it as used.
    pub(super) fn machine(&self, node: usize) -> Option<Rc<Machine>> {
        self.nodes[node].borrow().clone()
    }

    /// Issues a verb that only a fault may refuse.
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
        let max = match V::KIND {
            Kind::ConnectCm => CONNECT_MAX,
            _ => VERB_MAX,
        };
        let done = self.sim.timeout(max, request.into_future()).await;
        let Some(result) = done else {
            self.violated(
                Rule::Liveness,
                format!("{} is never answered", V::KIND.name()),
            );
            return pending().await;
        };
        let error = result.as_ref().err().map(VerbError::reason);
        self.judge(machine, V::KIND, before, error, legal);
        result
    }

    /// Notes how a verb ended, and whether it was allowed to end like that.
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
            self.violated(
                rule,
                format!("{} ended without cause: {error}", kind.name()),
            );
        }
    }

    /// Drops what tasks hold, and runs the clock until no deadline is left: deadlines keep queue pairs alive, and these
    /// keep the clock alive.
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
            violation: self.violation.get(),
        }
    }
}
