//! Instructions of a verb on the control path, each with a budget that fails the run.
//!
//! Measured: what one verb costs its issuer, from formatting the request to the end of its routine,
//! over a provider that answers at once with a ready value. The registry of what threads issue is
//! part of it; it cannot be switched off. A tokio oneshot stands beside for the ratio.

#![allow(missing_docs, reason = "what gungraun generates has none")]

use futures::executor::block_on;
use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use tokio::sync::oneshot;
use verbs_benches::control::Subject;

/// Repetitions of an operation in one measured call.
const TIMES: u64 = 1000;

/// Fails above `instructions` for each operation.
///
/// Budgets are lowered when the code gets better, and raised only together with the toolchain.
fn budget(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    // What happens once per call, loop and frame, is less than an instruction for each operation.
    callgrind.hard_limits([(EventKind::Ir, (instructions + 1) * TIMES - 1)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident: $subject:ident.$operation:ident <= $budget:literal;)*) => {
        $(
            $(#[$doc])*
            #[library_benchmark(config = budget($budget))]
            #[bench::counted(Subject::$subject())]
            fn $name(subject: Subject) -> Subject {
                subject.$operation(TIMES);
                subject
            }
        )*
    };
}

counted! {
    query_routine: inline.query_routine <= 100;
    query_future: inline.query_future <= 159;
    query_poll: inline.query_poll <= 117;
    query_wait: inline.query_wait <= 143;
    query_nested: inline.query_nested <= 775;
    modify_routine: inline.modify_routine <= 119;
    modify_future: inline.modify_future <= 216;
    pended_routine: pending.query_routine <= 1972;
    pended_future: pending.query_future <= 1680;
    qp_to_rts: inline.qp_to_rts <= 2200;
    qp_pair: inline.qp_pair <= 1612;
}

#[library_benchmark]
#[bench::peer()]
fn tokio_oneshot() {
    for word in 0..TIMES {
        let (sender, receiver) = oneshot::channel();
        let _ = sender.send(word);
        std::hint::black_box(block_on(receiver).is_ok());
    }
}

library_benchmark_group!(
    name = control,
    benchmarks = [
        query_routine,
        query_future,
        query_poll,
        query_wait,
        query_nested,
        modify_routine,
        modify_future,
        pended_routine,
        pended_future,
        qp_to_rts,
        qp_pair,
        tokio_oneshot
    ]
);

main!(library_benchmark_groups = control);
