//! Instructions of a verb on the control path, each with a budget that fails the run.
//!
//! Measured: what one verb costs its issuer, from formatting the request to the end of its routine, over a provider
//! that answers at once with a ready value. The registry of the verbs that threads issue is included; it cannot be
//! switched off. A tokio oneshot is measured for the ratio.

use futures::executor::block_on;
use gungraun::{library_benchmark, library_benchmark_group};
use tokio::sync::oneshot;
use verbs_benches::control::Subject;

use crate::budget::{TIMES, budget};

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
    query_poll: inline.query_poll <= 113;
    query_wait: inline.query_wait <= 144;
    query_nested: inline.query_nested <= 801;
    modify_routine: inline.modify_routine <= 116;
    modify_future: inline.modify_future <= 217;
    pended_routine: pending.query_routine <= 1989;
    pended_future: pending.query_future <= 1766;
    qp_to_rts: inline.qp_to_rts <= 2041;
    qp_pair: inline.qp_pair <= 1445;
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
    name = controls,
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
