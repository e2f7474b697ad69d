//! What goes wrong, and when.

use std::rc::Rc;
use std::time::Duration;

use verbs_core::filter::{FaultAction, Until};
use verbs_core::{Error, Kind};

use crate::sim::run::Mode;
use crate::sim::run::machine::{Machine, addresses};
use crate::sim::run::world::World;
use crate::sim::{Draw, LinkConfig, hostile};

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

/// Makes faults until it is calm.
pub(super) async fn run(world: Rc<World>, mut draw: Draw) {
    while !world.calm.get() {
        let pause = draw.duration(Duration::from_micros(20)..=Duration::from_micros(800));
        world.sim.sleep(pause).await;
        if world.calm.get() {
            break;
        }
        let node = draw.below(world.plan.nodes);
        let Some(machine) = world.machine(node) else {
            continue;
        };
        match draw.below(10) {
            0..=1 if world.plan.flaps => flap(&world, &machine, &mut draw).await,
            2 if world.plan.removals => remove(&world, &machine, &mut draw).await,
            3..=5 if world.plan.verb_faults => inject(&machine, &mut draw),
            6..=7 => change_weather(&world, &mut draw),
            8 => drop(machine.fault.release()),
            9 if world.plan.hostile => attack(&world, &mut draw),
            _ => {}
        }
    }
}

/// There are no more faults.
pub(super) fn calm(world: &World) {
    world.sim.network().set_all(world.plan.weather.healed());
    release(world);
}

/// Lets all verbs go on that are held back.
pub(super) fn release(world: &World) {
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
        (Mode::Direct, true) => machine.hca.port_up(),
        (Mode::Direct, false) => machine.hca.port_down(),
    }
}

/// Takes a device out, and puts another one in its place when everybody has left.
async fn remove(world: &World, machine: &Rc<Machine>, draw: &mut Draw) {
    machine.remove();
    let away = draw.duration(Duration::from_micros(1)..=Duration::from_millis(1));
    world.sim.sleep(away).await;
    world.take_down(machine.node).await;
    world.bring_up(machine.node).await;
}

fn inject(machine: &Machine, draw: &mut Draw) {
    let action = match draw.below(4) {
        0 => FaultAction::Fail(Error::DeviceFailed),
        1 => FaultAction::Lose,
        2 => FaultAction::Delay(Until::Released),
        _ => FaultAction::Delay(Until::Overtaken(draw.within(1..=3) as u32)),
    };
    machine.inject(*draw.pick(VICTIMS), action);
}

/// Has somebody on the network send a few packets.
fn attack(world: &World, draw: &mut Draw) {
    let all: Vec<_> = (0..world.plan.nodes).flat_map(addresses).collect();
    for _ in 0..=draw.below(20) {
        hostile::attack(world.sim.network(), &all, draw);
    }
}

/// Makes one way better or worse for a while.
fn change_weather(world: &World, draw: &mut Draw) {
    let (a, b) = (draw.below(world.plan.nodes), draw.below(world.plan.nodes));
    let weather = world.plan.weather;
    let config = match draw.below(3) {
        0 => weather.healed(),
        1 => LinkConfig {
            latency: draw.duration(weather.latency..=weather.latency * 3),
            ..weather
        },
        _ => weather,
    };
    world
        .sim
        .network()
        .set(addresses(a)[0], addresses(b)[0], config);
}
