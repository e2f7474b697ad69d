//! A busy node must not look dead to its subnet manager.

#![cfg(not(verbs_loom))]

#[path = "../examples/busy_node/model.rs"]
mod model;

use std::time::Duration;

use model::{Load, Model, Node, TURN};

/// Goal: answers given in the handler are sent within the manager's budget, however busy the node is, with no hand-off;
/// a worker that shares its thread misses the budget on the same commands. Method: both models on the same load, five
/// seeds, in virtual time.
#[test]
fn inline_answers_come_in_time_and_a_workers_do_not() {
    for seed in 0..5 {
        let inline = Node::run(Model::Inline, Load::BUSY, seed);
        assert_eq!(inline.asked, 3000);
        assert_eq!(
            (inline.answered, inline.given_up, inline.timeouts),
            (3000, 0, 0),
            "seed {seed}"
        );
        assert_eq!(inline.handoffs, 0);
        // Handlers queue up behind each other for a while; most of the time there is one ahead.
        assert!(
            inline.percentile(50) <= Load::BUSY.handler_max * 2,
            "seed {seed}: {inline:?}"
        );

        let worker = Node::run(Model::Worker, Load::BUSY, seed);
        assert_eq!(worker.asked, 3000);
        assert!(
            worker.given_up > 100,
            "seed {seed}: {} given up",
            worker.given_up
        );
        assert!(worker.timeouts > worker.given_up, "seed {seed}");
        assert!(worker.handoffs >= 3000);
    }
}

/// Goal: where handlers do not queue up, an answer waits for one handler at most. Method: a load that leaves gaps.
#[test]
fn an_answer_waits_for_one_handler_at_most() {
    let load = Load {
        handlers_percent: 40,
        ..Load::BUSY
    };
    let inline = Node::run(Model::Inline, load, 1);
    let longest = load.handler_max + Duration::from_micros(100);
    assert!(
        inline.percentile(100) <= longest,
        "{:?}",
        inline.percentile(100)
    );
    assert_eq!(inline.answered, inline.asked);
}

/// Goal: a storm of datagrams does not starve others. Method: 5,000 at once, while handlers of others wait: no more are
/// ever answered in a row than fit in a turn, and all of them in time.
#[test]
fn datagrams_do_not_starve_others() {
    let load = Load {
        span: Duration::from_secs(1),
        burst: 5_000,
        handlers_percent: 50,
        sleeps_at: Duration::ZERO,
        ..Load::BUSY
    };
    let inline = Node::run(Model::Inline, load, 3);
    assert_eq!(inline.most_in_a_row, TURN);
    assert_eq!((inline.answered, inline.asked), (5_100, 5_100));
}
