//! Starts the scenarios of a run, and ends it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use verbs_link::time::Instant;

use crate::check::Rule;
use crate::run::world::{LIVE_MAX, World};
use crate::run::{Mode, Options, Report, control, faults, keys, session, uc, ud, xrc};
use crate::{Draw, Sink, Stalled};

/// Runs a seed and returns the report. Uses only virtual time, and no thread.
pub fn run(options: &Options) -> Report {
    run_with(options, None)
}

/// As [`run`], and writes every packet to a capture. Errors of the sink are not reported: a capture is for inspection,
/// and the run's result does not depend on it.
pub fn run_with(options: &Options, capture: Option<Sink>) -> Report {
    let world = World::new(options, capture);
    let panicked = catch_unwind(AssertUnwindSafe(|| direct(&world))).err();
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        world.violated(Rule::Panic, text.unwrap_or("something panicked"));
    }
    let _ = world.sim.finish_capture();
    let report = world.report();
    world.end();
    report
}

/// Starts every scenario in a world, and waits until all of them have ended.
pub(super) fn direct(world: &Rc<World>) {
    let time = world.options.time;
    let main = async {
        let opened = async {
            for node in 0..world.plan.nodes {
                world.bring_up(node).await;
            }
        };
        world.unless_violated(opened).await;
        for _ in 0..world.plan.sessions {
            world.start(session::run(Rc::clone(world), world.draw()));
        }
        if world.transcript.is_none() {
            world.start(control::run(Rc::clone(world), world.draw()));
            world.start(faults::run(Rc::clone(world), world.draw()));
            if world.plan.mode != Mode::Streams {
                world.start(serve(Rc::clone(world), world.draw()));
                world.start(keys::run(Rc::clone(world), world.draw()));
            }
            world.unless_violated(world.sim.sleep(time)).await;
            world.quiescing.set(true);
        }
        faults::stop(world);
        world.unless_violated(all_done(world)).await;
        world.unless_violated(world.close_all()).await;
    };
    let end = match world.transcript {
        Some(_) => Instant::NEVER,
        None => Instant::ZERO + time + 2 * LIVE_MAX,
    };
    let ran = world.sim.run_until(end, main);
    if let Err(stalled) = ran {
        let tasks = world.tasks.get();
        let what = match stalled {
            Stalled::Late(_) => {
                format!("{tasks} tasks have not ended long after the last fault")
            }
            other => format!("{tasks} tasks have not ended: {other}"),
        };
        world.violated(Rule::Liveness, what);
    }
}

async fn all_done(world: &World) {
    while world.tasks.get() != 0 {
        // Faults that were injected earlier may still hold verbs back.
        faults::release(world);
        world.sim.sleep(Duration::from_micros(200)).await;
    }
}

/// Runs sessions of the services other than reliable connections, one after the other, until the run quiesces.
async fn serve(world: Rc<World>, mut draw: Draw) {
    while !world.quiescing.get() {
        let (kind, draw_of_session) = (draw.below(3), draw.fork());
        match kind {
            0 => uc::run(&world, draw_of_session).await,
            1 => ud::run(&world, draw_of_session).await,
            _ => xrc::run(&world, draw_of_session).await,
        }
        let pause = draw.duration(Duration::from_micros(100)..=Duration::from_millis(1));
        world.sim.sleep(pause).await;
    }
}
