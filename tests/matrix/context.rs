//! The contexts that a verb is issued from, and the world around it.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandInterface, CommandOrder, CommandTime};
use hca_sim::engine::Engine;
use hca_sim::{Hca, Limits};
use verbs_core::testing::{Stage, Subject};
use verbs_core::{
    Access, Arm, Armed, Device, Kind, Provider, QpAttr, QpInit, QpState, Recv, collect,
};

/// Where the code that issues the verb runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// An ordinary thread, which could wait.
    Plain,
    /// Code that may not block, such as a driver's.
    NoBlock,
    /// The routine of another verb.
    Routine,
    /// The handler of a completion queue.
    CqHandler,
    /// The handler of asynchronous events.
    EventHandler,
    /// An async task: the verb is awaited.
    Task,
    /// An ordinary thread, when there is no slot left: with commands that take time, for the command; with others, for
    /// a pending request.
    SlotsFull,
}

impl Context {
    pub(crate) const ALL: [Self; 7] = [
        Self::Plain,
        Self::NoBlock,
        Self::Routine,
        Self::CqHandler,
        Self::EventHandler,
        Self::Task,
        Self::SlotsFull,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "thread",
            Self::NoBlock => "noblock",
            Self::Routine => "routine",
            Self::CqHandler => "cq handler",
            Self::EventHandler => "ev handler",
            Self::Task => "task",
            Self::SlotsFull => "slots full",
        }
    }

    /// Whether code there may not block.
    pub(crate) fn is_no_block(self) -> bool {
        !matches!(self, Self::Plain | Self::Task | Self::SlotsFull)
    }
}

/// When commands complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// Inside `issue`.
    Inline,
    /// Later, in the order in which they were issued.
    Delayed,
    /// Later, each when its time is over.
    OutOfOrder,
}

impl Timing {
    pub(crate) const ALL: [Self; 3] = [Self::Inline, Self::Delayed, Self::OutOfOrder];
}

/// The limit of pending requests when their slots are full.
pub(crate) const FEW: u32 = 1;

/// A software HCA on a clock that only this test moves.
pub(crate) fn subject(context: Context, timing: Timing, seed: u64) -> Subject {
    let clock = VirtualClock::new();
    let limits = Limits {
        max_mr: 16,
        ..Limits::default()
    };
    let hca = Hca::loopback().limits(limits).clock(clock.clone()).build();
    let full = context == Context::SlotsFull;
    let mut config = CommandConfig {
        seed,
        ..CommandConfig::default()
    };
    if full {
        config.slots = NonZeroU32::MIN;
    }
    let micros = Duration::from_micros;
    let provider: Arc<dyn Provider> = match timing {
        Timing::Inline => hca,
        Timing::Delayed => {
            config.time = CommandTime::Fixed(micros(10));
            config.order = CommandOrder::InOrder;
            interface(hca, &clock, config)
        }
        Timing::OutOfOrder => {
            let (min, max) = (micros(1), micros(100));
            config.time = CommandTime::Drawn { min, max };
            interface(hca, &clock, config)
        }
    };
    let max_pending = match (full, timing) {
        (true, Timing::Inline) => FEW,
        _ => verbs_core::device::MAX_PENDING,
    };
    Subject::opened_by(move || Device::open_with(Arc::clone(&provider), max_pending)).step(
        move || {
            clock.step();
        },
    )
}

fn interface(hca: Arc<Hca>, clock: &VirtualClock, config: CommandConfig) -> Arc<dyn Provider> {
    Arc::new(CommandInterface::new(
        hca,
        Engine::new(clock.clone()),
        config,
    ))
}

/// The code to run in the context.
pub(crate) type Act = Box<dyn FnOnce() + Send>;

/// Runs `act` in `context`; `helper` is a device that produces the context.
pub(crate) fn run_in(context: Context, subject: &Subject, helper: &Stage, act: Act) {
    match context {
        Context::Plain | Context::Task | Context::SlotsFull => act(),
        Context::NoBlock => collect(act),
        Context::Routine => {
            let _ = helper.device().query().issue(move |_| act());
        }
        Context::EventHandler => {
            helper.device().on_event(once(act));
            helper.nudge(Kind::NextEvent).give();
        }
        Context::CqHandler => in_cq_handler(subject, helper.device(), act),
    }
}

/// A handler that acts on its first call.
fn once<T>(act: Act) -> impl FnMut(T) + Send {
    let act = Mutex::new(Some(act));
    move |_| {
        let act = act.lock().expect("no handler panics twice").take();
        if let Some(act) = act {
            act();
        }
    }
}

/// A receive that is posted in state Error is flushed, which fires the armed completion queue.
fn in_cq_handler(subject: &Subject, device: &Device, act: Act) {
    let mut handler = once(act);
    let pd = subject.must(device.alloc_pd());
    let mut cq = subject.must(device.create_cq(4).handler(move || handler(())));
    let mut qp = subject.must(pd.create_qp(QpInit::rc(&cq, &cq)));
    subject.must(qp.init(1, Access::empty()));
    subject.must(qp.modify(QpAttr::to(QpState::Err)));
    assert_eq!(cq.arm(Arm::Next), Armed::Empty);
    qp.post_recv(Recv::new(1))
        .expect("posting in Error is legal");
}
