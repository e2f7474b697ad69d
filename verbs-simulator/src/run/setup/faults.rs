//! The faults, and their times.

use std::rc::Rc;
use std::time::Duration;

use verbs_core::filter::{FaultAction, Until};
use verbs_core::{Error, Kind};

use crate::run::Mode;
use crate::run::machine::{Machine, addresses};
use crate::run::world::World;
use crate::{Draw, LinkConfig, Ppm, StreamConfig, hostile};

/// Verbs that are made to fail. Opening and closing are left alone: a run needs its devices.
const VICTIMS: &[Kind] = &[
    Kind::QueryDevice,
    Kind::QueryPort,
    Kind::QueryGid,
    Kind::QueryPkey,
    Kind::ModifyDevice,
    Kind::ModifyPort,
    Kind::CallExtension,
    Kind::AllocPd,
    Kind::DeallocPd,
    Kind::RegMr,
    Kind::QueryMr,
    Kind::ReregMr,
    Kind::DeregMr,
    Kind::AllocMr,
    Kind::FreeMr,
    Kind::AllocMw,
    Kind::DeallocMw,
    Kind::CreateFmrPool,
    Kind::FlushFmrPool,
    Kind::DestroyFmrPool,
    Kind::CreateCq,
    Kind::ModifyCq,
    Kind::DestroyCq,
    Kind::CreateSrq,
    Kind::ModifySrq,
    Kind::QuerySrq,
    Kind::DestroySrq,
    Kind::CreateQp,
    Kind::ModifyQp,
    Kind::QueryQp,
    Kind::DestroyQp,
    Kind::CreateAh,
    Kind::ModifyAh,
    Kind::QueryAh,
    Kind::DestroyAh,
    Kind::AllocXrcd,
    Kind::DeallocXrcd,
    Kind::CreateTargetQp,
    Kind::OpenTargetQp,
    Kind::AttachMcast,
    Kind::DetachMcast,
];

/// The same of verbs that make connections.
const CM_VICTIMS: &[Kind] = &[
    Kind::BindCm,
    Kind::ListenCm,
    Kind::ConnectCm,
    Kind::AcceptCm,
    Kind::RejectCm,
];

/// Makes faults until the run quiesces.
pub(crate) async fn run(world: Rc<World>, mut draw: Draw) {
    while !world.quiescing.get() {
        let pause = draw.duration(Duration::from_micros(20)..=Duration::from_micros(800));
        world.sim.sleep(pause).await;
        if world.quiescing.get() {
            break;
        }
        let node = draw.below(world.plan.nodes);
        let Some(machine) = world.machine(node) else {
            continue;
        };
        match draw.below(10) {
            0..=1 if world.plan.flaps => flap(&world, &machine, &mut draw).await,
            2 if world.plan.removals => remove(&world, &machine, &mut draw).await,
            3..=5 if world.plan.verb_faults => inject(&world, &machine, &mut draw),
            6..=7 if world.plan.mode == Mode::Streams => change_stream_faults(&world, &mut draw),
            6..=7 => change_link_faults(&world, &mut draw),
            8 => drop(machine.fault.release()),
            9 if world.plan.hostile => attack(&world, &mut draw),
            _ => {}
        }
    }
}

/// From now on there are no faults.
pub(crate) fn stop(world: &World) {
    world.sim.network().set_all(world.plan.link_faults.healed());
    let healed = world.plan.stream_faults.healed();
    world.sim.streams().configure(healed);
    release(world);
}

/// Lets all verbs continue that are held back.
pub(crate) fn release(world: &World) {
    for node in 0..world.plan.nodes {
        if let Some(machine) = world.machine(node) {
            machine.fault.release();
        }
    }
}

async fn flap(world: &World, machine: &Machine, draw: &mut Draw) {
    let down = draw.duration(Duration::from_micros(1)..=Duration::from_millis(3));
    machine.flaps.set(machine.flaps.get() + 1);
    set_up(world, machine, false);
    world.sim.sleep(down).await;
    set_up(world, machine, true);
    machine.flaps.set(machine.flaps.get() + 1);
}

fn set_up(world: &World, machine: &Machine, up: bool) {
    match (world.plan.mode, up) {
        (Mode::Packets, up) => world.sim.network().set_up(addresses(machine.node)[0], up),
        (Mode::Direct | Mode::Streams, true) => machine.hca.port_up(),
        (Mode::Direct | Mode::Streams, false) => machine.hca.port_down(),
    }
}

/// Removes a device, and makes another one in its place when all its users have left.
async fn remove(world: &World, machine: &Rc<Machine>, draw: &mut Draw) {
    machine.remove();
    let away = draw.duration(Duration::from_micros(1)..=Duration::from_millis(1));
    world.sim.sleep(away).await;
    world.take_down(machine.node).await;
    world.bring_up(machine.node).await;
}

fn inject(world: &World, machine: &Machine, draw: &mut Draw) {
    let action = match draw.below(4) {
        0 => FaultAction::Fail(Error::DeviceFailed),
        1 => FaultAction::Lose,
        2 => FaultAction::Delay(Until::Released),
        _ => FaultAction::Delay(Until::Overtaken(draw.within(1..=3) as u32)),
    };
    let makes_connections = world.plan.mode == Mode::Streams && draw.chance(Ppm::percent(30));
    let victims = if makes_connections {
        CM_VICTIMS
    } else {
        VICTIMS
    };
    machine.inject(*draw.pick(victims), action);
}

/// Lets an attacker on the network send a few packets.
fn attack(world: &World, draw: &mut Draw) {
    if world.plan.mode == Mode::Streams {
        return hostile::intrude(world.sim.streams(), draw);
    }
    let all: Vec<_> = (0..world.plan.nodes).flat_map(addresses).collect();
    for _ in 0..=draw.below(20) {
        hostile::attack(world.sim.network(), &all, draw);
    }
}

/// Makes one direction better or worse for a while.
fn change_link_faults(world: &World, draw: &mut Draw) {
    let (a, b) = (draw.below(world.plan.nodes), draw.below(world.plan.nodes));
    let link_faults = world.plan.link_faults;
    let config = match draw.below(3) {
        0 => link_faults.healed(),
        1 => LinkConfig {
            latency: draw.duration(link_faults.latency..=link_faults.latency * 3),
            ..link_faults
        },
        _ => link_faults,
    };
    world
        .sim
        .network()
        .set(addresses(a)[0], addresses(b)[0], config);
}

/// Makes the streams better or worse for a while.
fn change_stream_faults(world: &World, draw: &mut Draw) {
    let stream_faults = world.plan.stream_faults;
    let config = match draw.below(3) {
        0 => stream_faults.healed(),
        1 => StreamConfig {
            latency: draw.duration(stream_faults.latency..=stream_faults.latency * 3),
            ..stream_faults
        },
        _ => stream_faults,
    };
    world.sim.streams().configure(config);
}
