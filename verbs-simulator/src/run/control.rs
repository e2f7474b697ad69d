//! Control verbs: those on the objects of a session, and those of a client that does nothing else.

use std::cell::Cell as StdCell;
use std::future::IntoFuture;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use hca_sim::extension::PortCounters;
use verbs_core::device::ModifyDevice;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    Access, Arm, Attr, Av, Device, Error, Kind, Lid, Memory, QpAttr, QpInit, QpState, Refused,
};

use crate::check::Rule;
use crate::run::Mode;
use crate::run::conn::Place;
use crate::run::failing;
use crate::run::migration;
use crate::run::rc::reap;
use crate::run::rc::state::Session;
use crate::run::world::{LIVE_MAX, Lease, World};
use crate::{Draw, Ppm};

/// A verb on an object that is in use.
pub(super) async fn control(session: &mut Session, index: usize, end: usize) {
    let world = Rc::clone(&session.world);
    let at = &mut session.ends[end];
    let lease = &at.lease;
    match session.draw.below(9) {
        0 => {
            let Some(qp) = &session.conns[index].qps[end] else {
                return;
            };
            let info = world.verb(lease, qp.query()).await;
            let healthy = !session.conns[index].broken && session.conns[index].live;
            if let (true, Ok(info)) = (healthy, info)
                && info.state != QpState::Rts
                && !world.plan.loses()
                && session.conns[index].attrs.rnr_retry == 7
            {
                world.violated(
                    Rule::Verb,
                    format!("a healthy queue pair is in {}", info.state),
                );
            }
        }
        1 => {
            if let Some(mr) = &at.main.mr {
                let _ = world.verb(lease, mr.query()).await;
            }
        }
        2 => exchange_spare(session, end).await,
        3 => {
            let (count, micros) = (session.draw.below(4) as u16, session.draw.below(50) as u64);
            if let Some(cq) = at.cqs.last() {
                let period = Duration::from_micros(micros);
                let _ = world.verb(lease, cq.moderate(count, period)).await;
            }
        }
        4 => {
            if let Some(cq) = at.cqs.first_mut() {
                let _ = cq.arm(Arm::Solicited);
            }
            if let Some(srq) = &at.srq {
                let limit = session.draw.below(8) as u32;
                let _ = world.verb(lease, srq.arm_limit(limit)).await;
                let _ = world.verb(lease, srq.query()).await;
            }
        }
        5 => pause(session, index, end).await,
        6 => {
            if let Some(cq) = at.cqs.first_mut() {
                let cqe = 2048 << session.draw.below(2);
                let _ = world.verb(lease, cq.resize(cqe)).await;
            }
        }
        7 => migration::migrate(session, index, end).await,
        _ => {
            // Not a legal transition, so nothing changes.
            let Some(qp) = &session.conns[index].qps[end] else {
                return;
            };
            let illegal = |error: &Error| matches!(error, Error::Transition(_));
            let attr = QpAttr::init(1, Access::empty());
            if world.verb_or(lease, qp.modify(attr), illegal).await.is_ok() {
                world.violated(Rule::Verb, "a queue pair in RTS went to INIT");
            }
        }
    }
}

/// Takes the send queue of a connection out of service and back (IBTA vol. 1, 10.3.1.5).
async fn pause(session: &mut Session, index: usize, end: usize) {
    if session.conns[index].broken {
        return;
    }
    let Some(qp) = &session.conns[index].qps[end] else {
        return;
    };
    // The queue pair may have failed in the meantime.
    let illegal = |error: &Error| matches!(error, Error::Transition(_));
    let lease = &session.ends[end].lease;
    let sqd = session
        .world
        .verb_or(lease, qp.modify(QpAttr::to(QpState::Sqd)), illegal)
        .await;
    if sqd.is_err() {
        return;
    }
    let pause = session
        .draw
        .duration(Duration::ZERO..=Duration::from_micros(30));
    session.world.sim.sleep(pause).await;
    let rts = || qp.modify(QpAttr::to(QpState::Rts));
    for _ in 0..8 {
        let back = session.world.verb_or(lease, rts(), illegal).await;
        // A fault may refuse it; a queue pair that stays in SQD would wait for ever.
        match back {
            Ok(()) => return,
            Err(Error::Transition(_)) if session.conns[index].broken => return,
            Err(_) => {}
        }
    }
    session.conns[index].broken = true;
}

/// Deregisters the spare region while it is in use, and registers it again; or changes its rights.
async fn exchange_spare(session: &mut Session, end: usize) {
    let world = Rc::clone(&session.world);
    let at = &mut session.ends[end];
    let Some(mr) = at.spare.mr.take() else {
        return register_spare(session, end).await;
    };
    if session.draw.chance(Ppm::percent(30)) {
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        match world.verb(&at.lease, mr.rereg().access(access)).await {
            Ok(mr) => at.spare.mr = Some(mr),
            Err(Refused { handle, .. }) => {
                // Nothing has changed, and operations under way arrive.
                let unchanged = handle.is_some();
                at.spare.mr = handle;
                if unchanged {
                    return;
                }
            }
        }
        return spare_is_stable(session, end);
    }
    let key = mr.remote(0);
    if let Err(Refused {
        handle: Some(_),
        error,
        ..
    }) = world.verb(&at.lease, mr.dereg()).await
    {
        world.violated(
            Rule::Verb,
            format!("a deregistration gave the region back: {error}"),
        );
    }
    spare_is_stable(session, end);
    if session.draw.chance(Ppm::percent(30)) {
        failing::post_stale(session, end, key);
    } else if session.draw.chance(Ppm::percent(50)) {
        register_spare(session, end).await;
    }
}

async fn register_spare(session: &mut Session, end: usize) {
    let at = &mut session.ends[end];
    let Some(pd) = &at.pd else { return };
    let memory = Arc::clone(&at.spare.memory);
    let request = pd.register(memory, at.spare.access).iova(at.spare.iova);
    at.spare.mr = session.world.verb(&at.lease, request).await.ok();
}

/// The old keys of the spare region no longer work: operations under way have arrived by now, or never will.
fn spare_is_stable(session: &mut Session, end: usize) {
    let spare = |(place, _): &(Place, _)| *place == Place::Spare;
    for conn in &mut session.conns {
        let lane = &conn.lanes[1 - end];
        let mut sends = lane.sends.iter();
        // It may end in an error now, and take the connection down.
        let is_under_way = session.ends[end]
            .spare
            .model
            .is_under_way(conn.lane(1 - end));
        if is_under_way || sends.any(|sent| sent.what.target.as_ref().is_some_and(spare)) {
            conn.broken = true;
        }
    }
    reap::reap(session);
    for lane in 0..2 * session.conns.len() as u64 {
        if let Err(what) = session.ends[end].spare.model.resolve(lane) {
            session.world.violated(Rule::Memory, what);
        }
    }
}

/// Issues verbs on nodes until the run quiesces: objects made and destroyed in every order, with Busy where it belongs,
/// cancelled or given up half way.
pub(super) async fn run(world: Rc<World>, mut draw: Draw) {
    while !world.quiescing.get() {
        let pause = draw.duration(Duration::from_micros(1)..=Duration::from_micros(100));
        world.sim.sleep(pause).await;
        let Some(lease) = world.lease(draw.below(world.plan.nodes)) else {
            continue;
        };
        match draw.below(7) {
            6 => await_event(&world, &lease, &mut draw).await,
            0 => ask(&world, &lease, &mut draw).await,
            1 => cancel(&world, &lease, &mut draw).await,
            2 => routines(&world, &lease, &mut draw).await,
            // Streams need no address handles.
            3 if world.plan.mode == Mode::Streams => {}
            3 => addresses(&world, &lease).await,
            4 => parted(&world, &lease, &mut draw).await,
            _ => drop(tree(&world, &lease, &mut draw).await),
        }
    }
}

/// Queries, and changes without an effect on others.
async fn ask(world: &World, lease: &Lease, draw: &mut Draw) {
    let Some(device) = lease.device() else {
        return;
    };
    let _ = world.verb(lease, device.query()).await;
    let _ = world.verb(lease, device.query_port(1)).await;
    let invalid = |error: &Error| {
        matches!(
            error,
            Error::Invalid {
                attr: Attr::Port,
                ..
            }
        )
    };
    if world
        .verb_or(lease, device.query_port(9), invalid)
        .await
        .is_ok()
    {
        world.violated(Rule::Verb, "there is no port 9, and it was queried");
    }
    let _ = world.verb(lease, device.query_gid(1, 0)).await;
    let _ = world.verb(lease, device.query_pkey(1, 0)).await;
    extend(world, lease, &device).await;
    let node_desc = Some(format!("node {}", draw.below(100)));
    let change = ModifyDevice {
        node_desc,
        ..ModifyDevice::default()
    };
    let _ = world.verb(lease, device.modify(change)).await;
    let _ = world.verb(lease, device.modify_port(1).set_caps(2)).await;
}

/// Calls an extension by a routine, the only mode besides blocking.
async fn extend(world: &World, lease: &Lease, device: &Device) {
    let before = world.sim.now();
    let answer = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&answer);
    let _ = device.call::<PortCounters>(()).issue(move |result| {
        *kept.lock() = Some(result.err());
    });
    while answer.lock().is_none() {
        world.sim.sleep(Duration::from_micros(5)).await;
        if world.sim.now() - before > LIVE_MAX {
            return world.violated(Rule::Liveness, "an extension is never answered");
        }
    }
    let error = answer.lock().take().flatten();
    world.judge(lease, Kind::CallExtension, before, error, |_| false);
}

/// A request that is cancelled or dropped while it pends (K8, K9).
async fn cancel(world: &World, lease: &Lease, draw: &mut Draw) {
    let Some(device) = lease.device() else {
        return;
    };
    let before = world.sim.now();
    let mut request = std::pin::pin!(device.alloc_pd().into_future());
    let first = std::future::poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
    let result = match first {
        Poll::Ready(result) => result,
        Poll::Pending if draw.chance(Ppm::percent(30)) => {
            // Given up: the object that it creates is destroyed by itself.
            return;
        }
        Poll::Pending => {
            if let Some(handle) = request.cancel_handle() {
                handle.cancel();
            }
            request.await
        }
    };
    let error = result.as_ref().err().copied();
    world.judge(lease, Kind::AllocPd, before, error, |error| {
        *error == Error::Cancelled
    });
    if let Ok(pd) = result {
        let _ = world.verb(lease, pd.dealloc()).await;
    }
}

/// A request for an event, which pends until it is cancelled or the device is removed (K8, K15, K17): events are
/// delivered to the run's handler.
async fn await_event(world: &World, lease: &Lease, draw: &mut Draw) {
    let Some(device) = lease.device() else { return };
    let before = world.sim.now();
    let mut request = device.next_event().into_future();
    let pause = draw.duration(Duration::from_micros(1)..=Duration::from_micros(100));
    let mut result = world.sim.timeout(pause, &mut request).await;
    if result.is_none() {
        if let Some(handle) = request.cancel_handle() {
            handle.cancel();
        }
        result = world.sim.timeout(LIVE_MAX, request).await;
    }
    match result {
        Some(result) => {
            let error = result.as_ref().err().copied();
            let cancelled = |error: &Error| *error == Error::Cancelled;
            world.judge(lease, Kind::NextEvent, before, error, cancelled);
            if error.is_none() {
                world.violated(Rule::Verb, "an event went to a request past the handler");
            }
        }
        None => world.violated(Rule::Liveness, "a request for an event cannot be cancelled"),
    }
}

/// Requests whose routines count themselves: each runs once (K1).
async fn routines(world: &World, lease: &Lease, draw: &mut Draw) {
    let Some(device) = lease.device() else {
        return;
    };
    let ran = Arc::new(Mutex::new(0));
    let issued = draw.within(1..=4);
    for _ in 0..issued {
        let ran = Arc::clone(&ran);
        let _ = device.query_port(1).issue(move |_| *ran.lock() += 1);
    }
    for _ in 0..50_000 {
        if *ran.lock() >= issued {
            break;
        }
        world.sim.sleep(Duration::from_micros(100)).await;
    }
    world.sim.sleep(Duration::from_micros(1)).await;
    let ran = *ran.lock();
    if ran != issued {
        let rule = if ran < issued {
            Rule::Liveness
        } else {
            Rule::Verb
        };
        world.violated(
            rule,
            format!("{issued} requests were issued, and {ran} routines ran"),
        );
    }
}

async fn addresses(world: &World, lease: &Lease) {
    let Some(device) = lease.device() else {
        return;
    };
    let Ok(pd) = world.verb(lease, device.alloc_pd()).await else {
        return;
    };
    let av = Av::to_gid(1, 0, lease.hca.gid_at(0));
    if let Ok(ah) = world.verb(lease, pd.create_ah(av)).await {
        let _ = world.verb(lease, ah.modify(av)).await;
        let _ = world.verb(lease, ah.query()).await;
        let _ = world.verb(lease, ah.destroy()).await;
    }
    let _ = world.verb(lease, pd.dealloc()).await;
}

/// Handles that are dropped in the wrong order: nothing cascades, and in the end all objects are destroyed (K12).
async fn parted(world: &World, lease: &Lease, draw: &mut Draw) {
    let Some(device) = lease.device() else {
        return;
    };
    let Ok(pd) = world.verb(lease, device.alloc_pd()).await else {
        return;
    };
    let Ok(memory) = Memory::alloc(64) else {
        return;
    };
    let mr = world
        .verb(lease, pd.register(memory, Access::empty()))
        .await;
    let closed = StdCell::new(false);
    let idle = async {
        let _ = world.verb(lease, pd.dealloc_when_idle()).await;
        closed.set(true);
    };
    let let_go = async {
        world
            .sim
            .sleep(Duration::from_micros(draw.within(1..=50)))
            .await;
        if closed.get() && mr.is_ok() && !lease.removed.get() {
            world.violated(Rule::Busy, "a protection domain went before its region");
        }
        drop(mr);
    };
    let mut both = (std::pin::pin!(idle), std::pin::pin!(let_go), false, false);
    std::future::poll_fn(|cx| {
        both.2 = both.2 || both.0.as_mut().poll(cx).is_ready();
        both.3 = both.3 || both.1.as_mut().poll(cx).is_ready();
        if both.2 && both.3 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Makes a queue pair with its parents and tries to destroy them from the root up (K10).
async fn tree(world: &World, lease: &Lease, draw: &mut Draw) -> Option<()> {
    let device = lease.device()?;
    let mut pd = world.verb(lease, device.alloc_pd()).await.ok()?;
    let mut cq = world.verb(lease, device.create_cq(8)).await.ok()?;
    let mut srq = None;
    if draw.chance(Ppm::percent(50)) {
        srq = world.verb(lease, pd.create_srq(4, 1)).await.ok();
    }
    let mut init = QpInit::rc(&cq, &cq);
    if let Some(srq) = &srq {
        init = init.srq(srq);
    }
    let qp = world.verb(lease, pd.create_qp(init)).await.ok();
    let in_use = qp.is_some();
    let has_children = in_use || srq.is_some();
    let busy = |error: &Error| has_children && *error == Error::Busy;
    match world.verb_or(lease, pd.dealloc(), busy).await {
        Err(Refused {
            handle: Some(handle),
            ..
        }) => pd = handle,
        _ if has_children => {
            world.violated(
                Rule::Busy,
                "a protection domain with a queue pair was deallocated",
            );
            return None;
        }
        _ => return Some(()),
    }
    let busy = |error: &Error| in_use && *error == Error::Busy;
    if in_use {
        match world.verb_or(lease, cq.destroy(), busy).await {
            Err(Refused {
                handle: Some(handle),
                ..
            }) => cq = handle,
            _ => {
                world.violated(
                    Rule::Busy,
                    "a completion queue with a queue pair was destroyed",
                );
                return None;
            }
        }
    }
    if let Some(qp) = qp {
        // Only datagram queue pairs can be in a group.
        let refused = |error: &Error| {
            matches!(
                error,
                Error::Unsupported(_) | Error::Mismatch { .. } | Error::Exhausted { .. }
            )
        };
        let attached = qp.attach_mcast(lease.hca.gid_at(0), Lid(0));
        if world.verb_or(lease, attached, refused).await.is_ok() {
            world.violated(Rule::Verb, "a connected queue pair is in a multicast group");
        }
        let _ = world.verb(lease, qp.destroy()).await;
    }
    if let Some(srq) = srq {
        let _ = world.verb(lease, srq.destroy()).await;
    }
    let _ = world.verb(lease, cq.destroy()).await;
    let _ = world.verb(lease, pd.dealloc()).await;
    Some(())
}
