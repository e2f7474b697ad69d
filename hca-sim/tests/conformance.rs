//! The conformance suite of verbs-core on the software HCA: with commands carried out at once, with delays, out of
//! order, and in few slots.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroU32;
use std::time::Duration;

use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandOrder, CommandTime};
use hca_sim::{Hca, Limits};
use verbs_core::filter::{Fault, Trace};
use verbs_core::sync::Arc;
use verbs_core::testing::{Subject, conformance};
use verbs_core::{Device, Kind, Provider};

/// Verbs that the software HCA does not have.
const WITHOUT: &[Kind] = &[Kind::BindCm];

/// Small enough for tests to reach.
const LIMITS: Limits = Limits {
    max_pd: 64,
    max_cq: 48,
    max_qp: 32,
    max_mr: 40,
    max_srq: 24,
    max_xrcd: 20,
    max_ah: 40,
};

fn subject(commands: CommandConfig) -> Subject {
    let clock = VirtualClock::new();
    let hca = Hca::loopback()
        .limits(LIMITS)
        .clock(clock.clone())
        .commands(commands)
        .build();
    let removes = Arc::clone(&hca);
    Subject::opened_by(move || hca.open())
        .step(move || {
            clock.step();
        })
        .remove(move || removes.remove())
        .without(WITHOUT)
}

#[test]
fn with_commands_that_take_no_time() {
    conformance::run(|| {
        let hca = Hca::loopback().limits(LIMITS).build();
        let removes = Arc::clone(&hca);
        Subject::new(hca)
            .remove(move || removes.remove())
            .without(WITHOUT)
    });
}

/// Verbs that an RNIC does not have.
const WITHOUT_IWARP: &[Kind] = &[
    Kind::AllocXrcd,
    Kind::CreateTargetQp,
    Kind::OpenTargetQp,
    Kind::AttachMcast,
    Kind::DetachMcast,
    Kind::CreateAh,
];

#[test]
fn with_messages_over_streams() {
    conformance::run(|| {
        let address = std::net::IpAddr::from([127, 0, 0, 1]);
        let hca = Hca::iwarp(&[address]).unwrap().limits(LIMITS).build();
        let removes = Arc::clone(&hca);
        Subject::new(hca)
            .remove(move || removes.remove())
            .without(WITHOUT_IWARP)
    });
}

#[test]
fn with_commands_that_take_time() {
    conformance::run(|| {
        subject(CommandConfig {
            time: CommandTime::Fixed(Duration::from_micros(10)),
            order: CommandOrder::InOrder,
            ..CommandConfig::default()
        })
    });
}

#[test]
fn with_commands_that_complete_out_of_order() {
    conformance::run(|| {
        subject(CommandConfig {
            time: CommandTime::Drawn {
                min: Duration::from_micros(1),
                max: Duration::from_micros(100),
            },
            seed: 7,
            ..CommandConfig::default()
        })
    });
}

#[test]
fn with_one_command_slot() {
    conformance::run(|| {
        subject(CommandConfig {
            slots: NonZeroU32::MIN,
            time: CommandTime::Drawn {
                min: Duration::ZERO,
                max: Duration::from_micros(20),
            },
            seed: 11,
            ..CommandConfig::default()
        })
    });
}

#[test]
fn behind_filters() {
    conformance::run(|| {
        let hca = Hca::loopback().limits(LIMITS).build();
        let removes = Arc::clone(&hca);
        let faults = Arc::new(Fault::new(hca));
        let filters: Arc<dyn Provider> = Arc::new(Trace::new(faults));
        Subject::opened_by(move || Device::open(Arc::clone(&filters)))
            .remove(move || removes.remove())
            .without(WITHOUT)
    });
}
